//! Batched UDP: many datagrams per system call, and many datagrams per trip through the kernel.
//!
//! Packets per second, not bytes, are what a host runs out of. So the sender hands the kernel
//! super-packets that it cuts up as late as it can (generic segmentation offload, `UDP_SEGMENT`), the
//! receiver takes them up again joined (`UDP_GRO`), and both do several per system call. Where the
//! kernel or a device lacks an offload, the same calls carry single datagrams.
//!
//! Here belongs what one system call can do for many datagrams. What a stream needs of UDP is in [`transport`](crate::transport).

mod ancillary;
mod messages;
mod multicast;
mod receive;
mod send;

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use multicast::{Interface, interface_of};
pub use receive::{
    Listen, MESSAGE_SPACE, MESSAGES, Received, Receiver, ReceiverOptions, most_joined,
};
pub use send::{BUFFER_TIMEOUT, Fragmentation, MAX_SEGMENTS, SendCounts, Sender, SenderOptions};

/// Why a socket could not be made ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The local address is taken, not of this host, or not permitted.
    #[error("cannot bind to {address}: {source}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no route to the destination, or it is of another address family than the source.
    #[error("cannot send to {destination}: {source}")]
    Connect {
        /// The address asked for.
        destination: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The multicast group cannot be joined.
    #[error("cannot join multicast group {group}: {source}")]
    Join {
        /// The group asked for.
        group: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// No network interface has this name or address.
    #[error("no network interface is called or has the address {0}")]
    NoInterface(String),
    /// A source was named for a group or destination of the other address family.
    #[error("{0} and {1} are of different address families")]
    Families(IpAddr, IpAddr),
    /// The kernel refused a socket or one of its options.
    #[error("cannot set up a UDP socket ({what}): {source}")]
    Socket {
        /// The option or call.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}
