//! A stop request to `evlbi send`.

use std::process::Stdio;

use evlbi_testkit::address::deaf;
use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Room, Running, until};
use nix::sys::signal::Signal;

use crate::live::support::{ask, evlbi};
use crate::result::number;

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
        let result = read(&said);
        assert_schema(&result, "evlbi.send/1");
        assert_eq!(number(&result, "offered"), number(&result, "frames") * 8);
    }
}
