//! `evlbi plan`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use evlbi_core::rate::BitRate;
use evlbi_net::safe::Step;
use evlbi_net::transport::scheme;
use evlbi_probe::plan::link::{self, Carrier, Link, PlanLinkOptions};
use evlbi_probe::plan::safe::{self, PlanSafeOptions};
use evlbi_probe::plan::tcp::{self, PlanTcpOptions};
use evlbi_probe::plan::{compare, losses, multicast};
use evlbi_trace::tcp::Algorithm;
use evlbi_wire::units;

use super::choice::{Choices, choice, length, name, time};
use super::chunks::PlanChunksArgs;
use super::plan_distribute::PlanDistributeArgs;
use super::plots;
use super::safe::{Chosen, MODES, least, weight};
use super::tables::CsvArgs;
use crate::output;
use crate::program::Program;

#[derive(Subcommand)]
pub enum PlanCommand {
    /// Calculate what TCP needs for a constant bit rate: windows, buffers, recovery times, tolerable loss
    Tcp(PlanTcpArgs),
    /// Compare streams into a correlator with and without multicast
    Multicast(PlanMulticastArgs),
    /// Calculate what fits a link, and how much must be shed otherwise
    Link(PlanLinkArgs),
    /// Calculate the losses at which a flow under SafeUDP sheds and stops
    Safe(PlanSafeArgs),
    /// Divide a correlation of recordings into parts for several hosts
    Chunks(Box<PlanChunksArgs>),
    /// Calculate nodes, links and hours for a correlation on several hosts, from its cost on this host
    Distribute(Box<PlanDistributeArgs>),
}

#[derive(Args)]
#[command(after_help = "\
Shows what one lost segment costs a flow of constant bit rate: the time until the window has recovered, the maximum \
lateness, the time until messages are on time again (drain), the buffer that the sender needs, and the tolerable loss \
fraction. Reno is calculated by its equations, the other algorithms step by step. For BBR, which a loss does not slow \
down, the figures are those of its probe of the round-trip time (every 10 s).

Examples:
  evlbi plan tcp --rate 512M --rtt 15ms
  evlbi plan tcp --rate 512M --rtt 95ms --algorithm htcp --link 1G --buffer 64MiB
  # Kernels that count acknowledgements (Linux before 4.0):
  evlbi plan tcp --rate 512M --rtt 15ms --acks 2
  # One loss with each algorithm, packet by packet:
  evlbi plan tcp --rate 512M --rtt 15ms,27ms,95ms --compare --plot delay.svg
  # Random losses:
  evlbi plan tcp --rate 512M --rtt 27ms --algorithm reno --buffer 2MB --compare --loss 0,1e-5,1e-4")]
pub struct PlanTcpArgs {
    /// Payload bit rate
    #[arg(long, value_name = "RATE")]
    pub rate: BitRate,
    /// Round-trip time; several with --compare
    #[arg(long, value_name = "TIME,...", value_delimiter = ',', required = true, value_parser = time)]
    pub rtt: Vec<Duration>,
    /// Payload of a segment, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = PlanTcpOptions::default().mss, value_parser = clap::value_parser!(u32).range(1..=65_483))]
    pub mss: u32,
    /// Congestion control algorithms: reno, bic, cubic, htcp, highspeed, scalable, westwood, bbr
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub algorithm: Vec<Algorithm>,
    /// Segments per step of the window: 1 if the kernel counts segments (Linux since 4.0), 2 if it counts delayed
    /// acknowledgements
    #[arg(long, value_name = "B", default_value_t = PlanTcpOptions::default().acks, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub acks: u32,
    /// Send buffer size
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub buffer: Option<u64>,
    /// Rate of the slowest link, on the wire [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub link: Option<BitRate>,
    /// Loss fraction of the segments; several with --compare
    #[arg(long, value_name = "FRACTION,...", value_delimiter = ',', value_parser = units::fraction)]
    pub loss: Vec<f64>,
    /// Simulate one loss with each algorithm, packet by packet; with --loss random losses
    #[arg(long)]
    pub compare: bool,
    /// Simulated time of --compare with --loss
    #[arg(long, value_name = "TIME", default_value = units::span(PlanTcpOptions::default().duration), requires = "loss", value_parser = length)]
    pub duration: Duration,
    /// Draw the comparison here: .svg, .png or .html; `-` draws on the terminal
    #[arg(long, value_name = "FILE", requires = "compare")]
    pub plot: Vec<PathBuf>,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi plan multicast --stations 6 --rate 1024M
  evlbi plan multicast --stations 20 --csv streams.csv")]
pub struct PlanMulticastArgs {
    /// Maximum number of stations
    #[arg(long, value_name = "N", default_value_t = multicast::STATIONS, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub stations: u32,
    /// Bit rate of each station
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long, requires = "csv")]
    pub force: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  # How much `send --shed fit:1G` must shed:
  evlbi plan link --rate 1024M --link 1G
  evlbi plan link --rate 8.192G --link wanphy --mtu 9000
  # Packets of `send --cut plain`:
  evlbi plan link --rate 1024M --link 1G --size 1464")]
pub struct PlanLinkArgs {
    /// Bit rate of the data
    #[arg(long, value_name = "RATE")]
    pub rate: BitRate,
    /// Rate of the Ethernet link, or wanphy
    #[arg(long, value_name = "RATE")]
    pub link: Link,
    /// Frame length in bytes, header included, which `send` cuts into packets
    #[arg(long, value_name = "SIZE", default_value_t = PlanLinkOptions::default().frame, value_parser = super::streams::frame_length)]
    pub frame: usize,
    /// Maximum IP packet size, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = PlanLinkOptions::default().mtu)]
    pub mtu: usize,
    /// Data per packet in bytes [default: as `send` cuts frames; a full segment over TCP]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["frame", "mtu"], value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pub size: Option<u32>,
    /// Transport protocol
    #[arg(long, value_parser = choice(CARRIERS), default_value = name(CARRIERS, PlanLinkOptions::default().carrier))]
    pub carrier: Carrier,
    /// Use IPv6
    #[arg(long)]
    pub v6: bool,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long, requires = "csv")]
    pub force: bool,
}

#[derive(Args)]
#[command(after_help = "\
Prints the rates of loss events at which a flow of `send --safe` takes more than one TCP flow would, sheds data, and stops; the \
rate of TCP there; and the mean time between such losses.

Examples:
  evlbi plan safe --rate 512M --rtt 95ms --size 1424
  evlbi plan safe --rate 1024M --rtt 1ms,15ms,95ms --size 8032 --weight 5 --least 1/2")]
pub struct PlanSafeArgs {
    /// Bit rate of the data
    #[arg(long, value_name = "RATE")]
    pub rate: BitRate,
    /// Round-trip times
    #[arg(long, value_name = "TIME,...", value_delimiter = ',', required = true, value_parser = length)]
    pub rtt: Vec<Duration>,
    /// Data per datagram, in bytes
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub size: u16,
    /// Mode, as for `send`
    #[arg(long, value_name = "MODE", value_parser = choice(&MODES[..3]), default_value = MODES[0].0)]
    pub safe: Chosen,
    /// Smallest fraction of the data that is sent
    #[arg(long, value_name = "F", default_value = "1/4", value_parser = least)]
    pub least: Step,
    /// Count as up to this many TCP flows, 0.01 to 10
    #[arg(long, value_name = "N", default_value_t = PlanSafeOptions::default().weight, value_parser = weight)]
    pub weight: f64,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long, requires = "csv")]
    pub force: bool,
}

const CARRIERS: Choices<Carrier> = &[
    (
        scheme::UDP,
        "VTP, as jive5ab's udps: UDP with a sequence number of 8 bytes",
        Carrier::Udp,
    ),
    (scheme::PUDP, "UDP without a sequence number", Carrier::Pudp),
    (scheme::TCP, "TCP with timestamps", Carrier::Tcp),
];

convert! {
    PlanTcpArgs => PlanTcpOptions { rate, rtt, mss, algorithm, acks, buffer, link, loss, duration }
    without [compare, plot, table, force, json]
}

convert! {
    PlanLinkArgs => PlanLinkOptions { rate, link, frame, mtu, size, carrier, v6 }
    without [table, json, force]
}

convert! {
    PlanSafeArgs => PlanSafeOptions { rate, rtt, size, least, weight }
    with [safe] {
        mode: match safe {
            Chosen::Mode(mode) => mode,
            Chosen::Off => PlanSafeOptions::default().mode,
        },
    }
    without [table, json, force]
}

/// Calculates or simulates a plan.
pub fn run(command: PlanCommand, program: &Program) -> Result<()> {
    match command {
        PlanCommand::Tcp(args) => run_tcp(args, program),
        PlanCommand::Multicast(args) => {
            let csv = args.table.checked(args.json, args.force, [])?;
            let plan = multicast::plan(args.stations, args.rate);
            csv.and(&plan, multicast::csv, || {
                output::print(args.json, &plan, multicast::text)
            })
        }
        PlanCommand::Link(args) => {
            let json = args.json;
            let csv = args.table.clone().checked(json, args.force, [])?;
            let plan = link::plan(&args.into())?;
            csv.and(&plan, link::csv, || output::print(json, &plan, link::text))
        }
        PlanCommand::Chunks(args) => super::chunks::plan(*args, program),
        PlanCommand::Distribute(args) => super::plan_distribute::run(*args, program),
        PlanCommand::Safe(args) => {
            let json = args.json;
            let csv = args.table.clone().checked(json, args.force, [])?;
            let plan = safe::plan(&args.into());
            csv.and(&plan, safe::csv, || output::print(json, &plan, safe::text))
        }
    }
}

fn run_tcp(args: PlanTcpArgs, program: &Program) -> Result<()> {
    let plot = plots::checked(&args.plot, args.force, &[])?;
    let (compare, json) = (args.compare, args.json);
    let csv = args.table.clone().checked(json, args.force, &plot)?;
    let options = PlanTcpOptions::from(args);
    if !compare {
        let plan = tcp::plan(&options)?;
        return csv.and(&plan, tcp::csv, || {
            output::print(json, &plan, |plan| tcp::text(plan, &options))
        });
    }
    let run = program.unheeded();
    if options.loss.is_empty() {
        let found = compare::compare(&options, run)?;
        plots::draw(&plot, &found, compare::figure, compare::text)?;
        csv.and(&found, compare::csv, || {
            output::print(json, &found, compare::text)
        })
    } else {
        let found = losses::simulate(&options, run)?;
        plots::draw(&plot, &found, losses::figure, losses::text)?;
        csv.and(&found, losses::csv, || {
            output::print(json, &found, losses::text)
        })
    }
}
