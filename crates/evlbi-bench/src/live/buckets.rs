//! Token buckets and packet filters between two hosts: rates, regions and schedules.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evlbi_net::host::Counters;
use evlbi_net::transport::Protocol;
use evlbi_testkit::Room;
use evlbi_testkit::netns::{End, Pair};
use serde_json::Value;

use super::delays::sums;
use super::picture::{Curve, Picture, Style};
use super::programs::{
    Fields, LIMIT, Listening, ask, asked, at, evlbi, json_of, label, output_of, pair, respond,
    started_at,
};
use super::record::{Aim, Need, Record, Scene};

pub const SCENES: &[Scene] = &[
    Scene {
        name: "full-queue",
        shows: "A token bucket of 50 Mbit/s before the sender's NIC: all loss is attributed to the sending host, and the rest arrives at the bucket's rate.",
        needs: &[Need::Root, Need::Program("tc")],
        stall: Duration::from_millis(5),
        play: full_queue,
    },
    Scene {
        name: "capacity",
        shows: "`probe capacity` measures the rate of a token bucket, outbound and return.",
        needs: &[Need::Root, Need::Program("tc")],
        stall: Duration::from_millis(5),
        play: capacity,
    },
    Scene {
        name: "sweep",
        shows: "A sweep of rates through a token bucket of 20 Mbit/s shows the rate at which the path is full (figure 4 of Spencer et al.).",
        needs: &[Need::Root, Need::Program("tc")],
        stall: Duration::from_millis(10),
        play: sweep,
    },
    Scene {
        name: "spacing",
        shows: "Datagrams leave with the requested spacing, in both directions and every size.",
        needs: &[Need::Root],
        stall: Duration::from_millis(10),
        play: spacing,
    },
    Scene {
        name: "schedule",
        shows: "`watch --every 2500ms` tests on schedule, in both directions, through a filter that drops every tenth outbound \
            datagram.",
        needs: &[Need::Root, Need::Program("nft")],
        stall: Duration::from_millis(100),
        play: schedule,
    },
    Scene {
        name: "three-flows",
        shows: "Three clients share a responder, which refuses a fourth stream that does not fit, and serves one in the other \
            direction.",
        needs: &[Need::Root],
        stall: Duration::from_millis(500),
        play: three_flows,
    },
    Scene {
        name: "killed-client",
        shows: "A client that is killed in the middle of a stream delays the next test by less than 40 s.",
        needs: &[Need::Root],
        stall: Duration::from_millis(500),
        play: killed_client,
    },
];

/// Bytes that a bucket counts, relative to the payload, for a datagram of 1200 bytes.
const WIRE: f64 = (1200.0 + 42.0) / 1200.0;

/// Installs a token bucket before a host's NIC, which bridges only a few milliseconds in which the kernel does not run.
pub fn bucket(end: &End, rate: &str) -> Result<()> {
    let more = ["burst", "20kb", "limit", "100kb"];
    limit(end, rate, &more)
}

/// Installs a token bucket with this capacity.
pub fn limit(end: &End, rate: &str, more: &[&str]) -> Result<()> {
    let bucket = [
        "qdisc", "replace", "dev", end.device, "root", "tbf", "rate", rate,
    ];
    end.namespace.command("tc", &[&bucket[..], more].concat())?;
    Ok(())
}

/// Installs rules for what arrives at a host.
pub fn filter(end: &End, rules: &[&str]) -> Result<()> {
    let nft = |command: &str| end.namespace.command("nft", &[command]);
    nft("add table ip t")?;
    nft("add chain ip t c { type filter hook input priority 0; }")?;
    for rule in rules {
        nft(&format!("add rule ip t c {rule}"))?;
    }
    Ok(())
}

/// Returns the drops of the queue before a host's NIC.
fn dropped(end: &End) -> Result<u64> {
    let said = end
        .namespace
        .command("tc", &["-s", "qdisc", "show", "dev", end.device])?;
    let count = said.split_once("dropped ").and_then(|(_, rest)| {
        let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        digits.parse().ok()
    });
    count.with_context(|| format!("tc tells of no drops: {said}"))
}

fn full_queue(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    bucket(&pair.near, "50mbit")?;
    let more = ["--rate", "100M", "--size", "1200", "--duration", "2s"];
    let result = asked(&pair, Protocol::Udp.name(), &more)?;
    let point = &sums(record, &result)?[0];
    let lost = point.count("lost")?;
    record.same(
        "all that is lost is lost in the sending host",
        point["attribution"].count("sender_host")?,
        lost,
    );
    // Clock requests and TCP pass the bucket too.
    let dropped = dropped(&pair.near)?;
    record.fact(
        "the kernel dropped at least that",
        lost <= dropped,
        format!("{lost} lost, {dropped} dropped"),
    );
    record.figure(
        "lost, of half of what was sent",
        "",
        lost as f64,
        Aim::AtLeast(2000.0),
    );
    record.near(
        "rate received, with headers",
        "Mbit/s",
        point.real("rate_received")? * WIRE * 1e-6,
        50.0,
        0.02,
    );
    Ok(())
}

/// Returns whether a trial failed because its sender was too slow, or because of its connection.
fn fell_short(trial: &Value) -> bool {
    let lost = &trial["point"]["lost"];
    trial["passed"] == false && (lost.is_null() || *lost == 0)
}

fn capacity(record: &mut Record) -> Result<()> {
    for (direction, rate, band, more) in [
        (
            "there",
            50.0,
            (0.94, 1.03),
            &["--highest", "200M", "--duration", "1s", "--precision", "3%"][..],
        ),
        (
            "back",
            30.0,
            (0.9, 1.1),
            &[
                "--highest",
                "60M",
                "--duration",
                "500ms",
                "--precision",
                "5%",
                "--reverse",
            ],
        ),
    ] {
        let pair = pair()?;
        let way = label(direction);
        let end = if direction == "there" {
            &pair.near
        } else {
            &pair.far
        };
        bucket(end, &format!("{rate}mbit"))?;
        let usual = ["--size", "1200", "--lowest", "10M", "--confirm", "1"];
        let result = asked(&pair, "capacity", &[&usual[..], more].concat())?;
        let trials = result.list("trials")?;
        if let Some(trial) = trials.iter().find(|trial| fell_short(trial)) {
            record
                .seen
                .push(format!("the sender fell short: {}", trial["finding"]));
        }
        let found = result.real("rate")? * WIRE * 1e-6;
        record.figure(
            format!("{way} capacity, with headers"),
            "Mbit/s",
            found,
            Aim::Within(rate * band.0, rate * band.1),
        );
        record.fact(
            format!("{way}: each trial has its direction"),
            trials
                .iter()
                .filter(|trial| trial["point"].is_object())
                .all(|trial| trial["point"]["direction"] == direction),
            "",
        );
        let bound = result.real("loss_bound")? * result.count("datagrams")? as f64;
        record.fact(
            format!("{way}: the bound of the loss is that of Poisson's law"),
            (bound - 2.9957).abs() < 1e-3,
            format!("{bound:.5}"),
        );
        if direction == "there" {
            let failed = trials.iter().filter(|trial| trial["passed"] == false);
            let first = failed
                .filter_map(|trial| trial["point"]["finding"].as_str())
                .next();
            record.said(
                "outbound: the first loss is attributed to the sending host alone",
                first.is_some_and(|finding| finding.contains("all in the sending host")),
            );
        }
        let passed = |is_passed: bool| {
            let of = trials.iter().enumerate();
            of.filter(|(_, trial)| trial["passed"] == is_passed)
                .filter_map(|(place, trial)| {
                    let asked = trial["point"]["rate_asked"].as_f64()?;
                    Some((place as f64 + 1.0, asked * WIRE * 1e-6))
                })
                .collect()
        };
        record.pictures.push(Picture {
            title: format!("Search for the {way} capacity"),
            x: "trial",
            y: "Mbit/s asked for, with headers",
            curves: vec![
                Curve::new("passed", Style::Dots, passed(true)),
                Curve::new("lost something", Style::Dots, passed(false)),
            ],
            levels: vec![(rate, "bucket".to_owned())],
            ..Picture::default()
        });
    }
    Ok(())
}

fn sweep(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    bucket(&pair.near, "20mbit")?;
    let more = [
        "--size",
        "500,1400",
        "--rate",
        "10M,15M,25M,30M",
        "--duration",
        "600ms",
    ];
    let room = Room::new();
    let drawn = room.path("sweep.svg");
    let result = asked(
        &pair,
        Protocol::Udp.name(),
        &[&more[..], &["--plot", &drawn]].concat(),
    )?;
    let points = sums(record, &result)?;
    record.same("points", points.len() as u64, 8);
    let mut regions = String::new();
    let mut sizes = [Vec::new(), Vec::new()];
    for (place, point) in points.iter().enumerate() {
        regions += point.text("region").unwrap_or("?");
        let asked = point.real("rate_asked")? * 1e-6;
        sizes[place / 4].push((asked, point.real("rate_received")? * 1e-6));
    }
    for (size, regions) in [500, 1400].into_iter().zip([&regions[..4], &regions[4..]]) {
        record.said(
            format!("{size} B at 10, 15, 25, 30 Mbit/s: regions AABB, found {regions}"),
            regions == "AABB",
        );
    }
    let said = result["findings"].to_string();
    record.said(
        "the finding shows the rate at which the path is full",
        said.contains("the path is full at"),
    );
    record.said(
        "the probe's own picture names region B",
        room.text("sweep.svg").contains("B: the path is full"),
    );
    let curves = [500, 1400].into_iter().zip(sizes);
    record.pictures.push(Picture {
        title: "A token bucket of 20 Mbit/s, with headers, in a sweep".to_owned(),
        x: "Mbit/s asked for",
        y: "Mbit/s received",
        curves: curves
            .map(|(size, points)| Curve::new(format!("{size} B"), Style::Line, points))
            .collect(),
        levels: vec![(20.0, "bucket".to_owned())],
        ..Picture::default()
    });
    Ok(())
}

fn spacing(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    let more = [
        "--size",
        "32,1472,8972",
        "--spacing",
        "100us,500us",
        "--count",
        "2000",
        "--both",
    ];
    let result = asked(&pair, Protocol::Udp.name(), &more)?;
    let points = sums(record, &result)?;
    let mut curves = Vec::new();
    for direction in ["there", "back"] {
        let way = label(direction);
        let (mut shortest, mut farthest) = (f64::INFINITY, 0.0f64);
        let mut spread = Vec::new();
        for (place, point) in points
            .iter()
            .filter(|point| point["direction"] == direction)
            .enumerate()
        {
            let asked = point.real("spacing_asked")?;
            let of =
                |name: &str| -> Result<f64> { Ok(point["departures"].real(name)? / asked * 100.0) };
            shortest = shortest.min(of("min")?);
            farthest = farthest.max((of("median")? - 100.0).abs());
            let at = place as f64 + 1.0 + if direction == "back" { 0.15 } else { 0.0 };
            spread.extend([(at, of("min")?), (at, of("median")?), (at, of("p99")?)]);
        }
        // Never early, except for 2 % by which a late one catches up.
        record.figure(
            format!("{way}: shortest of all, of what was asked"),
            "%",
            shortest,
            Aim::AtLeast(97.0),
        );
        record.figure(
            format!("{way}: medians off by, at most"),
            "%",
            farthest,
            Aim::AtMost(2.0),
        );
        curves.push(Curve::new(way, Style::Dots, spread));
    }
    record.pictures.push(Picture {
        title: "Shortest, median and p99 of the spacing, of what was asked".to_owned(),
        x: "32 B at 100 and 500 µs, 1472 B, 8972 B",
        y: "%",
        curves,
        levels: vec![(100.0, "asked".to_owned())],
        ..Picture::default()
    });
    Ok(())
}

fn schedule(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    filter(
        &pair.far,
        &["meta l4proto udp @th,64,32 0x45565044 numgen inc mod 10 0 counter drop"],
    )?;
    let responder = respond(&pair, &[])?;
    let room = Room::new();
    let mut watch = evlbi()?;
    watch
        .arg("watch")
        .arg(room.path("w.sqlite"))
        .arg(responder.address().to_string())
        .args([
            "--rate", "5M", "--both", "--every", "2500ms", "--test", "300ms",
        ])
        .args(["--for", "15s", "--loss-timeout", "1s", "--json"]);
    let output = at(&pair.near, &mut watch)?;
    responder.stop()?;
    let report = json_of(&output)?;
    let windows = report.list("windows")?;
    let of = |way: &str| {
        windows
            .iter()
            .filter(|window| window["direction"] == way)
            .count()
    };
    record.same(
        "as many outbound as return windows",
        of("there") as u64,
        of("back") as u64,
    );
    let (mut holds, mut drops, mut exact) = (true, true, 0);
    for window in windows {
        let count = |name: &str| window.count(name);
        let (sent, lost) = (count("sent")?, count("lost")?);
        holds &= sent == count("unique")? + lost && count("network_lost")? == lost;
        // One in ten, wherever the rule's counter was; none on the return path. What a host sends after a stall of a second is lost,
        // too.
        let (least, most) = match window.text("direction")? {
            "there" => (sent / 10, sent.div_ceil(10)),
            _ => (0, 0),
        };
        drops &= lost >= least;
        exact += u64::from((least..=most).contains(&lost));
    }
    record.fact(
        "in each window sent = unique + lost, all in the network",
        holds,
        "",
    );
    record.fact("at least one in ten outbound datagrams is lost", drops, "");
    record.near(
        "windows with just that loss",
        "",
        exact as f64,
        windows.len() as f64,
        0.0,
    );
    record.figure(
        "outbound tests in 15 s",
        "",
        of("there") as f64,
        Aim::AtLeast(3.0),
    );
    let runs = report.list("runs")?;
    let begins: Vec<f64> = runs
        .iter()
        .map(|run| run.real("begun"))
        .collect::<Result<_>>()?;
    let apart: Vec<f64> = begins.windows(2).map(|pair| pair[1] - pair[0]).collect();
    ensure!(!apart.is_empty(), "a single test");
    let farthest = apart
        .iter()
        .copied()
        .max_by(|a, b| (a - 2.5).abs().total_cmp(&(b - 2.5).abs()))
        .unwrap_or(f64::NAN);
    record.figure(
        "tests begin apart, the most different",
        "s",
        farthest,
        Aim::Within(2.0, 3.0),
    );
    Ok(())
}

/// Starts a probe from the local host with these options.
fn begin(pair: &Pair, responder: &Listening, more: &[&str]) -> Result<Child> {
    let mut probe = evlbi()?;
    probe
        .args([
            "probe",
            Protocol::Udp.name(),
            &responder.address().to_string(),
            "--json",
        ])
        .args(more);
    started_at(&pair.near, &mut probe)
}

fn killed_client(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    let responder = respond(&pair, &["--max-tests", "1"])?;
    let mut client = begin(
        &pair,
        &responder,
        &["--rate", "50M", "--duration", "60s", "--reverse"],
    )?;
    let received = || pair.near.namespace.run(Counters::read);
    let datagrams = || -> Result<u64> { Ok(received()??.udp.in_datagrams) };
    let begun = Instant::now();
    while datagrams()? < 1000 && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(10));
    }
    client.kill()?;
    client.wait()?;
    let killed = Instant::now();
    let output = ask(
        &pair,
        &responder,
        Protocol::Udp.name(),
        &["--rate", "10M", "--count", "100", "--wait", "60s"],
    )?;
    let point = sums(record, &json_of(&output)?)?.remove(0);
    record.figure(
        "time until the next test is over",
        "s",
        killed.elapsed().as_secs_f64(),
        Aim::AtMost(40.0),
    );
    record.figure(
        "lost by that",
        "",
        point.count("lost")? as f64,
        Aim::AtMost(0.0),
    );
    responder.stop()?;
    Ok(())
}

fn three_flows(record: &mut Record) -> Result<()> {
    let pair = pair()?;
    let responder = respond(&pair, &["--max-rate", "70M"])?;
    let flow = ["--rate", "20M", "--duration", "8s"];
    let start = || begin(&pair, &responder, &flow);
    let flows = [start()?, start()?, start()?];
    // 20.9 Mbit/s each on the wire: a fourth one does not fit, except in the other direction.
    let more = ["--rate", "20M", "--count", "100", "--wait", "0s"];
    let mut refused = String::new();
    for _ in 0..100 {
        let output = ask(&pair, &responder, Protocol::Udp.name(), &more)?;
        if !output.status.success() {
            refused = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            break;
        }
    }
    record.said(
        "a fourth stream is refused because of 3 tests",
        refused.contains("3 tests"),
    );
    let other = ask(
        &pair,
        &responder,
        Protocol::Udp.name(),
        &[&more[..], &["--reverse"]].concat(),
    )?;
    let lost = sums(record, &json_of(&other)?)?[0].count("lost")?;
    record.figure("lost the other way", "", lost as f64, Aim::AtMost(0.0));
    for (place, flow) in flows.into_iter().enumerate() {
        let result = json_of(&output_of(flow)?)?;
        let point = sums(record, &result)?.remove(0);
        record.figure(
            format!("flow {}: lost", place + 1),
            "",
            point.count("lost")? as f64,
            Aim::AtMost(0.0),
        );
        record.near(
            format!("flow {}: rate", place + 1),
            "Mbit/s",
            point.real("rate_received")? * 1e-6,
            20.0,
            0.02,
        );
    }
    responder.stop()?;
    Ok(())
}
