//! Options of a probe take effect: DSCP, interface, direction, buffers, paces, schedules.

use std::path::PathBuf;
use std::time::Duration;

use evlbi_net::run::Run;
use evlbi_probe::latency::{self, ProbeLatencyOptions};
use evlbi_probe::report::{self, Report};
use evlbi_probe::sweep::Sizes;
use evlbi_probe::udp::{self, ProbeUdpOptions};
use evlbi_probe::watch::{Row, WatchOptions, watch};
use evlbi_probe::{Direction, Target, picture};
use evlbi_testkit::buffer::assert_fits;
use evlbi_testkit::netns::{Wire, filter, pair, pair_with};
use evlbi_testkit::result::refused;
use evlbi_testkit::{Room, name, until_some};

use super::support::{
    Probing, assert_sums, drawn, end, kept, once, open, respond_far, stream, target, whole,
};

#[test]
fn datagrams_carry_their_dscp() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    // Data, requests and replies start with EVPD, EVPQ and EVPR.
    let rules = ["0x45565044", "0x45565051", "0x45565052"].map(|magic| {
        format!("meta l4proto udp @th,64,32 {magic} ip dscp 46 counter comment \"{magic}\"")
    });
    let rules = rules.each_ref().map(String::as_str);
    filter(&pair.near, &rules);
    filter(&pair.far, &rules);
    let responder = respond_far(&pair, &open());
    let near = &pair.near.namespace;
    let urgent = Target {
        dscp: Some(46),
        ..target(&responder)
    };
    let options = ProbeUdpOptions {
        target: urgent.clone(),
        both: true,
        ..stream("20M", 1472, 100)
    };
    let measured = near.run(|| udp::probe(&options, &Run::silent()));
    assert_eq!(whole(measured.unwrap()).points.len(), 2);
    for end in [&pair.near, &pair.far] {
        assert_eq!(end.counted("0x45565044"), 100);
    }
    let round_trips = || {
        let asked = pair.far.counted("0x45565051");
        (asked, pair.near.counted("0x45565052"))
    };
    let (asked, replied) = round_trips();
    let options = ProbeLatencyOptions {
        target: urgent,
        count: 100,
        interval: Duration::from_millis(1),
        loss_timeout: Duration::from_mins(1),
        ..ProbeLatencyOptions::default()
    };
    let measured = near.run(|| latency::probe(&options, &Run::silent()));
    assert_eq!(kept(measured.unwrap()).stopped, None);
    let (then_asked, then_replied) = round_trips();
    assert!(then_asked >= asked + 100 && then_replied >= replied + 100);
    end(responder);
}

#[test]
fn only_the_interface_that_is_named_is_used() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    assert_fits(100, 100);
    let responder = respond_far(&pair, &open());
    let from = |device: &str| {
        let options = ProbeUdpOptions {
            target: Target {
                device: Some(device.to_owned()),
                ..target(&responder)
            },
            both: true,
            ..stream("10M", 100, 100)
        };
        let near = &pair.near.namespace;
        near.run(|| udp::probe(&options, &Run::silent())).unwrap()
    };
    for point in whole(from(pair.near.device)).points {
        assert_sums(&point);
        assert_eq!(point.lost, 0, "{}", point.finding);
    }
    // There is no route from lo, and no eth77.
    let down = ["link", "set", "lo", "down"];
    pair.near.namespace.command("ip", &down).unwrap();
    for (device, reason) in [("lo", "cannot reach"), ("eth77", "the interface eth77")] {
        let said = refused(from(device));
        assert!(said.contains(reason), "{said}");
    }
    end(responder);
}

/// Several buffers in one sweep: all losses found no room in the receiver's socket.
#[test]
fn buffers_are_drawn() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    assert_fits(80, 1400);
    let options = ProbeUdpOptions {
        size: Sizes(vec![1400]),
        burst: 40,
        spacing: Some("5ms".parse().unwrap()),
        count: Some(80),
        buffer: vec![4000, 32_000_000],
        ..ProbeUdpOptions::default()
    };
    let result = once(&pair, options);
    let [small, large] = result.points.as_slice() else {
        panic!("{}", result.points.len());
    };
    for point in [small, large] {
        assert_sums(point);
        assert_eq!(point.attribution.receiver_socket, point.lost);
    }
    // The kernel also counts dropped clock requests, which are not datagrams of the test; their number depends on the responder's time.
    assert!(pair.far.no_room() >= small.lost, "{}", small.finding);
    assert_eq!(large.lost, 0, "{}", large.finding);
    let drawn = drawn(&picture::figure(&result));
    for text in ["requested receive buffer", "lost, by place", "runs of loss"] {
        assert!(drawn.contains(text), "{text}");
    }
}

/// The points of a sweep are in order, each with its options; tests in `src/region.rs` check their limits.
#[test]
fn a_sweep_has_all_of_its_points() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    assert_fits(50, 1400);
    let options = ProbeUdpOptions {
        size: Sizes(vec![500, 1400]),
        ..stream("10M,15M,25M,30M", 0, 50)
    };
    let result = once(&pair, options);
    let points = result.points.iter();
    let shown: Vec<(usize, f64)> = points
        .map(|point| (point.size, point.rate_asked.unwrap()))
        .collect();
    let expected: Vec<(usize, f64)> = [500, 1400]
        .into_iter()
        .flat_map(|size| [10e6, 15e6, 25e6, 30e6].map(|rate| (size, rate)))
        .collect();
    assert_eq!(shown, expected);
    for point in &result.points {
        assert_sums(point);
        assert_eq!([point.sent, point.lost], [50, 0], "{}", point.finding);
        // As requested, or delayed by a stalled host.
        let is_as_asked = point.rate_received >= 0.97 * point.rate_asked.unwrap();
        let region = serde_json::to_value(point.region).unwrap();
        assert!(region == "A" || !is_as_asked, "{}", point.finding);
    }
    let drawn = drawn(&picture::figure(&result));
    assert!(drawn.contains("500 B outbound") && drawn.contains("1400 B outbound"));
}

/// Scheduled tests in both directions, some with losses; results can be read while it runs.
#[test]
fn tests_every_now_and_then() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    let rules = ["meta l4proto udp @th,64,32 0x45565044 numgen inc mod 10 0 counter drop"];
    filter(&pair.far, &rules);
    // 100 ms of 2 Mbit/s.
    assert_fits(60, 500);
    let responder = respond_far(&pair, &open());
    let room = Room::new();
    let file = PathBuf::from(room.path("w.sqlite"));
    let options = WatchOptions {
        file: file.clone(),
        target: target(&responder),
        both: true,
        rate: Some("2M".parse().unwrap()),
        size: 500,
        every: Some(Duration::from_millis(200)),
        test: Duration::from_millis(100),
        length: Duration::from_hours(1),
        ..WatchOptions::default()
    };
    let watching = Probing::begin_near(&pair, move |run| watch(&options, run));
    let windows = |report: &Report, way: Direction| -> Vec<Row> {
        let all = report.windows.iter();
        all.filter(|window| window.direction == way)
            .cloned()
            .collect()
    };
    let so_far = until_some("a test each way", || {
        let report = report::read(&file).ok()?;
        (!windows(&report, Direction::Back).is_empty()).then_some(report)
    });
    watching.interrupt().unwrap();
    end(responder);
    let report = report::read(&file).unwrap();
    let [there, back] = Direction::BOTH.map(|way| windows(&report, way));
    assert_eq!(there.len(), back.len());
    // Results reported during the campaign are unchanged.
    let before = windows(&so_far, Direction::There);
    assert!(!before.is_empty());
    assert_eq!(
        format!("{:?}", &there[..before.len()]),
        format!("{before:?}")
    );
    // Each test is a run of its own.
    assert!(report.runs.len() >= there.len());
    for window in there {
        assert_eq!(window.sent, window.unique + window.lost);
        assert_eq!(window.network_lost, window.lost);
        // One in ten, for any start of the rule's counter.
        let tenths = [window.sent / 10, window.sent.div_ceil(10)];
        assert!(tenths.contains(&window.lost), "{window:?}");
    }
    assert!(back.iter().all(|window| window.lost == 0));
    assert!(drawn(&report::figure(&report)).contains("jitter"));
}
