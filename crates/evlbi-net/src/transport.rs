//! The seam for transports: what frames leave by, and what they arrive from.
//!
//! [`TRANSPORTS`] is the only list of them; everything else asks it. The rules for each:
//!
//! - Nothing waits. The thread that sends or receives waits, by its clock, for what [`Outgoing::ready`], [`Outgoing::drive`],
//!   [`Incoming::drive`] and `events` say.
//! - The memory of a batch that arrives is the transport's.
//! - Both ends may send, and have timers: `drive` reads what comes back and sends what is due.
//! - The time is an argument.
//! - A reliable transport is not read while there is no room for what it brings, and none of its data is dropped.
//! - Which station a datagram is of, its number, and whether it belongs to the stream are not the transport's to know.
//!
//! Here belongs a further transport, as a file and a row of that list (CONTRIBUTING.md, "How to add").

mod listening;
mod options;
pub(crate) mod simulated;
mod tcp;
pub(crate) mod udp;
mod unix;
mod url;

use std::io;

use evlbi_core::packetise::Family;
use evlbi_core::time::Nanos;

pub use crate::batch::{Batch, Datagram, Message};
pub use crate::train::{Head, MAX_HEAD, Piece, Pieces, Train};
pub use evlbi_core::peer::Peer;

pub use listening::{Listening, Local, Protocol};
pub use options::{Honours, InOptions, NotHonoured, OutOptions};
pub use simulated::{In as SimulatedIn, Out as SimulatedOut};
pub use udp::In as UdpIn;
pub use url::{Handle, Host, Place, Url, destination, scheme};

use crate::clock::Events;
use crate::run::Run;
use crate::socket::GrantedBuffer;
use crate::udp::SendCounts;

/// All transports.
pub static TRANSPORTS: [&dyn Transport; 5] = [
    &udp::Udp { is_numbered: true },
    &udp::Udp { is_numbered: false },
    &tcp::Tcp,
    &unix::Unix,
    &simulated::Sim,
];

/// One transport: a row of [`TRANSPORTS`].
pub trait Transport: Sync {
    /// The schemes of its URLs. The first is its name.
    fn schemes(&self) -> &'static [&'static str];

    /// How its URLs are written; empty where they are not: there a handle is given instead.
    fn form(&self) -> &'static str {
        ""
    }

    /// What it does for its users.
    fn service(&self) -> Service;

    /// Understands what stands between the scheme and the query of a URL.
    ///
    /// # Errors
    /// What is wrong with it, and what to give.
    fn place(&self, text: &str) -> Result<Place, String> {
        Err(format!(
            "`{}://{text}`: a handle names it, not a URL",
            self.schemes()[0]
        ))
    }

    /// What it listens on at `at`, which no other program can then have.
    ///
    /// # Errors
    /// When a name cannot be looked up.
    fn listens(&self, at: &Url) -> Result<Vec<Listening>, OpenError> {
        let _ = at;
        Ok(Vec::new())
    }

    /// Opens the way to `to`. It may wait for the other end, until the run is stopped.
    ///
    /// # Errors
    /// [`OpenError`]
    fn open_out(&self, to: &Url, with: &OutOptions, run: &Run) -> Opened<dyn Outgoing>;

    /// Listens at `at`.
    ///
    /// # Errors
    /// [`OpenError`]
    fn open_in(&self, at: &Url, with: &InOptions, run: &Run) -> Opened<dyn Incoming>;
}

/// An end of a transport, or why there is none.
pub type Opened<T> = Result<Box<T>, OpenError>;

/// What a transport does for its users.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// What it carries.
    pub carries: Carries,
    /// How a receiver knows the order of what arrives.
    pub numbers: Numbers,
    /// Everything that was sent arrives, in order; a sender waits for a receiver that has no room.
    pub reliable: bool,
    /// Ports that one stream may be spread over.
    pub most_ports: u16,
    /// Options that have an effect.
    pub honours: Honours,
}

/// What a transport carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Datagrams.
    Datagrams,
    /// A stream of bytes.
    Bytes,
}

/// How a receiver knows the order of what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Each datagram begins with its number (VTP).
    InBand,
    /// By the headers of the frames that the datagrams hold.
    FromFrames,
    /// It arrives in order.
    InOrder,
}

/// Why a transport cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A name that no address is known of.
    #[error("cannot look up host `{host}` of {url}: {source}")]
    Name {
        /// The name.
        host: String,
        /// The whole URL.
        url: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// An option that the transport has no use for.
    #[error("{0}")]
    NotHonoured(#[from] NotHonoured),
    /// A socket of UDP cannot be had.
    #[error(transparent)]
    Udp(#[from] crate::udp::OpenError),
    /// The other end cannot be reached.
    #[error("cannot connect to {url}: {source}")]
    Connect {
        /// Where to.
        url: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The run was stopped meanwhile.
    #[error("stopped while connecting to {0}")]
    Stopped(String),
    /// The place to listen on cannot be had.
    #[error("cannot listen on {at}: {source}")]
    Listen {
        /// Where.
        at: Local,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Whether a sender may hand over a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Now, of at most so many datagrams.
    Now(usize),
    /// Not before this moment.
    At(Nanos),
    /// When an event has come.
    OnEvent,
}

/// Whether a sender is through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Everything is with the other end, or as far as the transport follows it.
    Done,
    /// It is to be asked again at this moment.
    At(Nanos),
    /// It is to be asked again when an event has come.
    OnEvent,
}

/// The sending end.
pub trait Outgoing: Send {
    /// Whether the next train may be handed over.
    fn ready(&mut self, now: Nanos) -> Ready;

    /// Takes a train: hands it to the network, drops and counts what the network does not take, or keeps what has to wait.
    ///
    /// # Errors
    /// Only what would befall every later train too, such as a connection that was closed.
    fn send(&mut self, train: &Train<'_, '_>, now: Nanos) -> io::Result<()>;

    /// Reads what came back and does what is due; returns when it is to be called next, if it has to be.
    ///
    /// # Errors
    /// As [`Outgoing::send`].
    fn drive(&mut self, now: Nanos) -> io::Result<Option<Nanos>>;

    /// Nothing more will be sent.
    ///
    /// # Errors
    /// As [`Outgoing::send`].
    fn close(&mut self, now: Nanos) -> io::Result<Close>;

    /// What may change whether it is ready or through, when it is not.
    fn events(&self) -> Events<'_>;

    /// What fits.
    fn limits(&self) -> Limits;

    /// Bytes that a datagram of `length` bytes, or so much of a stream, takes of an Ethernet, everything counted: headers, check
    /// sums, gaps between packets.
    fn wire_bytes(&self, length: usize) -> u64;

    /// What became of what was handed over.
    fn counts(&self) -> SendCounts;
}

/// What fits a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest packet on the way in bytes, the headers of IP included; none where there are no packets.
    pub mtu: Option<usize>,
    /// Which headers and lengths a datagram has.
    pub family: Family,
}

/// What a read of a stream of bytes brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing is there yet.
    Nothing,
    /// The other end has sent all it wanted to.
    Closed,
}

/// The receiving end.
pub trait Incoming: Send {
    /// What has come: nothing where the batch is empty. Of streams of bytes, the first ones of each new peer, until there is a
    /// [`Incoming::verdict`] on it.
    ///
    /// # Errors
    /// What the network says, other than that nothing is there.
    fn receive(&mut self, now: Nanos) -> io::Result<Batch<'_>>;

    /// Reads of a peer's stream of bytes into `into`.
    ///
    /// # Errors
    /// What the network says.
    fn read(&mut self, peer: Peer, into: &mut [u8]) -> io::Result<Read> {
        let _ = (peer, into);
        Ok(Read::Nothing)
    }

    /// Sends and does what is due; returns when it is to be called next, if it has to be.
    ///
    /// # Errors
    /// What the network says.
    fn drive(&mut self, now: Nanos) -> io::Result<Option<Nanos>> {
        let _ = now;
        Ok(None)
    }

    /// It is decided whether a peer's stream of bytes is the one that is received; one that is not is closed.
    fn verdict(&mut self, peer: Peer, is_stream: bool) {
        let _ = (peer, is_stream);
    }

    /// Whether a peer has said that it sends no more, and all that it sent was received.
    fn has_ended(&self, peer: Peer) -> bool {
        let _ = peer;
        false
    }

    /// What brings something new.
    fn events(&self) -> Events<'_>;

    /// What waits to be received, in bytes of memory: no less than [`Batch::taken`] of it, once received.
    ///
    /// # Errors
    /// What the network says.
    fn backlog(&self) -> io::Result<u64> {
        Ok(0)
    }

    /// Messages that this host dropped, as known by the last batch.
    fn drops_told(&self) -> u64 {
        0
    }

    /// Messages that this host dropped until now.
    ///
    /// # Errors
    /// What the network says.
    fn drops(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    /// The receive buffer, where there is one.
    fn buffer(&self) -> Option<&GrantedBuffer> {
        None
    }

    /// Where it listens, as bound.
    fn local(&self) -> Vec<Local>;
}
