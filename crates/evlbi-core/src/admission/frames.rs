//! Detects whether a stream contains frames.

use crate::deframe::{self, Holes, Layout, Wanted};

/// Mask of the newest datagrams with the start of a frame that decide whether the stream still contains frames.
const LATELY: u64 = 0xff;

/// Check of whether the datagrams of a stream, all of one length, have headers where frames start.
#[derive(Clone, Debug)]
pub struct Frames {
    layout: Layout,
    /// A datagram's number and its offset within a frame.
    number: u64,
    into: u64,
    /// One bit for each of the last 64 datagrams in which a frame starts, the newest lowest: set if there was a header.
    valid: u64,
    /// Part of a header at the end of the last datagram.
    part: Vec<u8>,
}

impl Frames {
    /// Searches for frames in datagrams of one length, by their numbers; `decide`: no more datagrams will arrive.
    pub fn find(datagrams: &[(u64, &[u8])], decide: bool, wanted: Wanted) -> Option<Frames> {
        let mut sorted = datagrams.to_vec();
        let first = datagrams.first()?.0;
        sorted.sort_by_key(|(number, _)| number.wrapping_sub(first).cast_signed());
        sorted.dedup_by_key(|(number, _)| *number);
        let (first, one) = *sorted.first()?;
        let length = one.len() as u64;
        let mut bytes = Vec::with_capacity(sorted.len() * one.len());
        let mut holes = Holes::new();
        let mut next = first;
        for (number, data) in &sorted {
            let missing = number.wrapping_sub(next);
            if missing > 0 {
                holes.gap(bytes.len(), missing.saturating_mul(length));
            }
            bytes.extend_from_slice(data);
            next = number.wrapping_add(1);
        }
        let (offset, layout) = deframe::find(&bytes, &holes, decide, wanted)?;
        let frame = layout.frame_length as u64;
        let mut frames = Frames {
            layout,
            number: first,
            into: (frame - offset % frame) % frame,
            valid: 0,
            part: Vec::new(),
        };
        for (number, data) in sorted {
            frames.see(number, data);
        }
        Some(frames)
    }

    /// Checks the next datagram.
    #[inline]
    pub fn see(&mut self, number: u64, data: &[u8]) {
        let frame = self.layout.frame_length as u64;
        let length = data.len() as u64;
        let step = number.wrapping_sub(self.number);
        if step == 1 {
            self.into += length;
            if self.into >= frame {
                self.into %= frame;
            }
        } else if step != 0 {
            let bytes = i128::from(step.cast_signed()) * i128::from(length);
            let into = (bytes + i128::from(self.into)).rem_euclid(i128::from(frame));
            self.into = into as u64;
        }
        self.number = number;
        if !self.part.is_empty() {
            self.see_rest(step, data);
        }
        let begins = if self.into == 0 { 0 } else { frame - self.into };
        let begins = usize::try_from(begins).ok();
        let Some(header) = begins.and_then(|begins| data.get(begins..)) else {
            return;
        };
        if header.len() >= self.layout.header_length {
            self.saw(self.layout.is_header(header));
        } else {
            self.part.clear();
            self.part.extend_from_slice(header);
        }
    }

    /// Checks the rest of a header that started in the datagram before, if that was the last one seen.
    #[cold]
    fn see_rest(&mut self, step: u64, data: &[u8]) {
        let whole = self.layout.header_length;
        let rest = data.len().min(whole - self.part.len());
        self.part.extend_from_slice(&data[..rest]);
        let is_next = step == 1;
        if is_next && self.part.len() < whole {
            return;
        }
        if is_next {
            self.saw(self.layout.is_header(&self.part));
        }
        self.part.clear();
    }

    #[inline]
    fn saw(&mut self, header: bool) {
        self.valid = self.valid << 1 | u64::from(header);
    }

    /// Returns whether any of the last 64 datagrams in which a frame starts had a header.
    pub fn are_there(&self) -> bool {
        self.valid != 0
    }

    /// Returns whether any of the last 8 did.
    pub fn are_there_lately(&self) -> bool {
        self.valid & LATELY != 0
    }

    #[cfg(test)]
    pub fn valid(&self) -> u64 {
        self.valid
    }
}
