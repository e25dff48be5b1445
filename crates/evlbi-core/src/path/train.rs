//! Packets in transit: segments that travel together until something happens to one of them.

use crate::time::Nanos;

/// Packet as a host sends it: one segment, or several of equal length that the network would see one by one (a super-packet of
/// segmentation offload), the last of which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// Number of segments, at least one.
    pub count: u16,
    /// Length of each segment in bytes, headers included.
    pub bytes: u32,
    /// Length of the last segment, in bytes.
    pub last: u32,
}

impl Train {
    /// Makes a packet of one segment.
    pub fn single(bytes: u32) -> Train {
        Train {
            count: 1,
            bytes,
            last: bytes,
        }
    }

    /// Returns the length of a segment, in bytes.
    pub fn bytes_of(&self, segment: u16) -> u32 {
        let is_last = segment + 1 >= self.count;
        if is_last { self.last } else { self.bytes }
    }

    /// Returns the total length of `count` segments, in bytes.
    pub fn bytes_of_all(&self, first: u16, count: u16) -> u64 {
        let end = u32::from(first) + u32::from(count);
        let whole = u64::from(self.bytes) * u64::from(count);
        match end >= u32::from(self.count) {
            true => whole - u64::from(self.bytes) + u64::from(self.last),
            false => whole,
        }
    }
}

/// Segments of a train that are still together, and their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// When they arrive at the next cell.
    pub at: Nanos,
    /// Number of the first segment.
    pub first: u16,
    /// Number of segments.
    pub count: u16,
    /// Changes made to them.
    pub marks: Marks,
}

/// Changes made to segments that continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Congestion experienced (RFC 3168).
    pub congestion: bool,
    /// Number that selects the bit that was changed.
    pub corrupt: Option<u64>,
}

impl Piece {
    /// Makes a piece of all segments of a train.
    pub fn whole(at: Nanos, train: &Train) -> Piece {
        Piece {
            at,
            first: 0,
            count: train.count,
            marks: Marks::default(),
        }
    }
}
