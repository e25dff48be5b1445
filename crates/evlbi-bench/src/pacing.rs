//! Spacing of single packets, from the kernel timestamps of a capture on the receiving host.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use evlbi_testkit::Room;

use crate::net::{NetArgs, STANDARD, STANDARD_FRAME};
use crate::stage::{EVLBI, Program, Stage};
use crate::table::{Aim, Figure, Table, median, tools};

/// Rate of the UDP payload in bit/s. 1472 bytes at 942 Mbit/s are 12.5 us apart.
const RATE: f64 = 942e6;
const PAYLOAD: f64 = 1472.0;
/// Packets per capture.
const PACKETS: usize = 200_000;
/// Maximum spacing error, for both benches that measure it.
const AIMED_ERROR: f64 = 0.1;
const AIMED_SHARE: f64 = 95.0;

/// A program, how it sends, and what must listen on which port.
pub type Peer<'a> = (
    &'a str,
    &'a [&'a str],
    Option<(&'a str, &'a [&'a str], u16)>,
);

pub fn run(stage: &Stage, args: &NetArgs, table: &mut Table) -> Result<()> {
    let data_rate = RATE * STANDARD_FRAME as f64 / PAYLOAD;
    let to = format!("udp://{}:2700", stage.address());
    let rate = format!("{}", data_rate as u64);
    let pattern = format!("pattern:{STANDARD_FRAME}");
    let sends = [
        "send",
        &pattern,
        "--to",
        &to,
        "--rate",
        &rate,
        "--burst",
        "1",
        "--duration",
        "4s",
    ];
    compare(stage, args.runs, (EVLBI, &sends, None), table)
}

/// Compares how evenly this program and its peers space packets.
pub fn compare(stage: &Stage, runs: usize, ours: Peer<'_>, table: &mut Table) -> Result<()> {
    tools(&["tcpdump"])?;
    stage.wire(STANDARD)?;
    let payload = PAYLOAD.to_string();
    let rate = (RATE as u64).to_string();
    let to = stage.address();
    let nuttcp_rate = format!("-R{}m", RATE / 1e6);
    let nuttcp_length = format!("-l{payload}");
    let peers: [Peer<'_>; 3] = [
        (
            "iperf3",
            &["-c", to, "-u", "-b", &rate, "-l", &payload, "-t", "4"],
            Some(("iperf3", &["-s", "-1"], 5201)),
        ),
        (
            "iperf",
            &["-c", to, "-u", "-b", &rate, "-l", &payload, "-t", "4"],
            Some(("iperf", &["-s", "-u", "-t", "8"], 5001)),
        ),
        (
            "nuttcp",
            &["-u", &nuttcp_rate, &nuttcp_length, "-T4", to],
            Some(("nuttcp", &["-1", "--nofork"], 5000)),
        ),
    ];
    let mine = spacing(stage, runs, ours)?;
    let mut theirs = Vec::new();
    for peer in peers {
        if !table.has_peer(peer.0) {
            continue;
        }
        match spacing(stage, runs, peer) {
            Ok(spacing) => theirs.push((peer.0, spacing)),
            Err(error) => table.failed(&error),
        }
    }
    let ideal = PAYLOAD * 8.0 / RATE * 1e6;
    let figures: [(String, &str, Spread, Option<Aim>); 5] = [
        (
            format!("gaps, median (ideal {ideal:.3})"),
            "us",
            |s| s.median,
            None,
        ),
        (
            "gaps, median error".into(),
            "us",
            |s| s.error,
            Some(Aim::AtMost(AIMED_ERROR)),
        ),
        (
            "gaps within 10 %".into(),
            "%",
            |s| s.even,
            Some(Aim::AtLeast(AIMED_SHARE)),
        ),
        ("gaps, p99".into(), "us", |s| s.p99, None),
        ("gaps, p99.9".into(), "us", |s| s.p999, None),
    ];
    for (what, unit, get, aim) in figures {
        let figure = |what: String| Figure::new(what, get(&mine), unit);
        let mut first = figure(what.clone());
        if let Some(aim) = aim {
            first = first.aim(aim);
        }
        let mut peers = theirs.iter();
        if let Some((peer, spacing)) = peers.next() {
            first = first.beside(peer, get(spacing));
        }
        table.add(first);
        for (peer, spacing) in peers {
            table.add(figure(what.clone()).beside(peer, get(spacing)));
        }
    }
    Ok(())
}

/// One of the figures of a spacing.
type Spread = fn(&Spacing) -> f64;

/// Returns the medians of some captures.
fn spacing(stage: &Stage, runs: usize, peer: Peer<'_>) -> Result<Spacing> {
    let mut all = Vec::new();
    for _ in 0..runs {
        let gaps = capture(stage, peer)?;
        ensure!(
            gaps.len() > 1000,
            "too few packets of {} were captured",
            peer.0
        );
        all.push(Spacing::of(gaps));
    }
    let middle = |get: Spread| median(&mut all.iter().map(get).collect::<Vec<_>>());
    Ok(Spacing {
        median: middle(|s| s.median),
        error: middle(|s| s.error),
        even: middle(|s| s.even),
        p99: middle(|s| s.p99),
        p999: middle(|s| s.p999),
    })
}

/// Spacing of packets, in us.
struct Spacing {
    median: f64,
    /// Median deviation from the ideal.
    error: f64,
    /// Percentage within 10 % of the ideal.
    even: f64,
    p99: f64,
    p999: f64,
}

impl Spacing {
    fn of(mut gaps: Vec<f64>) -> Spacing {
        let ideal = PAYLOAD * 8.0 / RATE * 1e6;
        let mut errors: Vec<f64> = gaps.iter().map(|gap| (gap - ideal).abs()).collect();
        let close = errors.iter().filter(|error| **error <= 0.1 * ideal).count();
        let even = 100.0 * close as f64 / errors.len() as f64;
        gaps.sort_by(f64::total_cmp);
        let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
        Spacing {
            median: at(0.5),
            error: median(&mut errors),
            even,
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

/// Returns the gaps between the packets that a program sends, as the receiving device's kernel stamped them.
fn capture(stage: &Stage, (program, arguments, listens): Peer<'_>) -> Result<Vec<f64>> {
    let room = Room::new();
    let file = room.path("gaps.pcap");
    let listening = listens
        .map(|(program, arguments, port)| stage.listener(port, program, arguments))
        .transpose()?;
    let packets = PACKETS.to_string();
    let mut command = stage.receiver("tcpdump");
    command.args([
        "-i",
        stage.receiving_device(),
        "-Z",
        "root",
        "--nano",
        "-s",
        "60",
    ]);
    command
        .args(["-B", "65536", "-c", &packets, "-w"])
        .arg(&file)
        .arg("udp and greater 1400");
    let dump = Program::start("tcpdump", &mut command)?;
    std::thread::sleep(Duration::from_millis(500));
    let mut sender = stage.sender(program);
    let sent = Program::start(program, sender.args(arguments))?.finish();
    // Some servers end on their own, others do not.
    drop(listening);
    // If killed before it has all packets, it would lose buffered ones; so it is asked to end.
    dump.end()?;
    sent?;
    let mut text = Command::new("tcpdump");
    text.args(["-tt", "-n", "--nano", "-r"]).arg(&file);
    let text = Program::start("tcpdump", &mut text)?.finish()?;
    let times: Vec<(u64, u64)> = text
        .lines()
        .filter_map(|line| {
            let (seconds, nanos) = line.split_whitespace().next()?.split_once('.')?;
            Some((seconds.parse().ok()?, nanos.parse().ok()?))
        })
        .collect();
    Ok(times
        .windows(2)
        .map(|pair| {
            let span = (pair[1].0 - pair[0].0) as f64 * 1e9 + pair[1].1 as f64 - pair[0].1 as f64;
            span / 1e3
        })
        .collect())
}
