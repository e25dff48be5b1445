//! Machines on which there can be no emulated paths.

use std::process::Output;

/// Whether `evlbi path` failed because there can be no paths on this machine, which is said.
pub fn has_no_paths(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    let is_missing = !output.status.success()
        && [
            "need root or unprivileged",
            "is not installed",
            "/dev/net/tun",
        ]
        .iter()
        .any(|missing| said.contains(missing));
    if is_missing {
        eprintln!("skipped: {said}");
    }
    is_missing
}
