//! Detection of frames in the datagrams of streams and candidates, for any offset and length of frames.

use evlbi_wire::{pattern, vtp};

use super::{FRAME, Receiver, assert_end, datagram, raw, sender};

/// A stream of long frames in short datagrams, starting with datagram `first`.
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
    // Short frames of another sender are not accepted then, even after a silence, so that the first one can return.
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
fn frames_that_start_late_are_found() {
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
    // Words that look like a header at every offset.
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
fn frames_may_start_anywhere_in_datagrams() {
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
