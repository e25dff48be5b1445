//! Receiver's account of a stream whose sender reports its size: exact loss, including head and tail, reordering, duplicates, and
//! distributions of times.

use std::collections::BTreeMap;

use evlbi_core::account::{Account, Distribution, HISTORY, Report, Summary};
use evlbi_core::time::{Nanos, apart, clamped};
use serde::{Deserialize, Serialize};

/// Counts the datagrams of one stream as they arrive.
#[derive(Debug)]
pub struct Tally {
    account: Account,
    /// Maximum number of datagrams: a number beyond does not belong to this stream.
    count: u64,
    arrivals: Option<Arrivals>,
    gaps: Distribution,
    delays: Distribution,
    variations: Distribution,
    timeout: Nanos,
    /// The final report, as far as known.
    told: Tallied,
}

/// Arrivals so far.
#[derive(Clone, Copy, Debug)]
struct Arrivals {
    first: u64,
    last: u64,
    /// Apparent delay of the first datagram, which includes the clock offset.
    origin: i128,
    /// Sequence number and delay of the last datagram that was not a duplicate.
    before: (u64, i64),
    /// Minimum delay so far.
    shortest: i64,
    /// Of the arrived datagrams, those that left first and last: number and departure.
    departed: [(u64, u64); 2],
}

/// Final report of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tallied {
    /// Datagrams that the sender sent: unique + lost.
    pub sent: u64,
    /// Loss (RFC 7680), duplicates and reordering (RFC 4737), with their places in the sequence.
    pub account: Report,
    /// Of the unique, those whose delay exceeds the minimum delay so far by more than the loss timeout; RFC 7680 counts them as lost.
    pub late: u64,
    /// Number of distances, in datagrams from the start of a run of loss to that of the next, by distance.
    pub loss_distances: BTreeMap<u64, u64>,
    /// Datagrams with the key of this stream and an impossible number.
    pub foreign: u64,
    /// Time from the first arrival to the last, in nanoseconds.
    pub arrivals_ns: u64,
    /// Of the arrived datagrams, those that left first and last: number, and departure in nanoseconds of the sender's clock.
    pub departed: Option<[(u64, u64); 2]>,
    /// Times between arrivals, duplicates included, in nanoseconds.
    pub gaps: Option<Summary>,
    /// One-way delays (RFC 7679) in nanoseconds, by the two hosts' own clocks, minus that of the first datagram.
    pub delays: Option<Summary>,
    /// Apparent delay of the first datagram, which includes the clock offset.
    pub first_delay_ns: f64,
    /// Delays above the minimum (RFC 5481, PDV), in which a constant clock offset cancels: median, 99 % and 99.9 %, in nanoseconds.
    pub pdv: Option<[i64; 3]>,
    /// Delay of a datagram minus that of the previous one (RFC 3393, IPDV), for consecutive arrivals.
    pub ipdv: Option<Summary>,
    /// Its smoothed magnitude (RFC 3550, section 6.4.1), in nanoseconds.
    pub jitter: f64,
}

impl Tally {
    /// Creates an account of a stream of up to `count` datagrams with this loss timeout; with a `width`, gaps are also counted in bins of
    /// that many nanoseconds.
    pub fn new(count: u64, timeout: Nanos, width: Option<u64>) -> Tally {
        // The history needs no more numbers than there are.
        let mut account = Account::new(count.clamp(1, HISTORY));
        account.open_segment(0);
        Tally {
            account,
            count,
            arrivals: None,
            gaps: Distribution::new(width),
            delays: Distribution::new(None),
            variations: Distribution::new(None),
            timeout,
            told: Tallied::default(),
        }
    }

    /// Counts an arrival, in nanoseconds of the local clock; it left at `departed`, in nanoseconds of the remote clock. Returns whether it
    /// is the first with its number.
    #[inline]
    pub fn arrived(&mut self, sequence: u64, departed: u64, arrived: u64) -> bool {
        let is_known = self.account.has_arrived(sequence);
        let Some(is_known) = is_known.filter(|_| sequence < self.count) else {
            // A datagram so late that it may be a duplicate counts as foreign, too.
            self.told.foreign += 1;
            return false;
        };
        let seems = i128::from(arrived) - i128::from(departed);
        let Some(all) = &mut self.arrivals else {
            // Earlier numbers are lost, however long the stream gets.
            self.account.used(0);
            self.account.unique(sequence, false);
            self.delays.add(0);
            self.arrivals = Some(Arrivals {
                first: arrived,
                last: arrived,
                origin: seems,
                before: (sequence, 0),
                shortest: 0,
                departed: [(sequence, departed); 2],
            });
            return true;
        };
        self.gaps.add(apart(arrived, all.last));
        all.last = arrived;
        if is_known {
            self.account.duplicates(1);
            return false;
        }
        let delay = clamped(seems - all.origin);
        all.shortest = all.shortest.min(delay);
        let [first, last] = &mut all.departed;
        if sequence < first.0 {
            *first = (sequence, departed);
        } else if sequence > last.0 {
            *last = (sequence, departed);
        }
        let is_late = delay.abs_diff(all.shortest) > self.timeout.0;
        self.told.late += u64::from(is_late);
        self.account.unique(sequence, false);
        self.delays.add(delay);
        let (before, its) = std::mem::replace(&mut all.before, (sequence, delay));
        if before.checked_add(1) == Some(sequence) {
            let variation = delay.saturating_sub(its);
            self.variations.add(variation);
            let jitter = &mut self.told.jitter;
            *jitter += (variation.unsigned_abs() as f64 - *jitter) / 16.0;
        }
        true
    }

    /// Ends the account, with the number of datagrams that the sender sent.
    pub fn finish(mut self, sent: u64) -> Tallied {
        if sent > 0 {
            self.account.used(0);
            self.account.used(sent - 1);
        }
        let account = self.account.finish();
        let gaps = account.segments.iter().flat_map(|one| &one.intervals);
        let begins: Vec<u64> = gaps.map(|gap| gap.first).collect();
        let mut loss_distances = BTreeMap::new();
        for [one, next] in begins.array_windows() {
            *loss_distances.entry(next - one).or_default() += 1;
        }
        let delays = self.delays.summary();
        let all = self.arrivals;
        Tallied {
            sent: account.counters.expected,
            loss_distances,
            arrivals_ns: all.map_or(0, |all| all.last.saturating_sub(all.first)),
            departed: all.map(|all| all.departed),
            gaps: self.gaps.summary(),
            first_delay_ns: all.map_or(0.0, |all| all.origin as f64),
            pdv: delays.as_ref().map(|delays| {
                [delays.median, delays.p99, delays.p999].map(|of| of.saturating_sub(delays.min))
            }),
            delays,
            ipdv: self.variations.summary(),
            account,
            ..self.told
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const APART: u64 = 12_500;

    /// Counts datagrams that left every 12.5 us and took 7.5 ms; the local clock is an hour ahead.
    fn tally(numbers: impl IntoIterator<Item = u64>, sent: u64) -> Tallied {
        let mut tally = Tally::new(sent, Nanos::SECOND, Some(1_000));
        for (place, number) in numbers.into_iter().enumerate() {
            let departed = 1_000_000_000 + number * APART;
            let arrived = 3_601_007_500_000 + place as u64 * APART;
            tally.arrived(number, departed, arrived);
        }
        tally.finish(sent)
    }

    #[test]
    fn a_clean_stream() {
        let all = tally(0..1000, 1000);
        let counters = &all.account.counters;
        assert_eq!((all.sent, counters.unique, counters.lost), (1000, 1000, 0));
        assert_eq!(all.arrivals_ns, 999 * APART);
        let gaps = all.gaps.unwrap();
        assert_eq!(
            (gaps.count, gaps.min, gaps.max, gaps.sigma),
            (999, 12_500, 12_500, 0.0)
        );
        assert_eq!(gaps.bins, [(12_000, 999)].into());
        assert_eq!(all.first_delay_ns, 3_600_007_500_000.0);
        assert_eq!((all.pdv, all.jitter), (Some([0, 0, 0]), 0.0));
        assert_eq!(all.ipdv.unwrap().count, 999);
    }

    #[test]
    fn one_in_a_thousand_is_lost() {
        let all = tally((0..100_000).filter(|number| number % 1000 != 999), 100_000);
        assert_eq!(all.account.counters.lost, 100);
        assert_eq!(all.account.runs, [(1, 100)].into());
        assert_eq!(all.loss_distances, [(1000, 99)].into());
    }

    #[test]
    fn head_and_tail_are_lost_too() {
        let all = tally(10..90, 100);
        let counters = &all.account.counters;
        assert_eq!((all.sent, counters.unique, counters.lost), (100, 80, 20));
        assert_eq!(all.account.runs, [(10, 2)].into());
        let none = tally(std::iter::empty(), 100);
        assert_eq!((none.sent, none.account.counters.lost), (100, 100));
        assert_eq!((none.gaps, none.delays), (None, None));
        assert_eq!(tally(std::iter::empty(), 0).sent, 0);
    }

    #[test]
    fn a_long_stream_keeps_its_head() {
        let count = 5_000_000;
        assert!(count > HISTORY + 100);
        let all = tally(100..count, count);
        let counters = &all.account.counters;
        assert_eq!((all.sent, counters.lost), (count, 100));
        assert_eq!(all.account.runs, [(100, 1)].into());
    }

    #[test]
    fn neither_duplicates_nor_foreign_datagrams_hide_a_loss() {
        let mut numbers: Vec<u64> = (0..100).filter(|number| *number != 50).collect();
        numbers.extend([10, 10, 100, 200]);
        numbers.swap(30, 31);
        let all = tally(numbers, 100);
        let counters = &all.account.counters;
        assert_eq!((counters.lost, counters.duplicates, all.foreign), (1, 2, 2));
        assert_eq!(counters.reordered, 1);
        assert_eq!(all.sent, counters.unique + counters.lost);
    }

    #[test]
    fn variation_is_that_of_neighbours() {
        let mut tally = Tally::new(10, Nanos(200), None);
        // Delays 100, 150, 130; the fourth is lost; 400.
        for (number, delay) in [(0u64, 100), (1, 150), (2, 130), (4, 400)] {
            tally.arrived(number, number * 1000, number * 1000 + delay);
        }
        let all = tally.finish(5);
        let ipdv = all.ipdv.unwrap();
        assert_eq!((ipdv.count, ipdv.min, ipdv.max), (2, -20, 50));
        assert_eq!(all.jitter, 50.0 / 16.0 + (20.0 - 50.0 / 16.0) / 16.0);
        assert_eq!(all.pdv.unwrap()[2], 300);
        // The last took 300 longer than the first; the loss timeout is 200.
        assert_eq!(all.late, 1);
    }

    proptest! {
        #[test]
        fn the_sums_hold(
            arrivals in proptest::collection::vec((0u64..150, any::<u64>(), any::<u64>()), 0..400), sent in 0u64..150,
        ) {
            let mut tally = Tally::new(sent, Nanos(1000), Some(1));
            for (number, departed, arrived) in &arrivals {
                tally.arrived(*number, *departed, *arrived);
            }
            let all = tally.finish(sent);
            let counters = &all.account.counters;
            prop_assert_eq!(all.sent, sent);
            prop_assert_eq!(sent, counters.unique + counters.lost);
            prop_assert_eq!(counters.received, counters.unique + counters.duplicates);
            prop_assert_eq!(counters.received + all.foreign, arrivals.len() as u64);
            let in_runs: u64 = all.account.runs.iter().map(|(length, count)| length * count).sum();
            prop_assert_eq!(in_runs, counters.lost);
        }
    }
}
