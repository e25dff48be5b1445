//! Something that a machine lacks is a skip, reported at the end, or a failure if it is required.

use std::process::Output;

use evlbi_testkit::need::recordings;
use evlbi_testkit::{Room, need};

use crate::another_run;

#[test]
#[ignore = "run by the tests below, without programs"]
fn lacks_nft() {
    assert!(!need(&["nft"]));
}

#[test]
#[ignore = "run by the tests below, without recordings"]
fn lacks_recordings() {
    assert!(recordings().is_none());
}

fn run(room: &Room, test: &str, require: Option<&str>) -> (Output, String) {
    let mut run = another_run(room, test);
    run.envs(require.map(|require| ("EVLBI_REQUIRE", require)));
    let output = run.output().expect("it starts");
    let all = [&*output.stdout, &*output.stderr].concat();
    (output, String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn a_skip_is_reported_after_the_last_test_and_in_a_file() {
    let room = Room::new();
    let (output, said) = run(&room, "skips::lacks_nft", None);
    assert!(output.status.success(), "{said}");
    let line = "skipped 1: nft (apt install nftables): skips::lacks_nft";
    assert!(said.trim_end().ends_with(line), "{said}");
    let report = room.text("target/skipped.txt");
    assert_eq!(report, format!("evlbi-testkit integration: {line}\n"));
}

#[test]
fn a_run_that_skips_nothing_takes_its_lines_back() {
    let room = Room::new();
    run(&room, "skips::lacks_nft", None);
    let (output, said) = run(&room, "skips::lacks_recordings", Some("tools"));
    assert!(output.status.success(), "{said}");
    let report = room.text("target/skipped.txt");
    assert!(!report.contains("nft"), "{report}");
    assert!(report.contains("EVLBI_REFERENCE_DATA"), "{report}");
}

#[test]
fn a_missing_requirement_fails_and_is_named() {
    for (test, require, missing) in [
        (
            "skips::lacks_nft",
            "tools",
            "missing: nft (apt install nftables)",
        ),
        (
            "skips::lacks_nft",
            "all",
            "missing: nft (apt install nftables)",
        ),
        (
            "skips::lacks_recordings",
            "all",
            "missing: reference recordings",
        ),
        (
            "skips::lacks_nft",
            "some",
            "EVLBI_REQUIRE=some: give tools or all",
        ),
    ] {
        let room = Room::new();
        let (output, said) = run(&room, test, Some(require));
        assert!(!output.status.success(), "{require}: {said}");
        assert!(said.contains(missing), "{require}: {said}");
    }
}
