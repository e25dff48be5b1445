//! Receives batches of datagrams, joined by the kernel if possible (`UDP_GRO`), and counts what the sockets dropped.

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::{Interface, OpenError, Sender, SenderOptions, multicast};
use crate::batch::{Batch, Message};
use crate::clock;
use crate::clock::events;
use crate::socket::queue::{Arrived, MIN_ACCOUNT, Queue};
use crate::socket::{self, GrantedBuffer, ancillary};
use evlbi_core::peer::Peer;

pub use crate::socket::queue::MESSAGES;

/// Room for one message in bytes: the longest that the kernel creates. Sixteen of them stay in an L2 cache.
pub const MESSAGE_SPACE: usize = 64 << 10;

/// Maximum number of datagrams in a message: GRO joins 64, and a sender on this host may have joined 128 (`UDP_MAX_SEGMENTS`).
const MAX_JOINED: u64 = 128;
/// Maximum bytes of data in a message of joined datagrams.
const MAX_JOINED_BYTES: u64 = 65_535;

/// Returns the maximum number of datagrams with this much data in one joined message, and so in one drop.
pub fn max_joined(data: usize) -> u64 {
    (MAX_JOINED_BYTES / data.max(1) as u64).min(MAX_JOINED)
}

/// An address to receive on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Local address, or a multicast group, and port. `[::]` receives IPv4 too.
    pub address: SocketAddr,
    /// For a group: the only sender to accept (source-specific multicast, RFC 4607).
    pub source: Option<IpAddr>,
    /// For a group: the interface to join it on; `None`: the one that the routes select.
    pub interface: Option<Interface>,
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen {
            address,
            source: None,
            interface: None,
        }
    }
}

/// Options of a [`Receiver`].
#[derive(Clone, Debug)]
pub struct ReceiverOptions {
    /// Socket buffer to request, in bytes, for each address.
    pub buffer: usize,
    /// Whether the kernel may join datagrams on reception (`UDP_GRO`).
    pub join: bool,
    /// Whether the kernel adds the arrival time to messages (`SO_TIMESTAMPNS`).
    pub stamps: bool,
    /// Whether the kernel adds the ECN field to messages.
    pub marks: bool,
    /// The only network interface to receive and send by (`SO_BINDTODEVICE`).
    pub device: Option<String>,
}

impl Default for ReceiverOptions {
    fn default() -> ReceiverOptions {
        ReceiverOptions {
            buffer: 64 << 20,
            join: true,
            stamps: false,
            marks: false,
            device: None,
        }
    }
}

/// UDP sockets on one or several addresses, read in batches without blocking.
#[derive(Debug)]
pub struct Receiver {
    ports: Vec<Port>,
    /// The port with which the next batch starts, so that a busy one does not shut out the others.
    turn: usize,
}

#[derive(Debug)]
struct Port {
    queue: Queue,
    address: SocketAddr,
    granted: GrantedBuffer,
    joins: bool,
}

impl Receiver {
    /// Opens a socket for each of `listen`.
    ///
    /// # Errors
    /// Returns [`OpenError`] if an address, group, interface or option is refused.
    pub fn bind(listen: &[Listen], options: &ReceiverOptions) -> Result<Receiver, OpenError> {
        let ports = listen
            .iter()
            .map(|listen| Port::bind(listen, options))
            .collect::<Result<_, _>>()?;
        Ok(Receiver { ports, turn: 0 })
    }

    /// Returns the addresses as bound, including port numbers chosen by the kernel.
    pub fn local_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.ports.iter().map(|port| port.address)
    }

    /// Returns the sockets, one per address.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.ports.iter().map(|port| &port.queue.socket)
    }

    /// Returns the requested and the granted receive buffer: the smallest of all ports.
    pub fn buffer(&self) -> Option<&GrantedBuffer> {
        let buffers = self.ports.iter().map(|port| &port.granted);
        buffers.min_by_key(|buffer| buffer.granted)
    }

    /// Returns a sender over the socket of the first address: its datagrams have that source address, and from then on that socket
    /// accepts only datagrams from `destination`.
    ///
    /// # Errors
    /// Returns [`OpenError`] if an option is refused, or there is no route.
    pub fn sender(
        &self,
        destination: SocketAddr,
        options: &SenderOptions,
    ) -> Result<Sender, OpenError> {
        let failed = |source| OpenError::Socket {
            what: "second handle",
            source,
        };
        let port = self.ports.first();
        let port = port.ok_or_else(|| failed(io::ErrorKind::NotConnected.into()))?;
        let socket = port.queue.socket.try_clone().map_err(failed)?;
        Sender::over(socket, destination, options)
    }

    /// Returns whether the kernel joins datagrams on reception.
    pub fn joins(&self) -> bool {
        self.ports.iter().all(|port| port.joins)
    }

    /// Replaces the content of `received` by the waiting messages, as many as fit. Returns their number, 0 if none is waiting. Returns
    /// at once.
    ///
    /// # Errors
    /// Returns a socket's error, except that nothing is there, if no message came from another socket.
    pub fn receive(&mut self, received: &mut Received) -> io::Result<usize> {
        received.clear();
        let mut failure = None;
        for step in 0..self.ports.len() {
            let number = (self.turn + step) % self.ports.len();
            if let Err(error) = self.ports[number].receive(number, received) {
                failure = Some(error);
            }
            if received.is_full() {
                self.turn = number + 1;
                break;
            }
        }
        match failure {
            Some(error) if received.messages.is_empty() => Err(error),
            _ => Ok(received.messages.len()),
        }
    }

    /// Waits for a datagram, at most for `timeout`; returns whether there is one. Use it before a stream starts: while it flows,
    /// draining and napping costs less than waiting.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut polls: Vec<libc::pollfd> = self.sockets().map(events::readable).collect();
        clock::poll(&mut polls, timeout)
    }

    /// Returns the number of messages that the sockets have dropped since they were opened, for lack of buffer or a wrong checksum, as
    /// the kernel counts now (`SO_MEMINFO`). Datagrams that arrived joined count as one message.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn drops(&mut self) -> io::Result<u64> {
        self.ports.iter_mut().map(|port| port.queue.drops()).sum()
    }

    /// Returns the memory used by messages that wait in the sockets, in bytes (`SO_MEMINFO`): at least their [`Batch::taken`], once
    /// read.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn queued(&self) -> io::Result<u64> {
        self.ports.iter().map(|port| port.queue.queued()).sum()
    }

    /// Returns the drops as reported with the datagrams themselves (`SO_RXQ_OVFL`): the count when the last received one was queued, so
    /// it lags behind [`Receiver::drops`].
    pub fn overflow(&self) -> u64 {
        self.ports.iter().map(|port| port.queue.overflow()).sum()
    }
}

impl Port {
    fn bind(listen: &Listen, options: &ReceiverOptions) -> Result<Port, OpenError> {
        let Listen {
            address,
            source,
            interface,
        } = listen;
        let address = multicast::scoped(*address, interface.as_ref())?;
        let failed = |what| move |source| OpenError::Socket { what, source };
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM,
            Some(Protocol::UDP),
        )
        .map_err(failed("socket"))?;
        let granted = socket::ask_receive_buffer(&socket, options.buffer)
            .map_err(failed("receive buffer"))?;
        let group = address.ip().is_multicast();
        if group {
            // Several programs of one host may listen to one group; a unicast port stays exclusive.
            socket
                .set_reuse_address(true)
                .map_err(failed("SO_REUSEADDR"))?;
        }
        socket::set(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &1i32)
            .map_err(failed("SO_RXQ_OVFL"))?;
        if options.stamps {
            socket::set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)
                .map_err(failed("SO_TIMESTAMPNS"))?;
        }
        if options.marks {
            // A socket of both families has both.
            let v4 = socket::set(&socket, libc::SOL_IP, libc::IP_RECVTOS, &1i32);
            let v6 = socket::set(&socket, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, &1i32);
            v4.or(v6).map_err(failed("IP_RECVTOS"))?;
        }
        if let Some(device) = &options.device {
            socket
                .bind_device(Some(device.as_bytes()))
                .map_err(failed("SO_BINDTODEVICE"))?;
        }
        let joins =
            options.join && socket::set(&socket, libc::SOL_UDP, libc::UDP_GRO, &1i32).is_ok();
        if options.join && !joins {
            tracing::info!("this kernel has no UDP_GRO: datagrams are received singly");
        }
        // Bound to the group itself, the socket receives only the group.
        let bind_error = |source| OpenError::Bind { address, source };
        socket.bind(&address.into()).map_err(bind_error)?;
        if group {
            multicast::join(&socket, address.ip(), *source, interface.as_ref())?;
        }
        let bound = socket.local_addr().map_err(bind_error)?;
        Ok(Port {
            address: bound.as_socket().unwrap_or(address),
            queue: Queue::new(socket),
            granted,
            joins,
        })
    }

    /// Adds the messages that wait here to the batch.
    fn receive(&mut self, number: usize, received: &mut Received) -> io::Result<()> {
        let Received {
            memory,
            messages,
            taken,
        } = received;
        let first = messages.len() * MESSAGE_SPACE;
        let each = |arrived: Arrived<'_>| {
            let start = first + arrived.place * MESSAGE_SPACE;
            *taken += (arrived.bytes.len() + MIN_ACCOUNT) as u64;
            messages.push(Message {
                range: start..start + arrived.bytes.len(),
                segment: arrived.said.segment.unwrap_or(0),
                peer: ancillary::socket_address(arrived.name).map_or(Peer::Unknown, Peer::Socket),
                port: number,
                truncated: arrived.truncated,
                stamp: arrived.said.stamp,
                ecn: arrived.said.ecn,
            });
        };
        match self
            .queue
            .receive(&mut memory[first..], MESSAGE_SPACE, each)
        {
            Err(error) if !is_icmp(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns whether an error reports an ICMP message of a router or the remote host about earlier datagrams of this socket.
fn is_icmp(error: &io::Error) -> bool {
    const SAID: [c_int; 10] = [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EMSGSIZE,
        libc::EACCES,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EOPNOTSUPP,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| SAID.contains(&code))
}

/// Memory for received messages, reused.
pub struct Received {
    memory: Box<[u8]>,
    messages: Vec<Message>,
    taken: u64,
}

impl Default for Received {
    fn default() -> Received {
        Received::new()
    }
}

impl Received {
    /// Allocates room for [`MESSAGES`] messages of [`MESSAGE_SPACE`] bytes.
    pub fn new() -> Received {
        Received {
            memory: vec![0; MESSAGES * MESSAGE_SPACE].into_boxed_slice(),
            messages: Vec::with_capacity(MESSAGES),
            taken: 0,
        }
    }

    /// Returns the received messages.
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            memory: &self.memory,
            messages: &self.messages,
            taken: self.taken,
        }
    }

    fn clear(&mut self) {
        self.messages.clear();
        self.taken = 0;
    }

    /// Returns whether the last [`Receiver::receive`] used all room, so that more may be waiting.
    pub fn is_full(&self) -> bool {
        self.messages.len() == MESSAGES
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::OwnedFd;

    use super::*;

    /// The failure of a port does not lose what was read from another; it is reported once nothing more arrives.
    #[test]
    fn a_port_that_fails_costs_the_others_nothing() {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let options = ReceiverOptions {
            buffer: 1 << 20,
            ..ReceiverOptions::default()
        };
        let mut receiver = Receiver::bind(&[here.into(), here.into()], &options).unwrap();
        let to = receiver.local_addresses().next().unwrap();
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        receiver.ports[1].queue.socket = Socket::from(file);
        let sender = UdpSocket::bind(here).unwrap();
        sender.send_to(b"data", to).unwrap();
        let mut received = Received::new();
        assert_eq!(receiver.receive(&mut received).unwrap(), 1);
        let batch = received.batch();
        assert_eq!(batch.datagrams().next().unwrap().bytes, b"data");
        let error = receiver.receive(&mut received).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
