//! A socket for datagrams, of this host or of a simulated network: what a protocol of the tests lives on.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use evlbi_core::time::Nanos;
use evlbi_net::clock::{Events, readable};
use evlbi_net::sim::{self, Network};
use evlbi_net::transport::{Local, OpenError};

/// Datagrams that are received at once.
const AT_ONCE: usize = 64;

/// A socket for datagrams.
pub enum Link {
    /// Of this host.
    Udp(UdpSocket, [libc::pollfd; 1]),
    /// Of a simulated network.
    Sim(sim::Socket),
}

impl Link {
    /// Opens one of the network, or of this host; it listens there if an address is given.
    ///
    /// # Errors
    /// [`OpenError::Listen`]
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

    /// A datagram sets out. What the network does not take is lost on the way.
    pub fn send(&self, to: SocketAddr, bytes: &[u8], now: Nanos) {
        match self {
            Link::Udp(socket, _) => _ = socket.send_to(bytes, to),
            Link::Sim(socket) => socket.send_to(to, bytes.to_vec(), now),
        }
    }

    /// What has come; the rest of much is left for the next time.
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

    /// Something comes.
    pub fn events(&self) -> Events<'_> {
        match self {
            Link::Udp(_, polls) => Events::of(polls),
            Link::Sim(socket) => socket.events(),
        }
    }

    /// Its address, if it can be told.
    pub fn local(&self) -> Option<Local> {
        let address = match self {
            Link::Udp(socket, _) => socket.local_addr().ok(),
            Link::Sim(socket) => Some(socket.address()),
        };
        address.map(Local::Socket)
    }
}
