//! Packets that cells drop: every n-th, at given times, at random, in bursts, above a rate, in episodes.

use super::{MS, carried, rate, steady};
use crate::path::{Fate, Law, Loss, Network, Output, Piece, Times, Train};
use crate::time::Nanos;

#[test]
fn every_nth_packet_is_lost_and_logged() {
    let mut network: Network<u64> = Network::new();
    let law = Law::Loss(Loss::Every {
        period: 1000,
        first: 7,
    });
    let line = network.line([law], 1);
    network.cell_mut(line.cells[0]).log(100);
    let route = network.route(&[&line]);
    for number in 0..1000 {
        let train = Train {
            count: 44,
            bytes: 1514,
            last: 300,
        };
        network.offer(
            route,
            44 * number,
            train,
            Piece::whole(Nanos(number), &train),
            14,
        );
    }
    let mut arrived = 0;
    network.advance(Nanos(2000), |output| {
        if let Output::Delivered { piece, .. } = output {
            arrived += u64::from(piece.count);
        }
    });
    assert_eq!(arrived, 44_000 - 44);
    let log = network.cell_mut(line.cells[0]).take_log();
    assert_eq!(log.len(), 44);
    for (place, entry) in log.iter().enumerate() {
        assert_eq!(entry.packet, place as u64 * 1000 + 7);
        assert_eq!((entry.identity, entry.fate), (entry.packet, Fate::Dropped));
    }
}

#[test]
fn one_packet_is_lost_at_each_time() {
    let law = Law::Loss(Loss::At([Nanos(5 * MS), Nanos(7 * MS)].into()));
    let (arrived, ..) = carried(vec![law], steady(100, 100, 300_000));
    let lost: Vec<u64> = (0..100)
        .filter(|number| !arrived.iter().any(|(_, other)| other == number))
        .collect();
    assert_eq!(lost, [17, 24]);
}

#[test]
fn bursts_are_as_long_and_as_frequent_as_configured() {
    evlbi_testkit::watch();
    let law = Law::Loss(Loss::Bursts {
        begins: 0.002,
        ends: 0.1,
        good: 0.0,
        bad: 1.0,
    });
    let count = 1_000_000;
    let (arrived, ..) = carried(vec![law], steady(count, 100, 1));
    let lost = count as f64 - arrived.len() as f64;
    let bursts = arrived.windows(2).filter(|pair| pair[1].1 > pair[0].1 + 1);
    let bursts = bursts.count() as f64;
    // Mean length 10, and each state's fraction from the balance of the chain; 4 standard deviations of about 2000 bursts.
    assert!((lost / bursts - 10.0).abs() < 4.0 * 9.5 / bursts.sqrt());
    let share = 0.002 / 0.102;
    let sigma = (2.0 * 10.0 * share / count as f64).sqrt();
    assert!((lost / count as f64 - share).abs() < 4.0 * sigma);
}

#[test]
fn random_loss_is_binomial_with_geometric_gaps() {
    let law = Law::Loss(Loss::Random { fraction: 0.01 });
    let (arrived, ..) = carried(vec![law], steady(1_000_000, 100, 1));
    let lost = 1_000_000 - arrived.len();
    assert!((lost as f64 - 10_000.0).abs() < 4.0 * 99.5, "{lost}");
    let pairs = arrived.windows(2).filter(|pair| pair[1].1 == pair[0].1 + 3);
    // Two in a row, surrounded by others.
    assert!((pairs.count() as f64 - 98.0).abs() < 4.0 * 10.0);
}

#[test]
fn a_switch_loses_at_line_rate_and_not_below() {
    evlbi_testkit::watch();
    let law = || {
        Law::Loss(Loss::Above {
            rate: rate(900_000_000),
            window: Nanos(10 * MS),
            overhead: 24,
            fraction: 6e-5,
        })
    };
    // 1538 bytes every 13.09 us are 940 Mbit/s; every 15.38 us, 800.
    let (fast, ..) = carried(vec![law()], steady(5_000_000, 1514, 13_089));
    let lost = 5_000_000 - fast.len();
    assert!((lost as f64 - 300.0).abs() < 4.0 * 17.3, "{lost}");
    let (slow, ..) = carried(vec![law()], steady(1_000_000, 1514, 15_380));
    assert_eq!(slow.len(), 1_000_000);
}

#[test]
fn losses_come_and_go() {
    evlbi_testkit::watch();
    let within = |times, fraction| Law::Loss(Loss::Within { times, fraction });
    let outage = Times::Once {
        from: Nanos(10),
        to: Nanos(20),
    };
    let (arrived, ..) = carried(vec![within(outage, 1.0)], steady(30, 100, 1));
    assert!(arrived.iter().all(|(at, _)| !(10..20).contains(at)));
    assert_eq!(arrived.len(), 20);
    let periodic = Times::Periodic {
        period: Nanos(100),
        length: Nanos(5),
        first: Nanos(50),
    };
    let (arrived, ..) = carried(vec![within(periodic, 1.0)], steady(1000, 100, 1));
    assert_eq!(arrived.len(), 950);
    assert!(
        arrived
            .iter()
            .all(|(at, _)| *at < 50 || (at - 50) % 100 >= 5)
    );
    let episodes = Times::Episodes {
        on: Nanos(1000),
        off: Nanos(9000),
    };
    let (arrived, ..) = carried(vec![within(episodes, 1.0)], steady(4_000_000, 100, 1));
    let lost = 1.0 - arrived.len() as f64 / 4e6;
    // About 400 episodes.
    assert!(
        (lost - 0.1).abs() < 4.0 * 0.1 * (2.0f64 / 400.0).sqrt(),
        "{lost}"
    );
}
