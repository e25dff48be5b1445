//! Receive buffer of a connection: segments until they are in order, bytes until they are read, and the window.

use std::collections::VecDeque;
use std::sync::Arc;

use super::packet::Segment;

/// Receive buffer.
#[derive(Debug, Default)]
pub struct Incoming {
    /// Size of the buffer, in bytes.
    size: u64,
    /// Bytes in order so far, and bytes read.
    pub received: u64,
    read: u64,
    /// End of the window: first byte that was not offered to the peer. It never decreases.
    end: u64,
    /// Segments, starting with the first missing one.
    ahead: VecDeque<Option<Segment>>,
    unread: VecDeque<Stretch>,
    /// Whether FIN and everything before it have arrived.
    is_over: bool,
}

/// Bytes in order.
#[derive(Debug)]
struct Stretch {
    bytes: u64,
    /// Contents, which end with the block; `None` if blank.
    contents: Option<Arc<[u8]>>,
}

impl Incoming {
    pub fn new(size: u64) -> Incoming {
        Incoming {
            size,
            end: size,
            ..Incoming::default()
        }
    }

    /// Returns the bytes in order that are not read.
    pub fn unread(&self) -> u64 {
        self.received - self.read
    }

    /// Returns whether FIN and everything before it have arrived.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns whether a segment fits the offered window.
    pub fn fits(&self, segment: &Segment) -> bool {
        segment.at + u64::from(segment.length) <= self.end
    }

    /// Keeps a segment `place` segments after the first missing one.
    pub fn keep(&mut self, place: u64, segment: &Segment) {
        let place = place as usize;
        if place >= self.ahead.len() {
            self.ahead.resize_with(place + 1, || None);
        }
        self.ahead[place] = Some(segment.clone());
    }

    /// Moves the first `count` segments, which are in order now.
    pub fn advance(&mut self, count: u64) {
        for _ in 0..count {
            let Some(segment) = self.ahead.pop_front().flatten() else {
                return;
            };
            self.received += u64::from(segment.length);
            self.is_over = segment.is_last;
            match (self.unread.back_mut(), segment.payload) {
                (Some(last), None) if last.contents.is_none() => {
                    last.bytes += u64::from(segment.length);
                }
                (_, contents) if segment.length > 0 => self.unread.push_back(Stretch {
                    bytes: segment.length.into(),
                    contents,
                }),
                _ => {}
            }
        }
    }

    /// Reads bytes in order; blank ones are zeros. Returns their number.
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len()
            && let Some(first) = self.unread.front_mut()
        {
            let count = first.bytes.min((into.len() - done) as u64) as usize;
            let part = &mut into[done..done + count];
            match &first.contents {
                Some(contents) => {
                    let from = contents.len() - first.bytes as usize;
                    part.copy_from_slice(&contents[from..from + count]);
                }
                None => part.fill(0),
            }
            self.take(count as u64);
            done += count;
        }
        done
    }

    /// Discards bytes in order; returns their number.
    pub fn discard(&mut self, max: u64) -> u64 {
        let mut done = 0;
        while done < max
            && let Some(first) = self.unread.front()
        {
            let count = first.bytes.min(max - done);
            self.take(count);
            done += count;
        }
        done
    }

    /// Removes bytes of the first block, which are read.
    fn take(&mut self, count: u64) {
        self.read += count;
        if let Some(first) = self.unread.front_mut() {
            first.bytes -= count;
            if first.bytes == 0 {
                self.unread.pop_front();
            }
        }
    }

    /// Returns the end of the window that may be offered: it moves by at least a segment or half of the buffer (RFC 1122, section
    /// 4.2.3.3).
    fn next_end(&self, segment: u32) -> u64 {
        let end = self.read.saturating_add(self.size);
        let is_worth_it = end - self.end >= u64::from(segment).min(self.size / 2).max(1);
        if is_worth_it { end } else { self.end }
    }

    /// Offers the window: returns the bytes offered now.
    pub fn offer(&mut self, segment: u32) -> u64 {
        self.end = self.next_end(segment);
        self.window()
    }

    /// Returns the offered bytes of which none has arrived.
    pub fn window(&self) -> u64 {
        self.end - self.received
    }

    /// Returns whether reading has doubled the window, which the peer should learn (as in Linux, tcp_cleanup_rbuf).
    pub fn is_wider(&self, segment: u32) -> bool {
        let next = self.next_end(segment) - self.received;
        next > self.window() && next / 2 >= self.window()
    }
}
