//! What transports listen on.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;

use super::{OpenError, Url};

/// Something to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The protocol below: ports of different ones are different.
    pub protocol: Protocol,
    /// Where.
    pub at: Local,
}

/// A protocol that has ports of its own, or paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the protocols")]
pub enum Protocol {
    Udp,
    Tcp,
    Unix,
}

impl Protocol {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
            Protocol::Unix => "unix",
        }
    }
}

impl Listening {
    /// The ports of a URL, at the first address of its host.
    pub(super) fn at_ports(url: &Url, protocol: Protocol) -> Result<Vec<Listening>, OpenError> {
        let ports = url.addresses()?.into_iter().next().unwrap_or_default();
        let listening = |address| Listening {
            protocol,
            at: Local::Socket(address),
        };
        Ok(ports.into_iter().map(listening).collect())
    }

    /// Whether one program alone can listen there; many can on a group, and a port of 0 is another each time.
    pub fn is_exclusive(&self) -> bool {
        match &self.at {
            Local::Socket(address) => address.port() != 0 && !address.ip().is_multicast(),
            Local::Path(_) => true,
        }
    }

    /// Tries whether it can be listened on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn try_out(&self) -> io::Result<()> {
        match (&self.at, self.protocol) {
            (Local::Socket(address), _) if address.ip().is_multicast() => Ok(()),
            (Local::Socket(address), Protocol::Tcp) => TcpListener::bind(address).map(drop),
            (Local::Socket(address), Protocol::Udp) => UdpSocket::bind(address).map(drop),
            (Local::Path(_), _) | (_, Protocol::Unix) => Ok(()),
        }
    }
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Udp => "UDP",
            Protocol::Tcp => "TCP",
            Protocol::Unix => "Unix",
        };
        write!(f, "{protocol} {}", self.at)
    }
}

/// Where a transport listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// A port of this host.
    Socket(SocketAddr),
    /// A socket with a name in the file system.
    Path(PathBuf),
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Local::Socket(address) => address.fmt(f),
            Local::Path(path) => path.display().fmt(f),
        }
    }
}
