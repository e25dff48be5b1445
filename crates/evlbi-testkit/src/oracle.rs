//! Answers of other programs that are committed beside the tests, so that tests can compare with them where the program is not
//! installed.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// With `write` in it, the answers that tests get replace those that are committed: `cargo xtask oracles --write`.
const VARIABLE: &str = "EVLBI_ORACLES";

/// A committed answer.
///
/// # Panics
/// When there is none, or it is no JSON.
#[must_use]
#[track_caller]
pub fn committed(file: &Path) -> Value {
    let shown = file.display();
    let text = fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("{shown}: {error}: cargo xtask oracles --write"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{shown}: {error}"))
}

/// Whether answers are written.
#[must_use]
pub fn is_written() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value == "write")
}

/// Compares an answer with the committed one.
///
/// # Panics
/// When it is another.
#[track_caller]
pub fn compare(file: &Path, answer: &Value) {
    if is_written() {
        // A row a line, so that differences can be seen.
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

/// SHA-256 of bytes in hexadecimal digits, which tells whether an answer is about these.
#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
