//! Plots of results, and the offset of a remote clock that is wrong.

use std::collections::HashMap;

use super::{TOKEN, assert_refused, end, points, probe, probe_of, respond, responder, run};
use crate::live::support::{Recv, evlbi};
use crate::result::number;
use evlbi_testkit::Room;
use evlbi_testkit::buffer::assert_fits;
use evlbi_testkit::clock::Shifted;
use evlbi_testkit::result::{assert_schema, read};
use serde_json::Value;

/// The estimated clock offset differs from the true one by at most the reported error.
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
    // In the terminal, in Braille.
    let drawn = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{drawn}");
    let is_dots = |letter: char| ('\u{2801}'..='\u{28ff}').contains(&letter);
    assert!(drawn.contains("times between arrivals") && drawn.contains(is_dots));
    for picture in ["a.svg", "a.html"] {
        assert!(room.text(picture).contains("times between arrivals"));
    }
    assert!(room.read("a.png").starts_with(b"\x89PNG"));
    // Together with the printed table.
    let table = String::from_utf8(output.stdout).unwrap();
    let row = table
        .lines()
        .find(|line| line.trim_start().starts_with("outbound"));
    assert!(room.text("a.html").contains(row.unwrap()));
}

/// The cells of a CSV file: the header, and each row by its names.
fn table(text: &str) -> (Vec<&str>, Vec<HashMap<&str, &str>>) {
    let mut lines = text
        .lines()
        .map(|line| line.split(',').collect::<Vec<&str>>());
    let names = lines.next().expect("a header");
    let rows = lines.map(|cells| {
        assert_eq!(cells.len(), names.len(), "{cells:?}");
        names.iter().copied().zip(cells).collect()
    });
    (names.clone(), rows.collect())
}

/// A probe, its options, the schema of its result, the list with the rows, and pairs of a column and a field.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

/// A file of CSV has a row for each of a list of the result, with the same numbers.
#[test]
fn tables_have_the_rows_of_the_results() {
    assert_fits(100, 200);
    let room = Room::new();
    let responder = respond("127.0.0.1:0", &[]);
    let csv = room.path("table.csv");
    let cases: [Case; 5] = [
        (
            "udp",
            "--rate 10M,20M --size 200 --count 20",
            "evlbi.probe.udp/1",
            "points",
            &[("sent", "sent"), ("rate_sent_bps", "rate_sent")],
        ),
        (
            "latency",
            "--size 64,128 --count 5 --interval 1ms",
            "evlbi.probe.latency/1",
            "points",
            &[("size_bytes", "size"), ("received", "received")],
        ),
        (
            "capacity",
            "--highest 2M --lowest 1M --size 100 --duration 50ms",
            "evlbi.probe.capacity/1",
            "trials",
            &[("rate_asked_bps", "asked"), ("passed", "passed")],
        ),
        (
            "tcp",
            "--rate 1M --message 1000 --duration 100ms --streams 2",
            "evlbi.probe.tcp/1",
            "flows",
            &[("connection", "number"), ("rate_bps", "rate")],
        ),
        (
            "tcp",
            "--rate 1M --message 1000 --duration 50ms --mss 1000,1400",
            "evlbi.probe.tcp.matrix/1",
            "points",
            &[("segment_bytes", "segment"), ("rate_bps", "rate")],
        ),
    ];
    for (kind, options, schema, rows, columns) in cases {
        let more: Vec<&str> = options.split(' ').collect();
        let more = [&more[..], &["--json", "--csv", &csv, "--force"]].concat();
        let output = run(&mut probe_of(kind, responder.address(), &more));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kind}: {said}");
        let result = read(&output.stdout);
        assert_schema(&result, schema);
        let text = room.text("table.csv");
        let (_, found) = table(&text);
        let expected = result[rows].as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "{kind}: {text}");
        for (found, expected) in found.iter().zip(expected) {
            for (column, field) in columns {
                let is_same = match &expected[*field] {
                    Value::Number(number) => found[column].parse::<f64>().ok() == number.as_f64(),
                    Value::Bool(is) => found[column].parse() == Ok(*is),
                    other => panic!("{other}"),
                };
                assert!(is_same, "{kind} {column}: {found:?} {expected}");
            }
            // The kernel's are in microseconds.
            if let Some(micros) = expected["course"]["round_trip"][1].as_f64() {
                let seconds: f64 = found["round_trip_mean_s"].parse().unwrap();
                assert!((seconds * 1e6 - micros).abs() < 1e-6 * micros, "{seconds}");
            }
        }
    }
    // An existing table is not overwritten, and the command fails before the work.
    let again = run(&mut probe_of(
        "latency",
        responder.address(),
        &["--csv", &csv],
    ));
    assert_refused(&again, "--force");
    let both = run(&mut probe_of(
        "latency",
        responder.address(),
        &["--csv", "-", "--json"],
    ));
    assert_refused(&both, "standard output");
    let campaign = room.path("campaign.sqlite");
    let watched = run(evlbi()
        .args([
            "watch",
            &campaign,
            &responder.address().to_string(),
            "--token",
            TOKEN,
        ])
        .args([
            "--rate", "1M", "--size", "100", "--for", "300ms", "--window", "100ms",
        ])
        .args(["--csv", "-"]));
    end(responder);
    let said = String::from_utf8_lossy(&watched.stderr);
    assert!(watched.status.success(), "{said}");
    let reported = run(evlbi().args(["report", &campaign, "--csv", "-"]));
    assert_eq!(reported.stdout, watched.stdout);
    let text = String::from_utf8(reported.stdout).unwrap();
    let (names, rows) = table(&text);
    assert_eq!(names[..4], ["direction", "begin_s", "end_s", "sent"]);
    assert!(!rows.is_empty(), "{text}");
}

/// A histogram is an object and, for tables, an array of rows with the same counts.
#[test]
fn histograms_are_tables_too() {
    assert_fits(100, 100);
    let responder = respond("127.0.0.1:0", &[]);
    let few = ["--count", "20", "--interval", "1ms", "--json"];
    let output = run(&mut probe_of("latency", responder.address(), &few));
    end(responder);
    let result = read(&output.stdout);
    let trip = &result["points"][0]["round_trip"];
    let rows = trip["bins_table"].as_array().unwrap();
    let bins = trip["bins"].as_object().unwrap();
    assert!(!rows.is_empty() && rows.len() == bins.len(), "{trip}");
    for row in rows {
        assert_eq!(bins[&row["value"].to_string()], row["count"], "{trip}");
    }
}

/// The offset of a clock that is an hour behind is found, within the reported error; no delay is negative by more than that.
#[test]
fn the_offset_of_a_remote_clock_is_found() {
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
    let latency = read(&latency.stdout);
    assert_clock(&latency["clock"], -3600.25);
    let points = points(&output);
    let result = read(&output.stdout);
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
