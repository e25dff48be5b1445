//! Selected stations and threads are output, filled and counted as if they were alone in the stream.

use evlbi_core::deframe::{Frame, Partial, Selected, Settings};
use proptest::prelude::*;

use crate::deframe::loss::{bursts, lost, plans, settings, slots};
use crate::deframe::stream::{Path, carry};

proptest! {
    #[test]
    fn selected_streams_are_output_as_with_all_others(
        (plan, slot) in plans().prop_flat_map(|plan| {
            let slots = slots(plan.frame_length);
            (Just(plan), slots)
        }),
        bursts in bursts(8 * 60),
        gap_from in prop_oneof![Just(usize::MAX), 3usize..20],
        max_new in 1usize..50,
        keep: bool,
        (station, thread) in (prop::option::of(0usize..8), prop::option::of(0u16..6)),
        seed: u64,
    ) {
        let stream = plan.make();
        let lost = lost(&bursts, 2 * plan.keys.len(), slot, plan.frame_length);
        let path = Path { slot, lost, gap_from, max_new, seed };
        let partial = if keep { Partial::Keep } else { Partial::Whole };
        let settings = settings(stream.rate(), partial);
        let selected = Selected {
            stations: station.map(|number| vec![plan.keys[number % plan.keys.len()].station]),
            threads: thread.into_iter().collect(),
        };
        let all = carry(&stream, &path, settings.clone());
        let settings = Settings { selected: selected.clone(), ..settings };
        let part = carry(&stream, &path, settings);
        let ours: Vec<&Frame> = all.frames.iter().filter(|frame| selected.has(frame.key)).collect();
        let bytes: Vec<u8> = ours.iter().flat_map(|frame| &all.bytes[frame.bytes.clone()]).copied().collect();
        prop_assert!(part.bytes == bytes);
        let of = |frame: &Frame| (frame.key, frame.time, frame.state);
        let (one, other): (Vec<_>, Vec<_>) = (
            ours.iter().map(|frame| of(frame)).collect(),
            part.frames.iter().map(of).collect(),
        );
        prop_assert_eq!(one, other);
        let (counts, total) = (&part.counts, &all.counts);
        prop_assert_eq!(counts.frames as usize, ours.len());
        prop_assert_eq!(counts.frames + counts.unselected_frames, total.frames);
        prop_assert_eq!(counts.bytes + counts.unselected_bytes, total.bytes);
        prop_assert_eq!(counts.whole + counts.lost_frames + counts.partial, counts.frames);
        // Gaps have the places of their frames in the output.
        let runs = all.gaps.iter().filter(|gap| selected.has(Some(gap.key)));
        let runs: Vec<_> = runs.map(|gap| (gap.key, gap.start, gap.frames, gap.bytes.clone())).collect();
        let found: Vec<_> = part.gaps.iter().map(|gap| (gap.key, gap.start, gap.frames, gap.bytes.clone())).collect();
        prop_assert_eq!(found, runs);
        for gap in &part.gaps {
            let frame = part.frames.iter().find(|frame| (frame.key, frame.time) == (Some(gap.key), Some(gap.start)));
            prop_assert_eq!(gap.first_byte, frame.map(|frame| frame.bytes.start as u64));
        }
    }
}
