//! Whether the other end of a test is still there, and how long either end waits for it: the times that rule it are here.

use std::time::Duration;

use evlbi_core::time::Nanos;

use crate::control::Control;
use crate::endpoint::Test;

/// Each end says as often that it is there.
pub const ALIVE: Duration = Duration::from_secs(1);
/// An end that has not been heard for so long is gone.
pub const GONE: Duration = Duration::from_secs(8);
/// And a responder that has not been heard for so long since the run was stopped.
pub(super) const STOPPING: Duration = Duration::from_millis(700);
/// A sender of whose stream nothing arrives for so long stops (RFC 8084, a circuit breaker); or for several spacings.
const BREAKER: Duration = Duration::from_secs(5);
const SPACINGS: u64 = 5;
/// Both are so long where a path is watched, so that its outages are measured.
const WATCHED: Duration = Duration::from_secs(60);
/// And where TCP itself waits for a path to come back.
const STALLED: Duration = Duration::from_secs(30);
/// But not that it never was there.
const NOTHING: Duration = Duration::from_secs(10);
/// What connections hold when a test is stopped has so long to leave.
const DRAINING: Duration = Duration::from_secs(5);
/// And so long when the run is stopped.
const DRAINING_AT_STOP: Duration = Duration::from_millis(300);
/// Time between looks at what comes.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The same of what lasts: a test that is told window by window, for hours, or a responder.
pub const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The other end is silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end has said nothing for {0} s")]
pub struct Gone(u64);

/// Who is there, and how far it is.
pub struct Link {
    gone: Duration,
    breaker: Duration,
    /// The same before anything has arrived.
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

    /// Whether the other end is still there.
    pub fn check(&self, control: &Control, now: Nanos) -> Result<(), Gone> {
        match now.since(control.heard()) > self.gone.into() {
            true => Err(Gone(self.gone.as_secs())),
            false => Ok(()),
        }
    }

    /// So much of the stream has arrived there.
    pub fn arrived(&mut self, unique: u64, now: Nanos) {
        if unique > self.arrived {
            self.arrived = unique;
            self.arrived_at = now;
        }
    }

    /// Whether nothing has arrived for too long.
    pub fn is_broken(&self, now: Nanos) -> bool {
        now.since(self.arrived_at) > self.patience().into()
    }

    fn patience(&self) -> Duration {
        match self.arrived {
            0 => self.first,
            _ => self.breaker,
        }
    }

    /// What is said when a stream is stopped because nothing of it arrives.
    pub fn broken(&self) -> String {
        format!(
            "nothing arrived at the other end for {} s, so sending was stopped (circuit breaker, RFC 8084)",
            self.patience().as_secs()
        )
    }

    /// Whether it is time to say something.
    pub fn is_due(&mut self, now: Nanos) -> bool {
        let due = now.since(self.said) >= ALIVE.into();
        if due {
            self.said = now;
        }
        due
    }
}

/// Time between looks at what comes of a test.
pub fn look(test: &Test, is_in_haste: bool) -> Duration {
    match test.window {
        Some(_) if !is_in_haste => SLOW_POLL_INTERVAL,
        _ => POLL_INTERVAL,
    }
}

/// How long what connections hold has to leave.
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

    /// Seconds after which the other end is gone, and after which a sender of whose stream nothing has arrived, or nothing more
    /// arrives, stops.
    fn patience(test: &Test) -> [f64; 3] {
        let mut link = Link::new(test, Nanos(0));
        let first = link.patience();
        link.arrived(1, Nanos(0));
        [link.gone, first, link.patience()].map(|time| time.as_secs_f64())
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
        assert_eq!(patience(&stream), [8.0, 5.0, 5.0]);
        // One every three seconds, and trains every three: five of them.
        for burst in [1, 10] {
            assert_eq!(patience(&of(3_000_000_000, burst)), [8.0, 15.0, 15.0]);
        }
        // Of the slower way.
        let both = Test {
            back: of(3_000_000_000, 1).there,
            ..stream.clone()
        };
        assert_eq!(patience(&both), [8.0, 15.0, 15.0]);
        // Outages of a path that is watched are measured.
        let watched = Test {
            window: Some(1000),
            ..stream
        };
        assert_eq!(patience(&watched), [60.0, 60.0, 60.0]);
        // TCP itself waits for a path to come back, but not for one that never was.
        let flows = Test {
            flows: Some(Flows::default()),
            ..Test::default()
        };
        assert_eq!(patience(&flows), [30.0, 10.0, 30.0]);
    }

    #[test]
    fn what_arrived_counts_once() {
        let mut link = Link::new(&Test::default(), Nanos(0));
        let late = Nanos::from(BREAKER * 2);
        link.arrived(0, late);
        assert!(link.is_broken(late));
        link.arrived(5, late);
        assert!(!link.is_broken(late));
        // A count that was reported before, or an older one, is not an arrival.
        let later = late.plus(late);
        link.arrived(5, later);
        link.arrived(4, later);
        assert_eq!((link.arrived_at, link.arrived), (late, 5));
        assert!(link.is_broken(later));
        assert!(link.broken().contains("for 5 s") && link.broken().contains("RFC 8084"));
    }
}
