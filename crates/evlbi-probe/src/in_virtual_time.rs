//! Whole tests of a path in virtual time, with both endpoints: the shared scene, and streams of datagrams.
//!
//! A test of anything that depends on a rate, a delay or a timeout belongs here, in the file of its command.

mod campaigns;
mod capacity;
mod clients;
mod fitness;
mod latency;
mod one_way;
mod responders;
mod tcp;

use std::time::Duration;

use evlbi_core::path::{Law, Loss, Shape, Times};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::run::Run;
use evlbi_net::sim::{Host, Network};
use sha2::{Digest, Sha256};

use super::direction::Direction;
use super::session::Target;
use super::sweep::{Rates, Sizes, Spacings};
use super::udp::{self, ProbeUdp, ProbeUdpOptions};
use crate::endpoint::Limits;
use crate::measure::{Pattern, Token};
use crate::respond::{RespondOptions, Responding, respond};

const TOKEN: &str = "a token of tests";
/// Start of all scenes: 2027-01-15T08:00:00Z.
const BEGINNING: u64 = 1_800_000_000 * Nanos::SECOND.0;
/// Bytes of IP and UDP headers.
const HEADERS: usize = 28;

/// A responder behind a path, and a client before it.
struct Scene {
    network: Network,
    near: Run,
    far: Host,
    responding: Responding,
}

impl Scene {
    fn target(&self) -> Target {
        Target {
            address: self.responding.addresses()[0].to_string(),
            token: Token::from(TOKEN),
            ..Target::default()
        }
    }

    fn udp(&self, options: ProbeUdpOptions) -> ProbeUdp {
        let target = self.target();
        let measured = udp::probe(&ProbeUdpOptions { target, ..options }, &self.near);
        measured.unwrap().result
    }
}

/// Plays a scene twice for each seed of a path that delays, loses, duplicates and reorders. The results and the logs must be the same.
fn twice(seeds: u64, work: impl Fn(&Scene) -> serde_json::Value) {
    let mut logs = std::collections::BTreeSet::new();
    for seed in 0..seeds {
        let mut path = Path::of(&rough());
        path.seed = seed;
        let (result, log) = path.play(&work);
        let (again, other) = path.play(&work);
        let [log, other] = [log, other].map(|log| Sha256::digest(log.as_bytes()));
        assert_eq!(result, again, "seed {seed}");
        assert_eq!(log, other, "seed {seed}");
        logs.insert(log);
    }
    assert_eq!(logs.len() as u64, seeds);
}

fn rough() -> Vec<Law> {
    let jitter = Law::Delay {
        delay: Nanos(5_000_000),
        jitter: Nanos(400_000),
        shape: Shape::Uniform,
        reorders: true,
    };
    let loss = Law::Loss(Loss::Random { fraction: 0.03 });
    vec![loss, Law::Duplicate { fraction: 0.02 }, jitter]
}

/// A path, with the rules of its cells in both directions.
struct Path {
    laws: [Vec<Law>; 2],
    seed: u64,
    /// Offset of the responder's UTC, and its gain per second, in nanoseconds.
    far_clock: [i64; 2],
    limits: Limits,
    /// Whether events are logged.
    is_logged: bool,
}

impl Path {
    fn new(laws: [Vec<Law>; 2]) -> Path {
        Path {
            laws,
            seed: 1,
            far_clock: [0; 2],
            limits: RespondOptions::default().limits,
            is_logged: true,
        }
    }

    /// Returns a path with the same rules in both directions.
    fn of(laws: &[Law]) -> Path {
        Path::new([laws.to_vec(), laws.to_vec()])
    }

    /// Runs `work` in this scene; returns its result and the log.
    fn play<T>(&self, work: impl FnOnce(&Scene) -> T) -> (T, String) {
        let clock = Clock::simulated(BEGINNING);
        if self.is_logged {
            clock.keep_log();
        }
        let laws = [&self.laws[0][..], &self.laws[1]];
        let network = Network::between(&clock, laws, 9000, self.seed);
        let [ahead, drift] = self.far_clock;
        let far = network.far(1);
        far.clock().step(ahead);
        far.clock().drift(drift);
        let options = RespondOptions {
            token: Token::from(TOKEN),
            limits: self.limits,
            ..RespondOptions::default()
        };
        let done = clock.simulate(|| {
            let responding = respond(&options, &Run::silent().on(&far)).unwrap();
            work(&Scene {
                near: Run::silent().on(&network.near(1)),
                far,
                network: network.clone(),
                responding,
            })
        });
        (done, clock.take_log())
    }
}

fn delay(milliseconds: u64) -> Law {
    Law::Delay {
        delay: Nanos(milliseconds * 1_000_000),
        jitter: Nanos(0),
        shape: Shape::Uniform,
        reorders: false,
    }
}

/// Returns a bottleneck: its rate in bits of IP packets per second, and its buffer in bytes.
fn bottleneck(rate: u64, buffer: u64) -> Law {
    Law::Rate {
        rate: bits(rate),
        buffer,
        overhead: 0,
        mark: None,
    }
}

fn bits(rate: u64) -> BitRate {
    BitRate::new(rate).unwrap()
}

/// Returns the numbers of the outbound datagrams that the first cell dropped, all of one stream of this size.
fn dropped(log: &str, size: usize) -> Vec<u64> {
    let time = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
    let is_of_stream = |line: &&str| {
        line.contains(": 10.255.0.1:") && line.contains(&format!(", {size} bytes, to "))
    };
    let departures = log.lines().filter(is_of_stream).map(time);
    let departures: Vec<u64> = departures.collect();
    let drops = log
        .lines()
        .filter(|line| line.contains(": cell 0: Logged") && line.contains("fate: Dropped"));
    let number = |drop: &str| {
        let at = drop.split_once("Nanos(").unwrap().1;
        let at = at.split_once(')').unwrap().0.parse().unwrap();
        let place = departures.binary_search(&at).ok()?;
        Some(place as u64)
    };
    drops.filter_map(number).collect()
}

/// Returns the numbers that a test reported as lost.
fn found_lost(point: &super::point::Point) -> Vec<u64> {
    let runs = point.intervals.iter();
    runs.flat_map(|run| run.first..=run.last).collect()
}

/// Each datagram leaves on time, to the nanosecond, in each direction and size, and all arrive with the same spacing.
#[test]
fn datagrams_leave_and_arrive_as_they_should() {
    let (result, _) = Path::of(&[delay(5)]).play(|scene| {
        scene.udp(ProbeUdpOptions {
            size: Sizes(vec![32, 1472, 8972]),
            spacing: Some(Spacings(vec![12_500, 100_000])),
            count: Some(500),
            both: true,
            ..ProbeUdpOptions::default()
        })
    });
    assert_eq!((result.points.len(), &result.stopped), (12, &None));
    for point in &result.points {
        assert_eq!(
            [point.sent, point.unique, point.lost, point.reordered],
            [500, 500, 0, 0]
        );
        let spacing = point.spacing_asked.unwrap();
        for apart in [&point.departures, &point.arrivals] {
            let apart = apart.as_ref().unwrap();
            assert_eq!(
                (apart.count, apart.min as f64, apart.max as f64),
                (499, spacing, spacing)
            );
        }
        let nominal = point.size as f64 * 8e9 / spacing;
        assert!((point.rate_sent / nominal - 1.0).abs() < 1e-9, "{point:?}");
    }
}

/// A sender of whose stream nothing arrives stops at its first poll after 5 s (RFC 8084), at either endpoint. An endpoint polls when a
/// message arrives, and 20 ms after its last poll. Each sends a keepalive at a poll one second after the previous one. Since each hears the
/// other in between, polls shift by a round trip of 4 ms every other second: 1.004 s, 3.008 s, and 5.008 s after the start.
#[test]
fn a_stream_that_nobody_gets_is_stopped() {
    // Control messages are shorter.
    let short = Law::Mtu {
        bytes: 8000,
        tells: false,
    };
    for way in Direction::BOTH {
        let closed = vec![short.clone(), delay(2)];
        let laws = match way {
            Direction::There => [closed, vec![delay(2)]],
            Direction::Back => [vec![delay(2)], closed],
        };
        let (result, _) = Path::new(laws).play(|scene| {
            scene.udp(ProbeUdpOptions {
                size: Sizes(vec![8972]),
                spacing: Some(Spacings(vec![1_000_000])),
                duration: Some(Duration::from_secs(60)),
                reverse: way == Direction::Back,
                ..ProbeUdpOptions::default()
            })
        });
        let stopped = result.stopped.unwrap();
        let point = &result.points[0];
        let sent = point.sent;
        match way {
            Direction::There => assert_eq!(
                stopped,
                "nothing arrived at the other endpoint for 5 s: sending was stopped (circuit breaker, RFC 8084)"
            ),
            Direction::Back => {
                assert_eq!(stopped, format!("sending ended after {sent} datagrams"));
            }
        }
        assert_eq!(
            [point.unique, point.lost, point.network_lost],
            [0, sent, sent]
        );
        // One per millisecond, from a millisecond after the start.
        assert_eq!(sent, 5008, "{way:?}");
    }
}

/// A switch that drops one in a thousand at line rate, and nothing below: each loss is attributed to the network.
#[test]
fn a_switch_that_loses_at_line_rate() {
    let switch = Law::Loss(Loss::Above {
        rate: bits(900_000_000),
        window: Nanos(1_000_000),
        overhead: 0,
        fraction: 1e-3,
    });
    for (rate, is_lossy) in [(800, false), (950, true)] {
        let laws = [vec![switch.clone(), delay(3)], vec![delay(3)]];
        let (result, log) = Path::new(laws).play(|scene| {
            scene.udp(ProbeUdpOptions {
                rate: Some(Rates(vec![bits(rate * 1_000_000)])),
                count: Some(100_000),
                ..ProbeUdpOptions::default()
            })
        });
        let point = &result.points[0];
        let lost = dropped(&log, 1472);
        assert_eq!(found_lost(point), lost);
        let dropped = lost.len() as u64;
        assert_eq!([point.sent, point.unique], [100_000, 100_000 - dropped]);
        assert_eq!([point.lost, point.network_lost], [dropped, dropped]);
        assert_eq!(dropped > 50, is_lossy, "{dropped}");
        assert_eq!(
            point.finding.contains("in the network"),
            is_lossy,
            "{}",
            point.finding
        );
    }
}

/// A fibre that loses 10 % for 500 ms every 2 s is distinguished from one that always loses 1 %. Loss is counted in hundredths of the
/// stream: 100 ms each, of which an episode fills five, or four and two halves.
#[test]
fn a_broken_fibre_is_distinguished_from_a_dirty_one() {
    let (size, spacing, count) = (1472, 400_000, 25_000);
    // Five round trips of 6 ms, 24 ms for answers to ten requests, one millisecond until the endpoint notices, and one until the first
    // datagram leaves.
    let first = 56_000_000;
    let broken = |later: u64| Loss::Within {
        times: Times::Periodic {
            period: Nanos(2_000_000_000),
            length: Nanos(500_000_000),
            first: Nanos(first + 700_000_000 + later),
        },
        fraction: 0.1,
    };
    let dirty = Loss::Random { fraction: 0.01 };
    let all = [
        (broken(0), Some(0.5)),
        (broken(50_000_000), Some(0.6)),
        (dirty, None),
    ];
    for (loss, length) in all {
        let laws = [vec![Law::Loss(loss), delay(3)], vec![delay(3)]];
        let (result, log) = Path::new(laws).play(|scene| {
            scene.udp(ProbeUdpOptions {
                spacing: Some(Spacings(vec![spacing])),
                count: Some(count),
                ..ProbeUdpOptions::default()
            })
        });
        let point = &result.points[0];
        let lost = dropped(&log, size);
        assert_eq!(found_lost(point), lost);
        let lost = lost.len() as u64;
        assert_eq!(
            [point.lost, point.network_lost, point.unattributed],
            [lost, lost, 0]
        );
        let Some(length) = length else {
            assert_eq!(point.pattern, Pattern::Constant);
            continue;
        };
        let Pattern::Periodic { period, episodes } = point.pattern else {
            panic!("{:?}", point.pattern);
        };
        assert!((period - 2.0).abs() < 1e-9, "{period}");
        assert!((episodes.length - length).abs() < 1e-9, "{episodes:?}");
        assert_eq!((episodes.count, episodes.loss_outside), (5, 0.0));
    }
}

#[test]
fn streams_are_tested_twice_alike() {
    twice(100, |scene| {
        let result = scene.udp(ProbeUdpOptions {
            spacing: Some(Spacings(vec![500_000])),
            count: Some(40),
            both: true,
            ..ProbeUdpOptions::default()
        });
        serde_json::to_value(&result).unwrap()
    });
}
