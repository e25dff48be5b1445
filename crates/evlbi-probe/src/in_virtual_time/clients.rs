//! Several clients of one responder: they share it, wait for each other, are refused, or fall silent.

use std::time::Duration;

use evlbi_core::path::{Law, Loss};
use evlbi_core::time::Nanos;
use evlbi_net::run::{Run, explain};
use evlbi_net::sim;

use super::{Path, bits, delay};
use crate::Measured;
use crate::direction::Direction;
use crate::session::Target;
use crate::sweep::{Rates, Sizes, Spacings};
use crate::udp::{self, ProbeUdp, ProbeUdpOptions};

/// Three clients share a responder. It refuses a fourth stream that exceeds its limit, and serves one in the other direction.
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

/// Tests wait in the order of the requests, and start when there is room; a test that does not wait is refused. The capacity of a killed
/// client is free at once.
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
            refused.contains("1 tests run now") && refused.contains("it allows 1 tests"),
            "{refused}"
        );
        // Connecting, authenticating, being welcomed and asking takes four round trips.
        assert_eq!(at, Nanos(2_040_000_000));
        let (first, first_at) = first.join();
        let (second, second_at) = second.join();
        for result in [first, second] {
            assert_eq!((result.as_ref().unwrap().result.points[0].lost), 0);
        }
        // From its grant on, a test takes a round trip of 10 ms until it is found, 28 ms for ten requests, one millisecond until the
        // endpoint notices, and one until the first datagram leaves. Then come its stream, one datagram per 11.776 ms, 28 ms for ten
        // requests, and a round trip for the result. Each endpoint polls every 20 ms, and every millisecond for replies.
        let takes = |seconds: u64, from: Nanos, to: Nanos| {
            let stream = (seconds * 1_000_000).div_ceil(8 * 1472) * 11_776_000;
            let looks = to.since(from).0 - (40 + 38) * 1_000_000 - stream;
            assert!(looks <= 41_000_000, "{seconds} {looks}");
        };
        takes(10, Nanos(40_000_000), first_at);
        // It is granted when the result of the first leaves; the result arrives when the grant does.
        takes(5, first_at, second_at);

        // Killed during the test: its host closes the connection.
        let killed = begin(4, 600, 0);
        clock.sleep(Duration::from_secs(3));
        scene.network.near(4).kill();
        drop(killed);
        let (next, at) = begin(5, 1, 60).join();
        assert_eq!(next.unwrap().result.points[0].lost, 0);
        takes(1, second_at.plus(Nanos(3_040_000_000)), at);
    });
}

/// A client that is silent for 8 s is gone, and its capacity is free; one that is heard in time continues. After 2 s TCP has doubled its
/// timeout so far that the next retransmission is at 3.2 s.
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
                // So slow that the sender does not notice the lack of arrivals.
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
                for way in [sim::Direction::There, sim::Direction::Back] {
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
            let said = |done: Result<Measured<ProbeUdp>, udp::ProbeUdpError>| match done {
                Ok(measured) => measured.result.stopped.unwrap_or_default(),
                Err(error) => explain(&error),
            };
            let [first, other] = [first, other].map(said);
            assert_eq!(first.contains("for 8 s"), is_gone, "{silent}: {first}");
            assert_eq!(
                other.contains("1 tests run now"),
                !is_gone,
                "{silent}: {other}"
            );
        });
    }
}
