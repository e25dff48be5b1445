//! Loss in streams of several threads and stations.

use std::collections::BTreeSet;
use std::time::Duration;

use evlbi_core::deframe::{FrameState, Partial, Settings};
use evlbi_wire::validity::Cause;
use evlbi_wire::vdif::Header;
use proptest::prelude::*;

use crate::deframe::stream::{Path, Plan, assert_same, carry, expected, key};

pub fn plans() -> impl Strategy<Value = Plan> {
    let keys = prop::collection::btree_set((0u16..3, 0u16..6), 1..9);
    let offsets = prop::collection::vec(prop::sample::select(vec![0, 0, -3, 14_352_384]), 9);
    let shape = (2usize..12, any::<bool>());
    (keys, offsets, 3u32..90, 0u32..90, shape, any::<u64>()).prop_map(
        |(keys, offsets, rate, first_frame, (eights, legacy), seed)| {
            let mut keys: Vec<_> = keys.into_iter().map(|(s, t)| key(s, t)).collect();
            let turn = seed as usize % keys.len();
            keys.rotate_left(turn);
            let last = keys.len() - 1;
            keys.swap(0, (seed >> 8) as usize % (last + 1));
            Plan {
                offsets: offsets[..keys.len()].to_vec(),
                keys,
                rate,
                first_frame,
                frame_length: 8 * (4 + eights),
                legacy,
                cycles: 60,
                shuffled: false,
                seed,
            }
        },
    )
}

/// A fragment of the frame, or a datagram length unrelated to it.
pub fn slots(frame_length: usize) -> impl Strategy<Value = usize> {
    let eights = frame_length / 8;
    let divisors = (1..=eights).filter(move |n| eights.is_multiple_of(*n));
    let divisors: Vec<usize> = divisors.map(|n| 8 * n).collect();
    prop_oneof![
        prop::sample::select(divisors),
        8..3 * frame_length,
        Just(2 * frame_length)
    ]
}

/// Bursts of loss: start and length in bytes.
pub fn bursts(frames: usize) -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((0..frames, 1usize..20), 0..12)
}

/// Datagrams that bursts drop.
pub fn lost(bursts: &[(usize, usize)], from: usize, slot: usize, length: usize) -> BTreeSet<usize> {
    let slots_of = |&(frame, frames): &(usize, usize)| {
        let start = (from + frame) * length / slot;
        start..start + (frames * length).div_ceil(2 * slot)
    };
    let first = (from * length).div_ceil(slot);
    let all = bursts.iter().flat_map(slots_of);
    all.filter(|slot| *slot >= first).collect()
}

pub fn settings(rate: Option<evlbi_wire::time::FrameRate>, partial: Partial) -> Settings {
    Settings {
        frame_rate: rate,
        partial,
        hold: 1 << 16,
        fill: Duration::MAX,
        ..Settings::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The rate is given, and two cycles arrive before any loss.
    #[test]
    fn lost_frames_are_replaced_with_their_true_headers(
        (plan, slot) in plans().prop_flat_map(|plan| {
            let slots = slots(plan.frame_length);
            (Just(plan), slots)
        }),
        bursts in bursts(8 * 60),
        gap_from in prop_oneof![Just(usize::MAX), 3usize..20],
        max_new in 1usize..50,
        keep: bool,
        seed: u64,
    ) {
        let stream = plan.make();
        let lost = lost(&bursts, 2 * plan.keys.len(), slot, plan.frame_length);
        let path = Path { slot, lost, gap_from, max_new, seed };
        let partial = if keep { Partial::Keep } else { Partial::Whole };
        let output = carry(&stream, &path, settings(stream.rate(), partial));
        let (bytes, broken) = expected(&stream, &path, partial);
        assert_same(&output.bytes, &bytes, &stream);
        let counts = &output.counts;
        prop_assert_eq!(counts.ambiguous, 0);
        prop_assert_eq!(counts.frames as usize, broken.len());
        let broken = broken.iter().filter(|broken| **broken).count() as u64;
        prop_assert_eq!(counts.lost_frames + counts.partial, broken);
        prop_assert_eq!(counts.whole, counts.frames - broken);
        prop_assert_eq!(counts.trimmed_bytes, 0);
        for (number, frame) in output.frames.iter().enumerate() {
            prop_assert_eq!(frame.key, Some(stream.header(number).key()));
            prop_assert_eq!(frame.time, Some(stream.header(number).time()));
            prop_assert_eq!(&frame.bytes, &(number * plan.frame_length..(number + 1) * plan.frame_length));
        }
        if !keep {
            let listed: u64 = output.gaps.iter().map(|gap| gap.frames).sum();
            prop_assert_eq!(listed, counts.lost_frames);
        }
    }

    /// The first frames are lost, or their headers, before anything was detected.
    #[test]
    fn frames_lost_at_the_very_start_are_replaced(
        (plan, slot) in plans().prop_flat_map(|plan| {
            let slots = slots(plan.frame_length);
            (Just(plan), slots)
        }),
        bursts in prop::collection::vec((0usize..12, 1usize..4), 1..3),
        max_new in 1usize..50,
    ) {
        let stream = plan.make();
        let path = Path { max_new, ..Path::new(slot, lost(&bursts, 0, slot, plan.frame_length)) };
        let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
        let (bytes, _) = expected(&stream, &path, Partial::Whole);
        assert_same(&output.bytes, &bytes, &stream);
    }

    /// It cannot be known which of a cycle's frames was first. But no frame is output twice, and none is missing.
    #[test]
    fn in_a_changing_order_every_frame_is_there_once(
        plan in plans(),
        bursts in prop::collection::vec((0usize..400, 1usize..6), 0..12),
        max_new in 1usize..50,
    ) {
        let plan = Plan { shuffled: true, ..plan };
        let stream = plan.make();
        let length = plan.frame_length;
        let mut lost = lost(&bursts, 2 * plan.keys.len(), length, length);
        // In the last cycle, a lost frame cannot be distinguished from one that was never sent.
        lost.retain(|slot| *slot < (plan.cycles - 1) * plan.keys.len());
        let path = Path { max_new, ..Path::new(length, lost) };
        let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
        let seen = path.seen(&stream);
        let truth: BTreeSet<_> = (0..seen.end / length)
            .map(|number| (stream.header(number).key(), stream.header(number).time()))
            .collect();
        let ours: Vec<_> = output.frames.iter().map(|f| (f.key.unwrap(), f.time.unwrap())).collect();
        let set: BTreeSet<_> = ours.iter().copied().collect();
        prop_assert_eq!(set.len(), ours.len());
        prop_assert_eq!(&set, &truth);
    }
}

/// Loses frames `lost` of a stream of whole-frame datagrams.
fn check(
    plan: &Plan,
    lost: impl IntoIterator<Item = usize>,
    given: bool,
) -> crate::deframe::stream::Output {
    let stream = plan.make();
    let path = Path {
        max_new: 7,
        ..Path::new(plan.frame_length, lost)
    };
    let rate = stream.rate().filter(|_| given);
    let output = carry(&stream, &path, settings(rate, Partial::Whole));
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
    assert_eq!(output.counts.ambiguous, 0);
    output
}

#[test]
fn nothing_lost_is_nothing_changed() {
    let plan = Plan::new(5);
    let output = check(&plan, [], false);
    assert_eq!(output.bytes, plan.make().bytes);
    assert_eq!(output.counts.whole, 300);
    assert_eq!(output.rate, plan.make().rate());
    assert!(output.gaps.is_empty());
}

#[test]
fn whole_lost_cycles_are_replaced() {
    check(&Plan::new(5), 50..150, true);
}

#[test]
fn a_thread_that_is_lost_for_a_long_time_is_replaced() {
    let lost = (100..250).filter(|frame| frame % 5 == 3);
    check(&Plan::new(5), lost, true);
    let two = (100..280).filter(|frame| frame % 5 == 3 || frame % 5 == 4);
    check(&Plan::new(5), two, true);
}

#[test]
fn runs_of_a_thread_are_listed_as_one() {
    let output = check(&Plan::new(2), (20..40).chain([50, 52, 53, 54]), false);
    let runs: Vec<_> = output
        .gaps
        .iter()
        .map(|gap| (gap.key.thread, gap.start.frame, gap.frames, gap.first_byte))
        .collect();
    let at = |frame: u64| Some(frame * 96);
    assert_eq!(
        runs,
        [
            (0, 10, 10, at(20)),
            (1, 10, 10, at(21)),
            (0, 0, 3, at(50)),
            (1, 1, 1, at(53))
        ]
    );
    assert!(output.gaps.iter().all(|gap| gap.cause == Cause::Lost));
}

#[test]
fn the_rate_is_detected_where_the_second_turns() {
    // Frame 25 of each thread is the first of the next second.
    for lost in [70..75, 72..78, 60..90, 74..76, 75..80] {
        let second_turn = 40 * 3..58 * 3;
        let output = check(&Plan::new(3), lost.chain(second_turn), false);
        assert_eq!(output.rate, Plan::new(3).make().rate());
    }
}

/// Also if all of it is seen before the first frame is taken.
#[test]
fn a_loss_at_the_first_turn_makes_no_second_shorter() {
    for lost in [24..25, 21..25, 24..28] {
        let stream = Plan::new(1).make();
        let path = Path {
            max_new: 300,
            ..Path::new(96, lost)
        };
        let output = carry(&stream, &path, settings(None, Partial::Whole));
        let (bytes, _) = expected(&stream, &path, Partial::Whole);
        assert_same(&output.bytes, &bytes, &stream);
        assert_eq!(output.rate, stream.rate());
    }
}

#[test]
fn a_given_rate_holds_from_the_first_frame() {
    let plan = Plan {
        first_frame: 24,
        ..Plan::new(3)
    };
    check(&plan, [3, 4, 5], true);
}

#[test]
fn a_thread_that_follows_but_was_never_seen_gets_its_frame() {
    // The third thread's first frames are lost, with others.
    let lost = (0..256).filter(|frame| frame % 3 == 2);
    let plan = Plan {
        cycles: 200,
        rate: 1000,
        ..Plan::new(3)
    };
    let stream = plan.make();
    let path = Path::new(96, lost);
    let output = carry(&stream, &path, settings(None, Partial::Whole));
    let lost = |f: &&evlbi_core::deframe::Frame| f.state == FrameState::Lost;
    let unknown = output
        .frames
        .iter()
        .filter(lost)
        .filter(|f| f.key.is_none());
    // Unknown headers are counted as guesses, and have no thread of the stream.
    assert_eq!(unknown.count() as u64, output.counts.ambiguous);
    for (number, frame) in output.bytes.chunks(96).enumerate() {
        if number % 3 != 2 || number > 256 {
            assert_eq!(frame, stream.frame(number));
        } else {
            let header = Header::parse(frame).unwrap();
            assert!(header.is_invalid());
            assert!(header.key().thread > 1, "{header:?}");
        }
    }
}

#[test]
fn a_jump_of_the_source_is_followed() {
    let plan = Plan::new(3);
    let mut stream = plan.make();
    let later = Plan {
        first_frame: 7777,
        ..plan.clone()
    };
    stream.bytes.extend(later.make().bytes);
    let frames = stream.frames();
    let lost = [100, 178, 179, 186, 187, 200, frames - 2];
    let path = Path::new(96, lost);
    let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
}

#[test]
fn a_gap_of_a_million_frames_takes_no_memory() {
    evlbi_testkit::watch();
    let plan = Plan {
        cycles: 400_000,
        rate: 1000,
        frame_length: 40,
        ..Plan::new(3)
    };
    let stream = plan.make();
    let path = Path {
        gap_from: 1000,
        ..Path::new(40, 1000..1_100_000)
    };
    let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
    assert!(output.longest_chunk <= 1 << 20);
    assert_eq!(output.counts.lost_frames, 1_099_000);
    assert_eq!(output.gaps.len(), 3);
}

#[test]
fn a_gap_may_be_in_the_very_first_header() {
    let stream = Plan::new(3).make();
    let path = Path::new(8, [1]);
    let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
}

#[test]
fn the_first_frame_may_be_the_last_of_its_second() {
    let plan = Plan {
        first_frame: 24,
        cycles: 3,
        ..Plan::new(1)
    };
    assert_eq!(check(&plan, [], false).rate, plan.make().rate());
}

#[test]
fn the_rate_is_detected_from_the_data_after_the_first_loss() {
    let plan = Plan {
        first_frame: 23,
        ..Plan::new(1)
    };
    let stream = plan.make();
    let path = Path::new(96, [2]);
    let output = carry(&stream, &path, settings(None, Partial::Whole));
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
}

#[test]
fn a_thread_that_was_seen_once_is_known_a_cycle_later() {
    let plan = Plan {
        cycles: 200,
        ..Plan::new(2)
    };
    let mut stream = plan.make();
    // A thread ends, and after a few damaged headers another one has its place.
    for number in (301..400).step_by(2) {
        let mut header = stream.header(number);
        header.set_key(key(7, 10 + (number as u16 - 301).min(6)));
        header.emit(&mut stream.bytes[number * 96..]);
    }
    let path = Path {
        max_new: 7,
        ..Path::new(96, [309])
    };
    let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
    assert_eq!(output.counts.ambiguous, 0);
}

#[test]
fn lost_frames_that_cannot_have_been_the_threads_are_ambiguous() {
    let mut stream = Plan::new(1).make();
    stream.bytes.splice(20 * 96..20 * 96, [7; 2 * 96]);
    let path = Path {
        max_new: 5,
        ..Path::new(96, [20, 21])
    };
    let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
    assert_eq!(output.counts.lost_frames, 2);
    assert_eq!(output.counts.ambiguous, 1);
    // A wrong frame rate makes nothing ambiguous while no frame is lost.
    let told = evlbi_wire::time::FrameRate::new(10);
    let whole = Plan::new(1).make();
    let output = carry(&whole, &Path::new(96, []), settings(told, Partial::Whole));
    assert_eq!(output.counts.ambiguous, 0);
}

#[test]
fn of_too_many_threads_those_of_late_are_remembered() {
    let plan = Plan {
        rate: 10_000,
        cycles: 4200,
        ..Plan::new(2)
    };
    let mut stream = plan.make();
    // Every other frame is of a different station.
    for (number, frame) in stream.bytes.chunks_mut(96).enumerate().skip(1).step_by(2) {
        let mut header = Header::parse(frame).unwrap();
        header.set_key(key(100 + number as u16, 0));
        header.emit(frame);
    }
    // When the 4096th of them has arrived.
    let path = Path::new(96, [8192, 8194]);
    let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
    let (bytes, _) = expected(&stream, &path, Partial::Whole);
    assert_same(&output.bytes, &bytes, &stream);
}

#[test]
fn runs_that_the_list_has_no_room_for_are_counted() {
    let plan = Plan {
        rate: 1000,
        frame_length: 40,
        cycles: 2 * 65_540,
        ..Plan::new(1)
    };
    let stream = plan.make();
    let lost = (0..65_539).map(|number| 2 * number + 1);
    let path = Path {
        max_new: 1 << 16,
        ..Path::new(plan.frame_length, lost)
    };
    let output = carry(&stream, &path, settings(stream.rate(), Partial::Whole));
    assert_eq!(output.counts.lost_frames, 65_539);
    assert_eq!(output.gaps.len(), 1 << 16);
    assert_eq!(output.counts.gaps_not_listed, 3);
}
