use std::collections::BTreeMap;
use std::sync::LazyLock;

use evlbi_wire::{pattern, vtp};
use proptest::prelude::*;

use super::*;
use std::net::SocketAddr;

use crate::peer::Peer;

const MS: u64 = 1_000_000;
const CAPACITY: u64 = 1 << 20;

/// A receiver with a ring that is emptied at once.
struct Receiver {
    admission: Admission,
    now: Nanos,
    /// What lies in each of the rings.
    rings: Vec<BTreeMap<u64, Vec<u8>>>,
    /// How often the consumer is still in the ring before, when another is wanted.
    busy: u32,
    /// Bytes that would have come between two streams.
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

    /// Frames of the test pattern from number `first` on.
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

/// Bytes of a frame of the test pattern.
const FRAME: usize = 1032;

/// Frame `frame` of the test pattern at 64 frames per second, behind a sequence number.
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

/// Unique, restarts, and refused of another length, sender, sequence.
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
    // As few as eight, a hundred, and with the length of the stream's.
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
    // One of them came before the stream was known to have frames.
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
fn a_jump_is_a_gap_up_to_what_the_rate_allows() {
    // The least; after a second at 10,000 datagrams per second; and after 3 s of silence.
    for (rate, silence, most) in [(100, 0, 4096), (10_000, 0, 30_000), (10_000, 3000, 75_000)] {
        for (ahead, is_gap) in [(most - 1, true), (most + 1, false)] {
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
fn a_sender_that_begins_again_elsewhere_takes_its_place_after_silence() {
    for begins in [500_000_000, 3] {
        let mut receiver = Receiver::new(None, 1);
        receiver.stream(1, 100_000, 0..100);
        for frame in 100..150 {
            receiver.later(5).stream(1, begins, frame..frame + 1);
        }
        // 250 ms are too short for a silence, and the datagrams are kept.
        assert_eq!(receiver.admission.counters().unique, 100);
        assert_eq!(receiver.admission.undecided(), 50);
        for frame in 150..200 {
            receiver.later(5).stream(1, begins, frame..frame + 1);
        }
        assert_end(&mut receiver, [200, 1, 0, 0, 0]);
    }
}

#[test]
fn a_stream_begins_again_although_nothing_comes_after_the_silence() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100).stream(1, 1 << 40, 100..108);
    receiver.later(299);
    assert_eq!(receiver.admission.counters().unique, 100);
    receiver.later(1);
    assert_eq!(receiver.admission.counters().unique, 108);
    assert_end(&mut receiver, [108, 1, 0, 0, 0]);
}

#[test]
fn another_sender_takes_over_only_after_silence() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100);
    receiver.later(299).stream(2, 0, 0..20);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    receiver.later(1).stream(2, 0, 20..21);
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
    assert_end(&mut receiver, [121, 1, 0, 0, 0]);
}

#[test]
fn what_came_beside_a_stream_does_not_follow_it() {
    let mut receiver = Receiver::new(None, 1);
    for number in 0..100 {
        receiver.stream(1, 0, number..number + 1);
        receiver.stream(2, 5000, number..number + 1);
    }
    receiver.later(1000);
    assert_end(&mut receiver, [100, 0, 0, 100, 0]);
}

#[test]
fn what_has_no_frames_never_takes_the_place_of_what_has() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100);
    for number in 0..1000 {
        receiver.later(10).take(2, &raw(number, FRAME));
    }
    receiver.stream(1, 0, 100..200);
    assert_end(&mut receiver, [200, 0, 0, 1000, 0]);
}

#[test]
fn what_has_frames_takes_the_place_of_what_has_none() {
    let mut receiver = Receiver::new(None, 1);
    for number in 0..100 {
        receiver.take(2, &raw(number, 500));
    }
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
    // The consumer is slow, and the ring can be had later.
    receiver.busy = 20;
    receiver.later(50).stream(1, 0, 0..100);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    for number in 100..200 {
        receiver.take(2, &raw(number, 500));
    }
    receiver.stream(1, 0, 100..200);
    assert_end(&mut receiver, [300, 1, 100, 0, 0]);
    assert_eq!(receiver.rings.len(), 2);
    assert_eq!(receiver.admission.bytes(), 100 * 500 + 200 * FRAME as u64);
}

#[test]
fn a_stream_whose_ring_never_came_free_is_counted() {
    let mut receiver = Receiver::new(None, 1);
    for number in 0..100 {
        receiver.take(2, &raw(number, 500));
    }
    receiver.busy = u32::MAX;
    receiver.later(50).stream(1, 0, 0..100);
    assert_end(&mut receiver, [100, 0, 0, 100, 0]);
}

#[test]
fn a_stream_whose_frames_end_gives_way_to_one_with_frames() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100);
    for number in 100..163 {
        receiver.take(1, &raw(number, FRAME));
    }
    receiver.later(50).stream(2, 0, 0..20);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    // Frames of another kind may have begun: a sample of its data shows that there are none. What the other sends meanwhile is kept.
    for number in 163..163 + (SAMPLE_BYTES / FRAME) as u64 {
        receiver.take(1, &raw(number, FRAME));
        if number % 10 == 0 {
            receiver.stream(2, 0, number..number + 1);
        }
    }
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    receiver.take(1, &raw(163 + (SAMPLE_BYTES / FRAME) as u64, FRAME));
    receiver.later(50).stream(2, 0, 400..401);
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
    assert_eq!(receiver.admission.counters().restarts, 1);
}

/// A stream of long frames in short datagrams, from the datagram `first` on.
fn long_frames(frame: usize, first: usize, count: usize) -> Vec<Vec<u8>> {
    let bytes = pattern::frames(frame, 1_700_000_000, pattern::frame_rate(64), 64).expect("frames");
    let datagrams = bytes.chunks_exact(1464).skip(first).take(count);
    (first as u64..)
        .zip(datagrams)
        .map(|(number, data)| [&vtp::header(number), data].concat())
        .collect()
}

#[test]
fn frames_longer_than_many_datagrams_are_found() {
    let mut receiver = Receiver::new(None, 1);
    let datagrams = long_frames(40_032, 0, 1000);
    for bytes in &datagrams {
        receiver.take(1, bytes);
    }
    let live = receiver.admission.live.as_ref().unwrap();
    assert!(live.frames.is_some());
    // Short frames of another sender have no chance then, not even after silence for the first one's return.
    receiver.stream(2, 0, 0..20);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    receiver.later(400).stream(2, 0, 20..40);
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
    for bytes in long_frames(40_032, 1000, 500) {
        receiver.take(1, &bytes);
    }
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
}

#[test]
fn frames_that_begin_late_are_found() {
    let mut receiver = Receiver::new(None, 1);
    for number in 0..2000 {
        receiver.take(1, &raw(number, FRAME));
    }
    receiver.stream(1, 0, 2000..8000);
    assert!(receiver.admission.live.as_ref().unwrap().frames.is_some());
    receiver.stream(2, 0, 0..20);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
}

#[test]
fn frames_of_another_length_in_the_same_datagrams_are_the_streams() {
    let mut receiver = Receiver::new(None, 1);
    let data = FRAME * 8;
    let cut = |frame: usize, first: u64, count: usize| -> Vec<Vec<u8>> {
        let bytes =
            pattern::frames(frame, 1_700_000_000, pattern::frame_rate(64), 4096).expect("frames");
        (first..)
            .zip(bytes.chunks_exact(data).take(count))
            .map(|(number, data)| [&vtp::header(number), data].concat())
            .collect()
    };
    for bytes in cut(FRAME, 0, 200).iter().chain(&cut(2064, 200, 200)) {
        receiver.take(1, bytes);
    }
    receiver.stream(2, 0, 0..20);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    assert!(
        receiver
            .admission
            .live
            .as_ref()
            .unwrap()
            .frames
            .as_ref()
            .unwrap()
            .are_there()
    );
}

#[test]
fn a_candidate_whose_frames_end_is_none() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100).stream(2, 0, 0..20);
    for number in 20..40 {
        receiver.take(2, &raw(number, FRAME));
    }
    receiver.later(400);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    receiver.stream(2, 0, 40..41);
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
}

#[test]
fn bytes_that_look_like_headers_everywhere_are_searched_in_bounded_work() {
    // Words that are a header wherever one looks, as far as it goes.
    let mut receiver = Receiver::new(None, 1);
    let mut data = Vec::new();
    for word in 0..(1u32 << 18) {
        data.extend_from_slice(&(word & 0xff | 8).to_le_bytes());
    }
    for (number, data) in (0..).zip(data.chunks(4096)) {
        receiver.take(1, &[&vtp::header(number), data].concat());
        receiver.later(1);
    }
    receiver.later(400);
    assert_end(&mut receiver, [256, 0, 0, 0, 0]);
}

#[test]
fn who_was_recorded_first_gets_its_place_back() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100);
    receiver.later(400).stream(2, 0, 0..100);
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
    receiver.later(50).stream(1, 0, 200..220);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    // The other one is refused then, and listed.
    receiver.stream(2, 0, 100..150).stream(1, 0, 220..230);
    assert_end(&mut receiver, [230, 2, 0, 50, 0]);
    let refused = Refused {
        sender: sender(2),
        datagrams: 50,
        frames: true,
    };
    assert_eq!(receiver.admission.refused(), [refused]);
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
fn datagrams_that_do_not_number_on_are_no_stream() {
    let mut receiver = Receiver::new(None, 1);
    for n in 0..400u64 {
        receiver.take(3, &raw(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 100));
    }
    assert_eq!(receiver.admission.sender(), None);
    assert_eq!(receiver.admission.counters().received, 0);
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
    // Another sender at one of them.
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
    // Who asks for one host refuses the others knowingly.
    assert_eq!(receiver.admission.refused(), []);
}

#[test]
fn what_is_kept_is_bounded() {
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

#[test]
fn silence_is_measured_by_the_kernels_stamps_as_far_as_they_can_be_true() {
    // All are read at once, 400 ms after the sockets were read before; or the clock was set forward, or back.
    for (read, last, next, is_silent) in [
        (400, 7, 7 + 299, false),
        (400, 7, 7 + 300, true),
        (100, 7, 7 + 3_600_000, false),
        (400, 3_600_000, 7, false),
    ] {
        let mut receiver = Receiver::new(None, 1);
        let stamped = |receiver: &mut Receiver, port, frame, millis| {
            let bytes = datagram(frame, frame);
            receiver.arrive(&Arrival {
                bytes: &bytes,
                source: sender(port),
                port: 0,
                stamp: Some(Duration::from_millis(millis)),
            });
        };
        receiver.later(0);
        receiver.now = receiver.now.plus(Nanos(read * MS));
        for frame in 0..8 {
            stamped(&mut receiver, 1, frame, last);
        }
        for frame in 0..8 {
            stamped(&mut receiver, 2, frame, next);
        }
        let expected = Some(sender(if is_silent { 2 } else { 1 }));
        assert_eq!(
            receiver.admission.sender(),
            expected,
            "{read} {last} {next}"
        );
    }
    // Set back, it is silent all the same when nothing comes for long enough.
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..8);
    receiver.later(300).stream(2, 0, 0..8);
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
}

#[test]
fn frames_may_begin_anywhere_in_datagrams() {
    // The stream of bytes cut into datagrams of another length.
    let bytes: Vec<u8> = (0..2000)
        .flat_map(|frame| datagram(0, frame)[8..].to_vec())
        .collect();
    for length in [200, 1000, 5000] {
        let mut receiver = Receiver::new(None, 1);
        for (number, data) in (0..).zip(bytes.chunks_exact(length)) {
            receiver.take(1, &[&vtp::header(number), data].concat());
        }
        let all = (bytes.len() / length) as u64;
        let live = receiver.admission.live.as_ref().unwrap();
        assert_eq!(live.frames.as_ref().unwrap().valid(), u64::MAX, "{length}");
        assert_end(&mut receiver, [all, 0, 0, 0, 0]);
    }
}

/// What else arrives at a port.
#[derive(Clone, Debug)]
enum Junk {
    /// Datagrams of another sender: port, first number, length of the data, how many.
    Raw(u16, u64, usize, u64),
    /// Frames of another sender: port, first number, how many.
    Frames(u16, u64, u64),
    /// Forged with the stream's address and length: how far ahead, how many.
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

    /// A stream with frames that is never silent for 300 ms is recorded whole, whatever else arrives before and beside it, if that
    /// has no frames before.
    #[test]
    fn a_live_stream_is_recorded_whatever_comes_beside_it(
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

/// A stream without frames and of another length takes the place of one that is silent: the gap is as long as the silence.
#[test]
fn a_silence_before_datagrams_of_another_length_is_a_gap() {
    let mut receiver = Receiver::new(None, 1);
    // The consumer has not left the ring at first.
    receiver.busy = 1;
    for (port, data, pause) in [(1, 333, 0), (2, 500, 1000)] {
        receiver.later(pause);
        for number in 0..64 {
            receiver.take(port, &raw(number, data));
            receiver.later(1);
        }
    }
    assert_eq!(counts(&receiver.end(), &receiver.admission)[..2], [128, 1]);
    // 64 datagrams in 63 ms, then 1 s without.
    assert!(
        (1000..1030).contains(&(receiver.missing / 333)),
        "{}",
        receiver.missing
    );
}

#[test]
fn a_stream_that_is_interrupted_at_its_beginning_is_found() {
    for first in 1..ENOUGH as u64 {
        let mut receiver = Receiver::new(None, 1);
        receiver.stream(1, 0, 0..first);
        receiver.later(1600).stream(1, 0, 300..340);
        assert_end(&mut receiver, [first + 40, 0, 0, 0, 0]);
    }
}

#[test]
fn sequences_that_begin_soon_after_each_other_are_recorded_in_order() {
    for pause in [1, 100, 299] {
        let mut receiver = Receiver::new(None, 1);
        receiver.stream(1, 0, 0..100);
        receiver.later(pause).stream(2, 0, 100..150);
        receiver.later(pause).stream(3, 0, 150..200);
        for frame in 200..250 {
            receiver.later(10).stream(3, 0, frame..frame + 1);
        }
        assert_end(&mut receiver, [250, 2, 0, 0, 0]);
        let ring = receiver.rings[0].values();
        let frames = (0..250).map(|frame| datagram(0, frame)[8..].to_vec());
        assert!(ring.cloned().eq(frames), "{pause}");
    }
}

/// A receiver takes up at one moment all that its socket holds: the order of arrival shows what follows what, and stamps the silence.
#[test]
fn sequences_that_are_taken_up_at_once_are_recorded_in_order() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..99).later(1);
    receiver.now = receiver.now.plus(Nanos(2000 * MS));
    let mut take = |port, frame: u64| {
        let stamp = Some(Duration::from_millis(1000 + 10 * frame));
        let bytes = &datagram(frame, frame)[..];
        receiver.arrive(&Arrival {
            bytes,
            source: sender(port),
            port: 0,
            stamp,
        });
    };
    // Of the third, three come before the last of the second.
    let parts = [
        (1, 99..100),
        (2, 100..117),
        (3, 117..120),
        (2, 120..121),
        (3, 121..200),
    ];
    for (port, frames) in parts {
        for frame in frames {
            take(port, frame);
        }
    }
    assert_end(&mut receiver, [200, 2, 0, 0, 0]);
    let ring = receiver.rings[0].values();
    let frames = (0..117).chain(120..121).chain(117..120).chain(121..200);
    let frames = frames.map(|frame| datagram(0, frame)[8..].to_vec());
    assert!(ring.cloned().eq(frames));
}
