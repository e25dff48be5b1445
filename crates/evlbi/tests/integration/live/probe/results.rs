//! What is told, and in which form: times, clocks, histograms, tables, pictures, files.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::asked::counted;
use super::{
    ask, assert_fits, assert_refused, assert_sums, begin, between, end, exact_wire, points, probe,
    respond, responder, run,
};
use crate::live::support::{Recv, evlbi};
use crate::result::{brief, number};
use evlbi_testkit::clock::Shifted;
use evlbi_testkit::need::Kind;
use evlbi_testkit::netns::{filter, pair, pair_with};
use evlbi_testkit::{Lines, Room, Running, buffer, command, name, processor, skip, until};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The clock that was found is off from the true one by no more than the reported error.
#[track_caller]
fn assert_clock(clock: &Value, ahead: f64) {
    let of = |name: &str| clock[name].as_f64().unwrap();
    let off = of("offset") - ahead * 1e9;
    assert!(off.abs() <= of("error"), "{off} {clock}");
}

#[test]
fn round_trips_are_counted() {
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    // Requests begin with EVPQ; those of a hundred bytes lose each tenth. Replies begin with EVPR.
    let requests = "meta l4proto udp udp length 108 @th,64,32 0x45565051";
    let rules = [
        format!("{requests} counter comment \"requests\""),
        format!("{requests} numgen inc mod 10 0 drop"),
    ];
    let replies =
        "meta l4proto udp udp length 108 @th,64,32 0x45565052 counter comment \"replies\"";
    filter(&pair.far, &rules.each_ref().map(String::as_str));
    filter(&pair.near, &[replies]);
    let room = Room::new();
    let Some(clock) = Shifted::new(&room, -7.5, 0.0) else {
        return;
    };
    let bind = format!("{}:0", pair.far.v4);
    let respond = || Recv::listening(clock.apply(&mut responder(&bind, &[])), 1);
    let responder = pair.far.namespace.run(respond).unwrap();
    let ask_within = |timeout: &str, more: &[&str]| {
        let more = [more, &["--loss-timeout", timeout]].concat();
        begin(&pair, &responder, "latency", &more)
    };
    // Whatever stands still, it waits for a reply that is on its way.
    let ask = |more: &[&str]| ask_within("60s", more);
    let counts = |result: &Value| -> Vec<[u64; 3]> {
        let points = result["points"].as_array().unwrap().iter();
        points
            .map(|point| ["sent", "received", "lost"].map(|name| number(point, name)))
            .collect()
    };
    let picture = room.path("a.svg");
    let more = [
        "--size",
        "200,300",
        "--count",
        "100",
        "--interval",
        "1ms",
        "--plot",
        &picture,
        "--json",
    ];
    let output = ask(&more).end();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let drawn = room.text("a.svg");
    assert!(
        drawn.contains("<svg") && drawn.contains("round trip"),
        "{drawn}"
    );
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counts(&result), [[100, 100, 0], [100, 100, 0]]);
    assert_clock(&result["clock"], -7.5);
    // It waits for those that were dropped until it is interrupted.
    let more = [
        "--size",
        "100",
        "--count",
        "50",
        "--interval",
        "1ms",
        "--json",
    ];
    let lossy = ask(&more);
    until("all requests and replies have come", || {
        counted(&pair.far, "requests") == 50 && counted(&pair.near, "replies") == 45
    });
    lossy.child.signal(Signal::SIGINT);
    // It may not know yet that it has sent the last, and then says that it was interrupted.
    let output = lossy.end();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || said.contains("not all was measured"),
        "{said}"
    );
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(counts(&result), [[50, 45, 5]]);
    assert_clock(&result["clock"], -7.5);
    // By itself it ends as well; replies that come too late are lost.
    let output = ask_within("500ms", &more).end();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [sent, received, lost] = counts(&result)[0];
    assert!(
        (sent, lost) == (50, 50 - received) && received <= 45,
        "{result}"
    );
    let output = ask(&["--count", "20", "--format", "pscheduler"]).end();
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
    let said = ask(&["--size", "40"]).end();
    assert!(String::from_utf8_lossy(&said.stderr).contains("too short"));
    end(responder);
}

#[test]
fn both_ways_in_every_shape() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let count = (buffer::holds(8972) / 2).min(50);
    assert!(count > 5);
    let asked = count.to_string();
    let near = [
        "--size",
        "32,1472,8972",
        "--spacing",
        "100us,500us",
        "--count",
        &asked,
        "--both",
        "--json",
    ];
    let points = between(&pair, &near);
    assert_eq!(points.len(), 3 * 2 * 2);
    for point in &points {
        assert_sums(point);
        let [sent, lost] = ["sent", "lost"].map(|name| number(point, name));
        assert_eq!([sent, lost], [count as u64, 0], "{}", brief(point));
        let asked = point["spacing_asked"].as_f64().unwrap();
        assert_eq!(number(&point["departures"], "count"), count as u64 - 1);
        // Never sooner than asked, but for 2 % by which a late one is caught up, whatever stands still.
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
    assert_fits(100, 200);
    let bind = format!("[{}]:0", pair.far.v6);
    let responder = pair.far.namespace.run(|| respond(&bind, &[])).unwrap();
    let near = [
        "--size",
        "200",
        "--spacing",
        "1ms",
        "--burst",
        "20",
        "--count",
        "100",
        "--reverse",
        "--json",
        "--dscp",
        "46",
    ];
    let output = ask(&pair, &responder, "udp", &near);
    end(responder);
    let points = self::points(&output);
    assert_sums(&points[0]);
    assert_eq!(
        (number(&points[0], "sent"), number(&points[0], "lost")),
        (100, 0)
    );
    assert_eq!(number(&points[0]["departures"], "count"), 4);
    let wire =
        points[0]["wire_rate_sent"].as_f64().unwrap() / points[0]["rate_sent"].as_f64().unwrap();
    assert!((wire - (1.0 + 86.0 / 200.0)).abs() < 1e-9);
}

/// What is written for other programs and for people to look at.
#[test]
fn results_go_where_they_are_wanted() {
    assert_fits(200, 200);
    let room = Room::new();
    let file = |name: &str| room.path(name);
    let responder = respond("127.0.0.1:0", &[]);
    let [svg, png, html, records, losses] =
        ["a.svg", "a.png", "a.html", "records.csv", "losses.csv"].map(file);
    processor::stay();
    let more = [
        "--size",
        "200",
        "--spacing",
        "50us..150us:50us",
        "--count",
        "200",
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
    assert_eq!(rows[2][..3], ["200", "200", "100.000"]);
    assert_eq!(rows[2][4..8], ["200", "0", "0", "0.000000"]);
    for picture in [&svg, &html] {
        let text = fs::read_to_string(picture).unwrap();
        assert!(text.contains("times between arrivals"), "{picture}");
    }
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    let text = fs::read_to_string(&records).unwrap();
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
            "--rate", "10M", "--size", "100", "--count", "100", "--json", "--label", label,
        ];
        let output = run(&mut probe(responder.address(), &more));
        fs::write(file(name), output.stdout).unwrap();
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
    let more = [
        "--rate",
        "10M",
        "--size",
        "100",
        "--count",
        "100",
        "--format",
        "pscheduler",
    ];
    let output = run(&mut probe(responder.address(), &more));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let stream = &result["summary"]["streams"][0];
    assert_eq!((number(stream, "sent"), number(stream, "lost")), (100, 0));
    assert!(stream["throughput-bits"].as_f64().unwrap() > 0.0);
    end(responder);
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
    end(responder);
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

#[test]
fn files_that_cannot_be_written_are_named_first() {
    let more = ["--rate", "1M", "--records", "/nowhere/at/all.csv"];
    let responder = respond("127.0.0.1:0", &[]);
    let output = run(&mut probe(responder.address(), &more));
    assert_refused(&output, "/nowhere/at/all.csv");
    assert!(!Path::new("/nowhere").exists());
    end(responder);
}

/// Datagrams that are captured.
const COUNT: usize = 300;

/// The histogram of times between arrivals is that of a capture of the same packets, bin by bin.
#[test]
fn the_histogram_is_tsharks() {
    let Some(pair) = pair_with(&["tcpdump", "tshark"], &exact_wire(), name!()) else {
        return;
    };
    // It gives up its groups first, which the root of a user namespace may not.
    if fs::read_to_string("/proc/self/setgroups").is_ok_and(|may| may.trim() == "deny") {
        return skip(Kind::Tool, "captures by tcpdump (root)");
    }
    assert_fits(COUNT, 300);
    let room = Room::new();
    let file = room.path("arrivals.pcap");
    let count = COUNT.to_string();
    let mut capture = command("tcpdump");
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
            &count,
            "--immediate-mode",
            "-w",
        ])
        .arg(&file)
        .arg("udp[8:4] = 0x45565044")
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let capture = pair.far.namespace.run(|| capture.spawn()).unwrap();
    let mut capture = Running(capture.unwrap());
    // It says that it listens once it does.
    let mut said = Lines::of(capture.0.stderr.take().unwrap());
    assert!(
        said.any(|line| line.contains("listening on")),
        "tcpdump does not listen"
    );
    let near = [
        "--spacing",
        "200us",
        "--size",
        "300",
        "--count",
        &count,
        "--bins",
        "2us",
        "--json",
    ];
    let point = between(&pair, &near).remove(0);
    // It ends with the last packet.
    assert!(capture.wait().success());
    let shown = command("tshark")
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
    assert_eq!(bins.values().sum::<u64>(), COUNT as u64 - 1);
    assert_eq!(number(&point, "lost"), 0);
    assert_eq!(point["arrivals"]["bins"], serde_json::json!(bins));
}
