//! Numbers that were released without having arrived.

use proptest::prelude::*;

use super::super::*;

#[test]
fn what_has_not_arrived_is_listed_once_it_is_released() {
    let mut reorder = Reorder::new(Settings {
        window: 8,
        hold: Nanos(1000),
        capacity: 64,
        max_gap: MAX_GAP,
    });
    assert_eq!(reorder.list_missing(|_, _| unreachable!()), None);
    let mut listed = Vec::new();
    for (at, number) in [(0, 1), (1, 2), (2, 5), (3, 6), (4, 4), (5, 20)] {
        reorder.offer(number, 0);
        reorder.advance(Nanos(at));
        reorder.list_missing(|first, end| listed.push((first, end)));
    }
    // 3 is still waited for; 20 is beyond the window, and a single stray proves nothing.
    assert_eq!(listed, []);
    reorder.advance(Nanos(2000));
    assert_eq!(
        reorder.list_missing(|first, end| listed.push((first, end))),
        Some(7)
    );
    assert_eq!(listed, [(3, 4)]);
}

#[test]
fn shed_numbers_are_neither_expected_nor_lost() {
    let mut reorder = Reorder::new(Settings {
        window: 8,
        hold: Nanos(1000),
        capacity: 64,
        max_gap: MAX_GAP,
    });
    reorder.shed(0, 5);
    for number in [1, 2, 6, 7] {
        reorder.offer(number, 0);
    }
    reorder.shed(0, 5);
    let counts = |reorder: &Reorder| (reorder.counters().expected, reorder.counters().lost);
    assert_eq!(counts(&reorder), (5, 1));
    // After the last one that arrived, too.
    reorder.shed(8, 10);
    assert_eq!((counts(&reorder), reorder.heard()), ((5, 1), Some(8)));
    reorder.offer(11, 0);
    assert_eq!(counts(&reorder), (7, 2));
    let report = reorder.finish();
    let gaps = report.segments[0].intervals.iter();
    let gaps: Vec<_> = gaps.map(|gap| (gap.first, gap.last)).collect();
    assert_eq!(gaps, [(5, 5), (10, 10)]);
}

#[test]
fn numbers_without_room_were_heard() {
    let mut reorder = Reorder::new(Settings {
        window: 8,
        hold: Nanos(1000),
        capacity: 16,
        max_gap: MAX_GAP,
    });
    for number in 0..20 {
        reorder.offer(number, 0);
    }
    reorder.advance(Nanos(0));
    assert_eq!(reorder.counters().ring_full, 4);
    assert_eq!(
        (reorder.current(), reorder.heard()),
        (Some((0, 16)), Some(20))
    );
}

proptest! {
    /// In any order, with losses and copies, over the limits of words: what is listed never arrives in time, and the rest does.
    #[test]
    fn listed_numbers_are_those_not_placed(
        arrivals in proptest::collection::vec((1u64..5, 0u64..20, 1usize..3), 1..200), start: u64,
    ) {
        let settings = Settings { window: 16, hold: Nanos(50), capacity: 1 << 16, max_gap: MAX_GAP };
        let mut reorder = Reorder::new(settings);
        reorder.begin(start, 0);
        let (mut placed, mut listed) = (std::collections::BTreeSet::new(), Vec::new());
        let mut newest = 0;
        for (at, (step, back, copies)) in (0..).zip(arrivals) {
            newest += step;
            for number in [newest, newest.saturating_sub(back)] {
                for _ in 0..copies {
                    if let Verdict::Place(_) = reorder.offer(start.wrapping_add(number), 0) {
                        placed.insert(number);
                    }
                }
            }
            reorder.advance(Nanos(at * 10));
            reorder.list_missing(|first, end| {
                listed.extend((first.wrapping_sub(start)..end.wrapping_sub(start)).map(|it| (at, it)));
            });
        }
        reorder.flush();
        reorder.list_missing(|first, end| {
            listed.extend((first.wrapping_sub(start)..end.wrapping_sub(start)).map(|it| (1000, it)));
        });
        let numbers: Vec<u64> = listed.iter().map(|(_, number)| *number).collect();
        let missing: Vec<u64> = (0..=newest).filter(|number| !placed.contains(number)).collect();
        prop_assert_eq!(numbers, missing);
    }
}
