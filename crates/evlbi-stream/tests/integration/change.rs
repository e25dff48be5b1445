//! A recording whose format changes is read up to that byte, with a warning, and nothing of it counts as truncated.

use evlbi_net::run::Run;
use evlbi_stream::drop::drop;
use evlbi_stream::recv::receive;
use evlbi_stream::send::send;
use evlbi_stream::split::{self, split};
use evlbi_testkit::Room;
use evlbi_testkit::recording::{FRAME, recording};
use evlbi_testkit::result::shown;

use crate::drop::shed;
use crate::select::{network, options};
use crate::turn::{key, shape, splits, thread};
use crate::warnings::Warnings;

/// Length of the other frames, and a part of one, in bytes.
const OTHER: usize = 1272;
const PART: usize = 700;

/// Frames of two lengths, of which the first is not a divisor of the file's, and the last frame is truncated.
fn changed() -> Vec<u8> {
    let mut bytes = recording();
    bytes.extend(thread(shape(OTHER - 32, 1, 2), key(0)));
    bytes.extend(&thread(shape(OTHER - 32, 1, 2), key(0))[..PART]);
    assert_ne!((bytes.len() - recording().len()) % FRAME, 0);
    bytes
}

#[test]
fn a_recording_is_used_up_to_a_change_of_its_format() {
    let room = Room::new();
    let input = room.write("in.vdif", changed());
    let warns = [format!(
        "{input}: from byte {} on, it is VDIF with frames of {OTHER} bytes, which are not used",
        recording().len()
    )];

    let (run, warnings) = Warnings::of_run();
    let report = split(&splits(&input, &room.path("{thread}.vdif")), &run).unwrap();
    assert!(!split::text(&report).contains("left out"));
    let report = serde_json::to_value(report).unwrap();
    assert_eq!(
        (&report["frames"], &report["truncated_bytes"]),
        (&150.into(), &0.into())
    );
    assert_eq!(warnings.read(), warns);
    assert!(room.read("0.vdif") == recording());

    let (run, warnings) = Warnings::of_run();
    let report = shown(drop(&shed(&input, &room.path("out.vdif"), "none"), &run));
    assert_eq!(report["truncated_bytes"], 0);
    assert_eq!(warnings.read(), warns);
    assert!(room.read("out.vdif") == recording());

    let (clock, path) = network(&[]);
    let (sent, received) = options(&path, &input, &room.path("received.vdif"));
    let (run, warnings) = Warnings::of_run();
    let sent = clock.simulate(|| {
        let receiving = receive(&received, &Run::silent().on(&path.far(1))).unwrap();
        let sending = send(&sent, &run.on(&path.near(1))).unwrap();
        let sent = serde_json::to_value(sending.join().unwrap()).unwrap();
        receiving.join();
        sent
    });
    assert_eq!(sent["truncated_bytes"], 0, "{sent}");
    assert_eq!(warnings.read(), warns);
    assert!(room.read("received.vdif") == recording());
}
