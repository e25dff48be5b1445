//! `evlbi plan distribute`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use evlbi_core::rate::BitRate;
use evlbi_correlate::cluster::{ClusterOptions, Costs, csv, figure, plan, text};
use evlbi_wire::units;

use super::choice::length;
use super::correlate::channels;
use super::plots;
use super::tables::CsvArgs;
use crate::output;
use crate::program::Program;

#[derive(Args)]
#[command(after_help = "\
Measures what correlation costs on this host, on one thread, for about three seconds, and calculates from that: CPU \
time of n stations is that of n stations and n (n - 1) / 2 baselines. Cores are taken to be as fast as this one when \
all are busy, and nodes as this host, unless --cores, --link and --costs say otherwise.

Examples:
  evlbi plan distribute
  # Hours of 12 such nodes for a day of 16 stations at 4 Gbit/s:
  evlbi plan distribute --stations 16 --rate 4G --nodes 12 --cores 64 --duration 24h
  # With the costs that the command printed on a node of the cluster:
  evlbi plan distribute --costs 1.5,0.09 --cores 64 --link 25G --plot cluster.svg")]
pub struct PlanDistributeArgs {
    /// Numbers of stations, 2 to 1000
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = ClusterOptions::default().stations, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub stations: Vec<u32>,
    /// Bit rates of each station
    #[arg(long, value_name = "RATE,...", value_delimiter = ',', default_values_t = ClusterOptions::default().rate)]
    pub rate: Vec<BitRate>,
    /// Bits per sample: 1, 2, 4 or 8
    #[arg(long, value_name = "B", default_value_t = ClusterOptions::default().bits, value_parser = bits)]
    pub bits: u8,
    /// Spectral channels per band, with which the costs are measured
    #[arg(long, value_name = "N", default_value_t = ClusterOptions::default().channels, value_parser = channels, conflicts_with = "costs")]
    pub channels: usize,
    /// Use these costs, in nanoseconds per sample of a station and of a baseline [default: measured on this host]
    #[arg(long, value_name = "STATION,BASELINE")]
    pub costs: Option<Costs>,
    /// Cores of a node [default: as this host]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub cores: Option<u32>,
    /// Rate of a node's network link
    #[arg(long, value_name = "RATE", default_value_t = ClusterOptions::default().link)]
    pub link: BitRate,
    /// Calculate the hours of this many nodes [default: of one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub nodes: Option<u32>,
    /// Length of the observation
    #[arg(long, value_name = "TIME", default_value = units::span(ClusterOptions::default().duration), value_parser = length)]
    pub duration: Duration,
    /// Length of a part, which a node correlates at once
    #[arg(long, value_name = "TIME", default_value = units::span(ClusterOptions::default().part), value_parser = length)]
    pub part: Duration,
    /// Draw nodes, hours and rates here: .svg, .png or .html; `-` draws on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
}

/// Parses a number of bits that recordings have.
fn bits(text: &str) -> Result<u8, String> {
    let bits = text.parse().ok().filter(|bits| [1, 2, 4, 8].contains(bits));
    bits.ok_or_else(|| format!("`{text}` bits are not possible: give 1, 2, 4 or 8"))
}

convert! {
    PlanDistributeArgs => ClusterOptions {
        stations, rate, bits, channels, costs, cores, link, nodes, duration, part,
    }
    without [plot, table, json, force]
}

/// Plans a cluster.
pub fn run(args: PlanDistributeArgs, program: &Program) -> Result<()> {
    let plots = plots::checked(&args.plot, args.force, &[])?;
    let json = args.json;
    let to_csv = args.table.clone().checked(json, args.force, &plots)?;
    let found = plan(&args.into(), program.run())?;
    plots::draw(&plots, &found, figure, text)?;
    to_csv.and(&found, csv, || output::print(json, &found, text))
}
