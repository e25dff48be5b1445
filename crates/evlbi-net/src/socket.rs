//! Sockets: options that socket2 does not wrap, and messages in batches with their control messages.

pub(crate) mod ancillary;
pub(crate) mod queue;

use std::ffi::c_int;
use std::io;
use std::mem::size_of_val;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use serde::{Deserialize, Serialize};
use socket2::Socket;

use crate::cpu::succeed;

/// A socket buffer: requested and granted size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GrantedBuffer {
    /// Requested bytes.
    pub asked: usize,
    /// Granted bytes, in the same measure: half of what `getsockopt` returns, because the kernel doubles the figure to make room for
    /// its own bookkeeping (socket(7)).
    pub granted: usize,
    /// Remedy if less was granted than requested.
    pub remedy: Option<String>,
}

/// Sets an option whose value is the C structure or number `value`.
pub(crate) fn set<T: Copy>(
    socket: &impl AsFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives through the call; the kernel only reads it.
    succeed(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of_val(value) as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Reads an option made of 32-bit words into `words`; words that the kernel does not write keep their values.
pub(crate) fn get_words(
    socket: &impl AsFd,
    level: c_int,
    name: c_int,
    words: &mut [u32],
) -> io::Result<()> {
    let mut length = size_of_val(words) as libc::socklen_t;
    // SAFETY: the pointer and the length describe `words`, exclusively borrowed; any bits are a u32.
    succeed(unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    })
    .map(drop)
}

/// Reads an option that is one C int.
pub(crate) fn get_int(socket: &impl AsFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut word = [0u32];
    get_words(socket, level, name, &mut word)?;
    Ok(word[0] as c_int)
}

/// Requests a socket buffer of `asked` bytes: beyond the system's limit if this process may (`CAP_NET_ADMIN`), else up to it.
fn ask_buffer(
    socket: &impl AsFd,
    asked: usize,
    (force, plain): (c_int, c_int),
    sysctl: &str,
) -> io::Result<GrantedBuffer> {
    // The kernel doubles the figure in an int.
    let value = c_int::try_from(asked)
        .unwrap_or(c_int::MAX)
        .min(c_int::MAX / 2);
    if set(socket, libc::SOL_SOCKET, force, &value).is_err() {
        set(socket, libc::SOL_SOCKET, plain, &value)?;
    }
    let granted = usize::try_from(get_int(socket, libc::SOL_SOCKET, plain)?).unwrap_or(0) / 2;
    let remedy = (granted < asked).then(|| match granted < value as usize {
        true => format!("as root: sysctl -w {sysctl}={value} (or give this program CAP_NET_ADMIN)"),
        false => "Linux gives a socket no more than 1 GiB".to_owned(),
    });
    Ok(GrantedBuffer {
        asked,
        granted,
        remedy,
    })
}

pub(crate) fn ask_receive_buffer(socket: &impl AsFd, asked: usize) -> io::Result<GrantedBuffer> {
    let options = (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
    ask_buffer(socket, asked, options, "net.core.rmem_max")
}

pub(crate) fn ask_send_buffer(socket: &impl AsFd, asked: usize) -> io::Result<GrantedBuffer> {
    let options = (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
    ask_buffer(socket, asked, options, "net.core.wmem_max")
}

/// Sets the DSCP (RFC 2474) and the ECN field (RFC 3168) of what a socket sends to addresses of this family.
pub(crate) fn set_class(socket: &Socket, address: SocketAddr, dscp: u8, ecn: u8) -> io::Result<()> {
    let octet = u32::from(dscp) << 2 | u32::from(ecn);
    match address {
        SocketAddr::V4(_) => socket.set_tos_v4(octet),
        SocketAddr::V6(_) => socket.set_tclass_v6(octet),
    }
}
