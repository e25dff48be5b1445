//! The command line: one grammar for all commands.

pub mod agent;
pub mod analyse;
mod capacity;
mod choice;
pub mod console;
pub mod correlate;
#[cfg(test)]
mod defaults;
pub mod demo;
#[cfg(test)]
mod docs;
pub mod doctor;
pub mod drop;
pub mod flows;
pub mod fringe;
pub mod inspect;
mod latency;
pub mod loss_curve;
pub mod path;
pub mod plan;
pub mod plots;
pub mod probe;
pub mod recv;
pub mod report;
pub mod respond;
pub mod run;
pub mod send;
pub mod sky;
mod tcp;
pub mod watch;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub use self::agent::AgentArgs;
pub use self::analyse::AnalyseArgs;
pub use self::console::ConsoleArgs;
pub use self::correlate::CorrelateArgs;
pub use self::demo::DemoArgs;
pub use self::doctor::DoctorArgs;
pub use self::drop::DropArgs;
pub use self::fringe::FringeArgs;
pub use self::inspect::InspectArgs;
pub use self::loss_curve::LossCurveArgs;
pub use self::path::PathCommand;
pub use self::plan::PlanCommand;
pub use self::probe::ProbeCommand;
pub use self::recv::RecvArgs;
pub use self::report::ReportArgs;
pub use self::respond::RespondArgs;
pub use self::run::RunArgs;
pub use self::send::SendArgs;
pub use self::sky::SkyArgs;
pub use self::watch::WatchArgs;
use crate::host::HostOptions;
use crate::program::Program;
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

impl Cli {
    /// Does what the command line says.
    pub fn run(self, program: &Program) -> Result<()> {
        let Some(socket) = self.control else {
            return self.command.run(program);
        };
        // From here on a request to stop ends with everything written.
        program.run();
        program.steering().listen(&socket)?;
        let done = self.command.run(program);
        program.steering().leave(&socket);
        done
    }
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
    #[command(after_help = correlate::HELP)]
    Correlate(CorrelateArgs),
    /// Search fringes in visibilities or recordings, and draw them
    #[command(after_help = fringe::HELP)]
    Fringe(FringeArgs),
    /// What losing data costs a correlation: amplitude, weight and noise against loss, beside the theory
    #[command(after_help = loss_curve::HELP)]
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
    #[command(after_help = agent::HELP)]
    Agent(AgentArgs),
    /// Run a session: flows on many hosts, by a timetable or a script
    #[command(after_help = run::HELP)]
    Run(RunArgs),
    /// Flows on one host or many by hand: list, start, change, stop
    #[command(after_help = console::HELP)]
    Console(ConsoleArgs),
}

impl Command {
    fn run(self, program: &Program) -> Result<()> {
        match self {
            Command::Demo(args) => demo::run(args, program),
            Command::Send(args) => send::run(args, program),
            Command::Recv(args) => recv::run(args, program),
            Command::Drop(args) => drop::run(args, program),
            Command::Inspect(args) => inspect::run(args, program),
            Command::Sky(args) => sky::run(args, program),
            Command::Correlate(args) => correlate::run(args, program),
            Command::Fringe(args) => fringe::run(args, program),
            Command::LossCurve(args) => loss_curve::run(args, program),
            Command::Path(command) => path::run(command),
            Command::Analyse(args) => analyse::run(args, program),
            Command::Plan(command) => plan::run(command, program),
            Command::Probe(command) => probe::run(command, program),
            Command::Respond(args) => respond::run(args, program),
            Command::Watch(args) => watch::run(args, program),
            Command::Report(args) => report::run(&args),
            Command::Doctor(args) => doctor::run(args, program),
            Command::Agent(args) => agent::run(args, program),
            Command::Run(args) => run::run(args, program),
            Command::Console(args) => console::run(args, program),
        }
    }
}

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
