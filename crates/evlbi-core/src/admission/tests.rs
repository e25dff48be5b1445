//! Shared test receiver; which datagrams become a stream and which never do.

mod frames;
mod takeover;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use evlbi_wire::{pattern, vtp};
use proptest::prelude::*;

use super::*;
use std::net::SocketAddr;

use crate::peer::Peer;

const MS: u64 = 1_000_000;
const CAPACITY: u64 = 1 << 20;

/// Receiver whose ring is emptied at once.
struct Receiver {
    admission: Admission,
    now: Nanos,
    /// Content of each ring.
    rings: Vec<BTreeMap<u64, Vec<u8>>>,
    /// How many more times the consumer is still in the old ring when a new one is needed.
    busy: u32,
    /// Estimated bytes missing between two streams.
    missing: u64,
}

impl Receiver {
    fn new(only: Option<IpAddr>, ports: usize) -> Receiver {
        let settings = Settings {
            only,
            ports,
            window: 1 << 20,
            hold: Nanos(100 * MS),
            kept: 16 << 20,
            wanted: Wanted::default(),
        };
        Receiver {
            admission: Admission::new(settings, Box::new(Numbers)),
            now: Nanos(1),
            rings: Vec::new(),
            busy: 0,
            missing: 0,
        }
    }

    fn take(&mut self, port: u16, bytes: &[u8]) -> Taken {
        self.arrive(&Arrival {
            bytes,
            source: sender(port),
            port: 0,
            stamp: None,
        })
    }

    fn arrive(&mut self, arrival: &Arrival<'_>) -> Taken {
        let rings = &mut self.rings;
        let mut place = |position: u64, data: &[u8]| {
            let ring = rings.last_mut().expect("a ring");
            assert_eq!(ring.insert(position, data.to_vec()), None, "placed twice");
        };
        let freed = self.admission.advance(self.now);
        let taken = self.admission.take(arrival, self.now, freed, &mut place);
        self.begin();
        taken
    }

    fn begin(&mut self) {
        while self.admission.next_event().is_some() {}
        let Some(begins) = self.admission.beginning() else {
            return;
        };
        self.missing = self.missing.max(begins.missing);
        if begins.resized {
            self.admission.close();
            if self.busy > 0 {
                self.busy -= 1;
                return;
            }
            self.rings.push(BTreeMap::new());
        }
        let rings = &mut self.rings;
        let mut place = |position: u64, data: &[u8]| {
            let ring = rings.last_mut().expect("a ring");
            assert_eq!(ring.insert(position, data.to_vec()), None, "placed twice");
        };
        let freed = self.admission.advance(self.now);
        self.admission.begin(CAPACITY, freed, &mut place);
        while self.admission.next_event().is_some() {}
    }

    fn later(&mut self, millis: u64) -> &mut Receiver {
        self.admission.tick(self.now);
        self.now = self.now.plus(Nanos(millis * MS));
        self.admission.tick(self.now);
        self.begin();
        self
    }

    /// Receives frames of the test pattern, starting with number `first`.
    fn stream(&mut self, port: u16, sequence: u64, frames: std::ops::Range<u64>) -> &mut Receiver {
        for frame in frames {
            self.take(port, &datagram(sequence + frame, frame));
        }
        self
    }

    fn end(&mut self) -> Counters {
        self.admission.end(self.now);
        self.begin();
        let rings = &mut self.rings;
        self.admission.finish(0, &mut |position, data| {
            let ring = rings.last_mut().expect("a ring");
            ring.insert(position, data.to_vec());
        });
        self.admission.counters()
    }
}

fn port_of(peer: Peer) -> u16 {
    match peer {
        Peer::Socket(address) => address.port(),
        _ => 0,
    }
}

fn sender(port: u16) -> Peer {
    Peer::Socket(SocketAddr::from(([10, 0, 0, 1], port)))
}

/// Length of a frame of the test pattern, in bytes.
const FRAME: usize = 1032;

/// Frame `frame` of the test pattern at 64 frames per second, after a sequence number.
fn datagram(sequence: u64, frame: u64) -> Vec<u8> {
    static FRAMES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        pattern::frames(FRAME, 1_700_000_000, pattern::frame_rate(64), 4096).expect("frames")
    });
    let start = frame as usize % 4096 * FRAME;
    [&vtp::header(sequence), &FRAMES[start..start + FRAME]].concat()
}

/// A datagram without frames.
fn raw(sequence: u64, data: usize) -> Vec<u8> {
    let mut bytes = vtp::header(sequence).to_vec();
    bytes.resize(8 + data, 7);
    bytes
}

/// Returns unique, restarts, and refused datagrams of other length, sender and sequence.
fn counts(counters: &Counters, admission: &Admission) -> [u64; 5] {
    [
        counters.unique,
        counters.restarts,
        admission.foreign_size(),
        admission.foreign_source(),
        counters.foreign_sequence,
    ]
}

#[track_caller]
fn assert_end(receiver: &mut Receiver, expected: [u64; 5]) {
    let counters = receiver.end();
    assert_eq!(counts(&counters, &receiver.admission), expected);
    assert_eq!(receiver.admission.undecided(), 0);
}

#[test]
fn eight_datagrams_with_frames_are_a_stream() {
    let mut receiver = Receiver::new(None, 1);
    assert_eq!(
        receiver.take(9, b"\0\x01nmap probe"),
        Taken::Pending { promising: false }
    );
    receiver.take(9, &[]);
    for number in 0..7 {
        let taken = receiver.take(1, &datagram(number, number));
        assert_eq!(taken, Taken::Pending { promising: true });
    }
    assert_eq!(receiver.take(1, &datagram(7, 7)), Taken::Begins);
    assert_eq!(receiver.take(1, &datagram(8, 8)), Taken::Stream);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    assert_end(&mut receiver, [9, 0, 2, 0, 0]);
}

#[test]
fn tiny_datagrams_before_a_stream_do_not_cost_it() {
    // Eight or a hundred datagrams, also with the length of the stream's.
    for (count, length) in [(8, 1), (100, 1), (8, FRAME), (63, FRAME), (100, FRAME)] {
        let mut receiver = Receiver::new(None, 1);
        for number in 0..count {
            receiver.take(9, &raw(number, length));
        }
        receiver.later(5).stream(1, 0, 0..1000);
        let counters = receiver.end();
        let recorded = if count > 64 { count } else { 0 };
        assert_eq!(counters.unique, 1000 + recorded, "{count} of {length}");
        assert_eq!(counters.lost, 0);
        let last = receiver.rings.last().unwrap();
        assert!(
            last.values()
                .rev()
                .take(1000)
                .all(|data| data.len() == FRAME)
        );
        assert_eq!(
            receiver.admission.bytes(),
            1000 * FRAME as u64 + recorded * length as u64
        );
    }
}

#[test]
fn a_few_datagrams_now_and_then_do_not_keep_a_stream_out() {
    let mut receiver = Receiver::new(None, 1);
    for number in 0..100 {
        receiver.later(250).take(9, &raw(number, FRAME));
    }
    for number in 0..100 {
        receiver.later(10).stream(1, 7, number..number + 1);
        if number % 25 == 0 {
            receiver.take(9, &raw(100 + number, FRAME));
        }
    }
    let counters = receiver.end();
    // One of them arrived before the stream was known to have frames.
    assert_eq!((counters.unique, counters.lost), (201, 0));
}

#[test]
fn numbers_far_ahead_change_nothing() {
    for ahead in [4097u64, 500_000, (1 << 24) - 5, 1 << 40, u64::MAX / 2] {
        let mut receiver = Receiver::new(None, 1);
        receiver.stream(1, 0, 0..100);
        receiver.take(1, &datagram(100 + ahead, 3));
        receiver.take(1, &datagram(101 + ahead, 4));
        receiver.stream(1, 0, 100..3000);
        assert_end(&mut receiver, [3000, 0, 0, 0, 2]);
        assert_eq!(receiver.rings[0].len(), 3000);
    }
}

#[test]
fn a_jump_is_a_gap_if_the_rate_allows_it() {
    // The minimum; after a second at 10,000 datagrams per second; and after 3 s of silence.
    for (rate, silence, max) in [(100, 0, 4096), (10_000, 0, 30_000), (10_000, 3000, 75_000)] {
        for (ahead, is_gap) in [(max - 1, true), (max + 1, false)] {
            let mut receiver = Receiver::new(None, 1);
            for number in 0..rate {
                receiver.take(1, &datagram(number, number));
            }
            receiver.later(silence);
            receiver.take(1, &datagram(rate - 1 + ahead + 1, 0));
            receiver.take(1, &datagram(rate - 1 + ahead + 2, 1));
            let counters = receiver.end();
            assert_eq!(
                counters.lost,
                if is_gap { ahead } else { 0 },
                "{rate} {ahead}"
            );
            assert_eq!(counters.foreign_sequence, if is_gap { 0 } else { 2 });
        }
    }
}

#[test]
fn senders_that_were_refused_are_listed() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..20);
    for frame in 20..1000 {
        receiver.stream(1, 0, frame..frame + 1);
        receiver.stream(2, 0, frame..frame + 1);
        receiver.take(3, &raw(frame, 20));
        receiver.later(1);
    }
    assert_end(&mut receiver, [1000, 0, 980, 980, 0]);
    let refused = receiver.admission.refused();
    let mut refused: Vec<_> = refused
        .iter()
        .map(|refused| (port_of(refused.sender), refused.datagrams, refused.frames))
        .collect();
    refused.sort_unstable();
    assert_eq!(refused, [(2, 980, true), (3, 980, false)]);
}

#[test]
fn datagrams_without_consecutive_numbers_are_not_a_stream() {
    let mut receiver = Receiver::new(None, 1);
    for n in 0..400u64 {
        receiver.take(3, &raw(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 100));
    }
    assert_eq!(receiver.admission.sender(), None);
    assert_eq!(receiver.admission.counters().received, 0);
}

/// As a mirror port shows them that copies both directions of a link. One datagram many times is not a stream.
#[test]
fn a_stream_may_arrive_twice() {
    let with_frames = |number| datagram(number, number);
    for (count, of) in [
        (8, &with_frames as &dyn Fn(u64) -> Vec<u8>),
        (100, &with_frames),
        (100, &|number| raw(number, 64)),
    ] {
        let mut receiver = Receiver::new(None, 1);
        for number in 0..count {
            for _ in 0..2 {
                receiver.take(1, &of(number));
            }
        }
        assert_end(&mut receiver, [count, 0, 0, 0, 0]);
        assert_eq!(receiver.admission.counters().duplicates, count);
    }
    let mut receiver = Receiver::new(None, 1);
    for _ in 0..200 {
        receiver.take(1, &with_frames(7));
    }
    assert_eq!(receiver.admission.sender(), None);
}

#[test]
fn a_few_datagrams_are_a_stream_when_no_more_come() {
    let mut receiver = Receiver::new(None, 1);
    receiver.take(9, b"stray");
    receiver.take(1, &raw(5, 64));
    receiver.take(1, &raw(6, 64));
    assert_end(&mut receiver, [2, 0, 1, 0, 0]);
}

#[test]
fn a_single_datagram_is_a_stream_if_its_number_is_one_of_a_sender() {
    for (number, data, is_stream) in [((1 << 48) - 1, 1, true), (1 << 48, 1, false), (0, 0, false)]
    {
        let mut receiver = Receiver::new(None, 1);
        receiver.take(1, &raw(number, data));
        assert_eq!(receiver.end().unique, u64::from(is_stream), "{number}");
    }
}

#[test]
fn one_datagram_promises_a_stream_if_it_is_a_frame() {
    let promises =
        |bytes: &[u8]| Receiver::new(None, 1).take(1, bytes) == Taken::Pending { promising: true };
    assert!(promises(&datagram(7, 0)));
    assert!(!promises(&datagram(7, 0)[..1008]));
    assert!(!promises(b"probe"));
    assert!(!promises(&[0; 64]));
}

#[test]
fn the_first_datagrams_at_every_port_are_the_streams() {
    let mut receiver = Receiver::new(None, 2);
    for number in 0..1000 {
        let port = (number % 2) as usize;
        let bytes = datagram(number, number);
        receiver.arrive(&Arrival {
            bytes: &bytes,
            source: sender(1 + port as u16),
            port,
            stamp: None,
        });
    }
    // Another sender at one of the ports.
    receiver.stream(3, 1000, 0..100);
    assert_end(&mut receiver, [1000, 0, 0, 100, 0]);
}

#[test]
fn only_one_host_is_heard_where_it_is_given() {
    let other = Peer::Socket(SocketAddr::from(([10, 0, 0, 2], 1)));
    let mut receiver = Receiver::new(sender(1).ip(), 1);
    for number in 0..20 {
        let bytes = datagram(number, number);
        let taken = receiver.arrive(&Arrival {
            bytes: &bytes,
            source: other,
            port: 0,
            stamp: None,
        });
        assert_eq!(taken, Taken::Foreign);
        receiver.take(1, &bytes);
    }
    assert_end(&mut receiver, [20, 0, 0, 20, 0]);
    // A receiver limited to one host refuses the others knowingly.
    assert_eq!(receiver.admission.refused(), []);
}

#[test]
fn undecided_datagrams_are_limited() {
    for (count, length) in [(600, 9), (100, 1 << 20)] {
        let mut receiver = Receiver::new(None, 1);
        for port in 0..count {
            receiver.take(port, &vec![7; length]);
            let kept = receiver.admission.undecided();
            assert!(kept <= 256 && kept * length as u64 <= 16 << 20, "{kept}");
        }
        let counters = receiver.end();
        assert_eq!(counters.unique, 0);
        assert_eq!(receiver.admission.foreign_source(), u64::from(count));
    }
}

/// Other input at a port.
#[derive(Clone, Debug)]
enum Junk {
    /// Datagrams of another sender: port, first number, length of the data, count.
    Raw(u16, u64, usize, u64),
    /// Frames of another sender: port, first number, count.
    Frames(u16, u64, u64),
    /// Forged with the stream's address and length: distance ahead, count.
    Forged(u64, u64),
    /// Forged with the stream's address: bytes.
    Odd(Vec<u8>),
}

fn junk() -> impl Strategy<Value = Junk> {
    let number = prop_oneof![Just(0), 0..1_000_000_000u64, any::<u64>()];
    let length = prop_oneof![Just(FRAME), 0..2000usize];
    prop_oneof![
        (2..6u16, number.clone(), length, 1..80u64).prop_map(|(p, n, l, c)| Junk::Raw(p, n, l, c)),
        (2..6u16, number, 1..80u64).prop_map(|(p, n, c)| Junk::Frames(p, n, c)),
        (100_000..u64::MAX - 1_000_000, 1..7u64).prop_map(|(n, c)| Junk::Forged(n, c)),
        prop::collection::vec(any::<u8>(), 0..100).prop_map(Junk::Odd),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A stream with frames that is never silent for 300 ms is recorded whole, whatever else arrives before and alongside it,
    /// unless that had frames earlier.
    #[test]
    fn a_live_stream_is_recorded_whatever_arrives_alongside(
        before in prop::collection::vec(junk(), 0..6),
        beside in prop::collection::vec((1..290u64, 1..20u64, prop::option::of(junk())), 1..60),
        first in any::<u64>(),
    ) {
        let mut receiver = Receiver::new(None, 1);
        let mut offered = 0;
        let mut send = |receiver: &mut Receiver, junk: &Junk, next: u64| {
            match junk {
                Junk::Raw(port, number, length, count) => for n in 0..*count {
                    receiver.take(*port, &raw(number.wrapping_add(n), *length));
                    offered += 1;
                },
                Junk::Frames(port, number, count) => for n in 0..*count {
                    receiver.take(*port, &datagram(number.wrapping_add(n), n));
                    offered += 1;
                },
                Junk::Forged(ahead, count) => for n in 0..*count {
                    receiver.take(1, &raw(next.wrapping_add(ahead + n), FRAME));
                    offered += 1;
                },
                Junk::Odd(bytes) => {
                    receiver.take(1, bytes);
                    offered += 1;
                }
            }
        };
        for junk in before.iter().filter(|junk| matches!(junk, Junk::Raw(..) | Junk::Odd(_))) {
            send(&mut receiver, junk, first);
            receiver.later(20);
        }
        for frame in 0..8 {
            receiver.take(1, &datagram(first.wrapping_add(frame), frame));
        }
        let mut frame = 8;
        for (pause, count, junk) in &beside {
            receiver.later(*pause);
            for _ in 0..*count {
                receiver.take(1, &datagram(first.wrapping_add(frame), frame));
                frame += 1;
            }
            if let Some(junk) = junk {
                send(&mut receiver, junk, first.wrapping_add(frame));
            }
        }
        let counters = receiver.end();
        let placed = receiver.rings.last().unwrap();
        let tail: Vec<&Vec<u8>> = placed.values().rev().take(frame as usize).collect();
        prop_assert_eq!(tail.len() as u64, frame);
        for (data, frame) in tail.iter().rev().zip(0..) {
            prop_assert_eq!(&data[..], &datagram(0, frame)[8..]);
        }
        prop_assert_eq!(counters.expected, counters.unique + counters.lost);
        let admission = &receiver.admission;
        let refused = admission.foreign_size() + admission.foreign_source()
            + admission.foreign_header() + counters.foreign_sequence;
        prop_assert_eq!(counters.received + refused, offered + frame);
    }
}

#[test]
fn a_stream_that_is_interrupted_at_its_start_is_found() {
    for first in 1..ENOUGH as u64 {
        let mut receiver = Receiver::new(None, 1);
        receiver.stream(1, 0, 0..first);
        receiver.later(1600).stream(1, 0, 300..340);
        assert_end(&mut receiver, [first + 40, 0, 0, 0, 0]);
    }
}
