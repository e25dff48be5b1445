//! The receiving end of a flow: what has arrived, and reports about it.

use evlbi_core::account::Counters;
use evlbi_core::admission::Admission;
use evlbi_core::time::Nanos;
use evlbi_proto::safe::message::{LAST, Received};
use evlbi_proto::safe::{Accounts, Arrivals, Key, Receiver, State};

use crate::clock::Events;
use crate::run::Run;
use crate::transport::{Local, Messages, OpenError, Url};

use super::message_address;

/// Minimum time between two looks at what has arrived.
const LOOK: Nanos = Nanos(2_000_000);
/// Maximum number of messages that are taken at once, so that a flood of them does not keep the thread from the data.
const MAX_MESSAGES: usize = 16;

/// ECN field of a datagram that was marked for congestion (RFC 3168).
const CE: usize = 3;

/// Returns how many datagrams could have been marked.
fn capable(ecn: &[u64; 4]) -> u64 {
    ecn[1] + ecn[2]
}

/// State of a flow under SafeUDP, at its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReceivedSafely {
    /// State of the sender, and the fraction of the data that it sends; `None` before its first beat.
    pub state: Option<(State, f64)>,
    /// Datagrams that the sender shed: they are neither expected nor lost.
    pub shed: u64,
    /// Messages that were ignored.
    pub rejected: u64,
    /// Accounts of the flow so far, and whether both ends agree on them.
    pub accounts: Option<(Accounts, bool)>,
}

/// Receiving end of a flow.
pub struct SafeReceiving {
    receiver: Receiver,
    messages: Messages,
    /// Whether everybody knows the key: only ends on this host are heard.
    is_open: bool,
    /// Messages from elsewhere that were ignored for that reason.
    foreign: u64,
    run: Run,
    /// Numbers of which nobody knows yet whether they are in flight, lost or shed.
    unknown: u64,
    /// Fraction of the data that the sender sends, as was noticed last.
    kept: Option<f64>,
    looked: Nanos,
    following: Option<Following>,
    /// One more than the highest number, and the drops in this host, as of the last batch.
    end: Option<u64>,
    drops: (u64, u64),
    /// Datagrams of the stream with each ECN field so far.
    ecn: [u64; 4],
}

/// Flow whose numbers are counted.
#[derive(Clone, Debug)]
struct Following {
    flow: u64,
    /// Counters before it.
    before: Counters,
    ecn: [u64; 4],
    /// Number of streams so far, with its own if that has begun.
    streams: u64,
    has_begun: bool,
    /// Numbers lost when its sender was known.
    lost: Option<u64>,
    /// One more than the highest number so far.
    end: u64,
}

impl SafeReceiving {
    /// Opens the socket for messages next to the last of the `local` ports.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the transport has no way back, or the port is taken.
    pub fn open(
        url: &Url,
        local: &[Local],
        key: Key,
        run: &Run,
    ) -> Result<SafeReceiving, OpenError> {
        let last = local.iter().rev().find_map(|local| match local {
            Local::Socket(address) if !address.ip().is_multicast() => message_address(*address),
            _ => None,
        });
        let at = last.ok_or_else(|| OpenError::NoMessages(url.to_string()))?;
        Ok(SafeReceiving {
            is_open: key.is_open(),
            foreign: 0,
            run: run.clone(),
            unknown: 0,
            kept: None,
            receiver: Receiver::new(key, run.clock().random()),
            messages: url.transport().open_messages(url, at, true, run)?,
            looked: Nanos(0),
            following: None,
            end: None,
            drops: (0, 0),
            ecn: [0; 4],
        })
    }

    /// Returns the event of an arriving message.
    pub fn events(&self) -> Events<'_> {
        self.messages.events()
    }

    /// Returns when the next report is due.
    pub fn next_at(&self) -> Option<Nanos> {
        self.receiver.next_at()
    }

    /// Notes a batch of datagrams, by when the sockets had dropped `sockets` messages of at most `per_drop` datagrams each. `ecn`:
    /// datagrams of the stream with each ECN field so far.
    pub fn note(&mut self, admission: &Admission, sockets: u64, per_drop: u64, ecn: &[u64; 4]) {
        self.ecn = *ecn;
        let counters = admission.counters();
        let drops = (sockets.max(self.drops.0), counters.ring_full);
        let before = std::mem::replace(&mut self.drops, drops);
        let end = admission.heard();
        let from = std::mem::replace(&mut self.end, end);
        let (Some(from), Some(end)) = (from, end) else {
            return;
        };
        if from == end {
            // Nothing higher was heard: what was dropped is noted with what comes next.
            self.drops = before;
            return;
        }
        let of_sockets = drops.0.saturating_sub(before.0);
        let of_ring = drops.1.saturating_sub(before.1);
        if of_sockets + of_ring > 0 {
            let possible = of_sockets.saturating_mul(per_drop.max(1)) + of_ring;
            self.receiver
                .dropped(from, end, of_sockets + of_ring, possible);
        }
    }

    /// Returns whether the sender has announced datagrams after all that were heard.
    pub fn awaits(&self, admission: &Admission) -> bool {
        let ends = self.receiver.announced().zip(admission.heard());
        ends.is_some_and(|(announced, heard)| (1..1 << 63).contains(&announced.wrapping_sub(heard)))
    }

    /// Notes that the sockets, which are empty, have dropped `sockets` messages of at most `per_drop` datagrams each so far: the last ones
    /// after all that were heard.
    pub fn note_end(&mut self, sockets: u64, per_drop: u64) {
        let new = sockets.saturating_sub(self.drops.0);
        if let (1.., Some(from), Some(end)) = (new, self.end, self.receiver.announced()) {
            self.drops.0 = sockets;
            self.receiver
                .dropped(from, end, new, new.saturating_mul(per_drop.max(1)));
        }
    }

    /// Takes messages that have arrived, and sends the reports that are due.
    pub fn drive(&mut self, admission: &mut Admission, now: Nanos) {
        let mut has_heard = false;
        for _ in 0..MAX_MESSAGES {
            let Some((bytes, from)) = self.messages.receive() else {
                break;
            };
            if self.is_open && !from.ip().is_loopback() {
                if self.foreign == 0 {
                    self.run.warn(format_args!(
                        "{from} asks for reports and gets none: without a key, only senders on this host are answered"
                    ));
                }
                self.foreign += 1;
                continue;
            }
            // What is not a valid message is counted.
            has_heard |= self.receiver.handle(bytes, from, now).is_ok();
        }
        let is_due = self.receiver.next_at().is_some_and(|at| now >= at);
        if !has_heard && !is_due && now.since(self.looked) < LOOK {
            return;
        }
        self.looked = now;
        while let Some((state, kept)) = self.receiver.next_notice() {
            let before = self.kept.replace(kept);
            if before.is_some_and(|before| before != kept) || (before.is_none() && kept < 1.0) {
                self.run.say(format_args!(
                    "the sender sends {:.4} % of the data from now on (SafeUDP: {})",
                    kept * 100.0,
                    state.name()
                ));
            }
        }
        self.observe(admission, now);
        if is_due {
            self.receiver.overflowed(self.messages.dropped());
        }
        while let Some((report, to)) = self.receiver.poll(now) {
            self.messages.send(to, report, now);
        }
    }

    /// Ends the flow: what has not arrived by now is lost.
    pub fn end(&mut self) {
        self.unknown = 0;
    }

    /// Returns how many numbers may still be in flight, or may turn out to be shed. They are not lost yet.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    fn observe(&mut self, admission: &mut Admission, now: Nanos) {
        if let (Some(beat), Some(end)) = (self.receiver.beat(), self.receiver.announced()) {
            let is_all = beat.header.flags & LAST != 0;
            admission.announce((beat.first, end), is_all, now);
        }
        let mut runs = Vec::new();
        let known = admission.list_missing(|first, end| runs.push((first, end)));
        let counters = admission.counters();
        let streams = counters.restarts + u64::from(known.is_some());
        let Some(beat) = self.receiver.heard() else {
            return;
        };
        let (number, first) = (beat.header.flow, beat.first);
        let following = match &mut self.following {
            Some(following) if following.flow == number => following,
            other => other.insert(Following {
                flow: number,
                before: counters.clone(),
                ecn: self.ecn,
                // Before its data, a stream is that of another flow.
                streams: match beat.next {
                    0 => streams,
                    _ => streams.saturating_sub(1),
                },
                end: first,
                has_begun: false,
                lost: None,
            }),
        };
        let is_new = streams > following.streams;
        following.has_begun |= is_new;
        let Some((begun, end, released)) = known.filter(|_| following.has_begun) else {
            // Datagrams that may be the start of its data have arrived, but nobody knows yet.
            if admission.undecided() == 0 {
                let arrivals = Arrivals {
                    emptied: admission.emptied(),
                    ..Arrivals::default()
                };
                self.receiver.observe(&arrivals, now);
            }
            return;
        };
        if is_new {
            following.streams = streams;
            self.receiver.begins(following.end, begun);
        }
        following.end = end;
        for (first, end) in runs {
            self.receiver.missing(first, end);
        }
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let before = &following.before;
        let unique = since(counters.unique, before.unique);
        let arrivals = Arrivals {
            counters: Received {
                received: since(counters.received, before.received),
                unique,
                duplicates: since(counters.duplicates, before.duplicates),
                reordered: since(counters.reordered, before.reordered),
                late: since(counters.late, before.late),
                bytes: unique * admission.data().unwrap_or(0) as u64,
                marked: since(self.ecn[CE], following.ecn[CE]),
                capable: capable(&self.ecn) - capable(&following.ecn),
            },
            heard: admission.heard(),
            end: Some(end),
            released: Some(released),
            emptied: admission.emptied(),
        };
        self.receiver.observe(&arrivals, now);
        while let Some((first, end)) = self.receiver.next_shed() {
            admission.shed(first, end);
        }
        let (Some(report), Some(following)) = (self.receiver.counted(), &mut self.following) else {
            return;
        };
        let absent = admission.counters().lost;
        let absent = since(absent, *following.lost.get_or_insert(absent));
        let known = since(report.missed, report.arrivals.late);
        self.unknown = since(absent, known);
    }

    /// Returns the state for watchers.
    pub fn state(&self) -> ReceivedSafely {
        let beat = self.receiver.beat();
        let accounts = self.receiver.accounts();
        ReceivedSafely {
            state: beat.map(|beat| (beat.state, f64::from(beat.kept) * 1e-9)),
            shed: self.receiver.counted().map_or(0, |report| report.shed),
            rejected: self.receiver.rejected() + self.foreign,
            accounts: accounts.map(|accounts| (accounts, self.receiver.is_complete())),
        }
    }
}
