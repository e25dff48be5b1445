//! Assembles the datagrams of a train into messages for the kernel.

use std::ffi::{c_int, c_uint};
use std::io;
use std::ptr;

use crate::socket::ancillary::{self, Control, SEGMENT_SPACE};
use crate::train::{Piece, Train};

/// Maximum number of messages per system call.
const MESSAGES: usize = 64;

/// Limits for joining datagrams into messages.
pub(super) struct Layout {
    pub(super) max_segments: usize,
    pub(super) joined_below: usize,
    pub(super) max_payload: usize,
}

impl Layout {
    /// Returns how many of `pieces` form the first message: datagrams of one size, the last of which may be shorter, since the kernel
    /// cuts them that way.
    fn count(&self, pieces: &[Piece]) -> usize {
        let Some(size) = pieces.first().map(Piece::length) else {
            return 0;
        };
        if size == 0 || size >= self.joined_below {
            return 1;
        }
        let fitting = self.max_segments.min(self.max_payload / size).max(1);
        let fitting = &pieces[..fitting.min(pieces.len())];
        let equal = fitting
            .iter()
            .take_while(|piece| piece.length() == size)
            .count();
        let shorter = fitting
            .get(equal)
            .is_some_and(|last| (1..size).contains(&last.length()));
        equal + usize::from(shorter)
    }
}

/// The kernel's view of a train. It is kept between trains so that none allocates; its pointers are followed only in
/// [`Scratch::hand_over`], while the train exists.
#[derive(Default)]
pub(super) struct Scratch {
    /// Two per piece: head, body.
    vectors: Vec<libc::iovec>,
    pub(super) messages: Vec<libc::mmsghdr>,
    controls: Vec<Control<SEGMENT_SPACE>>,
}

// SAFETY: the pointers are followed only within `Sender::send`, while the train that they point to is borrowed, and are cleared at its
// end. Between trains a Scratch is only spare capacity.
unsafe impl Send for Scratch {}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

impl Scratch {
    /// Points to the heads and bodies of all pieces.
    pub(super) fn gather(&mut self, train: &Train<'_, '_>) {
        self.vectors.clear();
        self.vectors.extend(
            train
                .pieces()
                .iter()
                .flat_map(|piece| [vector(piece.head()), vector(piece.body())]),
        );
    }

    /// Assembles messages from the pieces from number `next` on, as many as one call takes.
    pub(super) fn assemble(&mut self, pieces: &[Piece], mut next: usize, layout: &Layout) {
        self.messages.clear();
        self.controls.clear();
        let vectors = self.vectors.as_mut_ptr();
        while next < pieces.len() && self.messages.len() < MESSAGES {
            let count = layout.count(&pieces[next..]);
            // SAFETY: a message header is plain data for which all zeroes are valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = vectors.wrapping_add(2 * next);
            message.msg_hdr.msg_iovlen = 2 * count;
            self.messages.push(message);
            if count > 1 {
                // Several fit into one packet, so the length fits 16 bits.
                let size = pieces[next].length() as u16;
                self.controls.push(ancillary::segment_size(size));
            }
            next += count;
        }
        let joined = self.messages.iter_mut().filter(|m| datagrams_of(m) > 1);
        for (message, control) in joined.zip(&mut self.controls) {
            message.msg_hdr.msg_control = ptr::from_mut(control).cast();
            message.msg_hdr.msg_controllen = SEGMENT_SPACE;
        }
    }

    /// Passes the assembled messages of the gathered train, which the caller borrows, to the kernel; returns how many it accepted.
    pub(super) fn hand_over(&mut self, socket: c_int) -> io::Result<usize> {
        // SAFETY: the messages point to vectors and controls of this scratch, which do not move
        // during the call; the vectors point to heads and bodies of the train that the caller borrows.
        let taken = unsafe {
            libc::sendmmsg(
                socket,
                self.messages.as_mut_ptr(),
                self.messages.len() as c_uint,
                0,
            )
        };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }

    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.vectors.clear();
    }
}

fn vector(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

pub(super) fn datagrams_of(message: &libc::mmsghdr) -> usize {
    message.msg_hdr.msg_iovlen / 2
}
