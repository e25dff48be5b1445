//! `evlbi probe tcp`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use evlbi_core::rate::BitRate;
use evlbi_core::tcp::Full;

use super::plots;
use super::probe::{TargetArgs, all_measured};
use crate::output;
use crate::probe::Measured;
use crate::probe::tcp::{self, Buffer, ProbeTcpOptions, Tested, matrix, picture, show};
use crate::program::Program;
use crate::units;

pub const HELP: &str = "\
There is an `evlbi respond` at the far end, with the same token.

Examples:
  evlbi probe tcp jive:8620 --token T --rate 512M --buffer 160M --duration 60s --plot delay.svg
  evlbi probe tcp jive:8620 --token T --rate 512M --buffer bdp --full shed --json
  evlbi probe tcp jive:8620 --token T --streams 4 --algorithm reno,cubic --samples tcp.csv
  evlbi probe tcp jive:8620 --token T --mss 1448,8948 --buffer 1M,4M,16M --plot matrix.svg
  evlbi probe tcp jive:8620 --token T --background 800M --background-for 2s --duration 60s
  evlbi probe tcp jive:8620 --token T --reverse --duration 10s";

#[derive(Args)]
pub struct ProbeTcpArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Messages at this constant rate, of each connection [default: as many bytes as go through]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = ProbeTcpOptions::default().message, value_parser = units::size)]
    pub message: u64,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeTcpOptions::default().duration), value_parser = units::duration)]
    pub duration: Duration,
    /// Connections at once, in each direction
    #[arg(long, value_name = "N", default_value_t = ProbeTcpOptions::default().streams, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
    /// Congestion control of the senders: one, or several that the connections take in turn [default: the hosts']
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub algorithm: Vec<String>,
    /// Send buffer: bytes, or multiples of rate times round trip as bdp, 2bdp [default: the kernel adapts it]; one, or several
    /// that are tested one after the other
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    pub buffer: Vec<Buffer>,
    /// Receive buffer: bytes, or multiples as that
    #[arg(long, value_name = "SIZE")]
    pub receive_buffer: Option<Buffer>,
    /// Longest segment in bytes [default: as the path allows]; one, or several that are tested with each buffer
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(88..=32_767))]
    pub mss: Vec<u32>,
    /// Bytes of messages that may wait before the send buffer
    #[arg(long, value_name = "SIZE", default_value_t = ProbeTcpOptions::default().backlog, value_parser = units::size, requires = "rate")]
    pub backlog: u64,
    /// What becomes of messages that find no room
    #[arg(long, value_enum, default_value_t = FullArg::Block, requires = "rate")]
    pub full: FullArg,
    /// Bytes that are handed to the kernel at once, without --rate
    #[arg(long, value_name = "SIZE", default_value = units::show_size(ProbeTcpOptions::default().write).replace(' ', ""), value_parser = units::size)]
    pub write: u64,
    /// Leave what comes in the receiver's kernel, which then need not copy it
    #[arg(long, conflicts_with = "rate")]
    pub discard: bool,
    /// Send this file instead; with --reverse one of the far end's (its --files)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "streams", "both", "discard"])]
    pub from: Option<PathBuf>,
    /// Write what comes to a new file of the far end's (its --files); with --reverse to one here
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "streams", "both", "discard"])]
    pub into: Option<PathBuf>,
    /// From the far end to here
    #[arg(long, conflicts_with = "both")]
    pub reverse: bool,
    /// In both directions at once
    #[arg(long)]
    pub both: bool,
    /// Beside the connections, a stream of UDP at this rate for a while, as others' traffic
    #[arg(long, value_name = "RATE")]
    pub background: Option<BitRate>,
    /// UDP payload of its datagrams in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = ProbeTcpOptions::default().background_size,
        requires = "background"
    )]
    pub background_size: usize,
    /// When it begins [default: after a third of the time]
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "background")]
    pub background_at: Option<Duration>,
    /// For how long it lasts
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeTcpOptions::default().background_for), value_parser = units::duration, requires = "background")]
    pub background_for: Duration,
    /// How often the kernels are asked how the connections are [default: every 10ms, in long tests less often]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub sample: Option<Duration>,
    /// Time that throughput is averaged over
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeTcpOptions::default().interval), value_parser = units::duration)]
    pub interval: Duration,
    /// What the path is called in results
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
    /// Write what the kernels said here, as CSV
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Write when messages left and came here, as CSV
    #[arg(long, value_name = "FILE", requires = "rate")]
    pub records: Option<PathBuf>,
    /// Messages that are kept one by one of each connection, at regular distances
    #[arg(long, value_name = "N", default_value_t = ProbeTcpOptions::default().limit, value_parser = clap::value_parser!(u64).range(2..))]
    pub limit: u64,
    /// Write each part of the result here as soon as it is known, of a single test each second, a JSON object a line; the last line is the whole
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw the connections here: .svg, .png or .html; `-` draws them on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

/// What becomes of a message that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FullArg {
    /// It waits, and all behind it
    Block,
    /// It is given up
    Shed,
}

impl From<FullArg> for Full {
    fn from(full: FullArg) -> Full {
        match full {
            FullArg::Block => Full::Block,
            FullArg::Shed => Full::Shed,
        }
    }
}

impl From<ProbeTcpArgs> for ProbeTcpOptions {
    fn from(args: ProbeTcpArgs) -> ProbeTcpOptions {
        let ProbeTcpArgs {
            target,
            rate,
            message,
            duration,
            streams,
            algorithm,
            buffer,
            receive_buffer,
            mss,
            backlog,
            full,
            write,
            discard,
            from,
            into,
            reverse,
            both,
            background,
            background_size,
            background_at,
            background_for,
            sample,
            interval,
            label,
            samples,
            records,
            limit,
            out,
            plot: _,
            json: _,
            force,
        } = args;
        ProbeTcpOptions {
            target: target.into(),
            rate,
            message,
            duration,
            streams,
            algorithm,
            buffer,
            receive_buffer,
            mss,
            backlog,
            full: full.into(),
            write,
            discard,
            from,
            into,
            reverse,
            both,
            background,
            background_size,
            background_at,
            background_for,
            sample,
            interval,
            label,
            samples,
            records,
            limit,
            out,
            force,
        }
    }
}

pub fn run(args: ProbeTcpArgs, program: &Program) -> Result<()> {
    let (plot, json) = (args.plot.clone(), args.json);
    plots::check(&plot, args.force)?;
    let (written, stopped) = match tcp::probe(&args.into(), program.run())? {
        Tested::One(Measured { result, written }) => {
            plots::draw(&plot, &*result, picture::figure, show::table)?;
            output::print(json, &*result, show::table)?;
            (written, result.stopped)
        }
        Tested::Matrix(Measured { result, written }) => {
            plots::draw(&plot, &result, matrix::figure, matrix::table)?;
            output::print(json, &result, matrix::table)?;
            (written, result.stopped)
        }
    };
    written?;
    all_measured(stopped)
}
