//! A responder under hostile connections and datagrams, with honest tests during and after them.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use evlbi_testkit::damage::{bytes, damage, pick};
use evlbi_wire::probe::{Kind, Probe};
use nix::sys::signal::Signal;
use rand::RngExt;
use serde_json::Value;

use super::Attack;
use super::program::{END, Ended, count, read_some, tail, well};
use super::scene::{LIMIT, Scene};

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "respond-connections",
        target: "respond",
        what: "garbage, damaged messages of the protocol, halves of them, and 100 connections that stay",
        expects: "the next probe works, lost 0; no panic",
        run: connections,
    },
    Attack {
        name: "respond-datagrams",
        target: "respond",
        what: "random and damaged datagrams at the ports of a running test",
        expects: "the test counts its own datagrams alone, lost 0; no panic",
        run: datagrams,
    },
];

const CORPUS: &str = "fuzz/corpus/control";
/// Datagrams of an honest test: they fit into a socket.
const HONEST: u64 = 100;
/// Ports of tests.
const PORTS: std::ops::RangeInclusive<u16> = 42_000..=42_007;

/// Returns messages of the control protocol.
fn messages() -> Result<Vec<Vec<u8>>> {
    let entries = std::fs::read_dir(CORPUS).context(CORPUS)?;
    let mut paths: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    paths.sort();
    paths.iter().map(|path| Ok(std::fs::read(path)?)).collect()
}

/// Returns a loopback address that belongs to the caller, so that no other program has the ports of tests there.
fn own_address() -> Ipv4Addr {
    static CALLS: AtomicU8 = AtomicU8::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let [.., middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 10 + call % 50, middle, low.max(1))
}

/// Runs an honest test; returns the counts of its datagrams.
fn probe(scene: &mut Scene, responder: SocketAddr, rate: &str) -> Result<Value> {
    let (to, count) = (responder.to_string(), HONEST.to_string());
    let probe = scene.start(&[
        "probe", "udp", &to, "--rate", rate, "--size", "100", "--count", &count, "--json",
    ])?;
    let ended: Ended = probe.end(LIMIT)?;
    well(&ended).context("an honest probe")?;
    Ok(ended.json()?["points"][0].take())
}

fn expect_whole(scene: &mut Scene, point: &Value) -> Result<()> {
    scene.same("sent by the probe", count(point, "sent")?, HONEST);
    scene.same("unique of the probe", count(point, "unique")?, HONEST);
    scene.same("lost by the probe", count(point, "lost")?, 0);
    Ok(())
}

fn connections(scene: &mut Scene) -> Result<()> {
    let messages = messages()?;
    let mut responder = scene.start(&["respond", "--bind", "127.0.0.1:0"])?;
    let address = responder.address()?;
    let mut kept = Vec::new();
    for number in 0..100 {
        let mut connection = TcpStream::connect(address)?;
        connection.set_read_timeout(Some(Duration::from_millis(20)))?;
        let message = pick(&mut scene.random, &messages).clone();
        let message = match number % 5 {
            0 => Vec::new(),
            1 => message[..message.len() / 2].to_vec(),
            2 => message,
            3 => damage(&mut scene.random, &message),
            _ => {
                let length = scene.random.random_range(1..5000);
                bytes(&mut scene.random, length)
            }
        };
        // With its length before it, as messages are sent, or without.
        if scene.random.random_bool(0.5) {
            let length = message.len() as u32;
            let _ = connection.write_all(&length.to_be_bytes());
        }
        let _ = connection.write_all(&message);
        if number % 5 == 2 {
            read_some(&mut connection);
        }
        kept.push(connection);
    }
    let point = probe(scene, address, "10M")?;
    expect_whole(scene, &point)?;
    drop(kept);
    let point = probe(scene, address, "10M")?;
    expect_whole(scene, &point)?;
    scene.memory(&responder, 256);
    responder.signal(Signal::SIGTERM);
    let ended = responder.end(END)?;
    scene.expect(ended.is_orderly(), tail(&ended.stderr));
    scene.note("two probes whole");
    Ok(())
}

fn datagrams(scene: &mut Scene) -> Result<()> {
    let host = own_address();
    let (bind, ports) = (
        format!("{host}:0"),
        format!("{}-{}", PORTS.start(), PORTS.end()),
    );
    let mut responder = scene.start(&["respond", "--bind", &bind, "--ports", &ports])?;
    let address = responder.address()?;
    let honest = Probe {
        kind: Kind::Data,
        key: scene.random.random(),
        sequence: 5,
        departed: 1,
    };
    let honest = honest.to_bytes();
    let hostile: Vec<Vec<u8>> = (0..64)
        .map(|number| match number % 2 {
            0 => damage(&mut scene.random, &honest),
            _ => {
                let length = scene.random.random_range(0..200);
                bytes(&mut scene.random, length)
            }
        })
        .collect();
    let is_over = AtomicBool::new(false);
    let point = std::thread::scope(|scope| {
        scope.spawn(|| {
            let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) else {
                return;
            };
            for datagram in hostile.iter().cycle() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                for port in PORTS {
                    // Usually nothing listens there.
                    let _ = socket.send_to(datagram, (host, port));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        // Half a second.
        let point = probe(scene, address, "160k");
        is_over.store(true, Ordering::Relaxed);
        point
    })?;
    expect_whole(scene, &point)?;
    scene.note(format!("foreign {}", count(&point, "foreign")?));
    scene.memory(&responder, 256);
    responder.signal(Signal::SIGTERM);
    let ended = responder.end(END)?;
    scene.expect(ended.is_orderly(), tail(&ended.stderr));
    Ok(())
}
