//! Westwood+: Reno that continues after a loss with what the path carried (Grieco and Mascolo 2004).

use super::{Acked, CongestionControl, Moment, SMALLEST};
use evlbi_core::time::Nanos;

/// Minimum duration of a bandwidth sample, which is otherwise a round trip.
const MIN: Nanos = Nanos(50_000_000);

#[derive(Debug, Default)]
pub struct Westwood {
    begun: Option<Nanos>,
    segments: f64,
    /// Segments per second, through one low-pass filter and a second one.
    once: f64,
    twice: f64,
}

impl CongestionControl for Westwood {
    fn measure(&mut self, moment: &Moment, acked: Acked) {
        self.segments += acked.segments;
        let length = moment.now.since(*self.begun.get_or_insert(moment.now));
        if length < moment.round_trip.max(MIN) {
            return;
        }
        let rate = self.segments / length.as_secs_f64();
        if self.twice == 0.0 {
            (self.once, self.twice) = (rate, rate);
        } else {
            self.once = (7.0 * self.once + rate) / 8.0;
            self.twice = (7.0 * self.twice + self.once) / 8.0;
        }
        (self.segments, self.begun) = (0.0, Some(moment.now));
    }

    /// Returns bandwidth times the minimum round-trip time (Grieco and Mascolo 2004).
    fn recovered(&mut self, moment: &Moment) -> Option<f64> {
        Some((self.twice * moment.shortest.as_secs_f64()).max(SMALLEST))
    }
}
