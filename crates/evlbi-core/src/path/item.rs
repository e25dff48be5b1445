//! Items: packets, or parts of them, on their way through the cells of a path.

use std::ops::Range;

use super::train::{Piece, Train};
use crate::time::Nanos;

/// Segments of a packet between two cells.
#[derive(Clone, Debug)]
pub struct Item<P> {
    /// The packet.
    pub packet: P,
    /// What it is made of.
    pub train: Train,
    /// The segments.
    pub piece: Piece,
    /// Bytes of the link-layer header in each.
    pub link_header: u32,
    pub(super) route: usize,
    /// Stages of the route that lie behind it.
    pub(super) position: usize,
}

impl<P> Item<P> {
    /// Bytes of the segments.
    pub fn bytes(&self) -> u64 {
        self.train.bytes_of_all(self.piece.first, self.piece.count)
    }

    /// The same at another time.
    pub fn at(mut self, at: Nanos) -> Item<P> {
        self.piece.at = at;
        self
    }
}

impl<P: Clone> Item<P> {
    /// Other segments of the same packet.
    pub fn with(&self, piece: Piece) -> Item<P> {
        Item {
            piece,
            ..self.clone()
        }
    }

    /// Some of the segments, if any.
    pub fn part(&self, places: Range<u16>) -> Option<Item<P>> {
        let piece = Piece {
            first: self.piece.first + places.start,
            count: places.end.saturating_sub(places.start),
            ..self.piece
        };
        (piece.count > 0).then(|| self.with(piece))
    }

    /// One of the segments.
    pub fn only(&self, place: u16) -> Item<P> {
        self.with(Piece {
            first: self.piece.first + place,
            count: 1,
            ..self.piece
        })
    }
}
