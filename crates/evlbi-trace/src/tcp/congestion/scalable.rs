//! Scalable TCP: the window grows by a constant fraction of itself (Kelly 2003).

use super::{Acked, CongestionControl, Moment, SMALLEST};

/// Segments for which the window grows by one: a hundredth (Kelly 2003, a = 0.01), for small windows as in Reno.
const AI_COUNT: f64 = 100.0;
/// Factor of the window after a loss (Kelly 2003, b = 0.125).
const KEPT: f64 = 7.0 / 8.0;

#[derive(Debug)]
pub struct Scalable;

impl CongestionControl for Scalable {
    fn grow(&mut self, moment: &Moment, acked: Acked) -> f64 {
        acked.counted / moment.window.min(AI_COUNT)
    }

    fn reduce(&mut self, moment: &Moment) -> f64 {
        (moment.window * KEPT).max(SMALLEST)
    }
}
