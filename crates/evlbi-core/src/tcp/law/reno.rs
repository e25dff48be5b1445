//! Reno: one segment more for each window, half of it after a loss (RFC 5681).

use super::{Acked, CongestionControl, Moment, SMALLEST};

#[derive(Debug)]
pub struct Reno;

/// One segment for a window's worth of acknowledgements (RFC 5681, equation 3).
pub fn grow(moment: &Moment, acked: Acked) -> f64 {
    acked.counted / moment.window
}

/// Half of the window (RFC 5681, equation 4).
pub fn reduce(moment: &Moment) -> f64 {
    (moment.window / 2.0).max(SMALLEST)
}

impl CongestionControl for Reno {
    fn grow(&mut self, moment: &Moment, acked: Acked) -> f64 {
        grow(moment, acked)
    }

    fn reduce(&mut self, moment: &Moment) -> f64 {
        reduce(moment)
    }
}
