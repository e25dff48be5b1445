//! A live correlation with a wrong clock and hostile datagrams in addition to good stations.

use std::net::UdpSocket;

use anyhow::{Context, Result};
use evlbi_testkit::damage::bytes;
use rand::RngExt;

use super::Attack;
use super::program::{Ended, Program, count, tail};
use super::relay::numbered;
use super::scene::{LIMIT, Scene, wait_for};

pub const ATTACKS: &[Attack] = &[Attack {
    name: "live-clock-and-datagrams",
    target: "correlate --live",
    what: "one of three stations is an hour ahead; tiny and random datagrams arrive at all ports",
    expects: "the good baseline has all its weight; the station is named; status 1",
    run: live,
}];

/// Plan of five seconds of three stations in 25 datagrams each, which fit into the receivers' sockets.
const PLAN: &str = r#"
start = "2024-01-01T23:59:59Z"
duration = 5
sample_rate = 16000
correlation = 0.3
edv = 1
payload = 800
[[station]]
name = "Ef"
[[station]]
name = "Jb"
[[station]]
name = "On"
"#;

fn live(scene: &mut Scene) -> Result<()> {
    let right = scene.room.write("plan.toml", PLAN);
    let ahead = PLAN.replace("2024-01-01T23:59:59Z", "2024-01-02T00:59:59Z");
    let wrong = scene.room.write("ahead.toml", ahead);
    let here = "udp://127.0.0.1:0";
    let mut correlate = scene.start(&[
        "correlate",
        here,
        here,
        here,
        "--live",
        "--json",
        "--channels",
        "64",
        "--wait",
        "10s",
    ])?;
    let addresses = correlate.addresses(3)?;
    let stranger = UdpSocket::bind("127.0.0.1:0")?;
    for address in &addresses {
        for number in 0..8 {
            stranger.send_to(&numbered(number, b"x"), address)?;
        }
    }
    let sources = [
        format!("sky:{right}/Ef"),
        format!("sky:{right}/Jb"),
        format!("sky:{wrong}/On"),
    ];
    let mut senders = Vec::new();
    for (source, address) in sources.iter().zip(&addresses) {
        let to = format!("udp://{address}");
        senders.push(scene.start(&["send", source, "--to", &to, "--rate", "400k", "--json"])?);
    }
    for address in addresses.iter().cycle().take(90) {
        let length = scene.random.random_range(0..1500);
        stranger.send_to(&bytes(&mut scene.random, length), address)?;
    }
    let sent: Vec<Ended> = senders
        .into_iter()
        .map(|sender| sender.end(LIMIT))
        .collect::<Result<_>>()?;
    let sent: Vec<u64> = sent
        .iter()
        .map(|ended| count(&ended.json()?, "sent"))
        .collect::<Result<_>>()?;
    for (stream, sent) in sent.iter().enumerate() {
        wait_for("all arrives", LIMIT, || {
            (correlate.arrived(stream) >= sent + 38).then_some(())
        })?;
    }
    scene.memory(&correlate, 2048);
    let ended = stop(correlate)?;
    let said = tail(&ended.stderr);
    scene.same("status", ended.status.code().unwrap_or(-1), 1);
    scene.expect(ended.is_orderly(), said.clone());
    scene.expect(
        said.contains("On"),
        format!("the station is not named: {said}"),
    );
    let result = ended.json()?;
    let weight = result["baselines"][0]["weight"]
        .as_f64()
        .context("no weight")?;
    scene.expect(
        weight > 0.9,
        format!("weight {weight}, expected more than 0.9"),
    );
    for (stream, sent) in sent.iter().enumerate() {
        let counts = &result["streams"][stream];
        scene.same("unique of a station", count(counts, "unique")?, *sent);
        scene.same("lost of a station", count(counts, "lost")?, 0);
    }
    let right = &result["streams"][0]["reason"];
    scene.expect(
        right.is_null(),
        format!("a good station has a reason: {right}"),
    );
    scene.note(format!("weight {weight:.3}, {sent:?} datagrams"));
    Ok(())
}

/// Stops the correlation, which still reads what its sockets hold.
fn stop(correlate: Program) -> Result<Ended> {
    correlate.ask(r#"{"do":"stop"}"#)?;
    correlate.end(LIMIT)
}
