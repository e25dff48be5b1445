//! Status of a running sender.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::run::Run;
use evlbi_net::safe::Shown;
use evlbi_net::transmit::Sent;
use evlbi_wire::units::{show_count, show_rate};
use parking_lot::Mutex;

use super::changes::Changes;
use super::safe;
use crate::control_socket::{Change, Rate, Sending, Status, Watched};
use crate::counters::{self, Counts};

/// Minimum delay behind the schedule that a sender reports while it runs.
const SHOWN_BEHIND: Nanos = Nanos(100_000_000);

/// A running sender for those that watch and change it.
pub struct Seen {
    sent: Arc<Sent>,
    changes: Mutex<Changes>,
    /// Length of the source, in bytes.
    total: Option<u64>,
    safe: Option<Shown>,
    run: Run,
    rate: Mutex<Rate>,
    has_ended: AtomicBool,
}

impl Seen {
    pub(super) fn new(
        changes: Changes,
        total: Option<u64>,
        safe: Option<Shown>,
        run: &Run,
    ) -> Seen {
        Seen {
            sent: Arc::clone(&changes.sent),
            total,
            safe,
            changes: Mutex::new(changes),
            run: run.clone(),
            rate: Mutex::new(Rate::from(run.clock().now())),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Keeps the last measured rate after the end. Returns the requested rates, in order.
    pub fn end(&self) -> Vec<u64> {
        self.has_ended.store(true, Ordering::Relaxed);
        self.changes.lock().rates.clone()
    }

    /// Returns the status of the sender.
    pub fn status(&self) -> Sending {
        let live = self.sent.last();
        let mut rate = self.rate.lock();
        let rate_bps = match self.has_ended.load(Ordering::Relaxed) {
            true => rate.last(),
            false => rate.of(live.bytes, self.run.clock().now()),
        };
        let changes = self.changes.lock();
        Sending {
            rate_asked_bps: changes.stream.rate.map(BitRate::get),
            shed_policy: changes.options.shed.to_string(),
            safe: self.safe.as_ref().and_then(safe::status),
            counts: Counts::of(counters::SENT, &counters::Sent { live, rate_bps }),
        }
    }
}

impl Watched for Seen {
    fn tell(&self, status: &mut Status) {
        status.sending = Some(self.status());
    }

    fn change(&self, change: &Change) -> Result<(), String> {
        let changed = self.changes.lock().take(change);
        changed.map_err(|why| self.run.explain(&why))
    }

    fn progress(&self) -> (u64, Option<u64>) {
        (self.sent.last().offset, self.total)
    }

    fn line(&self) -> String {
        let live = self.sent.last();
        let datagrams = show_count(live.sent);
        let rate = show_rate(self.rate.lock().last());
        let mut line = format!("{rate}  {datagrams} datagrams");
        if live.behind >= SHOWN_BEHIND {
            line += &format!("  {:.1} s behind", live.behind.as_secs_f64());
        }
        if let Some(safe) = self.safe.as_ref().and_then(safe::status) {
            line += &format!("  safe {}", safe.text());
        }
        line
    }
}
