//! `cargo xtask bench probe`: test streams beside those of iperf3, iperf and nuttcp.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use super::stage::{self, Carried, EVLBI, Stage, children_cpu, iperf3, wait_for_listener};
use super::{RATES, STANDARD, Scene, Search, median, pacing, play, verdict};

const PAYLOAD: usize = 1472;
pub const PORT: u16 = 8620;
pub const TOKEN: &str = "bench";
/// Datagrams of a train, where trains are sent.
const TRAIN: &str = "256";

#[derive(Args)]
pub struct ProbeArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only the scenes whose names contain this
    #[arg(long)]
    only: Option<String>,
}

pub fn run(args: &ProbeArgs) -> Result<()> {
    stage::build()?;
    let stage = Stage::new()?;
    let scenes: [(&str, Scene<Stage, ProbeArgs>); 2] = [("rate", rate), ("spacing", spacing)];
    play(&scenes, args.only.as_deref(), String::new, &stage, args)
}

/// What a run at a rate in Gbit/s and for so many seconds carried.
type Run = fn(&Stage, f64, u32) -> Result<Carried>;

/// The highest rate that goes through without loss in most runs, of each program, and what a gigabyte costs there.
fn rate(stage: &Stage, args: &ProbeArgs) -> Result<()> {
    stage.wire(STANDARD)?;
    let programs: [(&str, Run); 5] = [
        ("evlbi in trains", |stage, rate, seconds| {
            ours(stage, rate, seconds, TRAIN)
        }),
        ("evlbi packet by packet", |stage, rate, seconds| {
            ours(stage, rate, seconds, "1")
        }),
        ("iperf3", |stage, rate, seconds| {
            iperf3(stage, PAYLOAD, Some(rate), seconds)
        }),
        ("iperf", iperf),
        ("nuttcp", nuttcp),
    ];
    let mut all = programs.map(|(name, run)| Program {
        name,
        run,
        search: Search::among([0.2, 0.5, 1.0].into_iter().chain(RATES).collect()),
        runs: Vec::new(),
        best: Carried::default(),
        failed: None,
    });
    // In turns, so that another program's minute on a shared machine is one of all.
    while all.iter().any(|program| !program.is_over()) {
        for program in &mut all {
            program.turn(stage, args);
        }
    }
    println!("  {:<24} {:>12} {:>10}", "", "Gbit/s", "CPU s/GB");
    for Program {
        name, best, failed, ..
    } in &all
    {
        match failed {
            None => println!(
                "  {name:<24} {:>12.2} {:>10.2}",
                best.received, best.cpu_per_gb
            ),
            Some(error) => println!("  skipped: {name}: {error:#}"),
        }
    }
    let [trains, single, theirs, ..] = &all;
    for (mine, aim) in [(trains, 10.0), (single, 1.3)] {
        if mine.failed.is_none() && theirs.best.received > 0.0 {
            let ratio = mine.best.received / theirs.best.received;
            println!(
                "  {} over iperf3: {ratio:.2}   aim {aim}: {}",
                mine.name,
                verdict(ratio >= aim)
            );
        }
    }
    Ok(())
}

/// A program whose highest rate is looked for.
struct Program {
    name: &'static str,
    run: Run,
    search: Search,
    /// At the rate that is being tried.
    runs: Vec<Carried>,
    /// The medians at the highest rate without loss.
    best: Carried,
    failed: Option<anyhow::Error>,
}

impl Program {
    fn is_over(&self) -> bool {
        self.failed.is_some() || self.search.is_over()
    }

    /// One run.
    fn turn(&mut self, stage: &Stage, args: &ProbeArgs) {
        if self.is_over() {
            return;
        }
        match (self.run)(stage, self.search.rate(), args.seconds) {
            Ok(run) => self.runs.push(run),
            Err(error) => self.failed = Some(error),
        }
        if self.runs.len() >= args.runs {
            self.judge();
        }
    }

    /// What the runs at a rate say of it.
    fn judge(&mut self) {
        let runs = std::mem::take(&mut self.runs);
        let rate = self.search.rate();
        let clean: Vec<&Carried> = runs
            .iter()
            .filter(|run| run.lost == 0 && run.expected > 0)
            .collect();
        let middle_of = |get: fn(&Carried) -> f64| {
            median(&mut clean.iter().map(|run| get(run)).collect::<Vec<_>>())
        };
        let is_clean = 2 * clean.len() > runs.len();
        let received = if is_clean {
            middle_of(|run| run.received)
        } else {
            0.0
        };
        eprintln!(
            "    {}, {rate} Gbit/s asked: {} of {} runs without loss, {received:.2} came",
            self.name,
            clean.len(),
            runs.len()
        );
        if received > self.best.received {
            self.best = Carried {
                received,
                cpu_per_gb: middle_of(|run| run.cpu_per_gb),
                ..Carried::default()
            };
        }
        self.search.told(is_clean && received > 0.97 * rate);
    }
}

pub fn respond(stage: &Stage) -> Result<Child> {
    let child = stage
        .receiver(EVLBI)
        .args([
            "respond",
            "--bind",
            &format!("0.0.0.0:{PORT}"),
            "--token",
            TOKEN,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the responder")?;
    wait_for_listener(PORT)?;
    Ok(child)
}

/// Asks a child to end, and waits.
pub fn end(mut child: Child) -> Result<()> {
    Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()?;
    child.wait()?;
    Ok(())
}

fn ours(stage: &Stage, rate: f64, seconds: u32, burst: &str) -> Result<Carried> {
    let before = children_cpu();
    let responder = respond(stage)?;
    let output = stage
        .sender(EVLBI)
        .args([
            "probe",
            "udp",
            &format!("{}:{PORT}", stage.address()),
            "--token",
            TOKEN,
        ])
        .args([
            "--rate",
            &format!("{rate}G"),
            "--size",
            &PAYLOAD.to_string(),
        ])
        .args([
            "--duration",
            &format!("{seconds}s"),
            "--burst",
            burst,
            "--json",
        ])
        .stderr(Stdio::null())
        .output()?;
    end(responder)?;
    let result: Value =
        serde_json::from_slice(&output.stdout).context("no JSON from evlbi probe")?;
    let point = &result["points"][0];
    let count = |name: &str| point[name].as_u64().unwrap_or(0);
    let gigabytes = (count("unique") * PAYLOAD as u64) as f64 / 1e9;
    Ok(Carried {
        received: point["rate_received"].as_f64().unwrap_or(0.0) / 1e9,
        lost: count("lost"),
        expected: count("sent"),
        good: 0,
        corrupted: 0,
        cpu_per_gb: (children_cpu() - before) / gigabytes,
    })
}

fn iperf(stage: &Stage, rate: f64, seconds: u32) -> Result<Carried> {
    let before = children_cpu();
    let server = stage
        .receiver("iperf")
        .args(["-s", "-u", "-y", "C", "-p", "5001"])
        .args(["-t", &(seconds + 2).to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start iperf: install it to compare")?;
    wait_for_listener(5001)?;
    stage
        .sender("iperf")
        .args([
            "-c",
            stage.address(),
            "-u",
            "-p",
            "5001",
            "-l",
            &PAYLOAD.to_string(),
        ])
        .args([
            "-b",
            &format!("{}m", rate * 1e3),
            "-t",
            &seconds.to_string(),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    let output = server.wait_with_output()?;
    // time, addresses and ports, id, interval, bytes, bits per second, jitter, lost, sent, per cent, out of order.
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.split(',').count() >= 13);
    let fields: Vec<&str> = line.context("no report from iperf")?.split(',').collect();
    let field = |at: usize| fields[at].parse::<f64>().unwrap_or(0.0);
    let (bytes, bits, lost, sent) = (field(7), field(8), field(10), field(11));
    Ok(Carried {
        received: bits / 1e9,
        lost: lost as u64,
        expected: sent as u64,
        good: 0,
        corrupted: 0,
        cpu_per_gb: (children_cpu() - before) / (bytes / 1e9),
    })
}

fn nuttcp(stage: &Stage, rate: f64, seconds: u32) -> Result<Carried> {
    let before = children_cpu();
    let mut server = stage
        .receiver("nuttcp")
        .args(["-1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start nuttcp: install it to compare")?;
    wait_for_listener(5000)?;
    let output = stage
        .sender("nuttcp")
        .args([
            "-u",
            "-fparse",
            &format!("-R{}m", rate * 1e3),
            &format!("-l{PAYLOAD}"),
        ])
        .args([&format!("-T{seconds}"), stage.address()])
        .output()?;
    server.wait()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |name: &str| -> Result<f64> {
        let found = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let Some(value) = found.and_then(|value| value.parse().ok()) else {
            bail!("nuttcp does not tell its {name}: {text}");
        };
        Ok(value)
    };
    let (megabits, drop, packets) = (value("rate_Mbps")?, value("drop")?, value("pkt")?);
    let gigabytes = (packets - drop) * PAYLOAD as f64 / 1e9;
    Ok(Carried {
        received: megabits / 1e3,
        lost: drop as u64,
        expected: packets as u64,
        good: 0,
        corrupted: 0,
        cpu_per_gb: (children_cpu() - before) / gigabytes,
    })
}

/// How evenly single packets are spaced.
fn spacing(stage: &Stage, args: &ProbeArgs) -> Result<()> {
    let to = format!("{}:{PORT}", stage.address());
    let sends = [
        "probe",
        "udp",
        &to,
        "--token",
        TOKEN,
        "--spacing",
        "12.5us",
        "--size",
        "1472",
        "--count",
        "210000",
    ];
    let bind = format!("0.0.0.0:{PORT}");
    let responds = [EVLBI, "respond", "--bind", &bind, "--token", TOKEN];
    pacing::compare(stage, args.runs, (EVLBI, &sends, Some((&responds, PORT))))
}
