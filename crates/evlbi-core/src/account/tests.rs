use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The report of a stream whose numbers arrive in this order, the first one being the lowest.
fn account(numbers: &[u64]) -> Report {
    let first = *numbers.iter().min().unwrap();
    let mut account = Account::new();
    account.open_segment(first);
    for number in numbers {
        let offset = number - first;
        match account.has_arrived(offset) {
            Some(true) => account.duplicate(),
            _ => account.unique(offset, false),
        }
    }
    account.finish()
}

fn histogram<const N: usize>(pairs: [(u64, u64); N]) -> BTreeMap<u64, u64> {
    pairs.into_iter().collect()
}

/// RFC 4737, section 7.1: packet 4 arrives after packet 8.
#[test]
fn one_packet_reordered_by_four() {
    let report = account(&[1, 2, 3, 5, 6, 7, 8, 4, 9, 10]);
    assert_eq!(report.counters.reordered, 1);
    assert_eq!(report.extents, histogram([(4, 1)]));
    assert_eq!(report.n_reordered, histogram([(4, 1)]));
    assert_eq!(report.counters.lost, 0);
}

/// Section 7.2: a packet overtakes two, which are reordered with extents that grow; only the
/// first of them is n-reordered.
#[test]
fn two_packets_reordered_by_one_early_arrival() {
    let report = account(&[1, 2, 3, 4, 7, 5, 6, 8, 9, 10]);
    assert_eq!(report.counters.reordered, 2);
    assert_eq!(report.extents, histogram([(1, 1), (2, 1)]));
    assert_eq!(report.n_reordered, histogram([(1, 1)]));
}

/// Section 7.3: three packets behind four.
#[test]
fn three_packets_reordered_together() {
    let report = account(&[1, 2, 3, 7, 8, 9, 10, 4, 5, 6, 11]);
    assert_eq!(report.counters.reordered, 3);
    assert_eq!(report.extents, histogram([(4, 1), (5, 1), (6, 1)]));
    assert_eq!(report.n_reordered, histogram([(4, 1)]));
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
    let mut account = Account::new();
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
    let mut account = Account::new();
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
fn loss_is_told_by_place() {
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

    /// The RFC's definitions, word by word and slowly.
    #[test]
    fn reordering_is_the_rfcs(numbers in Just((0u64..60).collect::<Vec<_>>()).prop_shuffle()) {
        let report = account(&numbers);
        let (mut reordered, mut extents, mut depths) = (0, BTreeMap::new(), BTreeMap::new());
        for (i, number) in numbers.iter().enumerate() {
            let Some(j) = numbers[..i].iter().position(|before| before > number) else { continue };
            reordered += 1;
            *extents.entry((i - j) as u64).or_default() += 1;
            let n = numbers[..i].iter().rev().take_while(|before| *before > number).count() as u64;
            if n > 0 {
                *depths.entry(n).or_default() += 1;
            }
        }
        prop_assert_eq!(report.counters.reordered, reordered);
        prop_assert_eq!(report.extents, extents);
        prop_assert_eq!(report.n_reordered, depths);
    }
}
