//! Compares the window with the numbers that were sent, and with slow oracles.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Effect of the path on a datagram.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Lost,
    /// Arrives this many places late.
    Delayed(u64),
    /// Arrives again this many places later.
    Doubled(u64),
    /// Is lost with this many after it, after which some arrive undisturbed.
    Outage(u64),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        12 => Just(Fate::Arrives),
        2 => Just(Fate::Lost),
        2 => (1u64..30).prop_map(Fate::Delayed),
        2 => (1u64..30).prop_map(Fate::Doubled),
        1 => (8u64..900).prop_map(Fate::Outage),
    ];
    proptest::collection::vec(fate, 1..400)
}

/// Numbers, counted from the first sent, in the order in which they arrive.
fn arrivals(fates: &[Fate]) -> Vec<u64> {
    let mut arrivals: Vec<(u64, u64)> = Vec::new();
    let mut number = 0;
    for fate in fates {
        match fate {
            Fate::Arrives => arrivals.push((number, number)),
            Fate::Lost => {}
            Fate::Delayed(later) => arrivals.push((number + later, number)),
            Fate::Doubled(later) => {
                arrivals.push((number, number));
                arrivals.push((number + later, number));
            }
            Fate::Outage(long) => {
                number += long;
                arrivals.extend((number..number + 3).map(|number| (number, number)));
                number += 2;
            }
        }
        number += 1;
    }
    arrivals.sort_by_key(|(place, _)| *place);
    arrivals.into_iter().map(|(_, number)| number).collect()
}

/// Expected result for these arrivals.
fn truth(arrivals: &[u64]) -> (BTreeSet<u64>, Vec<(u64, u64)>) {
    let unique: BTreeSet<u64> = arrivals.iter().copied().collect();
    let (mut intervals, mut before) = (Vec::new(), None);
    for number in &unique {
        if let Some(before) = before
            && number - before > 1
        {
            intervals.push((before + 1, number - 1));
        }
        before = Some(*number);
    }
    (unique, intervals)
}

/// NextExp, step by step. A datagram that is kept first counts as arriving when it is confirmed.
fn reordered(taken: impl IntoIterator<Item = u64>) -> u64 {
    let mut next = 0;
    let behind = taken.into_iter().filter(|number| {
        let behind = *number < next;
        next = next.max(number + 1);
        behind
    });
    behind.count() as u64
}

proptest! {
    /// Whatever the path does, every number of the report is right, and each datagram that was not too late is at the position of
    /// its number, gaps counted.
    #[test]
    fn the_report_matches_the_ground_truth(
        fates in fates(),
        first in prop_oneof![any::<u64>(), Just(u64::MAX - 100), Just(0)],
        window in 8u64..64,
    ) {
        let arrivals = arrivals(&fates);
        prop_assume!(!arrivals.is_empty());
        let capacity = 1 << 20;
        let mut recording = Recording::new(Settings { window, capacity, ..settings() });
        // As a caller that waits for the first few would, if none is much too late.
        let lowest = arrivals.iter().min().unwrap();
        let begin = *arrivals.iter().take(8).min().unwrap().min(&(lowest + window));
        recording.reorder.begin(begin.wrapping_add(first), 0);
        recording.receive_all(arrivals.iter().map(|number| number.wrapping_add(first)));
        let report = recording.end();
        let (unique, intervals) = truth(&arrivals);
        let expected = unique.last().unwrap() - unique.first().unwrap() + 1;
        let counters = Counters {
            expected,
            received: arrivals.len() as u64,
            unique: unique.len() as u64,
            lost: expected - unique.len() as u64,
            duplicates: (arrivals.len() - unique.len()) as u64,
            reordered: reordered(recording.taken.iter().map(|number| number.wrapping_sub(first))),
            late: report.counters.late,
            ..Counters::default()
        };
        prop_assert_eq!(&report.counters, &counters);
        let told = report.segments[0].intervals.iter();
        let told: Vec<_> = told
            .map(|gap| (gap.first.wrapping_sub(first), gap.last.wrapping_sub(first)))
            .collect();
        prop_assert_eq!(told, intervals);
        prop_assert_eq!(recording.placed.len() as u64, counters.unique - counters.late);
        for (position, number) in &recording.placed {
            let gaps = recording.events.iter().filter(|(before, _)| before <= position);
            let missing: u64 = gaps
                .map(|(_, event)| match event {
                    Event::Gap(missing) => *missing,
                    Event::Restart(_) => panic!("no restart"),
                })
                .sum();
            prop_assert_eq!(number.wrapping_sub(first), begin + position + missing);
        }
    }

    /// The rules of releasing, slot by slot.
    #[test]
    fn slots_are_released_by_the_rules(
        steps in proptest::collection::vec((0u64..12, 0u64..20), 1..300),
    ) {
        let hold = 64;
        let mut reorder = Reorder::new(Settings { hold: Nanos(hold), ..settings() });
        reorder.begin(1, 0);
        let (mut came, mut released, mut now) = (BTreeMap::new(), 0u64, 0);
        for (ahead, pause) in steps {
            now += pause;
            let place = (released + ahead).saturating_sub(4);
            if let Verdict::Place(position) = reorder.offer(place + 1, released) {
                prop_assert_eq!(position, place);
                came.insert(position, now);
            }
            let head = came.last_key_value().map_or(0, |(position, _)| position + 1);
            while released < head {
                let beyond = head - released > settings().window;
                let behind = came.range(released + 1..).any(|(_, since)| since + hold <= now);
                if !came.contains_key(&released) && !beyond && !behind {
                    break;
                }
                released += 1;
            }
            prop_assert_eq!(reorder.advance(Nanos(now)), released);
        }
    }

    /// No input breaks the sums or assigns a slot twice, whether or not the ring is full.
    #[test]
    fn sums_hold_whatever_comes(
        first in any::<u64>(),
        steps in proptest::collection::vec(anything(), 1..500),
        stall in 0usize..64,
        pause in 0u64..30,
    ) {
        let mut recording = Recording::new(settings());
        let (mut number, mut offered) = (first, 0u64);
        for (count, (onward, aside, copies)) in steps.into_iter().enumerate() {
            number = number.wrapping_add_signed(onward);
            recording.frees = count % 64 >= stall;
            for copy in 0..copies {
                recording.receive(number.wrapping_add_signed(aside).wrapping_add(copy));
                offered += 1;
            }
            recording.later(pause);
        }
        let report = recording.end();
        let c = &report.counters;
        prop_assert_eq!(c.received + c.foreign_sequence, offered);
        prop_assert_eq!(recording.placed.len() as u64, c.unique - c.late);
    }
}

/// A step forward, one aside, and how many numbers arrive from there.
fn anything() -> impl Strategy<Value = (i64, i64, u64)> {
    prop_oneof![
        20 => Just((1, 0, 1)),
        4 => (2i64..6).prop_map(|skip| (skip, 0, 1)),
        4 => (-12i64..0).prop_map(|back| (0, back, 1)),
        1 => Just((0, 1 << 40, 1)),
        1 => (9i64..900).prop_map(|jump| (jump, 0, 1)),
        1 => (any::<i64>(), 1u64..100).prop_map(|(jump, count)| (jump, 0, count)),
        1 => (-500i64..0, 1u64..100).prop_map(|(back, count)| (0, back, count)),
    ]
}
