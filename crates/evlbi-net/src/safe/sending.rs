//! The sending end of a flow: messages, and what the flow may send.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use evlbi_core::shed::{Fraction, Policy, Shed, ShedError, Stream};
use evlbi_core::time::Nanos;
use evlbi_proto::safe::{
    Accounts, BLOCK, Key, Kind, Notice, Order, Output, Progress, Sender, Settings, Status, Step,
};
use parking_lot::Mutex;

use crate::clock::Events;
use crate::run::Run;
use crate::transport::{Messages, OpenError, Outgoing, Url};

use super::message_address;

/// Maximum number of messages that are taken at once.
const MAX_MESSAGES: usize = 16;
/// Minimum time between two looks for reports.
const LOOK: Nanos = Nanos(100_000);
/// Maximum number of notices that are kept.
const MAX_NOTICES: usize = 1000;
/// Maximum number of the latest notices that are kept.
const MAX_LATEST: usize = 20;

/// State of a flow for its watchers.
pub type Shown = Arc<Mutex<SentSafely>>;

/// State of a flow, and what has happened to it.
#[derive(Clone, Debug, Default)]
pub struct SentSafely {
    /// State and measurements; `None` before the flow was started.
    pub status: Option<Status>,
    /// Notices, the first thousand, with the time since the start of the flow.
    pub notices: Vec<Notice>,
    /// The latest notices, at most twenty.
    pub latest: VecDeque<Notice>,
    /// Name of the notice since which data are held back without an end; `None` while what may be sent is sent.
    pub cut_off: Option<&'static str>,
    /// Accounts on which both ends agree, at the end.
    pub accounts: Option<Accounts>,
}

/// Sending end of a flow.
pub struct SafeSending {
    sender: Sender,
    messages: Messages,
    to: SocketAddr,
    shown: Shown,
    begun: Nanos,
    looked: Nanos,
    /// Number of answers that nobody listens, so far.
    refused: u64,
    seed: u64,
    stream: Stream,
    order: Order,
}

impl SafeSending {
    /// Opens the socket for messages to the receiver at the end of `outlet`, and starts to ask for reports. `stream` and `seed` determine
    /// what is shed.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the transport has no way back, or the socket cannot be opened.
    pub fn open(
        url: &Url,
        outlet: &dyn Outgoing,
        (settings, key): (Settings, Key),
        (stream, seed): (Stream, u64),
        run: &Run,
    ) -> Result<SafeSending, OpenError> {
        let to = outlet.peer().and_then(message_address);
        let to = to.ok_or_else(|| OpenError::NoMessages(url.to_string()))?;
        let messages = url.transport().open_messages(url, to, false, run)?;
        let now = run.clock().now();
        Ok(SafeSending {
            sender: Sender::new(settings, key, now),
            messages,
            to,
            shown: Shown::default(),
            begun: now,
            looked: now,
            refused: 0,
            seed,
            stream,
            order: Order::Wait,
        })
    }

    /// Returns the state for watchers.
    pub fn shown(&self) -> Shown {
        Arc::clone(&self.shown)
    }

    /// Takes reports that have arrived, and sends messages that are due. Returns what the flow may do now, if that has changed.
    pub fn drive(&mut self, now: Nanos, run: &Run) -> Option<Order> {
        let mut has_heard = false;
        if now.since(self.looked) < LOOK && now < self.sender.next_at() {
            return None;
        }
        self.looked = now;
        for _ in 0..MAX_MESSAGES {
            let Some((bytes, _)) = self.messages.receive() else {
                break;
            };
            // What is not a valid report is counted.
            let _ = self.sender.handle(bytes, now);
            has_heard = true;
        }
        if !has_heard && now < self.sender.next_at() {
            return None;
        }
        while let Some(output) = self.sender.poll(now) {
            match output {
                Output::Message(bytes) => self.messages.send(self.to, bytes, now),
                Output::Notice(notice) => self.tell(notice, run),
            }
        }
        let mut shown = self.shown.lock();
        shown.status = Some(self.sender.status());
        shown.accounts = self.sender.accounts();
        drop(shown);
        let order = self.sender.order();
        (std::mem::replace(&mut self.order, order) != order).then_some(order)
    }

    fn tell(&self, notice: Notice, run: &Run) {
        run.say(format_args!("{notice}"));
        let notice = notice.since(self.begun);
        let mut shown = self.shown.lock();
        shown.cut_off = match notice.kind {
            Kind::Blind | Kind::Stalled | Kind::Refused | Kind::Failed => Some(notice.kind.name()),
            Kind::Stopped { .. } => shown.cut_off.or(Some(notice.kind.name())),
            // Follows these, too.
            Kind::Shedding { .. } => shown.cut_off,
            _ => None,
        };
        if shown.notices.len() < MAX_NOTICES {
            shown.notices.push(notice);
        }
        if shown.latest.len() == MAX_LATEST {
            shown.latest.pop_front();
        }
        shown.latest.push_back(notice);
    }

    /// Looks for reports at the next [`SafeSending::drive`], however early.
    pub fn listen(&mut self) {
        self.looked = Nanos(0);
    }

    /// Returns what the flow may do, as of the last [`SafeSending::drive`].
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns when to drive it next.
    pub fn next_at(&self) -> Nanos {
        self.sender.next_at()
    }

    /// Returns the event of an arriving report.
    pub fn events(&self) -> Events<'_> {
        self.messages.events()
    }

    /// Returns the policy that keeps what `step` keeps.
    ///
    /// # Errors
    /// Returns [`ShedError`] if the stream has no times and no rate.
    pub fn policy(&self, step: Step) -> Result<Shed, ShedError> {
        let parts = u64::from(step.sixteenths()) * (Fraction::ONE / 16);
        let policy = Fraction::new(parts).map_or(Policy::None, |kept| Policy::Keep {
            kept,
            block: std::time::Duration::from_nanos(BLOCK.0),
        });
        Shed::new(policy, self.seed, &self.stream)
    }

    /// Notes that the datagram with this number, counted from the first, was shed.
    #[inline]
    pub fn shed(&mut self, number: u64) {
        self.sender.shed(number, number + 1);
    }

    /// Notes what was offered so far.
    pub fn progress(&mut self, progress: Progress, refused: u64, now: Nanos) {
        self.sender.progress(progress, now);
        for _ in self.refused..refused.min(self.refused + 2) {
            self.sender.refused(now);
        }
        self.refused = refused;
    }

    /// Notes another rate of the data, in bits per second.
    pub fn set_rate(&mut self, rate: u64, now: Nanos) {
        self.sender.set_rate(rate, now);
    }

    /// Tries again after a stop, as an operator asks.
    pub fn rearm(&mut self, now: Nanos) {
        self.sender.rearm(now);
    }

    /// Notes that nothing more is offered.
    pub fn end(&mut self, now: Nanos) {
        self.sender.end(now);
    }

    /// Returns whether the receiver has accounted for everything, or does not answer.
    pub fn is_complete(&self, now: Nanos) -> bool {
        self.sender.is_complete(now)
    }
}
