//! `cargo xtask bench`: speed and evenness of carrying, correlating and reading data, compared with peers. Each figure is the median of
//! repeated runs that alternate with the peer's.
//!
//! A scene belongs here if its figure depends on the machine: scenes of a bench are in the file of its subject, next to a peer; those
//! of `cargo xtask live` are in `live`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "benches measure")]

mod analyse;
mod cores;
mod disk;
mod fx;
mod live;
mod mirror;
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
    /// Measure transport across two network namespaces (as root), compared with iperf3, iperf and nuttcp
    Net(net::NetArgs),
    /// Measure the correlator, by step and in total, compared with numpy; and live streams
    Fx(fx::FxArgs),
    /// Measure the emulated path: delay, rate, and how much it carries
    Path(path::PathArgs),
    /// Measure probes, compared with iperf3, iperf and nuttcp (as root): maximum rate without loss, spacing, CPU time
    Probe(probe::ProbeArgs),
    /// Measure bulk TCP, compared with iperf3 (as root)
    Tcp(tcp::TcpArgs),
    /// Measure the reading of captures, compared with tshark (as root)
    Analyse(analyse::AnalyseArgs),
    /// Write a report of scenes that need time on a machine: figures, facts, the host's stalls
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
