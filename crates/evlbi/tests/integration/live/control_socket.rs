//! Control sockets (`--control`): status and changes of a run.

use std::path::Path;
use std::process::Stdio;

use evlbi_testkit::buffer::fit;
use evlbi_testkit::result::assert_numbers;
use evlbi_testkit::{Room, Running, until};
use evlbi_wire::pattern;
use serde_json::json;

use crate::live::support::{Recv, ask, evlbi};
use crate::result::number;

/// A receiver's status is that of the moment of the request, not of the last request or display.
#[test]
fn a_status_is_of_this_moment() {
    let count = fit(20, 1, 1032);
    let rate = pattern::frame_rate(64);
    let recv = Recv::start("udp://127.0.0.1:0", Path::new("check"), &[]);
    assert_eq!(recv.arrived(0), 0);
    until("it counts", || recv.status()["receiving"][0].is_object());
    assert_eq!(recv.status()["receiving"][0]["is_streaming"], false);
    assert_eq!(
        recv.status()["listening"],
        json!([recv.address().to_string()])
    );
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let frames = pattern::frames(1032, 1_700_000_000, rate, count).unwrap();
    for (number, frame) in (0..u64::from(count)).zip(frames.chunks(1032)) {
        let datagram = [&number.to_le_bytes()[..], frame].concat();
        socket.send_to(&datagram, recv.address()).unwrap();
        // The first ones, which may not be a stream yet, count too.
        recv.until_arrived(number + 1);
    }
    let status = recv.status();
    let counts = &status["receiving"][0];
    let count = u64::from(count);
    assert_numbers(
        counts,
        &[
            ("expected", count),
            ("received", count),
            ("unique", count),
            ("lost", 0),
            ("undecided", 0),
            ("foreign", 0),
            ("bytes", count * 1032),
        ],
    );
    let times: Vec<f64> = (0..5)
        .map(|_| recv.status()["time"].as_f64().unwrap())
        .collect();
    assert!(
        times.is_sorted_by(|before, after| before < after),
        "{times:?}"
    );
    let refused = recv.ask(r#"{"do":"change","rate":"1M"}"#);
    assert!(refused["refused"].as_str().unwrap().contains("no changes"));
    let refused = recv.ask("hello");
    assert!(
        refused["refused"]
            .as_str()
            .unwrap()
            .contains("unknown request")
    );
    let result = recv.finish_after(count);
    assert_eq!(result["ended"], "stopped");
}

/// A sender's status has the counts of its data, a change takes effect, and the sender ends on request.
#[test]
fn a_sender_is_watched_changed_and_stopped() {
    let room = Room::new();
    let to = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = format!("udp://{}", to.local_addr().unwrap());
    let mut command = evlbi();
    // At first too slow to send anything.
    command.args([
        "send",
        "pattern:1024",
        "--to",
        &to,
        "--rate",
        "10k",
        "--json",
    ]);
    command.args(["--control", &room.path("socket")]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut sender = Running(child);
    until("it listens", || {
        std::os::unix::net::UnixStream::connect(room.path("socket")).is_ok()
    });
    let sending = || ask(&room.path("socket"), r#"{"do":"status"}"#)["status"]["sending"].take();
    until("it sends", || sending()["sent"].as_u64() > Some(0));
    let changed = ask(
        &room.path("socket"),
        r#"{"do":"change","rate":"10M","shed":"every:10"}"#,
    );
    assert_eq!(changed, "done");
    until("a change is taken up", || number(&sending(), "shed") >= 10);
    let seen = sending();
    assert_eq!(seen["rate_asked_bps"], 10_000_000);
    assert_eq!(seen["shed_policy"], "every:10");
    assert_eq!(number(&seen, "bytes"), number(&seen, "sent") * 1024);
    assert_eq!(ask(&room.path("socket"), r#"{"do":"stop"}"#), "done");
    assert!(sender.wait().success());
    let result: serde_json::Value = serde_json::from_reader(stdout).unwrap();
    assert!(number(&result, "sent") >= number(&seen, "sent"));
    // Its last status stays next to the socket.
    let left: serde_json::Value = serde_json::from_str(&room.text("socket.last")).unwrap();
    for name in ["offered", "sent", "shed", "not_sent"] {
        assert_eq!(left["sending"][name], result[name], "{name}");
    }
    assert_eq!(
        number(&result, "offered"),
        number(&result, "sent") + number(&result, "shed") + number(&result, "not_sent")
    );
}

/// The same over TCP, where bytes are counted.
#[test]
fn a_status_over_tcp_counts_the_bytes() {
    let recv = Recv::start("tcp://127.0.0.1:0", Path::new("null"), &[]);
    let mut connection = std::net::TcpStream::connect(recv.address()).unwrap();
    std::io::Write::write_all(&mut connection, &[7; 20_000]).unwrap();
    until("the bytes are reported", || {
        recv.status()["receiving"][0]["bytes"] == 20_000
    });
    drop(connection);
    assert_eq!(recv.finish()["ended"], "closed");
}
