//! Output: results on standard output, everything else on standard error.

use std::io::{self, ErrorKind, IsTerminal, Write};

use anyhow::{Context, Error, Result};
use evlbi_net::run;
use serde::Serialize;

use crate::{say, words};

/// Formats an error, its causes and the remedy as one line.
pub fn explain(error: &Error) -> String {
    run::explain_in(error.as_ref(), words::of)
}

/// Sends diagnostics to standard error.
pub fn log_to_stderr(verbosity: u8) {
    let level = match verbosity {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_writer(say::messages)
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        .init();
}

/// A result that is printed as JSON, with a schema in docs/schemas: a row of the table in `schemas.rs`.
pub trait Output: Serialize {}

/// Prints a result as one JSON object, or as text for people. Ignores a closed pipe.
pub fn print<T: Output>(json: bool, result: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
    let shown = if json {
        serde_json::to_string_pretty(result).context("cannot write the result as JSON")?
    } else {
        text(result)
    };
    let mut results = Results::default();
    results.line(&shown);
    results.end()
}

/// Results on standard output during a run. A result that cannot be printed does not end the run.
#[derive(Debug, Default)]
pub struct Results(Option<io::Error>);

impl Results {
    /// Prints a result as JSON on one line, or as text for people.
    pub fn show<T: Output>(
        &mut self,
        json: bool,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        let shown = match json {
            true => serde_json::to_string(result).context("cannot write the result as JSON")?,
            false => text(result),
        };
        self.line(&shown);
        Ok(())
    }

    /// Prints a line of text.
    pub fn line(&mut self, line: &str) {
        let mut out = io::stdout().lock();
        let printed = writeln!(out, "{line}").and_then(|()| out.flush());
        if let Err(error) = printed {
            self.0.get_or_insert(error);
        }
    }

    /// Returns whether all lines so far were printed.
    pub fn is_printed(&self) -> bool {
        self.0.is_none()
    }

    /// Reports whether all lines were printed. Ignores a closed pipe.
    pub fn end(self) -> Result<()> {
        match self.0 {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(error).context("cannot write to standard output")
            }
            _ => Ok(()),
        }
    }
}
