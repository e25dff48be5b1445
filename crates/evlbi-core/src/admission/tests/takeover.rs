//! When one stream replaces another: after what silence, by which one, and in order.

use std::time::Duration;

use super::{FRAME, MS, Receiver, assert_end, counts, datagram, raw, sender};
use crate::admission::live::SAMPLE_BYTES;
use crate::admission::{Arrival, Refused};
use crate::time::Nanos;

#[test]
fn a_sender_that_restarts_elsewhere_takes_its_place_after_silence() {
    for begins in [500_000_000, 3] {
        let mut receiver = Receiver::new(None, 1);
        receiver.stream(1, 100_000, 0..100);
        for frame in 100..150 {
            receiver.later(5).stream(1, begins, frame..frame + 1);
        }
        // 250 ms are too short for a silence, and the datagrams stay pending.
        assert_eq!(receiver.admission.counters().unique, 100);
        assert_eq!(receiver.admission.undecided(), 50);
        for frame in 150..200 {
            receiver.later(5).stream(1, begins, frame..frame + 1);
        }
        assert_end(&mut receiver, [200, 1, 0, 0, 0]);
    }
}

#[test]
fn a_stream_restarts_although_nothing_arrives_after_the_silence() {
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
fn datagrams_alongside_a_stream_do_not_follow_it() {
    let mut receiver = Receiver::new(None, 1);
    for number in 0..100 {
        receiver.stream(1, 0, number..number + 1);
        receiver.stream(2, 5000, number..number + 1);
    }
    receiver.later(1000);
    assert_end(&mut receiver, [100, 0, 0, 100, 0]);
}

#[test]
fn a_stream_without_frames_never_replaces_one_with_frames() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100);
    for number in 0..1000 {
        receiver.later(10).take(2, &raw(number, FRAME));
    }
    receiver.stream(1, 0, 100..200);
    assert_end(&mut receiver, [200, 0, 0, 1000, 0]);
}

#[test]
fn a_stream_with_frames_replaces_one_without() {
    let mut receiver = Receiver::new(None, 1);
    for number in 0..100 {
        receiver.take(2, &raw(number, 500));
    }
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
    // The consumer is slow, and the ring is available later.
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
fn a_stream_whose_ring_was_never_freed_is_counted() {
    let mut receiver = Receiver::new(None, 1);
    for number in 0..100 {
        receiver.take(2, &raw(number, 500));
    }
    receiver.busy = u32::MAX;
    receiver.later(50).stream(1, 0, 0..100);
    assert_end(&mut receiver, [100, 0, 0, 100, 0]);
}

#[test]
fn a_stream_whose_frames_end_is_replaced_by_one_with_frames() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100);
    for number in 100..163 {
        receiver.take(1, &raw(number, FRAME));
    }
    receiver.later(50).stream(2, 0, 0..20);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    // Frames of another kind may have started: a sample of the data shows that there are none. The other stream's datagrams stay
    // pending.
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

#[test]
fn who_was_recorded_first_gets_its_place_back() {
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..100);
    receiver.later(400).stream(2, 0, 0..100);
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
    receiver.later(50).stream(1, 0, 200..220);
    assert_eq!(receiver.admission.sender(), Some(sender(1)));
    // The other one is then refused, and listed.
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
fn silence_is_measured_by_the_kernels_stamps_as_far_as_they_can_be_true() {
    // All are read at once, 400 ms after the sockets were last emptied; or the clock was set forward, or back.
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
    // If the clock is set back, the silence is still detected when nothing arrives for long enough.
    let mut receiver = Receiver::new(None, 1);
    receiver.stream(1, 0, 0..8);
    receiver.later(300).stream(2, 0, 0..8);
    assert_eq!(receiver.admission.sender(), Some(sender(2)));
}

/// A stream without frames and of another length replaces a silent one: the gap is as long as the silence.
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
    // 64 datagrams in 63 ms, then 1 s of silence.
    assert!(
        (1000..1030).contains(&(receiver.missing / 333)),
        "{}",
        receiver.missing
    );
}

#[test]
fn sequences_that_start_soon_after_each_other_are_recorded_in_order() {
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

/// A receiver reads everything in its socket at one moment: the order of arrival shows what follows what, and timestamps show the
/// silence.
#[test]
fn sequences_that_are_accepted_together_are_recorded_in_order() {
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
    // Three of the third sequence arrive before the last of the second.
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
