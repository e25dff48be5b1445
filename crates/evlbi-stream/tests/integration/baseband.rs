//! Reads recordings that `drop`, `split` and `join` wrote with `baseband`. Its results are committed in `tests/oracles`, and compared without
//! it; where a Python with `baseband` is installed, it is run again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evlbi_net::run::Run;
use evlbi_stream::join::{JoinOptions, join};
use evlbi_stream::selection::Selection;
use evlbi_stream::split::{SplitOptions, split};
use evlbi_testkit::recording::{RATE, START, key, noise, recording};
use evlbi_testkit::result::shown;
use evlbi_testkit::{Room, command, oracle};
use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::{Extended, Header, Nrao, SYNC};
use serde_json::{Value, json};

use crate::drop::{dropped, each_tenth};
use crate::turn::{shape, splits};

const ANSWER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/drop.json");
const TURNED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/turned.json");

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

/// Writes two seconds of 48 frames with the header of NRAO, which prescribes their length.
fn nrao(room: &Room, name: &str, channels: u64, thread: u16) -> String {
    let shape = shape(5000, channels, 2);
    let mut recording = Vec::new();
    for number in 0..96 {
        let mut header = Header::new(shape, key(thread));
        let second = START + i64::from(number / 48);
        let frame = number % 48;
        header.set_time(FrameTime { second, frame }).unwrap();
        let nrao = Nrao {
            complex_rate: shape.samples_per_frame() * 48 / 2,
            sync: SYNC,
            ..Nrao::default()
        };
        header.set_extended(&Extended::Nrao(nrao)).unwrap();
        let mut bytes = noise(shape.frame_length, u64::from(number));
        header.emit(&mut bytes);
        recording.extend(bytes);
    }
    room.write(name, recording)
}

/// Two threads that are joined, two channels that are extracted, and a channel of its own; each with its frames per second.
fn turned(room: &Room) -> [(&'static str, u32); 3] {
    let threads = [0, 1].map(|thread| nrao(room, &format!("in{thread}.vdif"), 1, thread));
    let joined = JoinOptions {
        inputs: threads
            .map(|path| (PathBuf::from(path), Selection::default()))
            .into(),
        output: room.path("joined.vdif").into(),
        ..JoinOptions::default()
    };
    shown(join(&joined, &Run::silent()));
    let four = nrao(room, "four.vdif", 4, 0);
    let pair = SplitOptions {
        channels: Some("1,3".parse().unwrap()),
        ..splits(&four, &room.path("pair.vdif"))
    };
    shown(split(&pair, &Run::silent()));
    shown(split(
        &splits(&four, &room.path("ch{channel}.vdif")),
        &Run::silent(),
    ));
    [("joined.vdif", 48), ("pair.vdif", 12), ("ch2.vdif", 12)]
}

/// Frames have their times, and extended words that fit their length, as `baseband` read these very files.
#[test]
fn baseband_read_what_split_and_join_make() {
    let room = Room::new();
    let answer = oracle::committed(Path::new(TURNED));
    for (name, rate) in turned(&room) {
        let (answer, found) = (&answer[name], &answer[name]["found"]);
        assert_eq!(oracle::hash(&room.read(name)), answer["file"], "{name}");
        assert_eq!(found["frames"], 2 * rate, "{name}");
        assert_eq!(found["start"], "2024-05-01T12:00:00.000000000");
        assert_eq!(found["stop"], "2024-05-01T12:00:02.000000000");
        assert_eq!(found["late"], json!([]), "{name}");
        assert_eq!(found["invalid"], json!([]), "{name}");
    }
}

/// Returns what `baseband` finds in a recording of a thread; `None` if it is not installed.
fn read(room: &Room, name: &str, rate: u32) -> Option<Value> {
    let python = evlbi_testkit::python::python("baseband")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/baseband_stream.py");
    let read = command(python)
        .arg(script)
        .args([&rate.to_string(), &room.path(name)])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success(), "{name}: {errors}");
    let found: Value = serde_json::from_slice(&read.stdout).unwrap();
    let file = oracle::hash(&room.read(name));
    Some(json!({ "file": file, "found": found }))
}

#[test]
fn baseband_still_reads_what_drop_leaves() {
    let room = Room::new();
    shed(&room);
    if let Some(found) = read(&room, "out.vdif", RATE) {
        oracle::compare(Path::new(ANSWER), &found);
    }
}

#[test]
fn baseband_still_reads_what_split_and_join_make() {
    let room = Room::new();
    let found = turned(&room).map(|(name, rate)| Some((name, read(&room, name, rate)?)));
    let found: Option<BTreeMap<_, _>> = found.into_iter().collect();
    if let Some(found) = found {
        oracle::compare(Path::new(TURNED), &json!(found));
    }
}
