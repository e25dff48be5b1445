//! `cargo xtask bench`: how fast and how evenly the program carries, correlates and reads data, beside its peers. Each figure is
//! the median of repeated runs that take turns with the peer's.
//!
//! Here belongs a scene whose figure depends on the machine: of a bench in the file of its subject, with a peer beside it; of `cargo xtask
//! live` in `live`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "benches measure")]

mod analyse;
mod cores;
mod disk;
mod fx;
mod live;
mod net;
mod pacing;
mod path;
mod probe;
mod stage;
mod table;
mod tcp;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Measure evlbi beside its peers")]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Transport across two network namespaces (as root), beside iperf3, iperf and nuttcp
    Net(net::NetArgs),
    /// The correlator, step by step and as a whole, beside numpy; streams as they come
    Fx(fx::FxArgs),
    /// The emulated path: delay, rate, and how much it carries
    Path(path::PathArgs),
    /// Probes beside iperf3, iperf and nuttcp (as root): highest rate without loss, spacing, processor time
    Probe(probe::ProbeArgs),
    /// Bulk TCP beside iperf3 (as root)
    Tcp(tcp::TcpArgs),
    /// Captures beside tshark (as root)
    Analyse(analyse::AnalyseArgs),
    /// A report of what needs a machine with time for it: figures, facts, the host's stalls
    Live(live::LiveArgs),
}

fn main() -> ExitCode {
    match run(&Cli::parse().bench) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(bench: &Bench) -> Result<()> {
    if !matches!(bench, Bench::Live(args) if args.list) {
        stage::build()?;
    }
    match bench {
        Bench::Net(args) => net::run(args),
        Bench::Fx(args) => fx::run(args),
        Bench::Path(args) => path::run(args),
        Bench::Probe(args) => probe::run(args),
        Bench::Tcp(args) => tcp::run(args),
        Bench::Analyse(args) => analyse::run(args),
        Bench::Live(args) => live::run(args),
    }
}
