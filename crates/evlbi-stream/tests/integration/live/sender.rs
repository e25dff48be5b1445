//! End of a sender, split of frames, and limits of its pattern.

use std::time::Duration;

use evlbi_core::packetise::Rule;
use evlbi_net::run::Run;
use evlbi_stream::send::Burst::{Auto, Fixed};
use evlbi_stream::send::{self as sender, Pace, SendOptions};
use evlbi_testkit::address::deaf;
use evlbi_testkit::result::{assert_numbers, number};
use evlbi_testkit::{Room, buffer, until, until_some};
use evlbi_wire::time::FrameRate;
use evlbi_wire::vtp;

use super::support::{HERE, Recv, send, sending};
use crate::warnings::Warnings;

fn rate(text: &str) -> Pace {
    Pace::Rate(text.parse().unwrap())
}

#[test]
fn a_sender_ends_on_a_whole_frame() {
    let (_socket, to) = deaf();
    let to = format!("udp://{to}");
    for burst in [Fixed(1), Fixed(3), Fixed(8), Auto] {
        let sent = send(&SendOptions {
            mtu: Some(1500),
            pace: rate("10M"),
            duration: Some(Duration::from_millis(50)),
            burst,
            ..sending("pattern:8032", &to)
        });
        // A frame takes 6.4 ms in eight datagrams: the end is within one.
        let (offered, frames) = (number(&sent, "offered"), number(&sent, "frames"));
        assert_eq!(offered, frames * 8, "{burst:?}");
    }
}

#[test]
fn bytes_are_cut_as_jive5ab_cuts_them() {
    let room = Room::new();
    // A length that 8000 divides, and 8960 does not.
    let source = room.write("in", [0xa5; 160_000]);
    let (_socket, to) = deaf();
    // A start time that has passed means now.
    let sent = send(&SendOptions {
        mtu: Some(9000),
        cut: Rule::Plain,
        pace: rate("1G"),
        start: Some("2020-01-01T00:00:00Z".parse().unwrap()),
        ..sending(&source, &format!("udp://{to}"))
    });
    let data = [
        ("datagram_data", 8960),
        ("offered", 18),
        ("padded_bytes", 18 * 8960 - 160_000),
    ];
    assert_numbers(&sent, &data);
}

/// A sender without a rate option never floods a network.
#[test]
fn a_pattern_needs_a_rate_or_the_maximum() {
    let (_socket, to) = deaf();
    let to = format!("udp://{to}");
    let refused = SendOptions {
        pace: Pace::RealTime,
        ..sending("pattern:1032", &to)
    };
    let error = sender::send(&refused, &Run::silent()).err().unwrap();
    assert_eq!(error.to_string(), "pattern:1032 has no rate of its own");
    for options in [
        SendOptions {
            frame_rate: FrameRate::new(100),
            ..refused.clone()
        },
        SendOptions {
            pace: rate("1M"),
            ..refused.clone()
        },
        SendOptions {
            pace: Pace::Max,
            ..refused
        },
    ] {
        send(&SendOptions {
            duration: Some(Duration::from_millis(1)),
            ..options
        });
    }
}

/// Frame numbers restart with each second, wherever the pattern is.
#[test]
fn a_pattern_of_any_frame_rate_is_verified() {
    for frame_rate in [7, 100] {
        let recv = Recv::start(HERE, "check");
        let room_for = buffer::holds(1032 + vtp::HEADER_LEN);
        // A sender that does not run before its end sends nothing.
        let count = until_some("it sends", || {
            let sent = send(&SendOptions {
                frame_rate: Some(FrameRate::new(frame_rate).unwrap()),
                pace: rate("40M"),
                duration: Some(Duration::from_millis(40)),
                ..sending("pattern:1032", &recv.url())
            });
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

/// The first refusal by a closed port is reported while the sender runs, and no later one; it continues, and counts all of them.
#[test]
fn a_sender_to_nobody_warns_once_and_continues() {
    let (run, warnings) = Warnings::of_run();
    let sending = sender::send(
        &SendOptions {
            pace: rate("8M"),
            ..sending("pattern:1032", "udp://127.0.0.1:9")
        },
        &run,
    );
    let sending = sending.unwrap();
    until("it warns", || !warnings.read().is_empty());
    let sent = || sending.seen.status().counts.count("sent");
    let before = sent();
    until("it continues", || sent() > before + 10);
    sending.stop();
    let result = serde_json::to_value(sending.join().unwrap()).unwrap();
    assert!(number(&result["socket"], "refused") > 0, "{result}");
    let warnings = warnings.read();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with("nobody listens at udp://127.0.0.1:9: "),
        "{warnings:?}"
    );
}
