//! Flows: sender and length of datagrams.

use std::time::Duration;

use crate::peer::Peer;
use crate::time::Nanos;

/// Datagram that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Payload.
    pub bytes: &'a [u8],
    /// Sender.
    pub source: Peer,
    /// Index of the receiver's address, from 0.
    pub port: usize,
    /// When the kernel received it, since 1970.
    pub stamp: Option<Duration>,
}

/// Sender and length. A stream may arrive at several ports: at each from one sender, all on one host.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    host: Peer,
    /// Sender at each of the receiver's ports, once known.
    senders: Vec<Option<Peer>>,
    pub length: usize,
    /// When the last datagram was read.
    pub last: Nanos,
    /// When the sockets had last been emptied before the last datagram.
    read_before: Nanos,
    /// When the kernel received the last datagram, by a clock that may be set.
    last_stamp: Option<Duration>,
}

impl Flow {
    pub fn of(arrival: &Arrival<'_>, ports: usize) -> Flow {
        Flow {
            host: arrival.source.host(),
            senders: vec![None; ports],
            length: arrival.bytes.len(),
            ..Flow::default()
        }
    }

    /// Returns the sender.
    pub fn sender(&self) -> Option<Peer> {
        let known = |sender: &&Peer| **sender != Peer::Unknown;
        self.senders.iter().flatten().find(known).copied()
    }

    /// Returns whether a datagram may belong to this flow: it has its length, and is from its sender at that port, or from its
    /// host if that port has no sender yet.
    #[inline]
    pub fn may_have(&self, arrival: &Arrival<'_>) -> bool {
        arrival.bytes.len() == self.length
            && match self.senders.get(arrival.port) {
                Some(Some(sender)) => *sender == arrival.source,
                Some(None) => self.host == arrival.source.host(),
                None => false,
            }
    }

    /// Returns whether both flows have the same sender.
    pub fn has_sender_of(&self, other: &Flow) -> bool {
        let mut pairs = self.senders.iter().zip(&other.senders);
        self.host == other.host
            && (self.host == Peer::Unknown
                || pairs.any(|(one, other)| one.is_some() && one == other))
    }

    /// Notes a datagram of this flow, read at `now`. The sockets were last emptied at `read`.
    #[inline]
    pub fn heard(&mut self, arrival: &Arrival<'_>, read: Nanos, now: Nanos) {
        if let Some(sender) = self.senders.get_mut(arrival.port) {
            *sender = Some(arrival.source);
        }
        self.last = now;
        self.read_before = read;
        self.last_stamp = arrival.stamp;
    }

    /// Returns how long the flow was silent before a datagram read at `now`. The sockets were last emptied at `read`. Both sides
    /// of a silence may be read at once, so the kernel's timestamps decide, unless the clock was set in between.
    pub fn silence_before(&self, stamp: Option<Duration>, read: Nanos, now: Nanos) -> Nanos {
        let min = read.since(self.last);
        let max = now.since(self.read_before);
        match self.last_stamp.zip(stamp) {
            Some((last, stamp)) => Nanos::from(stamp.saturating_sub(last)).clamp(min, max.max(min)),
            None => now.since(self.last),
        }
    }
}
