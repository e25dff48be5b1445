//! Failures are reported and set the exit status; every error helps the user.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::live::support::{Recv, ask, evlbi, send, try_send};
use crate::result::{brief, number};
use evlbi_testkit::address::deaf;
use evlbi_testkit::buffer::fit;
use evlbi_testkit::by_hand::{FRAME, Stream, frames};
use evlbi_testkit::result::assert_numbers;
use evlbi_testkit::{Room, Running, limit, until};
use serde_json::Value;

/// Data that arrived and were not recorded are reported. A refused sender of frames is named, with a remedy.
#[test]
fn unrecorded_data_are_reported() {
    let recv = Recv::start("udp://127.0.0.1:0", Path::new("null"), &[]);
    let stream = Stream::to(recv.address());
    stream.send(0, 0..40);
    let rival = Stream::to(recv.address());
    for frame in 40..80 {
        stream.send(0, frame..frame + 1);
        rival.send(1_000_000, frame..frame + 1);
    }
    let received = recv.end_after(120);
    assert_eq!(received.status.code(), Some(1));
    let said = &received.stderr;
    let name = format!("{} (40 datagrams)", rival.socket.local_addr().unwrap());
    assert!(said.contains(&name) && said.contains("--source"), "{said}");

    let recv = Recv::start("pudp://127.0.0.1:0", Path::new("null"), &[]);
    let stream = Stream::to(recv.address());
    for number in 0..80 {
        let mut frame = stream.bytes(number..number + 1).to_vec();
        // Word 3, bits 16 to 25: a thread that starts when those of the stream are known.
        frame[14] = u8::from(number == 70);
        stream.raw(&frame);
    }
    let said = recv.end_after(80).stderr;
    assert!(
        said.contains("1 datagrams not recorded: their station, thread or time"),
        "{said}"
    );
}

/// A limit on file sizes (`ulimit -f`) does not end the program by a signal.
#[test]
fn a_recording_that_grows_too_long_is_counted() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    // The ring's memory, which counts as a file, exists by now.
    let count = fit(2000, 1, FRAME);
    let most = u64::from(count) * FRAME as u64 / 2;
    limit::file_size(recv.child.0.id(), most);
    let source = room.write("source.vdif", frames(count));
    send(&source, &recv.url(), &["--mtu", "9000"]);
    let received = recv.end_after(count.into());
    let result = received.result();
    assert!(!received.status.success());
    let written = number(&result["files"][0], "bytes");
    let unwritten = number(&result, "unwritten_bytes");
    assert_numbers(&result, &[("frames", count.into()), ("lost", 0)]);
    assert!(written <= most, "{}", brief(&result));
    assert_eq!(written + unwritten, u64::from(count) * FRAME as u64);
    assert_eq!(fs::metadata(&out).unwrap().len(), written);
}

#[track_caller]
fn refused(args: &[&str], says: &str) {
    let output = evlbi().args(args).arg("--json").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(stderr.contains(says), "{args:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(
        stderr.matches("os error").count() <= 1,
        "reported twice: {stderr}"
    );
}

#[test]
fn errors_suggest_a_remedy() {
    let room = Room::new();
    let path = |name: &str| room.path(name);
    let short = path("short.vdif");
    // Ten frames of one second: the rate cannot be detected.
    fs::write(&short, frames(10)).unwrap();
    let kept = path("kept.vdif");
    fs::write(&kept, b"an older recording").unwrap();
    refused(&["demo", "--duration", "0s"], "must be longer than 0");
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = format!("udp://{}", taken.local_addr().unwrap());
    let to = "udp://127.0.0.1:9";
    refused(&["send", &short, "--to", "127.0.0.1:9"], "udp://HOST:PORT");
    refused(
        &["send", &short, "--to", "udp://127.0.0.1:0"],
        "name the port",
    );
    refused(&["send", &path("none"), "--to", to, "--max"], "cannot open");
    refused(&["send", &path(""), "--to", to, "--max"], "is a directory");
    refused(&["send", &short, "--to", to], "--frame-rate");
    let raw = path("raw.bin");
    fs::write(&raw, [7; 10_000]).unwrap();
    refused(&["send", &raw, "--to", to], "give --rate or --max");
    refused(
        &["send", &short, "--to", to, "--max", "--shed", "some"],
        "every:N",
    );
    refused(&["send", &short, "--to", to, "--max", "--mtu", "20"], "MTU");
    refused(&["recv", &taken, "--to", &kept, "--force"], "in use");
    let here = "udp://127.0.0.1:0";
    refused(&["recv", here, "--to", &kept], "--force");
    refused(&["recv", here, "--to", &path("{station}.vdif")], "--force");
    let both = path("new.vdif");
    refused(
        &["recv", here, "--to", &both, "--gaps", &both],
        "written twice",
    );
    refused(&["recv", here, "--to", "null", "--ring", "1MiB"], "16 MiB");
    refused(
        &[
            "recv", here, "--to", "null", "--ring", "64MiB", "--window", "64MiB",
        ],
        "a third larger",
    );
    for frame in ["0", "7", "16"] {
        refused(
            &["recv", here, "--to", "null", "--frame", frame],
            "multiple",
        );
    }
    assert_eq!(fs::read(&kept).unwrap(), b"an older recording");
    refused(
        &[
            "recv",
            "udp://127.0.0.1:0",
            "--to",
            &path("no/such/folder.vdif"),
        ],
        "cannot record to",
    );
    refused(
        &["recv", "udp://127.0.0.1:0", "--to", &path("{colour}.none")],
        "{station}",
    );
    let (_deaf, address) = deaf();
    let tcp = try_send(&short, &format!("tcp://{address}"), &[]);
    assert!(String::from_utf8_lossy(&tcp.stderr).contains("cannot connect"));
}

/// A reader that reads nothing does not delay the sender beyond its end.
#[test]
fn a_stalled_reader_does_not_stall_the_sender() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = format!("tcp://{address}");
    let control = Room::new();
    let mut command = evlbi();
    command.args(["send", "pattern:8032", "--to", &to, "--max", "--json"]);
    command.args(["--control", &control.path("socket")]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut sender = Running(child);
    // Several times in a row: at first it waits only for short moments.
    let mut looks = 0;
    until("the sender waits for room", || {
        looks = if waits_for_room(&sender, address) {
            looks + 1
        } else {
            0
        };
        looks == 20
    });
    assert_eq!(ask(&control.path("socket"), r#"{"do":"stop"}"#), "done");
    assert!(sender.wait().success());
    let result: Value = serde_json::from_reader(sender.0.stdout.take().unwrap()).unwrap();
    assert!(number(&result, "not_sent") > 0, "{}", brief(&result));
    assert_eq!(
        number(&result, "offered"),
        number(&result, "sent") + number(&result, "not_sent")
    );
    // All sent data wait in the connection.
    let (mut connection, _) = listener.accept().unwrap();
    let taken = std::io::copy(&mut connection, &mut std::io::sink()).unwrap();
    assert_eq!(taken, number(&result, "bytes"));
    // Its own time ends it, too.
    let mut command = evlbi();
    command.args(["send", "pattern:8032", "--to", &to, "--max", "--json"]);
    command.args(["--duration", "1s"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut sender = Running(child);
    assert!(sender.wait().success());
    let result: Value = serde_json::from_reader(sender.0.stdout.take().unwrap()).unwrap();
    assert_eq!(
        number(&result, "offered"),
        number(&result, "sent") + number(&result, "not_sent")
    );
}

/// Whether the sending thread sleeps, and its kernel only probes for room at the reader.
fn waits_for_room(sender: &Running, to: SocketAddr) -> bool {
    let folder = format!("/proc/{}/task", sender.0.id());
    let sleeps = fs::read_dir(folder).unwrap().flatten().any(|task| {
        let state = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        state.contains("(transmit) S ")
    });
    let probes = |fields: &[String]| fields[2] == in_table(to) && fields[5].starts_with("04:");
    sleeps && connections().iter().any(|fields| probes(fields))
}

/// Whether a connection over IPv4 was accepted and all its data were read: it has an inode, and its queue is empty.
fn is_read(here: SocketAddr, there: SocketAddr) -> bool {
    connections().iter().any(|fields| {
        fields[1..3] == [in_table(here), in_table(there)]
            && fields[4].ends_with(":00000000")
            && fields[9] != "0"
    })
}

/// The fields of the kernel's table of connections over IPv4.
fn connections() -> Vec<Vec<String>> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    table.lines().map(fields).collect()
}

/// An endpoint of a connection in the form of that table.
fn in_table(end: SocketAddr) -> String {
    match end {
        SocketAddr::V4(end) => format!("{:08X}:{:04X}", end.ip().to_bits().to_be(), end.port()),
        SocketAddr::V6(_) => unreachable!("an address of IPv4"),
    }
}

#[test]
fn the_end_of_a_connection_is_distinguished_from_its_failure() {
    let room = Room::new();
    for resets in [false, true] {
        let out = room.path(&format!("{resets}.vdif"));
        let recv = Recv::start("tcp://127.0.0.1:0", Path::new(&out), &[]);
        let mut connection = TcpStream::connect(recv.address()).unwrap();
        connection.write_all(&frames(20)).unwrap();
        if resets {
            // A reset discards unread data.
            until("all is read", || {
                is_read(recv.address(), connection.local_addr().unwrap())
            });
            socket2::SockRef::from(&connection)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        }
        drop(connection);
        let received = recv.end();
        let result = received.result();
        assert_eq!(received.status.success(), !resets);
        assert_eq!(result["ended"], if resets { "failed" } else { "closed" });
        assert_eq!(result["error"].is_string(), resets);
        assert_eq!(number(&result, "frames"), 20);
    }
}
