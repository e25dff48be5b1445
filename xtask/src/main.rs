//! Tasks of the workspace; `cargo xtask --help` lists them.
//!
//! A task belongs here if it serves the development and needs more than cargo: it is a file with its options and `run`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "tasks measure")]

mod attack;
mod base;
mod ci;
mod deps;
mod examples;
mod fresh;
mod golden;
mod instructions;
mod lines;
mod oracles;
mod pictures;
mod run;
mod setup;
mod soak;
mod stress;
mod words;

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
    /// Run everything that the gate checks: format, dependency rules, lints, tests, examples, packages, attacks, loom, rustdoc
    Ci,
    /// Write a report of scenes that need time on a machine: figures with expectation and tolerance, facts, the host's stalls
    #[command(disable_help_flag = true)]
    Live {
        /// Options of evlbi-bench live: --only NAME, --json, --list
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Install what the tests need: Debian packages, a Python environment in target, Chromium
    Setup {
        /// List what is missing and install nothing; exit status 1 if anything is
        #[arg(long)]
        check: bool,
    },
    /// Print what the last runs of the test binaries skipped, and why
    Skipped,
    /// Run the tests of a fresh clone on a machine with only Rust and a C compiler, as root and as a plain user (as root)
    Fresh(fresh::FreshArgs),
    /// Run the tests alongside two busy loops, and pause their processes at random
    Stress(stress::StressArgs),
    /// Attack the program with hostile datagrams, clients and files while data flow, and compare each outcome with its expectation
    Attack(attack::AttackArgs),
    /// Run the examples of the libraries
    Examples,
    /// Run command lines that cover every command with this tree and with another revision, and show what differs
    Golden(golden::GoldenArgs),
    /// Run long searches: fuzz targets, properties and tests called `soak` with random seeds, mutants
    Soak(soak::SoakArgs),
    /// Run tshark, baseband and the other programs with committed answers again, and show the differences
    Oracles(oracles::Oracles),
    /// Check the dependency rules of the architecture
    Deps,
    /// Check the wording: print the lines that match patterns of hard-to-read text
    Words,
    /// Write the generated parts of docs: schemas of results, reference of the command line, tables of counters
    Docs {
        /// Write nothing; exit status 1 if a file differs
        #[arg(long)]
        check: bool,
    },
    /// Draw the pictures of docs/src that the program makes (some as root: they emulate paths)
    Pictures(pictures::PicturesArgs),
    /// Count the lines of code, comments and tests of each crate
    Lines(lines::LinesArgs),
    /// Count the instructions and allocations of the data path (needs valgrind)
    Instructions(instructions::InstructionsArgs),
    /// Measure, compared with peers: `cargo xtask bench --help` lists the benches
    #[command(disable_help_flag = true)]
    Bench {
        /// Options of evlbi-bench
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// Runs the benches, which are a program of their own, since they are built for speed.
fn bench(arguments: &[String]) -> Result<()> {
    let status = evlbi_testkit::cargo()
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

/// Prints what test binaries have reported.
fn skipped() -> Result<()> {
    match std::fs::read_to_string("target/skipped.txt") {
        Ok(text) if text.is_empty() => println!("nothing was skipped"),
        Ok(text) => print!("{text}"),
        Err(_) => println!("no test has run yet: cargo test --workspace"),
    }
    Ok(())
}

/// The types and the page are the program's: a test of it compares or writes.
fn docs(check: bool) -> Result<()> {
    let mut command = evlbi_testkit::cargo();
    command.args([
        "test",
        "--package",
        "evlbi",
        "--package",
        "evlbi-stream",
        "--bins",
        "--lib",
        "--",
    ]);
    command.args(["schemas::", "reference::", "counters::"]);
    if !check {
        command.env("EVLBI_WRITE_DOCS", "1");
    }
    run::well(&mut command)
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    // Paths are relative to the workspace, wherever the task was started.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?;
    match task {
        Task::Ci => ci::run(),
        Task::Live { arguments } => bench(&[&["live".to_owned()], &*arguments].concat()),
        Task::Setup { check } => setup::run(check),
        Task::Skipped => skipped(),
        Task::Fresh(args) => fresh::run(&args),
        Task::Stress(args) => stress::run(&args),
        Task::Attack(args) => attack::run(&args),
        Task::Examples => examples::run(),
        Task::Golden(args) => golden::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::Oracles(args) => oracles::run(&args),
        Task::Deps => deps::check(),
        Task::Docs { check } => docs(check),
        Task::Words => words::check(),
        Task::Pictures(args) => pictures::run(&args),
        Task::Lines(args) => lines::run(&args),
        Task::Instructions(args) => return instructions::run(&args),
        Task::Bench { arguments } => bench(&arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}
