//! Whole senders and receivers, with what lies between them, in virtual time.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use evlbi_core::path::{Impairment, Law, Loss, Shape, Until};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::relay::{Relay, RelayFlow};
use evlbi_net::run::Run;
use evlbi_net::sim::{Network, Way};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Burst, Pace, SendOptions, send};
use crate::recv::{RecvOptions, receive};
use crate::steer::Change;

/// 2027-01-15T08:00:00Z.
const BEGINNING: u64 = 1_800_000_000 * Nanos::SECOND.0;
const FRAME: usize = 1032;

/// A network of these laws there, by a clock whose log is kept.
fn network(laws: &[Law], seed: u64) -> (Clock, Network) {
    let clock = Clock::simulated(BEGINNING);
    clock.keep_log();
    let network = Network::between(&clock, [laws, &[]], 1500, seed);
    (clock, network)
}

fn delay(milliseconds: u64) -> Law {
    Law::Delay {
        delay: Nanos(milliseconds * 1_000_000),
        jitter: Nanos(0),
        shape: Shape::Uniform,
        reorders: false,
    }
}

fn port(number: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], number))
}

fn receiver(network: &Network) -> RecvOptions {
    RecvOptions {
        from: network.to(port(2630)),
        to: "check".into(),
        ring: Some(16 << 20),
        idle: Some(Duration::from_secs(2)),
        ..RecvOptions::default()
    }
}

fn sender(network: &Network, rate: u64, length: Duration) -> SendOptions {
    SendOptions {
        source: format!("pattern:{FRAME}"),
        to: network.to(port(2630)),
        pace: Pace::Rate(BitRate::new(rate).unwrap()),
        burst: Burst::Fixed(1),
        duration: Some(length),
        ..SendOptions::default()
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What a sender and its receiver say in the end, and when that is.
fn played(network: &Network, send_options: &SendOptions, recv_options: &RecvOptions) -> [Value; 2] {
    let run = |host| Run::silent().on(&host);
    let receiving = receive(recv_options, &run(network.far(1))).unwrap();
    let sending = send(send_options, &run(network.near(1))).unwrap();
    let sent = serde_json::to_value(sending.join().unwrap());
    let received = serde_json::to_value(receiving.join().unwrap());
    [sent.unwrap(), received.unwrap()]
}

/// When datagrams left, in nanoseconds.
fn sends(log: &str) -> Vec<u64> {
    let sends = log.lines().filter(|line| line.contains(" sends "));
    let times = sends.map(|line| line.split_once(' ').unwrap().0.parse().unwrap());
    times.collect()
}

fn of(result: &Value, name: &str) -> u64 {
    result[name].as_u64().unwrap()
}

/// A flow sends what its rate says, to within a datagram, and what a new rate says from the moment that it is given.
#[test]
fn a_rate_is_kept_and_changed_to_within_a_datagram() {
    let (clock, network) = network(&[delay(10)], 1);
    let (first, second) = (8_000_000, 3_000_000);
    let [sent, received] = clock.simulate(|| {
        let run = |host| Run::silent().on(&host);
        let receiving = receive(&receiver(&network), &run(network.far(1))).unwrap();
        let sending = send(&sender(&network, first, seconds(20)), &run(network.near(1))).unwrap();
        clock.sleep(seconds(8));
        let change = Change {
            rate: Some(second.to_string()),
            ..Change::default()
        };
        sending.watched().change(&change).unwrap();
        let sent = serde_json::to_value(sending.join().unwrap()).unwrap();
        [
            sent,
            serde_json::to_value(receiving.join().unwrap()).unwrap(),
        ]
    });
    let log = clock.take_log();
    let begun = sends(&log)[0] as f64 * 1e-9;
    let datagram = FRAME as f64 * 8.0;
    let due = (first as f64 * (8.0 - begun) + f64::from(second) * (12.0 + begun)) / datagram;
    let found = of(&sent, "sent") as f64;
    assert!((found - due).abs() <= 2.0, "{found} {due}");
    assert_eq!(of(&sent, "not_sent"), 0);
    assert_eq!(sent["lateness_us"]["max"], 0.0);
    assert_eq!(of(&received, "unique"), of(&sent, "sent"));
    assert_eq!(received["check"]["corrupted"], 0);
}

/// A receiver ends when its stream was silent for as long as it was told, to the time between two looks, and a stream that comes back
/// before goes on.
#[test]
fn silence_ends_a_stream_when_it_should() {
    let silence = |from: u64, to: u64| {
        Law::Loss(Loss::Within {
            times: evlbi_core::path::Times::Once {
                from: Nanos(from * 1_000_000),
                to: Nanos(to * 1_000_000),
            },
            fraction: 1.0,
        })
    };
    for (from, to, ends) in [(3000, 4900, 10_000), (3000, 5100, 3000)] {
        let (clock, network) = network(&[silence(from, to), delay(10)], 1);
        let (received, at) = clock.simulate(|| {
            let run = |host| Run::silent().on(&host);
            let receiving = receive(&receiver(&network), &run(network.far(1))).unwrap();
            let sending = send(
                &sender(&network, 800_000, seconds(10)),
                &run(network.near(1)),
            );
            let received = receiving.join().unwrap();
            let at = clock.now().as_secs_f64() * 1e3;
            sending.unwrap().join().unwrap();
            (serde_json::to_value(received).unwrap(), at)
        });
        assert_eq!(received["ended"], "idle");
        let expected = f64::from(ends) + 10.0 + 2000.0;
        assert!(
            (expected - 15.0..expected + 45.0).contains(&at),
            "{at} {expected}"
        );
    }
}

/// What arrives later than it is waited for is late, and nothing else; it is recorded all the same while there is room for it.
#[test]
fn what_is_held_back_for_too_long_is_late() {
    for (held, is_late) in [(150, false), (400, true)] {
        let reorder = Law::Reorder {
            fraction: 0.02,
            until: Until::Time(Nanos(held * 1_000_000)),
        };
        let (clock, network) = network(&[reorder, delay(5)], 7);
        let ([sent, received], truth) = clock.simulate(|| {
            let options = RecvOptions {
                hold: Some(Duration::from_millis(200)),
                ..receiver(&network)
            };
            let results = played(&network, &sender(&network, 4_000_000, seconds(4)), &options);
            (results, network.truth(Way::There, 0))
        });
        let (late, unique) = (of(&received, "late"), of(&received, "unique"));
        assert_eq!((unique, of(&received, "lost")), (of(&sent, "sent"), 0));
        assert!(truth.held > 20);
        let expected = if is_late { truth.held } else { 0 };
        // The last ones have nothing behind them that would give them up.
        assert!(
            (expected.saturating_sub(3)..=expected).contains(&late),
            "{late} {expected}"
        );
    }
}

/// Each datagram that the path drops is missed, and each one that it doubles is counted: for hundreds of seeds.
#[test]
fn what_the_path_does_is_counted() {
    for seed in 0..200 {
        let laws = [
            Law::Loss(Loss::Bursts {
                begins: 0.02,
                ends: 0.3,
                good: 0.001,
                bad: 0.6,
            }),
            Law::Duplicate { fraction: 0.03 },
            Law::Reorder {
                fraction: 0.03,
                until: Until::Passed(1 + (seed % 9) as u32),
            },
            delay(5),
        ];
        let (clock, network) = network(&laws, seed);
        let ([sent, received], truths) = clock.simulate(|| {
            let options = sender(&network, 8_000_000, Duration::from_millis(300));
            let results = played(&network, &options, &receiver(&network));
            (results, [0, 1].map(|cell| network.truth(Way::There, cell)))
        });
        let [count, unique] = [of(&sent, "sent"), of(&received, "unique")];
        assert_eq!(count - unique, truths[0].dropped, "seed {seed}");
        assert_eq!(
            of(&received, "duplicates"),
            truths[1].duplicated,
            "seed {seed}"
        );
        assert_eq!(of(&received, "expected"), unique + of(&received, "lost"));
        assert_eq!(
            of(&received, "lost"),
            of(&received, "network_lost"),
            "seed {seed}"
        );
        let span = of(&received, "last_seq") - of(&received, "first_seq") + 1;
        assert_eq!(of(&received, "expected"), span, "seed {seed}");
        assert_eq!(received["check"]["corrupted"], 0, "seed {seed}");
    }
}

/// A relay between both does what it says, and everything happens twice alike: for each of a hundred seeds.
#[test]
fn a_relay_passes_on_twice_alike() {
    let play = |seed| {
        let (clock, network) = network(&[delay(1)], seed);
        let impairment = Impairment {
            loss: 0.05,
            duplicate: 0.03,
            reorder: 0.03,
            distance: 5,
        };
        let (results, report) = clock.simulate(|| {
            let [near, far] = [network.near(1), network.far(1)].map(|host| Run::silent().on(&host));
            let (at, to) = (network.to(port(4000)), network.to(port(2630)));
            let flow = RelayFlow::new(&at, &to, impairment, seed, &far).unwrap();
            let relay = Relay::start(vec![flow], far.clock()).unwrap();
            let options = SendOptions {
                to: at,
                ..sender(&network, 4_000_000, Duration::from_millis(200))
            };
            let receiving = receive(&receiver(&network), &far).unwrap();
            let sent = send(&options, &near).unwrap().join().unwrap();
            // What it holds back leaves at its end.
            let report = relay.finish().unwrap().remove(0);
            let received = serde_json::to_value(receiving.join().unwrap()).unwrap();
            ([serde_json::to_value(sent).unwrap(), received], report)
        });
        (results, report, clock.take_log())
    };
    let mut logs = BTreeSet::new();
    for seed in 0..100 {
        let ([sent, received], report, log) = play(seed);
        let (again, _, other) = play(seed);
        assert_eq!([&sent, &received], [&again[0], &again[1]]);
        let [log, other] = [log, other].map(|log| Sha256::digest(log.as_bytes()));
        assert_eq!(log, other, "seed {seed}");
        logs.insert(log);
        let truth = &report.truth;
        assert_eq!(truth.offered, of(&sent, "sent"));
        assert_eq!(
            (truth.delivered, truth.lost),
            (of(&received, "unique"), of(&received, "lost"))
        );
        assert_eq!(truth.duplicates, of(&received, "duplicates"));
        assert_eq!(truth.reordered, of(&received, "reordered"));
        assert_eq!(
            [report.foreign, report.not_sent, report.socket_drops],
            [0; 3]
        );
    }
    assert_eq!(logs.len(), 100);
}

/// Datagrams of a sender leave one after the other as far apart as its rate says, to the nanosecond.
#[test]
fn datagrams_leave_as_far_apart_as_they_should() {
    let (clock, network) = network(&[], 1);
    clock.simulate(|| {
        played(
            &network,
            &sender(&network, 8_256_000, seconds(1)),
            &receiver(&network),
        );
    });
    let times = sends(&clock.take_log());
    assert_eq!(times.len(), 1000);
    let apart: BTreeSet<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(apart, BTreeSet::from([1_000_000]));
}
