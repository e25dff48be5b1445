//! Whole tests of a path, by both ends, in virtual time.

mod campaigns;
mod responders;
mod tcp;

use std::time::Duration;

use evlbi_core::path::{Law, Loss, Shape, Times};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::run::{Run, explain};
use evlbi_net::sim::{Host, Network, Way};
use sha2::{Digest, Sha256};

use super::capacity::{self, ProbeCapacityOptions};
use super::direction::Direction;
use super::latency::{self, ProbeLatencyOptions};
use super::point::Region;
use super::session::Target;
use super::sweep::{Rates, Sizes, Spacings};
use super::udp::{self, ProbeUdp, ProbeUdpOptions};
use crate::endpoint::Limits;
use crate::measure::{Pattern, Spacing, Stream, Token};
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

/// Numbers of the datagrams to the responder, all of one stream of this size, that the first cell of the way there dropped.
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

/// Numbers that a test found to be lost.
fn found_lost(point: &super::point::Point) -> Vec<u64> {
    let runs = point.intervals.iter();
    runs.flat_map(|run| run.first..=run.last).collect()
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

/// Times of so many datagrams that leave one each `spacing` nanoseconds.
fn each(spacing: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |number| number * spacing)
}

/// What becomes of packets that come at these times, in nanoseconds, before a line of so many bits a second and its buffer of so many
/// bytes: how many are lost, and nanoseconds from the first arrival to the last. By arithmetic in bits times a billion, without any clock;
/// the buffer counts the whole bytes of whole nanoseconds.
fn overflow(
    packet: usize,
    times: impl Iterator<Item = u64>,
    (rate, buffer): (u64, u64),
) -> (u64, u64) {
    const NANO: u64 = Nanos::SECOND.0;
    let bits = packet as u64 * 8 * NANO;
    let (mut waits, mut lost, mut before, mut first, mut last) = (0u64, 0, 0, None, 0);
    for at in times {
        waits = waits.saturating_sub((at - before) * rate);
        before = at;
        let backlog = waits / rate * rate / (8 * NANO);
        if backlog > 0 && backlog + packet as u64 > buffer {
            lost += 1;
        } else {
            waits += bits;
            last = at + waits / rate;
            first.get_or_insert(last);
        }
    }
    (lost, last - first.unwrap_or(last))
}

/// How many of packets that come at these times a bucket of so many bits a second and so many bytes drops, likewise.
fn spilled(packet: usize, times: impl Iterator<Item = u64>, (rate, depth): (u64, u64)) -> u64 {
    const BYTE: u64 = 8 * Nanos::SECOND.0;
    let (mut has, mut before, mut lost) = (depth * BYTE, 0, 0);
    for at in times {
        has = (depth * BYTE).min(has + (at - before) * rate);
        before = at;
        match has.checked_sub(packet as u64 * BYTE) {
            Some(rest) => has = rest,
            None => lost += 1,
        }
    }
    lost
}

/// The smallest spacing from which on it is so, between one at which it is not and one at which it is, by halves.
fn fastest(mut fast: u64, mut slow: u64, is_so: impl Fn(u64) -> bool) -> u64 {
    while slow - fast > 1 {
        let middle = (fast + slow) / 2;
        match is_so(middle) {
            true => slow = middle,
            false => fast = middle,
        }
    }
    slow
}

/// As long as 97 % of what is asked for arrives in time, a point is in region A; from a loss of more than 3 % on the path is full. Both are
/// found at the spacing at which they begin, to the nanosecond, and each datagram that is lost found no room.
#[test]
fn a_full_path_is_found_from_the_calculated_rate_on() {
    // So that no edge lies at a whole nanosecond.
    let (rate, buffer, count) = (21_000_000, 20_000, 1000);
    for size in [500, 1400] {
        let of = |spacing| overflow(size + HEADERS, each(spacing, count), (rate, buffer));
        let is_reached = |spacing: u64| {
            let (lost, span) = of(spacing);
            (count - lost - 1) as f64 / span as f64 >= 0.97 / spacing as f64
        };
        let is_full = |spacing: u64| of(spacing).0 * 100 > 3 * count;
        // What takes as long as the line takes for it is all carried.
        let line = (size + HEADERS) as u64 * 8 * Nanos::SECOND.0 / rate;
        let reached = fastest(line / 2, line, is_reached);
        let not_full = fastest(line / 2, line, |spacing| !is_full(spacing));
        assert!(not_full < reached && reached < line, "{size}");
        let spacings = [
            2 * line,
            reached,
            reached - 1,
            not_full,
            not_full - 1,
            line * 2 / 3,
        ];
        let (result, _) = Path::of(&[bottleneck(rate, buffer), delay(3)]).play(|scene| {
            scene.udp(ProbeUdpOptions {
                size: Sizes(vec![size]),
                spacing: Some(Spacings(spacings.to_vec())),
                count: Some(count),
                ..ProbeUdpOptions::default()
            })
        });
        let found =
            |point: &super::point::Point| (point.spacing_asked.unwrap() as u64, point.region);
        let regions: Vec<_> = result.points.iter().map(found).collect();
        let [a, b] = [Some(Region::A), Some(Region::B)];
        let expected = spacings.into_iter().zip([a, a, None, None, b, b]);
        assert_eq!(regions, expected.collect::<Vec<_>>(), "{size}");
        for point in &result.points {
            let lost = of(point.spacing_asked.unwrap() as u64).0;
            assert_eq!([point.lost, point.network_lost], [lost; 2]);
        }
        let said = result.findings.join(" ");
        assert!(said.contains("the path is full at"), "{said}");
    }
}

/// What becomes of datagrams, one each `spacing` nanoseconds, at a host that takes `work` nanoseconds for each, while `room` others wait in
/// the socket: how many are lost, and nanoseconds from the first that comes in to the last.
fn too_fast(spacing: u64, count: u64, room: u64, work: u64) -> (u64, u64) {
    let (mut free, mut waiting) = (0, std::collections::VecDeque::new());
    let (mut lost, mut last) = (0, 0);
    for at in each(spacing, count) {
        while waiting.pop_front_if(|begins| *begins <= at).is_some() {}
        if waiting.len() as u64 == room {
            lost += 1;
            continue;
        }
        last = at;
        let begins = at.max(free);
        free = begins + work;
        if begins > at {
            waiting.push_back(begins);
        }
    }
    (lost, last)
}

/// A receiver that takes 10 us for each datagram takes no more than 100,000 a second, of any size; its socket takes some more for a while.
/// As long as 97 % of what is asked for comes in, a point is in region A; from a loss of more than 3 % on it is in region C. Both are found
/// at the spacing at which they begin, to the nanosecond, and what is lost is what finds no room in the socket, to the datagram.
#[test]
fn a_slow_receiver_is_found_from_the_calculated_rate_on() {
    let (work, buffer, count) = (10_000, 20_000, 2000);
    for size in [100, 1400] {
        let of = |spacing| too_fast(spacing, count, buffer / size as u64, work);
        let is_reached = |spacing: u64| {
            let (lost, span) = of(spacing);
            (count - lost - 1) as f64 / span as f64 >= 0.97 / spacing as f64
        };
        let is_slow = |spacing: u64| of(spacing).0 * 100 > 3 * count;
        let reached = fastest(work / 2, work, is_reached);
        let not_slow = fastest(work / 2, work, |spacing| !is_slow(spacing));
        assert!(not_slow < reached && reached < work, "{size}");
        let spacings = [
            2 * work,
            work,
            reached,
            reached - 1,
            not_slow,
            not_slow - 1,
            work / 2,
        ];
        let (result, _) = Path::of(&[delay(3)]).play(|scene| {
            scene.far.work(Nanos(work));
            scene.udp(ProbeUdpOptions {
                size: Sizes(vec![size]),
                spacing: Some(Spacings(spacings.to_vec())),
                count: Some(count),
                buffer: vec![buffer],
                ..ProbeUdpOptions::default()
            })
        });
        let found =
            |point: &super::point::Point| (point.spacing_asked.unwrap() as u64, point.region);
        let regions: Vec<_> = result.points.iter().map(found).collect();
        let [a, c] = [Some(Region::A), Some(Region::C)];
        let expected = spacings.into_iter().zip([a, a, a, None, None, c, c]);
        assert_eq!(regions, expected.collect::<Vec<_>>(), "{size}");
        for point in &result.points {
            let (lost, _) = of(point.spacing_asked.unwrap() as u64);
            assert_eq!([point.lost, point.attribution.receiver_socket], [lost; 2]);
        }
    }
}

/// What finds the queue before the sending host's card full is lost in that host, to the datagram; what leaves has the card's rate, which is
/// found to be the sender's limit.
#[test]
fn a_full_queue_before_the_card_is_the_senders() {
    let (rate, queue, packet) = (100_000_000, 100_000u64, 1472 + HEADERS);
    for way in Direction::BOTH {
        let is_reverse = way == Direction::Back;
        let (result, found) = Path::of(&[delay(5)])
            .play(|scene| {
                let near = scene.network.near(1);
                let (sender, _) = way.ends(&near, &scene.far);
                sender.set_card(bits(rate), queue);
                let result = scene.udp(ProbeUdpOptions {
                    spacing: Some(Spacings(vec![60_000, 80_000, 120_000])),
                    count: Some(3000),
                    reverse: is_reverse,
                    ..ProbeUdpOptions::default()
                });
                let options = ProbeCapacityOptions {
                    target: scene.target(),
                    lowest: bits(10_000_000),
                    highest: bits(200_000_000),
                    duration: Duration::from_millis(500),
                    precision: 0.01,
                    reverse: is_reverse,
                    ..ProbeCapacityOptions::default()
                };
                (
                    result,
                    capacity::probe(&options, &scene.near).unwrap().result,
                )
            })
            .0;
        for point in &result.points {
            let spacing = point.spacing_asked.unwrap() as u64;
            let (lost, _) = overflow(packet, each(spacing, 3000), (rate, queue));
            assert_eq!(lost > 0, spacing < 120_000);
            assert_eq!(
                [point.lost, point.host_lost, point.attribution.sender_host],
                [lost; 3]
            );
            // Each takes 120 us.
            let arrivals = point.arrivals.as_ref().unwrap();
            assert_eq!([arrivals.min, arrivals.max], [120_000; 2]);
        }
        let regions: Vec<_> = result.points.iter().map(|point| point.region).collect();
        assert_eq!(regions, [Some(Region::B), Some(Region::B), Some(Region::A)]);
        assert_eq!(found.limit, capacity::Limit::Sender);
        // In half a second the queue takes so much of what is too much.
        let highest = (rate + 2 * queue * 8) as f64 * 1472.0 / packet as f64;
        let part = found.rate.unwrap() / highest;
        assert!((0.99..1.0001).contains(&part), "{found:?}");
    }
}

/// A search finds the rate, in bits a second of IP packets, of a cell that holds some bytes more. Each trial of datagrams of 1200 bytes loses
/// as many as `lost` calculates from the times at which they leave, and the rate found is the highest at which nothing is lost, to one part
/// in a hundred.
fn is_found_again(
    way: Direction,
    cell: Law,
    (rate, depth): (u64, u64),
    lost: impl Fn(&mut dyn Iterator<Item = u64>) -> u64,
) {
    let limited = vec![cell, delay(5)];
    let laws = match way {
        Direction::There => [limited, vec![delay(5)]],
        Direction::Back => [vec![delay(5)], limited],
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
            reverse: way == Direction::Back,
            ..ProbeCapacityOptions::default()
        };
        capacity::probe(&options, &scene.near).unwrap().result
    });
    assert_eq!(found.limit, capacity::Limit::Path);
    let [mut passed, mut failed] = [Vec::new(), Vec::new()];
    for trial in &found.trials {
        let point = trial.point.as_ref().unwrap();
        let stream = Stream {
            size: 1200,
            spacing: Spacing::BitsPerSecond(bits(trial.asked as u64)),
            burst: 1,
            count: u64::MAX,
        };
        assert_eq!(point.sent, stream.within(Nanos::SECOND));
        let lost = lost(&mut (0..point.sent).map(|number| stream.due(number).0));
        assert_eq!(point.direction, way);
        assert_eq!([point.lost, point.network_lost], [lost; 2], "{trial:?}");
        assert_eq!(trial.passed, lost == 0);
        // In whole bits per second, and from one whole nanosecond to another.
        let part = point.rate_sent / trial.asked - 1.0;
        assert!(part.abs() < 1.0 / trial.asked + 2e-9, "{trial:?}");
        let of = if trial.passed {
            &mut passed
        } else {
            &mut failed
        };
        of.push((trial.asked, point.rate_sent, point.sent));
    }
    passed.sort_by(|a, b| b.0.total_cmp(&a.0));
    let lowest = failed
        .iter()
        .map(|(asked, ..)| *asked)
        .fold(f64::INFINITY, f64::min);
    // The highest has passed twice, and a hundredth above it is too much.
    assert_eq!(passed[0], passed[1]);
    assert_eq!((found.rate, found.above), (Some(passed[0].1), Some(lowest)));
    assert_eq!(found.datagrams, 2 * passed[0].2);
    assert!((0.99..1.0).contains(&(passed[0].0 / lowest)), "{found:?}");
    // In the second of a trial the cell holds this much of what exceeds its rate.
    let highest = (rate + depth * 8) as f64 * 1200.0 / (1200 + HEADERS) as f64;
    let part = passed[0].1 / highest;
    assert!((0.99..1.0001).contains(&part), "{found:?} {highest}");
}

/// The rate of a bottleneck is found again: the highest at which its buffer takes what is too much as long as a trial lasts.
#[test]
fn the_rate_of_a_bottleneck_is_found_again() {
    for (way, rate) in [
        (Direction::There, 50_000_000),
        (Direction::Back, 30_000_000),
    ] {
        let buffer = 20_000;
        is_found_again(way, bottleneck(rate, buffer), (rate, buffer), |times| {
            overflow(1200 + HEADERS, times, (rate, buffer)).0
        });
    }
}

/// The rate of a bucket is found: the highest at which it holds what is too much as long as a trial lasts. It is full again before the next.
#[test]
fn the_rate_of_a_bucket_is_found_again() {
    for (way, rate) in [
        (Direction::There, 40_000_000),
        (Direction::Back, 60_000_000),
    ] {
        let depth = 20_000;
        let bucket = Law::Police {
            rate: bits(rate),
            burst: depth,
            overhead: 0,
        };
        is_found_again(way, bucket, (rate, depth), |times| {
            spilled(1200 + HEADERS, times, (rate, depth))
        });
    }
}

/// A sender of whose stream nothing arrives stops at its first look after 5 s (RFC 8084), at either end. An end looks when something is said
/// to it, and 20 ms after it looked last. Each end says at a look that it is there, when a second has passed since it did; as either hears
/// the other in between, looks lie a round trip of 4 ms later after each other second: 1.004 s, 3.008 s, and 5.008 s after the beginning.
#[test]
fn a_stream_that_nobody_gets_is_stopped() {
    // What both ends say to each other is shorter.
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
                "nothing arrived at the other end for 5 s, so sending was stopped (circuit breaker, RFC 8084)"
            ),
            Direction::Back => {
                assert_eq!(stopped, format!("sending ended after {sent} datagrams"));
            }
        }
        assert_eq!(
            [point.unique, point.lost, point.network_lost],
            [0, sent, sent]
        );
        // One each millisecond, from a millisecond after the beginning on.
        assert_eq!(sent, 5008, "{way:?}");
    }
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
            assert_eq!([point.sent, point.unique, point.lost], [due, due, 0]);
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
        // Clocks show whole nanoseconds.
        assert!(clock.error_if_symmetric < 1.1, "{clock:?}");
        assert!(
            (clock.offset - offset).abs() < clock.error_if_symmetric,
            "{clock:?} {offset}"
        );
        for size in &result.points {
            assert_eq!(
                [size.sent, size.received, size.lost, size.duplicates],
                [200, 200, 0, 0]
            );
            let of = |found: &Option<evlbi_core::account::Summary>| {
                let found = found.as_ref().unwrap();
                [found.min, found.max]
            };
            assert_eq!(of(&size.round_trip), [20_000_000; 2]);
            for one_way in [of(&size.there), of(&size.back)].concat() {
                assert!(one_way.abs_diff(10_000_000) <= 1, "{one_way} {far_clock:?}");
            }
        }
    }
}

/// Of ways of 10 ms and 20 ms and a far clock that is wrong and drifts, both ends know the sum. The difference they cannot know: half of it
/// is taken for the clock's, and the error that is stated bounds it.
#[test]
fn delays_that_differ_are_known_by_their_sum() {
    let mut path = Path::new([vec![delay(10)], vec![delay(20)]]);
    for far_clock in [[0, 0], [40_000_000, 0], [-3_600_000_000_000, 20_000]] {
        path.far_clock = far_clock;
        let (latency, udp) = path
            .play(|scene| {
                let options = ProbeLatencyOptions {
                    target: scene.target(),
                    count: 200,
                    ..ProbeLatencyOptions::default()
                };
                let latency = latency::probe(&options, &scene.near).unwrap().result;
                let udp = scene.udp(ProbeUdpOptions {
                    spacing: Some(Spacings(vec![1_000_000])),
                    count: Some(200),
                    both: true,
                    ..ProbeUdpOptions::default()
                });
                (latency, udp)
            })
            .0;
        let clock = latency.clock.unwrap();
        let drift = far_clock[1] as f64 * 1e-9;
        let offset = far_clock[0] as f64 + drift * (clock.at - BEGINNING) as f64;
        // Half of the difference, by the clock that drifts.
        let off = clock.offset - (offset - 5e6 * (1.0 + drift));
        assert!(off.abs() < 1.1, "{clock:?} {offset}");
        assert!((clock.skew - drift).abs() < 1e-9, "{clock:?}");
        let size = &latency.points[0];
        let of = |found: &Option<evlbi_core::account::Summary>| {
            let found = found.as_ref().unwrap();
            [found.min, found.max]
        };
        assert_eq!(of(&size.round_trip), [30_000_000; 2]);
        for one_way in [of(&size.there), of(&size.back)].concat() {
            assert!(one_way.abs_diff(15_000_000) <= 1, "{one_way} {far_clock:?}");
        }
        // Half of the round trip: that one way took no time at all.
        assert!((15e6..15e6 + 2.0).contains(&clock.error), "{clock:?}");

        let delays = [0, 1].map(|way| udp.points[way].delay.unwrap());
        let sum = delays[0].mean + delays[1].mean;
        assert!((sum - 30e6).abs() < 1.0, "{delays:?}");
        for (delay, truth) in delays.iter().zip([10e6, 20e6]) {
            // The clock is taken as it was in the middle of the stream, of 0.2 s.
            let drifts = 0.1e9 * drift;
            assert!(
                (15e6..15e6 + 2.0 + drifts).contains(&delay.error),
                "{delay:?}"
            );
            for found in [delay.min, delay.median, delay.mean, delay.p99, delay.max] {
                assert!((found - truth).abs() < delay.error, "{delay:?}");
                assert!((found - 15e6).abs() < 1.1 + drifts, "{delay:?}");
            }
        }
    }
}

/// A reply that takes longer than the loss timeout is lost, by a nanosecond as well, and one that takes as long is not.
#[test]
fn replies_are_waited_for_as_long_as_asked() {
    for (later, lost) in [(0, 0), (1, 50)] {
        let back = Law::Delay {
            delay: Nanos(490_000_000 + later),
            jitter: Nanos(0),
            shape: Shape::Uniform,
            reorders: false,
        };
        let (result, _) = Path::new([vec![delay(10)], vec![back]]).play(|scene| {
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
            "{later}"
        );
    }
}

/// A switch that drops one in a thousand at line rate, and nothing below: each loss is the network's, and at its place.
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

/// A fibre that loses one datagram in ten for 500 ms every 2 s is told from one that always loses one in a hundred. Loss is looked at in
/// hundredths of the stream: of 100 ms, of which an episode fills five, or four and two halves.
#[test]
fn a_broken_fibre_is_told_from_a_dirty_one() {
    let (size, spacing, count) = (1472, 400_000, 25_000);
    // Five round trips of 6 ms, 24 ms in which ten requests are answered, one until that is seen, and one until the first leaves.
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

/// A receiver on a path without a way back takes a stream to be over when it has heard nothing for 2 s, and one of which nothing comes 15 s
/// after it could have been over; then it waits for the loss timeout. All is seen at looks, 20 ms apart.
#[test]
fn a_path_without_a_way_back_falls_silent() {
    let end = |points: usize| {
        let clock = Clock::simulated(BEGINNING);
        // The first datagram leaves after a millisecond, so the one with number 500 is the first that is lost.
        let cut = Law::Loss(Loss::Within {
            times: Times::Once {
                from: Nanos(500_500_000),
                to: Nanos(u64::MAX),
            },
            fraction: 1.0,
        });
        let network = Network::between(&clock, [&[cut, delay(25)], &[delay(1)]], 1500, 1);
        let options = ProbeUdpOptions {
            target: Target {
                address: "10.0.0.1:5000".to_owned(),
                token: Token::from(TOKEN),
                ..Target::default()
            },
            one_way: true,
            size: Sizes([500, 1000][..points].to_vec()),
            spacing: Some(Spacings(vec![1_000_000])),
            count: Some(1000),
            ..ProbeUdpOptions::default()
        };
        clock.simulate(|| {
            let (run, own) = (Run::silent().on(&network.near(1)), options.clone());
            let send = move || udp::send_one_way(&own, &run).unwrap();
            let sending = network.near(1).clock().spawn("send", send).unwrap();
            let run = Run::silent().on(&network.far(1));
            let result = udp::probe(&options, &run).unwrap().result;
            let over = clock.now();
            sending.join();
            for (point, unique) in result.points.iter().zip([500, 0]) {
                assert_eq!(
                    [point.sent, point.unique, point.lost],
                    [1000, unique, 1000 - unique]
                );
            }
            assert_eq!(result.points.len(), points);
            over.as_secs_f64()
        })
    };
    // The last has come after 525 ms, is seen at the look after 540 ms, and is long ago at that after 2.56 s; what the listener ends 1 s
    // later is seen at the next look.
    assert_eq!(end(1), 0.54 + 2.02 + 1.0 + 0.02);
    // A stream of 1 s, 1 s for what is late, and 15 s.
    assert_eq!(end(2), 3.58 + 17.02 + 1.0 + 0.02);
}

/// What exceeds a rate is dropped by a bucket: as many datagrams as it holds pass at once, and then as many as it gains, to the datagram.
#[test]
fn the_rate_and_the_depth_of_a_bucket_are_found() {
    let (rate, depth, size) = (32_000_000, 128 << 10, 1472);
    let packet = (size + HEADERS) as u64;
    let bucket = Law::Police {
        rate: bits(rate),
        burst: depth,
        overhead: 0,
    };
    let (points, _) = Path::new([vec![bucket, delay(5)], vec![delay(5)]]).play(|scene| {
        // As fast as the host can: all at once.
        [0, 200_000].map(|spacing| {
            let result = scene.udp(ProbeUdpOptions {
                size: Sizes(vec![size]),
                spacing: Some(Spacings(vec![spacing])),
                count: Some(4000),
                ..ProbeUdpOptions::default()
            });
            result.points.into_iter().next().unwrap()
        })
    });
    let [burst, stream] = points;
    assert_eq!(
        [burst.unique, burst.network_lost],
        [depth / packet, 4000 - depth / packet]
    );
    assert_eq!(
        found_lost(&burst),
        (depth / packet..4000).collect::<Vec<u64>>()
    );
    // From one datagram to the next it gains 800 bytes, and each takes 1500.
    let gains = rate / 8 * 200 / 1_000_000;
    let passed = (depth + 3999 * gains) / packet;
    assert_eq!(
        [stream.unique, stream.network_lost],
        [passed, 4000 - passed]
    );
    let first = (depth - packet) / (packet - gains) + 1;
    assert_eq!(found_lost(&stream)[0], first);
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
                (done, own.now())
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
            refused.contains("1 tests run now") && refused.ends_with("wait longer"),
            "{refused}"
        );
        // To connect, prove, be welcome and ask takes four round trips.
        assert_eq!(at, Nanos(2_040_000_000));
        let (first, first_at) = first.join();
        let (second, second_at) = second.join();
        for result in [first, second] {
            assert_eq!((result.as_ref().unwrap().result.points[0].lost), 0);
        }
        // From when it is granted, a test takes a round trip of 10 ms until it is found, 28 ms for ten requests, one until that is seen, and
        // one until the first datagram leaves; its stream, one each 11.776 ms; 28 ms for ten requests, and a round trip for the result.
        // Each end looks at it every 20 ms, and once in a millisecond for replies.
        let takes = |seconds: u64, from: Nanos, to: Nanos| {
            let stream = (seconds * 1_000_000).div_ceil(8 * 1472) * 11_776_000;
            let looks = to.since(from).0 - (40 + 38) * 1_000_000 - stream;
            assert!(looks <= 41_000_000, "{seconds} {looks}");
        };
        takes(10, Nanos(40_000_000), first_at);
        // It is granted when the result of the first leaves, which comes when this is heard.
        takes(5, first_at, second_at);

        // Killed in the middle: its host closes the connection.
        let killed = begin(4, 600, 0);
        clock.sleep(Duration::from_secs(3));
        scene.network.near(4).kill();
        drop(killed);
        let (next, at) = begin(5, 1, 60).join();
        assert_eq!(next.unwrap().result.points[0].lost, 0);
        takes(1, second_at.plus(Nanos(3_040_000_000)), at);
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
            let said = |done: Result<super::Measured<ProbeUdp>, udp::ProbeUdpError>| match done {
                Ok(measured) => measured.result.stopped.unwrap_or_default(),
                Err(error) => explain(&error),
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
