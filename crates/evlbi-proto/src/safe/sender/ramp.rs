//! Probes before the data: they find out whether the path has room.

use evlbi_core::time::Nanos;

use super::super::control::Probed;
use super::super::equation::Flow;
use super::super::message::{Header, Report};
use super::super::{RAMP, RAMP_ROUND_TRIPS, RAMP_TIME, SEVERE_LOSS};

/// Time after the end of a stage in which its probes arrive.
const PATIENCE: Nanos = Nanos(500_000_000);
/// Minimum time without probes after a rate that was too high.
const DRAIN: Nanos = Nanos(200_000_000);
/// Number of bad results of a stage after which its rate is too high.
const MAX_BAD: u32 = 2;
/// Maximum time that probes are sent late at once.
const MAX_LATE: Nanos = Nanos(10_000_000);

/// Ramp of probes.
#[derive(Clone, Debug)]
pub struct Ramp {
    stage: usize,
    since: Nanos,
    bad: u32,
    /// Probes sent, in all and when this stage began.
    sent: u64,
    sent_before: u64,
    /// Probes lost when this stage began.
    lost_before: u64,
    /// Last probe of this stage, once its time is over.
    end: Option<u64>,
    next: Nanos,
    spacing: Nanos,
    heard: (u64, u64),
    is_over: bool,
    /// Result of a ramp that met a limit, and when the queue that its probes filled is empty again.
    result: Option<(Nanos, Ramped)>,
}

/// Result of a ramp.
#[derive(Clone, Copy, Debug)]
pub struct Ramped {
    /// Fraction of the rate that the path carried.
    pub kept: f64,
    /// Loss that showed it.
    pub limit: Option<Probed>,
}

impl Ramp {
    /// Returns how long before planned data a ramp begins: about twice its time.
    pub fn span(round_trip: Nanos) -> Nanos {
        Nanos(2 * RAMP.len() as u64 * Ramp::length(round_trip).0)
    }

    /// Returns the time of a stage.
    fn length(round_trip: Nanos) -> Nanos {
        RAMP_TIME.max(Nanos(round_trip.0.saturating_mul(RAMP_ROUND_TRIPS)))
    }

    pub fn new(flow: Flow, now: Nanos) -> Ramp {
        let mut ramp = Ramp {
            stage: 0,
            since: now,
            bad: 0,
            sent: 0,
            sent_before: 0,
            lost_before: 0,
            end: None,
            next: now,
            spacing: Nanos(0),
            heard: (0, 0),
            is_over: false,
            result: None,
        };
        ramp.enter(0, flow, now);
        ramp
    }

    fn enter(&mut self, stage: usize, flow: Flow, now: Nanos) {
        self.stage = stage;
        self.since = now;
        self.sent_before = self.sent;
        self.end = None;
        self.next = now;
        let rate = (flow.rate * RAMP[stage]).max(1.0);
        self.spacing = Nanos::from_secs_f64((flow.size + 8.0) * 8.0 / rate).max(Nanos(1));
    }

    /// Returns the probes sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the header of the probe that is due, if any.
    pub fn probe(&mut self, now: Nanos, flow: u64) -> Option<Header> {
        if self.is_over || now < self.next {
            return None;
        }
        self.next = self.next.max(now.since(MAX_LATE)).plus(self.spacing);
        self.sent += 1;
        Some(Header {
            flags: 0,
            flow,
            number: self.sent,
            departure: now,
        })
    }

    /// Returns when the next probe is due.
    pub fn next_at(&self) -> Option<Nanos> {
        (!self.is_over).then_some(self.next)
    }

    pub fn report(&mut self, report: &Report) {
        self.heard = (report.probe_highest, report.probes);
    }

    /// Returns the result once it is known. A flow may count as `weight` flows of TCP.
    pub fn advance(&mut self, now: Nanos, flow: Flow, weight: f64) -> Option<Ramped> {
        let round_trip = Nanos::from_secs_f64(flow.round_trip);
        let length = Ramp::length(round_trip);
        if let Some((at, result)) = self.result {
            return (now >= at).then_some(result);
        }
        if self.is_over || now.since(self.since) < length {
            return None;
        }
        let end = *self.end.get_or_insert(self.sent);
        let (highest, count) = self.heard;
        let patience = length.plus(PATIENCE).plus(Nanos(2 * round_trip.0));
        if highest < end && now.since(self.since) < patience {
            return None;
        }
        let lost_until = highest.max(end) - count;
        let lost = lost_until.saturating_sub(self.lost_before);
        self.lost_before = self.lost_before.max(lost_until);
        let sent = (highest.max(end) - self.sent_before.min(end)).max(1);
        // At most one loss event per round trip.
        let round_trips = now.since(self.since).as_secs_f64() / flow.round_trip.max(1e-6);
        let p = (lost as f64).min(round_trips.max(1.0)) / sent as f64;
        let stage = Flow {
            rate: flow.rate * RAMP[self.stage],
            ..flow
        };
        let is_bad =
            lost > 0 && (stage.flows(p) > weight || lost as f64 > SEVERE_LOSS * sent as f64);
        // Half of the first rate was not tried: the data will show whether there is room for that.
        let before = self.stage.checked_sub(1);
        let before = before.map_or(RAMP[0] / 2.0, |stage| RAMP[stage]);
        match is_bad {
            true => {
                self.bad += 1;
                if self.bad >= MAX_BAD {
                    self.is_over = true;
                    let drained = now.plus(DRAIN.max(Nanos(2 * round_trip.0)));
                    let limit = Probed {
                        flow: stage,
                        p,
                        loss: lost as f64 / sent as f64,
                        lost,
                    };
                    let ramped = Ramped {
                        kept: before,
                        limit: Some(limit),
                    };
                    self.result = Some((drained, ramped));
                    return None;
                }
                self.enter(self.stage, flow, now);
                None
            }
            false if self.stage + 1 == RAMP.len() => {
                self.is_over = true;
                Some(Ramped {
                    kept: 1.0,
                    limit: None,
                })
            }
            false => {
                self.bad = 0;
                self.enter(self.stage + 1, flow, now);
                None
            }
        }
    }
}
