//! `evlbi`: carries VLBI data in real time and says exactly what was lost.

mod cli;
mod drop;
mod inspect;
mod output;
mod progress;
mod recording;
mod sky;
mod units;
mod url;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::log_to_stderr(cli.verbose);
    let result = match cli.command {
        Command::Demo(_) | Command::Send(_) | Command::Recv(_) => Ok(()),
        Command::Drop(args) => drop::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Sky(args) => sky::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error: anyhow::Error = error;
            eprintln!("evlbi: {error:#}");
            ExitCode::FAILURE
        }
    }
}
