//! Streams that are correlated live.

use std::time::Duration;

use anyhow::{Context, Result};
use evlbi_testkit::Room;
use serde_json::Value;

use super::picture::{Curve, Picture, Style};
use super::programs::{Fields, Listening, evlbi, json_of, output_of, started};
use super::record::{Aim, Record, Scene};

pub const SCENES: &[Scene] = &[Scene {
    name: "live-fringe",
    shows: "Two stations over midnight, one of them late, are correlated live: nothing is late, and each integration has its fringe.",
    needs: &[],
    stall: Duration::from_millis(100),
    play: fringe,
}];

const PLAN: &str = r#"
start = "2024-01-01T23:59:59Z"
duration = 4.5
sample_rate = 8e6
correlation = 0.3
edv = 1
[[station]]
name = "Ef"
[[station]]
name = "Jb"
delay = [1e-6]
"#;

fn fringe(record: &mut Record) -> Result<()> {
    let room = Room::new();
    let plan = room.write("plan.toml", PLAN);
    let mut command = evlbi()?;
    command
        .args([
            "correlate",
            "udp://127.0.0.1:0",
            "udp://127.0.0.1:0",
            "--live",
            "--json",
        ])
        .args([
            "--channels",
            "128",
            "--freq",
            "4.9G",
            "--integration",
            "500ms",
        ])
        .args([
            "--delay", "0", "--delay", "1us", "--wait", "20s", "--idle", "10s",
        ]);
    let correlator = Listening::start(&mut command, 2)?;
    let senders: Vec<_> = ["Ef", "Jb"]
        .into_iter()
        .zip(&correlator.addresses)
        .enumerate()
        .map(|(late, (station, address))| {
            let mut send = evlbi()?;
            send.args([
                "send",
                &format!("sky:{plan}/{station}"),
                "--to",
                &format!("udp://{address}"),
            ])
            .args(["--realtime", "--mtu", "9000", "--json"]);
            std::thread::sleep(Duration::from_millis(200 * late as u64));
            started(&mut send)
        })
        .collect::<Result<_>>()?;
    let sent: Vec<Value> = senders
        .into_iter()
        .map(|sender| json_of(&output_of(sender)?))
        .collect::<Result<_>>()?;
    let said = correlator.finish()?;
    let lines: Vec<Value> = said
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let (last, periods) = lines
        .split_last()
        .context("the correlator printed nothing")?;
    record.figure(
        "integrations of 0.5 s in 4.5 s",
        "",
        periods.len() as f64,
        Aim::AtLeast(8.0),
    );
    let mut amplitudes = Vec::new();
    let (mut lowest, mut farthest, mut lost): (f64, f64, f64) = (f64::INFINITY, 0.0, 0.0);
    for (place, period) in periods.iter().enumerate() {
        let baseline = &period["baselines"][0];
        amplitudes.push((place as f64 * 0.5, baseline["amplitude"].real("corrected")?));
        farthest = farthest.max(baseline.real("delay_s")?.abs());
        for part in baseline.list("lost")? {
            lost += part.as_f64().unwrap_or(1.0);
        }
        // The first and the last may be incomplete integrations.
        if place > 0 && place + 1 < periods.len() {
            lowest = lowest.min(baseline.real("weight")?);
        }
    }
    let off = amplitudes
        .iter()
        .map(|(_, amplitude)| (amplitude - 0.3).abs())
        .fold(0.0, f64::max);
    record.figure("amplitude: farthest from 0.3", "", off, Aim::AtMost(0.01));
    record.figure(
        "residual delay, at most",
        "ns",
        farthest * 1e9,
        Aim::AtMost(2.0),
    );
    record.figure(
        "lowest weight of a whole integration",
        "",
        lowest,
        Aim::AtLeast(0.999),
    );
    record.figure("lost of all integrations", "", lost, Aim::AtMost(0.0));
    for (stream, sent) in last.list("streams")?.iter().zip(&sent) {
        record.same(
            "what came is what was sent",
            stream.count("unique")?,
            sent.count("sent")?,
        );
        record.same("nothing is lost", stream.count("lost")?, 0);
        record.figure(
            "frames that came too late",
            "",
            stream.count("late_frames")? as f64,
            Aim::AtMost(0.0),
        );
    }
    record.pictures.push(Picture {
        title: "Amplitude of the fringe, integration by integration".to_owned(),
        x: "s",
        y: "correlation",
        curves: vec![Curve::new("amplitude", Style::Dots, amplitudes)],
        levels: vec![(0.3, "of the sky".to_owned())],
        ..Picture::default()
    });
    Ok(())
}
