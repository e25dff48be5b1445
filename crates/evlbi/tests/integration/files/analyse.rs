//! `evlbi analyse` as a command: captures from standard input, pictures, and errors of options.

use std::fs::File;
use std::path::Path;

use evlbi_testkit::command;
use evlbi_testkit::result::assert_schema;
use serde_json::Value;

use super::{Room, evlbi, failure, json};

/// A capture of a connection.
const CAPTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/oracles/captures/lossy-near.pcap"
);

#[test]
fn a_capture_comes_from_standard_input() {
    let found = |mut analysis: Value| {
        analysis["file"].take();
        analysis
    };
    let expected = json(&["analyse", CAPTURE]);
    assert_schema(&expected, "evlbi.analyse/1");
    let output = command(env!("CARGO_BIN_EXE_evlbi"))
        .args(["analyse", "-", "--json"])
        .stdin(File::open(CAPTURE).unwrap())
        .output()
        .unwrap();
    let piped = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found(piped), found(expected));
}

#[test]
fn files_written_with_the_result() {
    let room = Room::new();
    let files = ["s.csv", "e.csv", "p.svg"].map(|name| room.path(name));
    let [samples, events, plot] = &files;
    let command = [
        "analyse",
        CAPTURE,
        "--samples",
        samples,
        "--events",
        events,
        "--plot",
        plot,
        "--interval",
        "100ms",
    ];
    let output = evlbi(&command);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("limited by"), "{text}");
    assert!(room.text("p.svg").contains("achieved throughput"));
    assert!(files.iter().all(|file| Path::new(file).exists()));
    let said = failure(&command);
    assert!(said.contains("--force"), "{said}");
}

#[test]
fn invalid_arguments_are_reported() {
    let room = Room::new();
    for (option, value, says) in [
        ("--most", "1", "2 to 1000000"),
        ("--interval", "0s", "longer than 0"),
        ("--plot", "p.gif", ".svg"),
    ] {
        let said = failure(&["analyse", CAPTURE, option, value]);
        assert!(said.contains(says), "{said}");
    }
    let result = json(&["analyse", CAPTURE, "--most", "2"]);
    assert!(result["findings"].to_string().contains("--most"));
    // The file header of a capture alone.
    let head = [
        &0xa1b2_c3d4_u32.to_le_bytes()[..],
        &[2, 0, 4, 0],
        &[0; 8],
        &[0, 0, 4, 0],
        &[1, 0, 0, 0],
    ];
    let output = evlbi(&["analyse", &room.write("empty.pcap", head.concat())]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("no packets in"),
        "{said}"
    );
}
