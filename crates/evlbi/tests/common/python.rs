//! The Python that tests call.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python that has these modules: the one that EVLBI_PYTHON names, which must, or that of `.ci/run`. None where it does not,
/// which is said.
pub fn python(modules: &str) -> Option<PathBuf> {
    let named = std::env::var_os("EVLBI_PYTHON").map(PathBuf::from);
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/python");
    let is_named = named.is_some();
    let python = named.unwrap_or(usual);
    let import = Command::new(&python)
        .args(["-c", &format!("import {modules}")])
        .output();
    if import.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let reason = format!("{} cannot import {modules}", python.display());
    assert!(!is_named, "{reason}");
    eprintln!("skipped: {reason} (set EVLBI_PYTHON to a Python that can)");
    None
}
