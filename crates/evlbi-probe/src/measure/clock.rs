//! Estimate of the remote clock from round trips: offset, skew, and their certainty.
//!
//! Each exchange gives four times, as in NTP and STAMP (RFC 8762): T1 and T4 of the local clock, T2 and T3 of the remote one. T2 - T1 is
//! the outbound delay plus the offset; T4 - T3 is the return delay minus the offset. Queueing only ever adds delay, so the minimum values
//! of intervals lie on two lines of opposite slope: the skew. Half the distance between the lines is the offset if the minimum delays of
//! both directions are equal. No measurement at the endpoints can tell whether they are. But neither is negative, which bounds the error by
//! half the minimum round-trip time.

use evlbi_core::time::apart;
use serde::Serialize;

/// Maximum number of intervals with a minimum value; above it, each becomes twice as long.
const STRETCHES: usize = 64;
/// Initial length of an interval, in nanoseconds.
const MIN: u64 = 1_000_000;
/// A skew is used if it is at least this many of its standard errors.
const SURE: f64 = 3.0;

/// Times of an exchange, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Departure of the request (local clock).
    pub departed: u64,
    /// Arrival of the request (remote clock).
    pub arrived: u64,
    /// Departure of the reply (remote clock).
    pub replied: u64,
    /// Arrival of the reply (local clock).
    pub returned: u64,
}

impl Exchange {
    /// Returns the round-trip time without the processing time of the responder, in nanoseconds.
    pub fn round_trip(&self) -> i64 {
        let here = apart(self.returned, self.departed);
        here.saturating_sub(apart(self.replied, self.arrived))
    }
}

/// Collection of exchanges, in bounded memory.
#[derive(Clone, Debug)]
pub struct Exchanges {
    /// Local and remote time of the first exchange.
    origin: Option<(u64, u64)>,
    length: u64,
    /// Minimum values: outbound, and return.
    ways: [Vec<Option<Point>>; 2],
    round_trip: i64,
    count: u64,
}

/// Minimum value of an interval, and its time.
#[derive(Clone, Copy, Debug)]
struct Point {
    time: f64,
    value: i64,
}

/// The remote clock relative to the local one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockFit {
    /// Lead of the remote clock at the time `at`, in nanoseconds, if the minimum delays of both directions are equal.
    pub offset: f64,
    /// Time of this offset by the local clock, in nanoseconds.
    pub at: u64,
    /// Excess rate of the remote clock, in seconds per second; 0 if it is not significant.
    pub skew: f64,
    /// Standard error of the skew; `None` for too few exchanges.
    pub skew_error: Option<f64>,
    /// Maximum error of the offset, in nanoseconds, if the minimum delays of both directions are equal.
    pub error_if_symmetric: f64,
    /// Maximum error of the offset for any delays, in nanoseconds: half of the minimum round-trip time more.
    pub error: f64,
    /// Minimum round-trip time, in nanoseconds.
    pub round_trip: f64,
    /// Number of exchanges.
    pub exchanges: u64,
}

impl Default for Exchanges {
    fn default() -> Exchanges {
        Exchanges {
            origin: None,
            length: MIN,
            ways: std::array::from_fn(|_| vec![None; STRETCHES]),
            round_trip: i64::MAX,
            count: 0,
        }
    }
}

impl Exchanges {
    /// Adds an exchange, not before the first.
    pub fn add(&mut self, exchange: &Exchange) {
        let origin = (exchange.departed, exchange.arrived);
        let (here, there) = *self.origin.get_or_insert(origin);
        let since = |time: u64| time.saturating_sub(here);
        // Times relative to the first, so that the numbers stay small.
        let ahead = apart(exchange.arrived, there).saturating_sub(apart(exchange.departed, here));
        let behind = apart(exchange.returned, here).saturating_sub(apart(exchange.replied, there));
        self.count += 1;
        self.round_trip = self.round_trip.min(exchange.round_trip());
        self.note(since(exchange.departed), ahead, 0);
        self.note(since(exchange.returned), behind, 1);
    }

    /// Notes the value of a direction (outbound 0, return 1) at a time.
    fn note(&mut self, time: u64, value: i64, way: usize) {
        while time / self.length >= STRETCHES as u64 {
            self.length *= 2;
            for points in &mut self.ways {
                for place in 0..STRETCHES {
                    let pair = points.iter().skip(2 * place).take(2).flatten();
                    points[place] = pair.min_by_key(|point| point.value).copied();
                }
            }
        }
        let place = (time / self.length) as usize;
        let point = &mut self.ways[way][place];
        if point.is_none_or(|point| value < point.value) {
            *point = Some(Point {
                time: time as f64,
                value,
            });
        }
    }

    /// Estimates the remote clock; `None` without exchanges.
    pub fn fit(&self) -> Option<ClockFit> {
        let (here, there) = self.origin?;
        // The return direction has the slope of opposite sign.
        let sides = [(0, 1.0), (1, -1.0)].map(|(way, sign)| {
            let points: &Vec<Option<Point>> = &self.ways[way];
            let points = points.iter().flatten();
            let points = points.map(|point| (point.time, sign * point.value as f64));
            points.collect::<Vec<(f64, f64)>>()
        });
        let (mut products, mut squares, mut freedom) = (0.0, 0.0, -1.0);
        let mut centres = [(0.0, 0.0); 2];
        for (points, centre) in sides.iter().zip(&mut centres) {
            let count = points.len() as f64;
            let sum = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
            *centre = (sum(|point| point.0), sum(|point| point.1));
            freedom += count - 1.0;
            for (time, value) in points {
                products += (time - centre.0) * (value - centre.1);
                squares += (time - centre.0).powi(2);
            }
        }
        // Zero for a single time.
        let slope = products / f64::max(squares, f64::MIN_POSITIVE);
        let mut residue = 0.0;
        for (points, centre) in sides.iter().zip(centres) {
            for (time, value) in points {
                residue += (value - centre.1 - slope * (time - centre.0)).powi(2);
            }
        }
        let scatter = (residue / freedom.max(1.0)).sqrt();
        let is_known = freedom >= 2.0 && squares > 0.0;
        let skew_error = is_known.then(|| scatter / squares.sqrt());
        let skew = match skew_error {
            Some(error) if slope.abs() > SURE * error => slope,
            _ => 0.0,
        };
        // The lines are as low as the lowest point.
        let at = (centres[0].0 + centres[1].0) / 2.0;
        let lowest = |side: usize, sign: f64| {
            let points = sides[side].iter();
            let heights = points.map(|(time, value)| sign * (value - skew * (time - at)));
            heights.fold(f64::INFINITY, f64::min)
        };
        let (ahead, behind) = (lowest(0, 1.0), lowest(1, -1.0));
        // The lines may be closer together than any exchange, but not further apart.
        let round_trip = (self.round_trip as f64).max(0.0);
        let slack = (round_trip - (ahead + behind)).max(0.0);
        let times = sides.iter().flatten().map(|point| point.0);
        let span = times.fold(0.0, f64::max);
        // Effect at both ends of a skew that is ignored or uncertain. A few exchanges do not show how long they were queued.
        let drift = match skew_error {
            Some(error) => ((slope - skew).abs() + error) * span,
            None => slope.abs() * span + round_trip / 2.0,
        };
        let error_if_symmetric = 2.0 * scatter + slack / 2.0 + drift + 1.0;
        Some(ClockFit {
            offset: (ahead - behind) / 2.0 + apart(there, here) as f64,
            at: here + at as u64,
            skew,
            skew_error,
            error_if_symmetric,
            error: round_trip / 2.0 + error_if_symmetric,
            round_trip,
            exchanges: self.count,
        })
    }
}

impl ClockFit {
    /// Returns the lead of the remote clock when the local one shows `time`, in nanoseconds.
    pub fn offset_at(&self, time: u64) -> f64 {
        self.offset + self.skew * apart(time, self.at) as f64
    }

    /// Returns the outbound delay in nanoseconds.
    pub fn there(&self, exchange: &Exchange) -> f64 {
        let ahead = apart(exchange.arrived, exchange.departed) as f64;
        self.of_here(ahead - self.offset_at(exchange.departed))
    }

    /// Returns the return delay in nanoseconds.
    pub fn back(&self, exchange: &Exchange) -> f64 {
        let behind = apart(exchange.returned, exchange.replied) as f64;
        self.of_here(behind + self.offset_at(exchange.returned))
    }

    /// Converts a duration of the remote clock to the local clock, in nanoseconds.
    pub fn of_here(&self, time: f64) -> f64 {
        time / (1.0 + self.skew)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const MS: f64 = 1e6;

    /// Returns round trips every 10 ms with these minimum delays, and exponential queueing of this mean.
    fn exchanges(
        count: u32,
        ways: [f64; 2],
        wait: f64,
        offset: f64,
        skew: f64,
    ) -> (Exchanges, Vec<Exchange>) {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut waits = || {
            let chance: f64 = random.random();
            -(1.0 - chance).ln() * wait
        };
        let begin = 1.7e18;
        let there = |time: f64| (time + offset + skew * (time - begin)).round();
        let (mut all, mut each) = (Exchanges::default(), Vec::new());
        for number in 0..count {
            let departed = begin + f64::from(number) * 10.0 * MS;
            let arrived = departed + ways[0] + waits();
            let replied = arrived + 20_000.0;
            let returned = replied + ways[1] + waits();
            // At this size f64 resolves 256 ns; as differences, whole nanoseconds are kept.
            let exchange = Exchange {
                departed: departed as u64,
                arrived: there(arrived) as u64,
                replied: there(replied) as u64,
                returned: returned as u64,
            };
            all.add(&exchange);
            each.push(exchange);
        }
        (all, each)
    }

    #[test]
    fn an_offset_and_a_skew_are_found_again() {
        let (all, each) = exchanges(6000, [7.5 * MS, 7.5 * MS], 100_000.0, 3.6e12, 20e-6);
        let fit = all.fit().unwrap();
        assert!((fit.skew - 20e-6).abs() < 1e-6, "{fit:?}");
        let truth = |time: u64| 3.6e12 + 20e-6 * (time as f64 - 1.7e18);
        for exchange in &each {
            let off = fit.offset_at(exchange.departed) - truth(exchange.departed);
            assert!(
                off.abs() < fit.error_if_symmetric.max(20_000.0),
                "{off} {fit:?}"
            );
        }
        assert!((fit.round_trip - 15.0 * MS).abs() < 50_000.0, "{fit:?}");
        let mean = each.iter().map(|one| fit.there(one)).sum::<f64>() / each.len() as f64;
        assert!((mean - 7.6 * MS).abs() < 30_000.0, "{mean}");
    }

    #[test]
    fn without_a_skew_none_is_claimed() {
        let (all, _) = exchanges(500, [1.0 * MS, 1.0 * MS], 50_000.0, -2e9, 0.0);
        let fit = all.fit().unwrap();
        assert_eq!(fit.skew, 0.0, "{fit:?}");
        assert!((fit.offset + 2e9).abs() < 20_000.0, "{fit:?}");
        assert_eq!(Exchanges::default().fit(), None);
    }

    #[test]
    fn one_exchange_gives_an_offset() {
        let mut all = Exchanges::default();
        let one = Exchange {
            departed: 1_000,
            arrived: 50_600,
            replied: 50_700,
            returned: 2_100,
        };
        all.add(&one);
        let fit = all.fit().unwrap();
        assert_eq!(one.round_trip(), 1000);
        assert_eq!((fit.offset, fit.round_trip), (49_100.0, 1000.0));
        assert_eq!((fit.there(&one), fit.back(&one)), (500.0, 500.0));
    }

    proptest! {
        /// For any asymmetry of the delays, the offset is within its stated error.
        #[test]
        fn the_error_is_at_most_the_reported_one(
            there in 0.0f64..50.0, back in 0.0f64..50.0, wait in 0.0f64..500_000.0, offset in -1e12f64..1e12, skew in -50e-6f64..50e-6,
            count in 1u32..300,
        ) {
            let (all, each) = exchanges(count, [there * MS, back * MS], wait, offset, skew);
            let fit = all.fit().unwrap();
            for exchange in &each {
                let truth = offset + skew * (exchange.departed as f64 - 1.7e18);
                let off = (fit.offset_at(exchange.departed) - truth).abs();
                // Plus the rounding of f64 in the construction of the exchanges.
                prop_assert!(off <= fit.error + 2000.0, "{} {:?}", off, fit);
            }
        }

        #[test]
        fn no_times_are_too_wild(times: Vec<[u64; 4]>) {
            let mut all = Exchanges::default();
            for [departed, arrived, replied, returned] in times {
                all.add(&Exchange { departed, arrived, replied, returned });
            }
            let _ = all.fit();
        }
    }
}
