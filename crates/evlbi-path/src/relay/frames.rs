//! Frames in flight, and their memory.

use std::cell::RefCell;
use std::rc::Rc;

use evlbi_core::path::{Identity, Train};

use crate::frame::{Frame, MAX, VNET};

/// Lengths of buffers: for frames of 1500 bytes, of 9000, and for long ones to be segmented.
const BUFFERS: [usize; 3] = [2048, 10_240, MAX];

/// A frame in flight; its memory is freed when its last part has arrived.
pub struct Packet {
    pub buffer: Vec<u8>,
    pub length: usize,
    pub train: Train,
    pub link_header: u32,
    pub to: [u8; 6],
    pub pool: Rc<RefCell<Pool>>,
}

impl Drop for Packet {
    fn drop(&mut self) {
        self.pool
            .borrow_mut()
            .give(std::mem::take(&mut self.buffer));
    }
}

impl Packet {
    /// Returns the frame.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// A packet, shared by its segments.
#[derive(Clone)]
pub struct Handle(pub Rc<Packet>);

impl Identity for Handle {
    fn identity(&self, segment: u16) -> u64 {
        Frame::new(self.0.bytes()).map_or(0, |frame| frame.identity(segment))
    }

    fn may_be_marked(&self) -> bool {
        Frame::new(self.0.bytes()).is_some_and(|frame| frame.may_be_marked())
    }
}

/// Free buffers, the one used last first: it is still in the cache.
#[derive(Default)]
pub struct Pool {
    free: [Vec<Vec<u8>>; BUFFERS.len()],
    /// Bytes of all buffers.
    pub made: u64,
    /// Bytes of buffers with frames in flight.
    pub used: u64,
}

impl Pool {
    /// Returns a buffer for a frame of this length. If the total would exceed `most`, free ones of other lengths are released.
    pub fn take(&mut self, frame: usize, most: u64) -> Vec<u8> {
        let size = Pool::size(frame);
        self.used += BUFFERS[size] as u64;
        if let Some(buffer) = self.free[size].pop() {
            return buffer;
        }
        for free in &mut self.free {
            while self.made + BUFFERS[size] as u64 > most
                && let Some(other) = free.pop()
            {
                self.made -= other.len() as u64;
            }
        }
        self.made += BUFFERS[size] as u64;
        vec![0; BUFFERS[size]]
    }

    fn size(frame: usize) -> usize {
        let fits = BUFFERS.iter().position(|length| frame <= *length);
        fits.unwrap_or(BUFFERS.len() - 1)
    }

    fn give(&mut self, buffer: Vec<u8>) {
        debug_assert!(BUFFERS.contains(&buffer.len()));
        self.used = self.used.saturating_sub(buffer.len() as u64);
        self.free[Pool::size(buffer.len())].push(buffer);
    }
}

const _: () = assert!(VNET + 14 < BUFFERS[0]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_one_length_serves_another() {
        let mut pool = Pool::default();
        let most = 1 << 20;
        for frame in [1514, 9014, MAX, 60] {
            let mut taken = Vec::new();
            while pool.used <= most {
                taken.push(pool.take(frame, most));
            }
            assert!(pool.made <= most + 2 * MAX as u64, "{}", pool.made);
            taken.into_iter().for_each(|buffer| pool.give(buffer));
            assert_eq!(pool.used, 0);
        }
    }
}
