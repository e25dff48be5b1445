//! What has arrived, in the memory of the transport that brought it.

use std::ops::Range;
use std::time::Duration;

use evlbi_core::peer::Peer;

/// Messages that arrived together.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'b> {
    /// Where they lie.
    pub memory: &'b [u8],
    /// The messages, in the order of their arrival at each port.
    pub messages: &'b [Message],
    /// Bytes that they took of what waited ([`Incoming::backlog`](crate::transport::Incoming::backlog)), at least.
    pub taken: u64,
}

/// A message: a datagram, several of one length that were joined on the way, or the beginning of a stream of bytes.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// Where it lies in the batch's memory.
    pub range: Range<usize>,
    /// Length of the datagrams in it, of which the last may be shorter; 0 when it is one.
    pub segment: usize,
    /// Who sent it.
    pub peer: Peer,
    /// Which of the receiver's ports it came to, counted from 0.
    pub port: usize,
    /// Whether its end is missing.
    pub truncated: bool,
    /// When the kernel received it, since 1970-01-01 UTC, where that is known.
    pub stamp: Option<Duration>,
}

/// One datagram of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// Who sent it.
    pub source: Peer,
    /// Which of the receiver's ports it came to, counted from 0.
    pub port: usize,
    /// Whether its end is missing.
    pub truncated: bool,
    /// When the kernel received its message, since 1970-01-01 UTC, where that is known.
    pub stamp: Option<Duration>,
}

impl<'b> Batch<'b> {
    /// A batch of nothing.
    pub const EMPTY: Batch<'static> = Batch {
        memory: &[],
        messages: &[],
        taken: 0,
    };

    /// Whether nothing has come.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The datagrams of the batch.
    #[inline]
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'b>> + use<'b> {
        let memory = self.memory;
        self.messages.iter().flat_map(move |message| Datagrams {
            message,
            rest: Some(&memory[message.range.clone()]),
        })
    }

    /// Most datagrams that came as one message.
    pub fn most_joined(&self) -> u64 {
        let joined = self.messages.iter().map(|message| match message.segment {
            0 => 1,
            segment => message.range.len().div_ceil(segment) as u64,
        });
        joined.max().unwrap_or(0)
    }
}

/// Takes a message apart into the datagrams that were joined: all of one length, the last may be shorter.
struct Datagrams<'a> {
    message: &'a Message,
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Datagram<'a>;

    #[inline]
    fn next(&mut self) -> Option<Datagram<'a>> {
        let rest = self.rest?;
        let segment = self.message.segment;
        let (bytes, rest) = if segment == 0 || rest.len() <= segment {
            (rest, None)
        } else {
            let (bytes, rest) = rest.split_at(segment);
            (bytes, Some(rest))
        };
        self.rest = rest;
        Some(Datagram {
            bytes,
            source: self.message.peer,
            port: self.message.port,
            truncated: self.message.truncated && rest.is_none(),
            stamp: self.message.stamp,
        })
    }
}
