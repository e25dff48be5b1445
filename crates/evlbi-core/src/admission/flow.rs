//! Who sends datagrams of what length.

use std::time::Duration;

use crate::peer::Peer;
use crate::time::Nanos;

/// A datagram that came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// Who sent it.
    pub source: Peer,
    /// Which of the receiver's addresses it came to, counted from 0.
    pub port: usize,
    /// When the kernel received it, since 1970.
    pub stamp: Option<Duration>,
}

/// A sender and a length. One stream may come to several ports: at each from one sender, all on one host.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    host: Peer,
    /// The sender at each of the receiver's ports, once heard.
    senders: Vec<Option<Peer>>,
    pub length: usize,
    /// When its last datagram was taken.
    pub last: Nanos,
    /// When the sockets had been read to their end before the last came.
    read_before: Nanos,
    /// When the kernel received the last, by a clock that may be set.
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

    /// Who sends.
    pub fn sender(&self) -> Option<Peer> {
        let known = |sender: &&Peer| **sender != Peer::Unknown;
        self.senders.iter().flatten().find(known).copied()
    }

    /// Whether it may be this one's: of its length, from its sender at that port, or from its host to a port at which none was heard.
    #[inline]
    pub fn may_have(&self, arrival: &Arrival<'_>) -> bool {
        arrival.bytes.len() == self.length
            && match self.senders.get(arrival.port) {
                Some(Some(sender)) => *sender == arrival.source,
                Some(None) => self.host == arrival.source.host(),
                None => false,
            }
    }

    /// Whether the datagrams come from the same sender.
    pub fn has_sender_of(&self, other: &Flow) -> bool {
        let mut pairs = self.senders.iter().zip(&other.senders);
        self.host == other.host
            && (self.host == Peer::Unknown
                || pairs.any(|(one, other)| one.is_some() && one == other))
    }

    /// It is this one's, taken from the kernel at `now`; the sockets were read to their end last at `read`.
    #[inline]
    pub fn heard(&mut self, arrival: &Arrival<'_>, read: Nanos, now: Nanos) {
        if let Some(sender) = self.senders.get_mut(arrival.port) {
            *sender = Some(arrival.source);
        }
        self.last = now;
        self.read_before = read;
        self.last_stamp = arrival.stamp;
    }

    /// How long it was silent when a datagram came that is taken at `now`; the sockets were read to their end last at `read`. Both
    /// sides of a silence may be read at once, so the kernel's stamps tell, as far as the clock was not set meanwhile.
    pub fn silence_before(&self, stamp: Option<Duration>, read: Nanos, now: Nanos) -> Nanos {
        let least = read.since(self.last);
        let most = now.since(self.read_before);
        match self.last_stamp.zip(stamp) {
            Some((last, stamp)) => {
                Nanos::from(stamp.saturating_sub(last)).clamp(least, most.max(least))
            }
            None => now.since(self.last),
        }
    }
}
