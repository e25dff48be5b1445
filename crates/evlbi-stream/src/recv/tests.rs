//! Tests several receivers and senders in one process.

mod faults;
mod in_virtual_time;
mod over_tcp;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use evlbi_core::path::{Law, Loss, Shape};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_host::host::HostOptions;
use evlbi_net::clock::Clock;
use evlbi_net::file::Durability;
use evlbi_net::receive::Ended;
use evlbi_net::run::Run;
use evlbi_net::sim::Network;
use evlbi_net::transport::{Local, Numbers, Url};
use evlbi_testkit::{Room, arq, until};
use sha2::{Digest, Sha256};

use super::{MIN_RING, Receiving, RecvError, RecvOptions, receive};
use crate::control_socket::{Change, Status, Watched};
use crate::send::{Burst, Pace, SendOptions, Sending, send};

/// Bit rate of each stream, in bit/s.
const RATE: u64 = 1_000_000;
const FRAME: usize = 1032;
/// Distance between the first sequence numbers of two streams.
const APART: u64 = 1_000_000;

fn url(scheme: &str, address: &Local) -> Url {
    format!("{scheme}{address}").parse().unwrap()
}

fn receiver(from: &Url, to: &str, run: &Run) -> Receiving {
    let options = RecvOptions {
        from: from.clone(),
        to: to.to_owned(),
        ring: Some(MIN_RING),
        ..RecvOptions::default()
    };
    receive(&options, run).unwrap()
}

fn sender(to: Url, sequence: u64, run: &Run) -> Sending {
    let service = to.transport().service();
    let options = SendOptions {
        source: format!("pattern:{FRAME}"),
        to,
        pace: Pace::Rate(BitRate::new(RATE).unwrap()),
        sequence: (service.numbers == Numbers::InBand).then_some(sequence),
        ..SendOptions::default()
    };
    send(&options, run).unwrap()
}

fn any(scheme: &str) -> Url {
    url(scheme, &Local::Socket(([127, 0, 0, 1], 0).into()))
}

/// Returns a path in `room`.
fn path(room: &Room) -> Url {
    url("unix://", &Local::Path(room.path("socket").into()))
}

/// Each has its own stream, end and counts.
#[test]
fn several_streams_are_sent_and_received_at_once() {
    let room = Room::new();
    let run = Run::silent();
    let sinks = [
        ("udp://", "check".to_owned()),
        ("udp://", room.path("udp.vdif")),
        ("pudp://", "check".to_owned()),
        ("tcp://", room.path("tcp.vdif")),
        ("udp://", room.path("split-{station}-{thread}.vdif")),
        ("unix://", room.path("unix.vdif")),
    ];
    let flows: Vec<(Receiving, Sending)> = sinks
        .iter()
        .zip(0..)
        .map(|((scheme, to), number)| {
            let from = match *scheme {
                "unix://" => path(&room),
                scheme => any(scheme),
            };
            let receiving = receiver(&from, to, &run);
            let to = url(scheme, &receiving.seen.local[0]);
            let sending = sender(to, number * APART, &run);
            (receiving, sending)
        })
        .collect();
    until("something of each stream", || {
        flows
            .iter()
            .all(|(receiving, _)| receiving.seen.status().counts.count("bytes") > 50 * FRAME as u64)
    });
    // A change affects one sender only.
    let change = Change {
        rate: Some("2M".into()),
        ..Change::default()
    };
    flows[0].1.seen.change(&change).unwrap();
    let asked: Vec<Option<u64>> = flows
        .iter()
        .map(|(_, sending)| sending.seen.status().rate_asked_bps)
        .collect();
    assert_eq!(asked[..2], [Some(2 * RATE), Some(RATE)]);
    // So does a stop: the others continue.
    for (number, ((receiving, sending), (scheme, to))) in flows.into_iter().zip(&sinks).enumerate()
    {
        let before = receiving.seen.status().counts.count("bytes");
        until("more", || {
            receiving.seen.status().counts.count("bytes") > before
        });
        sending.stop();
        let sent = sending.join().unwrap().report.live;
        if scheme.ends_with("udp://") {
            until("all", || {
                receiving.seen.status().counts.count("received") >= sent.sent
            });
            receiving.stop();
        }
        let result = receiving.join();
        // Frames without numbers are distinguished by their times, as far as the frame rate is known.
        if *scheme != "pudp://" {
            assert_eq!(result.live.bytes, sent.bytes, "{number}");
        }
        let (ended, first) = match *scheme {
            "udp://" => (Ended::Stopped, Some(number as u64 * APART)),
            "pudp://" => (Ended::Stopped, result.first_seq),
            "unix://" => (Ended::Closed, Some(number as u64 * APART)),
            _ => (Ended::Closed, None),
        };
        assert_eq!((result.ended, result.first_seq), (ended, first), "{number}");
        let written: u64 = result.sink.files.iter().map(|file| file.bytes).sum();
        match &result.sink.check {
            Some(check) => assert_eq!((check.corrupted, to.as_str()), (0, "check")),
            None => assert_eq!(written, sent.bytes, "{number}"),
        }
    }
    assert!(!run.is_stopped());
}

/// A stop of the whole run stops all of its parts.
#[test]
fn a_run_that_is_stopped_ends_all() {
    let run = Run::silent();
    let receiving = receiver(&any("udp://"), "null", &run);
    let to = url("udp://", &receiving.seen.local[0]);
    let sending = sender(to, 0, &run);
    let nobody = receiver(&any("tcp://"), "null", &run);
    until("a stream", || receiving.seen.status().is_streaming);
    run.stop();
    assert!(sending.join().unwrap().report.live.sent > 0);
    assert_eq!(receiving.join().ended, Ended::Stopped);
    assert!(nobody.join().is_empty());
}

/// A dropped receiver is gone, within a stream or before one: its port is free in the next line.
#[test]
fn a_receiver_that_is_dropped_leaves_its_port() {
    let room = Room::new();
    let run = Run::silent();
    let first = receiver(&any("udp://"), "null", &run);
    let place = url("udp://", &first.seen.local[0]);
    let _sending = sender(place.clone(), 0, &run);
    drop(first);
    for round in 0..100 {
        let receiving = receiver(&place, &room.path(&format!("{round}.vdif")), &run);
        if round % 10 == 0 {
            until("a stream", || {
                receiving.seen.status().counts.count("bytes") > 0
            });
        }
        drop(receiving);
        UdpSocket::bind(place.addresses().unwrap()[0][0]).unwrap();
    }
    let first = receiver(&any("tcp://"), "null", &run);
    let place = url("tcp://", &first.seen.local[0]);
    drop(first);
    for round in 0..100 {
        let receiving = receiver(&place, "null", &run);
        let sending = (round % 10 == 0).then(|| sender(place.clone(), 0, &run));
        if sending.is_some() {
            until("a stream", || {
                receiving.seen.status().counts.count("bytes") > 0
            });
        }
        drop(receiving);
        TcpListener::bind(place.addresses().unwrap()[0][0]).unwrap();
    }
    let place = path(&room);
    for round in 0..20 {
        let receiving = receiver(&place, "null", &run);
        let sending = (round % 10 == 0).then(|| sender(place.clone(), 0, &run));
        if sending.is_some() {
            until("a stream", || {
                receiving.seen.status().counts.count("bytes") > 0
            });
        }
        drop(receiving);
        assert!(!room.folder().join("socket").exists());
    }
}

/// A dropped sender is gone: its connection is closed in the next line.
#[test]
fn a_sender_that_is_dropped_sends_no_more() {
    let run = Run::silent();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = url("tcp://", &Local::Socket(listener.local_addr().unwrap()));
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..100 {
        let sending = sender(to.clone(), 0, &run);
        let (mut connection, _) = listener.accept().unwrap();
        connection.read_exact(&mut [0; FRAME]).unwrap();
        drop(sending);
        connection.set_nonblocking(true).unwrap();
        // The data that was sent, and the end.
        connection.read_to_end(&mut Vec::new()).unwrap();
        let sending = sender(
            url("udp://", &Local::Socket(near.local_addr().unwrap())),
            0,
            &run,
        );
        near.set_nonblocking(false).unwrap();
        near.recv(&mut [0; 2 * FRAME]).unwrap();
        let (seen, mut status) = (sending.watched(), Status::default());
        drop(sending);
        near.set_nonblocking(true).unwrap();
        let all =
            std::iter::once(Ok(0)).chain(std::iter::repeat_with(|| near.recv(&mut [0; 2 * FRAME])));
        seen.tell(&mut status);
        let received = all.take_while(Result::is_ok).count() as u64;
        assert_eq!(received, status.sending.unwrap().counts.count("sent"));
    }
}

/// Impairments of a path that delays, drops, duplicates and reorders.
fn laws() -> [Law; 3] {
    let delay = Law::Delay {
        delay: Nanos(15_000_000),
        jitter: Nanos(300_000),
        shape: Shape::Uniform,
        reorders: true,
    };
    let loss = Law::Loss(Loss::Random { fraction: 0.05 });
    [loss, Law::Duplicate { fraction: 0.02 }, delay]
}

/// Returns the results of a sender and a receiver and the log of all events, in virtual time.
fn simulated(seed: u64, url: fn(&Network) -> Url) -> ([serde_json::Value; 2], String) {
    let clock = Clock::simulated(1_800_000_000 * Nanos::SECOND.0);
    clock.keep_log();
    let network = Network::new(&clock, &laws(), 1500, seed);
    let [near, far] = [network.near(1), network.far(1)].map(|host| Run::silent().on(&host));
    let (sent, received) = clock.simulate(|| {
        let options = RecvOptions {
            from: url(&network),
            to: "check".into(),
            ring: Some(MIN_RING),
            idle: Some(Duration::from_secs(5)),
            ..RecvOptions::default()
        };
        let receiving = receive(&options, &far).unwrap();
        let options = SendOptions {
            source: format!("pattern:{FRAME}"),
            to: url(&network),
            pace: Pace::Rate(BitRate::new(4_000_000).unwrap()),
            duration: Some(Duration::from_millis(500)),
            ..SendOptions::default()
        };
        let sending = send(&options, &near).unwrap();
        (sending.join().unwrap(), receiving.join())
    });
    let results = [serde_json::to_value(&sent), serde_json::to_value(&received)];
    (results.map(Result::unwrap), clock.take_log())
}

/// Returns the results with all counters after checking that two runs are identical.
fn twice(seed: u64, url: fn(&Network) -> Url) -> ([serde_json::Value; 2], String) {
    let (results, log) = simulated(seed, url);
    let (_, again) = simulated(seed, url);
    let hash = |log: &str| Sha256::digest(log.as_bytes());
    assert_eq!(hash(&log), hash(&again), "seed {seed}");
    let [sent, received] = &results;
    for (result, counter, counted) in [
        (sent, "nonce", "sent"),
        (received, "nonce", "bytes"),
        (received, "nonce_frames", "frames"),
    ] {
        assert_eq!(of(result, counter), of(result, counted) * 1000 + 7);
    }
    (results, log)
}

fn of(result: &serde_json::Value, name: &str) -> u64 {
    result[name].as_u64().unwrap()
}

/// Returns the numbers of all datagrams with this event.
fn numbers(log: &str, what: &str) -> impl Iterator<Item = u64> {
    let lines = log.lines().filter_map(move |line| line.split_once(what));
    lines.map(|(_, rest)| rest.split_once(',').unwrap().0.parse().unwrap())
}

/// Returns the receiver's address in its network.
fn port() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 2630))
}

/// A whole sender and a whole receiver, twice for each seed: every send, arrival, wake-up and loss is at the same time.
#[test]
fn in_virtual_time_everything_happens_twice_alike() {
    for seed in 0..100 {
        let ([sent, received], log) = twice(seed, |network| network.to(port()));
        let came: BTreeSet<u64> = numbers(&log, " receives ").collect();
        let left = numbers(&log, " sends ");
        assert!(left.eq(0..of(&sent, "sent")));
        let (first, last) = (*came.first().unwrap(), *came.last().unwrap());
        let found =
            ["first_seq", "last_seq", "expected", "unique", "lost"].map(|it| of(&received, it));
        // The receiver cannot detect losses at the ends.
        let (expected, unique) = (last - first + 1, came.len() as u64);
        let lost = expected - unique;
        assert_eq!(found, [first, last, expected, unique, lost], "seed {seed}");
        assert_eq!(received["check"]["corrupted"], 0);
        assert_eq!(received["ended"], "idle");
    }
}

/// The same over an acknowledged protocol: nothing is lost, and the receiver is informed of the end.
#[test]
fn in_virtual_time_a_reliable_transport_loses_nothing() {
    for seed in 0..100 {
        let url = |network: &Network| arq::url(Some(network), port(), 1);
        let ([sent, received], _) = twice(seed, url);
        assert_eq!(of(&sent, "offered"), of(&sent, "sent"), "seed {seed}");
        assert_eq!(of(&received, "unique"), of(&sent, "sent"), "seed {seed}");
        assert_eq!((of(&received, "lost"), of(&received, "reordered")), (0, 0));
        assert_eq!(received["check"]["corrupted"], 0);
        assert_eq!(received["ended"], "closed");
    }
}

/// The same over TCP, with segments that the path drops, duplicates and reorders.
#[test]
fn in_virtual_time_a_connection_brings_every_byte() {
    for seed in 0..100 {
        let ([sent, received], log) = twice(seed, |_| tcp());
        assert!(log.contains("Dropped"), "seed {seed}");
        for name in ["offered", "frames"] {
            assert_eq!(of(&sent, name), of(&sent, "sent"), "seed {seed}");
        }
        assert_eq!(of(&received, "bytes"), of(&sent, "bytes"), "seed {seed}");
        assert_eq!(received["check"]["corrupted"], 0);
        assert_eq!(received["ended"], "closed");
    }
}

/// The same over TCP.
fn tcp() -> Url {
    url("tcp://", &Local::Socket(port()))
}
