//! Holes in a span of the stream, and a view of the span with them.

use std::ops::Range;

/// Missing parts of a span of the byte stream, in ascending order.
///
/// A missing part either has its place in the span (slots of the ring that were not written), or is a gap: a jump of the sequence
/// that was too large for the ring, so that the bytes before and after it are adjacent in the span.
///
/// Offsets are those of the span. A part that overlaps earlier ones is cut to what is after them.
#[derive(Clone, Debug, Default)]
pub struct Holes {
    list: Vec<Hole>,
    gaps: u64,
}

/// One missing part. Its offsets count the bytes of all gaps before it.
#[derive(Clone, Copy, Debug)]
struct Hole {
    from: u64,
    to: u64,
    /// Bytes of the gaps before this part.
    gaps: u64,
    is_gap: bool,
}

impl Hole {
    /// Returns the bytes of the gaps before and in this part.
    fn gaps_behind(&self) -> u64 {
        self.gaps + if self.is_gap { self.to - self.from } else { 0 }
    }
}

impl Holes {
    /// Makes an empty list.
    pub fn new() -> Holes {
        Holes::default()
    }

    /// Clears the list, for another span.
    pub fn clear(&mut self) {
        self.list.clear();
        self.gaps = 0;
    }

    /// Adds the bytes `range` of the span, which were not written.
    pub fn missing(&mut self, range: Range<usize>) {
        let to = (range.end as u64).saturating_add(self.gaps);
        let from = (range.start as u64).saturating_add(self.gaps);
        self.add(from, to, false);
    }

    /// Adds a gap: `bytes` bytes of the stream are missing before offset `at` of the span, and have no place in it.
    pub fn gap(&mut self, at: usize, bytes: u64) {
        let from = (at as u64).saturating_add(self.gaps).max(self.end());
        let to = from.saturating_add(bytes);
        self.add(from, to, true);
        self.gaps += to - from;
    }

    /// Returns a copy with an added gap of `bytes` bytes before offset `at` of the span.
    pub(super) fn with_gap(&self, at: usize, bytes: u64) -> Holes {
        let mut holes = Holes::new();
        let mut is_to_come = true;
        for hole in &self.list {
            let place = (hole.from - hole.gaps) as usize;
            let length = hole.to - hole.from;
            let end = place + if hole.is_gap { 0 } else { length as usize };
            if is_to_come && end >= at {
                holes.missing(place.min(at)..at);
                holes.gap(at, bytes);
                is_to_come = false;
            }
            let from = if is_to_come { place } else { place.max(at) };
            match hole.is_gap {
                true => holes.gap(place, length),
                false => holes.missing(from..end),
            }
        }
        if is_to_come {
            holes.gap(at, bytes);
        }
        holes
    }

    fn end(&self) -> u64 {
        self.list.last().map_or(0, |hole| hole.to)
    }

    fn add(&mut self, from: u64, to: u64, is_gap: bool) {
        let from = from.max(self.end());
        if from >= to {
            return;
        }
        match self.list.last_mut() {
            Some(last) if last.to == from && !last.is_gap && !is_gap => last.to = to,
            _ => self.list.push(Hole {
                from,
                to,
                gaps: self.gaps,
                is_gap,
            }),
        }
    }

    /// Returns the index of the first hole that ends after `offset`.
    fn first_behind(&self, offset: u64) -> usize {
        self.list.partition_point(|hole| hole.to <= offset)
    }

    /// Converts an offset of the stream to one of the span; inside a gap, returns the place of the gap.
    fn place(&self, offset: u64) -> u64 {
        let behind = self.first_behind(offset);
        let gaps = match behind.checked_sub(1) {
            Some(before) => self.list[before].gaps_behind(),
            None => 0,
        };
        match self.list.get(behind) {
            Some(hole) if hole.is_gap => offset.min(hole.from) - gaps,
            _ => offset - gaps,
        }
    }
}

/// Span of the stream with its holes. Offsets are those of the stream: they count the bytes of gaps.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub bytes: &'a [u8],
    pub holes: &'a Holes,
}

impl<'a> View<'a> {
    /// Returns the bytes of the stream up to the end of the span.
    pub fn len(&self) -> u64 {
        (self.bytes.len() as u64).saturating_add(self.holes.gaps)
    }

    /// Returns the place of `offset` in the span.
    pub fn place(&self, offset: u64) -> usize {
        (self.holes.place(offset) as usize).min(self.bytes.len())
    }

    /// Returns the offset of the first missing byte from `offset` on, or the end.
    pub fn whole_until(&self, offset: u64) -> u64 {
        match self.holes.list.get(self.holes.first_behind(offset)) {
            Some(hole) => hole.from.clamp(offset, self.len().max(offset)),
            None => self.len(),
        }
    }

    /// Returns the offset of the first present byte from `offset` on, or the end.
    pub fn missing_until(&self, offset: u64) -> u64 {
        let mut end = offset;
        for hole in self.behind(offset) {
            if hole.from > end {
                break;
            }
            end = hole.to;
        }
        end.min(self.len().max(offset))
    }

    /// Returns the holes from `offset` on.
    fn behind(&self, offset: u64) -> std::slice::Iter<'a, Hole> {
        self.holes.list[self.holes.first_behind(offset)..].iter()
    }

    /// Returns the bytes of gaps at `offset`.
    pub fn gap_at(&self, offset: u64) -> u64 {
        let mut end = offset;
        for hole in self.behind(offset) {
            if !hole.is_gap || hole.from > end {
                break;
            }
            end = hole.to;
        }
        end - offset
    }

    /// Returns the `length` bytes at `offset`; `None` if one of them is missing.
    pub fn present(&self, offset: u64, length: usize) -> Option<&'a [u8]> {
        let end = offset.checked_add(length as u64)?;
        if self.whole_until(offset) < end {
            return None;
        }
        let place = self.place(offset);
        self.bytes.get(place..place.checked_add(length)?)
    }

    /// Returns the missing parts of the `length` bytes at `offset`, relative to `offset`.
    pub fn missing(&self, offset: u64, length: u64) -> impl Iterator<Item = Range<usize>> + 'a {
        let end = offset.saturating_add(length);
        let holes = self.behind(offset);
        let holes = holes.take_while(move |hole| hole.from < end);
        holes.map(move |hole| {
            let from = hole.from.saturating_sub(offset);
            from as usize..(hole.to.min(end) - offset) as usize
        })
    }

    /// Returns whether any of the `length` bytes at `offset` has no place in the span.
    pub fn touches_gap(&self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length);
        let mut holes = self.behind(offset).take_while(|hole| hole.from < end);
        holes.any(|hole| hole.is_gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes() -> Holes {
        let mut holes = Holes::new();
        holes.missing(2..4);
        holes.missing(4..5);
        holes.gap(8, 100);
        holes.missing(8..9);
        holes
    }

    #[test]
    fn gaps_move_later_parts() {
        let bytes: Vec<u8> = (0..12).collect();
        let holes = holes();
        let view = View {
            bytes: &bytes,
            holes: &holes,
        };
        assert_eq!(view.len(), 112);
        assert_eq!(view.present(0, 2), Some(&bytes[0..2]));
        assert_eq!(view.present(0, 3), None);
        assert_eq!(view.present(5, 3), Some(&bytes[5..8]));
        assert_eq!(view.present(7, 2), None);
        assert_eq!(view.present(109, 3), Some(&bytes[9..12]));
        assert_eq!(view.present(109, 4), None);
        assert_eq!(view.place(8), 8);
        assert_eq!(view.place(60), 8);
        assert_eq!(view.place(108), 8);
        assert_eq!(view.place(110), 10);
        assert_eq!(view.whole_until(0), 2);
        assert_eq!(view.whole_until(3), 3);
        assert_eq!(view.whole_until(109), 112);
        assert_eq!(view.missing_until(3), 5);
        assert_eq!(view.missing_until(8), 109);
        assert_eq!(view.missing_until(6), 6);
    }

    #[test]
    fn a_gap_that_is_left_comes_before_all() {
        let bytes = [0; 12];
        let holes = holes().with_gap(0, 50);
        let view = View {
            bytes: &bytes,
            holes: &holes,
        };
        assert!(view.missing(0, 162).eq([0..50, 52..55, 58..158, 158..159]));
        assert_eq!(view.gap_at(20), 30);
        assert_eq!(view.gap_at(50), 0);
        assert_eq!(view.gap_at(53), 0);
        assert_eq!(view.gap_at(58), 100);
    }

    #[test]
    fn missing_parts_count_from_the_start_of_a_piece() {
        let bytes = [0; 12];
        let holes = holes();
        let view = View {
            bytes: &bytes,
            holes: &holes,
        };
        assert!(view.missing(0, 8).eq(std::iter::once(2..5)));
        assert!(view.missing(4, 10).eq([0..1, 4..10]));
        assert!(view.missing(106, 6).eq([0..2, 2..3]));
        assert!(!view.touches_gap(0, 8));
        assert!(view.touches_gap(0, 9));
        assert!(!view.touches_gap(108, 4));
    }

    #[test]
    fn parts_out_of_order_are_cut() {
        let mut holes = Holes::new();
        holes.missing(5..9);
        holes.missing(1..6);
        holes.missing(2..12);
        holes.gap(3, u64::MAX);
        holes.gap(3, u64::MAX);
        let view = View {
            bytes: &[0; 20],
            holes: &holes,
        };
        assert!(view.missing(0, 12).eq(std::iter::once(5..12)));
        assert_eq!(view.len(), u64::MAX);
        assert_eq!(view.place(u64::MAX - 1), 12);
    }
}
