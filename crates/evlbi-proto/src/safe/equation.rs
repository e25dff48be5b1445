//! Rate that a TCP flow would have on the same path (RFC 5348, section 3.1).

/// Flow of constant bit rate on a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Bits of data per second.
    pub rate: f64,
    /// Round-trip time, in seconds.
    pub round_trip: f64,
    /// Data per datagram, in bytes.
    pub size: f64,
}

/// Number of bisections in the search for a loss rate: the precision of the result.
const HALVINGS: u32 = 200;

/// Returns the bits per second of a TCP flow with packets of `size` bytes and a round-trip time in seconds, of which a fraction `p`
/// begin a loss event (RFC 5348, section 3.1, with b = 1 and a timeout of four round trips). Infinite without loss.
pub fn tcp_rate(size: f64, round_trip: f64, p: f64) -> f64 {
    let wait = (2.0 * p / 3.0).sqrt();
    let timeouts = 12.0 * (3.0 * p / 8.0).sqrt() * p * (1.0 + 32.0 * p * p);
    8.0 * size / (round_trip * (wait + timeouts))
}

impl Flow {
    /// Returns the rate of the flow in rates of TCP: how many TCP flows it counts as, at a loss event rate of `p`.
    pub fn flows(&self, p: f64) -> f64 {
        self.rate / tcp_rate(self.size, self.round_trip, p)
    }

    /// Returns the loss event rate at which the flow counts as `flows` flows of TCP: the inverse of [`Flow::flows`]. At most 1.
    pub fn loss_at(&self, flows: f64) -> f64 {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            match self.flows(middle) < flows {
                true => low = middle,
                false => high = middle,
            }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loss event rates at which a flow counts as 1 and as 10 flows of TCP.
    #[test]
    fn long_paths_need_clean_paths() {
        for (rate, round_trip, size, [one, ten]) in [
            (512e6, 0.015, 1424.0, [3.3e-6, 3.3e-4]),
            (512e6, 0.095, 1424.0, [8.2e-8, 8.2e-6]),
            (1024e6, 0.015, 1424.0, [8.3e-7, 8.2e-5]),
            (1024e6, 0.095, 1424.0, [2.1e-8, 2.1e-6]),
            (512e6, 0.015, 8232.0, [1.1e-4, 9.4e-3]),
            (512e6, 0.095, 8232.0, [2.8e-6, 2.7e-4]),
        ] {
            let flow = Flow {
                rate,
                round_trip,
                size,
            };
            for (flows, expected) in [(1.0, one), (10.0, ten)] {
                let found = flow.loss_at(flows);
                assert!((found / expected - 1.0).abs() < 0.03, "{flow:?}: {found}");
                assert!((flow.flows(found) / flows - 1.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn extremes_are_numbers() {
        assert_eq!(tcp_rate(1424.0, 0.015, 0.0), f64::INFINITY);
        let slow = Flow {
            rate: 1.0,
            round_trip: 1e-6,
            size: 1500.0,
        };
        assert_eq!(slow.flows(0.0), 0.0);
        assert_eq!(slow.loss_at(1e9), 1.0);
    }
}
