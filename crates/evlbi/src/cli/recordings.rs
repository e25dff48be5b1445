//! `evlbi drop`, `evlbi inspect` and `evlbi sky`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{ArgAction, Args};
use evlbi_core::shed::{Policy, Replace};
use evlbi_stream::drop::{self, DropOptions};
use evlbi_stream::inspect;
use evlbi_stream::sky::{self, SkyOptions};
use evlbi_wire::time::FrameRate;

use super::choice::{REPLACEMENTS, UNITS, choice, name};
use crate::output;
use crate::program::{Program, complete};

#[derive(Args)]
#[command(after_help = "\
Policies of --shed:
  none             everything is kept
  every:N          one in N, steadily
  bunch:F          bunches of 1 to 10, the fraction F exact (F as 0.05 or 5%)
  random:F         each by chance
  burst:F[,LENGTH] by chance in bursts of mean LENGTH (Gilbert-Elliott)
  threads:A,B,C-D  whole VDIF threads
  common:F[,TIME]  alike at all stations with the same seed, in blocks of TIME (100 ms or more)
  fit:RATE         just enough to fit an Ethernet of that rate (1G)")]
pub struct DropArgs {
    /// Recording to read
    pub input: PathBuf,
    /// Recording to write
    pub output: PathBuf,
    /// Which frames or packets to lose
    #[arg(long, value_name = "POLICY")]
    pub shed: Policy,
    /// What stands in their place
    #[arg(long, value_parser = choice(REPLACEMENTS), default_value = name(REPLACEMENTS, DropOptions::default().replace))]
    pub replace: Replace,
    /// What a shed decision is about
    #[arg(long = "unit", value_name = "UNIT", action = ArgAction::Set, value_parser = choice(UNITS), default_value = name(UNITS, DropOptions::default().by_packet))]
    pub by_packet: bool,
    /// IP packet size that --unit packet and fit: reckon with, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = DropOptions::default().mtu)]
    pub mtu: usize,
    /// Seed of all random choices
    #[arg(long, default_value_t = DropOptions::default().seed)]
    pub seed: u64,
    /// Frames per second of a thread, where the file cannot tell
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Where to write what was lost [default: beside the output, OUT.vdif.gaps.json]
    #[arg(long, value_name = "FILE")]
    pub gaps: Option<PathBuf>,
    /// Overwrite an output that exists
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! {
    DropArgs => DropOptions {
        input, output, shed, replace, by_packet, mtu, seed, frame_rate, gaps, force,
    }
    without [json]
}

/// Copies a recording without what the policy sheds.
pub fn drop(args: DropArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let report = drop::drop(&args.into(), program.run())?;
    output::print(json, &report, drop::text)?;
    complete(report.interrupted)
}

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
pub fn inspect(args: &InspectArgs, program: &Program) -> Result<()> {
    let report = inspect::inspect(&args.file, args.frame_rate, program.run())?;
    output::print(args.json, &report, inspect::text)?;
    complete(report.interrupted)
}

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

convert! { SkyArgs => SkyOptions { plan, out, force } without [json] }

/// Writes a recording for each station of the plan.
pub fn sky(args: SkyArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let report = sky::simulate(&args.into(), program.run())?;
    output::print(json, &report, sky::text)?;
    complete(report.interrupted)
}
