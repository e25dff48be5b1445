//! Streams between threads of one host, over Unix sockets.

use std::path::Path;

use evlbi_stream::send::SendOptions;
use evlbi_testkit::Room;
use evlbi_testkit::result::{assert_numbers, number};
use evlbi_wire::pattern;

use super::support::{Recv, SEED_OF_WHOLE_RUNS, send, sending};

const FRAME: usize = 8032;
/// More than sockets hold.
const FRAMES: u32 = 5000;

fn pattern(room: &Room) -> (String, Vec<u8>) {
    let rate = pattern::frame_rate(1250);
    let frames = pattern::frames(FRAME, 1_700_000_000, rate, FRAMES).unwrap();
    (room.write("in.vdif", &frames), frames)
}

fn url(room: &Room) -> String {
    format!("unix://{}", room.path("socket"))
}

/// Nothing is lost at any rate, and the recording ends with the sender.
#[test]
fn a_stream_arrives_whole_and_ends_with_its_sender() {
    let room = Room::new();
    let (source, frames) = pattern(&room);
    let url = url(&room);
    for to in ["check", &room.path("out.vdif")] {
        let recv = Recv::start(&url, to);
        let sent = send(&sending(&source, &url));
        let result = recv.finish();
        let all = u64::from(FRAMES);
        assert_numbers(&sent, &[("sent", all), ("not_sent", 0)]);
        assert_numbers(
            &result,
            &[
                ("unique", all),
                ("lost", 0),
                ("foreign", 0),
                ("ring_full", 0),
            ],
        );
        assert_eq!(result["ended"], "closed");
        assert!(
            result["sender"].as_str().unwrap().starts_with("process "),
            "{}",
            result["sender"]
        );
        match to {
            "check" => assert_numbers(&result["check"], &[("good", all), ("corrupted", 0)]),
            _ => assert!(room.read("out.vdif") == frames),
        }
        assert!(!Path::new(&room.path("socket")).exists());
    }
}

/// Data that the sender sheds are lost at the receiver.
#[test]
fn shed_data_are_lost_at_the_receiver() {
    let room = Room::new();
    let (source, _) = pattern(&room);
    let url = url(&room);
    let recv = Recv::start(&url, "check");
    let sent = send(&SendOptions {
        shed: "every:10".parse().unwrap(),
        seed: SEED_OF_WHOLE_RUNS,
        ..sending(&source, &url)
    });
    let result = recv.finish();
    let unique = number(&sent, "sent");
    assert_numbers(&sent, &[("offered", FRAMES.into()), ("not_sent", 0)]);
    assert_eq!(number(&sent, "shed"), u64::from(FRAMES / 10));
    // The last is shed, and its loss cannot be detected.
    let lost = u64::from(FRAMES / 10) - 1;
    assert_numbers(
        &result,
        &[("unique", unique), ("lost", lost), ("ring_full", 0)],
    );
    assert_eq!(result["ended"], "closed");
    assert_numbers(&result["check"], &[("good", unique), ("corrupted", 0)]);
}
