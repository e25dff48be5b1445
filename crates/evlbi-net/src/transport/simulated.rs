//! Datagrams between hosts of a simulated [`Network`], in virtual time. The network creates the URLs: [`Network::to`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::packetise::Family;
use evlbi_core::shed::wire_bytes;
use evlbi_core::time::Nanos;

pub use crate::sim::Network;

use super::{
    Batch, Carries, Close, Events, Handle, Honours, InOptions, Incoming, Limits, Local, Message,
    Messages, Numbers, OpenError, Opened, OutOptions, Outgoing, Peer, Place, Ready, Service, Train,
    Transport, Url,
};
use crate::run::Run;
use crate::sim::Socket;
use crate::socket::GrantedBuffer;
use crate::udp::SendCounts;

/// Maximum datagrams per batch.
const AT_ONCE: usize = 64;

/// The simulated network.
pub struct Sim;

impl Network {
    /// Returns the URL to listen on a port, or to send to it.
    pub fn to(&self, address: SocketAddr) -> Url {
        let handle = Handle::new(address, (self.clone(), address));
        Url::new(&Sim, Place::Handle(handle))
    }
}

impl Transport for Sim {
    fn schemes(&self) -> &'static [&'static str] {
        &["sim"]
    }

    fn service(&self) -> Service {
        Service {
            carries: Carries::Datagrams,
            numbers: Numbers::InBand,
            reliable: false,
            max_ports: 1,
            honours: Honours {
                buffer: true,
                mtu: true,
                sequence: true,
                single: true,
                only: true,
                window: true,
                hold: true,
                interface: false,
                source: false,
                ttl: false,
            },
        }
    }

    fn open_out(&self, to: &Url, with: &OutOptions, run: &Run) -> Opened<dyn Outgoing> {
        let (network, address) = handle_of(to)?;
        let host = run.host().cloned().unwrap_or_else(|| network.near(1));
        let socket = Arc::new(network.at(host.address()).socket(0, None));
        let mtu = with.mtu.unwrap_or(network.mtu());
        Ok(Box::new(Out::new(socket, address, mtu)))
    }

    fn open_in(&self, at: &Url, with: &InOptions, _run: &Run) -> Opened<dyn Incoming> {
        let (network, address) = handle_of(at)?;
        let socket = network.at(address.ip()).bind(address.port(), with.buffer);
        let at = Local::Socket(address);
        let socket = socket.map_err(|source| OpenError::Listen { at, source })?;
        Ok(Box::new(In::new(Arc::new(socket))))
    }

    fn open_messages(
        &self,
        url: &Url,
        address: SocketAddr,
        listens: bool,
        run: &Run,
    ) -> Result<Messages, OpenError> {
        let (network, _) = handle_of(url)?;
        let (host, port) = match listens {
            true => (network.at(address.ip()), address.port()),
            false => {
                let host = run.host().cloned().unwrap_or_else(|| network.near(1));
                (network.at(host.address()), 0)
            }
        };
        let socket = host.bind(port, None).map_err(|source| {
            let at = Local::Socket(address);
            OpenError::Messages { at, source }
        })?;
        Ok(Messages::simulated(Arc::new(socket)))
    }
}

fn handle_of(url: &Url) -> Result<(Network, SocketAddr), OpenError> {
    let handle = match &url.place {
        Place::Handle(handle) => handle.get::<(Network, SocketAddr)>().cloned(),
        _ => None,
    };
    handle.ok_or_else(|| OpenError::Connect {
        url: url.to_string(),
        source: io::ErrorKind::AddrNotAvailable.into(),
    })
}

/// The sending end.
pub struct Out {
    socket: Arc<Socket>,
    to: SocketAddr,
    mtu: usize,
    counts: SendCounts,
}

impl Out {
    /// Creates a sender to a single address.
    pub fn new(socket: Arc<Socket>, to: SocketAddr, mtu: usize) -> Out {
        Out {
            socket,
            to,
            mtu,
            counts: SendCounts::default(),
        }
    }
}

impl Outgoing for Out {
    fn ready(&mut self, _now: Nanos) -> Ready {
        Ready::Now(usize::MAX)
    }

    fn send(&mut self, train: &Train<'_, '_>, now: Nanos) -> io::Result<()> {
        for piece in train.pieces() {
            let bytes = [piece.head(), piece.body()].concat();
            self.counts.sent += 1;
            self.counts.bytes += bytes.len() as u64;
            self.counts.messages += 1;
            self.socket.send_to(self.to, bytes, now);
        }
        self.counts.calls += 1;
        Ok(())
    }

    fn drive(&mut self, _now: Nanos) -> io::Result<Option<Nanos>> {
        while self.socket.receive().is_some() {
            self.counts.back_datagrams += 1;
        }
        Ok(None)
    }

    fn close(&mut self, _now: Nanos) -> io::Result<Close> {
        Ok(Close::Done)
    }

    fn events(&self) -> Events<'_> {
        self.socket.events()
    }

    fn limits(&self) -> Limits {
        Limits {
            mtu: Some(self.mtu),
            family: Family::V4,
        }
    }

    fn peer(&self) -> Option<SocketAddr> {
        Some(self.to)
    }

    fn wire_bytes(&self, length: usize) -> u64 {
        wire_bytes(length, Family::V4)
    }

    fn counts(&self) -> SendCounts {
        self.counts
    }
}

/// The receiving end.
pub struct In {
    socket: Arc<Socket>,
    buffer: GrantedBuffer,
    memory: Vec<u8>,
    messages: Vec<Message>,
}

impl In {
    /// Creates a receiver of what arrives at a socket.
    pub fn new(socket: Arc<Socket>) -> In {
        In {
            buffer: GrantedBuffer {
                asked: socket.buffer(),
                granted: socket.buffer(),
                remedy: None,
            },
            socket,
            memory: Vec::new(),
            messages: Vec::new(),
        }
    }
}

impl Incoming for In {
    fn receive(&mut self, now: Nanos) -> io::Result<Batch<'_>> {
        let In {
            socket,
            memory,
            messages,
            ..
        } = self;
        memory.clear();
        messages.clear();
        let utc = socket.host().clock().utc();
        socket.receive_all(AT_ONCE, |from, at, bytes| {
            let range = memory.len()..memory.len() + bytes.len();
            let arrived = utc.saturating_sub(now.since(at).0);
            // The first one is not copied.
            match memory.is_empty() {
                true => *memory = bytes,
                false => memory.extend_from_slice(&bytes),
            }
            messages.push(Message {
                range,
                peer: Peer::Socket(from),
                stamp: Some(Duration::from_nanos(arrived)),
                ..Message::default()
            });
        });
        Ok(Batch {
            memory,
            messages,
            taken: memory.len() as u64,
        })
    }

    fn events(&self) -> Events<'_> {
        self.socket.events()
    }

    fn backlog(&self) -> io::Result<u64> {
        Ok(self.socket.waiting() as u64)
    }

    fn drops_reported(&self) -> u64 {
        self.socket.dropped()
    }

    fn drops(&mut self) -> io::Result<u64> {
        Ok(self.socket.dropped())
    }

    fn buffer(&self) -> Option<&GrantedBuffer> {
        Some(&self.buffer)
    }

    fn local(&self) -> Vec<Local> {
        vec![Local::Socket(self.socket.address())]
    }
}
