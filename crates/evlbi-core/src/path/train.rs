//! Packets on their way: segments that travel together until something happens to one of them.

use crate::time::Nanos;

/// A packet as a host hands it over: one segment, or several of equal length that the network would see one by one
/// (a super-packet of segmentation offload), the last of which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// Segments, at least one.
    pub count: u16,
    /// Length of each in bytes, headers included.
    pub bytes: u32,
    /// Length of the last.
    pub last: u32,
}

impl Train {
    /// A packet that is one segment.
    pub fn single(bytes: u32) -> Train {
        Train {
            count: 1,
            bytes,
            last: bytes,
        }
    }

    /// Length of a segment.
    pub fn bytes_of(&self, segment: u16) -> u32 {
        let is_last = segment + 1 >= self.count;
        if is_last { self.last } else { self.bytes }
    }

    /// Length of so many segments.
    pub fn bytes_of_all(&self, first: u16, count: u16) -> u64 {
        let end = u32::from(first) + u32::from(count);
        let whole = u64::from(self.bytes) * u64::from(count);
        match end >= u32::from(self.count) {
            true => whole - u64::from(self.bytes) + u64::from(self.last),
            false => whole,
        }
    }
}

/// Segments of a train that are still together, and where they are in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// When they arrive at what comes next.
    pub at: Nanos,
    /// The first of them.
    pub first: u16,
    /// How many.
    pub count: u16,
    /// What was done to them.
    pub marks: Marks,
}

/// What was done to segments that go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Congestion was experienced (RFC 3168).
    pub congestion: bool,
    /// A bit was changed: a number that says which.
    pub corrupt: Option<u64>,
}

impl Piece {
    /// A train as it enters.
    pub fn whole(at: Nanos, train: &Train) -> Piece {
        Piece {
            at,
            first: 0,
            count: train.count,
            marks: Marks::default(),
        }
    }
}
