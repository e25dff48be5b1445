//! `evlbi`: carries VLBI data in real time and says exactly what was lost.
#![allow(
    clippy::disallowed_methods,
    reason = "until virtual time is introduced"
)]
// `say` prints messages and `output` results: a macro of std panics where it cannot print.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod say;

mod agent;
mod analyse;
mod cli;
mod control;
mod correlate;
mod demo;
mod doctor;
mod drain;
mod drop;
mod fringe;
mod host;
mod inspect;
mod loss_curve;
mod numbering;
mod output;
mod path;
mod plan;
mod plot;
mod probe;
mod program;
mod progress;
mod recording;
mod recv;
mod report;
mod respond;
mod send;
mod session;
mod sink;
mod sky;
mod source;
mod sqlite;
mod steer;
mod table;
mod units;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};
use evlbi_net::transport::{NotHonoured, OpenError};
use program::Program;

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::log_to_stderr(cli.verbose);
    evlbi_net::file::report_size_limits();
    let program = std::sync::Arc::new(Program::new());
    let heeding = std::sync::Arc::clone(&program);
    let _ = progress::HEED.set(Box::new(move || {
        heeding.run();
    }));
    match run(cli, &program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("evlbi: {}", output::explain(&error));
            let of_transport = error.downcast_ref::<OpenError>();
            let is_unknown = matches!(of_transport, Some(OpenError::NotHonoured(_)));
            match is_unknown || error.is::<NotHonoured>() {
                // As for an option that does not exist.
                true => ExitCode::from(2),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn run(cli: Cli, program: &Program) -> anyhow::Result<()> {
    steer::set_current(program.steering());
    let Some(socket) = cli.control else {
        return do_command(cli.command, program);
    };
    // From here on a request to stop ends with everything written.
    program.run();
    program.steering().listen(&socket)?;
    let done = do_command(cli.command, program);
    program.steering().leave(&socket);
    done
}

fn do_command(command: Command, program: &Program) -> anyhow::Result<()> {
    match command {
        Command::Demo(args) => cli::demo::run(args, program),
        Command::Send(args) => cli::send::run(args, program),
        Command::Recv(args) => cli::recv::run(args, program),
        Command::Drop(args) => cli::drop::run(args, program),
        Command::Inspect(args) => cli::inspect::run(args, program),
        Command::Sky(args) => cli::sky::run(args, program),
        Command::Correlate(args) => cli::correlate::run(args, program),
        Command::Fringe(args) => cli::fringe::run(args, program),
        Command::LossCurve(args) => cli::loss_curve::run(args, program),
        Command::Path(command) => cli::path::run(command),
        Command::Analyse(args) => cli::analyse::run(args, program),
        Command::Plan(command) => cli::plan::run(command, program),
        Command::Probe(command) => cli::probe::run(command, program),
        Command::Respond(args) => cli::respond::run(args, program),
        Command::Watch(args) => cli::watch::run(args, program),
        Command::Report(args) => cli::report::run(&args),
        Command::Doctor(args) => cli::doctor::run(args, program),
        Command::Agent(args) => agent::run(&args),
        Command::Run(args) => session::run(&args),
        Command::Console(args) => session::console::run(&args),
    }
}
