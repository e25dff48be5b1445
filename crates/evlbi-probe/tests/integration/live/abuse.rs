//! Abuse of a responder: it refuses or cleans up, and the next valid test works.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::run::Run;
use evlbi_probe::endpoint::{FromClient, FromResponder, Limits, Test, VERSION};
use evlbi_probe::measure::{Channel, Role, Token};
use evlbi_probe::respond::{RespondOptions, Responding};
use evlbi_probe::udp::{self, ProbeUdpError, ProbeUdpOptions};
use evlbi_probe::{SessionError, Target};
use evlbi_testkit::address::deaf;
use evlbi_testkit::buffer::assert_fits;
use evlbi_testkit::result::refused;
use evlbi_testkit::until;
use evlbi_testkit::until::WATCHDOG;

use super::support::{
    Probing, TOKEN, assert_sums, end, kept, open, respond_here, stream, target, whole,
};

/// Returns options of a responder that allows 100 Mbit/s on the wire, and this many concurrent tests.
fn strict(tests: u32) -> RespondOptions {
    RespondOptions {
        limits: Limits {
            rate: Some("100M".parse().unwrap()),
            tests,
            ..open().limits
        },
        ..open()
    }
}

#[test]
fn forbidden_tests_are_refused_with_the_reason() {
    let mut limits = strict(8);
    limits.limits.duration = Nanos(6 * Nanos::SECOND.0);
    let responder = respond_here(&limits);
    let to = target(&responder);
    let lasting = |rate: &str, seconds| ProbeUdpOptions {
        duration: Some(Duration::from_secs(seconds)),
        count: None,
        ..stream(rate, 1472, 0)
    };
    let unspaced = ProbeUdpOptions {
        rate: None,
        spacing: Some("0".parse().unwrap()),
        ..lasting("1M", 1)
    };
    let unpaced = ProbeUdpOptions {
        rate: None,
        ..lasting("1M", 1)
    };
    let foreign = Target {
        token: Token::from("another"),
        ..to.clone()
    };
    let elsewhere = Target {
        bind: Some([192, 0, 2, 1].into()),
        ..to.clone()
    };
    for (target, options, reason) in [
        (&to, lasting("99M", 1), "more than this responder allows"),
        (&to, unspaced, "this responder allows 100.000 Mbit/s"),
        (&to, lasting("10M", 7), "this responder allows 6.0 s"),
        (&foreign, lasting("10M", 1), "token"),
        (&to, stream("10M", 16, 10), "32 to 65507"),
        (&to, unpaced, "neither a rate nor a spacing"),
        (&elsewhere, lasting("10M", 1), "192.0.2.1"),
    ] {
        let target = target.clone();
        let options = ProbeUdpOptions { target, ..options };
        let said = refused(udp::probe(&options, &Run::silent()));
        assert!(said.contains(reason), "{said}");
    }
    end(responder);
    let (_deaf, address) = deaf();
    let options = ProbeUdpOptions {
        target: Target {
            address: address.to_string(),
            ..to
        },
        ..lasting("1M", 1)
    };
    let nobody = udp::probe(&options, &Run::silent());
    assert!(
        matches!(
            nobody,
            Err(ProbeUdpError::Session(SessionError::Unreachable { .. }))
        ),
        "{nobody:?}"
    );
}

/// With one test at a time, others are refused if they do not wait, and otherwise wait for the first.
#[test]
fn others_wait_for_a_test_or_are_refused() {
    assert_fits(10, 100);
    let responder = respond_here(&strict(1));
    let begin = |options: ProbeUdpOptions, wait: u64| {
        let target = Target {
            wait: Duration::from_mins(wait),
            ..target(&responder)
        };
        let options = ProbeUdpOptions { target, ..options };
        Probing::begin(move |run| udp::probe(&options, run))
    };
    // Ten datagrams per second, until it is interrupted.
    let endless = ProbeUdpOptions {
        duration: Some(Duration::from_hours(1)),
        count: None,
        ..stream("8k", 100, 0)
    };
    let first = begin(endless, 0);
    until("the first test runs", || first.has_said("100 bytes"));
    let few = || stream("1M", 100, 10);
    let said = refused(begin(few(), 0).end());
    assert!(said.contains("1 tests"), "{said}");
    let second = begin(few(), 10);
    until("the second waits", || second.has_said("waiting: "));
    let first = kept(first.interrupt());
    assert_eq!(first.stopped.as_deref(), Some("interrupted"));
    assert_sums(&first.points[0]);
    assert_eq!(whole(second.end()).points[0].lost, 0);
    end(responder);
}

/// A client that violates the protocol.
struct Rogue {
    stream: TcpStream,
    channel: Channel,
}

impl Rogue {
    fn connect(address: SocketAddr) -> Rogue {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        Rogue {
            stream,
            channel: Channel::new(Role::Client, 1 << 20),
        }
    }

    fn send(&mut self, message: &FromClient) -> Vec<u8> {
        let bytes = self
            .channel
            .seal(&serde_json::to_vec(message).unwrap())
            .unwrap();
        self.stream.write_all(&bytes).unwrap();
        bytes
    }

    /// Returns the next message; `None` if the connection was closed.
    fn receive(&mut self) -> Option<FromResponder> {
        loop {
            if let Some(message) = self.channel.next_message().unwrap() {
                return Some(serde_json::from_slice(&message).unwrap());
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.channel.feed(&bytes[..count]),
            }
        }
    }

    /// Authenticates; returns its message, and the limits.
    fn log_in(&mut self) -> (Vec<u8>, Limits) {
        let Some(FromResponder::Hello { nonce: theirs, .. }) = self.receive() else {
            panic!("no hello");
        };
        let ours = [7; 16];
        let token = Token::from(TOKEN);
        let proof = self.send(&FromClient::Proof {
            version: VERSION,
            nonce: ours,
            proof: Channel::proof(&token, [&theirs, &ours]),
        });
        self.channel.secure(&token, [&theirs, &ours], 1 << 20);
        match self.receive() {
            Some(FromResponder::Welcome { limits }) => (proof, limits),
            other => panic!("{other:?}"),
        }
    }
}

/// Asserts that the next valid test works.
#[track_caller]
fn assert_works(responder: &Responding) {
    assert_fits(100, 100);
    let options = ProbeUdpOptions {
        // It may wait for an aborted test to be cleaned up, but not for a running one.
        target: Target {
            wait: Duration::from_mins(10),
            ..target(responder)
        },
        ..stream("10M", 100, 100)
    };
    let result = whole(udp::probe(&options, &Run::silent()));
    assert_eq!(result.points[0].lost, 0);
}

#[test]
fn a_responder_survives_unauthenticated_clients() {
    let responder = respond_here(&strict(8));
    let address = responder.addresses()[0];
    // Garbage, both as a message and as an endless length.
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 5000],
        &[0, 0, 3, 0, b'{'],
        &[0, 0, 0, 2, b'{', b'}'],
    ] {
        let mut stranger = TcpStream::connect(address).unwrap();
        let _ = stranger.write_all(garbage);
    }
    // A replay of another client's proof.
    let mut honest = Rogue::connect(address);
    let (proof, _) = honest.log_in();
    let mut thief = Rogue::connect(address);
    assert!(matches!(thief.receive(), Some(FromResponder::Hello { .. })));
    thief.stream.write_all(&proof).unwrap();
    match thief.receive() {
        Some(FromResponder::Refused { reason }) => assert!(reason.contains("token"), "{reason}"),
        other => panic!("{other:?}"),
    }
    // A sealed message is not accepted twice.
    let sealed = honest.send(&FromClient::Alive { unique: 0, used: 0 });
    honest.stream.write_all(&sealed).unwrap();
    assert!(honest.receive().is_none());
    // Many silent connections: the oldest are closed, so that at most 64 remain.
    let mut silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for stream in &mut silent[..200 - 64] {
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        let mut hello = Vec::new();
        match stream.read_to_end(&mut hello) {
            Ok(_) => {}
            // Data in flight from here when it is closed.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }
    assert_works(&responder);
    drop(silent);
    assert_works(&responder);
    end(responder);
}

/// A client disconnects after a request for a test, and after one above the limits, without reading the answer.
#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let responder = respond_here(&strict(1));
    let mut rogue = Rogue::connect(responder.addresses()[0]);
    let (_, limits) = rogue.log_in();
    assert_eq!(limits.tests, 1);
    let back = serde_json::json!({"size": 1472, "spacing": {"nanoseconds": 0}, "burst": 1, "count": u64::MAX});
    let test = Test {
        back: Some(serde_json::from_value(back).unwrap()),
        max_time: Nanos::SECOND,
        ..Test::default()
    };
    rogue.send(&FromClient::Open(Box::new(test.clone())));
    match rogue.receive() {
        Some(FromResponder::Refused { reason }) => {
            assert!(
                reason.contains("this responder allows 100.000 Mbit/s"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
    rogue.send(&FromClient::Open(Box::new(Test { back: None, ..test })));
    assert!(matches!(
        rogue.receive(),
        Some(FromResponder::Opened { .. })
    ));
    drop(rogue);
    assert_works(&responder);
    end(responder);
}
