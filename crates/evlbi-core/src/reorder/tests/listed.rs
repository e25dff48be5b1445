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
