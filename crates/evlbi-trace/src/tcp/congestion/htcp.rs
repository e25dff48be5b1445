//! H-TCP: the window grows faster the longer ago the last loss was (Leith and Shorten 2004).

use super::{Acked, CongestionControl, Moment, SMALLEST};
use evlbi_core::time::Nanos;

/// Seconds after a loss in which the increase is Reno's (Delta_L).
const RENO: f64 = 1.0;
/// Bounds of the factor after a loss, which is the ratio of the minimum to the maximum round-trip time.
const MIN: f64 = 0.5;
const MAX: f64 = 0.8;
/// Round-trip time for which the increase is not scaled, and the bounds of the scale.
const UNSCALED: f64 = 0.1;
const SCALES: (f64, f64) = (0.5, 10.0);
/// Relative change of the throughput since the loss before at which other flows must have started or ended: then the factor is
/// one half.
const OTHERS: f64 = 0.2;
/// Round-trip time below which queues cannot be detected.
const SHORT: Nanos = Nanos(10_000_000);
/// Percentage of the longest queue that is remembered after a loss, in case the route has changed.
const REMEMBERED: u64 = 95;
/// Maximum step of the longest round-trip time; a larger one is an outlier.
const OUTLIER: Nanos = Nanos(20_000_000);

#[derive(Debug, Default)]
pub struct HTcp {
    lost: Option<Nanos>,
    longest: Nanos,
    beta: Option<f64>,
    /// Whether the ratio of round-trip times may be used: not at the first loss.
    adapts: bool,
    throughput: Throughput,
}

/// Segments per second in each round trip, through a low-pass filter.
#[derive(Debug, Default)]
struct Throughput {
    begun: Option<Nanos>,
    segments: f64,
    now: f64,
    /// Maximum since the last loss, and before it.
    max: f64,
    before: f64,
}

impl HTcp {
    fn beta(&self) -> f64 {
        self.beta.unwrap_or(MIN)
    }

    /// Returns the increase per round trip, in segments: 2 (1 - beta) f(Delta), Leith and Shorten 2004.
    fn increase(&self, moment: &Moment) -> f64 {
        let since = moment.now.since(self.lost.unwrap_or_default());
        let late = (since.as_secs_f64() - RENO).max(0.0);
        // Linux uses integers here.
        let mut factor = (1.0 + 10.0 * late + 0.25 * late * late).floor();
        let shortest = moment.shortest.as_secs_f64();
        if shortest > 0.0 {
            // Gives flows of all round-trip times the same share.
            factor /= (UNSCALED / shortest).clamp(SCALES.0, SCALES.1);
        }
        2.0 * factor.floor().max(1.0) * (1.0 - self.beta())
    }
}

impl CongestionControl for HTcp {
    fn measure(&mut self, moment: &Moment, acked: Acked) {
        let known = self.longest.max(moment.shortest);
        if moment.round_trip > known && moment.round_trip <= known.plus(OUTLIER) {
            self.longest = moment.round_trip;
        }
        let throughput = &mut self.throughput;
        throughput.segments += acked.segments;
        let begun = *throughput.begun.get_or_insert(moment.now);
        let length = moment.now.since(begun);
        if length >= moment.shortest.max(Nanos(1)) {
            let rate = throughput.segments / length.as_secs_f64();
            throughput.now = match throughput.now {
                0.0 => rate,
                now => (3.0 * now + rate) / 4.0,
            };
            throughput.max = throughput.max.max(throughput.now);
            (throughput.segments, throughput.begun) = (0.0, Some(moment.now));
        }
    }

    fn grow(&mut self, moment: &Moment, acked: Acked) -> f64 {
        self.increase(moment) * acked.counted / moment.window
    }

    fn reduce(&mut self, moment: &Moment) -> f64 {
        let throughput = &mut self.throughput;
        let has_changed = (throughput.max - throughput.before).abs() > OTHERS * throughput.before;
        throughput.before = throughput.max;
        throughput.max = throughput.now;
        let ratio = moment.shortest.0 as f64 / self.longest.max(Nanos(1)).0 as f64;
        let is_known = self.adapts && moment.shortest > SHORT && self.longest.0 > 0;
        self.beta = Some(match is_known && !has_changed {
            true => ratio.clamp(MIN, MAX),
            false => MIN,
        });
        self.adapts = !has_changed;
        self.lost = Some(moment.now);
        let queue = self.longest.since(moment.shortest);
        self.longest = moment.shortest.plus(Nanos(queue.0 / 100 * REMEMBERED));
        (moment.window * self.beta()).max(SMALLEST)
    }

    /// Sets the time of the loss to that of its repair.
    fn recovered(&mut self, moment: &Moment) -> Option<f64> {
        self.lost = Some(moment.now);
        None
    }
}
