//! The command line: one grammar for all commands.
//!
//! Here belongs a further command or option: clap's structs, their conversion to options of a library, and what is printed
//! (CONTRIBUTING.md, "How to add").

#[macro_use]
mod convert;

mod analyse;
mod choice;
mod chunks;
mod correlate;
#[cfg(test)]
mod defaults;
mod demo;
mod distribute;
#[cfg(test)]
mod docs;
mod doctor;
mod fitness;
mod flows;
mod input;
mod path;
mod plan;
mod plan_distribute;
mod plots;
mod probe;
mod recordings;
#[cfg(test)]
mod reference;
mod safe;
mod session;
mod streams;
mod tables;
mod target;
mod token;
mod watch;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

pub use self::session::Checked;
use crate::program::Program;

/// Stream VLBI data in real time, test the path it takes, and measure what was lost and what the loss cost
#[derive(Parser)]
#[command(name = "evlbi", version, about, max_term_width = 110, help_template = help())]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Print only errors and warnings on standard error, no progress and no information
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print decisions (-v) and details (-vv) on standard error
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Open a Unix socket at this path to query, change or stop the run
    #[arg(long, global = true, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
}

impl Cli {
    /// Does what the command line says.
    pub fn run(self, program: &Program) -> Result<()> {
        // The last line of a flow of an agent is why it ends.
        if let Command::Send(args) = &self.command
            && (self.control.is_none() || std::io::stderr().is_terminal())
            && let Some(lack) = args.safe.lack(&args.to)
        {
            say!("evlbi: {lack}");
        }
        let Some(socket) = self.control else {
            return self.command.run(program);
        };
        // From here on a request to stop ends with everything written.
        program.run();
        program.control_socket.listen(&socket)?;
        let done = self.command.run(program);
        program.control_socket.leave(&socket);
        done
    }
}

/// The commands, as `evlbi --help` groups them by what a user wants to do.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Stream",
        &[
            "demo", "send", "recv", "drop", "split", "join", "inspect", "sky",
        ],
    ),
    (
        "Correlate",
        &["correlate", "distribute", "merge", "fringe", "loss-curve"],
    ),
    (
        "Measure a path",
        &["probe", "respond", "watch", "report", "analyse", "doctor"],
    ),
    ("Plan and emulate", &["plan", "path"]),
    ("Operate many hosts", &["agent", "run", "console"]),
];

/// Returns the template of the program's help: clap lists commands in one block only.
fn help() -> String {
    let all = Command::augment_subcommands(clap::Command::new("evlbi"));
    let mut text = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        text += &format!("\n{heading}:\n");
        for name in names {
            let command = all.find_subcommand(name);
            let about = command.and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text += &format!("  {name:<11}{about}\n");
        }
    }
    text + "\nOptions:\n{options}\n\n`evlbi COMMAND --help` shows a command's options and examples.\n"
}

#[derive(Subcommand)]
pub enum Command {
    /// Stream simulated stations through a lossy relay, record them, and check every counter
    Demo(demo::DemoArgs),
    /// Send a recording, a test pattern or a simulated station
    Send(streams::SendArgs),
    /// Record a stream; lost frames become invalid frames with the right timestamp
    Recv(streams::RecvArgs),
    /// Copy a recording without some of its frames or packets, by a policy
    Drop(recordings::DropArgs),
    /// Split a recording into channels, threads or stations
    Split(recordings::SplitArgs),
    /// Join channels, threads or stations to one recording
    Join(recordings::JoinArgs),
    /// Show a recording's format, threads, times, gaps, state counts and spectrum
    Inspect(recordings::InspectArgs),
    /// Write recordings of simulated stations
    Sky(recordings::SkyArgs),
    /// Correlate recordings or live streams: amplitude, delay, rate, weight of each baseline
    Correlate(correlate::CorrelateArgs),
    /// Correlate the parts of a plan on this host, by Slurm or by Dask, and merge them
    Distribute(distribute::DistributeArgs),
    /// Merge the parts of a correlation
    Merge(chunks::MergeArgs),
    /// Search visibilities or recordings for fringes, and draw them
    Fringe(correlate::FringeArgs),
    /// Measure what lost data costs a correlation: amplitude, weight, noise against theory
    LossCurve(correlate::LossCurveArgs),
    /// Emulate a network path between hosts on this machine: delay, rate, loss, reordering
    #[command(subcommand)]
    Path(path::PathCommand),
    /// Analyse a packet capture: limits of TCP connections, loss and reordering of UDP streams
    Analyse(analyse::AnalyseArgs),
    /// Calculate before sending: what TCP needs, what fits a link, what multicast saves
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// Test a path to a host with `evlbi respond`
    Probe(probe::Probe),
    /// Answer path tests from clients that hold the token
    Respond(probe::RespondArgs),
    /// Test a path for hours or days and store the results in a file
    Watch(watch::WatchArgs),
    /// Report on a campaign of `evlbi watch`, or on many results of `evlbi probe udp`
    Report(watch::ReportArgs),
    /// Check whether this host is tuned for a data rate, and show what to change and why
    Doctor(doctor::DoctorArgs),
    /// Run flows on this host under remote control (web UI, HTTP API, tokens, limits)
    Agent(session::AgentArgs),
    /// Run a session: flows on several hosts, from a schedule or a script
    Run(session::RunArgs),
    /// Control flows by hand on one host or several: list, start, change, stop
    Console(session::ConsoleArgs),
}

impl Command {
    fn run(self, program: &Program) -> Result<()> {
        match self {
            Command::Demo(args) => demo::run(args, program),
            Command::Send(args) => streams::send(args, program),
            Command::Recv(args) => streams::recv(args, program),
            Command::Drop(args) => recordings::drop(args, program),
            Command::Split(args) => recordings::split(args, program),
            Command::Join(args) => recordings::join(args, program),
            Command::Inspect(args) => recordings::inspect(&args, program),
            Command::Sky(args) => recordings::sky(args, program),
            Command::Correlate(args) => correlate::correlate(args, program),
            Command::Distribute(args) => distribute::run(&args, program),
            Command::Merge(args) => chunks::merge_parts(args, program),
            Command::Fringe(args) => correlate::fringe(args, program),
            Command::LossCurve(args) => correlate::loss_curve(args, program),
            Command::Path(command) => path::run(command, program),
            Command::Analyse(args) => analyse::run(args, program),
            Command::Plan(command) => plan::run(command, program),
            Command::Probe(probe) => probe::run(probe, program),
            Command::Respond(args) => probe::respond(args, program),
            Command::Watch(args) => watch::watch(args, program),
            Command::Report(args) => watch::report(&args),
            Command::Doctor(args) => doctor::run(args, program),
            Command::Agent(args) => session::agent(args, program),
            Command::Run(args) => session::run(args, program),
            Command::Console(args) => session::console(args, program),
        }
    }
}
