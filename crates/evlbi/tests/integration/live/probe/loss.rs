//! What is lost, and where: packet filters, sockets and token buckets are the truth.

use std::process::Command;

use super::asked::counted;
use super::{
    Probing, TOKEN, ask, assert_fits, assert_refused, assert_sums, between, end, exact_wire, field,
    no_room, points, probe, respond, respond_far, run, threads,
};
use crate::live::support::{Recv, evlbi};
use crate::result::{brief, number};
use evlbi_testkit::netns::{End, Pair, Wire, filter, pair, pair_with, tc};
use evlbi_testkit::{Room, name, processor, until};
use serde_json::{Value, json};

/// Datagrams of a stream, of which every 50th, from the first on, is dropped.
const COUNT: usize = 350;

/// Drops one in 50 of a stream's datagrams, and nothing of the control connection and the round trips.
fn drop_one_in_fifty(pair: &Pair) {
    // Data datagrams begin with EVPD.
    let rule = "meta l4proto udp @th,64,32 0x45565044 numgen inc mod 50 0 counter drop";
    filter(&pair.far, &[rule]);
}

#[test]
fn one_in_fifty_is_lost_in_the_network() {
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    drop_one_in_fifty(&pair);
    assert_fits(COUNT, 100);
    let room = Room::new();
    let [losses, page] = ["losses.csv", "a.html"].map(|name| room.path(name));
    processor::stay();
    let count = COUNT.to_string();
    let near = [
        "--rate", "10M", "--size", "100", "--count", &count, "--losses", &losses, "--skip", "60",
        "--limit", "5", "--plot", &page, "--json",
    ];
    let points = between(&pair, &near);
    let point = &points[0];
    assert_sums(point);
    let rules = pair
        .far
        .namespace
        .command("nft", &["list", "table", "ip", "t"]);
    let rules = rules.unwrap();
    assert!(rules.contains("packets 7 "), "{rules}");
    for (name, count) in [
        ("sent", 350),
        ("lost", 7),
        ("network_lost", 7),
        ("host_lost", 0),
    ] {
        assert_eq!(number(point, name), count, "{}", brief(point));
    }
    assert_eq!(point["loss_runs"], json!({"1": 7}));
    let lengths = &point["loss_run_lengths"];
    let of = |name: &str| number(lengths, name);
    assert_eq!((of("count"), of("median"), of("p999")), (7, 1, 1));
    let listed = room.text("losses.csv");
    let listed: Vec<&str> = listed.lines().collect();
    assert_eq!(
        listed,
        [
            "point,direction,first,last,length,after_last_loss",
            "0,there,100,100,1,50",
            "0,there,150,150,1,50",
            "0,there,200,200,1,50",
            "0,there,250,250,1,50",
            "0,there,300,300,1,50",
        ]
    );
    // The table of the page, for people.
    let page = room.text("a.html");
    let row = page
        .lines()
        .find(|line| line.trim_start().starts_with("there"));
    let row: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(row[1..3], ["100", "10.000"]);
    assert_eq!(row[7..15], ["350", "7", "2.0000", "7", "0", "0", "0", "0"]);
    assert_eq!(point["loss_distances"], json!({"50": 6}));
    // The rule drops the very first, which only the sender can tell.
    assert_eq!(number(&point["intervals"][0], "first"), 0);
    let finding = point["finding"].as_str().unwrap();
    assert!(
        finding.contains("all in the network") && finding.contains("one every 50 "),
        "{finding}"
    );
}

/// A stream of a plan to a receiver that has no way back.
fn one_way(address: &str, end: &str, plan: &[&str]) -> Command {
    let mut command = evlbi();
    command
        .args(["probe", "udp", address, "--one-way", end, "--json"])
        .args(plan)
        .env("EVLBI_TOKEN", TOKEN);
    command
}

/// Sends a stream to a receiver that stands still meanwhile, so that its socket alone holds it. What the sender and the
/// receiver say. It goes on when `is_sent` says that all has come that it waits for.
pub fn to_a_stopped_receiver(pair: &Pair, plan: &[&str], is_sent: impl Fn() -> bool) -> [Value; 2] {
    let bind = format!("{}:0", pair.far.v4);
    let listen = || Recv::listening(&mut one_way(&bind, "receive", plan), 1);
    let receiver = pair.far.namespace.run(listen).unwrap();
    receiver.signal("STOP");
    let to = receiver.address().to_string();
    let send = || run(&mut one_way(&to, "send", plan));
    let sent = pair.near.namespace.run(send).unwrap();
    let said = String::from_utf8_lossy(&sent.stderr);
    assert!(sent.status.success(), "{said}");
    until("what was sent has come", is_sent);
    receiver.signal("CONT");
    let sent: Value = serde_json::from_slice(&sent.stdout).unwrap();
    [sent, receiver.finish()]
}

/// A receiver that stands still while more is sent to it than its buffer holds: the kernel's own count of what it had no room
/// for is the loss in the report, in the receiving socket.
#[test]
fn what_the_socket_drops_is_the_hosts() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let plan = [
        "--rate",
        "100M",
        "--size",
        "1024",
        "--count",
        "450",
        "--buffer",
        "200k",
        "--loss-timeout",
        "100ms",
    ];
    let [sent, received] = to_a_stopped_receiver(&pair, &plan, || no_room(&pair.far) > 0);
    assert_eq!(number(&sent["points"][0], "used"), 450);
    let point = &received["points"][0];
    assert_sums(point);
    let lost = no_room(&pair.far);
    assert!(lost > 0 && lost < 450, "{lost}");
    for (name, count) in [
        ("sent", 450),
        ("lost", lost),
        ("host_lost", lost),
        ("network_lost", 0),
        ("unattributed", 0),
    ] {
        assert_eq!(number(point, name), count, "{}", brief(point));
    }
    assert_eq!(number(&point["attribution"], "receiver_socket"), lost);
    assert_eq!(number(&point["receiver"], "socket_drops"), lost);
    let change = &point["receiver"]["host"]["change"]["udp"];
    assert_eq!(number(change, "receive_buffer_errors"), lost);
    let finding = point["finding"].as_str().unwrap();
    assert!(
        finding.contains("all in the receiving socket's buffer"),
        "{finding}"
    );
}

/// A token bucket before a host's card, which lets a hundredth through of what is sent at 100 Mbit/s and bridges no more than some
/// milliseconds; and packet filters before it and behind it.
struct Bucket<'a> {
    from: &'a End,
    to: &'a End,
}

impl<'a> Bucket<'a> {
    /// None where it cannot be had here.
    fn set(from: &'a End, to: &'a End) -> Option<Bucket<'a>> {
        // Data datagrams begin with EVPD.
        let stream = "meta l4proto udp @th,64,32 0x45565044 counter comment \"stream\"";
        let all = "meta l4proto udp counter comment \"all\"";
        let bucket = "root tbf rate 1mbit burst 5kb limit 5kb".split(' ');
        let bucket: Vec<&str> = ["qdisc", "add", "dev", from.device]
            .into_iter()
            .chain(bucket)
            .collect();
        if !tc(from, &bucket) {
            return None;
        }
        filter(to, &[stream, all]);
        let chain = [
            "add table ip t",
            "add chain ip t out { type filter hook output priority 0; }",
            &format!("add rule ip t out {stream}"),
            &format!("add rule ip t out {all}"),
        ];
        for command in chain {
            from.namespace.command("nft", &[command]).unwrap();
        }
        Some(Bucket { from, to })
    }

    /// Datagrams of the stream, and all datagrams, that it has dropped.
    fn dropped(&self) -> [u64; 2] {
        ["stream", "all"].map(|what| counted(self.from, what) - counted(self.to, what))
    }
}

/// A wire whose packets a small bucket holds.
fn short_wire() -> Wire {
    Wire {
        mtu: 1500,
        ..exact_wire()
    }
}

/// A token bucket at the sending host's card lets too little through: its queue overflows in that host, and what it dropped is
/// what is lost.
#[test]
fn a_full_queue_before_the_card_is_the_senders() {
    let Some(pair) = pair_with(&["nft", "tc"], &short_wire(), name!()) else {
        return;
    };
    let Some(bucket) = Bucket::set(&pair.near, &pair.far) else {
        return;
    };
    // Even eight seconds would not let a thousand through.
    let near = [
        "--rate", "100M", "--size", "1200", "--count", "1000", "--json",
    ];
    let point = &between(&pair, &near)[0];
    assert_sums(point);
    let [dropped, of_all] = bucket.dropped();
    assert!(dropped > 0);
    for (name, count) in [("sent", 1000), ("lost", dropped), ("host_lost", dropped)] {
        assert_eq!(number(point, name), count, "{}", brief(point));
    }
    assert_eq!(number(&point["attribution"], "sender_host"), dropped);
    // Some requests that tell the clock find no room either.
    let change = &point["sender"]["host"]["change"]["udp"];
    assert_eq!(number(change, "send_buffer_errors"), of_all);
    let finding = point["finding"].as_str().unwrap();
    assert!(finding.contains("all in the sending host"), "{finding}");
}

/// Whatever a search for a capacity found, it follows from its trials.
#[track_caller]
fn assert_follows(
    result: &Value,
    [lowest, highest]: [f64; 2],
    precision: f64,
    confirmations: usize,
) {
    let trials = result["trials"].as_array().unwrap();
    let float = |value: &Value, name: &str| value[name].as_f64();
    let asked = |trial: &&Value| float(trial, "asked").unwrap();
    assert_eq!(asked(&&trials[0]), highest);
    for trial in trials {
        assert!((lowest..=highest).contains(&asked(&trial)), "{trial}");
        let point = &trial["point"];
        if !point.is_null() {
            assert_sums(point);
        }
        // A rate that is asked for is not a capacity if its sender did not reach it.
        let is_reached = float(point, "rate_sent").is_some_and(|sent| sent >= 0.98 * asked(&trial));
        let is_lossless = point["lost"] == 0;
        assert_eq!(trial["passed"], is_reached && is_lossless, "{trial}");
    }
    let lossless = trials.iter().filter(|trial| trial["point"]["lost"] == 0);
    if lossless.clone().any(|trial| trial["passed"] == false) {
        // A host stood still, and a rate was not reached: then what was sent without a loss may be what is found.
        let sent: Vec<Option<f64>> = lossless
            .map(|trial| float(&trial["point"], "rate_sent"))
            .collect();
        let found = float(result, "rate");
        assert!(found.is_none() || sent.contains(&found), "{result}");
        return;
    }
    let passed = |rate: f64| {
        let these = trials.iter();
        let these = these.filter(|trial| trial["passed"] == true && asked(trial) == rate);
        these.map(|trial| &trial["point"]).collect::<Vec<&Value>>()
    };
    let rates = trials.iter().map(|trial| asked(&trial));
    let confirmed = rates.filter(|rate| passed(*rate).len() >= confirmations);
    let Some(best) = confirmed.max_by(f64::total_cmp) else {
        assert!(result["rate"].is_null() && result["loss_bound"].is_null());
        assert_eq!(float(result, "above"), Some(lowest));
        return;
    };
    let at = passed(best);
    let slowest = at.iter().filter_map(|point| float(point, "rate_sent"));
    assert_eq!(float(result, "rate"), slowest.min_by(f64::total_cmp));
    let sent: u64 = at.iter().map(|point| number(point, "sent")).sum();
    assert_eq!(number(result, "datagrams"), sent);
    let bound = float(result, "loss_bound").unwrap() * sent as f64;
    assert!((bound - 2.9957).abs() < 1e-3, "{bound}");
    match float(result, "above") {
        None => assert_eq!(best, highest),
        Some(above) => assert!(above > best && above - best <= precision * above),
    }
}

fn capacity(pair: &Pair, more: &[&str]) -> Value {
    let responder = respond_far(pair, &[]);
    let output = ask(pair, &responder, "capacity", &[more, &["--json"]].concat());
    end(responder);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Nothing is lost but by a host that stands still: what is found follows from what was tried.
#[test]
fn a_capacity_follows_from_its_trials() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let more = [
        "--size",
        "200",
        "--lowest",
        "100k",
        "--highest",
        "1M",
        "--duration",
        "200ms",
        "--precision",
        "20%",
        "--confirm",
        "2",
    ];
    let result = capacity(&pair, &more);
    assert_follows(&result, [1e5, 1e6], 0.2, 2);
}

/// Behind a bucket that lets less through than the lowest rate no rate passes, in either direction, and the host that sends is
/// named.
#[test]
fn a_bucket_is_the_limit_of_a_capacity() {
    let Some(pair) = pair_with(&["nft", "tc"], &short_wire(), name!()) else {
        return;
    };
    let Some(bucket) = Bucket::set(&pair.near, &pair.far) else {
        return;
    };
    assert_limits(&pair, &bucket, &[], "there");
}

#[track_caller]
fn assert_limits(pair: &Pair, bucket: &Bucket<'_>, way: &[&str], direction: &str) {
    let more = [
        "--size",
        "1200",
        "--lowest",
        "10M",
        "--highest",
        "20M",
        "--duration",
        "200ms",
        "--precision",
        "20%",
        "--confirm",
        "1",
    ];
    let result = capacity(pair, &[&more[..], way].concat());
    assert_follows(&result, [10e6, 20e6], 0.2, 1);
    assert!(result["rate"].is_null(), "{}", result["rate"]);
    let trials = result["trials"].as_array().unwrap();
    let points: Vec<&Value> = trials.iter().map(|trial| &trial["point"]).collect();
    let points = points.into_iter().filter(|point| point.is_object());
    let mut lost = Vec::new();
    assert!(!trials.is_empty());
    for point in points {
        assert_eq!(point["direction"], direction);
        let all = number(point, "lost");
        assert_eq!(number(&point["attribution"], "sender_host"), all);
        lost.push(all);
    }
    let (lost_in_all, dropped) = (lost.iter().sum::<u64>(), bucket.dropped()[0]);
    // Of a trial that could not be finished nothing is known but that the bucket may have dropped some of it.
    if lost.len() == trials.len() {
        assert_eq!(lost_in_all, dropped);
    } else {
        assert!(lost_in_all <= dropped, "{lost_in_all} of {dropped}");
    }
    let finding = result["finding"].as_str().unwrap();
    assert!(finding.contains("all in the sending host"), "{finding}");
}

/// Tasks that compete with the receiver, where the responder allows that.
#[test]
fn a_receiver_under_load() {
    let load = [
        "--rate",
        "8k",
        "--size",
        "100",
        "--duration",
        "1h",
        "--load-tasks",
        "2",
        "--receiver-nice",
        "10",
        "--json",
        "--load-nice",
    ];
    let responder = respond("127.0.0.1:0", &[]);
    let output = run(&mut probe(
        responder.address(),
        &[&load[..], &["0"]].concat(),
    ));
    assert_refused(&output, "--allow-load");
    end(responder);
    let responder = respond("127.0.0.1:0", &["--allow-load"]);
    for nice in ["0", "19"] {
        let more = [&load[..], &[nice]].concat();
        let probing = Probing::start(&mut probe(responder.address(), &more));
        let tasks = || threads(&responder.child, "burden");
        // Nice values and processor time in ticks as the kernel knows them.
        until("both tasks run as asked for", || {
            let ran = |task: &String| {
                let ticks = field(task, 14).parse::<u64>();
                field(task, 19) == nice && ticks.is_ok_and(|ticks| ticks >= 5)
            };
            tasks().len() == 2 && tasks().iter().all(ran)
        });
        let listening = threads(&responder.child, "listen");
        assert_eq!(listening.len(), 1);
        assert_eq!(field(&listening[0], 19), "10");
        let point = probing.interrupt()["points"][0].clone();
        assert_sums(&point);
        let nice: i8 = nice.parse().unwrap();
        assert_eq!(
            point["burden"],
            json!({"nice": 10, "tasks": 2, "tasks_nice": nice})
        );
        let shares = &point["receiver_cpu"];
        let of = |name: &str| shares[name].as_f64().unwrap();
        let sum = of("user") + of("kernel") + of("interrupts") + of("idle") + of("steal");
        assert!((sum - 1.0).abs() < 1e-9 && of("user") > 0.0, "{shares}");
        // They end with the test.
        until("the tasks have ended", || tasks().is_empty());
    }
    // One test for each nice value; each ends after its time.
    let mut more = [&load[..], &["0,19"]].concat();
    *more.iter_mut().find(|option| **option == "1h").unwrap() = "100ms";
    let all = points(&run(&mut probe(responder.address(), &more)));
    let nice: Vec<&Value> = all
        .iter()
        .map(|point| &point["burden"]["tasks_nice"])
        .collect();
    assert_eq!(nice, [0, 19]);
    all.iter().for_each(assert_sums);
    end(responder);
}

/// A path without a way back: what is sent and what is received is known by the plan alone.
#[test]
fn a_path_without_a_way_back() {
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    drop_one_in_fifty(&pair);
    assert_fits(COUNT, 100);
    // Not even a route leads back.
    let routes = ["route", "flush", "table", "main"];
    pair.far.namespace.command("ip", &routes).unwrap();
    let count = COUNT.to_string();
    let plan = [
        "--rate",
        "10M",
        "--size",
        "100",
        "--count",
        &count,
        "--loss-timeout",
        "100ms",
    ];
    let [sent, received] = to_a_stopped_receiver(&pair, &plan, || true);
    assert_eq!(number(&sent["points"][0], "used"), 350);
    let point = &received["points"][0];
    assert_sums(point);
    for (name, count) in [
        ("sent", 350),
        ("lost", 7),
        ("network_lost", 7),
        ("duplicates", 0),
    ] {
        assert_eq!(number(point, name), count, "{}", brief(point));
    }
    assert_eq!(point["loss_runs"], json!({"1": 7}));
    assert!(point["delay"].is_null());
}
