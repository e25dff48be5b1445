//! A datagram socket, of this host or of a simulated network, for protocols of the tests.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use evlbi_core::time::Nanos;
use evlbi_net::clock::{Events, readable};
use evlbi_net::sim::{self, Network};
use evlbi_net::transport::{Local, OpenError};

/// Maximum number of datagrams received at once.
const AT_ONCE: usize = 64;

/// A datagram socket.
pub enum Link {
    /// A kernel socket of this host.
    Udp(UdpSocket, [libc::pollfd; 1]),
    /// Of a simulated network.
    Sim(sim::Socket),
}

impl Link {
    /// Opens a socket of the network, or of this host; it listens at `listens`, if given.
    ///
    /// # Errors
    /// Returns [`OpenError::Listen`] if the address cannot be used.
    pub fn open(network: Option<&Network>, listens: Option<SocketAddr>) -> Result<Link, OpenError> {
        if let Some(network) = network {
            let host = listens.map_or_else(|| network.near(1), |at| network.at(at.ip()));
            let port = listens.map_or(0, |at| at.port());
            let socket = host.bind(port, None);
            let at = Local::Socket(SocketAddr::new(host.address(), port));
            let socket = socket.map_err(|source| OpenError::Listen { at, source })?;
            return Ok(Link::Sim(socket));
        }
        let address = listens.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        let at = Local::Socket(address);
        let nonblocking = |it: UdpSocket| it.set_nonblocking(true).map(|()| it);
        let socket = UdpSocket::bind(address).and_then(nonblocking);
        let socket = socket.map_err(|source| OpenError::Listen { at, source })?;
        let polls = [readable(&socket)];
        Ok(Link::Udp(socket, polls))
    }

    /// Sends a datagram. What the network does not accept is lost.
    pub fn send(&self, to: SocketAddr, bytes: &[u8], now: Nanos) {
        match self {
            Link::Udp(socket, _) => _ = socket.send_to(bytes, to),
            Link::Sim(socket) => socket.send_to(to, bytes.to_vec(), now),
        }
    }

    /// Returns datagrams that have arrived, up to a limit.
    pub fn receive(&self) -> impl Iterator<Item = (SocketAddr, Arc<[u8]>)> {
        let next = move || match self {
            Link::Udp(socket, _) => {
                let mut buffer = [0; 1 << 16];
                let (length, from) = socket.recv_from(&mut buffer).ok()?;
                Some((from, buffer[..length].into()))
            }
            Link::Sim(socket) => socket
                .receive()
                .map(|(from, _, bytes)| (from, bytes.into())),
        };
        std::iter::from_fn(next).take(AT_ONCE)
    }

    /// Returns the event of an arriving datagram.
    pub fn events(&self) -> Events<'_> {
        match self {
            Link::Udp(_, polls) => Events::of(polls),
            Link::Sim(socket) => socket.events(),
        }
    }

    /// Returns its address, if known.
    pub fn local(&self) -> Option<Local> {
        let address = match self {
            Link::Udp(socket, _) => socket.local_addr().ok(),
            Link::Sim(socket) => Some(socket.address()),
        };
        address.map(Local::Socket)
    }
}
