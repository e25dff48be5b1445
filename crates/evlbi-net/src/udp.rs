//! Batched UDP: many datagrams per system call, and many datagrams per trip through the kernel.
//!
//! Hosts are limited by packets per second, not by bytes. So the sender passes super-packets to the kernel, which cuts them as late as
//! it can (generic segmentation offload, `UDP_SEGMENT`); the receiver gets them joined (`UDP_GRO`); and both handle several per system
//! call. If the kernel or a device lacks an offload, the same calls carry single datagrams.
//!
//! This module contains what one system call can do for many datagrams. What a stream needs of UDP is in
//! [`transport`](crate::transport).

mod messages;
mod multicast;
mod receive;
mod send;

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use multicast::{Interface, interface_of};
pub use receive::{
    Listen, MESSAGE_SPACE, MESSAGES, Received, Receiver, ReceiverOptions, max_joined,
};
pub use send::{BUFFER_TIMEOUT, Fragmentation, MAX_SEGMENTS, SendCounts, Sender, SenderOptions};

/// Reason why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The local address is taken, not of this host, or not permitted.
    #[error("cannot bind to {address}: {source}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no route to the destination, or its address family differs from the source's.
    #[error("cannot send to {destination}: {source}")]
    Connect {
        /// The requested address.
        destination: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The multicast group cannot be joined.
    #[error("cannot join multicast group {group}: {source}")]
    Join {
        /// The requested group.
        group: IpAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// No network interface has this name or address.
    #[error("no network interface has the name or address {0}")]
    NoInterface(String),
    /// A source was given for a group or destination of the other address family.
    #[error("{0} and {1} are of different address families")]
    Families(IpAddr, IpAddr),
    /// The kernel refused a socket or one of its options.
    #[error("cannot set up a UDP socket ({what}): {source}")]
    Socket {
        /// The option or call.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}
