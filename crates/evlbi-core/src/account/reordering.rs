//! Reordering as RFC 4737 defines it.

use std::collections::{BTreeMap, VecDeque};

/// Runs of arrivals that are remembered to find how far a packet was displaced.
const MOST_RUNS: usize = 65_536;
/// Extents from here on count as this one, so that no sender can make the table large.
const LONGEST_EXTENT: u64 = 65_536;
/// Arrivals that are remembered for n-reordering; a larger n counts as this one.
const LONGEST_N: usize = 64;

/// Arrivals, first copies only, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct Reordering {
    /// NextExp of the RFC: one more than the highest number.
    next_expected: u64,
    /// Arrivals so far.
    arrivals: u64,
    /// Packets that came with a number higher than all before, as runs in which arrival and number grow
    /// together. The earliest packet before which another should have come is always one of these.
    highest: VecDeque<Run>,
    extents: BTreeMap<u64, u64>,
    n_reordered: BTreeMap<u64, u64>,
    /// The last arrivals that were out of the straight order, newest last; see [`Reordering::depth`].
    recent: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    arrival: u64,
    number: u64,
    length: u64,
}

impl Reordering {
    /// A number arrived; says whether it is reordered: s < NextExp (section 3.3).
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

    /// The sequence has ended and another one begins.
    pub fn close(&mut self) {
        self.next_expected = 0;
        self.arrivals = 0;
        self.highest.clear();
        self.recent.clear();
    }

    /// Extent to count (section 4.2.1).
    pub fn extents(&self) -> &BTreeMap<u64, u64> {
        &self.extents
    }

    /// Largest n for which a packet is n-reordered, to count (section 5.1).
    pub fn n_reordered(&self) -> &BTreeMap<u64, u64> {
        &self.n_reordered
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
        if self.highest.len() == MOST_RUNS {
            self.highest.pop_front();
        }
        self.highest.push_back(Run {
            arrival,
            number,
            length: 1,
        });
    }

    #[cold]
    fn measure(&mut self, arrival: u64, number: u64) {
        let extent = arrival - self.first_beyond(number);
        *self.extents.entry(extent.min(LONGEST_EXTENT)).or_default() += 1;
        let n = self.depth(arrival, number);
        if n > 0 {
            *self.n_reordered.entry(n).or_default() += 1;
        }
        if self.recent.len() == 2 * LONGEST_N {
            self.recent.drain(..2);
        }
        self.recent.extend([arrival, number]);
    }

    /// The earliest arrival with a number above `number`.
    fn first_beyond(&self, number: u64) -> u64 {
        let place = self
            .highest
            .partition_point(|run| run.number + (run.length - 1) <= number);
        self.highest.get(place).map_or(self.arrivals - 1, |run| {
            run.arrival + (number + 1).saturating_sub(run.number)
        })
    }

    /// How many arrivals directly before `arrival` all have higher numbers. Those were either highest
    /// when they came, and found in their runs, or reordered, and found among the recent.
    fn depth(&self, arrival: u64, number: u64) -> u64 {
        let mut n = 0;
        let mut recent = self.recent.len();
        let mut runs = self.highest.iter().rev();
        let mut run = runs.next();
        while n < LONGEST_N as u64 && n < arrival {
            let at = arrival - 1 - n;
            while let Some(last) = run
                && last.arrival > at
            {
                run = runs.next();
            }
            let before = match run {
                Some(run) if at < run.arrival + run.length => run.number + (at - run.arrival),
                _ if recent >= 2 && self.recent[recent - 2] == at => {
                    recent -= 2;
                    self.recent[recent + 1]
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
