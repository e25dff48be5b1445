//! Needs of a constant bit rate over TCP, without simulating each packet: for Reno and BBR by equations, for the other algorithms
//! by their steps, one round trip at a time.

use super::congestion::bbr;
use super::congestion::{Acked, Algorithm, CongestionControl, Moment};
use evlbi_core::time::Nanos;

/// Maximum number of round trips after which a window counts as not growing.
const MAX_ROUNDS: u64 = 10_000_000;
/// Number of losses after which an algorithm has forgotten its initial state.
const CYCLES: u32 = 12;
/// Number of round trips after which an algorithm knows the capacity of the path.
const KNOWN: u32 = 100;
/// Factor above which an algorithm does not slow down after a loss.
const KEPT: f64 = 0.99;
/// Number of bisections in the search for the window before a loss.
const HALVINGS: u32 = 40;

/// Flow of constant bit rate over a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cbr {
    /// Bits of payload per second.
    pub rate: f64,
    /// Round-trip time, in seconds.
    pub round_trip: f64,
    /// Payload of a segment, in bytes.
    pub segment: f64,
    /// Segments per step of the window (b): 2 if kernels count delayed acknowledgements, 1 if they count segments.
    pub per_step: f64,
    /// Maximum bits of payload per second of the path.
    pub link: f64,
}

/// Effect of one lost segment on a flow of constant bit rate, and what the flow needs so that no data are lost. Data are in
/// bytes, times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// Recovery time of the window (equation 2-2, with b).
    pub recovery: f64,
    /// Maximum amount of late data (equation 2-3, with b).
    pub delayed: f64,
    /// Time until messages are on time again; `None` if they never are.
    pub drain: Option<f64>,
    /// Send buffer: late data and data in flight.
    pub buffer: f64,
    /// Maximum loss fraction; `None` if the algorithm does not slow down after losses, or sustains the rate at any loss.
    pub max_loss: Option<f64>,
}

impl Cbr {
    /// Returns the window that the rate needs, in segments.
    pub fn window(&self) -> f64 {
        self.bdp() / self.segment
    }

    /// Returns the bandwidth-delay product in bytes, C RTT (EXPReS report, equation 2-1).
    pub fn bdp(&self) -> f64 {
        self.rate / 8.0 * self.round_trip
    }

    /// Returns what the flow needs with an algorithm.
    pub fn needs(&self, algorithm: Algorithm) -> Needs {
        match algorithm {
            Algorithm::Reno => self.of_reno(),
            Algorithm::Bbr => self.of_bbr(),
            other => self.by_rounds(other),
        }
    }

    /// Solves the equations: t_r = b C RTT^2 / (2 MSS), delayed = C t_r / 4, t_d = 2 t_r (EXPReS report, section 2.2.4), p = 3 /
    /// (2 b W^2) (Mathis et al. 1997).
    fn of_reno(&self) -> Needs {
        let bytes = self.rate / 8.0;
        let recovery = self.per_step * bytes * self.round_trip.powi(2) / (2.0 * self.segment);
        let delayed = bytes * recovery / 4.0;
        // If the path has less than half of the rate to spare, late data are sent at that spare rate.
        let spare = self.link / self.rate - 1.0;
        let drain = if spare >= 0.5 {
            Some(2.0 * recovery)
        } else {
            // The window grows until the path is full; the rest is sent at the spare rate.
            let until_full = 2.0 * spare * recovery;
            let gone = spare * bytes * until_full / 2.0;
            (spare > 0.0).then(|| recovery + until_full + (delayed - gone) / (spare * bytes))
        };
        Needs {
            recovery,
            delayed,
            drain,
            buffer: delayed + self.bdp(),
            // A window of less than a segment needs no equation.
            max_loss: Some(3.0 / (2.0 * self.per_step * self.window().powi(2)))
                .filter(|loss| *loss < 1.0),
        }
    }

    /// Calculates BBR's needs. A loss changes nothing, but every 10 s BBR empties the pipe to measure the minimum round-trip time
    /// (ProbeRTT): one round trip passes until at most 4 segments are in flight, then whole round trips of at least 200 ms. The
    /// late data then leaves at the spare rate of the path, at most at the gain of Startup, in which a flow of constant bit rate
    /// stays.
    fn of_bbr(&self) -> Needs {
        let bytes = self.rate / 8.0;
        let rounds = (bbr::PROBE_LENGTH.as_secs_f64() / self.round_trip)
            .ceil()
            .max(1.0);
        let recovery = (1.0 + rounds) * self.round_trip;
        let sent = rounds * bbr::PROBE_WINDOW * self.segment;
        let delayed = (bytes * recovery - sent).max(0.0);
        let spare = (self.link / self.rate).min(bbr::HIGH_GAIN) - 1.0;
        Needs {
            recovery,
            delayed,
            drain: (spare > 0.0).then(|| recovery + delayed / (spare * bytes)),
            buffer: delayed + self.bdp(),
            max_loss: Some(bbr::MAX_LOSS),
        }
    }

    /// Runs the steps of the algorithm, with one loss at the window of the flow.
    pub(super) fn by_rounds(&self, algorithm: Algorithm) -> Needs {
        let mut rounds = Rounds::begin(self, algorithm);
        let full = self.window();
        rounds.run(full);
        rounds.lose();
        let (mut late, mut delayed, mut recovery, mut drain) = (0.0, 0.0f64, None, None);
        let begun = rounds.now;
        for _ in 0..MAX_ROUNDS {
            let before = (rounds.now, rounds.window, late);
            late += (self.rate / 8.0 - rounds.bytes_per_second()) * self.round_trip;
            rounds.step();
            let share = |from: f64, to: f64, at: f64| ((at - from) / (to - from)).clamp(0.0, 1.0);
            let time = |part: f64| before.0 + part * self.round_trip - begun;
            delayed = delayed.max(late);
            if recovery.is_none() && rounds.window >= full {
                let part = match before.1 < full {
                    true => share(before.1, rounds.window, full),
                    false => 0.0,
                };
                recovery = Some(time(part));
            }
            if recovery.is_some() && late <= 0.0 {
                drain = Some(time(share(before.2, late, 0.0)));
                break;
            }
            if recovery.is_some() && self.link <= self.rate {
                break;
            }
        }
        Needs {
            recovery: recovery.unwrap_or(f64::INFINITY),
            delayed,
            drain,
            buffer: delayed + self.bdp(),
            max_loss: self.max_loss(algorithm),
        }
    }

    /// Returns the loss fraction at which the mean window is that of the flow, with one loss each time that the window has
    /// reached the same height.
    fn max_loss(&self, algorithm: Algorithm) -> Option<f64> {
        let need = self.window();
        let cycle = |top: f64| {
            let mut rounds = Rounds::begin(self, algorithm);
            rounds.run(top);
            let (mut segments, mut length) = (0.0, 0.0);
            for _ in 0..CYCLES {
                rounds.lose();
                if rounds.window > KEPT * top {
                    return None;
                }
                (segments, length) = rounds.run(top);
            }
            Some((segments * self.round_trip / length, 1.0 / segments))
        };
        let (mut low, mut high) = (need, 4.0 * need);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            match cycle(middle)? {
                (mean, _) if mean < need => low = middle,
                _ => high = middle,
            }
        }
        cycle(high).map(|(_, loss)| loss)
    }
}

/// Window that takes one step per round trip.
struct Rounds<'a> {
    flow: &'a Cbr,
    congestion: Box<dyn CongestionControl>,
    window: f64,
    /// Time in seconds.
    now: f64,
}

impl Rounds<'_> {
    /// Starts at the window of the flow, in congestion avoidance, for long enough to know the path.
    fn begin(flow: &Cbr, algorithm: Algorithm) -> Rounds<'_> {
        let mut rounds = Rounds {
            flow,
            congestion: algorithm.begin(),
            window: flow.window(),
            now: 0.0,
        };
        for _ in 0..KNOWN {
            rounds.measure();
        }
        rounds
    }

    /// Runs one round trip.
    fn measure(&mut self) -> Acked {
        let acks = self.window / self.flow.per_step;
        let acked = Acked {
            segments: self.window,
            acks,
            counted: acks,
        };
        self.now += self.flow.round_trip;
        self.congestion.measure(&self.moment(), acked);
        acked
    }

    fn moment(&self) -> Moment {
        let round_trip = Nanos::from_secs_f64(self.flow.round_trip);
        Moment {
            now: Nanos::from_secs_f64(self.now),
            window: self.window,
            round_trip,
            shortest: round_trip,
        }
    }

    fn step(&mut self) {
        let acked = self.measure();
        self.window += self.congestion.grow(&self.moment(), acked);
    }

    /// Runs until the window reaches `top`, at least one round; returns the segments sent and the time in seconds.
    fn run(&mut self, top: f64) -> (f64, f64) {
        let (begun, mut segments) = (self.now, 0.0);
        for _ in 0..MAX_ROUNDS {
            let before = self.window;
            self.step();
            if self.window < top {
                segments += before;
                continue;
            }
            // Fraction of the last round until the window is reached.
            let part = ((top - before) / (self.window - before)).clamp(0.0, 1.0);
            segments += before * part;
            self.now -= (1.0 - part) * self.flow.round_trip;
            self.window = top;
            break;
        }
        (segments, self.now - begun)
    }

    fn lose(&mut self) {
        self.window = self.congestion.reduce(&self.moment());
        let recovered = self.congestion.recovered(&self.moment());
        self.window = recovered.unwrap_or(self.window);
    }

    fn bytes_per_second(&self) -> f64 {
        let offered = self.window * self.flow.segment / self.flow.round_trip;
        offered.min(self.flow.link / 8.0)
    }
}
