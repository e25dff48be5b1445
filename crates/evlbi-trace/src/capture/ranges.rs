//! Ranges of sequence numbers.

use std::collections::BTreeMap;

/// Maximum number of ranges; if there are more, the first two are merged, including the numbers between them.
const MAX: usize = 4096;

/// Ranges that neither overlap nor touch, each from its first number to its end (exclusive).
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the first range.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.ends.first_key_value().map(|(from, to)| (*from, *to))
    }

    /// Returns how many of these numbers are in the ranges.
    pub fn overlap(&self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let stretches = self.ends.range(..to).rev();
        stretches
            .take_while(|(_, end)| **end > from)
            .map(|(begin, end)| to.min(*end) - from.max(*begin))
            .sum()
    }

    /// Adds numbers; returns how many of them are new.
    pub fn insert(&mut self, mut from: u64, mut to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let mut new = to - from - self.overlap(from, to);
        while let Some((begin, end)) = self.ends.range(..=to).next_back()
            && *end >= from
        {
            let (begin, end) = (*begin, *end);
            (from, to) = (from.min(begin), to.max(end));
            self.ends.remove(&begin);
        }
        self.ends.insert(from, to);
        if self.ends.len() > MAX
            && let Some((first, middle)) = self.ends.pop_first()
            && let Some((next, end)) = self.ends.pop_first()
        {
            new += next - middle;
            self.ends.insert(first, end);
        }
        new
    }

    /// Removes numbers; returns how many were present.
    pub fn remove(&mut self, from: u64, to: u64) -> u64 {
        let mut removed = 0;
        if from >= to {
            return 0;
        }
        while let Some((begin, end)) = self.ends.range(..to).next_back()
            && *end > from
        {
            let (begin, end) = (*begin, *end);
            self.ends.remove(&begin);
            if begin < from {
                self.ends.insert(begin, from);
            }
            if end > to {
                self.ends.insert(to, end);
            }
            removed += to.min(end) - from.max(begin);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn like_a_set_of_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0u64..120, 0u64..40, 0u64..120, 0u64..120), 0..60),
        ) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (adds, from, length, begin, end) in steps {
                let to = from + length;
                let before = set.len();
                if adds {
                    set.extend(from..to);
                    prop_assert_eq!(ranges.insert(from, to), (set.len() - before) as u64);
                } else {
                    set.retain(|number| !(from..to).contains(number));
                    prop_assert_eq!(ranges.remove(from, to), (before - set.len()) as u64);
                }
                prop_assert_eq!(ranges.overlap(0, 1000), set.len() as u64);
                prop_assert_eq!(ranges.first().map(|(first, _)| first), set.first().copied());
                let inside = set.iter().filter(|number| (begin..end).contains(*number)).count();
                prop_assert_eq!(ranges.overlap(begin, end), inside as u64);
            }
        }
    }
}
