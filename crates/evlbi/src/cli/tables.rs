//! `--csv`: results as tables.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use evlbi_net::file::{Part, TableError, check_new};

use super::plots::{can_write, is_terminal, only_one};
use crate::output::Results;
use crate::status::Usage;

/// The option, of every command whose result has rows.
#[derive(Args, Clone, Default)]
pub struct CsvArgs {
    /// Write the result as CSV to this file; `-` prints it instead of the text
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Where a result's table goes, and whether it may overwrite a file.
pub struct Csv(Option<PathBuf>, bool);

impl CsvArgs {
    /// Checks before the work whether the table can be written, to another file than the command's `others`.
    pub fn checked<'a>(
        self,
        json: bool,
        force: bool,
        others: impl IntoIterator<Item = &'a PathBuf>,
    ) -> Result<Csv> {
        if let Some(path) = &self.csv {
            if is_terminal(path) {
                let text =
                    "--csv - and --json would both print to standard output: give --csv a file";
                ensure!(!json, Usage(text.to_owned()));
            } else {
                only_one(path, others)?;
                can_write(path).with_context(|| format!("cannot write {}", path.display()))?;
                check_new(Some(path.as_path()), force)?;
            }
        }
        Ok(Csv(self.csv, force))
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
                // The table is written even if standard output is closed.
                let printed = print();
                let (mut file, part) = Part::create(path, self.1)?;
                file.write_all(table(result)?.as_bytes())
                    .with_context(|| format!("cannot write {}", path.display()))?;
                part.keep()?;
                printed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use evlbi_testkit::Room;

    use crate::cli::Cli;
    use crate::program::Program;

    #[test]
    fn a_table_replaces_no_other_output() {
        let room = Room::new();
        let file = room.path("x.svg");
        for line in [
            "plan tcp --rate 1G --rtt 1ms --compare --plot FILE --csv FILE",
            "probe udp 127.0.0.1:9 --token t --rate 1M --out FILE --csv FILE",
            "probe udp 127.0.0.1:9 --token t --rate 1M --records FILE --plot FILE",
            "probe tcp 127.0.0.1:9 --token t --samples FILE --csv FILE",
            "watch FILE 127.0.0.1:9 --token t --rate 1M --csv FILE",
        ] {
            let line = line.replace("FILE", &file);
            let arguments = ["evlbi"].into_iter().chain(line.split(' '));
            let cli = Cli::try_parse_from(arguments).unwrap();
            let error = cli.run(&Program::without_config()).unwrap_err();
            let said = error.to_string();
            assert!(
                said.contains("is another file of this command"),
                "{line}: {said}"
            );
        }
    }
}
