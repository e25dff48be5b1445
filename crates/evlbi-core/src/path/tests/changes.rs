//! Cells whose laws change: when the change takes effect, and what happens to waiting packets.

use super::{MS, delay, rate, single};
use crate::path::{Law, Loss, Network, Output};
use crate::time::Nanos;

#[test]
fn laws_change_at_their_time_and_at_once() {
    let mut network: Network<u64> = Network::new();
    let line = network.line([Law::Loss(Loss::Random { fraction: 0.0 })], 1);
    let cell = line.cells[0];
    network
        .cell_mut(cell)
        .change_at(Nanos(100), Law::Loss(Loss::Random { fraction: 1.0 }));
    let route = network.route(&[&line]);
    let mut arrived = Vec::new();
    for at in 0..300 {
        if at == 200 {
            network
                .cell_mut(cell)
                .change(Nanos(at), Law::Loss(Loss::Random { fraction: 0.0 }));
        }
        single(&mut network, at, route, at, 100);
        network.advance(Nanos(at), |output| {
            if let Output::Delivered { packet, .. } = output {
                arrived.push(packet);
            }
        });
    }
    assert_eq!(arrived, (0..100).chain(200..300).collect::<Vec<u64>>());
}

/// A rate for packets without overhead on the wire.
fn bare_rate(bits: u64, buffer: u64) -> Law {
    Law::Rate {
        rate: rate(bits),
        buffer,
        overhead: 0,
        mark: None,
    }
}

/// Waiting packets keep their order when a rate or a delay changes, and the buffer neither shrinks nor grows.
#[test]
fn what_waits_outlives_a_change() {
    let slow = |bits: u64| bare_rate(bits, 200_000);
    let mut network: Network<u64> = Network::new();
    let line = network.line([slow(1_000_000), delay(50 * MS)], 1);
    network
        .cell_mut(line.cells[0])
        .change_at(Nanos(10 * MS), slow(1_000_000_000));
    network
        .cell_mut(line.cells[1])
        .change_at(Nanos(61 * MS), delay(0));
    let route = network.route(&[&line]);
    for packet in 0..50 {
        single(&mut network, 0, route, packet, 1250);
    }
    for packet in 50..100 {
        single(&mut network, 11 * MS + packet, route, packet, 1250);
    }
    let mut arrived = Vec::new();
    network.advance(Nanos(u64::MAX), |output| {
        if let Output::Delivered { packet, .. } = output {
            arrived.push(packet);
        }
    });
    assert_eq!(arrived, (0..100).collect::<Vec<u64>>());
}

/// A rate that rises while packets wait: none overtakes another, and none are closer than the new rate allows.
#[test]
fn a_rate_that_rises_sends_one_by_one() {
    let at = |bits: u64| bare_rate(bits, 100_000);
    let mut network: Network<u64> = Network::new();
    let line = network.line([at(1_000_000)], 1);
    network
        .cell_mut(line.cells[0])
        .change_at(Nanos(100 * MS), at(100_000_000));
    let route = network.route(&[&line]);
    for packet in 0..40 {
        single(&mut network, 0, route, packet, 1250);
    }
    for packet in 40..100 {
        single(&mut network, 101 * MS + packet, route, packet, 1250);
    }
    let mut left = Vec::new();
    network.advance(Nanos(u64::MAX), |output| {
        if let Output::Delivered { packet, piece, .. } = output {
            left.push((packet, piece.at.0));
        }
    });
    assert!(left.iter().map(|one| one.0).eq(0..left.len() as u64));
    // 30 wait and are 10 ms apart; the others follow at intervals of 0.1 ms.
    for pair in left.windows(2) {
        let gap = pair[1].1 - pair[0].1;
        let expected = if pair[1].0 < 40 { 10 * MS } else { MS / 10 };
        assert_eq!(gap, expected, "{pair:?}");
    }
    let truth = network.cell(line.cells[0]).truth();
    assert_eq!(left.len() as u64, truth.passed());
    // Of the buffer of 0.1 MB, 37.5 kB less what has left are in use, so there is room for some 60.
    assert!(left.len() > 85, "{}", left.len());
    let first = (1..=40u64).map(|packet| 10 * MS * packet).sum::<u64>();
    let then = left[40..]
        .iter()
        .map(|one| one.1 - 101 * MS - one.0)
        .sum::<u64>();
    assert_eq!(truth.delayed_us, (first + then) / 1000);
}

/// However the rate changes, no more waits than the buffer holds.
#[test]
fn a_buffer_stays_one_when_its_rate_changes() {
    let at = |bits: u64| bare_rate(bits, 100_000);
    for changed in [1_000_000, 20_000_000, 400_000_000] {
        let mut network: Network<u64> = Network::new();
        let line = network.line([at(20_000_000)], 1);
        network
            .cell_mut(line.cells[0])
            .change_at(Nanos(500 * MS), at(changed));
        network
            .cell_mut(line.cells[0])
            .change_at(Nanos(510 * MS), at(50_000_000));
        let route = network.route(&[&line]);
        // 100 Mbit/s.
        let mut offered = 0;
        let (mut left, mut late) = (0, 0);
        while offered < 20_000 {
            single(&mut network, offered * 100_000, route, offered, 1250);
            network.advance(Nanos(offered * 100_000), |_| left += 1);
            let waits = network.cell(line.cells[0]).truth().passed() - left;
            // Plus the packet in transmission, and the remainders of a change.
            assert!(
                waits * 1250 <= 100_000 + 2 * 1250,
                "{changed}: {waits} wait"
            );
            late = waits.max(late);
            offered += 1;
        }
        assert!(late >= 75, "{late}");
        let before = left;
        let begin = offered * 100_000;
        network.advance(Nanos(begin + 17 * MS), |_| left += 1);
        // Data that wait at 50 Mbit/s have left after 16 ms.
        assert_eq!(
            left,
            network.cell(line.cells[0]).truth().passed(),
            "{changed}, {before}"
        );
    }
}
