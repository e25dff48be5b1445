//! What a constant bit rate needs of TCP, without simulating each packet: Reno's by its equations, the other laws' by their
//! own steps, a round trip at a time.

use super::congestion::{Acked, Algorithm, CongestionControl, Moment};
use evlbi_core::time::Nanos;

/// Round trips after which a window that has not grown is taken not to.
const MAX_ROUNDS: u64 = 10_000_000;
/// Losses until a law has forgotten how it began.
const CYCLES: u32 = 12;
/// Round trips until a law knows what a path carries.
const KNOWN: u32 = 100;
/// A law that keeps more of the window does not slow down for a loss.
const KEPT: f64 = 0.99;
/// Halvings of the search for the window before a loss.
const HALVINGS: u32 = 40;

/// A flow of constant bit rate over a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cbr {
    /// Bits of payload per second.
    pub rate: f64,
    /// Round trip in seconds.
    pub round_trip: f64,
    /// Payload of a segment in bytes.
    pub segment: f64,
    /// Segments for each step of the window (b): 2 where kernels count acknowledgements that are delayed, 1 where they
    /// count segments.
    pub per_step: f64,
    /// Bits of payload per second that the path carries at most.
    pub link: f64,
}

/// What one lost segment costs a flow of constant bit rate, and what it needs so that it costs no more than time. Data in
/// bytes, times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// Until the window is as before (equation 2-2, with b).
    pub recovery: f64,
    /// Most that is late (equation 2-3, with b).
    pub delayed: f64,
    /// Until messages are timely again; none if they never are.
    pub drain: Option<f64>,
    /// Of the sender: what is late, and what is under way.
    pub buffer: f64,
    /// Part of the segments that may be lost; none where the law does not slow down for losses, or holds the rate whatever is lost.
    pub max_loss: Option<f64>,
}

impl Cbr {
    /// Window that the rate needs, in segments.
    pub fn window(&self) -> f64 {
        self.bdp() / self.segment
    }

    /// Bandwidth-delay product in bytes, C RTT (EXPReS report, equation 2-1).
    pub fn bdp(&self) -> f64 {
        self.rate / 8.0 * self.round_trip
    }

    /// What the flow needs of a law.
    pub fn needs(&self, algorithm: Algorithm) -> Needs {
        match algorithm {
            Algorithm::Reno => self.of_reno(),
            other => self.by_rounds(other),
        }
    }

    /// t_r = b C RTT^2 / (2 MSS), delayed = C t_r / 4, t_d = 2 t_r (EXPReS report, section 2.2.4), p = 3 / (2 b W^2)
    /// (Mathis et al. 1997).
    fn of_reno(&self) -> Needs {
        let bytes = self.rate / 8.0;
        let recovery = self.per_step * bytes * self.round_trip.powi(2) / (2.0 * self.segment);
        let delayed = bytes * recovery / 4.0;
        // Where the path has less than half as much again, what is late goes at what the path has beyond the rate.
        let spare = self.link / self.rate - 1.0;
        let drain = if spare >= 0.5 {
            Some(2.0 * recovery)
        } else {
            // The window grows until the path is full, and then the rest takes as long as it takes.
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

    /// By the steps of the law itself, one loss at the window of the flow.
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

    /// The rate of loss at which the mean of the window is that of the flow: one loss each time that the window has come
    /// to the same height.
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

/// A window that takes a step each round trip.
struct Rounds<'a> {
    flow: &'a Cbr,
    congestion: Box<dyn CongestionControl>,
    window: f64,
    /// Seconds.
    now: f64,
}

impl Rounds<'_> {
    /// At the window of the flow, in congestion avoidance, for long enough to know the path.
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

    /// A round trip.
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

    /// Up to a window: how many segments went, and how long it took in seconds; at least one round.
    fn run(&mut self, top: f64) -> (f64, f64) {
        let (begun, mut segments) = (self.now, 0.0);
        for _ in 0..MAX_ROUNDS {
            let before = self.window;
            self.step();
            if self.window < top {
                segments += before;
                continue;
            }
            // Of the last round, the part until the window is there.
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
