//! `evlbi`: streams VLBI data in real time, tests the path, and measures losses.
//!
//! The libraries do the work. `cli` is the command line (one file per group of commands) and converts it to options of the
//! libraries, `words` adds remedies to their errors, `output` prints results, `status` has their exit statuses, `program` handles signals and progress,
//! `config` has the user's defaults, `demo` is the demonstration. Code for the command line or the terminal belongs here, and nothing that another program could call.

#![forbid(unsafe_code)]
#![allow(unnameable_types, reason = "clap's structs are of one file each")]
// `say` prints messages and `output` results: a macro of std panics where it cannot print.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod say;

mod cli;
mod config;
mod demo;
mod output;
mod program;
mod schemas;
mod status;
mod words;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    output::log_to_stderr(cli.verbose);
    evlbi_net::file::report_size_limits();
    let program = program::Program::new(cli.quiet);
    match cli.run(&program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("evlbi: {}", output::explain(&error));
            status::of(&error)
        }
    }
}
