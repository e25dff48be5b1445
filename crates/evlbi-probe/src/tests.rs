//! Responders and probes as library calls, several in one process.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use evlbi_net::run::{Note, Notes, Run};

use super::session::{Session, Target};
use super::sweep::Spacings;
use super::udp::{self, ProbeUdp, ProbeUdpOptions};
use crate::endpoint::Limits;
use crate::measure::Token;
use crate::respond::{RespondOptions, Responding, respond};

const TOKEN: &str = "a token of tests";

/// Notifies a channel of each note.
struct Told(mpsc::Sender<()>);

impl Notes for Told {
    fn take(&self, _note: &Note<'_>) {
        let _ = self.0.send(());
    }
}

fn responder(bind: SocketAddr, tests: u32) -> Responding {
    let options = RespondOptions {
        bind,
        token: Token::from(TOKEN),
        limits: Limits {
            tests,
            ..RespondOptions::default().limits
        },
        ..RespondOptions::default()
    };
    respond(&options, &Run::silent()).unwrap()
}

fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn target(responding: &Responding) -> Target {
    Target {
        address: responding.addresses()[0].to_string(),
        token: Token::from(TOKEN),
        ..Target::default()
    }
}

/// Returns options for `count` datagrams, one per millisecond.
fn options(responding: &Responding, count: u64) -> ProbeUdpOptions {
    ProbeUdpOptions {
        target: target(responding),
        spacing: Some(Spacings(vec![1_000_000])),
        count: Some(count),
        ..ProbeUdpOptions::default()
    }
}

/// Returns the counts of sent and lost datagrams.
fn counts(result: &ProbeUdp) -> [u64; 2] {
    let point = &result.points[0];
    [point.sent, point.lost]
}

#[test]
fn several_run_at_once() {
    let responders = [4, 4].map(|tests| responder(anywhere(), tests));
    let run = Run::silent();
    std::thread::scope(|scope| {
        let probe = |(number, responding)| {
            let run = run.part();
            let probing = scope.spawn(move || udp::probe(&options(responding, number), &run));
            (number, probing)
        };
        let all = (1..).zip(responders.iter().chain(&responders));
        for (number, probing) in all.map(probe).collect::<Vec<_>>() {
            let measured = probing.join().unwrap().unwrap();
            assert_eq!(counts(&measured.result), [number, 0]);
        }
    });
    for responding in responders {
        responding.stop();
        responding.join().unwrap();
    }
}

/// A probe stopped during a test returns what was measured. One that waits for its turn, or for an answer, returns nothing.
#[test]
fn a_probe_is_stopped_wherever_it_is() {
    let responding = responder(anywhere(), 1);
    let begin = |target: Target| {
        let (tell, told) = mpsc::channel();
        let run = Run::new(Arc::new(Told(tell)));
        let options = ProbeUdpOptions {
            target,
            count: None,
            duration: Some(Duration::from_secs(600)),
            ..options(&responding, 1)
        };
        let probing = std::thread::spawn({
            let run = run.clone();
            move || udp::probe(&options, &run)
        });
        (run, told, probing)
    };
    let (first, flows, flowing) = begin(target(&responding));
    flows.recv().unwrap();
    let (second, waits, waiting) = begin(target(&responding));
    waits.recv().unwrap();
    second.stop();
    let error = waiting.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "interrupted");
    // A server that never answers.
    let silent = std::net::TcpListener::bind(anywhere()).unwrap();
    let (third, _, unanswered) = begin(Target {
        address: silent.local_addr().unwrap().to_string(),
        ..Target::default()
    });
    let peer = silent.accept().unwrap();
    third.stop();
    let error = unanswered.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "interrupted");
    drop(peer);
    first.stop();
    let result = flowing.join().unwrap().unwrap().result;
    assert_eq!(result.stopped.as_deref(), Some("interrupted"));
    assert_eq!(counts(&result)[1], 0);
    assert!(counts(&result)[0] > 0);
}

#[test]
fn a_responder_that_is_dropped_leaves_its_port_free() {
    let mut bind = anywhere();
    for _ in 0..100 {
        let responding = responder(bind, 1);
        bind = responding.addresses()[0];
        let session = Session::begin(&target(&responding), &Run::silent()).unwrap();
        drop(responding);
        drop(session);
    }
}
