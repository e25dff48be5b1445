//! Account of a stream that lasts for hours, in windows of a number of datagrams: each is settled while the next arrives.

use std::collections::VecDeque;

use evlbi_core::time::Nanos;

use super::tally::{Tallied, Tally};

/// Maximum number of open windows, for long ones and for short ones, which take less memory. If a stream skips more, datagrams beyond do
/// not count as part of it.
const MAX_OPEN: [u64; 2] = [128, 2048];
/// Approximate number of sequence numbers that open windows remember.
const REMEMBERED: u64 = 1 << 26;

/// Counts a stream, window by window.
#[derive(Debug)]
pub struct Windows {
    /// Datagrams per window.
    size: u64,
    most_open: u64,
    count: u64,
    timeout: Nanos,
    width: Option<u64>,
    /// Number of the first open window.
    first: u64,
    open: VecDeque<Tally>,
    /// Distinct datagrams of all windows.
    unique: u64,
    /// The number after the highest that arrived.
    reached: u64,
    /// Foreign datagrams, of windows that are closed or far ahead, since the last one was closed.
    foreign: u64,
}

impl Windows {
    /// Creates an account of a stream of up to `count` datagrams, in windows of `size`, or in a single one. The other arguments are those
    /// of [`Tally::new`].
    pub fn new(count: u64, size: Option<u64>, timeout: Nanos, width: Option<u64>) -> Windows {
        let size = size.unwrap_or(u64::MAX).max(1);
        Windows {
            size,
            most_open: (REMEMBERED / size).clamp(MAX_OPEN[0], MAX_OPEN[1]),
            count,
            timeout,
            width,
            first: 0,
            open: VecDeque::new(),
            unique: 0,
            reached: 0,
            foreign: 0,
        }
    }

    /// Counts an arrival: see [`Tally::arrived`].
    #[inline]
    pub fn arrived(&mut self, sequence: u64, departed: u64, arrived: u64) {
        let (number, offset) = (sequence / self.size, sequence % self.size);
        let place = number.checked_sub(self.first);
        let Some(place) = place.filter(|place| *place < self.most_open && sequence < self.count)
        else {
            self.foreign += 1;
            return;
        };
        self.reached = self.reached.max(sequence + 1);
        while self.open.len() as u64 <= place {
            self.add();
        }
        if let Some(tally) = self.open.get_mut(place as usize) {
            self.unique += u64::from(tally.arrived(offset, departed, arrived));
        }
    }

    fn add(&mut self) {
        let begin = (self.first + self.open.len() as u64).saturating_mul(self.size);
        let count = self.count.saturating_sub(begin).min(self.size);
        self.open
            .push_back(Tally::new(count, self.timeout, self.width));
    }

    /// Returns the number after that of the last window that is closed or has arrivals.
    pub fn next(&self) -> u64 {
        self.first + self.open.len() as u64
    }

    /// Returns the number after the highest that arrived.
    pub fn reached(&self) -> u64 {
        self.reached
    }

    /// Returns the distinct datagrams that have arrived so far.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Closes the next window if all of its numbers are below `used`, the count of numbers for which the loss timeout has passed. Returns
    /// its number and report.
    pub fn close(&mut self, used: u64) -> Option<(u64, Tallied)> {
        let end = (self.first + 1).checked_mul(self.size)?;
        // A single window ends with the stream.
        (end <= used && end < u64::MAX).then(|| self.take(self.size))
    }

    fn take(&mut self, sent: u64) -> (u64, Tallied) {
        if self.open.is_empty() {
            self.add();
        }
        let number = self.first;
        let tally = self.open.pop_front();
        let tally = tally.unwrap_or_else(|| Tally::new(0, self.timeout, self.width));
        self.first += 1;
        let mut tallied = tally.finish(sent);
        tallied.foreign += std::mem::take(&mut self.foreign);
        (number, tallied)
    }

    /// Ends the account, with the number of datagrams that the sender sent. Returns the remaining windows, at least one.
    pub fn finish(mut self, sent: u64) -> Vec<(u64, Tallied)> {
        let mut all: Vec<(u64, Tallied)> = std::iter::from_fn(|| self.close(sent)).collect();
        let rest = sent.saturating_sub(self.first.saturating_mul(self.size));
        if rest > 0 || all.is_empty() {
            all.push(self.take(rest));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn windows_close_when_their_numbers_are_used() {
        let mut windows = Windows::new(u64::MAX, Some(10), Nanos::SECOND, None);
        for number in (0..25).filter(|number| number % 5 != 3) {
            windows.arrived(number, number * 1000, number * 1000);
        }
        assert_eq!(windows.close(9), None);
        let (number, first) = windows.close(25).unwrap();
        assert_eq!(
            (number, first.sent, first.account.counters.lost),
            (0, 10, 2)
        );
        // Too late, and reported with the next window.
        windows.arrived(3, 3000, 99_000);
        let (number, second) = windows.close(25).unwrap();
        assert_eq!((number, second.sent, second.foreign), (1, 10, 1));
        assert_eq!(windows.close(25), None);
        // Of the last two only the start of one arrived.
        let rest = windows.finish(38);
        let shown: Vec<(u64, u64, u64)> = rest
            .iter()
            .map(|(number, of)| (*number, of.sent, of.account.counters.unique))
            .collect();
        assert_eq!(shown, [(2, 10, 4), (3, 8, 0)]);
    }

    #[test]
    fn a_single_window_is_a_tally() {
        let mut windows = Windows::new(100, None, Nanos::SECOND, None);
        assert_eq!(windows.close(u64::MAX), None);
        windows.arrived(5, 0, 0);
        windows.arrived(100, 0, 0);
        let all = windows.finish(100);
        assert_eq!((all.len(), all[0].1.sent, all[0].1.foreign), (1, 100, 1));
        let none = Windows::new(0, None, Nanos::SECOND, None).finish(0);
        assert_eq!((none.len(), none[0].1.sent), (1, 0));
    }

    proptest! {
        #[test]
        fn the_sums_hold(
            size in 1u64..50, sent in 0u64..500, numbers in proptest::collection::vec(0u64..700, 0..500), used in proptest::collection::vec(0u64..500, 0..10),
        ) {
            let mut windows = Windows::new(sent, Some(size), Nanos::SECOND, Some(1));
            let mut all = Vec::new();
            let every = numbers.len() / (used.len() + 1) + 1;
            for (at, number) in numbers.iter().enumerate() {
                windows.arrived(*number, 0, at as u64);
                if at % every == 0 && let Some(used) = used.get(at / every) {
                    all.extend(windows.close((*used).min(sent)));
                }
            }
            all.extend(windows.finish(sent));
            let sum = |get: fn(&Tallied) -> u64| all.iter().map(|(_, of)| get(of)).sum::<u64>();
            prop_assert_eq!(sum(|of| of.sent), sent);
            prop_assert_eq!(sum(|of| of.account.counters.unique + of.account.counters.lost), sent);
            prop_assert_eq!(sum(|of| of.account.counters.received + of.foreign), numbers.len() as u64);
            prop_assert!(all.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
        }
    }
}
