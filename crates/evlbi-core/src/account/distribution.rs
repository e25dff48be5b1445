//! Distribution of a time or a count: moments, quantiles and a histogram, in bounded memory.

use std::collections::BTreeMap;

use hdrhistogram::Histogram as Quantiles;
use serde::{Deserialize, Serialize};

use super::histogram::{Bin, Histogram, table};

/// Significant decimal digits of quantiles.
const DIGITS: u8 = 3;
/// Maximum number of values that are kept individually, so that quantiles are exact.
const FEW: usize = 256;
/// Maximum number of histogram bins that are counted individually; values in further bins are counted together.
const MAX_BINS: usize = 1 << 20;

/// Distribution of values. Times are in nanoseconds and may be negative.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    moments: Moments,
    values: Values,
    bins: Option<Bins>,
}

/// Values, for quantiles.
#[derive(Clone, Debug)]
enum Values {
    Few(Vec<i64>),
    Many {
        /// Negative values without their sign.
        below: Quantiles<u64>,
        above: Quantiles<u64>,
    },
}

/// Number of values per bin.
#[derive(Clone, Debug)]
struct Bins {
    width: u64,
    counts: Histogram,
}

/// Summary of a distribution. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Number of values.
    pub count: u64,
    /// Minimum, exact.
    pub min: i64,
    /// Maximum, exact.
    pub max: i64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation: square root of the second central moment.
    pub sigma: f64,
    /// Skew: third central moment over sigma cubed; 0 if sigma is 0.
    pub skew: f64,
    /// Excess kurtosis: fourth central moment over the fourth power of sigma, less 3; 0 if sigma is 0.
    pub kurtosis: f64,
    /// Median: half of the values do not exceed it. Quantiles of more than 256 values have three digits.
    pub median: i64,
    /// 25th percentile.
    pub quartile_25: i64,
    /// 75th percentile.
    pub quartile_75: i64,
    /// 99th percentile.
    pub p99: i64,
    /// 99.9th percentile.
    pub p999: i64,
    /// Width of the histogram's bins, if there is a histogram.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin_width: Option<u64>,
    /// Start of each bin that is not empty, and the number of values in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bins: BTreeMap<u64, u64>,
    /// The same as a table, in results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bins_table: Vec<Bin>,
    /// Values in further bins, and negative ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_binned: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Summary {
    /// Adds the tables that results have.
    #[must_use]
    pub fn with_tables(mut self) -> Summary {
        self.bins_table = table(&self.bins);
        self
    }
}

impl Distribution {
    /// Makes an empty distribution. With a `width`, values are also counted in bins of that width.
    pub fn new(width: Option<u64>) -> Distribution {
        Distribution {
            bins: width.map(|width| Bins {
                width: width.max(1),
                counts: Histogram::new(MAX_BINS),
            }),
            ..Distribution::default()
        }
    }

    /// Adds a value.
    #[inline]
    pub fn add(&mut self, value: i64) {
        self.moments.add(value);
        self.values.add(value);
        if let Some(bins) = &mut self.bins {
            match u64::try_from(value) {
                Ok(value) => bins.counts.add(value / bins.width),
                Err(_) => bins.counts.not_listed += 1,
            }
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.moments.count
    }

    /// Returns the smallest value that at least this fraction of the values does not exceed; 0 if there are no values.
    pub fn quantile(&self, fraction: f64) -> i64 {
        let all = self.moments.count;
        if all == 0 {
            return 0;
        }
        let rank = ((fraction * all as f64).ceil() as u64).clamp(1, all);
        let value = self.values.of_rank(rank);
        value.clamp(self.moments.min, self.moments.max)
    }

    /// Returns the summary; `None` if there are no values.
    pub fn summary(&self) -> Option<Summary> {
        let moments = &self.moments;
        let (sigma, skew, kurtosis) = moments.shape();
        let bins = self.bins.as_ref();
        (moments.count > 0).then(|| Summary {
            count: moments.count,
            min: moments.min,
            max: moments.max,
            mean: moments.mean,
            sigma,
            skew,
            kurtosis,
            median: self.quantile(0.5),
            quartile_25: self.quantile(0.25),
            quartile_75: self.quantile(0.75),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            bin_width: bins.map(|bins| bins.width),
            bins: bins.map_or_else(BTreeMap::new, |bins| {
                let counts = bins.counts.counts().into_iter();
                counts
                    .map(|(bin, count)| (bin * bins.width, count))
                    .collect()
            }),
            bins_table: Vec::new(),
            not_binned: bins.map_or(0, |bins| bins.counts.not_listed),
        })
    }
}

impl Default for Values {
    fn default() -> Values {
        Values::Few(Vec::new())
    }
}

impl Values {
    fn add(&mut self, value: i64) {
        if let Values::Few(few) = self {
            if few.len() < FEW {
                few.push(value);
                return;
            }
            let few = std::mem::take(few);
            *self = Values::Many {
                below: quantiles(),
                above: quantiles(),
            };
            few.into_iter().for_each(|value| self.add(value));
        }
        if let Values::Many { below, above } = self {
            let side = if value < 0 { below } else { above };
            // The histogram resizes itself, so it holds every value.
            if side.record(value.unsigned_abs()).is_err() {
                side.saturating_record(value.unsigned_abs());
            }
        }
    }

    /// Returns the value with this rank, from 1 to the number of values.
    fn of_rank(&self, rank: u64) -> i64 {
        // Aim halfway within a rank, so that rounding does not reach the next.
        let at = |side: &Quantiles<u64>, rank: u64| {
            let value = side.value_at_quantile((rank as f64 - 0.5) / side.len() as f64);
            i64::try_from(value).unwrap_or(i64::MAX)
        };
        match self {
            Values::Few(few) => *few.clone().select_nth_unstable(rank as usize - 1).1,
            Values::Many { below, .. } if rank <= below.len() => -at(below, below.len() - rank + 1),
            Values::Many { below, above } => at(above, rank - below.len()),
        }
    }
}

fn quantiles() -> Quantiles<u64> {
    // This cannot fail with so few digits.
    let histogram = Quantiles::new(DIGITS);
    let mut histogram = histogram.unwrap_or_else(|_| unreachable!("three digits are allowed"));
    histogram.auto(true);
    histogram
}

/// Central moments, updated value by value (Pebay, Sandia report 2008-6212, equations 1.3 and 2.1 with a second set of one).
#[derive(Clone, Copy, Debug)]
struct Moments {
    count: u64,
    min: i64,
    max: i64,
    mean: f64,
    /// Sums of the second to fourth powers of the distance from the mean.
    second: f64,
    third: f64,
    fourth: f64,
}

impl Default for Moments {
    fn default() -> Moments {
        Moments {
            count: 0,
            min: i64::MAX,
            max: i64::MIN,
            mean: 0.0,
            second: 0.0,
            third: 0.0,
            fourth: 0.0,
        }
    }
}

impl Moments {
    #[inline]
    fn add(&mut self, value: i64) {
        let before = self.count as f64;
        self.count += 1;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        let n = self.count as f64;
        let delta = value as f64 - self.mean;
        let step = delta / n;
        let term = delta * step * before;
        self.mean += step;
        self.fourth += term * step * step * (n * n - 3.0 * n + 3.0)
            + 6.0 * step * step * self.second
            - 4.0 * step * self.third;
        self.third += term * step * (n - 2.0) - 3.0 * step * self.second;
        self.second += term;
    }

    /// Returns standard deviation, skew and excess kurtosis.
    fn shape(&self) -> (f64, f64, f64) {
        let n = (self.count as f64).max(1.0);
        let variance = self.second / n;
        if variance <= 0.0 {
            return (0.0, 0.0, 0.0);
        }
        let sigma = variance.sqrt();
        (
            sigma,
            self.third / n / (variance * sigma),
            self.fourth / n / (variance * variance) - 3.0,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[i64], width: Option<u64>) -> Summary {
        let mut distribution = Distribution::new(width);
        values.iter().for_each(|value| distribution.add(*value));
        distribution.summary().unwrap()
    }

    #[test]
    fn known_moments() {
        // A die: variance 35/12, no skew, excess kurtosis -222/175.
        let summary = of(&[1, 2, 3, 4, 5, 6], Some(2));
        assert!((summary.mean - 3.5).abs() < 1e-12);
        assert!((summary.sigma - (35.0f64 / 12.0).sqrt()).abs() < 1e-12);
        assert!(summary.skew.abs() < 1e-12);
        assert!((summary.kurtosis + 222.0 / 175.0).abs() < 1e-12);
        assert_eq!(
            (summary.median, summary.quartile_25, summary.quartile_75),
            (3, 2, 5)
        );
        assert_eq!(summary.bins, [(0, 1), (2, 2), (4, 2), (6, 1)].into());
        // One in a hundred far away: skew (1 - 2p) / sqrt(p (1 - p)).
        let rare: Vec<i64> = (0..1000)
            .map(|number| i64::from(number % 100 == 0))
            .collect();
        let skew = (1.0 - 0.02) / (0.01f64 * 0.99).sqrt();
        assert!((of(&rare, None).skew - skew).abs() < 1e-9);
        assert_eq!(Distribution::new(None).summary(), None);
    }

    #[test]
    fn nothing_overflows() {
        let summary = of(&[i64::MIN, i64::MAX, 0, -1], Some(1));
        assert_eq!((summary.min, summary.max), (i64::MIN, i64::MAX));
        assert!(summary.quartile_25 < -1 && summary.p99 > 1);
        assert_eq!(summary.not_binned, 2);
        assert_eq!(summary.bins.values().sum::<u64>() + summary.not_binned, 4);
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            mut values in proptest::collection::vec(-5_000_000i64..5_000_000, 1..400), fraction in 0.0f64..1.0,
        ) {
            let mut distribution = Distribution::new(Some(1000));
            values.iter().for_each(|value| distribution.add(*value));
            values.sort_unstable();
            let rank = ((fraction * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let (exact, told) = (values[rank - 1], distribution.quantile(fraction));
            prop_assert!((exact - told).abs() <= exact.abs() / 500 + 1, "{} {}", exact, told);
            let summary = distribution.summary().unwrap();
            let n = values.len() as f64;
            let mean = values.iter().map(|value| *value as f64).sum::<f64>() / n;
            let power = |p: i32| values.iter().map(|v| (*v as f64 - mean).powi(p)).sum::<f64>() / n;
            prop_assert!((summary.mean - mean).abs() < 1e-6 * (1.0 + mean.abs()));
            let sigma = power(2).sqrt();
            prop_assert!((summary.sigma - sigma).abs() < 1e-6 * (1.0 + sigma));
            if sigma > 1.0 {
                prop_assert!((summary.skew - power(3) / sigma.powi(3)).abs() < 1e-6);
                prop_assert!((summary.kurtosis - (power(4) / sigma.powi(4) - 3.0)).abs() < 1e-6);
            }
            let binned: u64 = summary.bins.values().sum();
            prop_assert_eq!(binned + summary.not_binned, values.len() as u64);
        }
    }
}
