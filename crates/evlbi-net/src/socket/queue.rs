//! The receive queue of a socket: reads many messages per system call, and counts those that it dropped.
//!
//! This module contains what datagrams and captured packets share. Names and lengths of messages get their meaning in
//! [`udp`](crate::udp) and [`capture`](crate::capture).

use std::ffi::c_uint;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use socket2::Socket;

use super::ancillary::{self, ADDRESS_SPACE, Control, RECEIVE_SPACE};
use super::get_words;

/// Maximum number of messages per system call.
pub const MESSAGES: usize = 16;

/// Minimum memory of a message in a queue, in bytes: more than its data, by the kernel's own accounting.
pub(crate) const MIN_ACCOUNT: usize = 256;

/// Index in the words of `SO_MEMINFO`.
const QUEUED: usize = libc::SK_MEMINFO_RMEM_ALLOC as usize;
const DROPS: usize = libc::SK_MEMINFO_DROPS as usize;

/// A socket that is read in batches without blocking.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) socket: Socket,
    overflow: Wrapping,
    drops: Wrapping,
}

/// A message in its place.
pub(crate) struct Arrived<'a> {
    /// Index of its place.
    pub(crate) place: usize,
    /// Its bytes, from the start of its place on.
    pub(crate) bytes: &'a [u8],
    /// Address of its sender, as the kernel lays it out.
    pub(crate) name: &'a [u8],
    /// Its control messages.
    pub(crate) said: ancillary::Received,
    /// Whether it was longer than its place.
    pub(crate) truncated: bool,
}

impl Queue {
    pub(crate) fn new(socket: Socket) -> Queue {
        Queue {
            socket,
            overflow: Wrapping::default(),
            drops: Wrapping::default(),
        }
    }

    /// Reads the waiting messages into places of `space` bytes in `memory`, as many as fit, at most [`MESSAGES`]; calls `each` for each.
    /// Returns at once.
    ///
    /// # Errors
    /// Returns the socket's error, except that nothing is there.
    pub(crate) fn receive(
        &mut self,
        memory: &mut [u8],
        space: usize,
        mut each: impl FnMut(Arrived<'_>),
    ) -> io::Result<()> {
        let mut names = [[0u8; ADDRESS_SPACE]; MESSAGES];
        let mut controls = [Control([0u8; RECEIVE_SPACE]); MESSAGES];
        let mut vectors = [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; MESSAGES];
        // SAFETY: a message header is plain data for which all zeroes are valid.
        let mut headers: [libc::mmsghdr; MESSAGES] = unsafe { std::mem::zeroed() };
        let places = memory.chunks_exact_mut(space).take(MESSAGES);
        let mut room = 0;
        for (i, place) in places.enumerate() {
            vectors[i] = libc::iovec {
                iov_base: place.as_mut_ptr().cast(),
                iov_len: place.len(),
            };
            headers[i].msg_hdr = libc::msghdr {
                msg_name: names[i].as_mut_ptr().cast(),
                msg_namelen: ADDRESS_SPACE as libc::socklen_t,
                msg_iov: &raw mut vectors[i],
                msg_iovlen: 1,
                msg_control: controls[i].0.as_mut_ptr().cast(),
                msg_controllen: RECEIVE_SPACE as _,
                ..headers[i].msg_hdr
            };
            room += 1;
        }
        // SAFETY: the first `room` headers point to names, vectors and controls that live in this
        // frame, and the vectors to distinct places of the exclusively borrowed memory.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                room as c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            };
        };
        for place in 0..count.min(room) {
            let header = &headers[place].msg_hdr;
            let control = controls[place].0.get(..header.msg_controllen as _);
            let said = ancillary::parse(control.unwrap_or(&[]));
            if let Some(overflow) = said.overflow {
                self.overflow.observe(overflow);
            }
            let length = (headers[place].msg_len as usize).min(space);
            each(Arrived {
                place,
                bytes: &memory[place * space..][..length],
                name: &names[place],
                said,
                truncated: header.msg_flags & libc::MSG_TRUNC != 0,
            });
        }
        Ok(())
    }

    /// Returns the number of messages dropped since the socket was opened, as the kernel counts now (`SO_MEMINFO`).
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn drops(&mut self) -> io::Result<u64> {
        let words = self.accounts()?;
        self.drops.observe(words[DROPS]);
        Ok(self.drops.total)
    }

    /// Returns the memory of the waiting messages, in bytes (`SO_MEMINFO`).
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn queued(&self) -> io::Result<u64> {
        Ok(self.accounts()?[QUEUED].into())
    }

    /// Returns the drops as reported with the last message (`SO_RXQ_OVFL`): the count when it was queued.
    pub(crate) fn overflow(&self) -> u64 {
        self.overflow.total
    }

    fn accounts(&self) -> io::Result<[u32; DROPS + 1]> {
        accounts(&self.socket)
    }
}

fn accounts(socket: &impl AsFd) -> io::Result<[u32; DROPS + 1]> {
    let mut words = [0; DROPS + 1];
    get_words(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut words)?;
    Ok(words)
}

/// Returns the number of messages that a socket has dropped since it was opened, modulo 2^32 (`SO_MEMINFO`).
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn drops_of(socket: &impl AsFd) -> io::Result<u32> {
    Ok(accounts(socket)?[DROPS])
}

/// A 64-bit count from samples of a 32-bit counter that wraps.
#[derive(Debug, Default)]
struct Wrapping {
    last: u32,
    total: u64,
}

impl Wrapping {
    fn observe(&mut self, reading: u32) {
        self.total += u64::from(reading.wrapping_sub(self.last));
        self.last = reading;
    }
}
