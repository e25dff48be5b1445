//! SafeUDP on sockets: what the sending and the receiving thread do next to the data. The protocol is [`evlbi_proto::safe`].
//!
//! Messages take the port after the last one of the data.

mod receiving;
mod sending;

use std::net::SocketAddr;

pub use evlbi_proto::safe::*;

pub use receiving::{ReceivedSafely, SafeReceiving};
pub use sending::{SafeSending, SentSafely, Shown};

/// Returns the address for messages next to data at `address`; `None` if there is no further port.
pub fn message_address(address: SocketAddr) -> Option<SocketAddr> {
    let port = address.port().checked_add(1)?;
    Some(SocketAddr::new(address.ip(), port))
}
