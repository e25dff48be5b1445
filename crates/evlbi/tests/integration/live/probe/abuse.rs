//! A responder under abuse: refused or cleaned up, and the next honest test works.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use evlbi_probe::endpoint::{FromClient, FromResponder, Limits, Test, VERSION};
use evlbi_probe::measure::{Channel, Role, Token};
use evlbi_testkit::address::deaf;
use evlbi_testkit::until;
use evlbi_testkit::until::WATCHDOG;
use nix::sys::signal::Signal;

use super::{
    Probing, TOKEN, assert_fits, assert_refused, assert_sums, end, points, probe, respond, run,
    threads,
};
use crate::result::number;

#[test]
fn what_is_not_allowed_is_refused_with_the_reason() {
    let limits = ["--max-rate", "100M", "--max-duration", "6s"];
    let responder = respond("127.0.0.1:0", &limits);
    let address = responder.address();
    for (more, said) in [
        (&["--rate", "99M", "--duration", "1s"][..], "--max-rate"),
        (&["--spacing", "0", "--duration", "1s"], "--max-rate"),
        (&["--rate", "10M", "--duration", "7s"], "--max-duration"),
        (&["--rate", "10M", "--token", "another"], "token"),
        (&["--rate", "10M", "--size", "16"], "32 to 65507"),
        (&["--rate", "10M", "--plot", "a.gif"], ".svg, .png or .html"),
        (&["--size", "1472"], "--rate"),
        (&["--rate", "10M", "--bind", "192.0.2.1"], "192.0.2.1"),
    ] {
        let output = run(&mut probe(address, more));
        assert_refused(&output, said);
    }
    let said = end(responder);
    assert!(
        said.contains("wrong token") && !said.contains("another"),
        "{said}"
    );
    let (_deaf, address) = deaf();
    let nobody = run(&mut probe(address, &["--rate", "1M"]));
    let stderr = String::from_utf8_lossy(&nobody.stderr);
    assert!(stderr.contains("evlbi respond"), "{stderr}");
}

/// One test at once: others are refused where they will not wait, and else wait for the first.
#[test]
fn others_wait_for_a_test_or_are_refused() {
    assert_fits(10, 100);
    let responder = respond("127.0.0.1:0", &["--max-rate", "100M", "--max-tests", "1"]);
    let address = responder.address();
    // Ten datagrams a second, until it is interrupted.
    let endless = [
        "--rate",
        "8k",
        "--size",
        "100",
        "--duration",
        "1h",
        "--json",
    ];
    let first = Probing::start(&mut probe(address, &endless));
    until("the first test runs", || {
        threads(&responder.child, "listen").len() == 1
    });
    let few = ["--rate", "1M", "--size", "100", "--count", "10", "--json"];
    let with = |wait| run_with(address, &few, wait);
    assert_refused(&with("0s").end(), "1 tests");
    let second = with("10min");
    until("the second waits", || second.said().contains("waiting: "));
    let first = first.interrupt();
    assert_sums(&first["points"][0]);
    assert_eq!(number(&points(&second.end())[0], "lost"), 0);
    end(responder);
}

fn run_with(address: SocketAddr, more: &[&str], wait: &str) -> Probing {
    let more = [more, &["--wait", wait]].concat();
    Probing::start(&mut probe(address, &more))
}

/// A client that does as it likes.
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

    /// The next message; none when the connection was closed.
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

    /// Shows that it knows the token; what it said, and its limits.
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

/// The next honest test works.
#[track_caller]
fn assert_works(address: SocketAddr) {
    assert_fits(100, 100);
    let more = ["--rate", "10M", "--size", "100", "--count", "100", "--json"];
    // It may wait for a test that is yet to be ended, but not for the end of that test.
    let output = run_with(address, &more, "10min").end();
    assert_eq!(number(&points(&output)[0], "lost"), 0);
}

#[test]
fn a_responder_survives_strangers() {
    let responder = respond("127.0.0.1:0", &["--max-rate", "100M"]);
    let address = responder.address();
    // Garbage, at once and as a length that never ends.
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 5000],
        &[0, 0, 3, 0, b'{'],
        &[0, 0, 0, 2, b'{', b'}'],
    ] {
        let mut stranger = TcpStream::connect(address).unwrap();
        let _ = stranger.write_all(garbage);
    }
    // What somebody else said to prove that he knows the token.
    let mut honest = Rogue::connect(address);
    let (proof, _) = honest.log_in();
    let mut thief = Rogue::connect(address);
    assert!(matches!(thief.receive(), Some(FromResponder::Hello { .. })));
    thief.stream.write_all(&proof).unwrap();
    match thief.receive() {
        Some(FromResponder::Refused { reason }) => assert!(reason.contains("token"), "{reason}"),
        other => panic!("{other:?}"),
    }
    // A message that was sealed once is not taken again.
    let sealed = honest.send(&FromClient::Alive { unique: 0, used: 0 });
    honest.stream.write_all(&sealed).unwrap();
    assert!(honest.receive().is_none());
    // Many who say nothing: the oldest are closed, so that no more than 64 stay.
    let mut silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for stream in &mut silent[..200 - 64] {
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        let mut hello = Vec::new();
        match stream.read_to_end(&mut hello) {
            Ok(_) => {}
            // What is still on its way from here when it is closed.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }
    assert_works(address);
    drop(silent);
    assert_works(address);
    let said = end(responder);
    assert!(
        said.contains("refused") || said.contains("closed"),
        "{said}"
    );
}

#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let responder = respond("127.0.0.1:0", &["--max-rate", "100M", "--max-tests", "1"]);
    let address = responder.address();
    // Killed during a stream towards it, which would take an hour.
    let more = ["--rate", "50M", "--duration", "1h", "--reverse"];
    let mut killed = Probing::start(&mut probe(address, &more));
    until("a stream is sent", || {
        threads(&responder.child, "send").len() == 1
    });
    killed.child.signal(Signal::SIGKILL);
    killed.child.wait();
    assert_works(address);
    // Gone after it asked for a test, and more than is allowed, by a client that does not look.
    let mut rogue = Rogue::connect(address);
    let (_, limits) = rogue.log_in();
    assert_eq!(limits.tests, 1);
    let back = serde_json::json!({"size": 1472, "spacing": {"nanoseconds": 0}, "burst": 1, "count": u64::MAX});
    let test = Test {
        back: Some(serde_json::from_value(back).unwrap()),
        most_time: evlbi_core::time::Nanos::SECOND,
        ..Test::default()
    };
    rogue.send(&FromClient::Open(Box::new(test.clone())));
    match rogue.receive() {
        Some(FromResponder::Refused { reason }) => {
            assert!(reason.contains("--max-rate"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    rogue.send(&FromClient::Open(Box::new(Test { back: None, ..test })));
    assert!(matches!(
        rogue.receive(),
        Some(FromResponder::Opened { .. })
    ));
    drop(rogue);
    assert_works(address);
    end(responder);
}
