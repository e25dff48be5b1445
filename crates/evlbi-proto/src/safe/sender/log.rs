//! Which datagrams were sent when, and how many were shed before each.

use std::collections::VecDeque;

use evlbi_core::time::Nanos;

/// Minimum time between two entries.
const STEP: Nanos = Nanos(5_000_000);
/// Maximum number of entries.
const MAX_ENTRIES: usize = 65_536;

/// Progress of a flow over time. Numbers are counted from the first of the flow.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// The latest progress, which has no entry of its own yet.
    last: Entry,
}

/// State after an action.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    at: Nanos,
    next: u64,
    shed: u64,
}

impl Log {
    /// Notes the progress. Returns the length of the run of shed numbers that has just ended, or 0.
    pub fn note(&mut self, at: Nanos, next: u64, shed: u64) -> u64 {
        let (last, entry) = (self.last, Entry { at, next, shed });
        let sheds = |from: Entry, to: Entry| {
            to.next > from.next && to.shed - from.shed == to.next - from.next
        };
        let before = self.entries.back().copied().unwrap_or_default();
        // Edges of shed blocks have entries of their own, so that numbers between two entries were shed evenly.
        let was_shedding = sheds(before, last);
        let is_shedding = sheds(last, entry);
        let is_edge = was_shedding != is_shedding;
        if last.next > before.next && (is_edge || last.at.since(before.at) >= STEP) {
            if self.entries.len() == MAX_ENTRIES {
                self.entries.pop_front();
            }
            self.entries.push_back(last);
        }
        self.last = entry;
        match was_shedding && !is_shedding {
            true => last.next - self.run_start(last),
            false => 0,
        }
    }

    /// Returns where the run of shed numbers that ends with the last entry started.
    fn run_start(&self, end: Entry) -> u64 {
        let mut entries = self
            .entries
            .iter()
            .rev()
            .skip_while(|entry| entry.next >= end.next);
        let is_shed = |entry: &&Entry| end.next - entry.next == end.shed - entry.shed;
        let within = entries.by_ref().take_while(is_shed).last();
        within.map_or(end.next, |entry| entry.next)
    }

    fn around(&self, number: u64) -> (Entry, Entry) {
        let place = self.entries.partition_point(|entry| entry.next <= number);
        let before = place.checked_sub(1).map(|place| self.entries[place]);
        let after = self.entries.get(place).copied().unwrap_or(self.last);
        (before.unwrap_or_default(), after)
    }

    /// Returns how many numbers below this one were shed, exactly at the edges of blocks.
    pub fn shed_before(&self, number: u64) -> u64 {
        let (before, after) = self.around(number);
        if number >= after.next {
            return after.shed;
        }
        let span = u128::from((after.next - before.next).max(1));
        let part = u128::from(number.saturating_sub(before.next));
        before.shed + (u128::from(after.shed - before.shed) * part / span) as u64
    }

    /// Returns when the datagram with this number was sent.
    pub fn sent_at(&self, number: u64) -> Nanos {
        let (before, after) = self.around(number);
        if number >= after.next || before.next == 0 {
            return after.at;
        }
        let span = u128::from((after.next - before.next).max(1));
        let part = u128::from(number - before.next);
        let nanos = u128::from(after.at.since(before.at).0) * part / span;
        before.at.plus(Nanos(nanos as u64))
    }

    /// Forgets what concerns only numbers below this one, except the last entry.
    pub fn forget(&mut self, number: u64) {
        while self.entries.len() > 1 && self.entries[1].next <= number {
            self.entries.pop_front();
        }
    }
}
