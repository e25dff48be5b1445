//! Ports and paths that transports listen on.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;

use super::{OpenError, Url};
use crate::udp::Interface;

/// A port or path that a transport listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The protocol below: ports of different protocols are different.
    pub protocol: Protocol,
    /// The local address or path.
    pub at: Local,
}

/// A protocol with its own ports or paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the protocols")]
pub enum Protocol {
    Udp,
    Tcp,
    Unix,
}

impl Protocol {
    /// Returns its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
            Protocol::Unix => "unix",
        }
    }
}

impl Listening {
    /// Returns the ports of a URL, at the first address of its host.
    pub(super) fn at_ports(url: &Url, protocol: Protocol) -> Result<Vec<Listening>, OpenError> {
        let ports = url.addresses()?.into_iter().next().unwrap_or_default();
        let listening = |address| Listening {
            protocol,
            at: Local::Socket(address),
        };
        Ok(ports.into_iter().map(listening).collect())
    }

    /// Returns whether only one program can listen there. Several can on a multicast group, and port 0 is a different one each time.
    pub fn is_exclusive(&self) -> bool {
        match &self.at {
            Local::Socket(address) => address.port() != 0 && !address.ip().is_multicast(),
            Local::Path(_) => true,
            Local::Interface { .. } => false,
        }
    }

    /// Tests whether it can be listened on.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn try_out(&self) -> io::Result<()> {
        match (&self.at, self.protocol) {
            (Local::Socket(address), _) if address.ip().is_multicast() => Ok(()),
            (Local::Socket(address), Protocol::Tcp) => TcpListener::bind(address).map(drop),
            (Local::Socket(address), Protocol::Udp) => UdpSocket::bind(address).map(drop),
            (Local::Path(_) | Local::Interface { .. }, _) | (_, Protocol::Unix) => Ok(()),
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

/// Local address or path of a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// A port of this host.
    Socket(SocketAddr),
    /// A Unix socket in the file system.
    Path(PathBuf),
    /// A UDP port in the packets that an interface shows.
    Interface {
        /// The interface.
        interface: Interface,
        /// The port.
        port: u16,
    },
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Local::Socket(address) => address.fmt(f),
            Local::Path(path) => path.display().fmt(f),
            Local::Interface { interface, port } => write!(f, "{interface}?udp={port}"),
        }
    }
}
