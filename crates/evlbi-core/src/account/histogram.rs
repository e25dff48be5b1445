//! Counts of values, in bounded memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Values below this are counted in an array.
const SMALL: usize = 64;
/// Default limit of larger values that are counted individually. Further values are counted together, so that no input can make
/// the table large.
const MAX_LARGE: usize = 4096;

/// A row of a table of counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bin {
    /// The value, or the lowest of a bin of several.
    pub value: u64,
    /// How often it was counted.
    pub count: u64,
}

/// Returns counts as the rows of a table.
pub fn table(counts: &BTreeMap<u64, u64>) -> Vec<Bin> {
    let rows = counts.iter();
    rows.map(|(value, count)| Bin {
        value: *value,
        count: *count,
    })
    .collect()
}

/// Counts of values.
#[derive(Clone, Debug)]
pub struct Histogram {
    small: [u64; SMALL],
    large: BTreeMap<u64, u64>,
    max_large: usize,
    /// Number of values that found the table full.
    pub not_listed: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new(MAX_LARGE)
    }
}

impl Histogram {
    /// Makes an empty histogram that counts up to this many large values individually, besides the small ones.
    pub fn new(max_large: usize) -> Histogram {
        Histogram {
            small: [0; SMALL],
            large: BTreeMap::new(),
            max_large,
            not_listed: 0,
        }
    }

    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let small = usize::try_from(value).ok();
        if let Some(count) = small.and_then(|value| self.small.get_mut(value)) {
            *count += 1;
        } else if let Some(count) = self.large.get_mut(&value) {
            *count += 1;
        } else if self.large.len() < self.max_large {
            self.large.insert(value, 1);
        } else {
            self.not_listed += 1;
        }
    }

    /// Returns the count of each value.
    pub fn counts(&self) -> BTreeMap<u64, u64> {
        let small = self.small.iter().enumerate();
        small
            .map(|(value, count)| (value as u64, *count))
            .filter(|(_, count)| *count > 0)
            .chain(self.large.iter().map(|(value, count)| (*value, *count)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_every_value_and_stays_small() {
        let mut histogram = Histogram::default();
        for value in [0, 3, 63, 64, u64::MAX, 3, 64] {
            histogram.add(value);
        }
        let counts = [(0, 1), (3, 2), (63, 1), (64, 2), (u64::MAX, 1)];
        assert_eq!(histogram.counts(), counts.into());
        for value in 0..100_000 {
            histogram.add(1000 + value);
        }
        let listed: u64 = histogram.counts().values().sum();
        assert_eq!(listed + histogram.not_listed, 100_007);
        assert_eq!(histogram.counts().len(), 3 + MAX_LARGE);
    }
}
