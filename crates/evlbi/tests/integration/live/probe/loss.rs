//! What is lost, and where: packet filters, sockets and token buckets are the truth.

use std::time::{Duration, Instant};

use super::{
    TOKEN, ask, assert_refused, assert_sums, between, end, exact_wire, points, probe, respond,
    respond_far, run,
};
use crate::live::support::{Recv, evlbi};
use crate::result::{brief, number};
use crate::stolen::Stolen;
use evlbi_testkit::name;
use evlbi_testkit::netns::{End, Pair, filter, pair, tc};
use serde_json::Value;

/// Drops one in a thousand of a stream's datagrams, and nothing of the control connection and the round trips; says so
/// when that cannot be done here.
#[must_use]
fn drop_one_in_a_thousand(pair: &Pair) -> bool {
    // Data datagrams begin with EVPD.
    let rule = "meta l4proto udp @th,64,32 0x45565044 numgen inc mod 1000 0 counter drop";
    filter(&pair.far, &[rule])
}

#[test]
fn one_in_a_thousand_is_lost_in_the_network() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    if !drop_one_in_a_thousand(&pair) {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let file = |name: &str| room.path().join(name).to_str().unwrap().to_owned();
    let [losses, page] = ["losses.csv", "a.html"].map(file);
    let near = [
        "--rate", "100M", "--size", "1000", "--count", "20000", "--losses", &losses, "--skip",
        "900", "--limit", "5", "--plot", &page, "--json",
    ];
    let points = between(&pair, &near);
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
    let lengths = &point["loss_run_lengths"];
    let of = |name: &str| number(lengths, name);
    assert_eq!((of("count"), of("median"), of("p999")), (20, 1, 1));
    let listed = std::fs::read_to_string(&losses).unwrap();
    let listed: Vec<&str> = listed.lines().collect();
    assert_eq!(
        listed,
        [
            "point,direction,first,last,length,after_last_loss",
            "0,there,1000,1000,1,1000",
            "0,there,2000,2000,1,1000",
            "0,there,3000,3000,1,1000",
            "0,there,4000,4000,1,1000",
            "0,there,5000,5000,1,1000",
        ]
    );
    // The table of the page, for people.
    let page = std::fs::read_to_string(&page).unwrap();
    let row = page
        .lines()
        .find(|line| line.trim_start().starts_with("there"));
    let row: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(row[1..3], ["1000", "100.000"]);
    assert_eq!(
        row[7..15],
        ["20,000", "20", "0.1000", "20", "0", "0", "0", "0"]
    );
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
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let no_room = || {
        let counters = pair.far.namespace.run(evlbi_net::host::Counters::read);
        counters.unwrap().unwrap().udp.receive_buffer_errors
    };
    let responder = respond_far(&pair, &[]);
    let near = [
        "--rate",
        "20M",
        "--size",
        "1024",
        "--duration",
        "6s",
        "--buffer",
        "200k",
        "--json",
    ];
    let output = std::thread::scope(|scope| {
        let probing = scope.spawn(|| ask(&pair, &responder, "udp", &near));
        // The responder sleeps once the stream flows, until its buffer has overflown.
        let received = || {
            let counters = pair.far.namespace.run(evlbi_net::host::Counters::read);
            counters.unwrap().unwrap().udp.in_datagrams
        };
        while received() < 500 && !probing.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        responder.signal("STOP");
        // A client gives up a responder that says nothing for 8 s.
        let stopped = Instant::now();
        while no_room() < 200 && stopped.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(5));
        }
        responder.signal("CONT");
        probing.join().unwrap()
    });
    end(responder);
    let point = &points(&output)[0];
    assert_sums(point);
    let lost = number(point, "lost");
    // Of the requests that tell the clock, afterwards, some may find no room either.
    assert!((lost..=lost + 30).contains(&no_room()), "{}", brief(point));
    assert!(lost >= 200, "{}", brief(point));
    for (name, count) in [("lost", lost), ("host_lost", lost), ("network_lost", 0)] {
        assert_eq!(number(point, name), count, "{}", brief(point));
    }
    assert_eq!(number(&point["attribution"], "receiver_socket"), lost);
    let counted = number(
        &point["receiver"]["host"]["change"]["udp"],
        "receive_buffer_errors",
    );
    assert!((lost..=no_room()).contains(&counted), "{counted}");
    let finding = point["finding"].as_str().unwrap();
    assert!(
        finding.contains("all in the receiving socket's buffer"),
        "{finding}"
    );
}

/// A token bucket before a host's card, which bridges no more than a few milliseconds in which the kernel does not run.
pub struct Bucket {
    stolen: Stolen,
}

impl Bucket {
    /// Says so when it cannot be had here.
    pub fn set(end: &End, rate: &str) -> Option<Bucket> {
        let bucket = [
            "qdisc", "add", "dev", end.device, "root", "tbf", "rate", rate, "burst", "20kb",
            "limit", "100kb",
        ];
        tc(end, &bucket).then(|| Bucket {
            stolen: Stolen::watch(),
        })
    }

    /// Whether this machine's processors were elsewhere for too long since, so that the bucket let less through; which is said.
    pub fn was_starved(&self) -> bool {
        self.stolen.is_over(0.01)
    }
}

/// A token bucket at the sending host's card lets too little through: its queue overflows in that host.
#[test]
fn a_full_queue_before_the_card_is_the_senders() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let Some(bucket) = Bucket::set(&pair.near, "50mbit") else {
        return;
    };
    let near = [
        "--rate",
        "100M",
        "--size",
        "1200",
        "--duration",
        "1s",
        "--json",
    ];
    let point = &between(&pair, &near)[0];
    assert_sums(point);
    assert_eq!(
        number(&point["attribution"], "sender_host"),
        number(point, "lost")
    );
    // Half of what leaves in time; the queue takes 0.016 s of it.
    let slipped = point["sender"]["slips"]["seconds"].as_f64().unwrap();
    let least = if slipped > 0.3 { 0 } else { 1000 };
    assert!(number(point, "lost") > least, "{}", brief(point));
    if bucket.was_starved() {
        return;
    }
    // And what came through came at the rate of the bucket, which reckons with the Ethernet header.
    let rate = point["rate_received"].as_f64().unwrap() * (1200.0 + 42.0) / 1200.0;
    assert!(rate / 50e6 < 1.02, "{rate}");
    if slipped > 0.005 {
        eprintln!("skipped in part: the sender was held up for {slipped} s");
        return;
    }
    assert!(rate / 50e6 > 0.98, "{rate}");
}

/// Whether a trial failed by what its sender did not reach, or by its connection.
pub fn fell_short(trial: &Value) -> bool {
    let lost = &trial["point"]["lost"];
    trial["passed"] == false && (lost.is_null() || *lost == 0)
}

/// The same bucket, found again by search; and no rate that is asked for is called a capacity if its sender did not reach
/// it.
#[test]
fn the_rate_of_a_bucket_is_found_again() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let Some(bucket) = Bucket::set(&pair.near, "50mbit") else {
        return;
    };
    let responder = respond_far(&pair, &[]);
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
    let output = ask(&pair, &responder, "capacity", &more);
    end(responder);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    if bucket.was_starved() {
        return;
    }
    let rate = result["rate"].as_f64().unwrap() * (1200.0 + 42.0) / 1200.0;
    assert!(rate / 50e6 < 1.03, "{rate} {}", result["finding"]);
    // A rate that the sender itself did not reach, three times, is no rate of the path's: this host has other things to do.
    let trials = result["trials"].as_array().unwrap();
    match trials.iter().find(|trial| fell_short(trial)) {
        Some(trial) => eprintln!("skipped in part: {}", trial["finding"]),
        None => assert!(rate / 50e6 > 0.94, "{rate} {}", result["finding"]),
    }
    let failed = result["trials"].as_array().unwrap().iter();
    let failed: Vec<&str> = failed
        .filter(|trial| trial["passed"] == false)
        .filter_map(|trial| trial["point"]["finding"].as_str())
        .collect();
    assert!(failed[0].contains("all in the sending host"), "{failed:?}");
    let sent: u64 = number(&result, "datagrams");
    let bound = result["loss_bound"].as_f64().unwrap() * sent as f64;
    assert!((bound - 2.9957).abs() < 1e-3, "{bound}");
}

/// Nothing listens for datagrams at the far end any more: the sender stops by itself.
#[test]
fn a_stream_that_nobody_gets_is_stopped() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    if !filter(&pair.far, &["meta l4proto udp drop"]) {
        return;
    }
    let responder = respond_far(&pair, &[]);
    let ask = |more: &[&str]| ask(&pair, &responder, "udp", more);
    let output = ask(&["--rate", "1M", "--duration", "60s", "--json"]);
    assert_refused(&output, "circuit breaker");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let point = &result["points"][0];
    assert_sums(point);
    assert_eq!(number(point, "lost"), number(point, "sent"));
    let output = ask(&["--rate", "1M", "--reverse"]);
    assert_refused(&output, "firewall");
    end(responder);
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
    assert_refused(&output, "--allow-load");
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
    let tasks = format!("/proc/{}/task", responder.child.0.id());
    let threads = || std::fs::read_dir(&tasks).map_or(0, Iterator::count);
    let begun = Instant::now();
    while threads() > 2 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(threads() <= 2, "{}", threads());
    end(responder);
}

/// A path without a way back: what is sent and what is received is known by the plan alone.
#[test]
fn a_path_without_a_way_back() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    if !drop_one_in_a_thousand(&pair) {
        return;
    }
    // Not even a route leads back.
    let routes = ["route", "flush", "table", "main"];
    pair.far.namespace.command("ip", &routes).unwrap();
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
