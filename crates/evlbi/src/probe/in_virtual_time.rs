//! Whole tests of a path, by both ends, in virtual time.

mod campaigns;
mod tcp;

use std::time::Duration;

use evlbi_core::path::{Law, Loss, Shape, Times};
use evlbi_core::probe::Token;
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::probe::Limits;
use evlbi_net::run::Run;
use evlbi_net::sim::{Host, Network, Way};
use sha2::{Digest, Sha256};

use super::capacity::{self, ProbeCapacityOptions};
use super::latency::{self, ProbeLatencyOptions};
use super::point::Direction;
use super::region::Region;
use super::session::Target;
use super::sweep::{Rates, Sizes, Spacings};
use super::udp::{self, ProbeUdp, ProbeUdpOptions};
use crate::respond::{RespondOptions, Responding, respond};

const TOKEN: &str = "a token of tests";
/// When it all begins: 2027-01-15T08:00:00Z.
const BEGINNING: u64 = 1_800_000_000 * Nanos::SECOND.0;
/// Bytes of the headers of IP and UDP.
const HEADERS: usize = 28;

/// A responder at the far end of a path, and who tests it at the near end.
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

/// What it measures, and the log of all that happened, are the same twice: for each seed of a path that delays, loses, doubles and
/// reorders.
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

/// A path whose cells have these laws there and back.
struct Path {
    laws: [Vec<Law>; 2],
    seed: u64,
    /// How far the responder's UTC is ahead, and what it gains in a second, in nanoseconds.
    far_clock: [i64; 2],
    limits: Limits,
    /// Whether all that happens is written down.
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

    /// The same both ways.
    fn of(laws: &[Law]) -> Path {
        Path::new([laws.to_vec(), laws.to_vec()])
    }

    /// What `work` says in this scene, and the log of all that happened.
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

/// A bottleneck of so many bits of IP packets a second, before which so many bytes may wait.
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

/// Each datagram leaves when it should, to the nanosecond, in each direction and length, and all arrive as far apart.
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

/// As long as 97 % of what is asked for arrives in time, a point is in region A; from a loss of 3 % on the path is full.
#[test]
fn a_full_path_is_found_from_the_calculated_rate_on() {
    let (rate, buffer, seconds) = (20e6, 20_000u64, 0.6);
    // What is too much waits in the buffer, and is lost when that is full.
    let [reached, full] = [rate, rate + buffer as f64 * 8.0 / seconds].map(|rate| rate / 0.97);
    for size in [500, 1400] {
        let data = size as f64 / (size + HEADERS) as f64;
        let rates = [0.5 * reached, 0.997 * reached, 1.003 * full, 1.5 * full];
        let rates = rates.map(|rate| bits((rate * data) as u64));
        let (result, _) = Path::of(&[bottleneck(rate as u64, buffer), delay(3)]).play(|scene| {
            scene.udp(ProbeUdpOptions {
                size: Sizes(vec![size]),
                rate: Some(Rates(rates.to_vec())),
                duration: Some(Duration::from_secs_f64(seconds)),
                ..ProbeUdpOptions::default()
            })
        });
        let regions: Vec<_> = result.points.iter().map(|point| point.region).collect();
        let [a, b] = [Some(Region::A), Some(Region::B)];
        assert_eq!(regions, [a, a, b, b], "{size}");
        // All that is lost found the buffer full.
        for point in &result.points {
            assert_eq!(point.network_lost, point.lost);
            let sent = point.sent as f64 * (size + HEADERS) as f64 * 8.0;
            let taken = rate * (point.sent - 1) as f64 * point.spacing_asked.unwrap() * 1e-9;
            let lost = (sent - taken - buffer as f64 * 8.0) / ((size + HEADERS) as f64 * 8.0);
            assert!(
                (point.lost as f64 - lost.max(0.0)).abs() <= 2.0,
                "{lost} {point:?}"
            );
        }
        let said = result.findings.join(" ");
        assert!(said.contains("the path is full at"), "{said}");
    }
}

/// A receiver that takes 10 us for each datagram takes no more than 100,000 a second, of any size: region C of the small ones.
#[test]
fn a_slow_receiver_is_found_from_the_calculated_rate_on() {
    let (result, _) = Path::of(&[delay(3)]).play(|scene| {
        scene.far.work(Nanos(10_000));
        scene.udp(ProbeUdpOptions {
            size: Sizes(vec![100, 1400]),
            spacing: Some(Spacings(vec![5_000, 9_500, 10_000, 20_000])),
            duration: Some(Duration::from_millis(300)),
            buffer: vec![50_000],
            ..ProbeUdpOptions::default()
        })
    });
    let regions: Vec<_> = result.points.iter().map(|point| point.region).collect();
    let [a, c] = [Some(Region::A), Some(Region::C)];
    assert_eq!(regions[..4], [c, c, a, a]);
    for point in &result.points {
        assert_eq!(point.attribution.receiver_socket, point.lost);
        let is_too_fast = point.spacing_asked.unwrap() < 10_000.0;
        assert_eq!(point.lost > 0, is_too_fast, "{point:?}");
    }
}

/// The rate of a bottleneck is found again: the highest at which its buffer takes what is too much as long as a trial lasts.
#[test]
fn the_rate_of_a_bottleneck_is_found_again() {
    for (is_reverse, rate) in [(false, 50e6), (true, 30e6)] {
        let buffer = 20_000u64;
        let limited = vec![bottleneck(rate as u64, buffer), delay(5)];
        let laws = match is_reverse {
            false => [limited, vec![delay(5)]],
            true => [vec![delay(5)], limited],
        };
        let (found, _) = Path::new(laws).play(|scene| {
            let options = ProbeCapacityOptions {
                target: scene.target(),
                size: 1200,
                lowest: bits(10_000_000),
                highest: bits(200_000_000),
                duration: Duration::from_secs(1),
                precision: 0.01,
                confirm: 2,
                reverse: is_reverse,
                ..ProbeCapacityOptions::default()
            };
            capacity::probe(&options, &scene.near).unwrap().result
        });
        // In one second the buffer takes so much of what is too much.
        let highest = (rate + buffer as f64 * 8.0) * 1200.0 / (1200 + HEADERS) as f64;
        let found_rate = found.rate.unwrap();
        assert!(
            (0.989..1.0001).contains(&(found_rate / highest)),
            "{found_rate} {highest}"
        );
        assert_eq!(found.limit, capacity::Limit::Path);
        let way = [Direction::There, Direction::Back][usize::from(is_reverse)];
        for trial in &found.trials {
            let point = trial.point.as_ref().unwrap();
            assert_eq!((point.direction, point.network_lost), (way, point.lost));
            assert_eq!(trial.passed, point.lost == 0);
            assert!(
                (point.rate_sent / trial.asked - 1.0).abs() < 1e-3,
                "{trial:?}"
            );
        }
    }
}

/// A sender of whose stream nothing arrives stops 5 s after its beginning (RFC 8084), to the time between two looks.
#[test]
fn a_stream_that_nobody_gets_is_stopped() {
    let short = Law::Mtu {
        bytes: 1400,
        tells: false,
    };
    let (result, _) = Path::new([vec![short, delay(2)], vec![delay(2)]]).play(|scene| {
        scene.udp(ProbeUdpOptions {
            spacing: Some(Spacings(vec![1_000_000])),
            duration: Some(Duration::from_secs(60)),
            ..ProbeUdpOptions::default()
        })
    });
    let stopped = result.stopped.unwrap();
    assert!(stopped.contains("circuit breaker"), "{stopped}");
    let point = &result.points[0];
    assert_eq!([point.unique, point.lost], [0, point.sent]);
    assert!((5000..5022).contains(&point.sent), "{}", point.sent);
}

/// Three clients share a responder, which refuses a fourth stream that does not fit, and serves one the other way.
#[test]
fn three_clients_share_a_responder() {
    let mut path = Path::of(&[delay(5)]);
    path.limits.rate = Some(bits(70_000));
    path.play(|scene| {
        let options = |seconds, reverse| ProbeUdpOptions {
            target: Target {
                wait: Duration::ZERO,
                ..scene.target()
            },
            rate: Some(Rates(vec![bits(20_000)])),
            duration: Some(Duration::from_secs(seconds)),
            reverse,
            ..ProbeUdpOptions::default()
        };
        let clients = [1, 2, 3].map(|number| {
            let host = scene.network.near(number);
            let (run, options) = (Run::silent().on(&host), options(30, false));
            let work = move || udp::probe(&options, &run).unwrap().result;
            host.clock().spawn("probe", work).unwrap()
        });
        scene.near.clock().sleep(Duration::from_secs(2));
        let near = Run::silent().on(&scene.network.near(4));
        let refused = udp::probe(&options(5, false), &near)
            .unwrap_err()
            .to_string();
        let taken = "3 tests run now, which take 62.690 kbit/s to this host";
        assert!(refused.contains(taken), "{refused}");
        let back = udp::probe(&options(5, true), &near).unwrap().result;
        for result in clients
            .map(evlbi_net::clock::Thread::join)
            .iter()
            .chain([&back])
        {
            let point = &result.points[0];
            let seconds = if result.points[0].direction == Direction::Back {
                5
            } else {
                30
            };
            let due = seconds * 20_000 / 8 / 1472 + 1;
            assert!(point.sent.abs_diff(due) <= 1, "{} {due}", point.sent);
            assert_eq!([point.unique, point.lost], [point.sent, 0]);
        }
    });
}

/// Round trips and one-way delays are those of the path, whatever the far clock shows.
#[test]
fn delays_are_the_paths_and_far_clocks_are_found() {
    let mut path = Path::new([vec![delay(10)], vec![delay(10)]]);
    for far_clock in [[0, 0], [40_000_000, 0], [-3_600_000_000_000, 20_000]] {
        path.far_clock = far_clock;
        let (result, _) = path.play(|scene| {
            let options = ProbeLatencyOptions {
                target: scene.target(),
                size: Sizes(vec![64, 1000]),
                count: 200,
                ..ProbeLatencyOptions::default()
            };
            latency::probe(&options, &scene.near).unwrap().result
        });
        let clock = result.clock.unwrap();
        let drift = far_clock[1] as f64 * 1e-9;
        let offset = far_clock[0] as f64 + drift * (clock.at - BEGINNING) as f64;
        assert!(
            (clock.offset - offset).abs() < 2_000.0,
            "{clock:?} {offset}"
        );
        for size in &result.points {
            assert_eq!(
                [size.sent, size.received, size.lost, size.duplicates],
                [200, 200, 0, 0]
            );
            let of = |found: &Option<evlbi_core::account::Summary>| {
                let found = found.as_ref().unwrap();
                [found.min as f64, found.max as f64]
            };
            for round_trip in of(&size.round_trip) {
                assert!((round_trip - 20e6).abs() < 500.0, "{round_trip}");
            }
            for one_way in [of(&size.there), of(&size.back)].concat() {
                assert!((one_way - 10e6).abs() < 3_000.0, "{one_way} {far_clock:?}");
            }
        }
    }
}

/// A reply that takes longer than the loss timeout is lost, and one that takes as long is not.
#[test]
fn replies_are_waited_for_as_long_as_asked() {
    for (back, lost) in [(489, 0), (511, 50)] {
        let (result, _) = Path::new([vec![delay(10)], vec![delay(back)]]).play(|scene| {
            let options = ProbeLatencyOptions {
                target: scene.target(),
                count: 50,
                interval: Duration::from_millis(20),
                loss_timeout: Duration::from_millis(500),
                ..ProbeLatencyOptions::default()
            };
            latency::probe(&options, &scene.near).unwrap().result
        });
        let size = &result.points[0];
        assert_eq!(
            [size.sent, size.received, size.lost],
            [50, 50 - lost, lost],
            "{back}"
        );
    }
}

/// A switch that drops one in a thousand at line rate, and nothing below: each loss is the network's.
#[test]
fn a_switch_that_loses_at_line_rate() {
    let switch = Law::Loss(Loss::Above {
        rate: bits(900_000_000),
        window: Nanos(1_000_000),
        overhead: 0,
        fraction: 1e-3,
    });
    for (rate, is_lossy) in [(800, false), (950, true)] {
        let ((result, dropped), _) = Path::new([vec![switch.clone(), delay(3)], vec![delay(3)]])
            .play(|scene| {
                let result = scene.udp(ProbeUdpOptions {
                    rate: Some(Rates(vec![bits(rate * 1_000_000)])),
                    count: Some(100_000),
                    ..ProbeUdpOptions::default()
                });
                (result, scene.network.truth(Way::There, 0).dropped)
            });
        let point = &result.points[0];
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

/// A fibre that loses one datagram in ten for 500 ms every 2 s is told from one that always loses one in a hundred.
#[test]
fn a_broken_fibre_is_told_from_a_dirty_one() {
    let periodic = Times::Periodic {
        period: Nanos(2_000_000_000),
        length: Nanos(500_000_000),
        first: Nanos(700_000_000),
    };
    let broken = Loss::Within {
        times: periodic,
        fraction: 0.1,
    };
    let dirty = Loss::Random { fraction: 0.01 };
    for (loss, name) in [(broken, "periodic"), (dirty, "constant")] {
        let laws = [vec![Law::Loss(loss), delay(3)], vec![delay(3)]];
        let ((result, dropped), _) = Path::new(laws).play(|scene| {
            let result = scene.udp(ProbeUdpOptions {
                rate: Some(Rates(vec![bits(20_000_000)])),
                duration: Some(Duration::from_secs(20)),
                ..ProbeUdpOptions::default()
            });
            (result, scene.network.truth(Way::There, 0).dropped)
        });
        let point = &result.points[0];
        // Of what the path dropped, some is of the control connection and of the requests that tell the clock.
        assert_eq!([point.lost, point.unattributed], [point.network_lost, 0]);
        assert!(
            (dropped - 5..=dropped).contains(&point.lost),
            "{dropped} {}",
            point.lost
        );
        let pattern = serde_json::to_value(point.pattern).unwrap();
        assert_eq!(pattern["pattern"], name, "{pattern}");
        if name == "periodic" {
            let of = |name: &str| pattern[name].as_f64().unwrap();
            assert!((of("period") - 2.0).abs() < 0.1, "{pattern}");
            assert!((of("length") - 0.5).abs() < 0.15, "{pattern}");
            assert_eq!(of("loss_outside"), 0.0, "{pattern}");
        }
    }
}

/// A second one-way stream of a path without a way back is received like the first, and both are counted exactly.
#[test]
fn a_path_without_a_way_back() {
    let lossy = Law::Loss(Loss::Every {
        period: 10,
        first: 3,
    });
    let closed = Law::Loss(Loss::Random { fraction: 1.0 });
    let clock = Clock::simulated(BEGINNING);
    let laws: [&[Law]; 2] = [&[lossy, delay(20)], &[closed]];
    let network = Network::between(&clock, laws, 1500, 1);
    let options = ProbeUdpOptions {
        target: Target {
            address: "10.0.0.1:5000".to_owned(),
            token: Token::from(TOKEN),
            ..Target::default()
        },
        one_way: true,
        size: Sizes(vec![500, 1000]),
        spacing: Some(Spacings(vec![1_000_000])),
        count: Some(1000),
        ..ProbeUdpOptions::default()
    };
    let (sent, received) = clock.simulate(|| {
        let (near, far) = (network.near(1), network.far(1));
        let (run, own) = (Run::silent().on(&far), options.clone());
        let work = move || udp::probe(&own, &run).unwrap().result;
        let receiving = far.clock().spawn("receive", work).unwrap();
        let sent = udp::send_one_way(&options, &Run::silent().on(&near)).unwrap();
        (sent, receiving.join())
    });
    let sent = serde_json::to_value(&sent).unwrap();
    for (place, point) in received.points.iter().enumerate() {
        assert_eq!(sent["points"][place]["used"], 1000);
        assert_eq!([point.sent, point.unique, point.lost], [1000, 900, 100]);
        assert_eq!(point.loss_runs.get(&1), Some(&100));
    }
    assert_eq!((received.points.len(), received.stopped), (2, None));
}

/// Tests wait for others in the order in which they were asked for, and begin when there is room; one that does not want to wait is
/// refused. What a client that was killed had taken is free at once.
#[test]
fn tests_wait_for_room() {
    let mut path = Path::of(&[delay(5)]);
    path.limits.tests = 1;
    path.limits.rate = Some(bits(50_000_000));
    path.play(|scene| {
        let clock = scene.near.clock();
        let begin = |number: u8, seconds: u64, wait: u64| {
            let host = scene.network.near(number);
            let run = Run::silent().on(&host);
            let options = ProbeUdpOptions {
                target: Target {
                    wait: Duration::from_secs(wait),
                    ..scene.target()
                },
                rate: Some(Rates(vec![bits(1_000_000)])),
                duration: Some(Duration::from_secs(seconds)),
                ..ProbeUdpOptions::default()
            };
            let own = host.clock().clone();
            let work = move || {
                let done = udp::probe(&options, &run);
                (done, own.now().as_secs_f64())
            };
            host.clock().spawn("probe", work).unwrap()
        };
        let first = begin(1, 10, 0);
        clock.sleep(Duration::from_secs(1));
        let second = begin(2, 5, 60);
        clock.sleep(Duration::from_secs(1));
        let (refused, at) = begin(3, 1, 0).join();
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("1 tests run now") && refused.contains("--wait"),
            "{refused}"
        );
        assert!((2.0..2.1).contains(&at), "{at}");
        let (first, first_at) = first.join();
        let (second, second_at) = second.join();
        for result in [first, second] {
            assert_eq!((result.as_ref().unwrap().result.points[0].lost), 0);
        }
        assert!((10.0..12.0).contains(&first_at), "{first_at}");
        assert!((5.0..7.0).contains(&(second_at - first_at)), "{second_at}");

        // Killed in the middle: its host closes the connection.
        let killed = begin(4, 600, 0);
        clock.sleep(Duration::from_secs(3));
        scene.network.near(4).kill();
        drop(killed);
        let (next, at) = begin(5, 1, 60).join();
        assert_eq!(next.unwrap().result.points[0].lost, 0);
        assert!(at - second_at - 3.0 < 3.0, "{at}");
    });
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

#[test]
fn round_trips_are_measured_twice_alike() {
    twice(100, |scene| {
        let options = ProbeLatencyOptions {
            target: scene.target(),
            count: 40,
            ..ProbeLatencyOptions::default()
        };
        let result = latency::probe(&options, &scene.near).unwrap().result;
        serde_json::to_value(&result).unwrap()
    });
}

#[test]
fn capacities_are_found_twice_alike() {
    twice(100, |scene| {
        let options = ProbeCapacityOptions {
            target: scene.target(),
            lowest: bits(1_000_000),
            highest: bits(4_000_000),
            duration: Duration::from_millis(50),
            loss: 0.1,
            precision: 0.5,
            ..ProbeCapacityOptions::default()
        };
        let result = capacity::probe(&options, &scene.near).unwrap().result;
        serde_json::to_value(&result).unwrap()
    });
}

/// A client that is not heard for 8 s is gone, and what it had taken is free; one that is heard before continues. After 2 s, TCP has
/// doubled its timeout so often that it tries again after 3.2 s.
#[test]
fn a_client_that_falls_silent_is_gone_after_8_s() {
    for (silent, is_gone) in [(2, false), (9, true)] {
        let nothing = || Law::Loss(Loss::Random { fraction: 0.0 });
        let mut path = Path::new([vec![nothing(), delay(5)], vec![nothing(), delay(5)]]);
        path.limits.tests = 1;
        path.play(|scene| {
            let host = scene.network.near(2);
            let options = |seconds| ProbeUdpOptions {
                target: Target {
                    wait: Duration::ZERO,
                    ..scene.target()
                },
                // So slowly that the sender does not miss what it sends.
                spacing: Some(Spacings(vec![3_000_000_000])),
                duration: Some(Duration::from_secs(seconds)),
                size: Sizes(vec![100]),
                ..ProbeUdpOptions::default()
            };
            let (run, first) = (Run::silent().on(&host), options(40));
            let probing = host
                .clock()
                .spawn("probe", move || udp::probe(&first, &run))
                .unwrap();
            let clock = scene.near.clock();
            clock.sleep(Duration::from_secs(10));
            let cut = |fraction| {
                for way in [Way::There, Way::Back] {
                    scene
                        .network
                        .change(way, 0, Law::Loss(Loss::Random { fraction }));
                }
            };
            cut(1.0);
            clock.sleep(Duration::from_secs(silent));
            cut(0.0);
            clock.sleep(Duration::from_secs(3));
            let other = udp::probe(&options(1), &scene.near);
            let first = probing.join();
            let said = |done: anyhow::Result<super::Measured<ProbeUdp>>| match done {
                Ok(measured) => measured.result.stopped.unwrap_or_default(),
                Err(error) => format!("{error:#}"),
            };
            let [first, other] = [first, other].map(said);
            assert_eq!(
                first.contains("has said nothing for 8 s"),
                is_gone,
                "{silent}: {first}"
            );
            assert_eq!(
                other.contains("1 tests run now"),
                !is_gone,
                "{silent}: {other}"
            );
        });
    }
}
