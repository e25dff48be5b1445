//! `evlbi inspect`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use evlbi_wire::time::FrameRate;

use crate::program::{Program, complete};
use crate::{inspect, output};

#[derive(Args)]
pub struct InspectArgs {
    /// Recording to look into
    pub file: PathBuf,
    /// Frames per second of a thread, where the file cannot tell
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Says what is in a file.
pub fn run(args: InspectArgs, program: &Program) -> Result<()> {
    let InspectArgs {
        file,
        frame_rate,
        json,
    } = args;
    let report = inspect::inspect(&file, frame_rate, program.run())?;
    output::print(json, &report, inspect::text)?;
    complete(report.interrupted)
}
