//! Received datagrams, in the memory of the transport that received them.

use std::ops::Range;
use std::time::Duration;

use evlbi_core::peer::Peer;

/// Messages that arrived together.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'b> {
    /// Memory that contains them.
    pub memory: &'b [u8],
    /// The messages, in the order of their arrival at each port.
    pub messages: &'b [Message],
    /// Minimum number of bytes that they took from the backlog ([`Incoming::backlog`](crate::transport::Incoming::backlog)).
    pub taken: u64,
}

/// A message: one datagram, several joined datagrams of one length, or the start of a byte stream.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// Its byte range in the batch's memory.
    pub range: Range<usize>,
    /// Length of each joined datagram in bytes (the last may be shorter); 0 for a single datagram.
    pub segment: usize,
    /// Its sender.
    pub peer: Peer,
    /// Index of the receiver's port at which it arrived, from 0.
    pub port: usize,
    /// Whether the message was cut off at its end.
    pub truncated: bool,
    /// Time at which the kernel received it, since 1970-01-01 UTC; `None` if unknown.
    pub stamp: Option<Duration>,
    /// ECN field of its IP header (RFC 3168), if the receiver asked for it; else 0.
    pub ecn: u8,
}

/// One datagram of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// Its sender.
    pub source: Peer,
    /// Index of the receiver's port at which it arrived, from 0.
    pub port: usize,
    /// Whether the datagram was cut off at its end.
    pub truncated: bool,
    /// Time at which the kernel received its message, since 1970-01-01 UTC; `None` if unknown.
    pub stamp: Option<Duration>,
    /// ECN field of its IP header (RFC 3168), if the receiver asked for it; else 0.
    pub ecn: u8,
}

impl<'b> Batch<'b> {
    /// An empty batch.
    pub const EMPTY: Batch<'static> = Batch {
        memory: &[],
        messages: &[],
        taken: 0,
    };

    /// Returns whether nothing has arrived. A batch may be without messages if it took what is none, such as a fragment of one.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.taken == 0
    }

    /// Returns the datagrams of the batch.
    #[inline]
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'b>> + use<'b> {
        let memory = self.memory;
        self.messages.iter().flat_map(move |message| Datagrams {
            message,
            rest: Some(&memory[message.range.clone()]),
        })
    }

    /// Returns the maximum number of datagrams joined into one message.
    pub fn max_joined(&self) -> u64 {
        let joined = self.messages.iter().map(|message| match message.segment {
            0 => 1,
            segment => message.range.len().div_ceil(segment) as u64,
        });
        joined.max().unwrap_or(0)
    }
}

/// Splits a message into its datagrams: all of one length, but the last may be shorter.
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
            ecn: self.message.ecn,
        })
    }
}
