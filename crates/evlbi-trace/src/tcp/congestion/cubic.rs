//! CUBIC: the window is a cubic function of the time since the last loss (RFC 9438).

use super::{Acked, CongestionControl, Moment, SMALLEST};
use evlbi_core::time::Nanos;

/// C of RFC 9438, in segments per second cubed.
const C: f64 = 0.4;
/// Factor of the window after a loss (beta, as in Linux).
const KEPT: f64 = 717.0 / 1024.0;
/// Maximum and minimum number of acknowledged segments per segment of growth before the first loss.
const FIRST: f64 = 20.0;
const FEWEST: f64 = 2.0;

#[derive(Debug, Default)]
pub struct Cubic {
    /// Window before the last loss (W_max), reduced by fast convergence (RFC 9438, section 4.7); 0 before the first.
    maximum: f64,
    epoch: Option<Epoch>,
}

/// State since the last loss.
#[derive(Debug)]
struct Epoch {
    begun: Nanos,
    /// Seconds until the window is that of the origin again (RFC 9438, section 4.2).
    k: f64,
    origin: f64,
    /// Window of Reno (section 4.3).
    friendly: f64,
}

impl CongestionControl for Cubic {
    fn grow(&mut self, moment: &Moment, acked: Acked) -> f64 {
        let window = moment.window;
        let maximum = self.maximum;
        let epoch = self.epoch.get_or_insert_with(|| Epoch {
            begun: moment.now,
            k: ((maximum - window).max(0.0) / C).cbrt(),
            origin: maximum.max(window),
            friendly: window,
        });
        // One round trip ahead: W_cubic(t + RTT), section 4.2.
        let time = moment.now.since(epoch.begun).plus(moment.shortest);
        let target = epoch.origin + C * (time.as_secs_f64() - epoch.k).powi(3);
        let mut segments = match target > window {
            true => window / (target - window),
            false => 100.0 * window,
        };
        if maximum == 0.0 {
            segments = segments.min(FIRST);
        }
        // Reno-friendly region: alpha of section 4.3.
        epoch.friendly += 3.0 * (1.0 - KEPT) / (1.0 + KEPT) * acked.counted / window;
        if epoch.friendly > window {
            segments = segments.min(window / (epoch.friendly - window));
        }
        acked.counted / segments.max(FEWEST)
    }

    fn reduce(&mut self, moment: &Moment) -> f64 {
        let window = moment.window;
        self.epoch = None;
        self.maximum = match window < self.maximum {
            true => window * (1.0 + KEPT) / 2.0,
            false => window,
        };
        (window * KEPT).max(SMALLEST)
    }

    /// Stops the clock of the function while idle (section 5.8).
    fn resume(&mut self, idle: Nanos) {
        if let Some(epoch) = &mut self.epoch {
            epoch.begun = epoch.begun.plus(idle);
        }
    }
}
