//! `cargo xtask bench probe`: test streams, compared with those of iperf3, iperf and nuttcp.

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::net::{RATES, STANDARD, Search};
use crate::pacing;
use crate::stage::{Carried, EVLBI, Program, Stage, children_cpu, iperf3};
use crate::table::{Aim, Common, Figure, Scene, Table, median, play};
use evlbi_net::transport::Protocol;

const PAYLOAD: usize = 1472;
pub const PORT: u16 = 8620;
pub const TOKEN: &str = "bench";
/// Datagrams per burst, if bursts are sent.
const TRAIN: &str = "256";

#[derive(Args)]
pub struct ProbeArgs {
    /// Seconds of each run
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 3)]
    runs: usize,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &ProbeArgs) -> Result<()> {
    let stage = Stage::new()?;
    let scenes: [(&str, Scene<Stage, ProbeArgs>); 2] = [("rate", rate), ("spacing", spacing)];
    play("probe", &scenes, &args.common, String::new, &stage, args)
}

const TRAINS: &str = "in trains";
const SINGLE: &str = "packet by packet";

/// Returns the aims of this program's two modes, relative to iperf3.
fn aim_of(name: &str) -> Option<Aim> {
    match name {
        TRAINS => Some(Aim::RatioAtLeast(10.0)),
        SINGLE => Some(Aim::RatioAtLeast(1.3)),
        _ => None,
    }
}

/// Function that returns what a run at a rate in Gbit/s and for this many seconds carried.
type Run = fn(&Stage, f64, u32) -> Result<Carried>;

/// Measures the maximum rate without loss in most runs, of each program, and the cost of a gigabyte at that rate.
fn rate(stage: &Stage, args: &ProbeArgs, table: &mut Table) -> Result<()> {
    stage.wire(STANDARD)?;
    let mine: [(&str, Run); 2] = [
        (TRAINS, |stage, rate, seconds| {
            ours(stage, rate, seconds, TRAIN)
        }),
        (SINGLE, |stage, rate, seconds| {
            ours(stage, rate, seconds, "1")
        }),
    ];
    let peers: [(&str, Run); 3] = [
        ("iperf3", |stage, rate, seconds| {
            iperf3(stage, PAYLOAD, Some(rate), seconds, &[])
        }),
        ("iperf", iperf),
        ("nuttcp", nuttcp),
    ];
    let peers = peers.into_iter().filter(|(name, _)| table.has_peer(name));
    let mut all: Vec<Searched> = mine.into_iter().chain(peers).map(Searched::new).collect();
    // In turn, so that another program's minute on a shared machine affects all.
    while all.iter().any(|program| !program.is_over()) {
        for program in &mut all {
            program.turn(stage, args);
        }
    }
    let mut reached = Vec::new();
    for Searched {
        name, best, failed, ..
    } in all
    {
        match failed {
            Some(error) => table.failed(&error.context(name)),
            None => reached.push((name, best)),
        }
    }
    let (mine, peers): (Vec<_>, Vec<_>) = reached
        .into_iter()
        .partition(|(name, _)| aim_of(name).is_some());
    for (name, best) in mine {
        let rate = || Figure::new(format!("{name}, without loss"), best.received, "Gbit/s");
        let cpu = || {
            Figure::new(
                format!("{name}, CPU time at that rate"),
                best.cpu_per_gb,
                "s/GB",
            )
        };
        if peers.is_empty() {
            table.add(rate());
            table.add(cpu());
        }
        for (peer, theirs) in &peers {
            let figure = rate().beside(peer, theirs.received);
            table.add(match aim_of(name) {
                Some(aim) if *peer == "iperf3" => figure.aim(aim),
                _ => figure,
            });
        }
        for (peer, theirs) in &peers {
            table.add(cpu().beside(peer, theirs.cpu_per_gb));
        }
    }
    Ok(())
}

/// A program whose maximum rate is searched.
struct Searched {
    name: &'static str,
    run: Run,
    search: Search,
    /// Runs at the current rate.
    runs: Vec<Carried>,
    /// Medians at the highest rate without loss.
    best: Carried,
    failed: Option<anyhow::Error>,
}

impl Searched {
    fn new((name, run): (&'static str, Run)) -> Searched {
        Searched {
            name,
            run,
            search: Search::among([0.2, 0.5, 1.0].into_iter().chain(RATES).collect()),
            runs: Vec::new(),
            best: Carried::default(),
            failed: None,
        }
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || self.search.is_over()
    }

    /// Makes one run.
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

    /// Judges the rate by its runs.
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

pub fn respond(stage: &Stage) -> Result<Program> {
    let bind = format!("0.0.0.0:{PORT}");
    let arguments = ["respond", "--bind", &bind, "--token", TOKEN];
    stage.listener(PORT, EVLBI, &arguments)
}

fn ours(stage: &Stage, rate: f64, seconds: u32, burst: &str) -> Result<Carried> {
    let before = children_cpu();
    let responder = respond(stage)?;
    let mut probe = stage.sender(EVLBI);
    probe
        .args([
            "probe",
            Protocol::Udp.name(),
            &format!("{}:{PORT}", stage.address()),
        ])
        .args(["--token", TOKEN, "--burst", burst, "--json"])
        .args(["--rate", &format!("{rate}G")])
        .args(["--size", &PAYLOAD.to_string()])
        .args(["--duration", &format!("{seconds}s")]);
    let result = Program::start("evlbi probe udp", &mut probe)?.json()?;
    responder.end()?;
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
    let until = (seconds + 2).to_string();
    let server = ["-s", "-u", "-y", "C", "-p", "5001", "-t", &until];
    let server = stage.listener(5001, "iperf", &server)?;
    let mut client = stage.sender("iperf");
    client
        .args(["-c", stage.address(), "-u", "-p", "5001"])
        .args(["-l", &PAYLOAD.to_string()])
        .args(["-b", &format!("{}m", rate * 1e3)])
        .args(["-t", &seconds.to_string()]);
    Program::start("iperf", &mut client)?.finish()?;
    let text = server.finish()?;
    // time, addresses and ports, id, interval, bytes, bits per second, jitter, lost, sent, per cent, out of order.
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
    let server = stage.listener(5000, "nuttcp", &["-1", "--nofork"])?;
    let mut client = stage.sender("nuttcp");
    client
        .args(["-u", "-fparse", &format!("-R{}m", rate * 1e3)])
        .args([&format!("-l{PAYLOAD}"), &format!("-T{seconds}")])
        .arg(stage.address());
    let text = Program::start("nuttcp", &mut client)?.finish()?;
    server.finish()?;
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

/// Measures how evenly single packets are spaced.
fn spacing(stage: &Stage, args: &ProbeArgs, table: &mut Table) -> Result<()> {
    let to = format!("{}:{PORT}", stage.address());
    let sends = [
        "probe",
        Protocol::Udp.name(),
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
    let responds = ["respond", "--bind", &bind, "--token", TOKEN];
    let ours = (
        EVLBI,
        sends.as_slice(),
        Some((EVLBI, responds.as_slice(), PORT)),
    );
    pacing::compare(stage, args.runs, ours, table)
}
