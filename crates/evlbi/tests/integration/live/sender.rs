//! `evlbi send`: where it ends, how it cuts, what its pattern can be.

use std::process::Stdio;

use evlbi_testkit::address::deaf;
use evlbi_testkit::result::assert_numbers;
use evlbi_testkit::{Room, Running, buffer, until, until_some};
use evlbi_wire::vtp;
use nix::sys::signal::Signal;

use crate::live::support::{Recv, ask, evlbi, send};
use crate::result::number;

#[test]
fn a_sender_ends_on_a_whole_frame() {
    let (_socket, to) = deaf();
    let to = format!("udp://{to}");
    for burst in ["1", "3", "8", "auto"] {
        let more = [
            "--mtu",
            "1500",
            "--rate",
            "10M",
            "--duration",
            "50ms",
            "--burst",
            burst,
        ];
        let sent = send("pattern:8032", &to, &more);
        // A frame takes 6.4 ms in eight datagrams: the end is amid one.
        let (offered, frames) = (number(&sent, "offered"), number(&sent, "frames"));
        assert_eq!(offered, frames * 8, "bursts of {burst}");
    }
}

#[test]
fn a_sender_that_is_asked_to_end_does_so_on_a_whole_frame_with_its_result() {
    let room = Room::new();
    let (_socket, to) = deaf();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let control = room.path(signal.as_str());
        let child = evlbi()
            .args(["send", "pattern:8032", "--to", &format!("udp://{to}")])
            .args([
                "--mtu",
                "1500",
                "--rate",
                "1M",
                "--json",
                "--control",
                &control,
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Running(child);
        until("it sends", || {
            std::os::unix::net::UnixStream::connect(&control).is_ok()
                && ask(&control, r#"{"do":"status"}"#)["status"]["sending"]["sent"].as_u64()
                    > Some(0)
        });
        let status = ask(&control, r#"{"do":"status"}"#);
        let sending = &status["status"]["sending"];
        assert_eq!(sending["rate_asked_bps"], 1_000_000);
        assert!(
            sending["behind_s"].is_number() && sending["slips"].is_number(),
            "{sending}"
        );
        child.signal(signal);
        let mut said = String::new();
        let mut stdout = child.0.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut stdout, &mut said).unwrap();
        assert_eq!(child.wait().code(), Some(0), "{signal:?}");
        let result = serde_json::from_str(&said).unwrap();
        assert_eq!(number(&result, "offered"), number(&result, "frames") * 8);
    }
}

#[test]
fn bytes_are_cut_as_jive5ab_cuts_them() {
    let room = Room::new();
    // A length that 8000 divides, and 8960 does not.
    let source = room.write("in", [0xa5; 160_000]);
    let (_socket, to) = deaf();
    // A start that is over is now.
    let more = [
        "--mtu",
        "9000",
        "--cut",
        "plain",
        "--rate",
        "1G",
        "--start",
        "2020-01-01T00:00:00Z",
    ];
    let sent = send(&source, &format!("udp://{to}"), &more);
    let data = [
        ("datagram_data", 8960),
        ("offered", 18),
        ("padded_bytes", 18 * 8960 - 160_000),
    ];
    assert_numbers(&sent, &data);
}

/// Numbers of frames begin again with the second, wherever the pattern is.
#[test]
fn a_pattern_of_any_frame_rate_is_verified() {
    for rate in ["7", "100"] {
        let recv = Recv::start("udp://127.0.0.1:0", "check".as_ref(), &[]);
        let room_for = buffer::holds(1032 + vtp::HEADER_LEN);
        let more = ["--frame-rate", rate, "--rate", "40M", "--duration", "40ms"];
        // A sender that does not run until its end is over sends nothing.
        let count = until_some("it sends", || {
            let sent = send("pattern:1032", &recv.url(), &more);
            Some(number(&sent, "sent")).filter(|count| *count > 0)
        });
        assert!(count <= room_for as u64, "{count} of {room_for}");
        let result = recv.finish_after(count);
        assert_numbers(&result, &[("unique", count), ("lost", 0)]);
        let check = &result["check"];
        assert_eq!(
            (number(check, "good"), number(check, "corrupted")),
            (count, 0)
        );
    }
}
