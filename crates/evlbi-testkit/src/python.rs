//! The Python that tests call.

use std::path::{Path, PathBuf};

use crate::need::{Kind, skip};
use crate::running::command;

/// Returns a Python that has these modules: the one in `EVLBI_PYTHON`, which must have them, or that of `cargo xtask setup`. Without
/// one, the calling test is skipped.
///
/// # Panics
/// Panics if the Python in `EVLBI_PYTHON` cannot import them, or if `EVLBI_REQUIRE` is set and there is none.
#[must_use]
#[track_caller]
pub fn python(modules: &str) -> Option<PathBuf> {
    let named = std::env::var_os("EVLBI_PYTHON").map(PathBuf::from);
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/python");
    let is_named = named.is_some();
    let python = named.unwrap_or(usual);
    let import = command(&python)
        .args(["-c", &format!("import {modules}")])
        .output();
    let said = match import {
        Ok(output) if output.status.success() => return Some(python),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let is_missing = said.contains("ModuleNotFoundError") || !python.exists();
    assert!(is_missing, "{}: {said}", python.display());
    assert!(
        !is_named,
        "EVLBI_PYTHON: {} cannot import {modules}",
        python.display()
    );
    skip(
        Kind::Tool,
        &format!("Python with {modules} (cargo xtask setup)"),
    );
    None
}
