//! Tap devices: the ends of cables whose other ends this process holds.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// The device that makes them.
const MAKER: &str = "/dev/net/tun";

/// What the other side may leave undone: checksums, segmentation of TCP and, where the kernel has it (6.2), of UDP.
const CHECKSUM: libc::c_uint = 0x01;
const TCP4: libc::c_uint = 0x02;
const TCP6: libc::c_uint = 0x04;
const TCP_ECN: libc::c_uint = 0x08;
const UDP4: libc::c_uint = 0x20;
const UDP6: libc::c_uint = 0x40;

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
        // SAFETY: the pointer and the length describe `buffer`, exclusively borrowed.
        let read = unsafe { libc::read(self.fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        if read >= 0 {
            return Ok(Some(read as usize));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        }
    }

    /// Writes a frame, header first; says whether the host took it.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> bool {
        // SAFETY: the pointer and the length describe `bytes`, which live through the call.
        unsafe { libc::write(self.fd(), bytes.as_ptr().cast(), bytes.len()) >= 0 }
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn offload(file: &File, what: libc::c_uint) -> io::Result<()> {
    // SAFETY: only numbers are passed.
    succeed(unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(what),
        )
    })
}

fn succeed(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Waits until one of the descriptors has something to read, or so many nanoseconds; says whether one has.
pub fn wait(fds: &mut [libc::pollfd], nanos: u64) -> bool {
    let timeout = libc::timespec {
        tv_sec: (nanos / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the pointers are to the descriptors' list, exclusively borrowed, and to a time that lives through the
    // call; a null mask leaves signals as they are. A signal may end the wait early: the caller looks at the clock.
    unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            &raw const timeout,
            std::ptr::null(),
        ) > 0
    }
}
