//! Loss event rate (RFC 5348, section 5), calculated by the sender (section 7).

use evlbi_core::time::Nanos;

/// Number of loss intervals that count.
pub const REMEMBERED: u64 = 8;
/// Weights of the last loss intervals, the newest first (RFC 5348, section 5.4).
const WEIGHTS: [f64; REMEMBERED as usize] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2];

/// Loss intervals, in datagrams sent.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Closed intervals, the newest first.
    intervals: Vec<f64>,
    /// Index of the first datagram of the last loss event, and when it was sent.
    last: Option<(u64, Nanos)>,
}

impl Losses {
    /// Notes that the datagram with this index, counted over all sent ones and sent at `sent`, was lost or marked. It starts a loss
    /// event unless it was sent within the `span` of the last one, from its first datagram on (RFC 5348, section 5.2). Returns
    /// whether it does. The first interval reaches back to the first datagram: a constant bit rate has no slow start.
    pub fn lost(&mut self, index: u64, sent: Nanos, span: Nanos) -> bool {
        let from = match self.last {
            Some((_, at)) if sent < at.plus(span) => return false,
            Some((from, _)) => from,
            None => 0,
        };
        let length = index.saturating_sub(from).max(1) as f64;
        self.intervals.insert(0, length);
        self.intervals.truncate(WEIGHTS.len());
        self.last = Some((index, sent));
        true
    }

    /// Returns the loss event rate after `sent` datagrams: the inverse of the mean interval, with or without the open one (RFC 5348,
    /// section 5.4); 0 without loss.
    pub fn rate(&self, sent: u64) -> f64 {
        let Some((last, _)) = self.last else {
            return 0.0;
        };
        let open = sent.saturating_sub(last) as f64;
        let mean = |intervals: &mut dyn Iterator<Item = f64>| {
            let (sum, weights) = intervals
                .zip(WEIGHTS)
                .fold((0.0, 0.0), |(sum, all), (length, weight)| {
                    (sum + length * weight, all + weight)
                });
            sum / weights
        };
        let closed = self.intervals.iter().copied();
        let with_open = mean(
            &mut std::iter::once(open)
                .chain(closed.clone())
                .take(self.intervals.len()),
        );
        let longest = with_open.max(mean(&mut closed.into_iter()));
        1.0 / longest.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const R: Nanos = Nanos(10_000_000);

    #[test]
    fn losses_within_the_span_of_an_event_are_one_event() {
        let mut losses = Losses::default();
        assert_eq!(losses.rate(1000), 0.0);
        assert!(losses.lost(1000, Nanos(0), R));
        assert!(!losses.lost(1001, Nanos(9_999_999), R));
        assert!(losses.lost(2000, Nanos(10_000_000), R));
        assert_eq!(losses.rate(2000), 1.0 / 1000.0);
        // An open interval counts once it makes the mean longer.
        assert_eq!(losses.rate(2500), 1.0 / 1000.0);
        assert_eq!(losses.rate(6000), 1.0 / 2500.0);
    }

    /// The example of RFC 5348's weights: eight intervals of 100 but for one.
    #[test]
    fn older_intervals_weigh_less() {
        for (place, weight) in WEIGHTS.into_iter().rev().enumerate() {
            let mut losses = Losses::default();
            let (mut index, mut sent) = (0, Nanos(0));
            for interval in 0..8 {
                index += if interval == place { 160 } else { 100 };
                losses.lost(index, sent, R);
                sent = sent.plus(R);
            }
            let mean = 1.0 / losses.rate(index);
            assert!(
                (mean - (100.0 + 60.0 * weight / 6.0)).abs() < 1e-9,
                "{place}: {mean}"
            );
        }
    }

    proptest! {
        #[test]
        fn the_rate_is_a_fraction(steps in proptest::collection::vec((0u64..u64::MAX / 100, 0u64..1 << 40), 0..50)) {
            let mut losses = Losses::default();
            let (mut index, mut at) = (0, Nanos(0));
            for (datagrams, nanos) in steps {
                index += datagrams;
                at = at.plus(Nanos(nanos));
                losses.lost(index, at, R);
                prop_assert!((0.0..=1.0).contains(&losses.rate(index)));
                prop_assert!(losses.rate(u64::MAX) <= losses.rate(index));
            }
        }
    }
}
