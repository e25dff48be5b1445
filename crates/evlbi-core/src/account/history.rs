//! Which numbers of a sequence have arrived: exact over a long window that slides with the highest.

/// A sliding window of bits. Numbers are offsets from the first of the sequence.
#[derive(Clone, Debug)]
pub struct History {
    words: Box<[u64]>,
    /// First number of the window, a multiple of 64. Everything before is final.
    start: u64,
    /// One more than the highest number.
    end: u64,
    /// Lost numbers right before `start` whose run may go on.
    run: u64,
}

impl History {
    /// A window of `length` numbers, a multiple of 64.
    pub fn new(length: u64) -> History {
        History {
            words: vec![0; (length / 64) as usize].into_boxed_slice(),
            start: 0,
            end: 0,
            run: 0,
        }
    }

    /// One more than the highest number so far; 0 when there is none.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Whether a number has arrived; `None` before the window.
    pub fn contains(&self, number: u64) -> Option<bool> {
        if number >= self.end {
            return Some(false);
        }
        (number >= self.start).then(|| self.words[self.word(number)] >> (number % 64) & 1 == 1)
    }

    /// A number has arrived. `lost` is told of runs of numbers that left the window without having
    /// arrived: the first and how many. A number before the window changes nothing.
    #[inline]
    pub fn insert(&mut self, number: u64, lost: impl FnMut(u64, u64)) {
        self.reach(number, lost);
        if number >= self.start {
            self.words[self.word(number)] |= 1 << (number % 64);
        }
    }

    /// The sequence reaches as far as `number`, whether or not that has arrived.
    #[inline]
    pub fn reach(&mut self, number: u64, lost: impl FnMut(u64, u64)) {
        if number < self.end {
            return;
        }
        self.end = number.saturating_add(1);
        if number - self.start >= self.length() {
            self.slide(number, lost);
        }
    }

    /// Everything that has not arrived is lost; the window is empty afterwards.
    pub fn finish(&mut self, mut lost: impl FnMut(u64, u64)) {
        while self.start < self.end {
            self.retire_word(&mut lost);
        }
        self.close_run(self.end, &mut lost);
        self.start = 0;
        self.end = 0;
    }

    #[cold]
    fn slide(&mut self, number: u64, mut lost: impl FnMut(u64, u64)) {
        // An eighth at a time, so that sliding costs little per number.
        let target = (number - self.length() + 1 + self.length() / 8).next_multiple_of(64);
        let beyond = self.start + self.length();
        while self.start < target.min(beyond) {
            self.retire_word(&mut lost);
        }
        if self.start < target {
            // The whole window has gone by: nothing in between can have arrived.
            self.run += target - self.start;
            self.start = target;
        }
    }

    fn retire_word(&mut self, lost: &mut impl FnMut(u64, u64)) {
        let index = self.word(self.start);
        let word = std::mem::take(&mut self.words[index]);
        let count = (self.end - self.start).min(64);
        if word == u64::MAX {
            self.close_run(self.start, lost);
        } else {
            for bit in 0..count {
                if word >> bit & 1 == 1 {
                    self.close_run(self.start + bit, lost);
                } else {
                    self.run += 1;
                }
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

    fn word(&self, number: u64) -> usize {
        (number / 64 % self.words.len() as u64) as usize
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
            steps in proptest::collection::vec(prop_oneof![8 => -40i64..60, 1 => 0i64..2000], 1..300)
        ) {
            let mut history = History::new(256);
            let (mut set, mut lost) = (BTreeSet::new(), Vec::new());
            let mut number = 0i64;
            for step in steps {
                number = (number + step).max(0);
                let offset = number as u64;
                if let Some(known) = history.contains(offset) {
                    prop_assert_eq!(known, set.contains(&offset));
                    history.insert(offset, |first, count| lost.push((first, count)));
                    set.insert(offset);
                }
            }
            let end = history.end();
            history.finish(|first, count| lost.push((first, count)));
            let mut expected = Vec::new();
            for offset in (0..end).filter(|offset| !set.contains(offset)) {
                match expected.last_mut() {
                    Some((first, count)) if *first + *count == offset => *count += 1,
                    _ => expected.push((offset, 1)),
                }
            }
            prop_assert_eq!(lost, expected);
        }
    }
}
