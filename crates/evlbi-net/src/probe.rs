//! The two ends of a test: streams of numbered datagrams sent on time, taken up and accounted for, round trips, and the
//! messages by which both ends agree.
//!
//! Both ends use one UDP socket of their own for a test, [`Port`]. Whatever it carries bears the test's key.

mod listen;
mod message;
mod transmit;
mod work;

use std::io;
use std::net::{IpAddr, SocketAddr};

pub use listen::{CLOCK_FROM, Heard, ListenOptions, Listened, Record, RoundTrip, Window, listen};
pub use message::{Burden, End, FromClient, FromResponder, Keep, Limits, Test, TestError, VERSION};
pub use transmit::{Departed, Departures, TransmitOptions, ping, transmit};
pub use work::{Work, WorkError};

use crate::udp::{
    Listen, OpenError, Receiver, ReceiverOptions, Sender, SenderOptions, interface_of,
};

/// The socket of one end of a test.
#[derive(Debug)]
pub struct Port {
    receiver: Receiver,
    local: SocketAddr,
}

/// How the socket of a test is set up.
#[derive(Clone, Debug, Default)]
pub struct PortOptions {
    /// Receive buffer to ask for in bytes; else the usual.
    pub buffer: Option<usize>,
    /// Whether the kernel may join datagrams on their way up: what came joined shares one time of arrival.
    pub join: bool,
    /// The only interface to use.
    pub device: Option<String>,
    /// Class of service (RFC 2474).
    pub dscp: Option<u8>,
}

impl Port {
    /// Opens a socket at an address of this host; port 0 is any that is free.
    ///
    /// # Errors
    /// [`OpenError`] when the address or an option is refused.
    pub fn open(address: SocketAddr, options: &PortOptions) -> Result<Port, OpenError> {
        let defaults = ReceiverOptions::default();
        let options = ReceiverOptions {
            buffer: options.buffer.unwrap_or(defaults.buffer),
            join: options.join,
            stamps: true,
            device: options.device.clone(),
        };
        let receiver = Receiver::bind(&[Listen::from(address)], &options)?;
        let local = receiver.local_addresses().next().unwrap_or(address);
        Ok(Port { receiver, local })
    }

    /// Where the socket is.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Name of the interface whose address it has, if it is known.
    pub fn interface(&self) -> Option<String> {
        interface_of(self.local.ip().to_canonical())
    }

    /// Waits for a first request with the test's key from an address, and says whence it came.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn caller(
        &mut self,
        from: IpAddr,
        key: u64,
        timeout: std::time::Duration,
    ) -> io::Result<Option<SocketAddr>> {
        listen::caller(&mut self.receiver, from, key, timeout)
    }

    /// Speaks with the other end alone from now on: what sends, twice, and what listens.
    ///
    /// # Errors
    /// [`OpenError`] when there is no way there.
    pub fn connect(
        self,
        other: SocketAddr,
        options: &PortOptions,
    ) -> Result<(Sender, Sender, Receiver), OpenError> {
        let options = SenderOptions {
            dscp: options.dscp,
            ..SenderOptions::default()
        };
        let stream = self.receiver.sender(other, &options)?;
        let replies = self.receiver.sender(other, &options)?;
        Ok((stream, replies, self.receiver))
    }
}
