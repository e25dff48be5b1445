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
  none             keep everything
  every:N          one in N, evenly
  bunch:F          bunches of 1 to 10, the fraction F exact (F as 0.05 or 5%)
  random:F         each with probability F
  burst:F[,LENGTH] random bursts of mean LENGTH (Gilbert-Elliott)
  threads:A,B,C-D  whole VDIF threads
  common:F[,TIME]  the same times at all stations of one seed, in blocks of TIME (at least 100 ms)
  fit:RATE         just enough to fit an Ethernet link of that rate (1G)

Examples:
  evlbi drop scan1.vdif lossy.vdif --shed random:5%
  # The same times at two stations:
  evlbi drop Ef.vdif ef-lossy.vdif --shed common:10%,100ms --seed 7
  evlbi drop Jb.vdif jb-lossy.vdif --shed common:10%,100ms --seed 7")]
pub struct DropArgs {
    /// Recording to read
    pub input: PathBuf,
    /// Recording to write
    pub output: PathBuf,
    /// Shed frames or packets by this policy
    #[arg(long, value_name = "POLICY")]
    pub shed: Policy,
    /// Replacement for shed data
    #[arg(long, value_parser = choice(REPLACEMENTS), default_value = name(REPLACEMENTS, DropOptions::default().replace))]
    pub replace: Replace,
    /// Unit of a shed decision
    #[arg(long = "unit", value_name = "UNIT", action = ArgAction::Set, value_parser = choice(UNITS), default_value = name(UNITS, DropOptions::default().by_packet))]
    pub by_packet: bool,
    /// IP packet size in bytes that --unit packet and fit: assume
    #[arg(long, value_name = "BYTES", default_value_t = DropOptions::default().mtu)]
    pub mtu: usize,
    /// Seed of all random choices
    #[arg(long, default_value_t = DropOptions::default().seed)]
    pub seed: u64,
    /// Frames per second of a thread, for a file that is too short to show it
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Write the list of gaps here [default: next to the output, OUT.vdif.gaps.json]
    #[arg(long, value_name = "FILE")]
    pub gaps: Option<PathBuf>,
    /// Overwrite an existing output
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
#[command(after_help = "\
Examples:
  evlbi inspect scan1.vdif
  # A recording of less than a second:
  evlbi inspect scan1.vdif --frame-rate 4000 --json")]
pub struct InspectArgs {
    /// Recording to inspect
    pub file: PathBuf,
    /// Frames per second of a thread, for a file that is too short to show it
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Show each thread, channel and listed gap, however many there are
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Shows the contents of a recording.
pub fn inspect(args: &InspectArgs, program: &Program) -> Result<()> {
    let report = inspect::inspect(&args.file, args.frame_rate, program.run())?;
    let text = match args.all {
        true => inspect::text_in_full,
        false => inspect::text,
    };
    output::print(args.json, &report, text)?;
    if !args.json && !args.all && inspect::is_summarised(&report) {
        let run = program.run();
        run.line(format_args!(
            "evlbi: threads and channels that are alike share a row; --all shows each"
        ));
    }
    complete(report.interrupted)
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi sky examples/sky-three-stations.toml --out .
  # The model of these stations is written next to their recordings:
  evlbi correlate Ef.vdif Jb.vdif --model sky-three-stations.toml")]
pub struct SkyArgs {
    /// Plan of the stations and the simulated sky
    pub plan: PathBuf,
    /// Write one recording per station into this directory
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Overwrite existing recordings
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
