//! `evlbi probe`, and `evlbi probe udp`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use evlbi_core::probe::Token;

use super::capacity::{self, ProbeCapacityArgs};
use super::latency::{self, ProbeLatencyArgs};
use super::plots;
use super::tcp::{self, ProbeTcpArgs};
use crate::output;
use crate::probe::session::Target;
use crate::probe::sweep::{Rates, Sizes, Spacings};
use crate::probe::udp::{self, ProbeUdpOptions, Sent};
use crate::probe::{Measured, picture, show};
use crate::program::Program;
use crate::units;

pub const HELP: &str = "\
There is an `evlbi respond` at the far end, with the same token.

Examples:
  evlbi probe udp jive:8620 --token T --rate 500M --size 1472 --duration 3s
  evlbi probe udp jive:8620 --token T --size 64,512,1472 --spacing 0..50us:0.5us --count 100000 --plot sweep.svg
  evlbi probe udp jive:8620 --token T --rate 940M --both --json";

#[derive(Subcommand)]
pub enum ProbeCommand {
    /// Throughput, loss and where, reordering, jitter, against the size of datagrams and their spacing
    #[command(after_help = HELP)]
    Udp(Box<ProbeUdpArgs>),
    /// Messages at a constant rate over TCP, or as much as goes: throughput, windows, lateness, and what holds it back
    #[command(after_help = tcp::HELP)]
    Tcp(Box<ProbeTcpArgs>),
    /// Round trips and one-way delays against the length of the messages, and how the far clock lies
    Latency(ProbeLatencyArgs),
    /// The highest rate at which nothing is lost
    Capacity(ProbeCapacityArgs),
}

/// Where the far end is.
#[derive(Args, Clone)]
pub struct TargetArgs {
    /// The far end's `evlbi respond`
    #[arg(value_name = "HOST:PORT")]
    pub target: String,
    /// What that was given as --token
    #[arg(long, env = "EVLBI_TOKEN", hide_env_values = true)]
    pub token: String,
    /// Local address to test from
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,
    /// The only interface to use
    #[arg(long, value_name = "INTERFACE")]
    pub device: Option<String>,
    /// Class of service of the datagrams (RFC 2474), 0 to 63
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub dscp: Option<u8>,
    /// How long to wait for others' tests
    #[arg(long, value_name = "TIME", default_value = units::span(Target::default().wait), value_parser = units::duration)]
    pub wait: Duration,
}

impl From<TargetArgs> for Target {
    fn from(args: TargetArgs) -> Target {
        let TargetArgs {
            target,
            token,
            bind,
            device,
            dscp,
            wait,
        } = args;
        Target {
            address: target,
            token: Token::from(token.as_str()),
            bind,
            device,
            dscp,
            wait,
        }
    }
}

/// Tests a path.
pub fn run(command: ProbeCommand, program: &Program) -> Result<()> {
    match command {
        ProbeCommand::Udp(args) => run_udp(*args, program),
        ProbeCommand::Tcp(args) => tcp::run(*args, program),
        ProbeCommand::Latency(args) => latency::run(args, program),
        ProbeCommand::Capacity(args) => capacity::run(args, program),
    }
}

#[derive(Args)]
pub struct ProbeUdpArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the datagrams in bytes: one or several
    #[arg(long, value_name = "BYTES,...", default_value_t = ProbeUdpOptions::default().size)]
    pub size: Sizes,
    /// Bits of UDP payload per second: one or several (500M,800M or 100M..1G:100M)
    #[arg(long, value_name = "RATE,...", group = "pace")]
    pub rate: Option<Rates>,
    /// Time from the beginning of one datagram to that of the next: one or several (0..50us:0.5us); 0 is as fast as the
    /// host can
    #[arg(long, value_name = "TIME,...", group = "pace")]
    pub spacing: Option<Spacings>,
    /// Datagrams back to back; --spacing is that of such bursts then
    #[arg(long, value_name = "N", default_value_t = ProbeUdpOptions::default().burst, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Length of each point [default: 3s, unless --count is given]
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "count")]
    pub duration: Option<Duration>,
    /// Datagrams of each point
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// From the far end to here
    #[arg(long, conflicts_with = "both")]
    pub reverse: bool,
    /// In both directions at once
    #[arg(long)]
    pub both: bool,
    /// What the path is called in results, for tables of many
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
    /// No way back and no `evlbi respond`: this end sends to HOST:PORT, or receives there; the other is given the same
    /// options
    #[arg(long, value_enum, value_name = "END", conflicts_with_all = ["reverse", "both"], requires = "count")]
    pub one_way: Option<OneWay>,
    /// Receive buffer to ask for: one or several
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = units::size)]
    pub buffer: Vec<u64>,
    /// Threads that take all the time they get at the receiving host (`respond --allow-load`)
    #[arg(long, value_name = "N", default_value_t = ProbeUdpOptions::default().load_tasks)]
    pub load_tasks: u32,
    /// Nice values of these: one or several, -20 to 19
    #[arg(
        long,
        value_name = "NICE,...",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    pub load_nice: Vec<i8>,
    /// Nice values of the receiver itself: one or several
    #[arg(
        long,
        value_name = "NICE,...",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    pub receiver_nice: Vec<i8>,
    /// Width of the bins of histograms of time
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeUdpOptions::default().bins), value_parser = units::duration)]
    pub bins: Duration,
    /// How long a datagram is waited for before it counts as lost (RFC 7680)
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeUdpOptions::default().loss_timeout), value_parser = units::duration)]
    pub loss_timeout: Duration,
    /// Write each datagram's number, departure, arrival and their differences here, as CSV
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
    /// Write each run of loss here, as CSV
    #[arg(long, value_name = "FILE")]
    pub losses: Option<PathBuf>,
    /// Arrivals that --records passes over first; --losses passes over what is lost of the numbers below
    #[arg(long, value_name = "N", default_value_t = ProbeUdpOptions::default().skip)]
    pub skip: u64,
    /// Datagrams, and runs of loss, that are written at most, of each point
    #[arg(long, value_name = "N", default_value_t = ProbeUdpOptions::default().limit)]
    pub limit: u64,
    /// Write each part of the result here as soon as it is known, a JSON object a line; the last line is the whole
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw the points here: .svg, .png or .html; `-` draws them on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = ProbeFormat::Table)]
    pub format: ProbeFormat,
    /// Print one JSON object on standard output
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OneWay {
    /// Sends
    Send,
    /// Receives
    Receive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbeFormat {
    /// Columns for people
    Table,
    /// UDPmon's columns, each ended by a semicolon
    Udpmon,
    /// JSON as pScheduler's throughput tests give it
    Pscheduler,
}

impl From<ProbeUdpArgs> for ProbeUdpOptions {
    fn from(args: ProbeUdpArgs) -> ProbeUdpOptions {
        let ProbeUdpArgs {
            target,
            size,
            rate,
            spacing,
            burst,
            duration,
            count,
            reverse,
            both,
            label,
            one_way,
            buffer,
            load_tasks,
            load_nice,
            receiver_nice,
            bins,
            loss_timeout,
            records,
            losses,
            skip,
            limit,
            out,
            plot: _,
            format: _,
            json: _,
            force,
        } = args;
        ProbeUdpOptions {
            target: target.into(),
            size,
            rate,
            spacing,
            burst,
            duration,
            count,
            reverse,
            both,
            label,
            one_way: one_way.is_some(),
            buffer,
            load_tasks,
            load_nice,
            receiver_nice,
            bins,
            loss_timeout,
            records,
            losses,
            skip,
            limit,
            out,
            force,
        }
    }
}

fn run_udp(args: ProbeUdpArgs, program: &Program) -> Result<()> {
    let (plot, format, json) = (args.plot.clone(), args.format, args.json);
    let one_way = args.one_way;
    plots::check(&plot, args.force)?;
    let options = args.into();
    if one_way == Some(OneWay::Send) {
        return output::print(
            json,
            &udp::send_one_way(&options, program.run())?,
            Sent::text,
        );
    }
    let Measured { result, written } = udp::probe(&options, program.run())?;
    plots::draw(&plot, &result, picture::figure, show::table)?;
    match format {
        ProbeFormat::Udpmon => output::print(false, &result, show::udpmon)?,
        ProbeFormat::Pscheduler => {
            output::print(true, &show::pscheduler(&result), |_| String::new())?;
        }
        ProbeFormat::Table => output::print(json, &result, show::table)?,
    }
    written?;
    all_measured(result.stopped)
}

/// Returns an error if a test ended before its time: what was found until then has been printed.
pub fn all_measured(stopped: Option<String>) -> Result<()> {
    match stopped {
        Some(stopped) => bail!("not all was measured: {stopped}"),
        None => Ok(()),
    }
}
