//! Tap devices: the ends of cables whose other ends this process holds.

use std::ffi::{c_int, c_ulong};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::cpu::succeed;

/// The device that makes them.
const MAKER: &str = "/dev/net/tun";

/// What the other side may leave undone: checksums, segmentation of TCP and, where the kernel has it (6.2), of UDP.
const CHECKSUM: c_ulong = 0x01;
const TCP4: c_ulong = 0x02;
const TCP6: c_ulong = 0x04;
const TCP_ECN: c_ulong = 0x08;
const UDP4: c_ulong = 0x20;
const UDP6: c_ulong = 0x40;

/// A tap device.
#[derive(Debug)]
pub struct Tap(File);

impl Tap {
    /// Makes a device in the network namespace of the current thread. It goes when the last descriptor of it does.
    ///
    /// # Errors
    /// What the kernel says: it takes CAP_NET_ADMIN in the namespace, and `/dev/net/tun`.
    pub fn new(name: &str) -> io::Result<Tap> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(MAKER)?;
        // SAFETY: an interface request is plain data for which all zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the pointer is to a request that lives through the call.
        succeed(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        let base = CHECKSUM | TCP4 | TCP6 | TCP_ECN;
        // Without the last two, datagrams come one by one.
        offload(&file, base | UDP4 | UDP6).or_else(|_| offload(&file, base))?;
        Ok(Tap(file))
    }

    /// Reads a frame; none when none waits.
    ///
    /// # Errors
    /// What the kernel says.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        use io::ErrorKind::{Interrupted, WouldBlock};
        match (&self.0).read(buffer) {
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Writes a frame, header first; says whether the host took it.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> bool {
        (&self.0).write(bytes).is_ok()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn offload(file: &File, what: c_ulong) -> io::Result<c_int> {
    // SAFETY: only numbers are passed.
    succeed(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, what) })
}
