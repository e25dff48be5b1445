//! Who is at the other end.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

/// The other end of a stream, as the transport names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// The transport does not say.
    #[default]
    Unknown,
    /// A socket of a host.
    Socket(SocketAddr),
    /// A program on this host, by its process number.
    Process(u32),
}

impl Peer {
    /// The address of its host.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Peer::Socket(address) => Some(address.ip()),
            Peer::Unknown | Peer::Process(_) => None,
        }
    }

    /// The same whatever its port: all sockets of a host are one.
    #[must_use]
    pub fn host(self) -> Peer {
        let host = |ip| Peer::Socket(SocketAddr::new(ip, 0));
        self.ip().map_or(self, host)
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        Peer::Socket(address)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unknown => f.write_str("unknown"),
            Peer::Socket(address) => address.fmt(f),
            Peer::Process(number) => write!(f, "process {number}"),
        }
    }
}

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
