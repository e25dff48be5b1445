//! `evlbi probe capacity`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use evlbi_core::rate::BitRate;

use super::probe::TargetArgs;
use crate::output;
use crate::probe::Measured;
use crate::probe::capacity::{self, ProbeCapacityOptions};
use crate::program::Program;
use crate::units;

#[derive(Args)]
pub struct ProbeCapacityArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the datagrams in bytes
    #[arg(long, value_name = "BYTES", default_value_t = ProbeCapacityOptions::default().size)]
    pub size: usize,
    /// Datagrams back to back
    #[arg(long, value_name = "N", default_value_t = ProbeCapacityOptions::default().burst, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Lowest rate of UDP payload that is of interest
    #[arg(long, value_name = "RATE", default_value_t = ProbeCapacityOptions::default().lowest)]
    pub lowest: BitRate,
    /// Highest rate of UDP payload that is of interest: what is tried first
    #[arg(long, value_name = "RATE", default_value_t = ProbeCapacityOptions::default().highest)]
    pub highest: BitRate,
    /// Length of a trial (RFC 2544 asks for 60 s)
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeCapacityOptions::default().duration), value_parser = units::duration)]
    pub duration: Duration,
    /// Part of the datagrams that may be lost
    #[arg(long, value_name = "FRACTION", default_value_t = ProbeCapacityOptions::default().loss, value_parser = units::fraction)]
    pub loss: f64,
    /// How close the search comes
    #[arg(long, value_name = "FRACTION", default_value = units::percent(ProbeCapacityOptions::default().precision), value_parser = units::fraction)]
    pub precision: f64,
    /// How often a rate must pass
    #[arg(long, value_name = "N", default_value_t = ProbeCapacityOptions::default().confirm, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub confirm: u32,
    /// From the far end to here
    #[arg(long)]
    pub reverse: bool,
    /// Write each part of the result here as soon as it is known, a JSON object a line; the last line is the whole
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

impl From<ProbeCapacityArgs> for ProbeCapacityOptions {
    fn from(args: ProbeCapacityArgs) -> ProbeCapacityOptions {
        let ProbeCapacityArgs {
            target,
            size,
            burst,
            lowest,
            highest,
            duration,
            loss,
            precision,
            confirm,
            reverse,
            out,
            json: _,
            force,
        } = args;
        ProbeCapacityOptions {
            target: target.into(),
            size,
            burst,
            lowest,
            highest,
            duration,
            loss,
            precision,
            confirm,
            reverse,
            out,
            force,
        }
    }
}

pub fn run(args: ProbeCapacityArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let Measured { result, written } = capacity::probe(&args.into(), program.run())?;
    output::print(json, &result, capacity::text)?;
    written?;
    match result.stopped {
        Some(stopped) => bail!("the search was not finished: {stopped}"),
        None => Ok(()),
    }
}
