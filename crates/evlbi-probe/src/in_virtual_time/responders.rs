//! Timeouts of responders. Clients are scripted message by message, over a path whose delay is known to the nanosecond.

use std::net::SocketAddr;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::cpu::Waiting;
use evlbi_net::run::Run;
use evlbi_net::tcp::{self, Unconnected};
use evlbi_wire::probe::{Kind, Probe};

use super::udp::{self, ProbeUdpOptions};
use super::{Path, Rates, Scene, Sizes, Spacings, TOKEN, bits, delay};
use crate::control::{Control, ControlError, nonce};
use crate::endpoint::{Flows, FromClient, FromResponder, Test, VERSION};
use crate::measure::{Channel, Nonce, Role, Spacing, Stream, Token};
use crate::session::POLL_INTERVAL;

/// One-way delay of the path.
const WAY: Nanos = Nanos(5_000_000);
/// Longer than any timeout.
const LONG: Duration = Duration::from_secs(3600);

fn seconds(seconds: u64) -> Nanos {
    Nanos(seconds * Nanos::SECOND.0)
}

/// Runs `work` with a responder that grants one test at a time.
fn play<T>(work: impl FnOnce(&Scene) -> T) -> T {
    let mut path = Path::of(&[delay(5)]);
    path.limits.tests = 1;
    path.is_logged = false;
    path.play(work).0
}

struct Client {
    control: Control,
    run: Run,
}

/// Connects from a run's host.
fn connected(to: SocketAddr, run: &Run) -> tcp::Stream {
    let unconnected = Unconnected::new(to, run, |_| std::io::Result::Ok(()));
    unconnected.unwrap().connect(to, LONG, run).unwrap()
}

impl Client {
    /// Returns a client that has only connected, and the responder's first message.
    fn stranger(scene: &Scene, number: u8) -> (Client, Nonce) {
        let run = Run::silent().on(&scene.network.near(number));
        let to = scene.responding.addresses()[0];
        let stream = connected(to, &run);
        let control = Control::new(stream, Role::Client, run.clock());
        let mut client = Client { control, run };
        match client.hears() {
            Ok(FromResponder::Hello { nonce, .. }) => (client, nonce),
            other => panic!("{other:?}"),
        }
    }

    /// Returns an authenticated client.
    fn known(scene: &Scene, number: u8) -> Client {
        let (mut client, theirs) = Client::stranger(scene, number);
        client.proves(&theirs);
        match client.hears() {
            Ok(FromResponder::Welcome { .. }) => client,
            other => panic!("{other:?}"),
        }
    }

    fn proves(&mut self, theirs: &Nonce) {
        let ours = nonce(self.run.clock());
        self.says(&FromClient::Proof {
            version: VERSION,
            nonce: ours,
            proof: Channel::proof(&Token::from(TOKEN), [theirs, &ours]),
        });
        self.control.secure(&Token::from(TOKEN), [theirs, &ours]);
    }

    fn says(&mut self, message: &FromClient) {
        self.control.send(message).unwrap();
    }

    fn asks(&mut self, test: &Test) {
        self.says(&FromClient::Open(Box::new(test.clone())));
    }

    /// Returns the responder's next message, except keepalives.
    fn hears(&mut self) -> Result<FromResponder, ControlError> {
        loop {
            match self.control.receive(LONG)?.unwrap() {
                FromResponder::Alive { .. } => {}
                other => return Ok(other),
            }
        }
    }

    /// Returns the test's key, and the ports of its UDP socket and its listener.
    fn is_granted(&mut self) -> (u64, u16, Option<u16>) {
        loop {
            match self.hears().unwrap() {
                FromResponder::Waiting { .. } => {}
                FromResponder::Opened {
                    key, port, door, ..
                } => return (key, port, door),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns the reason of a refusal.
    fn is_refused(&mut self) -> String {
        loop {
            match self.hears().unwrap() {
                FromResponder::Waiting { .. } => {}
                FromResponder::Refused { reason } => return reason,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns the reason why the test still waits, from the messages so far; it has not started.
    fn still_waits(&mut self) -> String {
        let mut last = None;
        while let Some(said) = self.control.receive(Duration::ZERO).unwrap() {
            match said {
                FromResponder::Waiting { reason } => last = Some(reason),
                other => panic!("{other:?}"),
            }
        }
        last.unwrap()
    }

    fn now(&self) -> Nanos {
        self.run.clock().now()
    }

    /// Sleeps so that a message sent now arrives at this moment.
    fn until_it_arrives(&self, moment: Nanos) {
        let leaves = Nanos(moment.0 - WAY.0);
        self.run.clock().wait_until(leaves, Waiting::Sleep);
    }

    /// Returns the time at which the message that has just arrived left the responder.
    fn left(&self) -> Nanos {
        Nanos(self.now().0 - WAY.0)
    }
}

/// Returns a stream so slow that its sender does not notice the lack of arrivals.
fn stream() -> Stream {
    Stream {
        size: 100,
        spacing: Spacing::Nanoseconds(3_000_000_000),
        burst: 1,
        count: 100,
    }
}

fn to_the_responder() -> Test {
    Test {
        there: Some(stream()),
        max_time: seconds(600),
        ..Test::default()
    }
}

/// A client has 5 s to authenticate: a message a nanosecond before the end counts, one at the end does not.
#[test]
fn an_unauthenticated_client_has_5_s() {
    for early in [None, Some(0), Some(1)] {
        play(|scene| {
            let (mut client, theirs) = Client::stranger(scene, 2);
            let end = client.left().plus(seconds(5));
            if let Some(early) = early {
                client.until_it_arrives(Nanos(end.0 - early));
                client.proves(&theirs);
            }
            let heard = client.hears();
            let is_welcome = matches!(heard, Ok(FromResponder::Welcome { .. }));
            assert_eq!(is_welcome, early == Some(1), "{early:?} {heard:?}");
            assert_eq!(
                client.left(),
                Nanos(end.0 - early.unwrap_or(0)),
                "{early:?}"
            );
        });
    }
}

/// A session without a test ends after 120 s, from its start and from the end of each test: a request a nanosecond before that is granted,
/// one at the end is not.
#[test]
fn a_session_without_a_test_ends_after_120_s() {
    for early in [None, Some(0), Some(1)] {
        play(|scene| {
            let mut client = Client::known(scene, 2);
            let end = client.left().plus(seconds(120));
            client.until_it_arrives(Nanos(end.0 - 1));
            client.asks(&to_the_responder());
            client.is_granted();
            // A client that does not continue is refused after 8 s.
            assert_eq!(client.is_refused(), "the client does not start its test");
            assert_eq!(client.left(), Nanos(end.0 - 1).plus(seconds(8)));
            let end = client.left().plus(seconds(120));
            if let Some(early) = early {
                client.until_it_arrives(Nanos(end.0 - early));
                client.asks(&to_the_responder());
            }
            let heard = client.hears();
            let is_granted = matches!(heard, Ok(FromResponder::Opened { .. }));
            assert_eq!(is_granted, early == Some(1), "{early:?} {heard:?}");
            assert_eq!(
                client.left(),
                Nanos(end.0 - early.unwrap_or(0)),
                "{early:?}"
            );
        });
    }
}

/// A silent client is gone at the first poll after 8 s: a message a nanosecond before that keeps the test, one at that moment does not.
#[test]
fn a_client_is_gone_at_the_first_look_after_8_s() {
    for early in [None, Some(0), Some(1)] {
        play(|scene| {
            let mut client = Client::known(scene, 2);
            client.asks(&to_the_responder());
            client.is_granted();
            client.says(&FromClient::Start { port: 9 });
            assert_eq!(client.hears().unwrap(), FromResponder::Started);
            client.says(&FromClient::Go);
            let timeout = seconds(8).plus(POLL_INTERVAL.into());
            let mut gone = client.now().plus(WAY).plus(timeout);
            if let Some(early) = early {
                client.until_it_arrives(Nanos(gone.0 - early));
                client.says(&FromClient::Alive { unique: 0, used: 0 });
                if early > 0 {
                    gone = Nanos(gone.0 - early).plus(timeout);
                }
            }
            assert_eq!(
                client.is_refused(),
                "no message from the other endpoint for 8 s"
            );
            assert_eq!(client.left(), gone, "{early:?}");
            // Its capacity is free.
            let mut other = Client::known(scene, 3);
            other.asks(&to_the_responder());
            assert!(matches!(other.hears(), Ok(FromResponder::Opened { .. })));
        });
    }
}

/// Waiting tests are granted in the order of the requests, regardless of when their clients connected, each at the moment at which there is
/// room. A test whose client is gone is skipped.
#[test]
fn tests_are_granted_in_the_order_in_which_they_were_asked_for() {
    play(|scene| {
        let [mut first, two, three, four, five] =
            [1, 2, 3, 4, 5].map(|number| Client::known(scene, number));
        first.asks(&to_the_responder());
        first.is_granted();
        let mut waiting = [four, two, five, three];
        for client in &mut waiting {
            let test = Test {
                queue: seconds(60),
                ..to_the_responder()
            };
            client.asks(&test);
            let said = client.hears().unwrap();
            let FromResponder::Waiting { reason } = said else {
                panic!("{said:?}");
            };
            assert!(reason.starts_with("1 tests run now"), "{reason}");
        }
        let mut last = first;
        for (place, mut client) in waiting.into_iter().enumerate() {
            if place == 2 {
                // It disconnects while it waits.
                drop(client);
                continue;
            }
            let freed = last.now().plus(WAY);
            drop(last);
            client.is_granted();
            assert_eq!(client.left(), freed, "{place}");
            last = client;
        }
    });
}

/// Returns a path whose responder allows several tests, 100 kbit/s in total: datagrams of 100 bytes take 166 on the wire.
fn crowded() -> Path {
    let mut path = Path::of(&[delay(5)]);
    path.limits.tests = 8;
    path.limits.rate = Some(bits(166_000));
    path.is_logged = false;
    path
}

/// Returns a test at this rate, with this maximum wait in seconds.
fn of_rate(kilobits: u64, wait: u64) -> Test {
    Test {
        there: Some(Stream {
            spacing: Spacing::BitsPerSecond(bits(kilobits * 1000)),
            ..stream()
        }),
        queue: seconds(wait),
        ..to_the_responder()
    }
}

/// Smaller tests never overtake a waiting one, even if they fit: free capacity goes to the first, then to the next until one does not fit.
/// When a test times out, those behind it start.
#[test]
fn large_tests_are_not_overtaken() {
    crowded().play(|scene| {
        let [
            mut first,
            mut large,
            mut small,
            mut tiny,
            mut back,
            mut late,
        ] = [1, 2, 3, 4, 5, 6].map(|number| Client::known(scene, number));
        let pause = || scene.near.clock().sleep(Duration::from_secs(1));
        first.asks(&of_rate(60, 60));
        first.is_granted();
        large.asks(&of_rate(80, 60));
        small.asks(&of_rate(30, 60));
        tiny.asks(&of_rate(10, 60));
        // Nothing runs in this direction.
        let there = of_rate(10, 60);
        back.asks(&Test {
            back: there.there,
            there: None,
            ..there
        });
        pause();
        late.asks(&of_rate(10, 0));
        let running =
            "1 tests run now, which take 99.600 kbit/s to this host and 0.000 bit/s from it";
        let most = "; it allows 8 tests and 166.000 kbit/s";
        let refused = late.is_refused();
        let expected = format!("{running}, and 4 tests wait before this one{most}");
        assert!(refused.starts_with(&expected), "{refused}");
        assert_eq!(large.still_waits(), format!("{running}{most}"));
        let before = format!("{running}, and 1 test waits before this one{most}");
        assert_eq!(small.still_waits(), before);

        let freed = first.now().plus(WAY);
        drop(first);
        large.is_granted();
        assert_eq!(large.left(), freed);
        // 80 and 10 would fit.
        late.asks(&of_rate(10, 60));
        pause();
        pause();
        for (place, client) in [&mut small, &mut tiny, &mut back, &mut late]
            .into_iter()
            .enumerate()
        {
            let reason = client.still_waits();
            assert!(reason.contains("which take 132.800 kbit/s"), "{reason}");
            let before = match place {
                0 => "from it;",
                1 => "and 1 test waits",
                2 => "and 2 tests wait",
                _ => "and 3 tests wait",
            };
            assert!(reason.contains(before), "{reason}");
        }
        let freed = large.now().plus(WAY);
        drop(large);
        for client in [&mut small, &mut tiny, &mut back, &mut late] {
            client.is_granted();
            assert_eq!(client.left(), freed);
        }

        // 50 are taken; 60 do not fit, and time out after 2 s.
        let [mut large, mut other] = [7, 8].map(|number| Client::known(scene, number));
        large.asks(&of_rate(60, 2));
        let ends = large.now().plus(WAY).plus(seconds(2));
        other.asks(&of_rate(20, 60));
        let clock = scene.near.clock();
        clock.wait_until(Nanos(ends.plus(WAY).0 - 1), Waiting::Sleep);
        other.still_waits();
        large.is_refused();
        other.is_granted();
        assert_eq!([large.left(), other.left()], [ends; 2]);
    });
}

/// A client that falls silent while it waits delays those behind it by 8 s at most: the responder polls it once a second.
#[test]
fn a_client_that_is_gone_delays_nobody() {
    let (done, _) = crowded().play(|scene| {
        let busy = scene.network.near(1);
        let (run, target) = (Run::silent().on(&busy), scene.target());
        let holds = move || {
            let options = ProbeUdpOptions {
                target,
                rate: Some(Rates(vec![bits(60_000)])),
                size: Sizes(vec![100]),
                duration: Some(Duration::from_secs(20)),
                ..ProbeUdpOptions::default()
            };
            udp::probe(&options, &run).unwrap()
        };
        let holding = busy.clock().spawn("probe", holds).unwrap();
        scene.near.clock().sleep(Duration::from_secs(1));
        let [mut silent, mut next] = [2, 3].map(|number| Client::known(scene, number));
        silent.asks(&of_rate(80, 60));
        let asked = silent.now().plus(WAY);
        assert!(matches!(silent.hears(), Ok(FromResponder::Waiting { .. })));
        silent.says(&FromClient::Alive { unique: 0, used: 0 });
        next.asks(&of_rate(30, 60));
        assert_eq!(silent.is_refused(), "no message from the client for 8 s");
        next.is_granted();
        // It was heard at the first poll after its request.
        assert_eq!([silent.left(), next.left()], [asked.plus(seconds(9)); 2]);
        drop(next);
        holding.join()
    });
    assert_eq!(done.result.points[0].lost, 0);
}

/// A client that does not wait is refused at once, and one that would wait longer than 600 s is refused after 600 s. Both get the reason.
#[test]
fn nobody_waits_for_longer_than_600_s() {
    play(|scene| {
        let busy = scene.network.near(2);
        let (run, target) = (Run::silent().on(&busy), scene.target());
        let holds = move || {
            let options = ProbeUdpOptions {
                target,
                spacing: Some(Spacings(vec![3_000_000_000])),
                size: Sizes(vec![100]),
                duration: Some(Duration::from_secs(700)),
                ..ProbeUdpOptions::default()
            };
            udp::probe(&options, &run).unwrap()
        };
        let holding = busy.clock().spawn("probe", holds).unwrap();
        let mut client = Client::known(scene, 3);
        scene.near.clock().sleep(Duration::from_secs(1));
        for (asked, waits) in [(0, 0), (1000, 600)] {
            client.asks(&Test {
                queue: seconds(asked),
                ..to_the_responder()
            });
            let begun = client.now().plus(WAY);
            let mut told = Vec::new();
            let reason = loop {
                match client.hears().unwrap() {
                    FromResponder::Waiting { .. } => told.push(client.left().since(begun)),
                    FromResponder::Refused { reason } => break reason,
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(client.left().since(begun), seconds(waits));
            // It receives a message every second that it waits.
            assert_eq!(told, (0..waits).map(seconds).collect::<Vec<Nanos>>());
            assert!(
                reason.starts_with("1 tests run now") && reason.contains("it allows 1 tests"),
                "{reason}"
            );
        }
        assert_eq!(holding.join().result.points[0].lost, 0);
    });
}

/// A client that receives a stream is refused if its first UDP datagram does not arrive within 3 s, and the refusal suggests a reason. One
/// that arrives a nanosecond earlier counts.
#[test]
fn a_firewall_that_drops_udp_is_named() {
    for early in [None, Some(1)] {
        play(|scene| {
            let mut client = Client::known(scene, 2);
            client.asks(&Test {
                back: Some(stream()),
                max_time: seconds(600),
                ..Test::default()
            });
            let (key, port, _) = client.is_granted();
            client.says(&FromClient::Start { port: 9 });
            let end = client.now().plus(WAY).plus(seconds(3));
            if let Some(early) = early {
                client.until_it_arrives(Nanos(end.0 - early));
                let request = Probe {
                    kind: Kind::Request,
                    key,
                    sequence: 0,
                    departed: 0,
                };
                let host = scene.network.near(2);
                let socket = host.socket(9, None);
                let to = SocketAddr::new(scene.far.address(), port);
                let bytes = request.to_bytes().to_vec();
                socket.send_to(to, bytes, client.now());
                assert_eq!(client.hears().unwrap(), FromResponder::Started);
            } else {
                assert_eq!(
                    client.is_refused(),
                    format!(
                        "no UDP datagram arrived from 10.255.0.2 at port {port} here: a firewall or another device on the path drops them"
                    )
                );
            }
            assert_eq!(client.left(), Nanos(end.0 - early.unwrap_or(0)));
        });
    }
}

/// Connections must arrive within 8 s after the client reports that it is ready: 3 s to be found by UDP, and 5 s for them. A connection
/// that identifies itself at the limit counts, one a nanosecond later does not.
#[test]
fn connections_that_do_not_arrive_time_out_after_8_s() {
    for come in [0, 1, 2] {
        play(|scene| {
            let mut client = Client::known(scene, 2);
            client.asks(&Test {
                flows: Some(Flows {
                    there: vec![None, None],
                    write: 1000,
                    every: Nanos(10_000_000),
                    ..Flows::default()
                }),
                max_time: seconds(1),
                ..Test::default()
            });
            let (key, _, door) = client.is_granted();
            let door = door.unwrap();
            client.says(&FromClient::Start { port: 9 });
            let end = client.now().plus(WAY).plus(seconds(8));
            let to = SocketAddr::new(scene.far.address(), door);
            let connections = [0, 1u32].map(|number| {
                let stream = connected(to, &client.run);
                let greeting = [&key.to_le_bytes()[..], &number.to_le_bytes()].concat();
                (stream, greeting)
            });
            for (number, (stream, greeting)) in connections.iter().enumerate() {
                let late = u64::from(number >= come);
                client.until_it_arrives(Nanos(end.0 + late));
                assert_eq!(stream.write(greeting).unwrap(), greeting.len());
            }
            if come == 2 {
                assert_eq!(client.hears().unwrap(), FromResponder::Started);
            } else {
                assert_eq!(
                    client.is_refused(),
                    format!(
                        "{come} of 2 TCP connections reached port {door}: something on the path, e.g. a firewall, blocks the others"
                    )
                );
            }
            assert_eq!(client.left(), end, "{come}");
        });
    }
}
