//! Tasks of the workspace; `cargo xtask --help` lists them.

mod ci;
mod deps;
mod setup;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Tasks of the evlbi workspace")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that the gate checks: format, dependency rules, lints, tests, loom, rustdoc
    Ci,
    /// Tests that take minutes and want the machine for themselves, one after the other
    Live,
    /// Install what the tests need: Debian packages, a Python environment in target, Chromium
    Setup {
        /// List what is missing and install nothing; exit status 1 if anything is
        #[arg(long)]
        check: bool,
    },
    /// Print what the last runs of the test binaries skipped, and why
    Skipped,
    /// The dependency rules of the architecture
    Deps,
    /// Measure beside peers: `cargo xtask bench --help` lists the benches
    #[command(disable_help_flag = true)]
    Bench {
        /// What evlbi-bench is given
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// Benches are a program of their own, since they are built for speed.
fn bench(arguments: &[String]) -> Result<()> {
    let status = std::process::Command::new("cargo")
        .args([
            "run",
            "--release",
            "--quiet",
            "--package",
            "evlbi-bench",
            "--",
        ])
        .args(arguments)
        .status()?;
    std::process::exit(status.code().unwrap_or(1))
}

/// What test binaries have reported.
fn skipped() -> Result<()> {
    match std::fs::read_to_string("target/skipped.txt") {
        Ok(text) if !text.is_empty() => print!("{text}"),
        _ => println!("nothing was skipped"),
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Ci => ci::run(),
        Task::Live => ci::live(),
        Task::Setup { check } => setup::run(check),
        Task::Skipped => skipped(),
        Task::Deps => deps::check(),
        Task::Bench { arguments } => bench(&arguments),
    }
}
