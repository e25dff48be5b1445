//! Probes between two namespaces, with the kernel's own counters as the truth.

mod abuse;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::support::{Recv, brief, evlbi, number};
use evlbi_net::netns::{Pair, Wire, pair_for_test};
use serde_json::Value;

const TOKEN: &str = "a token of tests";

fn exact_wire() -> Wire {
    Wire {
        mtu: 9000,
        segmentation: false,
        join: false,
    }
}

fn respond(bind: &str, more: &[&str]) -> Recv {
    let mut command = evlbi();
    command
        .args(["respond", "--bind", bind, "-v"])
        .args(more)
        .env("EVLBI_TOKEN", TOKEN);
    Recv::listening(&mut command, 1)
}

/// Ends a responder, and says what it said.
fn end(responder: Recv) -> String {
    responder.signal("INT");
    let ended = responder.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.stderr
}

fn probe(target: SocketAddr, more: &[&str]) -> Command {
    probe_of("udp", target, more)
}

fn probe_of(kind: &str, target: SocketAddr, more: &[&str]) -> Command {
    let mut command = evlbi();
    command
        .args(["probe", kind, &target.to_string()])
        .args(more)
        .env("EVLBI_TOKEN", TOKEN)
        .stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the probe starts")
}

/// The points of a probe that ends well.
fn points(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(result["schema"], "evlbi.probe.udp/1");
    result["points"].as_array().expect("points").clone()
}

/// Whatever was measured, the sums hold.
#[track_caller]
fn assert_sums(point: &Value) {
    let of = |name: &str| number(point, name);
    let shown = brief(point);
    assert_eq!(of("sent"), of("unique") + of("lost"), "{shown}");
    assert_eq!(of("received"), of("unique") + of("duplicates"), "{shown}");
    let parts = of("network_lost") + of("host_lost") + of("unattributed");
    assert_eq!(of("lost"), parts, "{shown}");
    let runs = point["loss_runs"].as_object().unwrap().iter();
    let in_runs: u64 = runs
        .map(|(length, count)| length.parse::<u64>().unwrap() * count.as_u64().unwrap())
        .sum();
    assert_eq!(of("lost"), in_runs, "{shown}");
}

/// A responder in the far namespace, and a probe from the near one.
fn between(pair: &Pair, far: &[&str], near: &[&str]) -> Vec<Value> {
    let bind = format!("{}:0", pair.far.v4);
    let responder = pair.far.namespace.run(|| respond(&bind, far)).unwrap();
    let address = responder.address();
    let output = pair
        .near
        .namespace
        .run(|| run(&mut probe(address, near)))
        .unwrap();
    end(responder);
    points(&output)
}

/// Drops one in a thousand of a stream's datagrams, and nothing of the control connection and the round trips; says so
/// when that cannot be done here.
#[must_use]
fn drop_one_in_a_thousand(pair: &Pair) -> bool {
    // Data datagrams begin with EVPD.
    let rule =
        "add rule ip t c meta l4proto udp @th,64,32 0x45565044 numgen inc mod 1000 0 counter drop";
    for command in [
        "add table ip t",
        "add chain ip t c { type filter hook input priority 0; }",
        rule,
    ] {
        if let Err(error) = pair.far.namespace.command("nft", &[command]) {
            eprintln!("skipped: {error}");
            return false;
        }
    }
    true
}

#[test]
fn one_in_a_thousand_is_lost_in_the_network() {
    let test = "probe::one_in_a_thousand_is_lost_in_the_network";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
        return;
    };
    if !drop_one_in_a_thousand(&pair) {
        return;
    }
    let near = [
        "--rate", "100M", "--size", "1000", "--count", "20000", "--json",
    ];
    let points = between(&pair, &[], &near);
    let point = &points[0];
    assert_sums(point);
    let rules = pair
        .far
        .namespace
        .command("nft", &["list", "table", "ip", "t"]);
    let rules = rules.unwrap();
    assert!(rules.contains("packets 20 "), "{rules}");
    for (name, count) in [
        ("sent", 20_000),
        ("lost", 20),
        ("network_lost", 20),
        ("host_lost", 0),
    ] {
        assert_eq!(number(point, name), count, "{}", brief(point));
    }
    assert_eq!(point["loss_runs"], serde_json::json!({"1": 20}));
    assert_eq!(point["loss_distances"], serde_json::json!({"1000": 19}));
    // The rule drops the very first, which only the sender can tell.
    assert_eq!(number(&point["intervals"][0], "first"), 0);
    let finding = point["finding"].as_str().unwrap();
    assert!(
        finding.contains("all in the network") && finding.contains("one every 1,000"),
        "{finding}"
    );
}

#[test]
fn what_the_socket_drops_is_the_hosts() {
    let test = "probe::what_the_socket_drops_is_the_hosts";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
        return;
    };
    let no_room = || {
        let counters = pair.far.namespace.run(evlbi_net::host::Counters::read);
        counters.unwrap().unwrap().udp.receive_buffer_errors
    };
    let bind = format!("{}:0", pair.far.v4);
    let responder = pair.far.namespace.run(|| respond(&bind, &[])).unwrap();
    let address = responder.address();
    let near = [
        "--rate",
        "20M",
        "--size",
        "1024",
        "--duration",
        "3s",
        "--buffer",
        "200k",
        "--json",
    ];
    let output = std::thread::scope(|scope| {
        let probing = scope.spawn(|| {
            let run = || run(&mut probe(address, &near));
            pair.near.namespace.run(run).unwrap()
        });
        // The responder sleeps once the stream flows, until its buffer has overflown.
        let received = || {
            let counters = pair.far.namespace.run(evlbi_net::host::Counters::read);
            counters.unwrap().unwrap().udp.in_datagrams
        };
        while received() < 500 && !probing.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        responder.signal("STOP");
        while no_room() < 200 && !probing.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        responder.signal("CONT");
        probing.join().unwrap()
    });
    end(responder);
    let point = &points(&output)[0];
    assert_sums(point);
    let lost = no_room();
    assert!(lost >= 200, "{}", brief(point));
    for (name, count) in [("lost", lost), ("host_lost", lost), ("network_lost", 0)] {
        assert_eq!(number(point, name), count, "{}", brief(point));
    }
    assert_eq!(number(&point["attribution"], "receiver_socket"), lost);
    assert_eq!(
        number(
            &point["receiver"]["host"]["change"]["udp"],
            "receive_buffer_errors"
        ),
        lost
    );
    let finding = point["finding"].as_str().unwrap();
    assert!(
        finding.contains("all in the receiving socket's buffer"),
        "{finding}"
    );
}

/// Puts a token bucket before the near card; says so when that cannot be done here.
#[must_use]
fn set_bucket(pair: &Pair, rate: &str) -> bool {
    let device = pair
        .near
        .namespace
        .run(|| evlbi_net::udp::interface_of(pair.near.v4.into()));
    let device = device.unwrap().unwrap();
    let bucket = [
        "qdisc", "add", "dev", &device, "root", "tbf", "rate", rate, "burst", "20kb", "limit",
        "100kb",
    ];
    let set = pair.near.namespace.command("tc", &bucket);
    if let Err(error) = &set {
        eprintln!("skipped: {error}");
    }
    set.is_ok()
}

/// A token bucket at the sending host's card lets too little through: its queue overflows in that host.
#[test]
fn a_full_queue_before_the_card_is_the_senders() {
    let test = "probe::a_full_queue_before_the_card_is_the_senders";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
        return;
    };
    if !set_bucket(&pair, "50mbit") {
        return;
    }
    let near = [
        "--rate",
        "100M",
        "--size",
        "1200",
        "--duration",
        "1s",
        "--json",
    ];
    let point = &between(&pair, &[], &near)[0];
    assert_sums(point);
    assert!(number(point, "lost") > 1000, "{}", brief(point));
    assert_eq!(
        number(&point["attribution"], "sender_host"),
        number(point, "lost")
    );
    // And what came through came at the rate of the bucket, which reckons with the Ethernet header.
    let rate = point["rate_received"].as_f64().unwrap() * (1200.0 + 42.0) / 1200.0;
    assert!((rate / 50e6 - 1.0).abs() < 0.02, "{rate}");
}

/// The same bucket, found again by search; and no rate that is asked for is called a capacity if its sender did not reach
/// it.
#[test]
fn the_rate_of_a_bucket_is_found_again() {
    let test = "probe::the_rate_of_a_bucket_is_found_again";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
        return;
    };
    if !set_bucket(&pair, "50mbit") {
        return;
    }
    let bind = format!("{}:0", pair.far.v4);
    let responder = pair.far.namespace.run(|| respond(&bind, &[])).unwrap();
    let address = responder.address();
    let more = [
        "--size",
        "1200",
        "--lowest",
        "10M",
        "--highest",
        "200M",
        "--duration",
        "1s",
        "--precision",
        "3%",
        "--confirm",
        "1",
        "--json",
    ];
    let output = pair
        .near
        .namespace
        .run(|| run(&mut probe_of("capacity", address, &more)))
        .unwrap();
    end(responder);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rate = result["rate"].as_f64().unwrap() * (1200.0 + 42.0) / 1200.0;
    assert!(
        (0.94..1.03).contains(&(rate / 50e6)),
        "{rate} {}",
        result["finding"]
    );
    let failed = result["trials"].as_array().unwrap().iter();
    let failed: Vec<&str> = failed
        .filter(|trial| trial["passed"] == false)
        .map(|trial| trial["point"]["finding"].as_str().unwrap())
        .collect();
    assert!(failed[0].contains("all in the sending host"), "{failed:?}");
    let sent: u64 = number(&result, "datagrams");
    let bound = result["loss_bound"].as_f64().unwrap() * sent as f64;
    assert!((bound - 2.9957).abs() < 1e-3, "{bound}");
}

#[test]
fn round_trips_are_counted() {
    let test = "probe::round_trips_are_counted";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
        return;
    };
    // Requests begin with EVPQ; those of a hundred bytes lose each tenth.
    let rule = "add rule ip t c meta l4proto udp udp length 108 @th,64,32 0x45565051 numgen inc mod 10 0 counter drop";
    for command in [
        "add table ip t",
        "add chain ip t c { type filter hook input priority 0; }",
        rule,
    ] {
        if let Err(error) = pair.far.namespace.command("nft", &[command]) {
            eprintln!("skipped: {error}");
            return;
        }
    }
    let bind = format!("{}:0", pair.far.v4);
    let responder = pair
        .far
        .namespace
        .run(|| respond(&bind, &["--shift-clock=-7.5"]))
        .unwrap();
    let address = responder.address();
    let more = [
        "--size",
        "100,1000",
        "--count",
        "200",
        "--interval",
        "1ms",
        "--json",
    ];
    let ask = |more: &[&str]| {
        pair.near
            .namespace
            .run(|| run(&mut probe_of("latency", address, more)))
            .unwrap()
    };
    let output = ask(&more);
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
    let output = ask(&["--count", "20", "--format", "pscheduler"]);
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
    let test = "probe::both_ways_in_every_shape";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
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
    let points = between(&pair, &[], &near);
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

/// Nothing listens for datagrams at the far end any more: the sender stops by itself.
#[test]
fn a_stream_that_nobody_gets_is_stopped() {
    let test = "probe::a_stream_that_nobody_gets_is_stopped";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
        return;
    };
    for command in [
        "add table ip t",
        "add chain ip t c { type filter hook input priority 0; }",
        "add rule ip t c meta l4proto udp drop",
    ] {
        if let Err(error) = pair.far.namespace.command("nft", &[command]) {
            eprintln!("skipped: {error}");
            return;
        }
    }
    let bind = format!("{}:0", pair.far.v4);
    let responder = pair.far.namespace.run(|| respond(&bind, &[])).unwrap();
    let address = responder.address();
    let ask = |more: &[&str]| {
        pair.near
            .namespace
            .run(|| run(&mut probe(address, more)))
            .unwrap()
    };
    let output = ask(&["--rate", "1M", "--duration", "60s", "--json"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("circuit breaker"),
        "{stderr}"
    );
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let point = &result["points"][0];
    assert_sums(point);
    assert_eq!(number(point, "lost"), number(point, "sent"));
    let output = ask(&["--rate", "1M", "--reverse"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("firewall"),
        "{stderr}"
    );
    end(responder);
}

#[test]
fn files_that_cannot_be_written_are_named_first() {
    let more = ["--rate", "1M", "--records", "/nowhere/at/all.csv"];
    let responder = respond("127.0.0.1:0", &[]);
    let output = run(&mut probe(responder.address(), &more));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("/nowhere/at/all.csv"),
        "{stderr}"
    );
    assert!(!Path::new("/nowhere").exists());
    end(responder);
}

/// The histogram of times between arrivals is that of a capture of the same packets, bin by bin.
#[test]
fn the_histogram_is_tsharks() {
    let test = "probe::the_histogram_is_tsharks";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
        return;
    };
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("arrivals.pcap");
    let device = pair
        .far
        .namespace
        .run(|| evlbi_net::udp::interface_of(pair.far.v4.into()));
    let device = device.unwrap().unwrap();
    let mut capture = Command::new("tcpdump");
    capture
        .args([
            "-i",
            &device,
            "--nano",
            "-B",
            "16384",
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
    let Ok(Ok(mut capture)) = pair.far.namespace.run(|| capture.spawn()) else {
        eprintln!("skipped: tcpdump is not installed");
        return;
    };
    // It says that it listens once it does.
    let mut said = std::io::BufReader::new(capture.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening on") {
        line.clear();
        if std::io::BufRead::read_line(&mut said, &mut line).unwrap() == 0 {
            eprintln!("skipped: tcpdump does not listen");
            let _ = capture.wait();
            return;
        }
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
    let point = between(&pair, &[], &near).remove(0);
    // It ends with the last packet, unless it has missed one.
    let begun = std::time::Instant::now();
    while capture.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(5) {
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
    let Ok(shown) = shown else {
        eprintln!("skipped: tshark is not installed");
        return;
    };
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

/// Tasks that compete with the receiver, where the responder allows that.
#[test]
fn a_receiver_under_load() {
    let load = [
        "--rate",
        "20M",
        "--duration",
        "400ms",
        "--load-tasks",
        "2",
        "--load-nice",
        "0,19",
        "--receiver-nice",
        "10",
        "--json",
    ];
    let responder = respond("127.0.0.1:0", &[]);
    let output = run(&mut probe(responder.address(), &load));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("--allow-load"),
        "{stderr}"
    );
    end(responder);
    let responder = respond("127.0.0.1:0", &["--allow-load"]);
    let points = points(&run(&mut probe(responder.address(), &load)));
    let burdens: Vec<&Value> = points.iter().map(|point| &point["burden"]).collect();
    for (burden, nice) in burdens.iter().zip([0, 19]) {
        assert_eq!(
            **burden,
            serde_json::json!({"nice": 10, "tasks": 2, "tasks_nice": nice})
        );
    }
    for point in &points {
        assert_sums(point);
        let shares = &point["receiver_cpu"];
        let of = |name: &str| shares[name].as_f64().unwrap();
        let sum = of("user") + of("kernel") + of("interrupts") + of("idle") + of("steal");
        assert!((sum - 1.0).abs() < 1e-9 && of("user") > 0.0, "{shares}");
    }
    // They end with the test.
    let tasks = format!("/proc/{}/task", responder.child.id());
    let threads = || std::fs::read_dir(&tasks).map_or(0, Iterator::count);
    let begun = std::time::Instant::now();
    while threads() > 2 && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(threads() <= 2, "{}", threads());
    end(responder);
}

/// A path without a way back: what is sent and what is received is known by the plan alone.
#[test]
fn a_path_without_a_way_back() {
    let test = "probe::a_path_without_a_way_back";
    let Some(pair) = pair_for_test(&exact_wire(), test) else {
        return;
    };
    if !drop_one_in_a_thousand(&pair) {
        return;
    }
    for command in [
        "add chain ip t o { type filter hook output priority 0; }",
        "add rule ip t o drop",
    ] {
        pair.far.namespace.command("nft", &[command]).unwrap();
    }
    let plan = [
        "--rate", "40M", "--size", "500", "--count", "10000", "--json",
    ];
    let with = |end: &str| {
        let mut all = plan.to_vec();
        all.extend(["--one-way", end]);
        all.into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let run_at = |address: String, end: &str| {
        let mut command = evlbi();
        command
            .args(["probe", "udp", &address])
            .args(with(end))
            .env("EVLBI_TOKEN", TOKEN);
        command
    };
    let receiver = pair
        .far
        .namespace
        .run(|| Recv::listening(&mut run_at(format!("{}:0", pair.far.v4), "receive"), 1))
        .unwrap();
    let to = receiver.address().to_string();
    let sent = pair
        .near
        .namespace
        .run(|| run(&mut run_at(to, "send")))
        .unwrap();
    assert!(
        sent.status.success(),
        "{}",
        String::from_utf8_lossy(&sent.stderr)
    );
    let sent: Value = serde_json::from_slice(&sent.stdout).unwrap();
    assert_eq!(number(&sent["points"][0], "used"), 10_000);
    let result = receiver.finish();
    let point = &result["points"][0];
    assert_sums(point);
    assert_eq!(
        (
            number(point, "sent"),
            number(point, "lost"),
            number(point, "network_lost")
        ),
        (10_000, 10, 10)
    );
    assert!(point["delay"].is_null());
}
