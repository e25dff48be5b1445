//! Packets between the two endpoints of a connection.

use std::fmt;
use std::sync::Arc;

use super::receiver::Ack;
use evlbi_core::path::Identity;
use evlbi_core::time::Nanos;

/// Bytes of the headers of IPv4 and TCP in a packet with data: 20, 20, and timestamps (RFC 7323).
pub const HEADERS: u32 = 52;

/// Packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub(super) kind: Kind,
    /// Time sent (RFC 7323).
    pub(super) left: Nanos,
    /// Acknowledgement; meaningless in a first SYN and in RST.
    pub(super) ack: Ack,
    /// Window of its sender, in bytes after the acknowledged data.
    pub(super) window: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// SYN with the maximum segment size of its sender, or SYN+ACK.
    Syn { segment: u32, is_answer: bool },
    /// Segment with its number.
    Data { number: u64, segment: Segment },
    /// Acknowledgement alone.
    Ack,
    /// Zero-window probe: asks for an acknowledgement.
    Probe,
    /// RST.
    Reset,
}

/// Segment of the bytes of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Number of bytes before it.
    pub at: u64,
    pub length: u32,
    /// Whether it carries FIN: nothing follows.
    pub is_last: bool,
    /// Its bytes, or `None` if nobody is interested in them.
    pub payload: Option<Arc<[u8]>>,
}

impl Packet {
    /// Returns the reply to a packet without a connection: RST.
    pub fn reset() -> Packet {
        Packet {
            kind: Kind::Reset,
            left: Nanos::default(),
            ack: Ack::default(),
            window: 0,
        }
    }

    /// Returns the length of the payload in bytes, without headers.
    pub fn length(&self) -> u32 {
        match &self.kind {
            Kind::Data { segment, .. } => segment.length,
            _ => 0,
        }
    }

    /// Returns whether it asks for a new connection: a SYN that is not an answer.
    pub fn is_first(&self) -> bool {
        matches!(
            self.kind,
            Kind::Syn {
                is_answer: false,
                ..
            }
        )
    }

    /// Returns whether it is an RST, which is never answered.
    pub fn is_reset(&self) -> bool {
        self.kind == Kind::Reset
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Syn { is_answer, .. } => f.write_str(if *is_answer { "SYN+ACK" } else { "SYN" }),
            Kind::Data { number, segment } => {
                let end = if segment.is_last { ", FIN" } else { "" };
                write!(f, "segment {number}, {} bytes{end}", segment.length)
            }
            Kind::Ack => f.write_str("ACK"),
            Kind::Probe => f.write_str("window probe"),
            Kind::Reset => f.write_str("RST"),
        }?;
        match self.is_first() || self.is_reset() {
            true => Ok(()),
            false => write!(f, ", ack {}, window {}", self.ack.next, self.window),
        }
    }
}

impl Identity for Packet {
    /// Returns the number of the segment, or of the first one that has not arrived.
    fn identity(&self, _segment: u16) -> u64 {
        match &self.kind {
            Kind::Data { number, .. } => *number,
            _ => self.ack.next,
        }
    }

    /// Explicit congestion notification is not negotiated.
    fn may_be_marked(&self) -> bool {
        false
    }
}
