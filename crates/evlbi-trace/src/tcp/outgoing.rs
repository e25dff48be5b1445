//! Send buffer of a connection: written bytes until they are acknowledged, and the segments that they are split into.

use std::collections::VecDeque;
use std::sync::Arc;

use super::packet::Segment;

/// Bytes written, and segments split from them as they are sent.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Size of the buffer, in bytes.
    size: u64,
    /// Bytes so far: written, split into segments, and acknowledged.
    written: u64,
    cut: u64,
    pub acknowledged: u64,
    /// Blocks that are not split yet: whether blank, and bytes. The contents of the others.
    stretches: VecDeque<(bool, u64)>,
    contents: VecDeque<u8>,
    /// Segments that are not acknowledged, and the number of the first.
    segments: VecDeque<Segment>,
    first: u64,
    is_shut: bool,
    is_last_cut: bool,
    /// First byte beyond the peer's window, and the largest window that it has offered.
    limit: u64,
    largest_window: u64,
}

impl Outgoing {
    pub fn new(size: u64) -> Outgoing {
        Outgoing {
            size,
            ..Outgoing::default()
        }
    }

    /// Returns the bytes that are written and not acknowledged.
    pub fn queued(&self) -> u64 {
        self.written - self.acknowledged
    }

    pub fn unsent(&self) -> u64 {
        self.written - self.cut
    }

    /// Returns the bytes that fit.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.queued())
    }

    /// Returns whether a third of the buffer is free, as in Linux (sk_stream_is_writeable).
    pub fn is_writable(&self) -> bool {
        self.free() >= self.queued() / 2 && self.free() > 0
    }

    /// Returns how many more bytes may be sent.
    pub fn window(&self) -> u64 {
        self.limit.saturating_sub(self.cut)
    }

    /// Returns the window of the peer, relative to the acknowledged bytes.
    pub fn peer_window(&self) -> u64 {
        self.limit - self.acknowledged
    }

    /// Returns the number of the next segment.
    pub fn next(&self) -> u64 {
        self.first + self.segments.len() as u64
    }

    pub fn is_shut(&self) -> bool {
        self.is_shut
    }

    pub fn shut(&mut self) {
        self.is_shut = true;
    }

    /// Returns whether FIN is sent.
    pub fn is_last_cut(&self) -> bool {
        self.is_last_cut
    }

    /// Returns whether data or FIN are not acknowledged.
    pub fn is_busy(&self) -> bool {
        self.queued() > 0 || !self.segments.is_empty()
    }

    /// Returns whether all data and FIN are acknowledged.
    pub fn is_over(&self) -> bool {
        self.is_last_cut && self.segments.is_empty()
    }

    /// Accepts as many bytes as fit; returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let count = self.free().min(bytes.len() as u64);
        self.contents.extend(&bytes[..count as usize]);
        self.note(false, count);
        count as usize
    }

    /// Accepts as many bytes without contents as fit; returns their number.
    pub fn write_blank(&mut self, bytes: u64) -> u64 {
        let count = self.free().min(bytes);
        self.note(true, count);
        count
    }

    fn note(&mut self, is_blank: bool, count: u64) {
        self.written += count;
        match self.stretches.back_mut() {
            Some((blank, bytes)) if *blank == is_blank => *bytes += count,
            _ if count > 0 => self.stretches.push_back((is_blank, count)),
            _ => {}
        }
    }

    /// Returns the length of the next segment: the largest, or all there is, if the window allows it. A part that fits the window
    /// is sent if it is half of the largest window (RFC 1122, section 4.2.3.4), or as a probe.
    pub fn next_length(&self, largest: u32, is_probe: bool) -> Option<u32> {
        let Some((_, bytes)) = self.stretches.front() else {
            return (self.is_shut && !self.is_last_cut).then_some(0);
        };
        let (length, window) = ((*bytes).min(largest.into()), self.window());
        if length <= window {
            return Some(length as u32);
        }
        let is_worth_it = is_probe || window >= self.largest_window / 2;
        (window > 0 && is_worth_it).then_some(window as u32)
    }

    /// Splits off the next segment.
    pub fn cut(&mut self, length: u32) {
        let count = length as usize;
        let mut payload = None;
        if let Some((is_blank, bytes)) = self.stretches.front_mut() {
            if !*is_blank {
                payload = Some(take_front(&mut self.contents, count));
            }
            *bytes -= u64::from(length);
            if *bytes == 0 {
                self.stretches.pop_front();
            }
        }
        let at = self.cut;
        self.cut += u64::from(length);
        self.is_last_cut = self.is_shut && self.stretches.is_empty();
        self.segments.push_back(Segment {
            at,
            length,
            is_last: self.is_last_cut,
            payload,
        });
    }

    /// Returns a segment that is not acknowledged.
    pub fn segment(&self, number: u64) -> Option<&Segment> {
        self.segments.get(number.checked_sub(self.first)? as usize)
    }

    /// Removes segments before this one, which are acknowledged.
    pub fn acknowledge(&mut self, next: u64) {
        while self.first < next
            && let Some(segment) = self.segments.pop_front()
        {
            self.first += 1;
            self.acknowledged = segment.at + u64::from(segment.length);
        }
    }

    /// Notes a window that the peer offers, which starts at a segment. One that arrives late is older, and ends no later.
    pub fn offer(&mut self, next: u64, window: u64) {
        if next == self.first {
            self.limit = self.limit.max(self.acknowledged.saturating_add(window));
            self.largest_window = self.largest_window.max(window);
        }
    }
}

fn take_front(contents: &mut VecDeque<u8>, count: usize) -> Arc<[u8]> {
    let (first, second) = contents.as_slices();
    let payload = match first.get(..count) {
        Some(whole) => whole.into(),
        None => [first, &second[..count - first.len()]].concat().into(),
    };
    contents.drain(..count);
    payload
}
