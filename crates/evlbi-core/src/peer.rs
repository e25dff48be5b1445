//! Remote endpoint of a stream.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

/// Remote endpoint of a stream, as the transport identifies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(into = "String")
)]
pub enum Peer {
    /// The transport does not tell.
    #[default]
    Unknown,
    /// Socket of a host.
    Socket(SocketAddr),
    /// Program on this host, by its process ID.
    Process(u32),
}

impl Peer {
    /// Returns the address of its host.
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Peer::Socket(address) => Some(address.ip()),
            Peer::Unknown | Peer::Process(_) => None,
        }
    }

    /// Returns the peer without its port, so that all sockets of a host are equal.
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
