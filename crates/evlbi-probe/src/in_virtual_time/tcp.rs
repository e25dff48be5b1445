//! TCP connections.

mod recovery;

use std::time::Duration;

use evlbi_core::path::Law;
use evlbi_trace::tcp::{Phase, Settings};

use super::{Path, Scene, bits, bottleneck, delay, twice};
use crate::direction::Direction;
use crate::tcp::matrix::Matrix;
use crate::tcp::{self, Buffer, ProbeTcp, ProbeTcpOptions, Tested};

impl Scene {
    fn tested(&self, options: ProbeTcpOptions) -> Tested {
        let target = self.target();
        tcp::probe(&ProbeTcpOptions { target, ..options }, &self.near).unwrap()
    }

    fn tcp(&self, options: ProbeTcpOptions) -> ProbeTcp {
        match self.tested(options) {
            Tested::One(measured) => *measured.result,
            Tested::Matrix(_) => panic!("one test"),
        }
    }

    fn matrix(&self, options: ProbeTcpOptions) -> Matrix {
        match self.tested(options) {
            Tested::Matrix(measured) => measured.result,
            Tested::One(_) => panic!("several tests"),
        }
    }
}

/// Payload of a message and of a segment, in bytes.
const SEGMENT: f64 = 1448.0;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Every message arrives after the path's delay, in both directions, even though the remote clock drifts and is half a minute behind. (Each
/// message is due more than 0.1 ms after the previous one was sent.)
#[test]
fn messages_at_a_constant_rate_are_on_time() {
    let mut path = Path::of(&[delay(10)]);
    path.far_clock = [-33_500_000_000, 30_000];
    let (result, _) = path.play(|scene| {
        // Large from the start: slow start would delay messages.
        let settings = Settings {
            window: Some(1000.0),
            ..Settings::default()
        };
        for host in [&scene.network.near(1), &scene.far] {
            host.set_tcp(settings);
        }
        scene.tcp(ProbeTcpOptions {
            rate: Some(bits(64_000_000)),
            message: 1000,
            duration: seconds(3),
            both: true,
            ..ProbeTcpOptions::default()
        })
    });
    assert_eq!(result.flows.len(), 2);
    for flow in &result.flows {
        let messages = flow.messages.as_ref().unwrap();
        let counts = [
            messages.due,
            messages.sent,
            messages.received,
            messages.shed,
        ];
        assert_eq!(counts, [24_000, 24_000, 24_000, 0]);
        assert_eq!(
            (flow.bytes, flow.sent_again, flow.timeouts),
            (24_000_000, 0, 0)
        );
        let delay = messages.delay.as_ref().unwrap();
        // By the sender's clock: the remote clock gains 30 us per second. Clocks show whole nanoseconds, and so does the offset.
        let way = match flow.direction {
            Direction::There => 10_000_000,
            Direction::Back => 10_000_300,
        };
        for found in [delay.min, delay.max] {
            assert!(found.abs_diff(way) <= 2, "{delay:?}");
        }
        assert!(messages.timely.late.is_empty(), "{:?}", messages.timely);
    }
    let said = result.findings.join(" ");
    assert!(said.contains("as requested"), "{said}");
}

/// Findings name the limit of a connection, with the expected fraction of the time.
#[test]
fn what_holds_a_connection_back_is_named() {
    let trip = 0.02;
    let clear = || vec![delay(10)];
    let limited = || vec![bottleneck(500_000_000, 4 << 20), delay(10)];
    let play = |there: Vec<Law>, options: ProbeTcpOptions| {
        Path::new([there, clear()])
            .play(|scene| scene.tcp(options))
            .0
    };
    let options = || ProbeTcpOptions {
        duration: seconds(4),
        algorithm: vec!["reno".to_owned()],
        ..ProbeTcpOptions::default()
    };

    let slow = ProbeTcpOptions {
        rate: Some(bits(5_000_000)),
        ..options()
    };
    let result = play(limited(), slow);
    let held = &result.flows[0].course.held_back;
    assert_eq!(held.application, 1.0, "{held:?}");

    let police = Law::Police {
        rate: bits(32_000_000),
        burst: 128 << 10,
        overhead: 0,
    };
    let result = play(vec![police, delay(10)], options());
    let held = &result.flows[0].course.held_back;
    assert!(held.window + held.repair > 0.99, "{held:?}");
    assert!(result.flows[0].sent_again > 0);

    // 60 kB per round trip.
    for (is_receiver, name) in [(false, "--buffer"), (true, "--receive-buffer")] {
        let bytes = Buffer::Bytes(60_000);
        let result = play(
            limited(),
            ProbeTcpOptions {
                buffer: if is_receiver { Vec::new() } else { vec![bytes] },
                receive_buffer: is_receiver.then_some(bytes),
                ..options()
            },
        );
        let flow = &result.flows[0];
        let held = &flow.course.held_back;
        let part = if is_receiver {
            held.receiver
        } else {
            held.buffer
        };
        assert!(part > 0.98, "{name}: {held:?}");
        if is_receiver {
            // Whole segments of the receiver's window: 40.
            let window = f64::from(flow.readings[0].last().unwrap().info.peer_window);
            let carried = (window / SEGMENT).floor() * SEGMENT * 8.0 / trip;
            for interval in &flow.intervals[1..flow.intervals.len() - 1] {
                near(interval.rate, carried, 1e-3);
            }
        } else {
            assert!(
                of_buffer(60_000.0, SEGMENT, trip).contains(&flow.rate),
                "{}",
                flow.rate
            );
        }
        let said = result.findings.join(" ");
        assert!(said.contains(name), "{said}");
    }
}

/// Returns the range of rates, in bits per second, for a send buffer. A writer is woken when a third of the buffer is free. All in flight
/// is acknowledged together, in pairs of segments: when the first third is free it is refilled, and so is the second. Each time the last
/// acknowledgement may have freed up to two segments more. The last third then lacks them, and is refilled only in the next round trip. So
/// two thirds leave per round trip, plus up to four segments, two on average. Slow start costs up to 1 %.
fn of_buffer(buffer: f64, segment: f64, round_trip: f64) -> std::ops::Range<f64> {
    let two_thirds = buffer * 2.0 / 3.0;
    let most = two_thirds + 2.0 * segment;
    two_thirds * 0.99 * 8.0 / round_trip..most * 8.0 / round_trip
}

/// Throughput is the data that leaves the send buffer per round trip, until the path is full.
#[test]
fn throughput_follows_the_buffer() {
    let path = Path::new([
        vec![bottleneck(200_000_000, 4 << 20), delay(10)],
        vec![delay(10)],
    ]);
    let (matrix, _) = path.play(|scene| {
        scene.matrix(ProbeTcpOptions {
            duration: seconds(3),
            mss: vec![536, 1448],
            buffer: [30_000, 60_000, 120_000, 4_000_000]
                .map(Buffer::Bytes)
                .to_vec(),
            ..ProbeTcpOptions::default()
        })
    });
    let matrix = serde_json::to_value(&matrix).unwrap();
    let points = matrix["points"].as_array().unwrap();
    assert_eq!(points.len(), 8);
    for point in points {
        let of = |name: &str| point[name].as_f64().unwrap();
        let segment = of("segment");
        let full = 200e6 * segment / (segment + 52.0);
        let expected = match of("buffer") {
            // Slow start takes part of the 3 s.
            large if large > full * 0.02 / 8.0 * 1.5 => 0.96 * full..full,
            small => of_buffer(small, segment, 0.02),
        };
        assert!(expected.contains(&of("rate")), "{expected:?} {point}");
    }
}

/// Returns the arrivals of a connection in the log: bytes of its segments, each counted once, and the time of the last.
fn came(log: &str, [from, to]: [u16; 2]) -> (u64, u64) {
    let of = format!(": 10.0.0.1:{to} takes from 10.255.0.1:{from}: segment ");
    let (mut seen, mut sum, mut last) = (std::collections::BTreeSet::new(), 0, 0);
    for line in log.lines() {
        let Some((before, segment)) = line.split_once(&of) else {
            continue;
        };
        let mut words = segment.split(", ");
        let number = words.next().unwrap();
        let bytes = words.next().unwrap().strip_suffix(" bytes").unwrap();
        let bytes: u64 = bytes.parse().unwrap();
        if bytes > 0 && seen.insert(number) {
            let (time, _) = before.split_once(' ').unwrap();
            last = time.parse().unwrap();
            sum += bytes;
        }
    }
    (sum, last)
}

/// Connections that share a bottleneck fill it together, and the report of each matches its arrivals.
#[test]
fn connections_share_a_bottleneck() {
    // Its buffer is twice the bandwidth-delay product, so that it never empties after a loss.
    let limited = vec![bottleneck(20_000_000, 100_000), delay(10)];
    for streams in [2, 4] {
        let path = Path::new([limited.clone(), vec![delay(10)]]);
        let (result, log) = path.play(|scene| {
            scene.tcp(ProbeTcpOptions {
                streams,
                duration: seconds(10),
                algorithm: vec!["reno".to_owned()],
                ..ProbeTcpOptions::default()
            })
        });
        assert_eq!(result.flows.len(), streams as usize);
        let all = result
            .flows
            .iter()
            .map(|flow| (flow, came(&log, flow.ports)));
        let all: Vec<_> = all.collect();
        let mut begun = Vec::new();
        for (flow, (bytes, last)) in &all {
            // Each first sends its number.
            assert_eq!(flow.bytes, bytes - 12);
            begun.push(last - (flow.seconds * 1e9).round() as u64);
            near(flow.rate, flow.bytes as f64 * 8.0 / flow.seconds, 1e-9);
            assert!(flow.sent_again > 0);
        }
        assert!(begun.iter().all(|at| *at == begun[0]), "{begun:?}");
        let sum: f64 = all.iter().map(|(_, (bytes, _))| (bytes - 12) as f64).sum();
        let seconds = result.flows.iter().map(|flow| flow.seconds);
        let total = &result.totals[0];
        near(total.rate, sum * 8.0 / seconds.fold(0.0, f64::max), 1e-9);
        let squares: f64 = result.flows.iter().map(|flow| flow.rate.powi(2)).sum();
        let rates: f64 = result.flows.iter().map(|flow| flow.rate).sum();
        near(
            total.fairness,
            rates.powi(2) / (f64::from(streams) * squares),
            1e-9,
        );
        // Slow start takes three round trips of 20 ms of 13 s, and at the end the last connection has to take over the others' rate.
        let part = total.rate / (20e6 * SEGMENT / 1500.0);
        assert!((0.99..1.0).contains(&part), "{part}");
    }
}

/// Figures 8 and 10 of Meirosu et al.: 2 s of UDP alongside a connection cost it the stream's rate and the recovery of its window.
#[test]
fn a_connection_recovers_from_a_burst_of_other_traffic() {
    let path = Path::new([
        vec![bottleneck(100_000_000, 250 << 10), delay(9)],
        vec![delay(8)],
    ]);
    let (result, _) = path.play(|scene| {
        scene.tcp(ProbeTcpOptions {
            duration: seconds(16),
            algorithm: vec!["reno".to_owned()],
            interval: Duration::from_millis(100),
            background: Some(bits(70_000_000)),
            background_at: Some(seconds(8)),
            sample: Some(Duration::from_millis(1)),
            ..ProbeTcpOptions::default()
        })
    });
    let found = result.flows[0].disturbance.as_ref().unwrap();
    assert_eq!((found.from, found.to), (8.0, 10.0));
    // The path was full before.
    let of_segments = SEGMENT / 1500.0;
    near(found.before, 100e6 * of_segments, 1e-3);
    // Losses halve the window until it fits the rest of the path and a full buffer: 89 segments. A larger window finds the buffer full a
    // round trip later, and segments of the UDP stream may be lost instead.
    let flow = &result.flows[0];
    let left = 100e6 - 70e6 * 1500.0 / 1472.0;
    let full = 0.017 + f64::from(250 << 10) * 8.0 / 100e6;
    let during = flow
        .course
        .losses
        .iter()
        .filter(|loss| (8.0..10.0).contains(&loss.at));
    let during: Vec<_> = during.collect();
    for loss in &during {
        let half = f64::from(loss.before) / 2.0;
        assert!((f64::from(loss.threshold) - half).abs() <= 1.0, "{loss:?}");
    }
    let last = during[during.len() - 1];
    near(f64::from(last.before), left * full / 8.0 / 1500.0, 0.05);
    // The rate is lowest in the tenth of a second of this loss. Arrivals up to a round trip later were sent before it; then half as much is
    // sent per round trip. Round trips get up to a fifth shorter while the buffer empties.
    let begin = (last.at * 10.0).floor() / 10.0;
    let before = (last.at + full - begin) / 0.1;
    let lowest = left * of_segments * (before + (1.0 - before) / 2.0);
    assert!(
        (1.0..1.2).contains(&(found.lowest / lowest)),
        "{found:?} {lowest}"
    );
    // After the end of the stream, each round trip takes 17 ms and 0.24 ms, the time of two segments, except the one in which the buffer
    // empties. In each the window grows by a segment, until it carries nine tenths of the previous rate. This shows in the tenth of a
    // second whose middle reaches it.
    let readings = &flow.readings[0];
    let ends = readings[0].at + 10_000_000_000;
    let end = readings
        .iter()
        .find(|reading| reading.at >= ends)
        .unwrap()
        .info;
    assert_eq!(end.phase, Phase::Open);
    let trip = 0.01724;
    let needed = 0.9 * found.before * trip / 8.0 / SEGMENT;
    let growing = (needed - f64::from(end.window)) * trip;
    let draining = f64::from(end.round_trip) * 1e-6;
    let recovery = growing - 0.05..growing + draining + 0.05;
    assert!(
        recovery.contains(&found.recovery.unwrap()),
        "{found:?} {recovery:?}"
    );
    let stream = &result.background[0];
    assert_eq!(stream.sent, 70_000_000 * 2 / 8 / 1472);
    assert_eq!(stream.sent, stream.unique + stream.lost);
}

/// A path that drops full segments, with their ICMP messages, is reported.
#[test]
fn a_black_hole_of_the_path_mtu_is_named() {
    let hole = Law::Mtu {
        bytes: 1400,
        tells: false,
    };
    let path = Path::new([vec![hole, delay(5)], vec![delay(5)]]);
    let (result, _) = path.play(|scene| {
        scene.tcp(ProbeTcpOptions {
            duration: seconds(10),
            ..ProbeTcpOptions::default()
        })
    });
    // A timeout that starts at 0.2 s plus a round trip and doubles expires five times within 10 s.
    assert_eq!(
        result.findings,
        [
            "the connection was established, but no full segment of 1448 bytes was acknowledged in 5 timeouts: a device on the path drops packets of 1500 bytes and the ICMP message about it (a path MTU black hole, RFC 2923); try --mss 1200, or as root: sysctl -w net.ipv4.tcp_mtu_probing=1"
        ]
    );
}

fn near(found: f64, expected: f64, tolerance: f64) {
    let ratio = found / expected;
    assert!((ratio - 1.0).abs() < tolerance, "{found} {expected}");
}

#[test]
fn connections_are_tested_twice_alike() {
    twice(100, |scene| {
        let result = scene.tcp(ProbeTcpOptions {
            duration: Duration::from_millis(300),
            rate: Some(bits(2_000_000)),
            both: true,
            ..ProbeTcpOptions::default()
        });
        serde_json::to_value(&result).unwrap()
    });
}
