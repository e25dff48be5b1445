//! Reads recordings from which `drop` shed frames with `baseband`. Its results are committed in `tests/oracles`, and compared without
//! it; where a Python with `baseband` is installed, it is run again.

use std::path::Path;

use evlbi_testkit::recording::{RATE, recording};
use evlbi_testkit::{Room, command, oracle};
use serde_json::{Value, json};

use crate::drop::{dropped, each_tenth};

const ANSWER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/drop.json");

/// A recording without each tenth frame, as in `every_tenth_frame_becomes_invalid_and_nothing_else_changes`.
fn shed(room: &Room) -> String {
    let (input, output) = (room.write("in.vdif", recording()), room.path("out.vdif"));
    dropped(&each_tenth(&input, &output));
    output
}

/// All frames are at their times, and shed ones are invalid and empty, as `baseband` read this very file.
#[test]
fn baseband_read_what_drop_leaves() {
    let room = Room::new();
    shed(&room);
    let answer = oracle::committed(Path::new(ANSWER));
    assert_eq!(oracle::hash(&room.read("out.vdif")), answer["file"]);
    let found = &answer["found"];
    assert_eq!(found["frames"], 150);
    assert_eq!(found["samples"], 150 * 4000);
    assert_eq!(found["start"], "2024-05-01T12:00:00.000000000");
    assert_eq!(found["stop"], "2024-05-01T12:00:03.000000000");
    assert_eq!(found["late"], json!([]));
    let invalid: Vec<u64> = (0..15).map(|nth| 10 * nth + 9).collect();
    let numbers: Vec<u64> = invalid.iter().map(|n| n % u64::from(RATE)).collect();
    assert_eq!(found["invalid"], json!(numbers));
    assert_eq!(found["zero_frames"], json!(invalid));
}

#[test]
fn baseband_still_reads_what_drop_leaves() {
    let Some(python) = evlbi_testkit::python::python("baseband") else {
        return;
    };
    let room = Room::new();
    let output = shed(&room);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/baseband_stream.py");
    let read = command(python)
        .arg(script)
        .args([&RATE.to_string(), &output])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success(), "{errors}");
    let found: Value = serde_json::from_slice(&read.stdout).unwrap();
    let file = oracle::hash(&room.read("out.vdif"));
    oracle::compare(Path::new(ANSWER), &json!({ "file": file, "found": found }));
}
