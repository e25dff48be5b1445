//! How evenly single packets are spaced: kernel stamps of one capture at the receiving end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::stage::{EVLBI, Stage, wait_for_listener};
use super::{NetArgs, STANDARD, STANDARD_FRAME, median, verdict};

/// Rate of the UDP payload. 1472 bytes at 942 Mbit/s are 12.5 us apart.
const RATE: f64 = 942e6;
const PAYLOAD: f64 = 1472.0;
/// Packets of a capture.
const PACKETS: usize = 200_000;

/// A program, how it sends, and what has to listen on which port.
pub type Peer<'a> = (&'a str, &'a [&'a str], Option<(&'a [&'a str], u16)>);

pub fn run(stage: &Stage, args: &NetArgs) -> Result<()> {
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
    compare(stage, args.runs, (EVLBI, &sends, None))
}

/// How this program spaces packets, and how its peers do.
pub fn compare(stage: &Stage, runs: usize, ours: Peer<'_>) -> Result<()> {
    stage.wire(STANDARD)?;
    let payload = PAYLOAD.to_string();
    let rate = (RATE as u64).to_string();
    let to = stage.address();
    let nuttcp_rate = format!("-R{}m", RATE / 1e6);
    let nuttcp_length = format!("-l{payload}");
    let peers: [Peer<'_>; 4] = [
        ours,
        (
            "iperf3",
            &["-c", to, "-u", "-b", &rate, "-l", &payload, "-t", "4"],
            Some((&["iperf3", "-s", "-1"], 5201)),
        ),
        (
            "iperf",
            &["-c", to, "-u", "-b", &rate, "-l", &payload, "-t", "4"],
            Some((&["iperf", "-s", "-u", "-t", "8"], 5001)),
        ),
        (
            "nuttcp",
            &["-u", &nuttcp_rate, &nuttcp_length, "-T4", to],
            Some((&["nuttcp", "-1"], 5000)),
        ),
    ];
    println!(
        "  gaps between packets in us; ideal {:.3}",
        PAYLOAD * 8.0 / RATE * 1e6
    );
    println!(
        "  {:<8} {:>10} {:>10} {:>8} {:>8} {:>8}",
        "", "median", "error", "in 10 %", "p99", "p99.9"
    );
    for (program, sender, server) in peers {
        let name = Path::new(program)
            .file_name()
            .map_or(program.into(), |name| name.to_string_lossy());
        let mut spread = Vec::new();
        for _ in 0..runs {
            match capture(stage, program, sender, server) {
                Ok(gaps) if gaps.len() > 1000 => spread.push(Spacing::of(gaps)),
                Ok(_) => println!("  {name}: too few packets were captured"),
                Err(error) => println!("  skipped: {name}: {error:#}"),
            }
        }
        if spread.is_empty() {
            continue;
        }
        let middle = |figure: fn(&Spacing) -> f64| {
            median(&mut spread.iter().map(figure).collect::<Vec<_>>())
        };
        let (error, even) = (middle(|s| s.error), middle(|s| s.even));
        println!(
            "  {name:<8} {:>10.3} {error:>10.3} {:>7.1}% {:>8.2} {:>8.2}{}",
            middle(|s| s.median),
            even * 100.0,
            middle(|s| s.p99),
            middle(|s| s.p999),
            if program == EVLBI {
                format!(
                    "   aim error < 0.1: {}, 95 % in 10 %: {}",
                    verdict(error < 0.1),
                    verdict(even >= 0.95)
                )
            } else {
                String::new()
            }
        );
    }
    Ok(())
}

/// How packets were spaced, in us.
struct Spacing {
    median: f64,
    /// Median distance from the ideal.
    error: f64,
    /// Share within 10 % of the ideal.
    even: f64,
    p99: f64,
    p999: f64,
}

impl Spacing {
    fn of(mut gaps: Vec<f64>) -> Spacing {
        let ideal = PAYLOAD * 8.0 / RATE * 1e6;
        let mut errors: Vec<f64> = gaps.iter().map(|gap| (gap - ideal).abs()).collect();
        let even = errors.iter().filter(|error| **error <= 0.1 * ideal).count() as f64
            / errors.len() as f64;
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

/// The gaps between the packets that `program` sends, as the receiving device's kernel stamped them.
fn capture(
    stage: &Stage,
    program: &str,
    sender: &[&str],
    server: Option<(&[&str], u16)>,
) -> Result<Vec<f64>> {
    let file = std::env::temp_dir().join(format!("evlbi-bench-{}.pcap", std::process::id()));
    let mut listening = None;
    if let Some((command, port)) = server {
        let child = stage
            .receiver(command[0])
            .args(&command[1..])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", command[0]))?;
        listening = Some(child);
        wait_for_listener(port)?;
    }
    let mut dump = stage
        .receiver("tcpdump")
        .args([
            "-i",
            stage.receiving_device(),
            "--nano",
            "-s",
            "60",
            "-B",
            "65536",
            "-w",
        ])
        .arg(&file)
        .args(["-c", &PACKETS.to_string(), "udp and greater 1400"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start tcpdump")?;
    std::thread::sleep(Duration::from_millis(500));
    let sent = stage
        .sender(program)
        .args(sender)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if let Some(mut server) = listening {
        let _ = server.kill();
        let _ = server.wait();
    }
    // Killed before it has its packets it loses what it holds back; so it is asked to end.
    let _ = Command::new("kill")
        .args(["-INT", &dump.id().to_string()])
        .status();
    dump.wait()?;
    sent.with_context(|| format!("cannot start {program}"))?;
    let text = Command::new("tcpdump")
        .args(["-tt", "-n", "--nano", "-r"])
        .arg(&file)
        .stderr(Stdio::null())
        .output()?;
    let _ = std::fs::remove_file(&file);
    let times: Vec<(u64, u64)> = String::from_utf8_lossy(&text.stdout)
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
