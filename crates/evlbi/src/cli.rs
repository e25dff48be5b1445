//! The command line: one grammar for all commands.

pub mod analyse;
mod capacity;
mod choice;
mod control;
#[cfg(test)]
mod defaults;
pub mod demo;
#[cfg(test)]
mod docs;
pub mod doctor;
pub mod drop;
pub mod inspect;
mod latency;
pub mod path;
pub mod plan;
pub mod plots;
pub mod probe;
pub mod recv;
pub mod report;
pub mod respond;
pub mod send;
pub mod sky;
mod tcp;
pub mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use evlbi_core::rate::BitRate;

pub use self::analyse::AnalyseArgs;
pub use self::control::{AgentArgs, ConsoleArgs, RunArgs};
pub use self::demo::DemoArgs;
pub use self::doctor::DoctorArgs;
pub use self::drop::DropArgs;
pub use self::inspect::InspectArgs;
pub use self::path::PathCommand;
pub use self::plan::PlanCommand;
pub use self::probe::ProbeCommand;
pub use self::recv::RecvArgs;
pub use self::report::ReportArgs;
pub use self::respond::RespondArgs;
pub use self::send::SendArgs;
pub use self::sky::SkyArgs;
pub use self::watch::WatchArgs;
use crate::correlate::{Chunk, DelayTerms, Flag, Hertz, TrustChoice};
use crate::host::HostOptions;
use crate::loss_curve::{Instead, Kind, Knows, Losses};
use crate::units;

/// Carries VLBI data in real time from telescopes to a correlator and says exactly what was lost.
#[derive(Parser)]
#[command(name = "evlbi", version, about, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Say more (-v: decisions, -vv: details) on standard error
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Listen on a socket of this name for whoever watches and changes the run
    #[arg(long, global = true, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Simulated stations stream in real time through a lossy relay into recordings; every number is checked
    Demo(DemoArgs),
    /// Send a recording, a test pattern or a simulated station
    #[command(after_help = send::HELP)]
    Send(SendArgs),
    /// Receive a stream and record it, with what was lost marked in time
    #[command(after_help = recv::HELP)]
    Recv(RecvArgs),
    /// Lose frames or packets of a file under control
    #[command(after_help = drop::HELP)]
    Drop(DropArgs),
    /// Say what a recording holds: format, threads, times, gaps, state counts, spectrum
    Inspect(InspectArgs),
    /// Write recordings of simulated stations
    Sky(SkyArgs),
    /// Correlate recordings: spectra of all baselines, amplitudes, delays, what missing data cost
    #[command(after_help = CORRELATE_HELP)]
    Correlate(CorrelateArgs),
    /// Search fringes in visibilities or recordings, and draw them
    #[command(after_help = FRINGE_HELP)]
    Fringe(FringeArgs),
    /// What losing data costs a correlation: amplitude, weight and noise against loss, beside the theory
    #[command(after_help = LOSS_CURVE_HELP)]
    LossCurve(LossCurveArgs),
    /// An emulated path between hosts on this machine: delay, rate, loss, reordering and the rest
    #[command(subcommand, after_help = path::HELP)]
    Path(PathCommand),
    /// Say what a capture tells (pcap, pcapng): connections of TCP with what held them back, loss and order of streams
    #[command(after_help = analyse::HELP)]
    Analyse(AnalyseArgs),
    /// What can be known before anything is sent: what TCP needs, what fits a link, what multicast saves
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Test a path to a host with `evlbi respond`
    #[command(subcommand)]
    Probe(ProbeCommand),
    /// The far end of probes: grants tests to who knows the token
    #[command(after_help = respond::HELP)]
    Respond(RespondArgs),
    /// Test a path for hours or days, and keep what is found in a file
    #[command(after_help = watch::HELP)]
    Watch(WatchArgs),
    /// What a campaign of `evlbi watch` found
    Report(ReportArgs),
    /// Is this host tuned? What to change, and why
    #[command(after_help = doctor::HELP)]
    Doctor(DoctorArgs),
    /// Run flows on this host for whoever knows a token: a page, an HTTP interface, limits
    #[command(after_help = control::AGENT_HELP)]
    Agent(AgentArgs),
    /// Run a session: flows on many hosts, by a timetable or a script
    #[command(after_help = control::RUN_HELP)]
    Run(RunArgs),
    /// Flows on one host or many by hand: list, start, change, stop
    #[command(after_help = control::CONSOLE_HELP)]
    Console(ConsoleArgs),
}

const CORRELATE_HELP: &str = "\
Delay of a station: how much later it receives than the reference, as seconds, seconds per second and so on, in the
seconds since the first recording's first second: --delay 0 --delay 1.5us,2e-12. A positive delay is later.

Examples:
  evlbi correlate Ef.vdif Jb.vdif On.vdif --freq 4.9G
  evlbi correlate S1.vdif S2.vdif --model job_1.im --out job_1.difx      (DiFX: the .input beside it is read)
  evlbi correlate A.vdif B.vdif --freq 8.4G,8.432G --polarisations RL --cross-hands --channels 512";

const FRINGE_HELP: &str = "\
Examples:
  evlbi fringe job.vis --out pictures          (what `evlbi correlate --out job.vis` wrote)
  evlbi fringe Ef.vdif Jb.vdif --freq 4.9G     (correlates first; options as for correlate)";

const LOSS_CURVE_HELP: &str = "\
Each point sheds frames of one station (or of both) on their way from the file, correlates, and is held against the
theory. Ratios are to the whole recordings. Replaced by random bytes or the fill pattern, lost frames look valid to a
correlator that knows headers only (--knows headers); one that knows the gaps leaves them out (--knows all). Both are
shown; --knows papers loses a frame more after each gap.

Example:
  evlbi loss-curve Ef.vdif Jb.vdif --station 2 --loss 0.5%..20% --shed every,bunch --replace nothing,fill";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnitChoice {
    Frame,
    Packet,
}

/// What a user may ask of this host for the thread that moves the data.
#[derive(Args, Clone)]
pub struct HostArgs {
    /// Pin the network thread to this processor
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Real-time priority (SCHED_FIFO, 1 to 99) of the network thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub priority: Option<u8>,
    /// Socket buffer to ask for
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub buffer: Option<u64>,
}

impl From<HostArgs> for HostOptions {
    fn from(args: HostArgs) -> HostOptions {
        let HostArgs {
            cpu,
            priority,
            buffer,
        } = args;
        HostOptions {
            cpu,
            priority,
            buffer,
        }
    }
}

#[derive(Args, Clone)]
pub struct CorrelateArgs {
    /// Recordings, one a station, in the order of the model's stations; with --live udp://ADDRESS:PORT, a stream each
    #[arg(required = true, num_args = 2..=32)]
    pub files: Vec<String>,
    #[command(flatten)]
    pub options: CorrelateOptions,
    /// What is believed of samples
    #[arg(long, value_enum, default_value_t = TrustChoice::Exact)]
    pub trust: TrustChoice,
    /// Correlate only part K of N of the integrations; the parts' sums are the whole
    #[arg(long, value_name = "K/N", conflicts_with = "live")]
    pub chunk: Option<Chunk>,
    /// Correlate only so much of the end, of recordings that may still grow
    #[arg(long, value_name = "TIME", conflicts_with_all = ["live", "chunk"], value_parser = units::duration)]
    pub last: Option<Duration>,
    /// Receive streams and correlate them as they come; one line per integration
    #[arg(long)]
    pub live: bool,
    #[command(flatten)]
    pub streams: StreamArgs,
    /// Add amplitude against delay of each baseline to what --json prints, 512 delays at most
    #[arg(long, requires = "json")]
    pub profiles: bool,
    /// Write visibilities (SWIN, as DiFX) and a summary here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite results that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output (with --live one a line for each integration before it)
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct FringeArgs {
    /// A directory of visibilities, or recordings, one a station
    #[arg(required = true, num_args = 1..=32)]
    pub inputs: Vec<String>,
    #[command(flatten)]
    pub options: CorrelateOptions,
    /// What is believed of samples
    #[arg(long, value_enum, default_value_t = TrustChoice::Exact)]
    pub trust: TrustChoice,
    /// Write pictures (SVG and PNG) here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite pictures that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct LossCurveArgs {
    /// Recordings, of which two are correlated: that of --station and the first other
    #[arg(required = true, num_args = 2..=32)]
    pub files: Vec<String>,
    /// Which station loses data, from 1 on
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub station: u8,
    /// Fractions that are lost: a list or a range
    #[arg(long, value_name = "FRACTIONS", default_value = "0.5%..20%")]
    pub loss: Losses,
    /// How frames are shed
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Every, Kind::Bunch, Kind::Random])]
    pub shed: Vec<Kind>,
    /// What stands in their place
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Instead::Nothing, Instead::Fill])]
    pub replace: Vec<Instead>,
    /// What the correlator knows of the loss: curves of each
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Knows::All, Knows::Headers])]
    pub knows: Vec<Knows>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub options: CorrelateOptions,
    /// Write the curves and their pictures here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite results that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

impl CorrelateOptions {
    /// Without any option.
    pub fn usual() -> Result<CorrelateOptions, clap::Error> {
        match Cli::try_parse_from(["evlbi", "correlate", "a", "b"])?.command {
            Command::Correlate(args) => Ok(args.options),
            _ => Err(clap::Error::new(clap::error::ErrorKind::InvalidSubcommand)),
        }
    }
}

/// How streams are received that are correlated as they come.
#[derive(Args, Clone)]
pub struct StreamArgs {
    /// With --live: how long a station that is late is waited for
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration, requires = "live")]
    pub wait: Duration,
    /// With --live: print the result at the end alone, not what each integration finds
    #[arg(long, requires = "live")]
    pub no_lines: bool,
    /// With --live: end after this time without a datagram
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "live")]
    pub idle: Option<Duration>,
    /// With --live: end this long after the start
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "live")]
    pub duration: Option<Duration>,
}

/// How stations are correlated.
#[derive(Args, Clone)]
pub struct CorrelateOptions {
    /// Delay model of DiFX; the .input beside it gives frequencies, side bands and clocks
    #[arg(long, value_name = "X.im", conflicts_with_all = ["freq", "polarisations"])]
    pub model: Option<PathBuf>,
    /// Delay of each station in the order of the files, or what its clock is late; adds to the model's [default: none]
    #[arg(long, value_name = "TERMS", allow_hyphen_values = true)]
    pub delay: Vec<DelayTerms>,
    /// Sky frequency that the first band was mixed down with; the others follow, or each is given [default: not known]
    #[arg(long, value_name = "HZ", value_delimiter = ',')]
    pub freq: Vec<Hertz>,
    /// Side band of real samples
    #[arg(long, value_enum, default_value_t = SideBand::U)]
    pub sideband: SideBand,
    /// Polarisations of the bands, in turn
    #[arg(long, value_name = "LETTERS", default_value = "R", value_parser = polarisations)]
    pub polarisations: String,
    /// Correlate different polarisations too
    #[arg(long)]
    pub cross_hands: bool,
    /// Samples a second of a band, where the recordings cannot tell
    #[arg(long, value_name = "HZ")]
    pub sample_rate: Option<Hertz>,
    /// Channels of a band [default: 1024, or the model's]
    #[arg(long, value_name = "N", value_parser = channels)]
    pub channels: Option<usize>,
    /// Length of an integration; they begin at whole multiples of it since midnight, with a model at the job's start
    /// [default: 1s, or the model's]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub integration: Option<Duration>,
    /// Search a fringe in delays up to this, either side [default: all that the channels can tell apart]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub delay_window: Option<Duration>,
    /// Search a fringe in rates up to this, either side [default: all that can be told apart]
    #[arg(long, value_name = "HZ")]
    pub rate_window: Option<Hertz>,
    /// Leave out a time of a station: NAME:FROM..TO in seconds since the first recording's first second
    #[arg(long, value_name = "FLAG")]
    pub flag: Vec<Flag>,
    /// Threads that correlate [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

fn channels(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|channels| (4..=1 << 20).contains(channels))
        .ok_or_else(|| format!("`{text}` channels cannot be made; ask for 4 to 1048576"))
}

fn polarisations(text: &str) -> Result<String, String> {
    let mut seen = std::collections::HashSet::new();
    let good = |letter: char| letter.is_ascii_uppercase();
    if text.is_empty()
        || !text
            .chars()
            .all(|letter| good(letter) && seen.insert(letter))
    {
        return Err(format!(
            "`{text}` names no polarisations; write R, RL or XY"
        ));
    }
    Ok(text.to_owned())
}

/// Whether frequency grows with the sky's or against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SideBand {
    /// Upper
    #[value(name = "U", alias = "u")]
    U,
    /// Lower
    #[value(name = "L", alias = "l")]
    L,
}
