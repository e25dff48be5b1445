//! The clock at the far end, as round trips show it: offset, skew, and how much of that is certain.
//!
//! Of an exchange four times are known, as of NTP and STAMP (RFC 8762): T1 and T4 of the clock here, T2 and T3 of the one
//! there. T2 - T1 is the delay of the way there and the offset; T4 - T3 that of the way back less the offset. Waiting in
//! queues only ever adds, so the smallest values of stretches of time lie on two lines of opposite slope: the skew. Half
//! the distance of the lines is the offset if the smallest delays of both ways are alike. Nothing that is measured at the
//! ends can tell whether they are; but neither is negative, which bounds the error by half the smallest round trip.

use evlbi_core::time::apart;
use serde::Serialize;

/// Stretches of time whose smallest values are kept; when there are more, each gets twice as long.
const STRETCHES: usize = 64;
/// A first stretch in nanoseconds.
const MIN: u64 = 1_000_000;
/// A skew counts from so many of its standard errors on.
const SURE: f64 = 3.0;

/// The times of an exchange in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The request left here.
    pub departed: u64,
    /// It came there (clock there).
    pub arrived: u64,
    /// The reply left there (clock there).
    pub replied: u64,
    /// It came here.
    pub returned: u64,
}

impl Exchange {
    /// The round trip without the time that the responder took, in nanoseconds.
    pub fn round_trip(&self) -> i64 {
        let here = apart(self.returned, self.departed);
        here.saturating_sub(apart(self.replied, self.arrived))
    }
}

/// Collects exchanges, in bounded memory.
#[derive(Clone, Debug)]
pub struct Exchanges {
    /// Of the first exchange, here and there.
    origin: Option<(u64, u64)>,
    length: u64,
    /// Of the way there, and of the way back.
    ways: [Vec<Option<Point>>; 2],
    round_trip: i64,
    count: u64,
}

/// The smallest value of a stretch, and when it was.
#[derive(Clone, Copy, Debug)]
struct Point {
    time: f64,
    value: i64,
}

/// A clock there against the one here.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockFit {
    /// How much the clock there is ahead at the time `at`, in nanoseconds, if the smallest delays of both ways are alike.
    pub offset: f64,
    /// When that is, by the clock here, in nanoseconds.
    pub at: u64,
    /// How much faster the clock there runs, in seconds per second; 0 where that cannot be told from 0.
    pub skew: f64,
    /// Standard error of the skew; none of too few exchanges.
    pub skew_error: Option<f64>,
    /// How far the offset may be off, in nanoseconds, if the smallest delays of both ways are alike.
    pub error_if_symmetric: f64,
    /// How far it may be off whatever they are, in nanoseconds: half of the smallest round trip more.
    pub error: f64,
    /// The smallest round trip in nanoseconds.
    pub round_trip: f64,
    /// Exchanges that it was made of.
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
    /// One more exchange, not before the first.
    pub fn add(&mut self, exchange: &Exchange) {
        let origin = (exchange.departed, exchange.arrived);
        let (here, there) = *self.origin.get_or_insert(origin);
        let since = |time: u64| time.saturating_sub(here);
        // Times against the first, so that the numbers stay small.
        let ahead = apart(exchange.arrived, there).saturating_sub(apart(exchange.departed, here));
        let behind = apart(exchange.returned, here).saturating_sub(apart(exchange.replied, there));
        self.count += 1;
        self.round_trip = self.round_trip.min(exchange.round_trip());
        self.note(since(exchange.departed), ahead, 0);
        self.note(since(exchange.returned), behind, 1);
    }

    /// The value of a way (there 0, back 1) at a time.
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

    /// What the exchanges say of the clock there; none without any.
    pub fn fit(&self) -> Option<ClockFit> {
        let (here, there) = self.origin?;
        // The way back has the slope of the other sign.
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
        // None of a single moment.
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
        // The lines lie as low as the lowest point.
        let at = (centres[0].0 + centres[1].0) / 2.0;
        let lowest = |side: usize, sign: f64| {
            let points = sides[side].iter();
            let heights = points.map(|(time, value)| sign * (value - skew * (time - at)));
            heights.fold(f64::INFINITY, f64::min)
        };
        let (ahead, behind) = (lowest(0, 1.0), lowest(1, -1.0));
        // The lines may lie closer than any exchange was, but not further apart.
        let round_trip = (self.round_trip as f64).max(0.0);
        let slack = (round_trip - (ahead + behind)).max(0.0);
        let times = sides.iter().flatten().map(|point| point.0);
        let span = times.fold(0.0, f64::max);
        // What a skew that was left out, or is not known so well, does at the ends; and few exchanges tell nothing of how
        // long they waited.
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
    /// How much the clock there is ahead when the one here shows `time`, in nanoseconds.
    pub fn offset_at(&self, time: u64) -> f64 {
        self.offset + self.skew * apart(time, self.at) as f64
    }

    /// Delay of the way there in nanoseconds.
    pub fn there(&self, exchange: &Exchange) -> f64 {
        let ahead = apart(exchange.arrived, exchange.departed) as f64;
        self.of_here(ahead - self.offset_at(exchange.departed))
    }

    /// Delay of the way back in nanoseconds.
    pub fn back(&self, exchange: &Exchange) -> f64 {
        let behind = apart(exchange.returned, exchange.replied) as f64;
        self.of_here(behind + self.offset_at(exchange.returned))
    }

    /// Nanoseconds by the clock here, from a span in nanoseconds by the clock there.
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

    /// Round trips every 10 ms over ways that take at least so long, and an exponential wait of this mean.
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
            // Of numbers of this size f64 keeps 256 ns; whole nanoseconds are kept as distances.
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
    fn one_exchange_tells_an_offset() {
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
        /// However unlike the ways are, the offset lies within what is said.
        #[test]
        fn the_error_is_no_more_than_is_said(
            there in 0.0f64..50.0, back in 0.0f64..50.0, wait in 0.0f64..500_000.0, offset in -1e12f64..1e12, skew in -50e-6f64..50e-6,
            count in 1u32..300,
        ) {
            let (all, each) = exchanges(count, [there * MS, back * MS], wait, offset, skew);
            let fit = all.fit().unwrap();
            for exchange in &each {
                let truth = offset + skew * (exchange.departed as f64 - 1.7e18);
                let off = (fit.offset_at(exchange.departed) - truth).abs();
                // And what f64 has lost in the making of the exchanges.
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
