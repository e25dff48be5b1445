//! Datagrams from a socket through admission and reordering to their places in the ring.

use std::time::Duration;

use evlbi_testkit::instructions::{Frames, measured, units};
use evlbi_wire::vtp;

use super::*;
use crate::receive::Numbers;
use crate::run::Run;
use crate::transport::{Head, InOptions, OutOptions, Pieces, Url};

const FRAME: usize = 1032;
/// Datagrams per round: one message of the kernel, which arrives as a whole.
const ROUND: u64 = 48;
/// Timeout for a message.
const TIMEOUT: Nanos = Nanos(20_000_000);

#[test]
fn admit() {
    let run = Run::silent();
    let clock = run.clock();
    let from: Url = "udp://127.0.0.1:0".parse().expect("a URL");
    let options = ReceiveOptions {
        from: from.clone(),
        safe: None,
        with: InOptions::default(),
        numbering: Box::new(Numbers),
        wanted: Default::default(),
        window: 1 << 20,
        hold: Duration::from_millis(100),
        ring: 16 << 20,
        idle: None,
        duration: None,
        cpu: None,
        priority: None,
    };
    let incoming = from.open_in(&options.with, &run);
    let mut incoming = incoming.expect("a socket");
    let to = format!("udp://{}", incoming.local()[0]);
    let to: Url = to.parse().expect("a URL");
    let outgoing = to.open_out(&OutOptions::default(), &run);
    let mut outgoing = outgoing.expect("a sender");
    let (to_consumer, from_thread) = mpsc::channel();
    let reserve = Reserve::new(options.ring).expect("memory");
    let mut datagrams = Datagrams::new(
        options,
        from.transport().service(),
        None,
        1,
        reserve,
        to_consumer,
    );
    let mut frames = Frames::new(&[b"Ef"], 1, FRAME, 4000);
    let mut pieces = Pieces::default();
    let mut consumer = None;
    let units = units(4 * ROUND);
    for round in 0..units / ROUND {
        let bytes = frames.take(ROUND as usize);
        let mut train = pieces.begin();
        for (number, frame) in (round * ROUND..).zip(bytes.chunks(FRAME)) {
            let mut head = Head::new();
            head.append(&vtp::header(number));
            train.push(head, frame);
        }
        outgoing.send(&train, clock.now()).expect("loopback");
        let now = Nanos((round + 1) * 1_000_000);
        let mut came = 0;
        while came == 0 {
            clock.wait(
                &[incoming.events()],
                clock.now().plus(TIMEOUT),
                Waiting::Sleep,
            );
            measured(|| {
                let received = datagrams.receive(&mut *incoming, now, clock);
                came = received.map_or(0, |it| it.count);
                datagrams.advance(now).expect("a ring");
            });
        }
        let consumer = consumer.get_or_insert_with(|| from_thread.recv().expect("a ring").0);
        let span = consumer.span();
        let end = span.first + (span.data.len() / FRAME) as u64;
        assert_eq!(end, (round + 1) * ROUND);
        consumer.free(end);
    }
    assert_eq!(datagrams.admission.counters().unique, units / ROUND * ROUND);
}
