//! `cargo xtask bench tcp`: bulk TCP, compared with iperf3, one connection and four.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use evlbi_net::transport::Protocol;
use evlbi_testkit::Room;

use crate::net::STANDARD;
use crate::probe::{PORT, TOKEN, respond};
use crate::stage::{Carried, EVLBI, Program, Stage, children_cpu, iperf3_with};
use crate::table::{Aim, Common, Figure, Scene, Table, median, play};

/// Size of the file that is sent, and of a write of it, in bytes.
const FILE: usize = 4 << 30;
const BLOCK: usize = 1 << 20;
/// Aim in Gbit/s.
const FROM_DISK: f64 = 40.0;

#[derive(Args)]
pub struct TcpArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 5)]
    runs: usize,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &TcpArgs) -> Result<()> {
    let stage = Stage::new()?;
    stage.wire(STANDARD)?;
    let scenes: [(&str, Scene<Stage, TcpArgs>); 3] = [
        ("one connection", |stage, args, table| {
            beside(stage, args, table, "one connection", 1)
        }),
        ("four connections", |stage, args, table| {
            beside(stage, args, table, "four connections", 4)
        }),
        ("disk to network", from_disk),
    ];
    play(
        Protocol::Tcp.name(),
        &scenes,
        &args.common,
        String::new,
        &stage,
        args,
    )
}

/// Compares medians of alternating runs: throughput and CPU time of both hosts.
fn beside(
    stage: &Stage,
    args: &TcpArgs,
    table: &mut Table,
    what: &str,
    streams: u32,
) -> Result<()> {
    let has_peer = table.has_peer("iperf3");
    let (mut mine, mut discarded, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    let count = streams.to_string();
    for _ in 0..args.runs {
        mine.push(ours(stage, args.seconds, &["--streams", &count])?);
        let discards = ["--streams", &count, "--discard"];
        discarded.push(ours(stage, args.seconds, &discards)?);
        if has_peer {
            theirs.push(iperf3(stage, streams, args.seconds)?);
        }
    }
    let middle = |runs: &[Carried], get: fn(&Carried) -> f64| {
        median(&mut runs.iter().map(get).collect::<Vec<_>>())
    };
    for (kind, runs) in [("", &mine), (", discarding", &discarded)] {
        let (rate, cpu) = (
            middle(runs, |run| run.received),
            middle(runs, |run| run.cpu_per_gb),
        );
        let mut rate = Figure::new(format!("{what}{kind}"), rate, "Gbit/s");
        let mut cpu = Figure::new(format!("{what}{kind}, processor time"), cpu, "s/GB");
        if has_peer {
            rate = rate.beside("iperf3", middle(&theirs, |run| run.received));
            cpu = cpu.beside("iperf3", middle(&theirs, |run| run.cpu_per_gb));
        }
        if kind.is_empty() {
            rate = rate.aim(Aim::RatioAtLeast(1.0));
            cpu = cpu.aim(Aim::RatioAtMost(1.0));
        }
        table.add(rate);
        table.add(cpu);
    }
    Ok(())
}

/// Measures sending a file from the host's page cache to a receiver that discards it.
fn from_disk(stage: &Stage, args: &TcpArgs, table: &mut Table) -> Result<()> {
    let room = Room::new();
    let path = &*room.path("scan");
    let file = std::fs::File::create(path)?;
    let block: Vec<u8> = (0..BLOCK).map(|at| (at * 7) as u8).collect();
    for _ in 0..FILE / BLOCK {
        (&file).write_all(&block)?;
    }
    file.sync_all()?;
    let mut rates = Vec::new();
    for _ in 0..args.runs {
        rates.push(ours(stage, 60, &["--from", path])?.received);
    }
    let what = "a file of 4 GiB in the page cache, to the network";
    table.add(Figure::new(what, median(&mut rates), "Gbit/s").aim(Aim::AtLeast(FROM_DISK)));
    Ok(())
}

fn ours(stage: &Stage, seconds: u32, more: &[&str]) -> Result<Carried> {
    let before = children_cpu();
    let responder = respond(stage)?;
    let mut probe = stage.sender(EVLBI);
    probe
        .args([
            "probe",
            Protocol::Tcp.name(),
            &format!("{}:{PORT}", stage.address()),
        ])
        .args(["--token", TOKEN, "--algorithm", "cubic", "--json"])
        .args(["--duration", &format!("{seconds}s")])
        .args(more);
    let result = Program::start("evlbi probe tcp", &mut probe)?.json()?;
    responder.end()?;
    let bytes: f64 = result["flows"]
        .as_array()
        .map(|flows| flows.iter().filter_map(|flow| flow["bytes"].as_f64()).sum())
        .unwrap_or_default();
    Ok(Carried {
        received: result["totals"][0]["rate"].as_f64().unwrap_or(0.0) / 1e9,
        cpu_per_gb: (children_cpu() - before) / (bytes / 1e9),
        ..Carried::default()
    })
}

fn iperf3(stage: &Stage, streams: u32, seconds: u32) -> Result<Carried> {
    let [streams, seconds] = [streams, seconds].map(|value| value.to_string());
    let options = ["-C", "cubic", "-P", &streams, "-t", &seconds];
    let (result, cpu) = iperf3_with(stage, &options)?;
    let received = &result["end"]["sum_received"];
    let bytes = received["bytes"].as_f64().unwrap_or(0.0);
    Ok(Carried {
        received: received["bits_per_second"].as_f64().unwrap_or(0.0) / 1e9,
        cpu_per_gb: cpu / (bytes / 1e9),
        ..Carried::default()
    })
}
