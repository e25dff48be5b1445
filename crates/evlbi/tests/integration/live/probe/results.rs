//! What is told, and in which form: times, clocks, histograms, tables, pictures, files.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{
    ask, assert_refused, assert_sums, between, end, exact_wire, points, probe, refused_at_last,
    respond, run,
};
use crate::live::support::evlbi;
use crate::result::number;
use evlbi_testkit::netns::{filter, pair};
use evlbi_testkit::{name, need};
use serde_json::Value;

#[test]
fn round_trips_are_counted() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    // Requests begin with EVPQ; those of a hundred bytes lose each tenth.
    let rule =
        "meta l4proto udp udp length 108 @th,64,32 0x45565051 numgen inc mod 10 0 counter drop";
    if !filter(&pair.far, &[rule]) {
        return;
    }
    let bind = format!("{}:0", pair.far.v4);
    let responder = pair
        .far
        .namespace
        .run(|| respond(&bind, &["--shift-clock=-7.5"]))
        .unwrap();
    let more = [
        "--size",
        "100,300",
        "--count",
        "200",
        "--interval",
        "1ms",
        "--loss-timeout",
        "5s",
        "--json",
    ];
    let ask = |more: &[&str]| ask(&pair, &responder, "latency", more);
    let room = tempfile::tempdir().unwrap();
    let picture = room.path().join("a.svg");
    let more = [&more[..], &["--plot", picture.to_str().unwrap()]].concat();
    let output = ask(&more);
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(
        drawn.contains("<svg") && drawn.contains("round trip"),
        "{drawn}"
    );
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown: Vec<[u64; 3]> = result["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| ["sent", "received", "lost"].map(|name| number(point, name)))
        .collect();
    assert_eq!(shown, [[200, 180, 20], [200, 200, 0]]);
    let clock = &result["clock"];
    let off = clock["offset"].as_f64().unwrap() + 7.5e9;
    assert!(
        off.abs() <= clock["error"].as_f64().unwrap(),
        "{off} {clock}"
    );
    let patience = ["--count", "20", "--loss-timeout", "5s"];
    let output = ask(&[&patience[..], &["--format", "pscheduler"]].concat());
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (
            number(&result, "packets-sent"),
            number(&result, "packets-received")
        ),
        (20, 20)
    );
    let buckets = result["histogram-latency"].as_object().unwrap().values();
    assert_eq!(
        buckets.map(|count| count.as_u64().unwrap()).sum::<u64>(),
        20
    );
    let said = ask(&["--size", "40"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("too short"));
    end(responder);
}

#[test]
fn both_ways_in_every_shape() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let near = [
        "--size",
        "32,1472,8972",
        "--spacing",
        "100us,500us",
        "--count",
        "300",
        "--both",
        "--json",
    ];
    let points = between(&pair, &near);
    assert_eq!(points.len(), 3 * 2 * 2);
    for point in &points {
        assert_sums(point);
        assert_eq!((number(point, "sent"), number(point, "lost")), (300, 0));
        let asked = point["spacing_asked"].as_f64().unwrap();
        assert_eq!(number(&point["departures"], "count"), 299);
        // Never sooner than asked, but for 2 % by which a late one is caught up.
        assert!(number(&point["departures"], "min") as f64 >= asked * 0.97);
        let wire = 1.0 + 66.0 / number(point, "size") as f64;
        let ratio =
            point["wire_rate_sent"].as_f64().unwrap() / point["rate_sent"].as_f64().unwrap();
        assert!((ratio - wire).abs() < 1e-9);
    }
    let ways: Vec<&str> = points
        .iter()
        .map(|point| point["direction"].as_str().unwrap())
        .collect();
    assert_eq!(ways[..2], ["there", "back"]);
    // Trains, back, over IPv6.
    let bind = format!("[{}]:0", pair.far.v6);
    let responder = pair.far.namespace.run(|| respond(&bind, &[])).unwrap();
    let near = [
        "--size",
        "1000",
        "--spacing",
        "1ms",
        "--burst",
        "20",
        "--count",
        "1000",
        "--reverse",
        "--json",
        "--dscp",
        "46",
    ];
    let address = responder.address();
    let output = pair
        .near
        .namespace
        .run(|| run(&mut probe(address, &near)))
        .unwrap();
    end(responder);
    let points = self::points(&output);
    assert_sums(&points[0]);
    assert_eq!(
        (number(&points[0], "sent"), number(&points[0], "lost")),
        (1000, 0)
    );
    assert_eq!(number(&points[0]["departures"], "count"), 49);
    let wire =
        points[0]["wire_rate_sent"].as_f64().unwrap() / points[0]["rate_sent"].as_f64().unwrap();
    assert!((wire - 1.086).abs() < 1e-9);
}

/// What is written for other programs and for people to look at.
#[test]
fn results_go_where_they_are_wanted() {
    let room = tempfile::tempdir().unwrap();
    let file = |name: &str| room.path().join(name).to_str().unwrap().to_owned();
    let responder = respond("127.0.0.1:0", &[]);
    let [svg, png, html, records, losses] =
        ["a.svg", "a.png", "a.html", "records.csv", "losses.csv"].map(file);
    let more = [
        "--size",
        "200",
        "--spacing",
        "50us..150us:50us",
        "--count",
        "400",
        "--format",
        "udpmon",
        "--plot",
        "-",
        "--plot",
        &svg,
        "--plot",
        &png,
        "--plot",
        &html,
        "--records",
        &records,
        "--losses",
        &losses,
        "--skip",
        "100",
        "--limit",
        "50",
    ];
    let output = run(&mut probe(responder.address(), &more));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // On the terminal, in Braille.
    let drawn = String::from_utf8(output.stderr).unwrap();
    let is_dots = |letter: char| ('\u{2801}'..='\u{28ff}').contains(&letter);
    assert!(drawn.contains("times between arrivals") && drawn.contains(is_dots));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.trim_end_matches(';').split("; ").collect())
        .collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(
        rows[0][..8],
        [
            "pkt len",
            "num_sent",
            "inter-pkt_time us",
            "send_user_data_rate Mbit",
            "num_recv",
            "num_lost",
            "num_badorder",
            "%lost"
        ]
    );
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    assert_eq!(rows[2][..3], ["200", "400", "100.000"]);
    assert_eq!(rows[2][4..8], ["400", "0", "0", "0.000000"]);
    for picture in [&svg, &html] {
        let text = std::fs::read_to_string(picture).unwrap();
        assert!(text.contains("times between arrivals"), "{picture}");
    }
    assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    let text = std::fs::read_to_string(&records).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 50);
    assert!(
        lines[1].starts_with("0,there,100,") && lines[2].starts_with("0,there,101,"),
        "{}",
        lines[1]
    );
    let again = run(&mut probe(
        responder.address(),
        &["--rate", "1M", "--plot", &svg],
    ));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));
    // Many results make one table.
    for (name, label) in [("one.json", "fibre"), ("two.json", "campus")] {
        let more = [
            "--rate", "10M", "--count", "500", "--json", "--label", label,
        ];
        let output = run(&mut probe(responder.address(), &more));
        std::fs::write(file(name), output.stdout).unwrap();
    }
    let report = |files: &[String]| {
        evlbi()
            .arg("report")
            .args(files)
            .arg("--json")
            .output()
            .unwrap()
    };
    let table = report(&[file("one.json"), file("two.json")]);
    let table: Value = serde_json::from_slice(&table.stdout).unwrap();
    assert_eq!(table["columns"].as_array().unwrap().len(), 1);
    let rows = table["rows"].as_array().unwrap();
    assert!(
        rows.len() == 2 && rows[1]["name"].as_str().unwrap().contains("campus"),
        "{table}"
    );
    assert_eq!(rows[0]["cells"][0]["loss"], 0.0);
    let wrong = report(&[file("one.json"), records.clone()]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("records.csv"));
    let more = ["--rate", "10M", "--count", "500", "--format", "pscheduler"];
    let output = run(&mut probe(responder.address(), &more));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let stream = &result["summary"]["streams"][0];
    assert_eq!((number(stream, "sent"), number(stream, "lost")), (500, 0));
    assert!(stream["throughput-bits"].as_f64().unwrap() > 0.0);
    end(responder);
}

/// A clock that is an hour ahead is found to be, within what is said of it.
#[test]
fn a_far_clock_is_found_out() {
    let responder = respond("127.0.0.1:0", &["--shift-clock=-3600.25"]);
    let output = run(&mut probe(
        responder.address(),
        &["--rate", "10M", "--count", "200", "--both", "--json"],
    ));
    end(responder);
    let points = points(&output);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let clock = &result["clock"];
    let off = clock["offset"].as_f64().unwrap() + 3600.25e9;
    assert!(
        off.abs() <= clock["error"].as_f64().unwrap(),
        "{off} {clock}"
    );
    for point in &points {
        let delay = &point["delay"];
        let error = delay["error"].as_f64().unwrap();
        let median = delay["median"].as_f64().unwrap();
        assert!(median > -error && median < 1e8, "{delay}");
    }
}

#[test]
fn files_that_cannot_be_written_are_named_first() {
    let more = ["--rate", "1M", "--records", "/nowhere/at/all.csv"];
    let responder = respond("127.0.0.1:0", &[]);
    let output = run(&mut probe(responder.address(), &more));
    assert_refused(&output, "/nowhere/at/all.csv");
    assert!(!Path::new("/nowhere").exists());
    end(responder);
}

/// The histogram of times between arrivals is that of a capture of the same packets, bin by bin.
#[test]
fn the_histogram_is_tsharks() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    if !need(&["tcpdump", "tshark"]) {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("arrivals.pcap");
    let mut capture = Command::new("tcpdump");
    capture
        .args([
            "-i",
            pair.far.device,
            "--nano",
            "-B",
            "16384",
            // Headers: of whole packets the buffer would hold sixty-four.
            "-s",
            "128",
            "-U",
            "-Z",
            "root",
            "-c",
            "5000",
            "--immediate-mode",
            "-w",
        ])
        .arg(&file)
        .arg("udp[8:4] = 0x45565044")
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut capture = pair.far.namespace.run(|| capture.spawn()).unwrap().unwrap();
    // It says that it listens once it does.
    let mut said = std::io::BufReader::new(capture.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on") {
        line.clear();
        let read = std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        assert!(read > 0, "tcpdump does not listen");
    }
    let near = [
        "--spacing",
        "200us",
        "--size",
        "300",
        "--count",
        "5000",
        "--bins",
        "2us",
        "--json",
    ];
    let point = between(&pair, &near).remove(0);
    // It ends with the last packet, unless it has missed one.
    let begun = std::time::Instant::now();
    while capture.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    if capture.try_wait().unwrap().is_none() {
        capture.kill().unwrap();
        capture.wait().unwrap();
        panic!("tcpdump did not see 5000 packets");
    }
    let shown = Command::new("tshark")
        .args([
            "-n",
            "-T",
            "fields",
            "-e",
            "frame.time_delta_displayed",
            "-r",
        ])
        .arg(&file)
        .output();
    let shown = shown.unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    // Of the first packet there is none before it.
    let mut bins = std::collections::BTreeMap::<String, u64>::new();
    let gaps = text.lines().skip(1).map(|gap| {
        let (seconds, nanos) = gap.split_once('.').unwrap();
        seconds.parse::<u64>().unwrap() * 1_000_000_000 + nanos.parse::<u64>().unwrap()
    });
    for gap in gaps {
        *bins.entry((gap / 2000 * 2000).to_string()).or_default() += 1;
    }
    assert_eq!(number(&point, "lost"), 0);
    assert_eq!(point["arrivals"]["bins"], serde_json::json!(bins));
}

/// Flows of several clients share a responder, as long as all of them fit.
#[test]
fn three_flows_at_once() {
    let responder = respond("127.0.0.1:0", &["--max-rate", "70M"]);
    let address = responder.address();
    let flow = ["--rate", "20M", "--duration", "12s", "--json"];
    std::thread::scope(|scope| {
        let flows = [0; 3].map(|_| scope.spawn(|| run(&mut probe(address, &flow))));
        // 20.9 Mbit/s each on the wire: a fourth does not fit, but in the other direction it does.
        let more = ["--rate", "20M", "--count", "100", "--wait", "0s", "--json"];
        refused_at_last(address, &more, "3 tests");
        let mut other_way = more.to_vec();
        other_way.push("--reverse");
        assert_eq!(
            number(&points(&run(&mut probe(address, &other_way)))[0], "lost"),
            0
        );
        for flow in flows {
            let point = points(&flow.join().unwrap()).remove(0);
            assert_sums(&point);
            assert_eq!(number(&point, "lost"), 0, "{}", point["finding"]);
        }
    });
    end(responder);
}
