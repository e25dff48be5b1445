//! A flow under SafeUDP: when its data may start, and how much of them is sent.

use evlbi_core::pace::{CatchUp, Pacer};
use evlbi_core::time::Nanos;

use super::{Clock, Flow, Next};
use crate::run::Run;
use crate::safe::{Order, Progress};

/// Percentage by which a flow may be faster, as long as it is late.
const CATCH_UP: u64 = 10;
/// Time by which a datagram may leave late without any effect on the next ones.
const WAKING: Nanos = Nanos(2_000_000);

/// Permission to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// Data may not start yet.
    pub waits: bool,
    /// Everything is shed.
    pub is_stopped: bool,
    /// Fraction of the data that is sent.
    kept: f64,
    /// When the next data may leave, by the schedule: kept data are spread over the time of what is shed.
    free: Nanos,
    /// When the next data may leave at the maximum rate.
    earliest: Nanos,
}

impl Allowed {
    /// Returns what may be sent at first: nothing if the flow `is_safe`, otherwise everything.
    pub fn new(is_safe: bool) -> Allowed {
        Allowed {
            waits: is_safe,
            is_stopped: false,
            kept: 1.0,
            free: Nanos(0),
            earliest: Nanos(0),
        }
    }
}

impl Flow {
    /// Exchanges messages, and applies what they change.
    pub(in super::super) fn drive_safe(&mut self, now: Nanos, run: &Run) {
        let Some(safe) = &mut self.options.safe else {
            return;
        };
        let Some(order) = safe.drive(now, run) else {
            return;
        };
        match order {
            Order::Wait => {}
            Order::Fail => {
                self.error = Some(format!(
                    "{} sends no reports, so nothing was sent: a receiver of SafeUDP with the same key must run there, and UDP must pass to the port after that of the data and back",
                    self.options.to
                ));
                self.current = None;
            }
            Order::Stop => {
                self.allowed.is_stopped = true;
                self.begin_data(now);
            }
            Order::Send(step) => {
                self.allowed.is_stopped = false;
                self.allowed.kept = step.kept();
                // The stream was checked when the flow was prepared.
                if let Ok(shed) = safe.policy(step) {
                    let before = std::mem::replace(&mut self.options.shed, shed);
                    self.note_shedding(before.report());
                }
                self.begin_data(now);
            }
        }
    }

    /// Starts the data if they have waited: at `now`, or at their planned start if that is later.
    fn begin_data(&mut self, now: Nanos) {
        if !std::mem::take(&mut self.allowed.waits) {
            return;
        }
        let late = now.since(self.options.start);
        self.options.start = self.options.start.plus(late);
        self.options.end = self.options.end.map(|end| end.plus(late));
        self.pacer = Pacer::new(self.options.start, CatchUp::DATA);
        self.rated_from = (0, Nanos(0));
        self.shedding_before.clear();
    }

    /// Looks for reports at the next step: one may have arrived.
    pub(in super::super) fn listen(&mut self) {
        if let Some(safe) = &mut self.options.safe {
            safe.listen();
        }
    }

    /// Returns what to do instead of sending, as long as the data wait.
    pub(super) fn waiting_for_reports(&self) -> Option<Next> {
        let safe = self.options.safe.as_ref().filter(|_| self.allowed.waits)?;
        Some(Next::At(safe.next_at()))
    }

    /// Returns when data that are due at `due` by the schedule may leave.
    pub(super) fn shaped(&self, due: Nanos) -> Nanos {
        match self.allowed.kept < 1.0 {
            true => due.max(self.allowed.free),
            false => due,
        }
    }

    /// Notes what a train that was due at `due` has sent and shed: `sent` bytes of data.
    pub(super) fn note_safe(&mut self, due: Nanos, sent: u64, now: Nanos) {
        if self.options.safe.is_none() {
            return;
        }
        if !matches!(self.options.clock, Clock::None) {
            let span = Nanos((self.span(sent).0 as f64 / self.allowed.kept) as u64);
            self.allowed.free = due.plus(span);
            // A flow that is late, for example after it has shed, catches up slowly. Short delays of the thread do not add up.
            let since = self
                .allowed
                .earliest
                .max(now.since(WAKING).max(self.options.start));
            self.allowed.earliest = since.plus(Nanos(span.0 * 100 / (100 + CATCH_UP)));
            self.pacer.hold(self.allowed.earliest);
        }
        let counts = self.outlet.counts();
        let progress = Progress {
            next: self.counts.offered,
            shed: self.counts.shed,
            not_sent: counts.not_sent(),
        };
        if let Some(safe) = &mut self.options.safe {
            safe.progress(progress, counts.refused, now);
        }
    }

    /// Ends the exchange of messages. Returns when to look again; `None` when both ends have agreed.
    pub(super) fn end_safe(&mut self, now: Nanos, run: &Run) -> Option<Nanos> {
        let safe = self.options.safe.as_mut()?;
        safe.end(now);
        let _ = safe.drive(now, run);
        let is_complete = safe.is_complete(now) || self.allowed.waits;
        (!is_complete).then(|| safe.next_at())
    }
}
