//! BBR version 1: window and pacing from a model of the path, the highest delivery rate and the shortest round-trip time
//! (Cardwell et al. 2016, ACM Queue 14, 5; draft-cardwell-iccrg-bbr-congestion-control-00; constants and order of steps of
//! net/ipv4/tcp_bbr.c, Linux 6.1).
//!
//! Left out is what needs other traffic or the kernel's batches: the detection of policers, and the allowance for
//! acknowledgements that come together.

use std::collections::VecDeque;

use super::{CongestionControl, Control, Delivered, Moment};
use crate::tcp::info::Phase;
use evlbi_core::time::Nanos;

/// Gain of pacing and window that doubles the rate each round trip, 2 / ln 2, and its inverse, in 256ths as Linux has them.
pub const HIGH_GAIN: f64 = 739.0 / 256.0;
const DRAIN_GAIN: f64 = 88.0 / 256.0;
/// Gains of pacing while the bandwidth is probed, each for a round trip.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Gain of the window meanwhile.
const WINDOW_GAIN: f64 = 2.0;
/// Round trips for which a delivery rate counts.
const BANDWIDTH_ROUNDS: u64 = 10;
/// The pipe is full when the bandwidth has not grown by this factor in this number of round trips.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// Highest fraction of lost segments at which the bandwidth is still found: more than that of what the highest gain adds.
pub const MAX_LOSS: f64 = 1.0 - 1.0 / 1.25;
/// Time for which the shortest round trip counts; then it is probed again.
pub const ROUND_TRIP_LENGTH: Nanos = Nanos(10_000_000_000);
/// Window while the shortest round trip is probed.
pub const PROBE_WINDOW: f64 = 4.0;
/// Minimum time of that, once no more is in flight.
pub const PROBE_LENGTH: Nanos = Nanos(200_000_000);
/// Fraction of the bandwidth that pacing leaves to queues to drain.
const MARGIN: f64 = 0.01;
/// Window before anything is known of the path.
const FIRST_WINDOW: f64 = 10.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Doubles the rate each round trip until the pipe is full.
    #[default]
    Startup,
    /// Empties the queue that this made.
    Drain,
    /// Probes for more bandwidth in a phase of [`CYCLE`].
    ProbeBandwidth { phase: usize, since: Nanos },
    /// Empties the pipe to see the shortest round trip. `until` is when it ends, from when the pipe is empty.
    ProbeRoundTrip {
        until: Option<Nanos>,
        is_round: bool,
    },
}

#[derive(Debug, Default)]
pub struct Bbr {
    mode: Mode,
    /// Delivery rates in segments per second that may be the highest of their round trips, with these.
    bandwidths: VecDeque<(u64, f64)>,
    rounds: u64,
    /// Segments delivered when the round trip ends.
    round_end: u64,
    shortest: Option<(Nanos, Nanos)>,
    /// Bandwidth when the pipe was last found not to be full, and round trips since.
    full: (f64, u32),
    is_full: bool,
    /// Window before recovery, or before the pipe was emptied.
    prior: f64,
    was_repairing: bool,
    /// For a round trip after a loss as much leaves as is delivered.
    conserves: bool,
    pacing: f64,
    /// Nothing was in flight, and the application sends again.
    resumes: bool,
}

impl Bbr {
    fn bandwidth(&self) -> f64 {
        self.bandwidths.front().map_or(0.0, |(_, rate)| *rate)
    }

    /// Segments in flight that a gain allows.
    fn product(&self, gain: f64) -> f64 {
        let Some((shortest, _)) = self.shortest else {
            return FIRST_WINDOW;
        };
        let product = (gain * self.bandwidth() * shortest.as_secs_f64()).ceil();
        // Room for what is sent together at both ends, in even numbers; while more is probed for, for more than one.
        let even = 2.0 * ((product + 3.0 * self.batch()) / 2.0).ceil();
        match self.mode {
            Mode::ProbeBandwidth { phase: 0, .. } => even + 2.0,
            _ => even,
        }
    }

    /// Segments that the kernel sends together: those of a millisecond, at most 64 KiB.
    fn batch(&self) -> f64 {
        (self.pacing / 1024.0).floor().clamp(2.0, 45.0)
    }

    /// Notes a delivery rate; whether a round trip begins.
    fn measure(&mut self, taken: &Delivered) -> bool {
        let Some(rate) = taken.rate else {
            return false;
        };
        let begins = taken.before >= self.round_end;
        if begins {
            self.round_end = taken.total;
            self.rounds += 1;
            self.conserves = false;
        }
        if !taken.is_limited || rate >= self.bandwidth() {
            while self
                .bandwidths
                .pop_back_if(|(_, known)| *known <= rate)
                .is_some()
            {}
            self.bandwidths.push_back((self.rounds, rate));
        }
        let oldest = self.rounds.saturating_sub(BANDWIDTH_ROUNDS);
        // The last one counts until there is another.
        while self.bandwidths.len() > 1 && self.bandwidths[0].0 < oldest {
            self.bandwidths.pop_front();
        }
        begins
    }

    fn cycle(&mut self, taken: &Delivered) {
        let Mode::ProbeBandwidth { phase, since } = self.mode else {
            return;
        };
        let shortest = self.shortest.map_or(Nanos::default(), |(time, _)| time);
        let is_long = taken.now.since(since) > shortest;
        let gain = CYCLE[phase];
        let is_over = if gain > 1.0 {
            is_long && (taken.lost > 0 || taken.flight_before >= self.product(gain))
        } else if gain < 1.0 {
            is_long || taken.flight_before <= self.product(1.0)
        } else {
            is_long
        };
        if is_over {
            self.probe_bandwidth((phase + 1) % CYCLE.len(), taken.now);
        }
    }

    fn probe_bandwidth(&mut self, phase: usize, since: Nanos) {
        self.mode = Mode::ProbeBandwidth { phase, since };
    }

    fn look_whether_full(&mut self, taken: &Delivered, begins: bool) {
        if self.is_full || !begins || taken.is_limited {
            return;
        }
        let bandwidth = self.bandwidth();
        if bandwidth >= FULL_GROWTH * self.full.0 {
            self.full = (bandwidth, 0);
            return;
        }
        self.full.1 += 1;
        self.is_full = self.full.1 >= FULL_ROUNDS;
    }

    fn drain(&mut self, taken: &Delivered) {
        if self.mode == Mode::Startup && self.is_full {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && taken.in_flight <= self.product(1.0) {
            // Linux chooses one of the phases but that which drains; here it is always the first of those that cruise.
            self.probe_bandwidth(2, taken.now);
        }
    }

    /// Keeps the shortest round trip, and empties the pipe when it is old. Returns the window to continue with after that.
    fn probe_round_trip(&mut self, taken: &Delivered, begins: bool, window: f64) -> Option<f64> {
        let now = taken.now;
        let is_old = (self.shortest).is_some_and(|(_, at)| now > at.plus(ROUND_TRIP_LENGTH));
        if let Some(time) = taken.round_trip
            && (self.shortest).is_none_or(|(shortest, _)| time < shortest || is_old)
        {
            self.shortest = Some((time, now));
        }
        let is_probing = matches!(self.mode, Mode::ProbeRoundTrip { .. });
        if is_old && !self.resumes && !is_probing {
            self.save(window);
            self.mode = Mode::ProbeRoundTrip {
                until: None,
                is_round: false,
            };
        }
        if let Mode::ProbeRoundTrip { until, is_round } = &mut self.mode {
            match until {
                None if taken.in_flight <= PROBE_WINDOW => {
                    (*until, *is_round) = (Some(now.plus(PROBE_LENGTH)), false);
                    self.round_end = taken.total;
                }
                None => {}
                Some(until) => {
                    *is_round |= begins;
                    if *is_round && now > *until {
                        return Some(self.resume_from_probe(now));
                    }
                }
            }
        }
        self.resumes = false;
        None
    }

    fn resume_from_probe(&mut self, now: Nanos) -> f64 {
        if let Some((_, at)) = &mut self.shortest {
            *at = now;
        }
        match self.is_full {
            true => self.probe_bandwidth(2, now),
            false => self.mode = Mode::Startup,
        }
        self.prior
    }

    /// Keeps the window for after a recovery, or a probe of the round trip.
    fn save(&mut self, window: f64) {
        let is_probing = matches!(self.mode, Mode::ProbeRoundTrip { .. });
        self.prior = match self.was_repairing || is_probing {
            true => self.prior.max(window),
            false => window,
        };
    }

    /// Gains of pacing and window.
    fn gains(&self) -> [f64; 2] {
        match self.mode {
            Mode::Startup => [HIGH_GAIN, HIGH_GAIN],
            Mode::Drain => [DRAIN_GAIN, HIGH_GAIN],
            Mode::ProbeBandwidth { phase, .. } => [CYCLE[phase], WINDOW_GAIN],
            Mode::ProbeRoundTrip { .. } => [1.0, 1.0],
        }
    }

    fn window(&mut self, taken: &Delivered, mut window: f64, gain: f64) -> f64 {
        if taken.newly > 0.0 {
            window = (window - taken.lost as f64).max(1.0);
            let is_repairing = matches!(taken.phase, Phase::Recovery | Phase::Loss);
            let begins = taken.phase == Phase::Recovery && !self.was_repairing;
            if begins {
                self.conserves = true;
                self.round_end = taken.total;
                window = taken.in_flight + taken.newly;
            } else if self.was_repairing && !is_repairing {
                window = window.max(self.prior);
                self.conserves = false;
            }
            self.was_repairing = is_repairing;
            if self.conserves {
                window = window.max(taken.in_flight + taken.newly);
            } else {
                let target = self.product(gain);
                if self.is_full {
                    window = (window + taken.newly).min(target);
                } else if window < target || (taken.total as f64) < FIRST_WINDOW {
                    window += taken.newly;
                }
                window = window.max(PROBE_WINDOW);
            }
        }
        match self.mode {
            Mode::ProbeRoundTrip { .. } => window.min(PROBE_WINDOW),
            _ => window,
        }
    }
}

impl CongestionControl for Bbr {
    /// A loss alone changes nothing: the window is that of [`CongestionControl::control`].
    fn reduce(&mut self, moment: &Moment) -> f64 {
        self.save(moment.window);
        moment.window
    }

    fn timed_out(&mut self) {
        self.was_repairing = true;
        self.full = (0.0, 0);
    }

    fn resume(&mut self, _idle: Nanos) {
        self.resumes = true;
    }

    fn control(&mut self, taken: &Delivered) -> Option<Control> {
        let begins = self.measure(taken);
        self.cycle(taken);
        self.look_whether_full(taken, begins);
        self.drain(taken);
        let restored = self.probe_round_trip(taken, begins, taken.window);
        let window = restored.map_or(taken.window, |prior| taken.window.max(prior));
        let [pacing_gain, window_gain] = self.gains();
        let bandwidth = match self.bandwidth() {
            // Before the first sample.
            0.0 => taken.window / self.shortest.map_or(1e-3, |(time, _)| time.as_secs_f64()),
            known => known,
        };
        let pacing = bandwidth * pacing_gain * (1.0 - MARGIN);
        if self.is_full || pacing > self.pacing {
            self.pacing = pacing;
        }
        Some(Control {
            window: self.window(taken, window, window_gain),
            pacing: self.pacing,
            // What is delivered while the pipe is emptied says nothing of the bandwidth.
            is_limited: matches!(self.mode, Mode::ProbeRoundTrip { .. }),
        })
    }
}

#[cfg(test)]
mod tests;
