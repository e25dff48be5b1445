//! The command line of `evlbi respond` and `evlbi probe`.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use evlbi_core::rate::BitRate;

use super::tcp::ProbeTcpArgs;
use crate::probe::sweep::{Rates, Sizes, Spacings};
use crate::units;

pub const RESPOND_HELP: &str = "\
Example:
  evlbi respond --bind 0.0.0.0:8620 --token \"$TOKEN\" --max-rate 1G --max-duration 10min

The port is that of the control connection, TCP. Each test has a UDP port of its own, chosen by the kernel.";

pub const HELP: &str = "\
There is an `evlbi respond` at the far end, with the same token.

Examples:
  evlbi probe udp jive:8620 --token T --rate 500M --size 1472 --duration 3s
  evlbi probe udp jive:8620 --token T --size 64,512,1472 --spacing 0..50us:0.5us --count 100000 --plot sweep.svg
  evlbi probe udp jive:8620 --token T --rate 940M --both --json";

pub const WATCH_HELP: &str = "\
Whatever was measured stays in the file, however the program ends; the same command goes on with it.

Examples:
  evlbi watch fibre.sqlite jive:8620 --token T --rate 512M --for 60h
  evlbi watch campus.sqlite jive:8620 --token T --rate 100M --every 10min --test 20s --for 24h
  evlbi report fibre.sqlite --plot fibre.svg";

#[derive(Args)]
pub struct RespondArgs {
    /// Where to listen for control connections
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:8620")]
    pub bind: SocketAddr,
    /// What a client must know [default: made up, and shown]
    #[arg(long, env = "EVLBI_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Ports that tests listen on, by UDP and TCP [default: any that the kernel gives]
    #[arg(long, value_name = "FIRST-LAST", value_parser = units::ports)]
    pub ports: Option<RangeInclusive<u16>>,
    /// Most bits per second on the wire, of all tests at once, in either direction [default: any]
    #[arg(long, value_name = "RATE")]
    pub max_rate: Option<BitRate>,
    /// Longest test
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::duration)]
    pub max_duration: Duration,
    /// Let clients have this host run tasks that compete with the receiver, to see what they cost
    #[arg(long)]
    pub allow_load: bool,
    /// Let clients read the files of this folder, and make new ones in it (probe tcp --from, --into)
    #[arg(long, value_name = "FOLDER")]
    pub files: Option<PathBuf>,
    /// Tests at once; more wait, or are refused
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub max_tests: u32,
}

#[derive(Subcommand)]
pub enum ProbeCommand {
    /// Throughput, loss and where, reordering, jitter, against the size of datagrams and their spacing
    #[command(after_help = HELP)]
    Udp(Box<ProbeUdpArgs>),
    /// Messages at a constant rate over TCP, or as much as goes: throughput, windows, lateness, and what holds it back
    #[command(after_help = super::tcp::HELP)]
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
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    pub wait: Duration,
}

#[derive(Args)]
pub struct ProbeUdpArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the datagrams in bytes: one or several
    #[arg(long, value_name = "BYTES,...", default_value = "1472")]
    pub size: Sizes,
    /// Bits of UDP payload per second: one or several (500M,800M or 100M..1G:100M)
    #[arg(long, value_name = "RATE,...", group = "pace")]
    pub rate: Option<Rates>,
    /// Time from the beginning of one datagram to that of the next: one or several (0..50us:0.5us); 0 is as fast as the
    /// host can
    #[arg(long, value_name = "TIME,...", group = "pace")]
    pub spacing: Option<Spacings>,
    /// Datagrams back to back; --spacing is that of such bursts then
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
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
    #[arg(long, value_name = "N", default_value_t = 0)]
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
    #[arg(long, value_name = "TIME", default_value = "1us", value_parser = units::duration)]
    pub bins: Duration,
    /// How long a datagram is waited for before it counts as lost (RFC 7680)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub loss_timeout: Duration,
    /// Write each datagram's number, departure, arrival and their differences here, as CSV
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
    /// Write each run of loss here, as CSV
    #[arg(long, value_name = "FILE")]
    pub losses: Option<PathBuf>,
    /// Arrivals that --records passes over first; --losses passes over what is lost of the numbers below
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u64,
    /// Datagrams, and runs of loss, that are written at most, of each point
    #[arg(long, value_name = "N", default_value_t = 100_000)]
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

#[derive(Args)]
pub struct ProbeLatencyArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the messages in bytes: one or several
    #[arg(long, value_name = "BYTES,...", default_value = "64")]
    pub size: Sizes,
    /// Requests of each length
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub count: u64,
    /// Time from one request to the next
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = units::duration)]
    pub interval: Duration,
    /// How long a reply is waited for
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub loss_timeout: Duration,
    /// Width of the bins of histograms
    #[arg(long, value_name = "TIME", default_value = "1us", value_parser = units::duration)]
    pub bins: Duration,
    /// Write each part of the result here as soon as it is known, a JSON object a line; the last line is the whole
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw the result here: .svg, .png or .html; `-` draws it on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = LatencyFormat::Table)]
    pub format: LatencyFormat,
    /// Print one JSON object on standard output
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LatencyFormat {
    /// Columns for people
    Table,
    /// JSON as pScheduler's latency tests give it
    Pscheduler,
}

#[derive(Args)]
pub struct ProbeCapacityArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the datagrams in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1472)]
    pub size: usize,
    /// Datagrams back to back
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Lowest rate of UDP payload that is of interest
    #[arg(long, value_name = "RATE", default_value = "1M")]
    pub lowest: BitRate,
    /// Highest rate of UDP payload that is of interest: what is tried first
    #[arg(long, value_name = "RATE", default_value = "10G")]
    pub highest: BitRate,
    /// Length of a trial (RFC 2544 asks for 60 s)
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::duration)]
    pub duration: Duration,
    /// Part of the datagrams that may be lost
    #[arg(long, value_name = "FRACTION", default_value = "0", value_parser = units::fraction)]
    pub loss: f64,
    /// How close the search comes
    #[arg(long, value_name = "FRACTION", default_value = "1%", value_parser = units::fraction)]
    pub precision: f64,
    /// How often a rate must pass
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
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

#[derive(Args)]
pub struct WatchArgs {
    /// Where results are kept (SQLite): made, or gone on with
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub target: TargetArgs,
    /// For how long
    #[arg(long = "for", value_name = "TIME", default_value = "24h", value_parser = units::duration)]
    pub length: Duration,
    /// UDP payload of the datagrams in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1472)]
    pub size: usize,
    /// Bits of UDP payload per second
    #[arg(long, value_name = "RATE", group = "pace")]
    pub rate: Option<BitRate>,
    /// Time from the beginning of one datagram to that of the next
    #[arg(long, value_name = "TIME", group = "pace", value_parser = units::duration)]
    pub spacing: Option<Duration>,
    /// Datagrams back to back; --spacing is that of such bursts then
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Time that results are averaged over
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    pub window: Duration,
    /// Instead of one continuous flow: a test as often as this
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub every: Option<Duration>,
    /// And each test for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration, requires = "every")]
    pub test: Duration,
    /// From the far end to here
    #[arg(long, conflicts_with = "both")]
    pub reverse: bool,
    /// In both directions at once
    #[arg(long)]
    pub both: bool,
    /// How long a datagram is waited for before it counts as lost (RFC 7680)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub loss_timeout: Duration,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ReportArgs {
    /// What `evlbi watch` wrote, or is writing; or any number of results of `evlbi probe udp --json`, for one table
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Draw it here: .svg, .png or .html; `-` draws it on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
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
