//! `evlbi`: carries VLBI data in real time and says exactly what was lost.
//!
//! The work is done by the libraries; here they meet people. `cli` has the command line (one file for a group of commands) and turns it into
//! options of the libraries, `words` what a user can do about their errors, `output` prints results, `program` has signals and progress,
//! `demo` the demonstration. Here belongs what speaks of the command line or the terminal, and nothing that another program could call.

#![forbid(unsafe_code)]
#![allow(unnameable_types, reason = "clap's structs are of one file each")]
// `say` prints messages and `output` results: a macro of std panics where it cannot print.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod say;

mod cli;
mod demo;
mod output;
mod program;
mod words;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    output::log_to_stderr(cli.verbose);
    evlbi_net::file::report_size_limits();
    match cli.run(&program::Program::new()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("evlbi: {}", output::explain(&error));
            program::status_of(&error)
        }
    }
}
