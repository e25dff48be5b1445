//! Tap devices: network interfaces whose packets this process reads and writes.

use std::ffi::{c_int, c_uint, c_ulong};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::cpu::succeed;
use crate::host::nic::about;

/// The device that creates them.
const MAKER: &str = "/dev/net/tun";

/// A tap device.
#[derive(Debug)]
pub struct Tap(File);

impl Tap {
    /// Creates a device in the network namespace of the current thread. The kernel removes it with its last descriptor.
    ///
    /// # Errors
    /// Returns the kernel's error: it needs CAP_NET_ADMIN in the namespace, and `/dev/net/tun`.
    pub fn new(name: &str) -> io::Result<Tap> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(MAKER)?;
        let mut request = about(name)?;
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the pointer is to a request that lives through the call.
        succeed(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        // Work that the host may leave undone: checksums, TCP segmentation and, if the kernel has it (6.2), UDP segmentation. Without
        // the latter, datagrams arrive one by one.
        let tcp = libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let base = libc::TUN_F_CSUM | tcp;
        let all = base | libc::TUN_F_USO4 | libc::TUN_F_USO6;
        offload(&file, all).or_else(|_| offload(&file, base))?;
        Ok(Tap(file))
    }

    /// Reads a frame; `None` if none is waiting.
    ///
    /// # Errors
    /// Returns the kernel's error.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        use io::ErrorKind::{Interrupted, WouldBlock};
        match (&self.0).read(buffer) {
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Writes a frame, header first; returns whether the host accepted it.
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

fn offload(file: &File, what: c_uint) -> io::Result<c_int> {
    let what = c_ulong::from(what);
    // SAFETY: only numbers are passed.
    succeed(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, what) })
}
