//! What can be asked of a probe is what it does: class of service, interface, direction, buffers, paces, schedules.

use std::time::Duration;

use super::loss::{Bucket, fell_short};
use super::{TOKEN, ask, assert_refused, assert_sums, end, exact_wire, points, respond_far, run};
use crate::live::support::{evlbi, stood_still};
use crate::result::{brief, number};
use crate::stalls::Stalls;
use evlbi_testkit::name;
use evlbi_testkit::netns::{End, filter, pair};
use serde_json::Value;

/// Packets that a host's rule of this comment has counted.
fn counted(end: &End, comment: &str) -> u64 {
    let rules = end.namespace.command("nft", &["list", "table", "ip", "t"]);
    let rules = rules.unwrap();
    let line = rules.lines().find(|line| line.contains(comment));
    let mut words = line.unwrap().split_whitespace();
    words.find(|word| *word == "packets").unwrap();
    words.next().unwrap().parse().unwrap()
}

#[test]
fn datagrams_carry_their_class_of_service() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    // Data, requests and replies begin with EVPD, EVPQ and EVPR.
    let rules = ["0x45565044", "0x45565051", "0x45565052"].map(|magic| {
        format!("meta l4proto udp @th,64,32 {magic} ip dscp 46 counter comment \"{magic}\"")
    });
    let rules = rules.each_ref().map(String::as_str);
    if !filter(&pair.near, &rules) || !filter(&pair.far, &rules) {
        return;
    }
    let responder = respond_far(&pair, &[]);
    let urgent = |kind: &str, more: &[&str]| {
        let mut all = vec!["--dscp", "46", "--count", "500", "--json"];
        all.extend(more);
        ask(&pair, &responder, kind, &all)
    };
    let points = points(&urgent("udp", &["--rate", "20M", "--both"]));
    assert_eq!(points.len(), 2);
    for end in [&pair.near, &pair.far] {
        assert_eq!(counted(end, "0x45565044"), 500);
    }
    let before = counted(&pair.far, "0x45565051");
    let output = urgent("latency", &["--interval", "1ms"]);
    assert!(output.status.success());
    assert!(counted(&pair.far, "0x45565051") >= before + 500);
    assert!(counted(&pair.near, "0x45565052") >= before + 500);
    end(responder);
}

#[test]
fn only_the_interface_that_is_named_is_used() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let from = |device: &str| {
        let more = [
            "--rate", "10M", "--count", "200", "--both", "--device", device, "--json",
        ];
        ask(&pair, &responder, "udp", &more)
    };
    for point in points(&from(pair.near.device)) {
        assert_sums(&point);
        assert_eq!(number(&point, "lost"), 0, "{}", point["finding"]);
    }
    // There is no way from lo, and there is no eth77.
    for (device, said) in [("lo", "cannot reach"), ("eth77", "the interface eth77")] {
        let output = from(device);
        assert_refused(&output, said);
    }
    end(responder);
}

/// The far host's token bucket is in the way of what comes back alone.
#[test]
fn the_rate_of_the_way_back_is_found() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let Some(bucket) = Bucket::set(&pair.far, "30mbit") else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let more = [
        "--size",
        "1200",
        "--lowest",
        "10M",
        "--highest",
        "60M",
        "--duration",
        "500ms",
        "--precision",
        "5%",
        "--confirm",
        "1",
        "--reverse",
        "--json",
    ];
    let output = ask(&pair, &responder, "capacity", &more);
    end(responder);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    if bucket.was_starved() {
        return;
    }
    // What the queue of the bucket holds helps a short test by a little.
    let rate = result["rate"].as_f64().unwrap() * (1200.0 + 42.0) / 1200.0;
    assert!(rate < 30e6 * 1.1, "{rate} {}", result["finding"]);
    let trials = result["trials"].as_array().unwrap();
    for trial in trials.iter().filter(|trial| trial["point"].is_object()) {
        assert_eq!(trial["point"]["direction"], "back");
    }
    match trials.iter().find(|trial| fell_short(trial)) {
        Some(trial) => eprintln!("skipped in part: {}", trial["finding"]),
        None => assert!(rate > 30e6 * 0.9, "{rate} {}", result["finding"]),
    }
}

/// Trains that a large buffer holds and a small one does not (Spencer et al., figure 5-3).
#[test]
fn a_small_buffer_loses_what_a_large_one_holds() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let room = tempfile::tempdir().unwrap();
    let [svg, json] = ["a.svg", "a.json"].map(|name| room.path().join(name));
    let more = [
        "--size",
        "1400",
        "--burst",
        "40",
        "--spacing",
        "5ms",
        "--count",
        "8000",
        "--buffer",
        "4k,32M",
        "--plot",
        svg.to_str().unwrap(),
        "--json",
    ];
    let output = ask(&pair, &responder, "udp", &more);
    end(responder);
    std::fs::write(&json, &output.stdout).unwrap();
    let points = points(&output);
    let [small, large] = points.as_slice() else {
        panic!("{}", points.len());
    };
    for point in &points {
        assert_sums(point);
        let lost = number(point, "lost");
        assert_eq!(number(point, "host_lost"), lost, "{}", brief(point));
        assert_eq!(number(&point["attribution"], "receiver_socket"), lost);
    }
    let granted = |point: &Value| number(&point["receiver"]["buffer"], "granted");
    assert!(granted(small) < granted(large));
    assert!(number(small, "lost") > 1000, "{}", brief(small));
    assert_eq!(number(large, "lost"), 0, "{}", brief(large));
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("receive buffer asked") && drawn.contains("runs of loss"));
    // In a table, they are two tests.
    let table = evlbi().arg("report").arg(&json).arg("--json").output();
    let table: Value = serde_json::from_slice(&table.unwrap().stdout).unwrap();
    let columns = &table["columns"];
    let of = |column: usize| columns[column].as_str().unwrap().to_owned();
    assert_eq!(columns.as_array().unwrap().len(), 2, "{columns}");
    assert!(
        of(0).contains("bursts of 40") && of(0) != of(1),
        "{columns}"
    );
}

/// Figure 4 of Spencer et al., of a path that a token bucket fills.
#[test]
fn a_sweep_tells_its_regions() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let Some(bucket) = Bucket::set(&pair.near, "20mbit") else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let room = tempfile::tempdir().unwrap();
    let svg = room.path().join("a.svg");
    let more = [
        "--size",
        "500,1400",
        "--rate",
        "10M,15M,25M,30M",
        "--duration",
        "600ms",
        "--plot",
        svg.to_str().unwrap(),
        "--json",
    ];
    let stalls = Stalls::watch();
    let output = ask(&pair, &responder, "udp", &more);
    end(responder);
    let points = points(&output);
    assert_eq!(points.len(), 8);
    let has_stalled = stood_still(stalls, Duration::ZERO);
    if bucket.was_starved() || has_stalled {
        return;
    }
    // Points of a size are held against each other.
    let slipped = |size: u64| {
        let mut same = points.iter().filter(|point| number(point, "size") == size);
        same.any(|point| point["sender"]["slips"]["seconds"].as_f64().unwrap() > 0.01)
    };
    for (point, expected) in points.iter().zip(["A", "A", "B", "B"].iter().cycle()) {
        let of = |name: &str| point[name].as_f64().unwrap();
        // A host with other things to do is the limit itself, and the bucket's queue runs dry meanwhile.
        let is_asked = *expected == "A" || number(point, "lost") == 0;
        let is_slow = of("rate_sent") < 0.98 * of("rate_asked") && is_asked;
        if is_slow || slipped(number(point, "size")) {
            eprintln!("skipped in part: {}", point["finding"]);
        } else {
            assert_eq!(point["region"], *expected, "{}", brief(point));
        }
    }
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = result["findings"].as_array().unwrap();
    let is_full = |finding: &Value| finding.as_str().unwrap().contains("the path is full at");
    let is_known = [500, 1400].into_iter().any(|size| !slipped(size));
    assert!(!is_known || said.iter().any(is_full), "{said:?}");
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("B: the path is full"));
}

/// Tests on a schedule, both ways, some of which lose.
#[test]
fn tests_every_now_and_then() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let rules = ["meta l4proto udp @th,64,32 0x45565044 numgen inc mod 10 0 counter drop"];
    if !filter(&pair.far, &rules) {
        return;
    }
    let responder = respond_far(&pair, &[]);
    let room = tempfile::tempdir().unwrap();
    let [file, svg] = ["w.sqlite", "w.svg"].map(|name| room.path().join(name));
    let mut command = evlbi();
    command
        .arg("watch")
        .arg(&file)
        .arg(responder.address().to_string())
        .args([
            "--rate", "5M", "--both", "--every", "2500ms", "--test", "300ms",
        ])
        .args(["--for", "15s", "--loss-timeout", "1s", "--json"])
        .env("EVLBI_TOKEN", TOKEN);
    let begun = std::time::Instant::now();
    let stalls = Stalls::watch();
    let output = pair.near.namespace.run(|| run(&mut command)).unwrap();
    let has_stalled = stood_still(stalls, Duration::from_millis(500));
    assert!(begun.elapsed() < Duration::from_secs(60));
    end(responder);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let windows = report["windows"].as_array().unwrap();
    let of = |way: &str| -> Vec<&Value> {
        let of = windows.iter().filter(|window| window["direction"] == way);
        of.collect()
    };
    let [there, back] = ["there", "back"].map(of);
    let least = if has_stalled { 1 } else { 3 };
    assert!(
        there.len() >= least && there.len() == back.len(),
        "{}",
        windows.len()
    );
    let runs = report["runs"].as_array().unwrap();
    let begins: Vec<f64> = runs
        .iter()
        .map(|run| run["begun"].as_f64().unwrap())
        .collect();
    // A host that stands still may put off one or the other.
    let is_as_asked = |pair: &[f64]| (pair[1] - pair[0] - 2.5).abs() < 0.5;
    assert!(
        has_stalled || begins.windows(2).any(is_as_asked),
        "{begins:?}"
    );
    for window in there {
        let of = |name: &str| number(window, name);
        assert_eq!(of("sent"), of("unique") + of("lost"));
        assert_eq!(of("network_lost"), of("lost"));
        // One in ten, wherever the rule's counter stood.
        assert!(of("lost") == of("sent") / 10 || of("lost") == of("sent").div_ceil(10));
    }
    assert!(back.iter().all(|window| number(window, "lost") == 0));
    let drawn = evlbi()
        .arg("report")
        .arg(&file)
        .arg("--plot")
        .arg(&svg)
        .output();
    assert!(drawn.unwrap().status.success());
    assert!(std::fs::read_to_string(&svg).unwrap().contains("jitter"));
}
