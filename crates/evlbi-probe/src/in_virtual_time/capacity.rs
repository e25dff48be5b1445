//! Rates at which a path or a host becomes too slow, calculated by arithmetic and measured to the nanosecond; and searches for them.

use std::time::Duration;

use evlbi_core::path::Law;
use evlbi_core::time::Nanos;

use super::{HEADERS, Path, bits, bottleneck, delay, found_lost, twice};
use crate::capacity::{self, ProbeCapacityOptions};
use crate::direction::Direction;
use crate::measure::{Spacing, Stream};
use crate::point::{Point, Region};
use crate::sweep::{Sizes, Spacings};
use crate::udp::ProbeUdpOptions;

/// Returns the times of `count` datagrams, one per `spacing` nanoseconds.
fn each(spacing: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |number| number * spacing)
}

/// Calculates what a line does with packets that arrive at these times, in nanoseconds: how many its buffer drops, and nanoseconds from the
/// first arrival to the last. The rate is in bits per second, the buffer in bytes. The arithmetic is in bits times a billion, without any
/// clock; the buffer counts the whole bytes of whole nanoseconds.
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

/// Calculates how many of these packets a token bucket of this rate (bits per second) and depth (bytes) drops.
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

/// Returns the smallest spacing at which `is_so` holds, by bisection between one at which it does not and one at which it does.
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

/// A point is in region A while 97 % of the requested rate arrives in time; above 3 % loss the path is full. Both limits are found to the
/// nanosecond of spacing, and each lost datagram is one that found no room.
#[test]
fn a_full_path_is_found_from_the_calculated_rate_on() {
    // No limit is at a whole nanosecond.
    let (rate, buffer, count) = (21_000_000, 20_000, 1000);
    for size in [500, 1400] {
        let of = |spacing| overflow(size + HEADERS, each(spacing, count), (rate, buffer));
        let is_reached = |spacing: u64| {
            let (lost, span) = of(spacing);
            (count - lost - 1) as f64 / span as f64 >= 0.97 / spacing as f64
        };
        let is_full = |spacing: u64| of(spacing).0 * 100 > 3 * count;
        // A line carries everything if the spacing is its time per datagram.
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
        let found = |point: &Point| (point.spacing_asked.unwrap() as u64, point.region);
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

/// Calculates what a host that needs `work` nanoseconds per datagram does with a stream, while `room` others wait in the socket: how many
/// are lost, and nanoseconds from the first one read to the last.
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

/// A receiver that needs 10 us per datagram takes at most 100,000 per second, of any size; its socket buffers some more for a while. A
/// point is in region A while 97 % of the requested rate is read; above 3 % loss it is in region C. Both limits are found to the nanosecond
/// of spacing, and the loss is exactly the number of datagrams that found no room in the socket.
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
        let found = |point: &Point| (point.spacing_asked.unwrap() as u64, point.region);
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

/// Datagrams that find the queue before the sender's NIC full are counted as lost in that host, exactly. The rest leaves at the NIC's rate,
/// which is found to be the sender's limit.
#[test]
fn a_full_queue_before_the_nic_is_the_senders() {
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
        // In half a second the queue absorbs this much of the excess.
        let highest = (rate + 2 * queue * 8) as f64 * 1472.0 / packet as f64;
        let part = found.rate.unwrap() / highest;
        assert!((0.99..1.0001).contains(&part), "{found:?}");
    }
}

/// A search finds the rate, in bits per second of IP packets, of a cell that buffers some bytes. Each trial of datagrams of 1200 bytes
/// loses as many as `lost` calculates from their departures. The result is the highest rate without loss, to 1 %.
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
        // In whole bits per second, and with spacings of whole nanoseconds.
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
    // The highest rate has passed twice, and 1 % more is too much.
    assert_eq!(passed[0], passed[1]);
    assert_eq!((found.rate, found.above), (Some(passed[0].1), Some(lowest)));
    assert_eq!(found.datagrams, 2 * passed[0].2);
    assert!((0.99..1.0).contains(&(passed[0].0 / lowest)), "{found:?}");
    // In a trial of one second the cell absorbs this much of the excess.
    let highest = (rate + depth * 8) as f64 * 1200.0 / (1200 + HEADERS) as f64;
    let part = passed[0].1 / highest;
    assert!((0.99..1.0001).contains(&part), "{found:?} {highest}");
}

/// The search finds the rate of a bottleneck: the highest at which its buffer absorbs the excess of a trial.
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

/// The search finds the rate of a token bucket: the highest at which it absorbs the excess of a trial. It is full again before the next.
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

/// A token bucket drops the excess over its rate: at once its depth passes, then what it gains, exactly.
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
    // Per datagram it gains 800 bytes, and each takes 1500.
    let gains = rate / 8 * 200 / 1_000_000;
    let passed = (depth + 3999 * gains) / packet;
    assert_eq!(
        [stream.unique, stream.network_lost],
        [passed, 4000 - passed]
    );
    let first = (depth - packet) / (packet - gains) + 1;
    assert_eq!(found_lost(&stream)[0], first);
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
