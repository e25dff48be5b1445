//! BIC: a binary search for the window at which something was lost (Xu, Harfoush and Rhee 2004).

use super::{Acked, CongestionControl, Moment, SMALLEST};

/// Smaller windows obey Reno's law.
const LOW_WINDOW: f64 = 14.0;
/// Most segments for each round trip (Smax).
const MAX: f64 = 16.0;
/// The search goes this part of the way.
const PART: f64 = 4.0;
/// Close to the last maximum the window takes so many round trips for [`PART`] segments.
const SMOOTH: f64 = 20.0;
/// What a loss leaves.
const KEPT: f64 = 819.0 / 1024.0;
/// Before the first loss beyond slow start a segment comes with no more than so many.
const FIRST: f64 = 20.0;

/// The segments that an acknowledgement covers are averaged over so many of these.
const AVERAGED: f64 = 16.0;

#[derive(Debug)]
pub struct Bic {
    /// Window before the last loss, or somewhat less when it was smaller than that before (fast convergence).
    maximum: Option<f64>,
    /// Segments for each acknowledgement, [`AVERAGED`] times.
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
    /// Segments for each round trip.
    fn increase(&self, window: f64) -> f64 {
        if window <= LOW_WINDOW {
            return 1.0;
        }
        let slowly = PART / SMOOTH;
        let Some(maximum) = self.maximum else {
            return MAX.max(window / FIRST);
        };
        if window < maximum {
            // The binary search, no faster than MAX, in whole segments.
            let step = ((maximum - window) / PART).floor();
            return if step <= 1.0 { slowly } else { step.min(MAX) };
        }
        // Beyond the last maximum it looks for the next, ever faster.
        let beyond = window - maximum;
        if beyond < PART {
            return slowly;
        }
        (beyond / (PART - 1.0)).min(MAX)
    }
}

impl CongestionControl for Bic {
    fn measure(&mut self, _moment: &Moment, acked: Acked) {
        // In whole numbers, as Linux has it: half a segment too much on average.
        let ratio = (self.delayed / AVERAGED).floor();
        self.delayed += acked.segments / acked.acks.max(1.0) - ratio;
    }

    /// Linux makes up for acknowledgements that cover several segments, though since 4.0 it counts the segments: the window
    /// grows by so much more than the paper has it.
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
