//! Notices to the application: the return codes that the paper asked of sendto and recvfrom (EXPReS report, section 4.7).

use std::fmt;

use evlbi_core::time::Nanos;
use serde::{Deserialize, Serialize};

use super::cause::Cause;
use super::state::Step;

/// Notice to the application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Notice {
    /// When it was given.
    pub at: Nanos,
    /// Its content.
    pub kind: Kind,
    /// The measurements behind it.
    pub evidence: Evidence,
}

impl Notice {
    /// Returns the notice with all its times counted from `start`.
    #[must_use]
    pub fn since(mut self, start: Nanos) -> Notice {
        self.at = self.at.since(start);
        match &mut self.kind {
            Kind::Congested { deadline, .. } => *deadline = deadline.since(start),
            Kind::Stopped {
                until: Some(until), ..
            } => *until = until.since(start),
            _ => {}
        }
        self
    }
}

/// Content of a notice.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Kind {
    /// The receiving host loses data, not the network.
    Host,
    /// A loss did not last.
    Transient {
        /// Number of lost datagrams.
        lost: u64,
        /// Time from its first loss to its last.
        span: Nanos,
    },
    /// Congestion lasts. The application has time to lower its rate.
    Congested {
        /// Maximum rate, in bits of data per second, with which nothing is shed.
        limit: u64,
        /// When data are shed otherwise.
        deadline: Nanos,
    },
    /// Only this part of the data is sent.
    Shedding {
        /// Part that is sent now.
        to: Step,
        /// Part that was sent before.
        from: Step,
    },
    /// The loss has ended at this step.
    Held {
        /// Part that is sent.
        step: Step,
    },
    /// A higher step is tried.
    Trial {
        /// Part that is sent.
        step: Step,
    },
    /// No reports arrive.
    Blind,
    /// Reports arrive, and data do not.
    Stalled,
    /// The destination answers that nobody listens there.
    Refused,
    /// No data are sent.
    Stopped {
        /// Why.
        reason: Reason,
        /// When sending is tried again; `None` if an operator must ask for it.
        until: Option<Nanos>,
    },
    /// The receiver did not answer the first beats: nothing was sent.
    Failed,
    /// Everything is sent, and nothing is lost.
    Clear,
}

impl Kind {
    /// Returns its name.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Host => "host",
            Kind::Transient { .. } => "transient",
            Kind::Congested { .. } => "congested",
            Kind::Shedding { .. } => "shedding",
            Kind::Held { .. } => "held",
            Kind::Trial { .. } => "trial",
            Kind::Blind => "blind",
            Kind::Stalled => "stalled",
            Kind::Refused => "refused",
            Kind::Stopped { .. } => "stopped",
            Kind::Failed => "failed",
            Kind::Clear => "clear",
        }
    }
}

/// Reason of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Too much was lost at the least step that is of use.
    Loss,
    /// No reports arrived.
    Silence,
    /// Reports arrived, but no progress of the data was reported.
    Stall,
    /// The destination answered that nobody listens there.
    Refusal,
}

impl Reason {
    fn text(self) -> &'static str {
        match self {
            Reason::Loss => "too much is lost",
            Reason::Silence => "no reports arrive from the receiver",
            Reason::Stall => "they do not arrive, or are not accounted for",
            Reason::Refusal => "nobody listens at the receiver's host",
        }
    }
}

/// Measurements behind a notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Evidence {
    /// Cause of the loss.
    pub cause: Cause,
    /// Loss event rate (RFC 5348).
    pub p: f64,
    /// Number of TCP flows that this flow counts as; `None` without loss or before the first round-trip time.
    pub q: Option<f64>,
    /// Rate that TCP would have, in bits of data per second; `None` if unlimited.
    pub x_tcp_bps: Option<f64>,
    /// Fraction of the datagrams that was lost in the network, in the last window.
    pub loss: f64,
    /// Fraction of the datagrams that the receiving host lost, in the last window.
    pub host_loss: f64,
    /// Datagrams lost in the network so far.
    pub lost: u64,
    /// Datagrams that the receiving host lost so far.
    pub host_lost: u64,
    /// Datagrams marked for congestion so far (ECN).
    pub marked: u64,
    /// Smoothed round-trip time in seconds; `None` before the first report.
    pub rtt_s: Option<f64>,
    /// Delay of queues on the way to the receiver, in seconds.
    pub queue_s: f64,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let evidence = &self.evidence;
        let percent = |fraction: f64| format!("{:.3} %", fraction * 100.0);
        let sent = |step: Step| match step {
            Step::ALL => "all data".to_owned(),
            _ => format!("{}/16 of the data", step.sixteenths()),
        };
        match self.kind {
            Kind::Host => write!(
                f,
                "the receiving host loses data, not the network: {} datagrams so far",
                evidence.host_lost
            ),
            Kind::Transient { lost, span } => write!(
                f,
                "a loss of {lost} datagrams within {:.3} s did not last; cause: {}",
                span.as_secs_f64(),
                evidence.cause.name()
            ),
            Kind::Congested { deadline, .. } if deadline <= self.at => write!(
                f,
                "congestion lasts: {} lost, cause: {}",
                percent(evidence.loss),
                evidence.cause.name()
            ),
            Kind::Congested { limit, deadline } => write!(
                f,
                "congestion lasts: {} lost, cause: {}; with {:.1} Mbit/s within {:.1} s nothing is shed",
                percent(evidence.loss),
                evidence.cause.name(),
                limit as f64 * 1e-6,
                deadline.since(self.at).as_secs_f64()
            ),
            Kind::Shedding { to, from } => {
                write!(f, "sending {} from now on, {} before", sent(to), sent(from))
            }
            Kind::Held { step } => write!(f, "sending {}: the loss has ended", sent(step)),
            Kind::Trial { step } => write!(f, "trying to send {}", sent(step)),
            Kind::Blind => f.write_str("no reports arrive from the receiver"),
            Kind::Stalled => f.write_str("reports arrive, but no data do"),
            Kind::Refused => f.write_str("the receiver's host answers that nobody listens"),
            Kind::Stopped {
                reason,
                until: None,
            } => write!(f, "no data are sent: {}", reason.text()),
            Kind::Stopped {
                reason,
                until: Some(until),
            } => write!(
                f,
                "no data are sent for {:.0} s: {}",
                until.since(self.at).as_secs_f64(),
                reason.text()
            ),
            Kind::Failed => f.write_str("the receiver sends no reports, so nothing is sent"),
            Kind::Clear => f.write_str("sending all data: nothing is lost"),
        }
    }
}
