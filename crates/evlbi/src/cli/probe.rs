//! `evlbi probe`, and `evlbi respond`, which answers it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, FromArgMatches, Subcommand, ValueEnum};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_probe::capacity::{self, ProbeCapacityOptions};
use evlbi_probe::endpoint::Limits;
use evlbi_probe::latency::{self, ProbeLatencyOptions};
use evlbi_probe::respond::{self, RespondOptions};
use evlbi_probe::sweep::{Rates, Sizes, Spacings};
use evlbi_probe::tcp::{self, Buffer, ProbeTcpOptions, Tested, matrix};
use evlbi_probe::udp::{self, ProbeUdpOptions, Sent};
use evlbi_probe::{Measured, WriteError, picture, show};
use evlbi_trace::tcp::Full;
use evlbi_wire::units;

use super::choice::{Choices, address, choice, length, name, time};
use super::fitness::{self, ProbeFitnessArgs};
use super::plots;
use super::tables::CsvArgs;
use super::target::TargetArgs;
use super::token::TokenArgs;
use crate::output;
use crate::program::Program;

/// The usual tests, or one of them.
pub enum Probe {
    All(Box<ProbeFitnessArgs>),
    One(ProbeCommand),
}

impl FromArgMatches for Probe {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Probe, clap::Error> {
        if matches.subcommand().is_none() {
            let args = ProbeFitnessArgs::from_arg_matches(matches)?;
            return Ok(Probe::All(Box::new(args)));
        }
        // Unlike a setting of clap, this allows -v before the command.
        let own = ProbeFitnessArgs::augment_args(clap::Command::new("probe"));
        let is_given = |arg: &&Arg| {
            matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        if let Some(arg) = own.get_arguments().find(is_given) {
            let name = arg
                .get_long()
                .map_or("HOST".to_owned(), |long| format!("--{long}"));
            let message = format!("{name} belongs behind the command of `evlbi probe`\n");
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        Ok(Probe::One(ProbeCommand::from_arg_matches(matches)?))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Probe::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Probe {
    fn augment_args(command: clap::Command) -> clap::Command {
        ProbeFitnessArgs::augment_args(ProbeCommand::augment_subcommands(command))
            .subcommand_required(false)
            .arg_required_else_help(false)
            .subcommand_negates_reqs(true)
            .after_help(FITNESS)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Probe::augment_args(command)
    }
}

const FITNESS: &str = "\
With a HOST and no command, the usual tests run one after another: latency, capacity by UDP, UDP at nine tenths of that, one \
TCP connection. They take about half a minute, at most three, and end with a verdict: the rates that the path is fit for by \
UDP (with at most 0.1 % lost) and by TCP, what limits it, and the next command. The search for the capacity sends as much as \
the path carries, at most --rate.

Examples:
  evlbi probe jive --token T
  evlbi probe jive --token T --rate 900M && echo 'good enough'";

#[derive(Subcommand)]
pub enum ProbeCommand {
    /// Measure throughput, loss and its location, reordering and jitter against datagram size and spacing
    Udp(Box<ProbeUdpArgs>),
    /// Test TCP with messages at a constant rate or at full speed: throughput, windows, lateness, and what limits it
    Tcp(Box<ProbeTcpArgs>),
    /// Measure round-trip time and one-way delay against message length, and the remote clock's offset
    Latency(Box<ProbeLatencyArgs>),
    /// Find the highest rate without loss
    Capacity(Box<ProbeCapacityArgs>),
}

/// Tests a path.
pub fn run(probe: Probe, program: &Program) -> Result<()> {
    let command = match probe {
        Probe::All(args) => return fitness::run(*args, program),
        Probe::One(command) => command,
    };
    match command {
        ProbeCommand::Udp(args) => run_udp(*args, program),
        ProbeCommand::Tcp(args) => run_tcp(*args, program),
        ProbeCommand::Latency(args) => run_latency(*args, program),
        ProbeCommand::Capacity(args) => run_capacity(*args, program),
    }
}

#[derive(Args)]
#[command(after_help = "\
Needs `evlbi respond` with the same token on the remote host.

Examples:
  evlbi probe udp jive:8620 --token T --rate 500M --size 1472 --duration 3s
  evlbi probe udp jive --token T --size 64,1472 --spacing 0..50us:1us --count 1000 --plot sweep.svg
  evlbi probe udp jive:8620 --token T --rate 940M --both --json")]
pub struct ProbeUdpArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the datagrams, in bytes: one or several
    #[arg(long, value_name = "BYTES,...", default_value_t = ProbeUdpOptions::default().size)]
    pub size: Sizes,
    /// Bit rate of UDP payload: one or several (500M,800M or 100M..1G:100M)
    #[arg(long, value_name = "RATE,...", group = "pace")]
    pub rate: Option<Rates>,
    /// Time from the start of one datagram to the start of the next: one or several (0..50us:0.5us); 0 sends as fast as
    /// the host can
    #[arg(long, value_name = "TIME,...", group = "pace")]
    pub spacing: Option<Spacings>,
    /// Datagrams per burst; --spacing is then the spacing of bursts
    #[arg(long, value_name = "N", default_value_t = ProbeUdpOptions::default().burst, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Duration of each point [default: 3s, unless --count is given]
    #[arg(long, value_name = "TIME", value_parser = length, conflicts_with = "count")]
    pub duration: Option<Duration>,
    /// Number of datagrams of each point
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Test from the remote host to this host
    #[arg(long, conflicts_with = "both")]
    pub reverse: bool,
    /// Test both directions at once
    #[arg(long)]
    pub both: bool,
    /// Name of the path in results and tables
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
    /// Test without a return path or `evlbi respond`: this host sends to HOST, or receives there; run the remote host
    /// with the same options
    #[arg(long, value_enum, value_name = "END", conflicts_with_all = ["reverse", "both"], requires = "count")]
    pub one_way: Option<OneWay>,
    /// Receive buffer to request: one or several
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = units::size)]
    pub buffer: Vec<u64>,
    /// Run this many busy threads on the receiving host (needs `respond --allow-load`)
    #[arg(long, value_name = "N", default_value_t = ProbeUdpOptions::default().load_tasks)]
    pub load_tasks: u32,
    /// Nice values of the busy threads: one or several, -20 to 19
    #[arg(long, value_name = "NICE,...", value_delimiter = ',')]
    #[arg(allow_hyphen_values = true)]
    pub load_nice: Vec<i8>,
    /// Nice values of the receiver: one or several
    #[arg(long, value_name = "NICE,...", value_delimiter = ',')]
    #[arg(allow_hyphen_values = true)]
    pub receiver_nice: Vec<i8>,
    /// Bin width of histograms of time
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeUdpOptions::default().bins), value_parser = time)]
    pub bins: Duration,
    /// Wait this long for a datagram before it counts as lost (RFC 7680)
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeUdpOptions::default().loss_timeout), value_parser = time)]
    pub loss_timeout: Duration,
    /// Write each datagram's number, departure, arrival and their differences here, as CSV
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
    /// Write each run of loss here, as CSV
    #[arg(long, value_name = "FILE")]
    pub losses: Option<PathBuf>,
    /// Skip this many arrivals in --records, and losses of lower numbers in --losses
    #[arg(long, value_name = "N", default_value_t = ProbeUdpOptions::default().skip)]
    pub skip: u64,
    /// Maximum number of datagrams, and of runs of loss, to write for each point
    #[arg(long, value_name = "N", default_value_t = ProbeUdpOptions::default().limit)]
    pub limit: u64,
    /// Write each part of the result here as soon as it is known, one JSON object per line; the last line is the whole result
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw the points here: .svg, .png or .html; `-` draws on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// Format of the printed result
    #[arg(long, value_enum, default_value_t = ProbeFormat::Table)]
    pub format: ProbeFormat,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Overwrite existing files
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
    /// UDPmon's columns, separated by semicolons
    Udpmon,
    /// JSON of pScheduler's throughput tests
    Pscheduler,
}

convert! {
    ProbeUdpArgs => ProbeUdpOptions {
        size, rate, spacing, burst, duration, count, reverse, both, label, buffer, load_tasks,
        load_nice, receiver_nice, bins, loss_timeout, records, losses, skip, limit, out, force,
    }
    with [target, one_way] { target: target.into(), one_way: one_way.is_some() }
    without [plot, format, table, json]
}

fn run_udp(mut args: ProbeUdpArgs, program: &Program) -> Result<()> {
    args.target.find(program)?;
    if args.rate.is_none() && args.spacing.is_none() {
        let rate = program.config()?.rate(|rates| rates.probe_udp);
        args.rate = rate.map(|rate| Rates(vec![rate]));
    }
    let files = [&args.records, &args.losses, &args.out]
        .into_iter()
        .flatten();
    let plot = plots::checked(&args.plot, args.force, &files)?;
    let (one_way, format, json) = (args.one_way, args.format, args.json);
    let table = args.table.clone();
    let csv = table.checked(json, args.force, files.chain(&plot))?;
    let options = args.into();
    if one_way == Some(OneWay::Send) {
        let sent = udp::send_one_way(&options, program.run())?;
        return csv.and(&sent, Sent::csv, || output::print(json, &sent, Sent::text));
    }
    let Measured { result, written } = udp::probe(&options, program.run())?;
    plots::draw(&plot, &result, picture::figure, show::table)?;
    csv.and(&result, show::csv, || match format {
        ProbeFormat::Udpmon => output::print(false, &result, show::udpmon),
        ProbeFormat::Pscheduler => output::print(false, &result, |result| {
            format!("{:#}", show::pscheduler(result))
        }),
        ProbeFormat::Table => output::print(json, &result, show::table),
    })?;
    all_measured(written, result.stopped)
}

/// Returns an error if results were not written, or a test ended before its time: what was found has been printed.
fn all_measured(written: Result<(), WriteError>, stopped: Option<String>) -> Result<()> {
    written?;
    stopped.map_or(Ok(()), |why| bail!("the measurement is incomplete: {why}"))
}

#[derive(Args)]
#[command(after_help = "\
Needs `evlbi respond` with the same token on the remote host.

Examples:
  evlbi probe tcp jive:8620 --token T --rate 512M --buffer 160M --duration 60s --plot delay.svg
  evlbi probe tcp jive:8620 --token T --rate 512M --buffer bdp --full shed --json
  evlbi probe tcp jive:8620 --token T --streams 4 --algorithm reno,cubic --samples tcp.csv
  evlbi probe tcp jive:8620 --token T --mss 1448,8948 --buffer 1M,4M,16M --plot matrix.svg
  evlbi probe tcp jive:8620 --token T --background 800M --background-for 2s --duration 60s
  evlbi probe tcp jive:8620 --token T --reverse --duration 10s")]
pub struct ProbeTcpArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Send messages at this constant rate on each connection [default: as many bytes as possible]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    /// Message size
    #[arg(long, value_name = "BYTES", default_value_t = ProbeTcpOptions::default().message, value_parser = units::size)]
    pub message: u64,
    /// Test for this long
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeTcpOptions::default().duration), value_parser = length)]
    pub duration: Duration,
    /// Number of parallel connections in each direction
    #[arg(long, value_name = "N", default_value_t = ProbeTcpOptions::default().streams, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
    /// Congestion control algorithm of the senders: one, or several that the connections use in turn [default: the host's]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub algorithm: Vec<String>,
    /// Send buffer: bytes, or multiples of rate times round-trip time, e.g. bdp, 2bdp [default: set by the kernel]; one, or
    /// several to test one after the other
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    pub buffer: Vec<Buffer>,
    /// Receive buffer: bytes, or multiples like --buffer
    #[arg(long, value_name = "SIZE")]
    pub receive_buffer: Option<Buffer>,
    /// Maximum segment size in bytes [default: what the path allows]; one, or several to test with each buffer
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(88..=32_767))]
    pub mss: Vec<u32>,
    /// Maximum size of the messages that wait for the send buffer
    #[arg(long, value_name = "SIZE", default_value_t = ProbeTcpOptions::default().backlog, value_parser = units::size, requires = "rate")]
    pub backlog: u64,
    /// Treatment of messages when the send buffer is full
    #[arg(long, value_parser = choice(FULL), default_value = name(FULL, ProbeTcpOptions::default().full), requires = "rate")]
    pub full: Full,
    /// Bytes per write to the kernel, without --rate
    #[arg(long, value_name = "SIZE", default_value = units::show_size(ProbeTcpOptions::default().write).replace(' ', ""), value_parser = units::size)]
    pub write: u64,
    /// Discard data in the receiver's kernel, without copying it
    #[arg(long, conflicts_with = "rate")]
    pub discard: bool,
    /// Send this file instead; with --reverse a file of the remote host (its --files)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "streams", "both", "discard"])]
    pub from: Option<PathBuf>,
    /// Write received data to a new file on the remote host (its --files); with --reverse on this host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "streams", "both", "discard"])]
    pub into: Option<PathBuf>,
    /// Test from the remote host to this host
    #[arg(long, conflicts_with = "both")]
    pub reverse: bool,
    /// Test both directions at once
    #[arg(long)]
    pub both: bool,
    /// Add a UDP stream at this rate for a while, as cross traffic
    #[arg(long, value_name = "RATE")]
    pub background: Option<BitRate>,
    /// UDP payload of the background datagrams, in bytes
    #[arg(long, value_name = "BYTES", requires = "background", default_value_t = ProbeTcpOptions::default().background_size)]
    pub background_size: usize,
    /// Start the background stream at this time [default: after a third of the test]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "background")]
    pub background_at: Option<Duration>,
    /// Duration of the background stream
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeTcpOptions::default().background_for), value_parser = time, requires = "background")]
    pub background_for: Duration,
    /// Sample the kernels' TCP state at this interval [default: 10ms, longer in long tests]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub sample: Option<Duration>,
    /// Average throughput over this time
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeTcpOptions::default().interval), value_parser = time)]
    pub interval: Duration,
    /// Name of the path in results
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
    /// Write the samples of the kernels' TCP state here, as CSV
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Write departure and arrival of each message here, as CSV
    #[arg(long, value_name = "FILE", requires = "rate")]
    pub records: Option<PathBuf>,
    /// Maximum number of single messages to keep per connection, evenly spaced
    #[arg(long, value_name = "N", default_value_t = ProbeTcpOptions::default().limit, value_parser = clap::value_parser!(u64).range(2..))]
    pub limit: u64,
    /// Write each part of the result here as soon as it is known (each second of a single test), one JSON object per line; the last line is the whole result
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw the connections here: .svg, .png or .html; `-` draws on the terminal
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

/// Treatments of a message when the send buffer is full.
const FULL: Choices<Full> = &[
    ("block", "The message waits, and all behind it", Full::Block),
    ("shed", "The message is shed", Full::Shed),
];

convert! {
    ProbeTcpArgs => ProbeTcpOptions {
        rate, message, duration, streams, algorithm, buffer, receive_buffer, mss, backlog, full,
        write, discard, from, into, reverse, both, background, background_size, background_at,
        background_for, sample, interval, label, samples, records, limit, out, force,
    }
    with [target] { target: target.into() }
    without [plot, table, json]
}

fn run_tcp(mut args: ProbeTcpArgs, program: &Program) -> Result<()> {
    args.target.find(program)?;
    let files = [&args.samples, &args.records, &args.into, &args.out]
        .into_iter()
        .flatten();
    let plot = plots::checked(&args.plot, args.force, &files)?;
    let json = args.json;
    let table = args.table.clone();
    let csv = table.checked(json, args.force, files.chain(&plot))?;
    let (written, stopped) = match tcp::probe(&args.into(), program.run())? {
        Tested::One(Measured { result, written }) => {
            plots::draw(&plot, &*result, tcp::picture::figure, tcp::show::table)?;
            let print = || output::print(json, &*result, tcp::show::table);
            csv.and(&*result, tcp::show::csv, print)?;
            (written, result.stopped)
        }
        Tested::Matrix(Measured { result, written }) => {
            plots::draw(&plot, &result, matrix::figure, matrix::table)?;
            let print = || output::print(json, &result, matrix::table);
            csv.and(&result, matrix::csv, print)?;
            (written, result.stopped)
        }
    };
    all_measured(written, stopped)
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi probe latency jive --token T
  evlbi probe latency jive --token T --size 64,500,1000,1472 --count 1000 --plot latency.html")]
pub struct ProbeLatencyArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the messages, in bytes: one or several
    #[arg(long, value_name = "BYTES,...", default_value_t = ProbeLatencyOptions::default().size)]
    pub size: Sizes,
    /// Number of requests of each length
    #[arg(long, value_name = "N", default_value_t = ProbeLatencyOptions::default().count, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub count: u64,
    /// Time from one request to the next
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeLatencyOptions::default().interval), value_parser = time)]
    pub interval: Duration,
    /// Wait this long for a reply
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeLatencyOptions::default().loss_timeout), value_parser = time)]
    pub loss_timeout: Duration,
    /// Bin width of histograms
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeLatencyOptions::default().bins), value_parser = time)]
    pub bins: Duration,
    /// Write each part of the result here as soon as it is known, one JSON object per line; the last line is the whole result
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw the result here: .svg, .png or .html; `-` draws on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// Format of the printed result
    #[arg(long, value_enum, default_value_t = LatencyFormat::Table)]
    pub format: LatencyFormat,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LatencyFormat {
    /// Columns for people
    Table,
    /// JSON of pScheduler's latency tests
    Pscheduler,
}

convert! {
    ProbeLatencyArgs => ProbeLatencyOptions {
        size, count, interval, loss_timeout, bins, out, force,
    }
    with [target] { target: target.into() }
    without [plot, format, table, json]
}

fn run_latency(mut args: ProbeLatencyArgs, program: &Program) -> Result<()> {
    args.target.find(program)?;
    let files = [&args.out].into_iter().flatten();
    let plot = plots::checked(&args.plot, args.force, &files)?;
    let (format, json) = (args.format, args.json);
    let table = args.table.clone();
    let csv = table.checked(json, args.force, files.chain(&plot))?;
    let options = args.into();
    let Measured { result, written } = latency::probe(&options, program.run())?;
    plots::draw(&plot, &result, latency::figure, latency::text)?;
    csv.and(&result, latency::csv, || match format {
        LatencyFormat::Pscheduler if !json => {
            let bins = Nanos::from(options.bins).0.max(1);
            output::print(false, &result, |result| {
                format!("{:#}", latency::pscheduler(result, bins))
            })
        }
        _ => output::print(json, &result, latency::text),
    })?;
    all_measured(written, result.stopped)?;
    if result.points.iter().all(|point| point.received == 0) {
        bail!("no request was answered: UDP is blocked, outbound or on the return");
    }
    Ok(())
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi probe capacity jive --token T --highest 1G
  # The direction from jive to this host; rates with at most 0.1 % lost pass:
  evlbi probe capacity jive --token T --highest 1G --reverse --loss 0.1% --duration 60s
  # The limit of the packet rate:
  evlbi probe capacity jive --token T --size 32")]
pub struct ProbeCapacityArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the datagrams, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = ProbeCapacityOptions::default().size)]
    pub size: usize,
    /// Datagrams per burst
    #[arg(long, value_name = "N", default_value_t = ProbeCapacityOptions::default().burst, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Minimum rate of UDP payload to consider
    #[arg(long, value_name = "RATE", default_value_t = ProbeCapacityOptions::default().lowest)]
    pub lowest: BitRate,
    /// Maximum rate of UDP payload to consider; tried first
    #[arg(long, value_name = "RATE", default_value_t = ProbeCapacityOptions::default().highest)]
    pub highest: BitRate,
    /// Duration of a trial (RFC 2544 asks for 60 s)
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeCapacityOptions::default().duration), value_parser = length)]
    pub duration: Duration,
    /// Tolerated loss fraction
    #[arg(long, value_name = "FRACTION", default_value_t = ProbeCapacityOptions::default().loss, value_parser = units::fraction)]
    pub loss: f64,
    /// Precision of the search
    #[arg(long, value_name = "FRACTION", default_value = units::percent(ProbeCapacityOptions::default().precision), value_parser = units::fraction)]
    pub precision: f64,
    /// Number of times that a rate must pass
    #[arg(long, value_name = "N", default_value_t = ProbeCapacityOptions::default().confirm, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub confirm: u32,
    /// Test from the remote host to this host
    #[arg(long)]
    pub reverse: bool,
    /// Write each part of the result here as soon as it is known, one JSON object per line; the last line is the whole result
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
}

convert! {
    ProbeCapacityArgs => ProbeCapacityOptions {
        size, burst, lowest, highest, duration, loss, precision, confirm, reverse, out, force,
    }
    with [target] { target: target.into() }
    without [table, json]
}

fn run_capacity(mut args: ProbeCapacityArgs, program: &Program) -> Result<()> {
    args.target.find(program)?;
    let json = args.json;
    let csv = args.table.clone().checked(json, args.force, &args.out)?;
    let Measured { result, written } = capacity::probe(&args.into(), program.run())?;
    let print = || output::print(json, &result, capacity::text);
    csv.and(&result, capacity::csv, print)?;
    written?;
    result
        .stopped
        .map_or(Ok(()), |why| bail!("the search is incomplete: {why}"))
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi respond --bind 0.0.0.0:8620 --token \"$TOKEN\" --max-rate 1G --max-duration 10min
  # Behind a firewall that is open for these ports:
  evlbi respond --bind 0.0.0.0:8620 --token-file token --ports 8621-8640

The port is that of the control connection (TCP). Each test uses its own UDP port, chosen by the kernel. \
Without a token one is generated and printed.")]
pub struct RespondArgs {
    /// Listen here for control connections
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = RespondOptions::default().bind, value_parser = address)]
    pub bind: SocketAddr,
    #[command(flatten)]
    pub token: TokenArgs,
    /// UDP and TCP ports for tests [default: any that the kernel chooses]
    #[arg(long, value_name = "FIRST-LAST", value_parser = units::ports)]
    pub ports: Option<RangeInclusive<u16>>,
    /// Maximum bit rate on the wire of all tests together, per direction [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub max_rate: Option<BitRate>,
    /// Maximum duration of a test
    #[arg(long, value_name = "TIME", default_value = units::span(Duration::from_nanos(RespondOptions::default().limits.duration.0)), value_parser = time)]
    pub max_duration: Duration,
    /// Let clients run busy threads on this host that compete with the receiver
    #[arg(long)]
    pub allow_load: bool,
    /// Let clients read files in this directory, and create new ones (probe tcp --from, --into)
    #[arg(long, value_name = "FOLDER")]
    pub files: Option<PathBuf>,
    /// Maximum number of tests at once; further tests wait or are refused
    #[arg(long, value_name = "N", default_value_t = RespondOptions::default().limits.tests)]
    pub max_tests: u32,
}

convert! {
    RespondArgs => RespondOptions { bind, ports, files }
    with [token, max_rate, max_duration, allow_load, max_tests] {
        token: token.into(),
        limits: Limits {
            rate: max_rate,
            duration: max_duration.into(),
            tests: max_tests,
            burdens: allow_load,
        },
    }
}

/// Grants tests until it is stopped.
pub fn respond(mut args: RespondArgs, program: &Program) -> Result<()> {
    args.token.find(program)?;
    args.token.token.get_or_insert_with(|| {
        let token = format!("{:032x}", rand::random::<u128>());
        say!("token {token}");
        token
    });
    Ok(respond::respond(&args.into(), program.run())?.join()?)
}
