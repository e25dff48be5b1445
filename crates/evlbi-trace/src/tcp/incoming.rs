//! Receive buffer of a connection: segments until they are in order, bytes until they are read, and the window.

use std::collections::VecDeque;
use std::sync::Arc;

use super::packet::Segment;

/// What has arrived.
#[derive(Debug, Default)]
pub struct Incoming {
    /// Size of the buffer in bytes.
    size: u64,
    /// Bytes in order so far, and those read.
    pub received: u64,
    read: u64,
    /// First byte that was not offered to the peer: the end of the window, which never moves back.
    end: u64,
    /// Segments from the first that is missing on.
    ahead: VecDeque<Option<Segment>>,
    unread: VecDeque<Stretch>,
    /// Whether FIN has arrived, and all before it.
    is_over: bool,
}

/// Bytes in order.
#[derive(Debug)]
struct Stretch {
    bytes: u64,
    /// Contents, which end with the stretch; `None` if blank.
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

    /// Bytes in order that are not read.
    pub fn unread(&self) -> u64 {
        self.received - self.read
    }

    /// Whether FIN has arrived, and all before it.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether a segment was offered a place.
    pub fn fits(&self, segment: &Segment) -> bool {
        segment.at + u64::from(segment.length) <= self.end
    }

    /// Keeps a segment `place` behind the first missing one.
    pub fn keep(&mut self, place: u64, segment: &Segment) {
        let place = place as usize;
        if place >= self.ahead.len() {
            self.ahead.resize_with(place + 1, || None);
        }
        self.ahead[place] = Some(segment.clone());
    }

    /// A number of segments are in order now.
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

    /// Reads bytes in order; blank ones are zeros.
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

    /// Discards bytes in order.
    pub fn discard(&mut self, most: u64) -> u64 {
        let mut done = 0;
        while done < most
            && let Some(first) = self.unread.front()
        {
            let count = first.bytes.min(most - done);
            self.take(count);
            done += count;
        }
        done
    }

    /// Bytes of the first stretch are read.
    fn take(&mut self, count: u64) {
        self.read += count;
        if let Some(first) = self.unread.front_mut() {
            first.bytes -= count;
            if first.bytes == 0 {
                self.unread.pop_front();
            }
        }
    }

    /// End of the window that may be offered: it moves by a segment or half of the buffer at least (RFC 1122, section 4.2.3.3).
    fn next_end(&self, segment: u32) -> u64 {
        let end = self.read.saturating_add(self.size);
        let is_worth_it = end - self.end >= u64::from(segment).min(self.size / 2).max(1);
        if is_worth_it { end } else { self.end }
    }

    /// Bytes that are offered now.
    pub fn offer(&mut self, segment: u32) -> u64 {
        self.end = self.next_end(segment);
        self.window()
    }

    /// Bytes that were offered, of which none has arrived.
    pub fn window(&self) -> u64 {
        self.end - self.received
    }

    /// Whether reading has made the window twice as large, which the peer should know (as Linux, tcp_cleanup_rbuf).
    pub fn is_wider(&self, segment: u32) -> bool {
        let next = self.next_end(segment) - self.received;
        next > self.window() && next / 2 >= self.window()
    }
}
