//! Liveness of the other endpoint, with all timeouts of both endpoints.

use std::time::Duration;

use evlbi_core::time::Nanos;

use crate::control::Control;
use crate::endpoint::Test;

/// Interval between keepalives of each endpoint.
pub const ALIVE: Duration = Duration::from_secs(1);
/// Timeout for messages of the other endpoint.
pub const GONE: Duration = Duration::from_secs(8);
/// Timeout for messages of a responder since the run was stopped.
pub(super) const STOPPING: Duration = Duration::from_millis(700);
/// Timeout for arrivals of a stream, after which its sender stops (RFC 8084, a circuit breaker); at least several spacings.
const BREAKER: Duration = Duration::from_secs(5);
const SPACINGS: u64 = 5;
/// Both timeouts for a monitored path, so that its outages are measured.
const WATCHED: Duration = Duration::from_secs(60);
/// Both timeouts for TCP, which itself waits for a path to come back.
const STALLED: Duration = Duration::from_secs(30);
/// Timeout for the first arrival by TCP.
const NOTHING: Duration = Duration::from_secs(10);
/// Time for the data of connections to drain after the end of a test.
const DRAINING: Duration = Duration::from_secs(5);
/// Time for it to drain after a stop of the run.
const DRAINING_AT_STOP: Duration = Duration::from_millis(300);
/// Interval between checks for messages and arrivals.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The same for long work: a responder, or a test that reports windows for hours.
pub const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The other endpoint has been silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no message from the other endpoint for {0} s")]
pub struct Gone(u64);

/// Liveness of the other endpoint, and progress of the stream.
pub struct Link {
    gone: Duration,
    breaker: Duration,
    /// The breaker's timeout before the first arrival.
    first: Duration,
    said: Nanos,
    pub(super) arrived: u64,
    arrived_at: Nanos,
}

impl Link {
    pub fn new(test: &Test, now: Nanos) -> Link {
        let streams = test.there.iter().chain(&test.back);
        let spacings = streams.map(|stream| stream.due(SPACINGS * u64::from(stream.burst)));
        let spacings = Duration::from_nanos(spacings.max().unwrap_or_default().0);
        let of = |usual: Duration| match &test.flows {
            _ if test.window.is_some() => WATCHED,
            Some(_) => STALLED,
            None => usual,
        };
        let breaker = of(BREAKER).max(spacings);
        Link {
            gone: of(GONE),
            breaker,
            first: test.flows.as_ref().map_or(breaker, |_| NOTHING),
            said: now,
            arrived: 0,
            arrived_at: now,
        }
    }

    /// Returns an error if the other endpoint is gone.
    pub fn check(&self, control: &Control, now: Nanos) -> Result<(), Gone> {
        match now.since(control.heard()) > self.gone.into() {
            true => Err(Gone(self.gone.as_secs())),
            false => Ok(()),
        }
    }

    /// Records that this much of the stream has arrived there.
    pub fn arrived(&mut self, unique: u64, now: Nanos) {
        if unique > self.arrived {
            self.arrived = unique;
            self.arrived_at = now;
        }
    }

    /// Returns whether nothing has arrived for too long.
    pub fn is_broken(&self, now: Nanos) -> bool {
        now.since(self.arrived_at) > self.timeout().into()
    }

    fn timeout(&self) -> Duration {
        match self.arrived {
            0 => self.first,
            _ => self.breaker,
        }
    }

    /// Returns the text for a stream that is stopped because nothing of it arrives.
    pub fn broken(&self) -> String {
        format!(
            "nothing arrived at the other endpoint for {} s: sending was stopped (circuit breaker, RFC 8084)",
            self.timeout().as_secs()
        )
    }

    /// Returns whether a keepalive is due.
    pub fn is_due(&mut self, now: Nanos) -> bool {
        let due = now.since(self.said) >= ALIVE.into();
        if due {
            self.said = now;
        }
        due
    }
}

/// Returns the poll interval of a test.
pub fn poll_interval(test: &Test, is_in_haste: bool) -> Duration {
    match test.window {
        Some(_) if !is_in_haste => SLOW_POLL_INTERVAL,
        _ => POLL_INTERVAL,
    }
}

/// Returns the time that data of connections has to drain.
pub fn draining(is_in_haste: bool) -> Duration {
    match is_in_haste {
        true => DRAINING_AT_STOP,
        false => DRAINING,
    }
}

#[cfg(test)]
mod tests {
    use crate::endpoint::Flows;
    use crate::measure::{Spacing, Stream};

    use super::*;

    /// Returns three timeouts in seconds: for the other endpoint; for a sender of whose stream nothing has arrived; and for one of whose
    /// stream nothing more arrives.
    fn timeout(test: &Test) -> [f64; 3] {
        let mut link = Link::new(test, Nanos(0));
        let first = link.timeout();
        link.arrived(1, Nanos(0));
        [link.gone, first, link.timeout()].map(|time| time.as_secs_f64())
    }

    #[test]
    fn a_sender_stops_when_nothing_arrives() {
        let of = |spacing: u64, burst: u32| Test {
            there: Some(Stream {
                size: 1000,
                spacing: Spacing::Nanoseconds(spacing),
                burst,
                count: 10,
            }),
            ..Test::default()
        };
        let stream = of(1000, 1);
        assert_eq!(timeout(&stream), [8.0, 5.0, 5.0]);
        // One datagram per three seconds, and bursts every three seconds: five of them.
        for burst in [1, 10] {
            assert_eq!(timeout(&of(3_000_000_000, burst)), [8.0, 15.0, 15.0]);
        }
        // The slower direction counts.
        let both = Test {
            back: of(3_000_000_000, 1).there,
            ..stream.clone()
        };
        assert_eq!(timeout(&both), [8.0, 15.0, 15.0]);
        // Outages of a monitored path are measured.
        let watched = Test {
            window: Some(1000),
            ..stream
        };
        assert_eq!(timeout(&watched), [60.0, 60.0, 60.0]);
        // TCP itself waits for a path to recover; but not for one that never worked.
        let flows = Test {
            flows: Some(Flows::default()),
            ..Test::default()
        };
        assert_eq!(timeout(&flows), [30.0, 10.0, 30.0]);
    }

    #[test]
    fn what_arrived_counts_once() {
        let mut link = Link::new(&Test::default(), Nanos(0));
        let late = Nanos::from(BREAKER * 2);
        link.arrived(0, late);
        assert!(link.is_broken(late));
        link.arrived(5, late);
        assert!(!link.is_broken(late));
        // A repeated count, or a lower one, is not an arrival.
        let later = late.plus(late);
        link.arrived(5, later);
        link.arrived(4, later);
        assert_eq!((link.arrived_at, link.arrived), (late, 5));
        assert!(link.is_broken(later));
        assert!(link.broken().contains("for 5 s") && link.broken().contains("RFC 8084"));
    }
}
