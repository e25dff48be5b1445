//! Items: packets, or parts of them, in transit through the cells of a path.

use std::ops::Range;

use super::train::{Piece, Train};
use crate::time::Nanos;

/// Segments of a packet between two cells.
#[derive(Clone, Debug)]
pub struct Item<P> {
    /// Packet.
    pub packet: P,
    /// Lengths of all segments of the packet.
    pub train: Train,
    /// Segments of this item.
    pub piece: Piece,
    /// Length of the link-layer header in each segment, in bytes.
    pub link_header: u32,
    pub(super) route: usize,
    /// Number of stages of the route already passed.
    pub(super) position: usize,
}

impl<P> Item<P> {
    /// Returns the total length of the segments, in bytes.
    pub fn bytes(&self) -> u64 {
        self.train.bytes_of_all(self.piece.first, self.piece.count)
    }

    /// Returns the item with another time.
    pub fn at(mut self, at: Nanos) -> Item<P> {
        self.piece.at = at;
        self
    }
}

impl<P: Clone> Item<P> {
    /// Returns other segments of the same packet.
    pub fn with(&self, piece: Piece) -> Item<P> {
        Item {
            piece,
            ..self.clone()
        }
    }

    /// Returns some of the segments, if any.
    pub fn part(&self, places: Range<u16>) -> Option<Item<P>> {
        let piece = Piece {
            first: self.piece.first + places.start,
            count: places.end.saturating_sub(places.start),
            ..self.piece
        };
        (piece.count > 0).then(|| self.with(piece))
    }

    /// Returns one of the segments.
    pub fn only(&self, place: u16) -> Item<P> {
        self.with(Piece {
            first: self.piece.first + place,
            count: 1,
            ..self.piece
        })
    }
}
