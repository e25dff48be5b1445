//! The two ends of a test: streams of numbered datagrams sent on time, taken up and accounted for, round trips, and the
//! messages by which both ends agree.
//!
//! Both ends use one UDP socket of their own for a test, [`Port`]. Whatever it carries bears the test's key. A test of TCP
//! has connections beside it, [`Flows`].

mod flows;
mod listen;
mod message;
mod transmit;
mod work;

use std::net::SocketAddr;

pub use flows::{Files, FlowEnd, Flows, FlowsEnd, MOST_SAMPLES, usual_sampling};
pub use listen::{CLOCK_FROM, Heard, Listened, Record, RoundTrip, Window};
pub use message::{
    Burden, End, FromClient, FromResponder, Keep, Limits, Requests, Test, TestError, VERSION,
};
pub use transmit::Departed;
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

impl Port {
    /// Opens the socket of a test at an address of this host, where port 0 is any that is free, and at one interface alone
    /// if that is asked for.
    ///
    /// # Errors
    /// [`OpenError`] when the address or an option is refused.
    pub fn open(
        address: SocketAddr,
        test: &Test,
        device: Option<String>,
    ) -> Result<Port, OpenError> {
        let defaults = ReceiverOptions::default();
        let options = ReceiverOptions {
            buffer: test.buffer.unwrap_or(defaults.buffer),
            join: test.join,
            stamps: true,
            device,
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

    /// Speaks with the other end alone from now on, in a class of service (RFC 2474): what sends, twice, and what listens.
    fn connect(
        self,
        other: SocketAddr,
        dscp: Option<u8>,
    ) -> Result<(Sender, Sender, Receiver), OpenError> {
        let options = SenderOptions {
            dscp,
            ..SenderOptions::default()
        };
        let stream = self.receiver.sender(other, &options)?;
        let replies = self.receiver.sender(other, &options)?;
        Ok((stream, replies, self.receiver))
    }
}
