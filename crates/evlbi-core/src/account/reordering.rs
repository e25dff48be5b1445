//! Reordering as defined by RFC 4737.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::distribution::Distribution;
use super::histogram::Histogram;

/// Maximum number of runs of arrivals that are remembered to find the extent of a reordered packet. If a packet is displaced by
/// more runs, its extent is underestimated.
const MAX_RUNS: usize = 65_536;
/// Number of arrivals that are remembered for n-reordering; a larger n counts as this one.
const MAX_N: u64 = 64;

/// Reordering of arrivals, first copies only, in order of arrival.
#[derive(Clone, Debug, Default)]
pub struct Reordering {
    /// NextExp of the RFC: one more than the highest number.
    next_expected: u64,
    /// Number of arrivals so far.
    arrivals: u64,
    /// Packets whose number was higher than all before, as runs in which arrival and number grow together. The earliest packet
    /// before which another should have arrived always starts a run.
    highest: VecDeque<Run>,
    /// Reordered arrivals and their numbers, oldest first; see [`Reordering::depth`].
    recent: VecDeque<(u64, u64)>,
    /// Arrival of the latest reordering discontinuity (section 4.5.3).
    discontinuity: Option<u64>,
    /// Arrival that started the reordering-free run.
    free_since: u64,
    /// Results, mostly of the closed sequences.
    pub found: Found,
}

/// Results of all sequences.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Extents (section 4.2).
    pub extents: Histogram,
    pub extent_sizes: Distribution,
    /// Largest n for which each packet is n-reordered (section 5.3).
    pub n_reordered: Histogram,
    /// Gaps between reordering discontinuities (section 4.5.4).
    pub gaps: Histogram,
    pub free_runs: FreeRuns,
    /// Exact value of `squares` in `free_runs`.
    pub squares: u128,
}

/// Reordering-free runs (RFC 4737, section 4.6): packets in order between two that are reordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FreeRuns {
    /// Number of runs ended by a reordered packet (x of the RFC).
    pub runs: u64,
    /// Packets in order (a of the RFC). The mean length of a run is `in_order / runs`.
    pub in_order: u64,
    /// Sum of the squared lengths of the runs (q of the RFC).
    pub squares: f64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    arrival: u64,
    number: u64,
    length: u64,
    /// Whether a reordered packet should have arrived right before it.
    discontinuity: bool,
}

impl Reordering {
    /// Notes the arrival of a number, and returns whether it is reordered: s < NextExp (section 3.3).
    #[inline]
    pub fn arrived(&mut self, number: u64) -> bool {
        let arrival = self.arrivals;
        self.arrivals += 1;
        let reordered = number < self.next_expected;
        if reordered {
            self.measure(arrival, number);
        } else {
            self.next_expected = number.saturating_add(1);
            self.extend(arrival, number);
        }
        reordered
    }

    /// Ends the sequence; another one starts.
    pub fn close(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        found.free_runs.in_order += self.arrivals - self.free_since;
        *self = Reordering {
            found,
            ..Reordering::default()
        };
    }

    #[inline]
    fn extend(&mut self, arrival: u64, number: u64) {
        if let Some(run) = self.highest.back_mut()
            && run.arrival + run.length == arrival
            && run.number + run.length == number
        {
            run.length += 1;
            return;
        }
        if self.highest.len() == MAX_RUNS {
            self.highest.pop_front();
        }
        self.highest.push_back(Run {
            arrival,
            number,
            length: 1,
            discontinuity: false,
        });
    }

    #[cold]
    fn measure(&mut self, arrival: u64, number: u64) {
        let place = self.highest.partition_point(|run| run.number <= number);
        if let Some(run) = self.highest.get(place) {
            let extent = arrival - run.arrival;
            self.found.extents.add(extent);
            let extent = i64::try_from(extent).unwrap_or(i64::MAX);
            self.found.extent_sizes.add(extent);
            self.note_discontinuity(place);
        }
        let n = self.depth(arrival, number);
        if n > 0 {
            self.found.n_reordered.add(n);
        }
        if self.recent.len() as u64 == MAX_N {
            self.recent.pop_front();
        }
        self.recent.push_back((arrival, number));
        let free = arrival - self.free_since;
        self.free_since = arrival + 1;
        self.found.free_runs.runs += 1;
        self.found.free_runs.in_order += free;
        self.found.squares += u128::from(free) * u128::from(free);
    }

    /// Notes that a packet should have arrived before the run at `place`. The gap (section 4.5.4) reaches back to the previous
    /// discontinuity.
    fn note_discontinuity(&mut self, place: usize) {
        let arrival = self.highest[place].arrival;
        if std::mem::replace(&mut self.highest[place].discontinuity, true) {
            return;
        }
        let latest = self.discontinuity.filter(|latest| *latest < arrival);
        let before = latest.or_else(|| {
            let mut before = self.highest.range(..place).rev();
            Some(before.find(|run| run.discontinuity)?.arrival)
        });
        if let Some(before) = before {
            self.found.gaps.add(arrival - before);
        }
        self.discontinuity = self.discontinuity.max(Some(arrival));
    }

    /// Returns how many arrivals directly before `arrival` all have higher numbers. Each of those either was the highest when it
    /// arrived, and is found in the runs, or was reordered, and is found in `recent`.
    fn depth(&self, arrival: u64, number: u64) -> u64 {
        let mut recent = self.recent.iter().rev().peekable();
        let mut runs = self.highest.iter().rev().peekable();
        let mut n = 0;
        while n < MAX_N.min(arrival) {
            let at = arrival - 1 - n;
            while runs.next_if(|run| run.arrival > at).is_some() {}
            let before = match (runs.peek(), recent.next_if(|(arrival, _)| *arrival == at)) {
                (_, Some((_, number))) => *number,
                (Some(run), None) if at - run.arrival < run.length => {
                    run.number + (at - run.arrival)
                }
                _ => break,
            };
            if before <= number {
                break;
            }
            n += 1;
        }
        n
    }
}
