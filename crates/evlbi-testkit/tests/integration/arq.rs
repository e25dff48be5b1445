//! A protocol with acknowledgements behind the interface of transports: the sending and the receiving thread carry it like any other.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::deframe::Wanted;
use evlbi_core::path::{Law, Loss, Shape, Until};
use evlbi_core::shed::{Policy, Replace, Shed, Stream};
use evlbi_core::time::Nanos;
use evlbi_net::clock::{Clock, Thread};
use evlbi_net::receive::{self, Ended, Numbers, Opening, ReceiveOptions, ReceiveReport};
use evlbi_net::run::Run;
use evlbi_net::sim::Network;
use evlbi_net::transmit::{self, Flow, FlowOptions, Frames, SendReport, Sent, Source};
use evlbi_net::transport::{InOptions, Local, OutOptions, Url};
use evlbi_testkit::arq::{self, Receiver, Sender};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

/// Data per datagram, in bytes.
const DATA: usize = 1000;
const MTU: usize = 1500;
const RING: usize = 4 << 20;
const PORT: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    2630,
);

/// A source of bytes that are not periodic.
struct Bytes(Vec<u8>, usize);

impl Source for Bytes {
    fn frames(&mut self) -> io::Result<Frames<'_>> {
        let bytes = &self.0[self.1..];
        Ok(Frames { bytes, shift: 0 })
    }

    fn consume(&mut self, bytes: usize) {
        self.1 += bytes;
    }
}

fn random(seed: u64, datagrams: usize) -> Vec<u8> {
    let mut bytes = vec![0; datagrams * DATA];
    ChaCha8Rng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

fn flow(to: &Url, bytes: Vec<u8>, run: &Run) -> (Flow, Arc<Sent>) {
    let outlet = to.transport().open_out(to, &OutOptions::default(), run);
    let stream = Stream {
        rate: None,
        unit_bytes: DATA as u64,
        wire_bytes: DATA as u64,
        threads: Vec::new(),
        frame_rate: None,
    };
    let options = FlowOptions {
        to: to.to_string(),
        frame_length: DATA,
        datagram_data: DATA,
        vdif: false,
        frame_rate: None,
        sequence: Some(0),
        stream: None,
        clock: transmit::Clock::None,
        start: run.clock().now(),
        end: None,
        burst: 16,
        shed: Shed::new(Policy::None, 0, &stream).unwrap(),
        safe: None,
        shed_packets: false,
        replace: Replace::Nothing,
        replacement: Vec::new(),
    };
    let sent = Sent::new();
    let source = Box::new(Bytes(bytes, 0));
    let flow = Flow::new(source, outlet.unwrap(), options, Arc::clone(&sent));
    (flow.unwrap(), sent)
}

fn receiver(from: Url, run: &Run) -> (receive::Receiving, Opening) {
    let options = ReceiveOptions {
        from,
        safe: None,
        with: InOptions::default(),
        numbering: Box::new(Numbers),
        wanted: Wanted::default(),
        window: 1 << 20,
        hold: Duration::from_millis(100),
        ring: RING,
        idle: None,
        duration: None,
        cpu: None,
        priority: None,
    };
    receive::start(options, run).unwrap()
}

/// Takes everything, starting after `after`.
fn sink(opening: Opening, run: &Run, after: Duration) -> Thread<Vec<u8>> {
    let clock = run.clock().clone();
    let work = move || {
        let mut all = Vec::new();
        while let Some((mut consumer, missing)) = opening.next() {
            assert_eq!(missing, 0);
            clock.sleep(after);
            loop {
                let is_closed = consumer.is_closed();
                let slot = consumer.slot();
                let span = consumer.span();
                let end = span.first + (span.data.len() / slot) as u64;
                assert!((span.first..end).all(|position| span.presence.at(position)));
                all.extend_from_slice(span.data);
                let is_empty = span.data.is_empty();
                consumer.free(end);
                assert!(consumer.event().is_none());
                if is_closed && is_empty {
                    break;
                }
                clock.sleep(Duration::from_millis(1));
            }
        }
        all
    };
    run.clock().spawn("sink", work).unwrap()
}

/// Returns a path that drops, duplicates, reorders and delays, in each direction.
fn laws() -> [Law; 4] {
    let delay = Law::Delay {
        delay: Nanos(15_000_000),
        jitter: Nanos(300_000),
        shape: Shape::Uniform,
        reorders: true,
    };
    let reorder = Law::Reorder {
        fraction: 0.02,
        until: Until::Passed(5),
    };
    let loss = Law::Loss(Loss::Random { fraction: 0.05 });
    [loss, Law::Duplicate { fraction: 0.02 }, reorder, delay]
}

/// Result of a transfer in virtual time.
struct Came {
    sent: SendReport,
    received: ReceiveReport,
    bytes: Vec<u8>,
    /// Datagrams that had been acknowledged just before the consumer started to read.
    before: u64,
    log: String,
}

fn simulated(seed: u64, datagrams: usize, after: Duration) -> Came {
    let clock = Clock::simulated(1_800_000_000 * Nanos::SECOND.0);
    clock.keep_log();
    let network = Network::new(&clock, &laws(), MTU, seed);
    let url = arq::url(Some(&network), PORT, 1);
    let run = Run::silent().timed_by(&clock);
    let (sent, received, bytes, before) = clock.simulate(|| {
        let (receiving, opening) = receiver(url.clone(), &run);
        let sink = sink(opening, &run, after);
        let (flow, counts) = flow(&url, random(seed, datagrams), &run);
        let sending = {
            let own = run.clone();
            let work = move || transmit::run(vec![flow], &own);
            run.clock().spawn("transmit", work).unwrap()
        };
        clock.sleep(after);
        let before = counts.last().sent;
        let sent = sending.join().remove(0);
        (sent, receiving.join(), sink.join(), before)
    });
    Came {
        sent,
        received,
        bytes,
        before,
        log: clock.take_log(),
    }
}

/// Asserts that everything arrived, nothing else did, and both ends know.
fn assert_whole(came: &Came, bytes: &[u8], what: &str) {
    let datagrams = (bytes.len() / DATA) as u64;
    assert_eq!(came.sent.error, None, "{what}");
    assert_eq!(came.received.error, None, "{what}");
    assert_eq!(came.received.ended, Ended::Closed, "{what}");
    assert!(came.bytes == bytes, "{what}");
    let counters = &came.received.account.counters;
    let counted = (came.sent.live.offered, came.sent.live.sent, counters.unique);
    assert_eq!(counted, (datagrams, datagrams, datagrams), "{what}");
    let bad = (counters.lost, counters.duplicates, counters.ring_full);
    assert_eq!((bad, came.sent.live.not_sent), ((0, 0, 0), 0), "{what}");
}

/// Every byte arrives, in order, over a path that drops one datagram of twenty; two runs are identical.
#[test]
fn every_byte_comes_over_a_path_that_loses_and_reorders() {
    for seed in 0..20 {
        let came = simulated(seed, 1500, Duration::ZERO);
        assert_whole(&came, &random(seed, 1500), &format!("seed {seed}"));
        assert!(came.log.contains("Dropped"), "seed {seed}");
        let again = simulated(seed, 1500, Duration::ZERO);
        let hash = |log: &str| Sha256::digest(log.as_bytes());
        assert_eq!(hash(&came.log), hash(&again.log), "seed {seed}");
    }
}

/// While nothing is read the window closes: the sender waits, and loses nothing.
#[test]
fn a_sender_waits_for_a_consumer_that_does_not_read() {
    let datagrams = 2 * RING / DATA;
    let came = simulated(1, datagrams, Duration::from_secs(60));
    assert_whole(&came, &random(1, datagrams), "a full ring");
    assert!(came.received.live.ring_waits > 30.0);
    let room = RING / DATA + 2 * arq::WINDOW as usize;
    assert!((came.before as usize) < room, "{}", came.before);
}

/// Data sent before a sender is stopped arrives, and the receiver learns of the end.
#[test]
fn a_sender_that_is_stopped_closes_in_order() {
    let clock = Clock::simulated(0);
    clock.keep_log();
    let network = Network::new(&clock, &laws(), MTU, 3);
    let url = arq::url(Some(&network), PORT, 1);
    let run = Run::silent().timed_by(&clock);
    let (sent, received, bytes) = clock.simulate(|| {
        let (receiving, opening) = receiver(url.clone(), &run);
        let sink = sink(opening, &run, Duration::ZERO);
        let (part, flow) = (run.part(), flow(&url, random(3, 20_000), &run).0);
        let sending = {
            let own = part.clone();
            let work = move || transmit::run(vec![flow], &own);
            run.clock().spawn("transmit", work).unwrap()
        };
        clock.sleep(Duration::from_millis(300));
        part.stop();
        (sending.join().remove(0), receiving.join(), sink.join())
    });
    assert_eq!(received.ended, Ended::Closed);
    assert_eq!((sent.live.sent, sent.live.not_sent), (sent.live.offered, 0));
    assert!(sent.live.sent > arq::WINDOW && sent.live.sent < 20_000);
    assert!(bytes == random(3, 20_000)[..sent.live.bytes as usize]);
}

/// Real sockets, both ends in real time.
#[test]
fn over_udp_every_byte_comes() {
    let run = Run::silent();
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let (receiving, opening) = receiver(arq::url(None, loopback, 1), &run);
    let Local::Socket(address) = receiving.local()[0] else {
        panic!("it listens on a port");
    };
    let sink = sink(opening, &run, Duration::ZERO);
    let bytes = random(7, 2 * RING / DATA);
    let (flow, counts) = flow(&arq::url(None, address, 1), bytes.clone(), &run);
    let sent = transmit::run(vec![flow], &run).remove(0);
    let came = Came {
        sent,
        received: receiving.join(),
        bytes: sink.join(),
        before: counts.last().sent,
        log: String::new(),
    };
    assert_whole(&came, &bytes, "over UDP");
}

/// A sender without a reply reports an error.
#[test]
fn a_sender_without_a_receiver_times_out() {
    let clock = Clock::simulated(0);
    clock.keep_log();
    let network = Network::new(&clock, &[], MTU, 0);
    let run = Run::silent().timed_by(&clock);
    let reports = clock.simulate(|| {
        let url = arq::url(Some(&network), PORT, 1);
        transmit::run(vec![flow(&url, random(0, 100), &run).0], &run)
    });
    let error = reports[0].error.as_deref().unwrap_or_default();
    assert!(error.contains("does not answer"), "{error}");
    assert_eq!(reports[0].live.sent, 0);
}

/// Nothing is stored of those that do not return their own cookie in time.
#[test]
fn forged_handshakes_leave_nothing() {
    let peer = |number: u32| SocketAddr::from((number.to_be_bytes(), 2630));
    let mut receiver = Receiver::new(1);
    let (now, late) = (Nanos(0), Nanos(60 * Nanos::SECOND.0));
    for number in 0..10_000 {
        let mut sender = Sender::new(u64::from(number), now);
        let hello = sender.next_datagram(now).unwrap();
        receiver.handle(peer(number), &hello, now);
        let (to, reply) = receiver.next_datagram(now).unwrap();
        assert_eq!(to, peer(number));
        // No more than was received: it amplifies nothing.
        assert!(reply.len() <= hello.len());
        assert!(receiver.next_datagram(now).is_none());
    }
    // A cookie belongs to one address and one time.
    let mut open = |hello_from, open_from, times: [Nanos; 2]| {
        let mut sender = Sender::new(7, now);
        let hello = sender.next_datagram(now).unwrap();
        receiver.handle(hello_from, &hello, times[0]);
        let (_, cookie) = receiver.next_datagram(times[0]).unwrap();
        sender.handle(&cookie, times[0]);
        let open = sender.next_datagram(times[1]).unwrap();
        receiver.handle(open_from, &open, times[1]);
        while receiver.next_datagram(times[1]).is_some() {}
        receiver.connections()
    };
    assert_eq!(open(peer(1), peer(2), [now, now]), 0);
    assert_eq!(open(peer(1), peer(1), [now, late]), 0);
    assert_eq!(open(peer(1), peer(1), [now, now]), 1);
    // Those that do return it are limited in number, and are forgotten when they are silent.
    assert!((0..10_000).all(|number| open(peer(number), peer(number), [now, now]) <= 64));
    assert_eq!(open(peer(1), peer(1), [late, late]), 1);
}
