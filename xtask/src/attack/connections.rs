//! `recv tcp://` with connections from unknown senders.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use anyhow::{Context, Result};
use evlbi_testkit::damage::bytes;
use rand::RngExt;

use super::Attack;
use super::program::{Messages, count};
use super::recording::{MEMORY, start};
use super::relay::Stream;
use super::scene::{LIMIT, Scene, wait_for};

pub const ATTACKS: &[Attack] = &[Attack {
    name: "tcp-strangers",
    target: "recv tcp",
    what: "connections that close, stay idle, close half or send a probe before the sender's; garbage on others beside it",
    expects: "file = stream, status 0",
    run: strangers,
}];

fn strangers(scene: &mut Scene) -> Result<()> {
    let stream = Stream::new(0)?;
    let out = scene.room.path("out.vdif");
    let mut recv = start(scene, "tcp", &out, Messages::Kept)?;
    let to = recv.address()?;
    let mut idle = Vec::new();
    for number in 0..scene.random.random_range(6..20) {
        let mut connection = TcpStream::connect(to)?;
        match number % 4 {
            0 => drop(connection),
            1 => idle.push(connection),
            2 => {
                let length = scene.random.random_range(1..1500);
                connection.write_all(&bytes(&mut scene.random, length))?;
                if length % 2 == 0 {
                    idle.push(connection);
                }
            }
            _ => {
                connection.shutdown(Shutdown::Write)?;
                idle.push(connection);
            }
        }
    }
    let source = scene.room.write("source.vdif", &stream.frames);
    let url = format!("tcp://{to}");
    let send = ["send", &source, "--to", &url, "--rate", "4M", "--json"];
    let sender = scene.start(&send)?;
    wait_for("data arrive", LIMIT, || {
        let status = recv.status().ok()?;
        (status["receiving"][0]["bytes"].as_u64()? > 0).then_some(())
    })?;
    for _ in 0..10 {
        // It may be refused: the receiver has its stream.
        if let Ok(mut connection) = TcpStream::connect(to) {
            let length = scene.random.random_range(1..20_000);
            let _ = connection.write_all(&bytes(&mut scene.random, length));
            idle.push(connection);
        }
    }
    let sender = sender.end(LIMIT)?.json()?;
    scene.same(
        "bytes sent",
        count(&sender, "bytes")?,
        stream.frames.len() as u64,
    );
    if recv.is_running() {
        scene.memory(&recv, MEMORY);
    }
    // It ends with its connection.
    let ended = recv.end(LIMIT)?;
    scene.same("status", ended.status.code().unwrap_or(-1), 0);
    scene.expect(ended.is_orderly(), ended.stderr.clone());
    let recorded = std::fs::read(&out).context(out)?;
    scene.expect(
        recorded == stream.frames,
        format!(
            "the file ({} bytes) is not the stream ({})",
            recorded.len(),
            stream.frames.len()
        ),
    );
    scene.note(format!("{} bytes", recorded.len()));
    drop(idle);
    Ok(())
}
