//! Tasks of the workspace: `cargo xtask ci`, `cargo xtask deps`, `cargo xtask bench net`.

mod bench;
mod ci;
mod deps;

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
    /// Everything that the gate checks: format, lints, tests, docs, dependency rules, short fuzz runs
    Ci,
    /// Tests that take minutes and want the machine for themselves, one after the other
    Live,
    /// The dependency rules of the architecture
    Deps,
    /// Measurements beside peers
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Ci => ci::run(),
        Task::Live => ci::live(),
        Task::Deps => deps::check(),
        Task::Bench(bench) => bench::run(&bench),
    }
}
