//! `evlbi fringe`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use evlbi_fx::track::Trust;

use super::choice::{choice, name};
use super::correlate::{CorrelatorArgs, TRUSTS};
use crate::correlate::CorrelateOptions;
use crate::fringe::{self, FringeOptions};
use crate::output;
use crate::program::{Program, complete};

pub const HELP: &str = "\
Examples:
  evlbi fringe job.vis --out pictures          (what `evlbi correlate --out job.vis` wrote)
  evlbi fringe Ef.vdif Jb.vdif --freq 4.9G     (correlates first; options as for correlate)";

#[derive(Args)]
pub struct FringeArgs {
    /// A directory of visibilities, or recordings, one a station
    #[arg(required = true, num_args = 1..=32)]
    pub inputs: Vec<String>,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// What is believed of samples
    #[arg(long, value_parser = choice(TRUSTS), default_value = name(TRUSTS, CorrelateOptions::default().trust))]
    pub trust: Trust,
    /// Write pictures (SVG and PNG) here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite pictures that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Searches and draws.
pub fn run(args: FringeArgs, program: &Program) -> Result<()> {
    let FringeArgs {
        inputs,
        options,
        trust,
        out,
        force,
        json,
    } = args;
    let options = FringeOptions {
        correlate: CorrelateOptions {
            trust,
            ..options.into()
        },
        out,
        force,
    };
    let result = match inputs.as_slice() {
        [directory] => fringe::in_directory(Path::new(directory), &options)?,
        files => fringe::in_recordings(files, &options, program.run())?,
    };
    output::print(json, &result, fringe::text)?;
    complete(result.interrupted)
}
