//! Whether a stream carries frames.

use crate::deframe::{self, Holes, Layout};

/// Whether the datagrams of a stream, which are all of one length, hold headers where its frames begin.
#[derive(Clone, Debug)]
pub struct Frames {
    layout: Layout,
    /// A datagram's number and where it lies within a frame.
    number: u64,
    into: u64,
    /// Of the last 64 datagrams in which a frame begins, the newest in the lowest bit: whether there is a header.
    valid: u64,
}

impl Frames {
    /// Looks for frames in datagrams of one length, by their numbers; `decide`: no more can be waited for.
    pub fn find(datagrams: &[(u64, &[u8])], decide: bool) -> Option<Frames> {
        let mut sorted = datagrams.to_vec();
        let first = datagrams.first()?.0;
        sorted.sort_by_key(|(number, _)| number.wrapping_sub(first).cast_signed());
        sorted.dedup_by_key(|(number, _)| *number);
        let (first, one) = *sorted.first()?;
        let length = one.len() as u64;
        let mut bytes = Vec::with_capacity(sorted.len() * one.len());
        let mut holes = Holes::new();
        let mut next = first;
        for (number, data) in sorted {
            let missing = number.wrapping_sub(next);
            if missing > 0 {
                holes.gap(bytes.len(), missing.saturating_mul(length));
            }
            bytes.extend_from_slice(data);
            next = number.wrapping_add(1);
        }
        let (offset, layout) = deframe::find(&bytes, &holes, decide)?;
        let frame = layout.frame_length as u64;
        Some(Frames {
            layout,
            number: first,
            into: (frame - offset % frame) % frame,
            valid: u64::MAX,
        })
    }

    /// The next datagram.
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
        let begins = if self.into == 0 { 0 } else { frame - self.into };
        let header = usize::try_from(begins)
            .ok()
            .and_then(|begins| data.get(begins..));
        if let Some(header) = header.filter(|header| header.len() >= self.layout.header_length) {
            let is_valid = self.layout.is_header(header);
            self.valid = self.valid << 1 | u64::from(is_valid);
        }
    }

    /// Whether one of the last 64 datagrams in which a frame begins held a header.
    pub fn are_there(&self) -> bool {
        self.valid != 0
    }

    #[cfg(test)]
    pub fn valid(&self) -> u64 {
        self.valid
    }
}
