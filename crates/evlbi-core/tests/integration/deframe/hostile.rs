//! Arbitrary bytes: nothing panics, nothing is delayed forever, every byte is accounted for.

use std::ops::Range;
use std::time::Duration;

use evlbi_core::deframe::{Counts, Deframer, Format, Frame, FrameState, Holes, Partial, Settings};
use evlbi_wire::time::FrameRate;
use proptest::prelude::*;

use crate::deframe::stream::{Output, Plan};

const HOLD: usize = 4000;

fn settings() -> impl Strategy<Value = Settings> {
    let formats = prop_oneof![
        Just(None),
        Just(Some(Format::Vdif)),
        Just(Some(Format::Mark5b)),
        Just(Some(Format::Mark4)),
        Just(Some(Format::Raw))
    ];
    let length = prop::option::of(0usize..200);
    (formats, length, prop::option::of(0u32..50), any::<bool>()).prop_map(
        |(format, frame_length, rate, keep)| Settings {
            format,
            frame_length,
            frame_rate: rate.and_then(FrameRate::new),
            partial: if keep { Partial::Keep } else { Partial::Whole },
            hold: HOLD,
            fill: Duration::MAX,
            latest: i64::MIN,
            ..Settings::default()
        },
    )
}

/// Damage: bytes replaced, removed and inserted.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Cut(usize, usize),
    Repeat(usize, usize),
    Zero(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = 0usize..20_000;
    prop_oneof![
        4 => (place.clone(), any::<u8>()).prop_map(|(at, byte)| Damage::Flip(at, byte)),
        1 => (place.clone(), 0usize..300).prop_map(|(at, length)| Damage::Cut(at, length)),
        1 => (place.clone(), 0usize..300).prop_map(|(at, length)| Damage::Repeat(at, length)),
        1 => (place, 0usize..300).prop_map(|(at, length)| Damage::Zero(at, length)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let range = |at: usize, length: usize| -> Range<usize> {
        let at = at % bytes.len().max(1);
        at..(at + length).min(bytes.len())
    };
    match *damage {
        Damage::Flip(at, byte) => {
            let at = at % bytes.len().max(1);
            bytes[at] ^= byte;
        }
        Damage::Cut(at, length) => drop(bytes.drain(range(at, length))),
        Damage::Repeat(at, length) => {
            let piece = bytes[range(at, length)].to_vec();
            let at = range(at, length).start;
            bytes.splice(at..at, piece);
        }
        Damage::Zero(at, length) => {
            let range = range(at, length);
            bytes[range].fill(0);
        }
    }
}

fn streams() -> impl Strategy<Value = Vec<u8>> {
    let damaged = (
        1u16..5,
        5usize..12,
        any::<u64>(),
        prop::collection::vec(damage(), 0..40),
    );
    let damaged = damaged.prop_map(|(threads, eights, seed, damages)| {
        let plan = Plan {
            frame_length: 8 * eights,
            seed,
            ..Plan::new(threads)
        };
        let mut bytes = plan.make().bytes;
        for damage in &damages {
            apply(&mut bytes, damage);
        }
        bytes
    });
    prop_oneof![
        4 => damaged,
        1 => prop::collection::vec(any::<u8>(), 0..10_000),
        1 => prop::collection::vec(prop::sample::select(vec![0u8, 0, 0, 0, 1, 8, 0x20]), 0..10_000),
    ]
}

/// Pushes `bytes` in pieces; every byte must be output or counted.
fn push_all(
    bytes: &[u8],
    settings: &Settings,
    pieces: &[usize],
    missing: &[Range<usize>],
    gaps: &[(usize, u64)],
) -> Output {
    let mut deframer = Deframer::new(settings.clone());
    let mut output = Output::default();
    let mut bytes = bytes.to_vec();
    let hold = HOLD.max(4 * settings.frame_length.unwrap_or(0));
    let (mut from, mut to) = (0, 0);
    let mut pieces = pieces.iter().cycle();
    while to < bytes.len() || deframer.is_filling() {
        to = (to + pieces.next().unwrap()).min(bytes.len());
        let mut holes = Holes::new();
        let mut all: Vec<(usize, Option<u64>)> = Vec::new();
        all.extend(gaps.iter().map(|(at, length)| (*at, Some(*length))));
        all.extend(missing.iter().map(|range| (range.start, None)));
        all.sort_unstable();
        for (at, length) in all {
            match length {
                Some(length) if at <= to && (at > from || from == 0 && !deframer.is_filling()) => {
                    holes.gap(at - from, length);
                }
                None => {
                    let range = missing.iter().find(|range| range.start == at).unwrap();
                    if range.end > from && range.start < to {
                        holes.missing(range.start.max(from) - from..range.end.min(to) - from);
                    }
                }
                _ => {}
            }
        }
        let ended = to == bytes.len();
        from += deframer.push(&mut bytes[from..to], &holes, ended, &mut |chunk| {
            let mut end = 0;
            for frame in chunk.frames {
                assert_eq!(frame.bytes.start, end);
                end = frame.bytes.end;
            }
            assert!(chunk.frames.is_empty() || end == chunk.bytes.len());
            output.take(chunk);
        });
        let longest = deframer.layout().map_or(0, |layout| layout.frame_length);
        assert!(to - from <= hold.max(longest) || ended || deframer.is_filling());
    }
    output.finish(&deframer)
}

fn is_broken(frame: &Frame) -> bool {
    matches!(frame.state, FrameState::Lost | FrameState::Partial)
}

fn check(counts: &Counts, output: &Output, given: u64) {
    assert_eq!(counts.bytes, output.bytes.len() as u64);
    // The missing part of the last frame is made.
    let made = (counts.bytes + counts.trimmed_bytes).checked_sub(given);
    let last = output.frames.last().filter(|last| is_broken(last));
    let max = last.map_or(0, |last| last.bytes.len() as u64);
    assert!(made.is_some_and(|made| made <= max), "{counts:?}");
    let sum = counts.whole
        + counts.source_invalid
        + counts.lost_frames
        + counts.partial
        + counts.odd_headers;
    assert_eq!(counts.frames, sum);
    assert_eq!(counts.frames, output.frames.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn received_bytes_are_output_unchanged(
        bytes in streams(),
        settings in settings(),
        pieces in prop::collection::vec(1usize..3000, 1..8),
    ) {
        let output = push_all(&bytes, &settings, &pieces, &[], &[]);
        let counts = &output.counts;
        check(counts, &output, bytes.len() as u64);
        let last = output.frames.last().filter(|last| is_broken(last));
        prop_assert_eq!(counts.lost_frames + counts.partial, u64::from(last.is_some()));
        let whole = &output.bytes[..last.map_or(output.bytes.len(), |last| last.bytes.start)];
        let fits = (0..=bytes.len() - whole.len()).any(|start| bytes[start..].starts_with(whole));
        prop_assert!(fits);
    }

    #[test]
    fn gaps_anywhere_do_no_harm(
        bytes in streams(),
        settings in settings(),
        pieces in prop::collection::vec(1usize..3000, 1..8),
        holes in prop::collection::vec((0usize..10_000, 0usize..500), 0..12),
        gaps in prop::collection::vec((0usize..10_000, 0u64..5000), 0..4),
    ) {
        let mut missing: Vec<Range<usize>> = Vec::new();
        let mut starts: Vec<_> = holes;
        starts.sort_unstable();
        for (start, length) in starts {
            let start = start.max(missing.last().map_or(0, |last| last.end + 1));
            let end = (start + length).min(bytes.len());
            if start < end {
                missing.push(start..end);
            }
        }
        // A gap is between two datagrams that arrived.
        let inside = |at: &usize| missing.iter().any(|range| range.start <= *at && *at <= range.end);
        let mut gaps: Vec<_> = gaps;
        gaps.retain(|(at, _)| *at < bytes.len() && *at > 0 && !inside(at));
        gaps.sort_unstable();
        gaps.dedup_by_key(|(at, _)| *at);
        let output = push_all(&bytes, &settings, &pieces, &missing, &gaps);
        let lost: u64 = gaps.iter().map(|(_, length)| length).sum();
        check(&output.counts, &output, bytes.len() as u64 + lost);
    }
}
