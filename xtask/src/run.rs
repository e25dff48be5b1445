//! Programs that tasks start, and the output of `cargo test`.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program; its output is visible.
///
/// # Errors
/// Returns an error if it does not start or does not end well.
pub fn well(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Returns the output of a program, without the final line end.
///
/// # Errors
/// Returns an error if it does not start or does not end well.
pub fn output_of(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", arguments.join(" "), errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns how many tests passed and failed, from `ok. 12 passed; 0 failed; ...`.
#[must_use]
pub fn counts(result: &str) -> (u64, u64) {
    let count = |what: &str| {
        let part = result
            .split([';', '.'])
            .find(|part| part.trim_end().ends_with(what));
        let number = part.and_then(|part| part.split_whitespace().next()?.parse().ok());
        number.unwrap_or(0)
    };
    (count("passed"), count("failed"))
}
