//! Web UI in Chromium, driven by Python scripts (Playwright) that print their findings as a line of JSON.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::control::support::Agent;
use evlbi_testkit::need::which;
use evlbi_testkit::python::python;
use evlbi_testkit::{command, need};

/// Returns a Python that can drive a browser, and requires the browser; otherwise reports which is not installed.
pub fn python_with_a_browser() -> Option<PathBuf> {
    let python = python("axe_playwright_python, playwright")?;
    need(&["chromium"]).then_some(python)
}

/// Returns a command that runs a script in the browser.
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

/// Returns the findings of a script in the web UI of an agent.
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

/// Checks that a page makes no forbidden requests and has no errors.
pub fn all_is_well(seen: &Value) {
    for (what, why) in [
        ("elsewhere", "requests that leave the host"),
        ("errors", "on the console"),
        ("violations", "of accessibility (axe-core)"),
    ] {
        assert_eq!(seen[what], json!([]), "{why}");
    }
}
