//! Sockets for messages next to the data: small, rare, and in both directions.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use evlbi_core::time::Nanos;

use crate::clock::{Events, events};
use crate::sim::Socket;
use crate::socket::queue::drops_of;

/// Maximum length of a message that is read, in bytes.
const MAX_LENGTH: usize = 9000;

/// A socket for messages. Nothing blocks.
pub struct Messages {
    socket: Either,
    memory: Vec<u8>,
}

enum Either {
    Udp(UdpSocket, [libc::pollfd; 1]),
    Simulated(Arc<Socket>),
}

impl Messages {
    /// Opens a UDP socket that reaches `to`, at a port that the kernel chooses.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn towards(to: SocketAddr) -> io::Result<Messages> {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        Messages::at(any)
    }

    /// Opens a UDP socket at this address.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn at(address: SocketAddr) -> io::Result<Messages> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let polls = [events::readable(&socket)];
        Ok(Messages::new(Either::Udp(socket, polls)))
    }

    /// Takes a socket of a simulated host.
    pub fn simulated(socket: Arc<Socket>) -> Messages {
        Messages::new(Either::Simulated(socket))
    }

    fn new(socket: Either) -> Messages {
        Messages {
            socket,
            memory: vec![0; MAX_LENGTH],
        }
    }

    /// Sends a message. One that the network does not accept is lost, as on its way.
    pub fn send(&self, to: SocketAddr, bytes: Vec<u8>, now: Nanos) {
        match &self.socket {
            Either::Udp(socket, _) => {
                let _ = socket.send_to(&bytes, to);
            }
            Either::Simulated(socket) => socket.send_to(to, bytes, now),
        }
    }

    /// Returns the next message and its sender, if one has arrived.
    pub fn receive(&mut self) -> Option<(&[u8], SocketAddr)> {
        match &self.socket {
            Either::Udp(socket, _) => {
                let (length, from) = socket.recv_from(&mut self.memory).ok()?;
                Some((&self.memory[..length], from))
            }
            Either::Simulated(socket) => {
                let (from, _, bytes) = socket.receive()?;
                self.memory = bytes;
                Some((&self.memory, from))
            }
        }
    }

    /// Returns how many messages have found no room in this socket so far; 0 if the kernel does not say.
    pub fn dropped(&self) -> u64 {
        match &self.socket {
            Either::Udp(socket, _) => drops_of(socket).unwrap_or(0).into(),
            Either::Simulated(socket) => socket.dropped(),
        }
    }

    /// Returns the event of an arriving message.
    pub fn events(&self) -> Events<'_> {
        match &self.socket {
            Either::Udp(_, polls) => Events::of(polls),
            Either::Simulated(socket) => socket.events(),
        }
    }
}
