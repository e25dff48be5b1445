//! Pages in Chromium, driven by scripts of Python (Playwright) that print what they saw as a line of JSON.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::control::support::Agent;
use evlbi_testkit::need::which;
use evlbi_testkit::python::python;
use evlbi_testkit::{command, need};

/// A Python that can drive a browser, and the browser; else it is said what is missing.
pub fn python_with_a_browser() -> Option<PathBuf> {
    let python = python("axe_playwright_python, playwright")?;
    need(&["chromium"]).then_some(python)
}

/// What runs a script that opens pages in the browser.
pub fn script_of(python: &Path, name: &str) -> Command {
    let mut runs = command(python);
    runs.env("CHROMIUM", which("chromium").unwrap())
        .arg(script(name));
    runs
}

pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/integration/control")
        .join(name)
}

/// What a script saw on the page of an agent.
pub fn seen(python: &Path, name: &str, agent: &Agent) -> Value {
    let output = script_of(python, name)
        .arg(format!("https://{}", agent.address))
        .arg(agent.room.folder())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let seen: Value = serde_json::from_str(&said).unwrap();
    all_is_well(&seen);
    seen
}

/// What no page may do.
pub fn all_is_well(seen: &Value) {
    for (what, why) in [
        ("elsewhere", "requests that leave the host"),
        ("errors", "on the console"),
        ("violations", "of accessibility (axe-core)"),
    ] {
        assert_eq!(seen[what], json!([]), "{why}");
    }
}
