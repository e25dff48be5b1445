//! What is printed where: results on standard output, everything else on standard error.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// An error and its causes in one line, without causes that the error quotes itself.
pub fn explain(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        match text.as_str() {
            "" => cause,
            said if said.contains(&cause) => text,
            said => format!("{said}: {cause}"),
        }
    })
}

/// Sends what the program has to say beside its results to standard error.
pub fn log_to_stderr(verbosity: u8) {
    let level = match verbosity {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .init();
}

/// Prints a result as one JSON object, or as text for people. A pipe that was closed is no error.
pub fn print<T: Serialize>(json: bool, result: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
    use std::io::Write;
    let mut shown = if json {
        serde_json::to_string_pretty(result).context("cannot write the result as JSON")?
    } else {
        text(result)
    };
    shown.push('\n');
    match std::io::stdout().lock().write_all(shown.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a document as JSON.
pub fn write_json<T: Serialize>(path: &Path, document: &T) -> Result<()> {
    let mut text = serde_json::to_string_pretty(document).context("cannot write JSON")?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Lines of `name  value`, the names padded to one width.
pub fn lines(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}"))
        .collect();
    lines.join("\n")
}
