//! Lost, late, duplicated and reordered numbers with known counts; the sums hold for any input.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Returns the report of numbers that arrive in this order; the first one is the lowest.
fn account(numbers: &[u64]) -> Report {
    let first = *numbers.iter().min().unwrap();
    let mut account = Account::new(HISTORY);
    account.open_segment(first);
    for number in numbers {
        let offset = number - first;
        match account.has_arrived(offset) {
            Some(true) => account.duplicates(1),
            _ => account.unique(offset, false),
        }
    }
    account.finish()
}

fn histogram<const N: usize>(pairs: [(u64, u64); N]) -> BTreeMap<u64, u64> {
    pairs.into_iter().collect()
}

/// RFC 4737, table 1 of section 7: packet 4 arrives after packet 8.
#[test]
fn one_packet_reordered_by_four() {
    let report = account(&[1, 2, 3, 5, 6, 7, 8, 4, 9, 10]);
    assert_eq!(report.counters.reordered, 1);
    assert_eq!(report.extents, histogram([(4, 1)]));
    assert_eq!(report.n_reordered, histogram([(4, 1)]));
    assert_eq!(report.reordering_gaps, histogram([]));
    assert_eq!(report.counters.lost, 0);
}

/// Table 2: a packet overtakes two, which are reordered with growing extents; only the first of them is n-reordered.
#[test]
fn two_packets_reordered_by_one_early_arrival() {
    let report = account(&[1, 2, 3, 4, 7, 5, 6, 8, 9, 10]);
    assert_eq!(report.counters.reordered, 2);
    assert_eq!(report.extents, histogram([(1, 1), (2, 1)]));
    assert_eq!(report.n_reordered, histogram([(1, 1)]));
    assert_eq!(report.reordering_gaps, histogram([]), "one discontinuity");
}

/// Table 3: three packets behind four.
#[test]
fn three_packets_reordered_together() {
    let report = account(&[1, 2, 3, 7, 8, 9, 10, 4, 5, 6, 11]);
    assert_eq!(report.counters.reordered, 3);
    assert_eq!(report.extents, histogram([(4, 1), (5, 1), (6, 1)]));
    assert_eq!(report.n_reordered, histogram([(4, 1)]));
}

/// Table 4: two discontinuities, seven arrivals apart, and three reordering-free runs of 5, 0 and 5.
#[test]
fn two_reordering_discontinuities() {
    let report = account(&[1, 2, 3, 6, 7, 4, 5, 8, 9, 10, 12, 13, 11, 14, 15, 16]);
    assert_eq!(report.counters.reordered, 3);
    assert_eq!(report.extents, histogram([(2, 2), (3, 1)]));
    assert_eq!(report.n_reordered, histogram([(2, 2)]));
    assert_eq!(report.reordering_gaps, histogram([(7, 1)]));
    let expected = FreeRuns {
        runs: 3,
        in_order: 13,
        squares: 50.0,
    };
    assert_eq!(report.free_runs, expected);
}

/// Section 5.3: of three reordered packets only the first is n-reordered.
#[test]
fn n_reordering_of_a_block() {
    let report = account(&[1, 2, 3, 7, 8, 9, 4, 5, 6]);
    assert_eq!(report.counters.reordered, 3);
    assert_eq!(report.n_reordered, histogram([(3, 1)]));
}

/// Section 4.6.4: 36 packets with three runs, of 11 each, or of 1, 1 and 31.
#[test]
fn reordering_free_runs() {
    let runs = |lengths: [u64; 3]| {
        // A number that was skipped at the start ends each run.
        let (mut numbers, mut next) = (Vec::new(), 4);
        for (left_out, length) in (1..).zip(lengths) {
            numbers.extend(next..next + length);
            numbers.push(left_out);
            next += length;
        }
        assert_eq!(numbers.len(), 36);
        account(&numbers).free_runs
    };
    let told = |runs, in_order, squares| FreeRuns {
        runs,
        in_order,
        squares,
    };
    assert_eq!(runs([11, 11, 11]), told(3, 33, 363.0));
    assert_eq!(runs([1, 1, 31]), told(3, 33, 963.0));
}

#[test]
fn duplicates_hide_no_loss() {
    let report = account(&[10, 11, 11, 11, 13, 12, 12, 16]);
    assert_eq!(
        report.counters,
        Counters {
            expected: 7,
            received: 8,
            unique: 5,
            lost: 2,
            duplicates: 3,
            reordered: 1,
            ..Counters::default()
        }
    );
    assert_eq!(report.runs, histogram([(2, 1)]));
    assert_eq!(
        report.segments,
        [Segment {
            first_seq: 10,
            last_seq: 16,
            intervals: vec![SequenceGap {
                first: 14,
                last: 15
            }],
        }]
    );
}

#[test]
fn numbers_wrap() {
    let mut account = Account::new(HISTORY);
    account.open_segment(u64::MAX - 1);
    for offset in [0, 1, 3] {
        account.unique(offset, false);
    }
    assert_eq!(account.ends(), Some((u64::MAX - 1, 1)));
    let report = account.finish();
    assert_eq!((report.counters.expected, report.counters.lost), (4, 1));
    assert_eq!(
        report.segments[0].intervals,
        [SequenceGap { first: 0, last: 0 }]
    );
}

#[test]
fn segments_add_up() {
    let mut account = Account::new(HISTORY);
    account.open_segment(100);
    account.unique(0, false);
    account.unique(2, false);
    account.open_segment(0);
    account.unique(0, false);
    account.ring_full(1);
    assert_eq!(account.ends(), Some((100, 1)));
    let report = account.finish();
    let counters = report.counters;
    assert_eq!(
        (counters.expected, counters.unique, counters.lost),
        (5, 3, 2)
    );
    assert_eq!(
        (counters.received, counters.ring_full, counters.restarts),
        (4, 1, 1)
    );
    assert_eq!(report.segments.len(), 2);
}

#[test]
fn a_copy_that_finds_room_takes_a_refusal_back() {
    let mut account = Account::new(HISTORY);
    account.open_segment(0);
    account.unique(0, false);
    account.ring_full(1);
    account.ring_full(1);
    account.ring_full(2);
    let sums = |account: &Account| {
        let c = account.counters();
        assert_eq!(c.received, c.unique + c.duplicates + c.ring_full);
        assert_eq!(c.expected, c.unique + c.lost);
        (c.unique, c.lost, c.ring_full, c.duplicates, c.reordered)
    };
    assert_eq!(sums(&account), (1, 2, 2, 1, 0));
    account.unique(1, true);
    assert_eq!(sums(&account), (2, 1, 1, 2, 0));
}

#[test]
fn a_late_datagram_is_taken_back_from_loss_while_it_is_remembered() {
    let history = 1 << 16;
    let mut account = Account::new(history);
    account.open_segment(0);
    account.unique(0, false);
    account.unique(3, false);
    account.unique(history - 1, false);
    account.unique(2, true);
    assert_eq!(account.has_arrived(2), Some(true));
    account.unique(2 * history, false);
    assert_eq!(account.has_arrived(1), None);
    let report = account.finish();
    let intervals = &report.segments[0].intervals;
    let gap = |first, last| SequenceGap { first, last };
    let expected = [
        gap(1, 1),
        gap(4, history - 2),
        gap(history, 2 * history - 1),
    ];
    assert_eq!(intervals, &expected);
    assert_eq!(
        report.runs,
        histogram([(1, 1), (history - 5, 1), (history, 1)])
    );
}

#[test]
fn lists_are_bounded_and_counts_are_not() {
    let mut account = Account::new(64);
    account.open_segment(0);
    let arrivals = MAX_INTERVALS as u64 + 11;
    for number in 0..arrivals {
        account.unique(2 * number, false);
    }
    for base in 0..MAX_SEGMENTS as u64 {
        account.open_segment(base);
        account.unique(0, false);
    }
    assert_eq!(account.ends(), Some((0, MAX_SEGMENTS as u64 - 1)));
    let report = account.finish();
    assert_eq!(report.counters.lost, arrivals - 1);
    assert_eq!(report.segments[0].intervals.len(), MAX_INTERVALS);
    assert_eq!(report.intervals_not_listed, 10);
    assert_eq!(report.segments.len(), MAX_SEGMENTS);
    assert_eq!(report.segments_not_listed, 1);
}

/// Intervals of a sequence that is not listed are not listed either, and leave room for others.
#[test]
fn intervals_are_listed_with_their_sequence_or_counted() {
    let mut account = Account::new(64);
    for base in 0..MAX_SEGMENTS as u64 - 1 {
        account.open_segment(base);
        account.unique(0, false);
    }
    let many = MAX_INTERVALS as u64 * 3 / 5;
    for _ in 0..3 {
        account.open_segment(7);
        for number in 0..=many {
            account.unique(2 * number, false);
        }
    }
    let report = account.finish();
    assert_eq!(report.segments.len(), MAX_SEGMENTS);
    assert_eq!(report.segments_not_listed, 2);
    let last = report.segments.last().unwrap();
    assert_eq!(last.intervals.len() as u64, many);
    assert_eq!(report.intervals_not_listed, 2 * many);
    assert_eq!(report.counters.lost, 3 * many);
}

#[test]
fn a_number_that_was_used_is_expected() {
    let mut account = Account::new(HISTORY);
    account.open_segment(0);
    account.unique(0, false);
    account.used(4);
    account.used(2);
    let counters = account.counters();
    assert_eq!((counters.expected, counters.lost), (5, 4));
}

#[test]
fn loss_is_attributed_by_location() {
    let told = |lost, ring, drops, per_drop| {
        let Attribution {
            host_lost,
            network_lost,
            unattributed,
            host_lost_max,
        } = attribute(lost, ring, drops, per_drop);
        assert_eq!(host_lost + network_lost + unattributed, lost);
        assert_eq!(host_lost_max, host_lost + unattributed);
        (host_lost, network_lost, unattributed)
    };
    assert_eq!(told(10, 0, 0, 44), (0, 10, 0));
    assert_eq!(told(10, 0, 4, 1), (4, 6, 0));
    assert_eq!(told(100, 5, 2, 44), (7, 7, 86));
    assert_eq!(told(100, 0, 5, 44), (5, 0, 95));
    assert_eq!(told(3, 0, 9, 1), (3, 0, 0));
    assert_eq!(told(u64::MAX, 1, u64::MAX, u64::MAX), (u64::MAX, 0, 0));
}

proptest! {
    #[test]
    fn sums_hold_and_agree_with_a_set(numbers in proptest::collection::vec(0u64..300, 1..400)) {
        let report = account(&numbers);
        let set: BTreeSet<u64> = numbers.iter().copied().collect();
        let c = &report.counters;
        prop_assert_eq!(c.unique, set.len() as u64);
        prop_assert_eq!(c.expected, set.last().unwrap() - set.first().unwrap() + 1);
        prop_assert_eq!(c.expected, c.unique + c.lost);
        prop_assert_eq!(c.received, c.unique + c.duplicates + c.ring_full);
        let in_runs: u64 = report.runs.iter().map(|(length, count)| length * count).sum();
        prop_assert_eq!(in_runs, c.lost);
        let listed: u64 = report.segments[0].intervals.iter().map(|gap| gap.last - gap.first + 1).sum();
        prop_assert_eq!(listed, c.lost);
    }

    /// Compares with a slow, literal implementation of the RFC's definitions.
    #[test]
    fn reordering_is_the_rfcs(
        numbers in Just((0u64..80).collect::<Vec<_>>()).prop_shuffle(),
        reach in 1usize..80,
        lost in 0usize..40,
    ) {
        // From local reordering to complete disorder, with loss.
        let mut numbers: Vec<u64> = numbers.into_iter().skip(lost).collect();
        numbers.chunks_mut(reach).for_each(<[u64]>::sort_unstable);
        let report = account(&numbers);
        let [mut extents, mut depths, mut gaps] = [(); 3].map(|()| BTreeMap::new());
        let (mut discontinuities, mut runs) = (BTreeSet::new(), vec![0u64]);
        for (i, number) in numbers.iter().enumerate() {
            let Some(j) = numbers[..i].iter().position(|before| before > number) else {
                *runs.last_mut().unwrap() += 1;
                continue;
            };
            runs.push(0);
            *extents.entry((i - j) as u64).or_default() += 1;
            if let Some(before) = discontinuities.range(..j).next_back()
                && !discontinuities.contains(&j)
            {
                *gaps.entry((j - before) as u64).or_default() += 1;
            }
            discontinuities.insert(j);
            let n = numbers[..i].iter().rev().take_while(|before| *before > number).count();
            if n > 0 {
                *depths.entry(n.min(64) as u64).or_default() += 1;
            }
        }
        let in_order = runs.iter().sum();
        runs.pop();
        let free_runs = FreeRuns {
            runs: runs.len() as u64,
            in_order,
            squares: runs.iter().map(|run| run * run).sum::<u64>() as f64,
        };
        prop_assert_eq!(report.counters.reordered, runs.len() as u64);
        prop_assert_eq!(report.extents, extents);
        prop_assert_eq!(report.n_reordered, depths);
        prop_assert_eq!(report.reordering_gaps, gaps);
        prop_assert_eq!(report.free_runs, free_runs);
    }
}
