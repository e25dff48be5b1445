//! Cells and networks of them, packet by packet: shared senders, and tests of delays, rates, order and counters.

mod changes;
mod losses;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::rate::BitRate;
use crate::time::Nanos;

impl Identity for u64 {
    fn identity(&self, segment: u16) -> u64 {
        self + u64::from(segment)
    }
}

const MS: u64 = 1_000_000;

fn rate(bits: u64) -> BitRate {
    BitRate::new(bits).unwrap()
}

/// Returns the packets that arrive if packets are offered at these times, as (time, number), and the network.
fn carried(
    laws: Vec<Law>,
    offered: impl IntoIterator<Item = (u64, Train)>,
) -> (Vec<(u64, u64)>, Network<u64>, Line) {
    let mut network = Network::new();
    let line = network.line(laws, 1);
    let route = network.route(&[&line]);
    let mut arrived = Vec::new();
    let mut take = |output| {
        if let Output::Delivered { packet, piece, .. } = output {
            for segment in piece.first..piece.first + piece.count {
                arrived.push((piece.at.0, packet + u64::from(segment)));
            }
        }
    };
    let mut number = 0;
    for (at, train) in offered {
        network.advance(Nanos(at), &mut take);
        network.offer(route, number, train, Piece::whole(Nanos(at), &train), 14);
        number += u64::from(train.count);
    }
    network.advance(Nanos(u64::MAX), &mut take);
    assert_eq!(network.next(), None);
    (arrived, network, line)
}

/// Packets of `bytes` bytes at intervals of `apart` nanoseconds.
fn steady(count: u64, bytes: u32, apart: u64) -> impl Iterator<Item = (u64, Train)> {
    (0..count).map(move |number| (number * apart, Train::single(bytes)))
}

/// Offers a packet of one segment.
fn single(network: &mut Network<u64>, at: u64, route: usize, packet: u64, bytes: u32) {
    let train = Train::single(bytes);
    network.offer(route, packet, train, Piece::whole(Nanos(at), &train), 14);
}

fn delay(delay: u64) -> Law {
    Law::Delay {
        delay: Nanos(delay),
        jitter: Nanos(0),
        shape: Shape::Uniform,
        reorders: false,
    }
}

#[test]
fn a_delay_is_exact() {
    let (arrived, ..) = carried(vec![delay(7_500_000)], steady(1000, 1514, 1000));
    for (number, arrival) in arrived.iter().enumerate() {
        assert_eq!(*arrival, (number as u64 * 1000 + 7_500_000, number as u64));
    }
}

#[test]
fn a_rate_is_exact_and_its_buffer_is_full_when_it_is() {
    let law = Law::Rate {
        rate: rate(940_000_000),
        buffer: 100 * 1538,
        overhead: 24,
        mark: None,
    };
    // Twice as fast as the line: half is lost, the rest leaves without a gap and without drift.
    let (arrived, network, line) = carried(vec![law], steady(100_000, 1514, 6_545));
    let truth = network.cell(line.cells[0]).truth();
    assert_eq!(truth.packets, 100_000);
    assert_eq!(truth.passed(), arrived.len() as u64);
    assert_eq!(truth.backlog_max, 100 * 1538);
    let (first, last) = (arrived[0].0, arrived.last().unwrap().0);
    let bits = (arrived.len() as u128 - 1) * 1538 * 8;
    let expected = bits * 1_000_000_000 / 940_000_000;
    assert!(u128::from(last - first).abs_diff(expected) <= 1);
    let gaps = arrived.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(gaps.clone().all(|gap| (13_089..=13_090).contains(&gap)));
}

#[test]
fn a_slow_stream_does_not_wait() {
    let law = Law::Rate {
        rate: rate(1_000_000_000),
        buffer: 0,
        overhead: 24,
        mark: Some(Nanos(0)),
    };
    let (arrived, network, line) = carried(vec![law], steady(100, 1226, 20_000));
    assert!(
        arrived
            .iter()
            .all(|(at, number)| *at == number * 20_000 + 10_000)
    );
    assert_eq!(network.cell(line.cells[0]).truth().marked, 0);
}

#[test]
fn a_policer_lets_a_burst_and_then_its_rate_pass() {
    let law = Law::Police {
        rate: rate(8_000_000),
        burst: 10_000,
        overhead: 0,
    };
    // Ten at once, then one every half millisecond: the rate allows one per millisecond.
    let offered = (0..20)
        .map(|_| (0, Train::single(1000)))
        .chain((1..=2000).map(|number| (number * MS / 2, Train::single(1000))));
    let (arrived, ..) = carried(vec![law], offered);
    assert_eq!(arrived.iter().filter(|(at, _)| *at == 0).count(), 10);
    assert_eq!(arrived.len(), 10 + 1000);
}

#[test]
fn a_held_packet_is_overtaken_by_the_given_number() {
    let law = Law::Reorder {
        fraction: 0.01,
        until: Until::Passed(5),
    };
    let (arrived, network, line) = carried(vec![law], steady(10_000, 100, 1000));
    let held = network.cell(line.cells[0]).truth().held;
    assert!(held > 60);
    let mut overtaken = BTreeMap::new();
    for (place, (_, number)) in arrived.iter().enumerate() {
        let others = arrived[..place].iter().filter(|(_, other)| other > number);
        *overtaken.entry(others.count()).or_insert(0u64) += 1;
    }
    assert_eq!(overtaken.values().sum::<u64>(), 10_000);
    assert_eq!(overtaken.keys().max(), Some(&5));
    // Fewer where two are delayed together; the last few leave after the maximum time.
    assert!(overtaken[&5] * 10 > held * 8, "{overtaken:?}");
    let times = arrived.windows(2).all(|pair| pair[0].0 <= pair[1].0);
    assert!(times);
}

#[test]
fn a_delayed_packet_leaves_though_none_follows() {
    let law = Law::Reorder {
        fraction: 1.0,
        until: Until::Passed(3),
    };
    let (arrived, ..) = carried(vec![law, delay(MS)], steady(1, 100, 0));
    assert_eq!(arrived, [(101 * MS, 0)]);
}

#[test]
fn jitter_keeps_the_order_unless_it_may_reorder() {
    for reorders in [false, true] {
        for shape in [Shape::Uniform, Shape::Normal, Shape::Pareto] {
            let law = Law::Delay {
                delay: Nanos(MS),
                jitter: Nanos(100_000),
                shape,
                reorders,
            };
            // Far apart, so that keeping the order changes nothing.
            let (apart, ..) = carried(vec![law.clone()], steady(10_000, 100, 100 * MS));
            let extra = apart.iter().map(|(at, number)| at - number * 100 * MS - MS);
            let mean = extra.sum::<u64>() as f64 / 10_000.0;
            let expected = match shape {
                Shape::Uniform => 50_000.0,
                Shape::Normal => 100_000.0 * (2.0 / std::f64::consts::PI).sqrt(),
                Shape::Pareto => 100_000.0,
            };
            assert!((mean / expected - 1.0).abs() < 0.1, "{shape:?}: {mean}");
            let (close, ..) = carried(vec![law], steady(10_000, 100, 1000));
            let in_order = close.windows(2).all(|pair| pair[0].1 < pair[1].1);
            assert_eq!(in_order, !reorders, "{shape:?}");
        }
    }
}

/// Behind a delay that reorders packets, a queue sees them in their new order.
#[test]
fn a_queue_behind_a_jitter_is_never_idle_for_one_that_is_late() {
    let laws = vec![
        Law::Delay {
            delay: Nanos(0),
            jitter: Nanos(50 * MS),
            shape: Shape::Uniform,
            reorders: true,
        },
        Law::Rate {
            rate: rate(1_000_000_000),
            buffer: 1 << 30,
            overhead: 0,
            mark: None,
        },
    ];
    let (arrived, ..) = carried(laws, steady(1000, 1250, 1000));
    assert!(
        arrived
            .windows(2)
            .all(|pair| pair[1].0 >= pair[0].0 + 10_000)
    );
    assert!(arrived.windows(2).any(|pair| pair[1].1 < pair[0].1));
}

#[test]
fn packets_that_are_too_long_are_refused_and_reported() {
    let mut network: Network<u64> = Network::new();
    let line = network.line(
        [Law::Mtu {
            bytes: 1400,
            tells: true,
        }],
        1,
    );
    let route = network.route(&[&line]);
    single(&mut network, 0, route, 0, 1414);
    single(&mut network, 1, route, 1, 1415);
    let (mut told, mut delivered) = (Vec::new(), Vec::new());
    network.advance(Nanos(10), |output| match output {
        Output::TooLong { packet, longest } => told.push((packet, longest)),
        Output::Delivered { packet, .. } => delivered.push(packet),
    });
    assert_eq!((told, delivered), (vec![(1, 1400)], vec![0]));
}

/// However many packets are delayed, the network wakes as rarely as possible.
#[test]
fn many_delayed_packets_cost_no_time() {
    let law = Law::Reorder {
        fraction: 0.5,
        until: Until::Passed(500),
    };
    let (arrived, ..) = carried(vec![law], steady(200_000, 100, 40_000));
    assert_eq!(arrived.len(), 200_000);
    let never = Law::Loss(Loss::Within {
        times: Times::Episodes {
            on: Nanos(1000),
            off: Nanos(1000),
        },
        fraction: 0.5,
    });
    let (arrived, ..) = carried(vec![never], steady(1000, 100, 1_000_000_000 * MS));
    // Half of the time, half of the packets; 5 standard deviations.
    assert!(arrived.len().abs_diff(750) < 70, "{}", arrived.len());
}

/// Routes that share a line share its queue.
#[test]
fn a_shared_line_is_shared() {
    let mut network: Network<u64> = Network::new();
    let near = network.line([delay(MS)], 1);
    let far = network.line([delay(15 * MS)], 2);
    let last = network.line(
        [Law::Rate {
            rate: rate(1_000_000_000),
            buffer: 1 << 20,
            overhead: 0,
            mark: None,
        }],
        3,
    );
    let routes = [
        network.route(&[&near, &last]),
        network.route(&[&far, &last]),
    ];
    // They meet at the shared line at the same time.
    single(&mut network, 0, routes[1], 1, 1250);
    single(&mut network, 14 * MS, routes[0], 0, 1250);
    let mut arrived = Vec::new();
    network.advance(Nanos(u64::MAX), |output| {
        if let Output::Delivered { route, piece, .. } = output {
            arrived.push((route, piece.at.0));
        }
    });
    assert_eq!(
        arrived,
        [(routes[1], 15 * MS + 10_000), (routes[0], 15 * MS + 20_000)]
    );
}

fn laws() -> impl Strategy<Value = Law> {
    let fraction = 0.0f64..0.4;
    prop_oneof![
        (0..20u64, 0..3000u64, any::<bool>()).prop_map(|(late, jitter, reorders)| Law::Delay {
            delay: Nanos(late * 1000),
            jitter: Nanos(jitter),
            shape: Shape::Pareto,
            reorders,
        }),
        (1..2000u64, 0..20_000u64, 0..3000u64).prop_map(|(megabits, buffer, mark)| Law::Rate {
            rate: rate(megabits * 1_000_000),
            buffer,
            overhead: 24,
            mark: Some(Nanos(mark)),
        }),
        (100..2000u32, any::<bool>()).prop_map(|(bytes, tells)| Law::Mtu { bytes, tells }),
        (1..20u64, 0..20u64).prop_map(|(period, first)| Law::Loss(Loss::Every { period, first })),
        fraction
            .clone()
            .prop_map(|fraction| Law::Loss(Loss::Random { fraction })),
        (0.0f64..0.2, 0.0f64..0.9).prop_map(|(begins, ends)| Law::Loss(Loss::Bursts {
            begins,
            ends,
            good: 0.01,
            bad: 0.9,
        })),
        (1..2000u64).prop_map(|megabits| Law::Loss(Loss::Above {
            rate: rate(megabits * 1_000_000),
            window: Nanos(10_000),
            overhead: 24,
            fraction: 0.5,
        })),
        (1..2000u64, 0..20_000u64).prop_map(|(megabits, burst)| Law::Police {
            rate: rate(megabits * 1_000_000),
            burst,
            overhead: 24,
        }),
        fraction
            .clone()
            .prop_map(|fraction| Law::Duplicate { fraction }),
        (fraction.clone(), 1..6u32).prop_map(|(fraction, distance)| Law::Reorder {
            fraction,
            until: Until::Passed(distance),
        }),
        (fraction.clone(), 1..6000u64).prop_map(|(fraction, time)| Law::Reorder {
            fraction,
            until: Until::Time(Nanos(time)),
        }),
        fraction
            .clone()
            .prop_map(|fraction| Law::Corrupt { fraction }),
        fraction.prop_map(|fraction| Law::Mark { fraction }),
    ]
}

proptest! {
    /// Every cell decides segment by segment: a burst is treated like its segments alone.
    #[test]
    fn bursts_are_treated_like_their_segments(
        laws in prop::collection::vec(laws(), 1..5),
        trains in prop::collection::vec((0..50_000u64, 1..12u16, 60..1600u32, 60..1600u32), 1..30),
    ) {
        let mut at = 0;
        let trains: Vec<(u64, Train)> = trains
            .into_iter()
            .map(|(apart, count, bytes, last)| {
                at += apart;
                let last = if count == 1 { bytes } else { last.min(bytes) };
                (at, Train { count, bytes, last })
            })
            .collect();
        let singles = trains.iter().flat_map(|(at, train)| {
            (0..train.count).map(|segment| (*at, Train::single(train.bytes_of(segment))))
        });
        let singles: Vec<(u64, Train)> = singles.collect();
        let (together, first, line) = carried(laws.clone(), trains);
        let (apart, second, _) = carried(laws, singles);
        let sorted = |mut arrived: Vec<(u64, u64)>| {
            arrived.sort_unstable();
            arrived
        };
        prop_assert_eq!(sorted(together), sorted(apart));
        for cell in &line.cells {
            prop_assert_eq!(first.cell(*cell).truth(), second.cell(*cell).truth());
        }
    }

    /// Packets that enter a cell leave it or are dropped by it, and times never decrease.
    #[test]
    fn every_packet_is_accounted_for(
        laws in prop::collection::vec(laws(), 1..6),
        count in 1..300u64,
        apart in 0..20_000u64,
    ) {
        let (arrived, network, line) = carried(laws, steady(count, 1000, apart));
        prop_assert!(arrived.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        let mut inside = count;
        for cell in &line.cells {
            let truth = network.cell(*cell).truth();
            prop_assert_eq!(truth.packets, inside);
            inside = truth.passed() + truth.duplicated;
        }
        prop_assert_eq!(arrived.len() as u64, inside);
    }
}

/// Reno over a path of 15 ms that loses one packet, in virtual time: the window is halved, grows by a segment per round trip, and
/// recovers after C RTT^2 / (2 MSS).
#[test]
fn one_lost_packet_makes_the_saw_tooth() {
    const RTT: u64 = 15 * MS;
    // 512 Mbit/s in segments of 1448 bytes.
    let full: f64 = 512e6 / 8.0 * 15e-3 / 1448.0;
    let mut network: Network<u64> = Network::new();
    let there = network.line(
        [
            Law::Rate {
                rate: rate(1_000_000_000),
                buffer: 4 << 20,
                overhead: 24,
                mark: None,
            },
            delay(RTT / 2),
            Law::Loss(Loss::At([Nanos(1_000 * MS)].into())),
        ],
        1,
    );
    let back = network.line([delay(RTT / 2)], 2);
    let (there, back) = (network.route(&[&there]), network.route(&[&back]));
    let (mut window, mut next, mut in_flight) = (full, 0u64, 0.0);
    let (mut expected, mut missing) = (0u64, None);
    let (mut halved_at, mut recovered_at) = (None, None);
    let mut now = 0;
    while now < 10_000 * MS && recovered_at.is_none() {
        while in_flight + 1.0 <= window {
            single(&mut network, now, there, next, 1514);
            next += 1;
            in_flight += 1.0;
        }
        now = network.next().unwrap().0;
        let mut arrived = Vec::new();
        network.advance(Nanos(now), |output| {
            if let Output::Delivered { route, packet, .. } = output {
                arrived.push((route, packet));
            }
        });
        for (route, packet) in arrived {
            if route == there {
                single(&mut network, now, back, packet, 66);
                continue;
            }
            in_flight -= 1.0;
            if packet > expected && missing.is_none() {
                // As the acknowledgements of three later ones would show.
                missing = Some(expected);
                in_flight -= 1.0;
                halved_at = Some((now, window));
                window /= 2.0;
            } else if halved_at.is_some() {
                window += 1.0 / window;
            }
            expected = expected.max(packet + 1);
        }
        if halved_at.is_some() && window >= full {
            recovered_at = Some(now);
        }
    }
    let (halved, before) = halved_at.unwrap();
    assert!((before - full).abs() < 1e-9);
    let recovery = (recovered_at.unwrap() - halved) as f64 * 1e-9;
    let law: f64 = 512e6 / 8.0 * 15e-3 * 15e-3 / (2.0 * 1448.0);
    assert!(
        (recovery / law - 1.0).abs() < 0.1,
        "{recovery} s, law {law} s"
    );
}
