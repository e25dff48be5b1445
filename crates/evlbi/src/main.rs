//! `evlbi`: carries VLBI data in real time and says exactly what was lost.

mod analyse;
mod cli;
mod correlate;
mod demo;
mod drain;
mod drop;
mod fringe;
mod inspect;
mod loss_curve;
mod numbering;
mod output;
mod path;
mod plan;
mod plot;
mod probe;
mod progress;
mod recording;
mod recv;
mod report;
mod respond;
mod send;
mod sink;
mod sky;
mod source;
mod units;
mod url;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::log_to_stderr(cli.verbose);
    evlbi_net::file::report_size_limits();
    let result = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Recv(args) => recv::run(&args),
        Command::Drop(args) => drop::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Sky(args) => sky::run(&args),
        Command::Correlate(args) => correlate::run(&args),
        Command::Fringe(args) => fringe::run(&args),
        Command::LossCurve(args) => loss_curve::run(&args),
        Command::Path(command) => path::run(&command),
        Command::Analyse(args) => analyse::run(&args),
        Command::Plan(command) => plan::run(&command),
        Command::Probe(command) => probe::run(&command),
        Command::Respond(args) => respond::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Report(args) => report::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evlbi: {}", output::explain(&error));
            ExitCode::FAILURE
        }
    }
}
