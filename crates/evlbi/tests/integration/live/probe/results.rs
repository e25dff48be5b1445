//! Where the program draws results, and what it finds of a far clock that is wrong.

use super::{end, points, probe, probe_of, respond, responder, run};
use crate::live::support::Recv;
use crate::result::number;
use evlbi_testkit::Room;
use evlbi_testkit::buffer::assert_fits;
use evlbi_testkit::clock::Shifted;
use serde_json::Value;

/// The clock that was found is off from the true one by no more than the reported error.
#[track_caller]
fn assert_clock(clock: &Value, ahead: f64) {
    let of = |name: &str| clock[name].as_f64().unwrap();
    let off = of("offset") - ahead * 1e9;
    assert!(off.abs() <= of("error"), "{off} {clock}");
}

#[test]
fn pictures_go_where_they_are_wanted() {
    let room = Room::new();
    let [svg, png, html] = ["a.svg", "a.png", "a.html"].map(|name| room.path(name));
    let responder = respond("127.0.0.1:0", &[]);
    let more = [
        "--rate", "10M", "--size", "200", "--count", "20", "--plot", "-", "--plot", &svg, "--plot",
        &png, "--plot", &html,
    ];
    let output = run(&mut probe(responder.address(), &more));
    end(responder);
    // On the terminal, in Braille.
    let drawn = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{drawn}");
    let is_dots = |letter: char| ('\u{2801}'..='\u{28ff}').contains(&letter);
    assert!(drawn.contains("times between arrivals") && drawn.contains(is_dots));
    for picture in ["a.svg", "a.html"] {
        assert!(room.text(picture).contains("times between arrivals"));
    }
    assert!(room.read("a.png").starts_with(b"\x89PNG"));
    // With the table that is printed.
    let table = String::from_utf8(output.stdout).unwrap();
    let row = table
        .lines()
        .find(|line| line.trim_start().starts_with("there"));
    assert!(room.text("a.html").contains(row.unwrap()));
}

/// A clock that is an hour behind is found to be, within the reported error; no delay is less than nothing by more than that.
#[test]
fn a_far_clock_is_found_out() {
    assert_fits(100, 100);
    let room = Room::new();
    let Some(clock) = Shifted::new(&room, -3600.25, 0.0) else {
        return;
    };
    let responder = Recv::listening(clock.apply(&mut responder("127.0.0.1:0", &[])), 1);
    let more = [
        "--rate", "10M", "--size", "100", "--count", "100", "--both", "--json",
    ];
    let output = run(&mut probe(responder.address(), &more));
    let few = ["--count", "20", "--interval", "1ms", "--json"];
    let latency = run(&mut probe_of("latency", responder.address(), &few));
    end(responder);
    let latency: Value = serde_json::from_slice(&latency.stdout).unwrap();
    assert_clock(&latency["clock"], -3600.25);
    let points = points(&output);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_clock(&result["clock"], -3600.25);
    assert_eq!(points.len(), 2);
    for point in &points {
        assert_eq!(number(point, "lost"), 0);
        let of = |name: &str| point["delay"][name].as_f64().unwrap();
        assert!(of("min") >= -of("error"), "{}", point["delay"]);
        let ordered = [of("min"), of("median"), of("p99"), of("max")];
        assert!(ordered.is_sorted(), "{ordered:?}");
    }
}
