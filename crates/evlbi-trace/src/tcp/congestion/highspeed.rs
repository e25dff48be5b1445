//! HighSpeed TCP: increase and decrease depend on the window (RFC 3649).

use super::{Acked, CongestionControl, Moment, SMALLEST};

/// Reno applies below Low_Window; High_Window and the decrease there define the response (RFC 3649, section 5).
const LOW_WINDOW: f64 = 38.0;
const HIGH_WINDOW: f64 = 83_000.0;
const HIGH_DECREASE: f64 = 0.1;

#[derive(Debug, Default)]
pub struct HighSpeed {
    /// Window at its last growth after slow start, whose row of the table gives the decrease of a loss.
    grown: f64,
}

/// Returns b(w), the fraction of the window that a loss removes (RFC 3649, section 5).
pub fn decrease(window: f64) -> f64 {
    let place = (window / LOW_WINDOW).ln() / (HIGH_WINDOW / LOW_WINDOW).ln();
    ((HIGH_DECREASE - 0.5) * place + 0.5).clamp(HIGH_DECREASE, 0.5)
}

/// Returns a(w), the segments per round trip (RFC 3649, section 5): an integer, as in the table of appendix B, whose rows give
/// the largest window of each.
pub fn increase(window: f64) -> f64 {
    if window <= LOW_WINDOW {
        return 1.0;
    }
    response(window.min(HIGH_WINDOW)).ceil()
}

/// Returns a(w) before rounding.
fn response(window: f64) -> f64 {
    // Loss fraction at this window.
    let loss = 0.078 / window.powf(1.2);
    let b = decrease(window);
    window * window * loss * 2.0 * b / (2.0 - b)
}

/// Returns the largest window of the table row of a window.
fn row(window: f64) -> f64 {
    if window <= LOW_WINDOW {
        return LOW_WINDOW;
    }
    let whole = increase(window);
    let (mut low, mut high) = (window.min(HIGH_WINDOW), HIGH_WINDOW);
    while high - low > 0.5 {
        let middle = f64::midpoint(low, high);
        match response(middle) <= whole {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

impl CongestionControl for HighSpeed {
    /// Linux counts acknowledgements here, however many segments they cover.
    fn grow(&mut self, moment: &Moment, acked: Acked) -> f64 {
        self.grown = moment.window;
        increase(moment.window) * acked.acks / moment.window
    }

    fn reduce(&mut self, moment: &Moment) -> f64 {
        (moment.window * (1.0 - decrease(row(self.grown)))).max(SMALLEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of appendix B.
    #[test]
    fn the_table_of_the_rfc() {
        for (window, a, b) in [
            (38.0, 1.0, 0.50),
            (118.0, 2.0, 0.44),
            (221.0, 3.0, 0.41),
            (1058.0, 8.0, 0.33),
            (9864.0, 28.0, 0.21),
        ] {
            let told = (increase(window), decrease(window));
            assert!((told.0 - a).abs() <= 1.0, "{window} {told:?}");
            assert!((told.1 - b).abs() < 0.01, "{window} {told:?}");
        }
    }
}
