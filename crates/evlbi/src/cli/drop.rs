//! `evlbi drop`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use evlbi_core::shed::{Policy, Replace};
use evlbi_wire::time::FrameRate;

use super::UnitChoice;
use super::choice::{Choices, choice, name};
use crate::drop::{self, DropOptions};
use crate::output;
use crate::program::{Program, complete};

pub const HELP: &str = "\
Policies of --shed:
  none             everything is kept
  every:N          one in N, steadily
  bunch:F          bunches of 1 to 10, the fraction F exact (F as 0.05 or 5%)
  random:F         each by chance
  burst:F[,LENGTH] by chance in bursts of mean LENGTH (Gilbert-Elliott)
  threads:A,B,C-D  whole VDIF threads
  common:F[,TIME]  alike at all stations with the same seed, in blocks of TIME (100 ms or more)
  fit:RATE         just enough to fit an Ethernet of that rate (1G)";

const REPLACEMENTS: Choices<Replace> = &[
    ("nothing", "", Replace::Nothing),
    ("fill", "", Replace::Fill),
    ("random", "", Replace::Random),
    ("invalid", "", Replace::Invalid),
];

#[derive(Args)]
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
    #[arg(long, value_enum, default_value_t = UnitChoice::Frame)]
    pub unit: UnitChoice,
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

impl From<DropArgs> for DropOptions {
    fn from(args: DropArgs) -> DropOptions {
        let DropArgs {
            input,
            output,
            shed,
            replace,
            unit,
            mtu,
            seed,
            frame_rate,
            gaps,
            force,
            json: _,
        } = args;
        DropOptions {
            input,
            output,
            shed,
            replace,
            by_packet: unit == UnitChoice::Packet,
            mtu,
            seed,
            frame_rate,
            gaps,
            force,
        }
    }
}

/// Copies a recording without what the policy sheds.
pub fn run(args: DropArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let report = drop::drop(&args.into(), program.run())?;
    output::print(json, &report, drop::text)?;
    complete(report.interrupted)
}
