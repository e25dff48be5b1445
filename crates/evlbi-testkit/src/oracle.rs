//! Answers of other programs that are committed with the tests, so that tests can compare with them if the program is not installed.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Variable; with the value `write`, the answers that tests get replace the committed ones: `cargo xtask oracles --write`.
const VARIABLE: &str = "EVLBI_ORACLES";

/// Returns a committed answer.
///
/// # Panics
/// Panics if there is none, or it is invalid JSON.
#[must_use]
#[track_caller]
pub fn committed(file: &Path) -> Value {
    let shown = file.display();
    let text = fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("{shown}: {error}: cargo xtask oracles --write"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{shown}: {error}"))
}

/// Returns whether answers are written.
#[must_use]
pub fn is_written() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value == "write")
}

/// Compares an answer with the committed one.
///
/// # Panics
/// Panics if it differs.
#[track_caller]
pub fn compare(file: &Path, answer: &Value) {
    if is_written() {
        // One row per line, so that differences are visible.
        let mut text = answer.to_string() + "\n";
        for (end, begin) in [("]", "["), ("}", "{"), ("\"", "\"")] {
            text = text.replace(&format!("{end},{begin}"), &format!("{end},\n{begin}"));
        }
        fs::write(file, text).expect("the folder of answers");
    }
    // Through the same text, which may round the last digit of a number.
    let now: Value = serde_json::from_str(&answer.to_string()).expect("JSON");
    assert!(
        now == committed(file),
        "{} holds another answer: cargo xtask oracles --write, and git diff",
        file.display()
    );
}

/// Returns the SHA-256 of bytes in hexadecimal, which identifies the input of an answer.
#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
