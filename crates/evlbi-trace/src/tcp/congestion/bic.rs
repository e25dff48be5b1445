//! BIC: a binary search for the window at which a loss occurred (Xu, Harfoush and Rhee 2004).

use super::{Acked, CongestionControl, Moment, SMALLEST};

/// Window below which it behaves like Reno.
const LOW_WINDOW: f64 = 14.0;
/// Maximum increase per round trip, in segments (Smax).
const MAX: f64 = 16.0;
/// Divisor of the search step.
const PART: f64 = 4.0;
/// Number of round trips for [`PART`] segments close to the last maximum.
const SMOOTH: f64 = 20.0;
/// Factor of the window after a loss.
const KEPT: f64 = 819.0 / 1024.0;
/// Maximum number of acknowledged segments per segment of growth before the first loss, after slow start.
const FIRST: f64 = 20.0;

/// Number of values over which the segments per acknowledgement are averaged.
const AVERAGED: f64 = 16.0;

#[derive(Debug)]
pub struct Bic {
    /// Window before the last loss, or somewhat less if it was smaller than the one before that (fast convergence).
    maximum: Option<f64>,
    /// Segments per acknowledgement, times [`AVERAGED`].
    delayed: f64,
}

impl Default for Bic {
    fn default() -> Bic {
        Bic {
            maximum: None,
            delayed: 2.0 * AVERAGED,
        }
    }
}

impl Bic {
    /// Returns the increase per round trip, in segments.
    fn increase(&self, window: f64) -> f64 {
        if window <= LOW_WINDOW {
            return 1.0;
        }
        let slowly = PART / SMOOTH;
        let Some(maximum) = self.maximum else {
            return MAX.max(window / FIRST);
        };
        if window < maximum {
            // Binary search, limited by MAX, in whole segments.
            let step = ((maximum - window) / PART).floor();
            return if step <= 1.0 { slowly } else { step.min(MAX) };
        }
        // Beyond the last maximum it searches for the next, with growing steps.
        let beyond = window - maximum;
        if beyond < PART {
            return slowly;
        }
        (beyond / (PART - 1.0)).min(MAX)
    }
}

impl CongestionControl for Bic {
    fn measure(&mut self, _moment: &Moment, acked: Acked) {
        // In integers, as in Linux: on average half a segment too much.
        let ratio = (self.delayed / AVERAGED).floor();
        self.delayed += acked.segments / acked.acks.max(1.0) - ratio;
    }

    /// Linux compensates for acknowledgements that cover several segments, although it has counted segments since 4.0: the window
    /// grows that much faster than in the paper.
    fn grow(&mut self, moment: &Moment, acked: Acked) -> f64 {
        let ratio = self.delayed / AVERAGED;
        self.increase(moment.window) * ratio * acked.counted / moment.window
    }

    fn reduce(&mut self, moment: &Moment) -> f64 {
        let window = moment.window;
        let is_smaller = self.maximum.is_some_and(|maximum| window < maximum);
        self.maximum = Some(match is_smaller {
            true => window * (1.0 + KEPT) / 2.0,
            false => window,
        });
        match window <= LOW_WINDOW {
            true => (window / 2.0).max(SMALLEST),
            false => (window * KEPT).max(SMALLEST),
        }
    }
}
