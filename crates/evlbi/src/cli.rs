//! The command line: one grammar for all commands.
//!
//! Here belongs a further command or option: clap's structs, their conversion to options of a library, and what is printed
//! (CONTRIBUTING.md, "How to add").

#[macro_use]
mod convert;

mod analyse;
mod choice;
mod correlate;
#[cfg(test)]
mod defaults;
mod demo;
#[cfg(test)]
mod docs;
mod doctor;
mod flows;
mod path;
mod plan;
mod plots;
mod probe;
mod recordings;
mod session;
mod streams;
mod watch;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::program::Program;

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
        program.control_socket.listen(&socket)?;
        let done = self.command.run(program);
        program.control_socket.leave(&socket);
        done
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Simulated stations stream in real time through a lossy relay into recordings; every number is checked
    Demo(demo::DemoArgs),
    /// Send a recording, a test pattern or a simulated station
    Send(streams::SendArgs),
    /// Receive a stream and record it, with what was lost marked in time
    Recv(streams::RecvArgs),
    /// Lose frames or packets of a file under control
    Drop(recordings::DropArgs),
    /// Say what a recording holds: format, threads, times, gaps, state counts, spectrum
    Inspect(recordings::InspectArgs),
    /// Write recordings of simulated stations
    Sky(recordings::SkyArgs),
    /// Correlate recordings: spectra of all baselines, amplitudes, delays, what missing data cost
    Correlate(correlate::CorrelateArgs),
    /// Search fringes in visibilities or recordings, and draw them
    Fringe(correlate::FringeArgs),
    /// What losing data costs a correlation: amplitude, weight and noise against loss, beside the theory
    LossCurve(correlate::LossCurveArgs),
    /// An emulated path between hosts on this machine: delay, rate, loss, reordering and the rest
    #[command(subcommand)]
    Path(path::PathCommand),
    /// Say what a capture tells (pcap, pcapng): connections of TCP with what held them back, loss and order of streams
    Analyse(analyse::AnalyseArgs),
    /// What can be known before anything is sent: what TCP needs, what fits a link, what multicast saves
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// Test a path to a host with `evlbi respond`
    #[command(subcommand)]
    Probe(probe::ProbeCommand),
    /// The far end of probes: grants tests to who knows the token
    Respond(probe::RespondArgs),
    /// Test a path for hours or days, and keep what is found in a file
    Watch(watch::WatchArgs),
    /// What a campaign of `evlbi watch` found
    Report(watch::ReportArgs),
    /// Is this host tuned? What to change, and why
    Doctor(doctor::DoctorArgs),
    /// Run flows on this host for whoever knows a token: a page, an HTTP interface, limits
    Agent(session::AgentArgs),
    /// Run a session: flows on many hosts, by a timetable or a script
    Run(session::RunArgs),
    /// Flows on one host or many by hand: list, start, change, stop
    Console(session::ConsoleArgs),
}

impl Command {
    fn run(self, program: &Program) -> Result<()> {
        match self {
            Command::Demo(args) => demo::run(args, program),
            Command::Send(args) => streams::send(args, program),
            Command::Recv(args) => streams::recv(args, program),
            Command::Drop(args) => recordings::drop(args, program),
            Command::Inspect(args) => recordings::inspect(&args, program),
            Command::Sky(args) => recordings::sky(args, program),
            Command::Correlate(args) => correlate::correlate(args, program),
            Command::Fringe(args) => correlate::fringe(args, program),
            Command::LossCurve(args) => correlate::loss_curve(args, program),
            Command::Path(command) => path::run(command, program),
            Command::Analyse(args) => analyse::run(args, program),
            Command::Plan(command) => plan::run(command, program),
            Command::Probe(command) => probe::run(command, program),
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
