//! `cargo xtask bench tcp`: bulk TCP beside iperf3, one connection and four.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use super::probe::{PORT, TOKEN, end, respond};
use super::stage::{self, Carried, EVLBI, Stage, children_cpu, iperf3_with};
use super::{STANDARD, Scene, median, play, verdict};

/// Bytes of the file that is sent, and of a write of it.
const FILE: usize = 4 << 30;
const BLOCK: usize = 1 << 20;
/// Gbit/s.
const FROM_DISK: f64 = 40.0;

#[derive(Args)]
pub struct TcpArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only the scenes whose names contain this
    #[arg(long)]
    only: Option<String>,
}

pub fn run(args: &TcpArgs) -> Result<()> {
    stage::build()?;
    let stage = Stage::new()?;
    stage.wire(STANDARD)?;
    let scenes: [(&str, Scene<Stage, TcpArgs>); 3] = [
        ("one connection", |stage, args| beside(stage, args, 1)),
        ("four connections", |stage, args| beside(stage, args, 4)),
        ("disk to network", from_disk),
    ];
    play(&scenes, args.only.as_deref(), String::new, &stage, args)
}

/// Medians of runs in turns: throughput and processor time of both ends.
fn beside(stage: &Stage, args: &TcpArgs, streams: u32) -> Result<()> {
    let (mut mine, mut discarded, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.runs {
        let count = ["--streams", &streams.to_string()];
        mine.push(ours(stage, args.seconds, &count)?);
        discarded.push(ours(
            stage,
            args.seconds,
            &[count[0], count[1], "--discard"],
        )?);
        theirs.push(iperf3(stage, streams, args.seconds)?);
    }
    let middle = |runs: &[Carried], get: fn(&Carried) -> f64| {
        median(&mut runs.iter().map(get).collect::<Vec<_>>())
    };
    println!("  {:<24} {:>12} {:>10}", "", "Gbit/s", "CPU s/GB");
    let of = |name: &str, runs: &[Carried]| {
        let (rate, cpu) = (
            middle(runs, |run| run.received),
            middle(runs, |run| run.cpu_per_gb),
        );
        println!("  {name:<24} {rate:>12.2} {cpu:>10.3}");
        (rate, cpu)
    };
    let (rate, cpu) = of("evlbi probe tcp", &mine);
    of("evlbi, discarding", &discarded);
    let (their_rate, their_cpu) = of("iperf3", &theirs);
    println!(
        "  over iperf3: {:.2} of its rate, {:.2} of its processor time   aims 1 and 1: {}, {}",
        rate / their_rate,
        cpu / their_cpu,
        verdict(rate >= their_rate),
        verdict(cpu <= their_cpu)
    );
    Ok(())
}

/// A file that the host has in memory, to a receiver that throws it away.
fn from_disk(stage: &Stage, args: &TcpArgs) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("scan");
    let file = std::fs::File::create(&path)?;
    let block: Vec<u8> = (0..BLOCK).map(|at| (at * 7) as u8).collect();
    for _ in 0..FILE / BLOCK {
        (&file).write_all(&block)?;
    }
    file.sync_all()?;
    let path = path.to_str().context("a path that can be written")?;
    let mut rates = Vec::new();
    for _ in 0..args.runs {
        rates.push(ours(stage, 60, &["--from", path])?.received);
    }
    let rate = median(&mut rates);
    println!(
        "  {rate:.1} Gbit/s from the page cache   aim {FROM_DISK}: {}",
        verdict(rate >= FROM_DISK)
    );
    Ok(())
}

fn ours(stage: &Stage, seconds: u32, more: &[&str]) -> Result<Carried> {
    let before = children_cpu();
    let responder = respond(stage)?;
    let output = stage
        .sender(EVLBI)
        .args(["probe", "tcp", &format!("{}:{PORT}", stage.address())])
        .args(["--token", TOKEN])
        .args([
            "--algorithm",
            "cubic",
            "--duration",
            &format!("{seconds}s"),
            "--json",
        ])
        .args(more)
        .stderr(Stdio::null())
        .output()?;
    end(responder)?;
    let result: Value =
        serde_json::from_slice(&output.stdout).context("no JSON from evlbi probe tcp")?;
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
