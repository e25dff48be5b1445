//! `evlbi sky`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::output;
use crate::program::{Program, complete};
use crate::sky::{self, SkyOptions};

#[derive(Args)]
pub struct SkyArgs {
    /// Plan of the stations and of what they see
    pub plan: PathBuf,
    /// Directory for one recording a station
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Overwrite recordings that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

impl From<SkyArgs> for SkyOptions {
    fn from(args: SkyArgs) -> SkyOptions {
        SkyOptions {
            plan: args.plan,
            out: args.out,
            force: args.force,
        }
    }
}

/// Writes a recording for each station of the plan.
pub fn run(args: SkyArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let report = sky::simulate(&args.into(), program.run())?;
    output::print(json, &report, sky::text)?;
    complete(report.interrupted)
}
