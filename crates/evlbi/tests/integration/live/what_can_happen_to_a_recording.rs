//! The rows of the table *What can happen to a recording* in the documentation.

use std::fs;
use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::path::Path;

use evlbi_testkit::{Room, until};
use evlbi_wire::pattern;
use nix::sys::signal::Signal;

use crate::live::support::{Recv, evlbi};
use crate::result::number;

const FRAME: usize = 1032;

fn frames() -> Vec<u8> {
    pattern::frames(FRAME, 1_700_000_000, pattern::frame_rate(25_600), 20).unwrap()
}

fn send(recv: &Recv, frames: &[u8]) {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (number, frame) in frames.chunks(FRAME).enumerate() {
        let datagram = [&(number as u64).to_le_bytes()[..], frame].concat();
        sender.send_to(&datagram, recv.address()).unwrap();
    }
}

/// Runs a receiver that cannot record there, and returns what it says.
#[track_caller]
fn refused(to: &str) -> String {
    let receive = ["recv", "udp://127.0.0.1:0", "--ring", "64MiB", "--to", to];
    let output = evlbi().args(receive).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

/// What has arrived is in the file while the receiver runs and after `kill -9`, with the gaps and the result of that moment. A
/// second receiver is refused while the first one runs, takes another name after that was killed, and no finished file is lost.
#[test]
fn kill_9_and_a_second_receiver_with_the_same_name() {
    let room = Room::on_disk();
    let out = room.path("out.vdif");
    let mut first = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    let all = frames();
    send(&first, &all);
    until("all is in the file", || {
        room.read("out.vdif").len() == all.len()
    });
    until("the result of this moment", || {
        let text = fs::read(room.path("out.vdif.result.json")).unwrap_or_default();
        let result: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        result["finished"] == false && result["unique"] == 20
    });
    assert!(refused(&out).contains(&out));
    first.child.signal(Signal::SIGKILL);
    first.child.wait();
    assert!(room.read("out.vdif") == all);
    assert!(room.json("out.vdif.gaps.json").is_object());
    let second = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    send(&second, &all);
    second.until_arrived(20);
    let received = second.stop();
    let next = room.path("out-2.vdif");
    let line = received.stderr.lines().next().unwrap();
    assert!(line.contains(&out) && line.contains(&next), "{line}");
    let result = received.result();
    assert_eq!(
        (&result["left_unfinished"], &result["to"]),
        (&out.clone().into(), &next.clone().into())
    );
    assert!(room.read("out.vdif") == all && room.read("out-2.vdif") == all);
    assert_eq!(room.json("out-2.vdif.result.json")["finished"], true);
    assert!(refused(&next).contains("--force"));
}

/// Two stations go to files of their own, even where a number looks like the characters of another; no file is overwritten.
#[test]
fn files_of_stations_are_not_overwritten_or_mixed() {
    let room = Room::new();
    fs::create_dir(room.path("010")).unwrap();
    fs::create_dir(room.path("10")).unwrap();
    room.write("010/x.vdif", b"kept");
    let mut stream = frames();
    for (number, frame) in stream.chunks_mut(FRAME).enumerate() {
        let station = if number % 2 == 0 { *b"01" } else { [10, 0] };
        frame[12..14].copy_from_slice(&station);
    }
    let to = room.path("{station}/x.vdif");
    let recv = Recv::start(
        "udp://127.0.0.1:0",
        Path::new(&to),
        &["--gaps", &room.path("gaps")],
    );
    send(&recv, &stream);
    recv.until_arrived(20);
    let received = recv.stop();
    assert_eq!(received.status.code(), Some(1));
    assert!(
        received.stderr.contains("010/x.vdif"),
        "{}",
        received.stderr
    );
    assert_eq!(room.read("010/x.vdif"), b"kept");
    assert_eq!(room.read("10/x.vdif").len(), 10 * FRAME);
    assert_eq!(
        number(&received.result(), "unwritten_bytes"),
        10 * FRAME as u64
    );
}

/// Connections that say nothing neither end a recording over TCP nor keep its sender out.
#[test]
fn a_port_scan() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("tcp://127.0.0.1:0", Path::new(&out), &[]);
    drop(TcpStream::connect(recv.address()).unwrap());
    let _idle = TcpStream::connect(recv.address()).unwrap();
    let all = frames();
    let mut sender = TcpStream::connect(recv.address()).unwrap();
    sender.write_all(&all).unwrap();
    drop(sender);
    assert_eq!(number(&recv.finish(), "bytes"), all.len() as u64);
    assert!(room.read("out.vdif") == all);
}

/// A receiver that receives nothing fails, and leaves no file that keeps the next one from its name.
#[test]
fn nothing_arrives() {
    let room = Room::new();
    let out = room.path("out.vdif");
    for _ in 0..2 {
        let mut command = evlbi();
        command.args([
            "recv",
            "udp://127.0.0.1:0",
            "--ring",
            "64MiB",
            "--duration",
            "1ms",
        ]);
        let output = command.args(["--to", &out]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("no data arrived"), "{said}");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(fs::read_dir(room.folder()).unwrap().count(), 0);
    }
    assert!(refused("-").contains("mkfifo"));
}
