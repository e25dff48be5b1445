//! The interface of transports, by which frames leave and arrive.
//!
//! [`TRANSPORTS`] is the only list of them; all other code uses it. The rules for each:
//!
//! - Nothing blocks. The sending or receiving thread waits, by its clock, for what [`Outgoing::ready`], [`Outgoing::drive`],
//!   [`Incoming::drive`] and `events` return.
//! - The memory of a received batch belongs to the transport.
//! - Both ends may send, and have timers: `drive` reads what has arrived and sends what is due.
//! - The time is an argument.
//! - A reliable transport is not read while there is no room for its data, and none of its data is dropped.
//! - A transport does not know a datagram's station, its number, or whether it belongs to the stream.
//!
//! A further transport is a file here and a row of that list (CONTRIBUTING.md, "How to add").

mod listening;
mod messages;
mod mirror;
mod options;
pub(crate) mod simulated;
mod tcp;
pub(crate) mod udp;
mod unix;
mod url;

use std::io;
use std::net::SocketAddr;

use evlbi_core::packetise::Family;
use evlbi_core::time::Nanos;

pub use crate::batch::{Batch, Datagram, Message};
pub use crate::train::{Head, MAX_HEAD, Piece, Pieces, Train};
pub use evlbi_core::peer::Peer;

pub use listening::{Listening, Local, Protocol};
pub use messages::Messages;
pub use options::{Honours, InOptions, NotHonoured, OutOptions};
pub use simulated::{In as SimulatedIn, Out as SimulatedOut};
pub use udp::In as UdpIn;
pub use url::{Handle, Host, Place, Query, Url, destination, scheme};

use crate::clock::Events;
use crate::run::Run;
use crate::socket::GrantedBuffer;
use crate::udp::SendCounts;

/// All transports.
pub static TRANSPORTS: [&dyn Transport; 6] = [
    &udp::Udp { is_numbered: true },
    &udp::Udp { is_numbered: false },
    &tcp::Tcp,
    &unix::Unix,
    &mirror::Mirror,
    &simulated::Sim,
];

/// One transport: a row of [`TRANSPORTS`].
pub trait Transport: Sync {
    /// Returns the schemes of its URLs. The first is its name.
    fn schemes(&self) -> &'static [&'static str];

    /// Returns the form of its URLs; empty if they have no text form: a handle is given instead.
    fn form(&self) -> &'static str {
        ""
    }

    /// Returns what it offers to its users.
    fn service(&self) -> Service;

    /// Parses the part of a URL between the scheme and the query, and takes keys of its own from the query.
    ///
    /// # Errors
    /// Returns what is wrong with it, and what to give.
    fn place(&self, text: &str, query: &mut Query<'_>) -> Result<Place, String> {
        let _ = query;
        Err(format!(
            "`{}://{text}`: a handle names it, not a URL",
            self.schemes()[0]
        ))
    }

    /// Returns what it listens on at `at`, which no other program can then use.
    ///
    /// # Errors
    /// Returns an error if a name cannot be resolved.
    fn listens(&self, at: &Url) -> Result<Vec<Listening>, OpenError> {
        let _ = at;
        Ok(Vec::new())
    }

    /// Opens a connection to `to`. It may wait for the remote host, until the run is stopped.
    ///
    /// # Errors
    /// Returns [`OpenError`].
    fn open_out(&self, to: &Url, with: &OutOptions, run: &Run) -> Opened<dyn Outgoing> {
        let _ = (with, run);
        Err(OpenError::ReceiveOnly(to.to_string()))
    }

    /// Listens at `at`.
    ///
    /// # Errors
    /// Returns [`OpenError`].
    fn open_in(&self, at: &Url, with: &InOptions, run: &Run) -> Opened<dyn Incoming>;

    /// Opens a socket for messages next to the data of `url`: at `address` if it `listens`, otherwise to reach `address`.
    ///
    /// # Errors
    /// Returns [`OpenError::NoMessages`] if the transport has none, or another error.
    fn open_messages(
        &self,
        url: &Url,
        address: SocketAddr,
        listens: bool,
        run: &Run,
    ) -> Result<Messages, OpenError> {
        let _ = (address, listens, run);
        Err(OpenError::NoMessages(url.to_string()))
    }
}

/// An open transport, or the reason why it cannot be opened.
pub type Opened<T> = Result<Box<T>, OpenError>;

/// Service of a transport for its users.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Datagrams or bytes.
    pub carries: Carries,
    /// How a receiver knows the order of what arrives.
    pub numbers: Numbers,
    /// Everything that was sent arrives, in order; a sender waits for a receiver that has no room.
    pub reliable: bool,
    /// Maximum number of ports for one stream.
    pub max_ports: u16,
    /// Options that have an effect.
    pub honours: Honours,
}

/// Kind of data that a transport carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Datagrams.
    Datagrams,
    /// A byte stream.
    Bytes,
}

/// How a receiver knows the order of arriving data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Each datagram begins with its number (VTP).
    InBand,
    /// By the headers of the frames in the datagrams.
    FromFrames,
    /// Data arrives in order.
    InOrder,
}

/// Reason why a transport cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A name without a known address.
    #[error("cannot look up host `{host}` of {url}: {source}")]
    Name {
        /// The name.
        host: String,
        /// The whole URL.
        url: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// An option that has no effect on this transport.
    #[error("{0}")]
    NotHonoured(#[from] NotHonoured),
    /// A UDP socket cannot be opened.
    #[error(transparent)]
    Udp(#[from] crate::udp::OpenError),
    /// Packets cannot be captured.
    #[error("{0}")]
    Capture(#[from] crate::capture::CaptureError),
    /// The transport has no sending end.
    #[error("cannot send to {0}: it only receives")]
    ReceiveOnly(String),
    /// The remote host cannot be reached.
    #[error("cannot connect to {url}: {source}")]
    Connect {
        /// Its URL.
        url: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The transport has no messages next to its data.
    #[error(
        "no reports can come back from {0}: they need a way back, and the UDP port after that of the data"
    )]
    NoMessages(String),
    /// The port for messages is taken.
    #[error(
        "cannot listen for the messages of SafeUDP on {at}, the port after that of the data: {source}"
    )]
    Messages {
        /// Where.
        at: Local,
        /// The kernel's error.
        source: io::Error,
    },
    /// The run was stopped in the meantime.
    #[error("stopped while connecting to {0}")]
    Stopped(String),
    /// Listening is not possible there.
    #[error("cannot listen on {at}: {source}")]
    Listen {
        /// Where.
        at: Local,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Whether a sender may pass on a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Now, with at most this many datagrams.
    Now(usize),
    /// Not before this time.
    At(Nanos),
    /// After an event.
    OnEvent,
}

/// Whether a sender has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The remote host has everything, as far as the transport can tell.
    Done,
    /// To be called again at this time.
    At(Nanos),
    /// To be called again after an event.
    OnEvent,
}

/// The sending end of a transport.
pub trait Outgoing: Send {
    /// Returns whether the next train may be sent.
    fn ready(&mut self, now: Nanos) -> Ready;

    /// Sends a train. Drops and counts what the network does not accept, or keeps what must wait.
    ///
    /// # Errors
    /// Returns only errors that would affect every later train too, such as a closed connection.
    fn send(&mut self, train: &Train<'_, '_>, now: Nanos) -> io::Result<()>;

    /// Reads what has arrived and does what is due; returns when to call it next, if it must be called.
    ///
    /// # Errors
    /// The same as [`Outgoing::send`].
    fn drive(&mut self, now: Nanos) -> io::Result<Option<Nanos>>;

    /// Ends sending.
    ///
    /// # Errors
    /// The same as [`Outgoing::send`].
    fn close(&mut self, now: Nanos) -> io::Result<Close>;

    /// Returns the events after which it may be ready or finished, when it is not.
    fn events(&self) -> Events<'_>;

    /// Returns its limits.
    fn limits(&self) -> Limits;

    /// Returns the address of the receiver's last port; `None` without ports.
    fn peer(&self) -> Option<SocketAddr> {
        None
    }

    /// Returns the bytes that a datagram of `length` bytes, or this much of a stream, takes on an Ethernet, including headers,
    /// checksums and gaps between packets.
    fn wire_bytes(&self, length: usize) -> u64;

    /// Returns the counters of what was sent.
    fn counts(&self) -> SendCounts;
}

/// Limits of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum packet length on the path in bytes, including the IP headers; `None` if there are no packets.
    pub mtu: Option<usize>,
    /// Address family, which determines headers and lengths.
    pub family: Family,
}

/// Result of a read of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// This many bytes, at least one.
    Bytes(usize),
    /// Nothing is there yet.
    Nothing,
    /// The remote host has sent everything.
    Closed,
}

/// The receiving end of a transport.
pub trait Incoming: Send {
    /// Returns what has arrived: nothing if the batch is empty. Of byte streams, the first bytes of each new peer, until its
    /// [`Incoming::verdict`].
    ///
    /// # Errors
    /// Returns the network's error, except that nothing is there.
    fn receive(&mut self, now: Nanos) -> io::Result<Batch<'_>>;

    /// Reads from a peer's byte stream into `into`.
    ///
    /// # Errors
    /// Returns the network's error.
    fn read(&mut self, peer: Peer, into: &mut [u8]) -> io::Result<Read> {
        let _ = (peer, into);
        Ok(Read::Nothing)
    }

    /// Sends and does what is due; returns when to call it next, if it must be called.
    ///
    /// # Errors
    /// Returns the network's error.
    fn drive(&mut self, now: Nanos) -> io::Result<Option<Nanos>> {
        let _ = now;
        Ok(None)
    }

    /// Decides whether a peer's byte stream is the one to receive; any other is closed.
    fn verdict(&mut self, peer: Peer, is_stream: bool) {
        let _ = (peer, is_stream);
    }

    /// Returns whether a peer has declared its end, and everything that it sent was received.
    fn has_ended(&self, peer: Peer) -> bool {
        let _ = peer;
        false
    }

    /// Returns the events after which something may have arrived.
    fn events(&self) -> Events<'_>;

    /// Returns what waits to be received, in bytes of memory: at least its [`Batch::taken`], once received.
    ///
    /// # Errors
    /// Returns the network's error.
    fn backlog(&self) -> io::Result<u64> {
        Ok(0)
    }

    /// Returns the number of messages that this host dropped, as known by the last batch.
    fn drops_reported(&self) -> u64 {
        0
    }

    /// Returns the number of messages that this host has dropped until now.
    ///
    /// # Errors
    /// Returns the network's error.
    fn drops(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    /// Returns the receive buffer, if there is one.
    fn buffer(&self) -> Option<&GrantedBuffer> {
        None
    }

    /// Returns where it listens, as bound.
    fn local(&self) -> Vec<Local>;
}
