//! `evlbi report`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::plots;
use crate::output;
use crate::report::{self, matrix};

#[derive(Args)]
pub struct ReportArgs {
    /// What `evlbi watch` wrote, or is writing; or any number of results of `evlbi probe udp --json`, for one table
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Draw it here: .svg, .png or .html; `-` draws it on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

/// Reports a campaign, or results of probes in one table.
pub fn run(args: &ReportArgs) -> Result<()> {
    plots::check(&args.plot, args.force)?;
    match args.files.as_slice() {
        [file] if !report::is_result(file) => {
            let report = report::read(file)?;
            plots::draw(&args.plot, &report, report::figure, report::text)?;
            output::print(args.json, &report, report::text)
        }
        _ if !args.plot.is_empty() => {
            bail!("--plot draws a campaign; `evlbi probe` draws its own results")
        }
        files => output::print(args.json, &matrix::read(files)?, matrix::Matrix::text),
    }
}
