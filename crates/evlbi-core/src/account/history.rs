//! Exact record of which numbers of a sequence have arrived, over a long window that ends at the highest number.

use std::ops::Range;

/// Sliding window of numbers, which are offsets from a base at or before the first number.
#[derive(Clone, Debug)]
pub struct History {
    /// Words of 64 numbers each; their count is a power of two.
    words: Box<[Word]>,
    /// First number of the window. Everything before it is final.
    start: u64,
    /// Lowest number so far; before any number, the maximum.
    first: u64,
    /// One more than the highest number so far.
    end: u64,
    /// Length of the run of lost numbers that ends at `start` and may continue.
    run: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Word {
    arrived: u64,
    /// Arrived, but there was no room.
    refused: u64,
}

impl History {
    /// Makes a window of at least `length` numbers.
    pub fn new(length: u64) -> History {
        let words = length.div_ceil(64).next_power_of_two();
        History {
            words: vec![Word::default(); words as usize].into_boxed_slice(),
            start: 0,
            first: u64::MAX,
            end: 0,
            run: 0,
        }
    }

    /// Returns the lowest number so far and one more than the highest; `None` before any.
    pub fn span(&self) -> Option<(u64, u64)> {
        (self.first < self.end).then_some((self.first, self.end))
    }

    /// Returns whether a number has arrived; `None` if it is before the window.
    #[inline]
    pub fn contains(&self, number: u64) -> Option<bool> {
        if number >= self.end {
            return Some(false);
        }
        (number >= self.start)
            .then(|| self.words[self.word(number)].arrived >> (number % 64) & 1 == 1)
    }

    /// Returns the end of the run of arrived numbers that starts at `from`, at most `limit`.
    pub fn arrived_until(&self, from: u64, limit: u64) -> u64 {
        let limit = limit.min(self.end);
        let mut number = from;
        while number >= self.start && number < limit {
            let rest = self.words[self.word(number)].arrived >> (number % 64);
            let arrived = rest.trailing_ones();
            number += u64::from(arrived);
            if arrived == 0 || !number.is_multiple_of(64) {
                break;
            }
        }
        number.min(limit).max(from)
    }

    /// Returns the end of the run of numbers from `from` on that have not arrived, at most `limit`. Numbers before the window count as
    /// such.
    pub fn missing_until(&self, from: u64, limit: u64) -> u64 {
        let known = limit.min(self.end);
        let mut number = from.max(self.start);
        while number < known {
            let rest = !self.words[self.word(number)].arrived >> (number % 64);
            let missing = u64::from((!rest).trailing_zeros()).min(64 - number % 64);
            number += missing;
            if missing == 0 || !number.is_multiple_of(64) {
                break;
            }
        }
        match number < known {
            true => number,
            false => limit.max(from),
        }
    }

    /// Marks a number as arrived, and returns whether it had been refused before. Calls `lost` with the first number and the
    /// length of each run that left the window without arriving. A number before the window changes nothing.
    #[inline]
    pub fn insert(&mut self, number: u64, lost: impl FnMut(u64, u64)) -> bool {
        self.reach(number, lost);
        let Some(word) = self.word_mut(number) else {
            return false;
        };
        let bit = 1 << (number % 64);
        let refused = word.refused & bit != 0;
        word.arrived |= bit;
        word.refused &= !bit;
        refused
    }

    /// Marks a number as refused: it arrived for the first time, but there was no room. Returns whether it had not been refused
    /// before. `lost` is as for [`History::insert`].
    pub fn refuse(&mut self, number: u64, lost: impl FnMut(u64, u64)) -> bool {
        self.reach(number, lost);
        let Some(word) = self.word_mut(number) else {
            return true;
        };
        let bit = 1 << (number % 64);
        let first = word.refused & bit == 0;
        word.refused |= bit;
        first
    }

    /// Marks numbers as not sent: they are neither expected nor lost. Returns how many there are from the first number of the sequence
    /// on, without those that have arrived. `lost` is as for [`History::insert`].
    pub fn shed(&mut self, numbers: Range<u64>, lost: impl FnMut(u64, u64)) -> u64 {
        let first = numbers.start.max(self.first);
        if first >= numbers.end {
            return 0;
        }
        self.reach(numbers.end - 1, lost);
        let mut count = self.start.clamp(first, numbers.end) - first;
        for number in first.max(self.start)..numbers.end {
            let word = self.word(number);
            let (bit, arrived) = (1 << (number % 64), &mut self.words[word].arrived);
            count += u64::from(*arrived & bit == 0);
            *arrived |= bit;
        }
        count
    }

    /// Reports everything that has not arrived as lost, and empties the window.
    pub fn finish(&mut self, mut lost: impl FnMut(u64, u64)) {
        while self.start < self.end {
            self.retire_word(&mut lost);
        }
        self.close_run(self.end, &mut lost);
        self.start = 0;
        self.first = u64::MAX;
        self.end = 0;
    }

    /// Extends the sequence to `number`. `lost` is as for [`History::insert`].
    #[inline]
    pub fn reach(&mut self, number: u64, lost: impl FnMut(u64, u64)) {
        if number < self.first && number >= self.start {
            self.first = number;
        }
        if number < self.end {
            return;
        }
        self.end = number.saturating_add(1);
        if number - self.start >= self.length() {
            self.slide(number, lost);
        }
    }

    #[cold]
    fn slide(&mut self, number: u64, mut lost: impl FnMut(u64, u64)) {
        // Move somewhat further than needed, so that this is rare and always short.
        let step = (self.length() / 1024).max(64);
        let target = (number - (self.length() - step)) / 64 * 64;
        let beyond = self.start.saturating_add(self.length());
        while self.start < target.min(beyond) {
            self.retire_word(&mut lost);
        }
        if self.start < target {
            // The whole window was skipped: nothing in between can have arrived.
            self.run += target.saturating_sub(self.start.max(self.first));
            self.start = target;
        }
    }

    /// Moves the first 64 numbers out of the window.
    fn retire_word(&mut self, lost: &mut impl FnMut(u64, u64)) {
        let index = self.word(self.start);
        let arrived = std::mem::take(&mut self.words[index]).arrived;
        let count = (self.end - self.start).min(64);
        // Numbers before the first one do not belong to the sequence.
        let mut bit = self.first.saturating_sub(self.start).min(count);
        while bit < count {
            let rest = arrived >> bit;
            if rest & 1 == 1 {
                self.close_run(self.start + bit, lost);
                bit += u64::from(rest.trailing_ones());
            } else {
                let missing = u64::from(rest.trailing_zeros()).min(count - bit);
                self.run += missing;
                bit += missing;
            }
        }
        self.start += count;
    }

    fn close_run(&mut self, next: u64, lost: &mut impl FnMut(u64, u64)) {
        if self.run > 0 {
            lost(next - self.run, self.run);
            self.run = 0;
        }
    }

    fn length(&self) -> u64 {
        self.words.len() as u64 * 64
    }

    #[inline]
    fn word(&self, number: u64) -> usize {
        (number / 64) as usize & (self.words.len() - 1)
    }

    #[inline]
    fn word_mut(&mut self, number: u64) -> Option<&mut Word> {
        let word = self.word(number);
        (number >= self.start).then(|| &mut self.words[word])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_a_set_would_have_it(
            base in prop_oneof![Just(0u64), 0..5000u64, Just(1 << 62)],
            steps in proptest::collection::vec(
                prop_oneof![8 => -40i64..60, 1 => 0i64..2000, 1 => Just(1 << 20)],
                1..300,
            )
        ) {
            let mut history = History::new(256);
            let (mut set, mut lost, mut seen) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
            let mut number = base;
            for (count, step) in steps.into_iter().enumerate() {
                number = number.saturating_add_signed(step);
                let Some(known) = history.contains(number) else { continue };
                prop_assert_eq!(known, set.contains(&number));
                seen.insert(number);
                if count % 7 == 6 && !known {
                    history.refuse(number, |first, count| lost.push((first, count)));
                } else {
                    history.insert(number, |first, count| lost.push((first, count)));
                    set.insert(number);
                }
                let until = (number..number + 200).find(|next| !set.contains(next)).unwrap_or(number + 200);
                prop_assert_eq!(history.arrived_until(number, number + 200), until);
                prop_assert_eq!(history.arrived_until(number, number + 3), until.min(number + 3));
            }
            let (first, end) = history.span().unwrap();
            prop_assert_eq!((Some(&first), Some(&(end - 1))), (seen.first(), seen.last()));
            history.finish(|first, count| lost.push((first, count)));
            prop_assert_eq!(history.span(), None);
            let mut expected = Vec::new();
            let mut next = first;
            for number in set.iter().copied().chain([end]) {
                if number > next {
                    expected.push((next, number - next));
                }
                next = number + 1;
            }
            prop_assert_eq!(lost, expected);
        }
    }

    #[test]
    fn refusals_are_remembered_until_the_number_arrives() {
        let mut history = History::new(64);
        let mut lost = Vec::new();
        assert!(history.refuse(70, |_, _| ()));
        assert!(!history.refuse(70, |_, _| ()));
        assert_eq!(history.contains(70), Some(false));
        assert!(history.insert(70, |_, _| ()));
        assert!(!history.insert(70, |_, _| ()));
        assert!(history.refuse(72, |_, _| ()));
        history.finish(|first, count| lost.push((first, count)));
        assert_eq!(lost, [(71, 2)]);
        assert!(history.refuse(72, |_, _| ()), "forgotten with its sequence");
    }
}
