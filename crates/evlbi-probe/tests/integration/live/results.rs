//! Content and formats of results: times, clocks, histograms, tables, plots, files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use evlbi_net::host::Counters;
use evlbi_net::run::Run;
use evlbi_probe::latency::{self, ProbeLatency, ProbeLatencyError, ProbeLatencyOptions};
use evlbi_probe::measure::ClockFit;
use evlbi_probe::report::matrix;
use evlbi_probe::sweep::Sizes;
use evlbi_probe::udp::{self, ProbeUdpOptions};
use evlbi_probe::{Direction, Measured, Target, picture, show};
use evlbi_testkit::buffer::assert_fits;
use evlbi_testkit::need::Kind;
use evlbi_testkit::netns::{Wire, filter, pair, pair_with};
use evlbi_testkit::result::{number, refused};
use evlbi_testkit::{Lines, Room, Running, buffer, command, name, processor, skip, until};

use super::support::{
    Probing, assert_sums, between, drawn, end, kept, open, respond_at, respond_far, respond_here,
    stream, target, udp, whole,
};

/// Asserts that the clock of both endpoints is found to be the same, within the reported error.
#[track_caller]
fn assert_one_clock(clock: Option<ClockFit>) {
    let clock = clock.unwrap();
    assert!(clock.offset.abs() <= clock.error, "{clock:?}");
}

type Latency = Result<Measured<ProbeLatency>, ProbeLatencyError>;

/// Returns sent, received and lost requests of each length.
fn counts(result: &ProbeLatency) -> Vec<[u64; 3]> {
    let points = result.points.iter();
    let counts = points.map(|point| [point.sent, point.received, point.lost]);
    counts.collect()
}

#[test]
fn round_trips_are_counted() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    // Requests start with EVPQ; every tenth one of a hundred bytes is dropped. Replies start with EVPR.
    let requests = "meta l4proto udp udp length 108 @th,64,32 0x45565051";
    let rules = [
        format!("{requests} counter comment \"requests\""),
        format!("{requests} numgen inc mod 10 0 drop"),
    ];
    let replies =
        "meta l4proto udp udp length 108 @th,64,32 0x45565052 counter comment \"replies\"";
    filter(&pair.far, &rules.each_ref().map(String::as_str));
    let any = "meta l4proto udp counter comment \"any\"";
    filter(&pair.near, &[replies, any]);
    let responder = respond_far(&pair, &open());
    let to = target(&responder);
    let begin = |sizes: &[usize], count: u64, timeout: Duration| {
        let options = ProbeLatencyOptions {
            target: to.clone(),
            size: Sizes(sizes.to_vec()),
            count,
            interval: Duration::from_millis(1),
            loss_timeout: timeout,
            ..ProbeLatencyOptions::default()
        };
        Probing::begin_near(&pair, move |run| -> Latency {
            latency::probe(&options, run)
        })
    };
    // Long enough for a reply in flight during any stall.
    let patient = Duration::from_mins(1);
    // It waits for the dropped ones until it is interrupted. No other program has a socket there, nor had one before.
    let lossy = begin(&[100], 50, patient);
    until("all requests and replies have arrived", || {
        pair.far.counted("requests") == 50 && pair.near.counted("replies") == 45
    });
    let come = pair.near.counted("any");
    until("all arrived datagrams are read", || {
        let counters = pair.near.namespace.run(Counters::read);
        counters.unwrap().unwrap().udp.in_datagrams >= come
    });
    let result = kept(lossy.interrupt());
    // It may not have noticed yet that it has sent the last, and then reports an interruption.
    let stopped = result.stopped.as_deref();
    assert!(
        stopped.is_none_or(|why| why == "interrupted"),
        "{stopped:?}"
    );
    assert_eq!(counts(&result), [[50, 45, 5]]);
    assert_one_clock(result.clock);
    let result = kept(begin(&[200, 300], 100, patient).end());
    assert_eq!(result.stopped, None);
    assert!(drawn(&latency::figure(&result)).contains("round trip"));
    assert_eq!(counts(&result), [[100, 100, 0], [100, 100, 0]]);
    assert_one_clock(result.clock);
    // Without interruption it ends, too; late replies are lost.
    let result = kept(begin(&[100], 50, Duration::from_millis(500)).end());
    let [sent, received, lost] = counts(&result)[0];
    assert!(
        (sent, lost) == (50, 50 - received) && received <= 45,
        "{result:?}"
    );
    let result = kept(begin(&[64], 20, patient).end());
    let told = latency::pscheduler(&result, 1000);
    assert_eq!(
        (
            number(&told, "packets-sent"),
            number(&told, "packets-received")
        ),
        (20, 20)
    );
    let buckets = told["histogram-latency"].as_object().unwrap().values();
    assert_eq!(
        buckets.map(|count| count.as_u64().unwrap()).sum::<u64>(),
        20
    );
    let short = begin(&[40], 20, patient).end();
    assert!(matches!(short, Err(ProbeLatencyError::Short(40))));
    end(responder);
}

#[test]
fn both_directions_in_every_shape() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let count = (buffer::holds(8972) / 2).min(50) as u64;
    assert!(count > 5);
    let options = ProbeUdpOptions {
        size: Sizes(vec![32, 1472, 8972]),
        spacing: Some("100us,500us".parse().unwrap()),
        count: Some(count),
        both: true,
        ..ProbeUdpOptions::default()
    };
    let points = between(&pair, options);
    assert_eq!(points.len(), 3 * 2 * 2);
    for point in &points {
        assert_sums(point);
        assert_eq!([point.sent, point.lost], [count, 0]);
        let departures = point.departures.as_ref().unwrap();
        assert_eq!(departures.count, count - 1);
        // Stalls never make it faster than requested, except for the 2 % by which a late datagram is caught up.
        let asked = point.spacing_asked.unwrap();
        assert!(departures.min as f64 >= asked * 0.97, "{departures:?}");
        let wire = 1.0 + 66.0 / point.size as f64;
        let ratio = point.wire_rate_sent / point.rate_sent;
        assert!((ratio - wire).abs() < 1e-9);
    }
    let ways: Vec<Direction> = points.iter().map(|point| point.direction).collect();
    assert_eq!(ways[..2], Direction::BOTH);
    // Bursts, in the return direction, over IPv6.
    assert_fits(100, 200);
    let responder = respond_at(&pair, pair.far.v6, &open());
    let options = ProbeUdpOptions {
        target: Target {
            dscp: Some(46),
            ..target(&responder)
        },
        size: Sizes(vec![200]),
        spacing: Some("1ms".parse().unwrap()),
        burst: 20,
        count: Some(100),
        reverse: true,
        ..ProbeUdpOptions::default()
    };
    let near = &pair.near.namespace;
    let measured = near.run(|| udp::probe(&options, &Run::silent()));
    end(responder);
    let point = &whole(measured.unwrap()).points[0];
    assert_sums(point);
    assert_eq!((point.sent, point.lost), (100, 0));
    assert_eq!(point.departures.as_ref().unwrap().count, 4);
    let wire = point.wire_rate_sent / point.rate_sent;
    assert!((wire - (1.0 + 86.0 / 200.0)).abs() < 1e-9);
}

/// Formats for other programs and for people.
#[test]
fn results_are_shown_in_every_form() {
    assert_fits(200, 200);
    let room = Room::new();
    let file = |name: &str| PathBuf::from(room.path(name));
    let responder = respond_here(&open());
    processor::stay();
    let options = ProbeUdpOptions {
        size: Sizes(vec![200]),
        spacing: Some("50us..150us:50us".parse().unwrap()),
        count: Some(200),
        records: Some(file("records.csv")),
        losses: Some(file("losses.csv")),
        skip: 100,
        limit: 50,
        ..ProbeUdpOptions::default()
    };
    let result = udp(&responder, options.clone());
    let picture = drawn(&picture::figure(&result));
    let is_dots = |letter: char| ('\u{2801}'..='\u{28ff}').contains(&letter);
    assert!(picture.contains("times between arrivals") && picture.contains(is_dots));
    let text = show::udpmon(&result);
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
    let text = room.text("records.csv");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 50);
    assert!(
        lines[1].starts_with("0,there,100,") && lines[2].starts_with("0,there,101,"),
        "{}",
        lines[1]
    );
    // Existing files are not overwritten by accident.
    let again = ProbeUdpOptions {
        target: target(&responder),
        ..options
    };
    let said = refused(udp::probe(&again, &Run::silent()));
    assert!(said.contains("records.csv exists"), "{said}");
    // A table of many results.
    let files = [("one.json", "fibre"), ("two.json", "campus")].map(|(name, label)| {
        let options = ProbeUdpOptions {
            label: Some(label.to_owned()),
            ..stream("10M", 100, 100)
        };
        let result = udp(&responder, options);
        PathBuf::from(room.write(name, serde_json::to_vec(&result).unwrap()))
    });
    let table = matrix::read(&files).unwrap();
    assert_eq!((table.columns.len(), table.rows.len()), (1, 2));
    assert!(table.rows[1].name.contains("campus"), "{table:?}");
    assert_eq!(table.rows[0].cells[0].as_ref().unwrap().loss, 0.0);
    let wrong = refused(matrix::read(&[files[0].clone(), file("records.csv")]));
    assert!(wrong.contains("records.csv"), "{wrong}");
    let told = show::pscheduler(&udp(&responder, stream("10M", 100, 100)));
    let stream = &told["summary"]["streams"][0];
    assert_eq!((number(stream, "sent"), number(stream, "lost")), (100, 0));
    assert!(stream["throughput-bits"].as_f64().unwrap() > 0.0);
    end(responder);
}

#[test]
fn files_that_cannot_be_written_are_named_first() {
    let responder = respond_here(&open());
    let options = ProbeUdpOptions {
        target: target(&responder),
        duration: Some(Duration::from_hours(1)),
        count: None,
        records: Some("/nowhere/at/all.csv".into()),
        ..stream("1M", 100, 0)
    };
    let said = refused(udp::probe(&options, &Run::silent()));
    assert!(said.contains("/nowhere/at/all.csv"), "{said}");
    assert!(!Path::new("/nowhere").exists());
    end(responder);
}

/// Number of captured datagrams.
const COUNT: usize = 300;

/// The histogram of times between arrivals matches a capture of the same packets, bin by bin.
#[test]
fn the_histogram_is_tsharks() {
    let Some(pair) = pair_with(&["tcpdump", "tshark"], &Wire::exact(), name!()) else {
        return;
    };
    // It drops its groups first, which the root of a user namespace may not.
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
            // Headers only: the buffer would hold sixty-four whole packets.
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
    // It prints a line when it listens.
    let mut said = Lines::of(capture.0.stderr.take().unwrap());
    assert!(
        said.any(|line| line.contains("listening on")),
        "tcpdump does not listen"
    );
    let options = ProbeUdpOptions {
        size: Sizes(vec![300]),
        spacing: Some("200us".parse().unwrap()),
        count: Some(COUNT as u64),
        bins: Duration::from_micros(2),
        ..ProbeUdpOptions::default()
    };
    let point = between(&pair, options).remove(0);
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
    let text = String::from_utf8(shown.unwrap().stdout).unwrap();
    // There is none before the first packet.
    let mut bins = BTreeMap::<u64, u64>::new();
    let gaps = text.lines().skip(1).map(|gap| {
        let (seconds, nanos) = gap.split_once('.').unwrap();
        seconds.parse::<u64>().unwrap() * 1_000_000_000 + nanos.parse::<u64>().unwrap()
    });
    for gap in gaps {
        *bins.entry(gap / 2000 * 2000).or_default() += 1;
    }
    assert_eq!(bins.values().sum::<u64>(), COUNT as u64 - 1);
    assert_eq!(point.lost, 0);
    assert_eq!(point.arrivals.unwrap().bins, bins);
}
