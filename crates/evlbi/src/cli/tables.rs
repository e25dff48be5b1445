//! `--csv`: results as tables.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use evlbi_net::file::{TableError, check_new};

use super::plots::{can_write, is_terminal};
use crate::output::Results;
use crate::status::Usage;

/// The option, of every command whose result has rows.
#[derive(Args, Clone, Default)]
pub struct CsvArgs {
    /// Write the result as CSV to this file; `-` prints it instead of the text
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Where a result's table goes.
pub struct Csv(Option<PathBuf>);

impl CsvArgs {
    /// Checks before the work whether the table can be written.
    pub fn checked(self, json: bool, force: bool) -> Result<Csv> {
        if let Some(path) = &self.csv {
            if is_terminal(path) {
                let text =
                    "--csv - and --json would both print to standard output: give --csv a file";
                ensure!(!json, Usage(text.to_owned()));
            } else {
                can_write(path).with_context(|| format!("cannot write {}", path.display()))?;
                check_new(Some(path.as_path()), force)?;
            }
        }
        Ok(Csv(self.csv))
    }
}

impl Csv {
    /// Prints a result by `print` and writes its table to the file that was asked for, or prints the table alone.
    pub fn and<T>(
        &self,
        result: &T,
        table: impl FnOnce(&T) -> Result<String, TableError>,
        print: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match &self.0 {
            None => print(),
            Some(path) if is_terminal(path) => {
                let mut results = Results::default();
                results.line(table(result)?.trim_end());
                results.end()
            }
            Some(path) => {
                print()?;
                let written = std::fs::write(path, table(result)?);
                written.with_context(|| format!("cannot write {}", path.display()))
            }
        }
    }
}
