//! A network that is simulated: hosts whose datagrams pass the cells of an emulated path, in virtual time.
//!
//! Its handle makes the URLs: [`Network::to`]. Everything that happens is written to the clock's log, so that
//! two runs can be held against each other.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::packetise::{Family, UDP_HEADER};
use evlbi_core::path::{self, Identity, Law, Line, Output, Piece};
use evlbi_core::shed::wire_bytes;
use evlbi_core::time::Nanos;
use evlbi_wire::vtp;
use parking_lot::Mutex;

use super::{
    Batch, Carries, Close, Events, Handle, Honours, InOptions, Incoming, Limits, Local, Message,
    Numbers, OpenError, Opened, OutOptions, Outgoing, Peer, Place, Ready, Service, Train,
    Transport, Url,
};
use crate::clock::{self, Clock};
use crate::run::Run;
use crate::udp::SendCounts;

/// Bytes of datagrams that wait at a port where nothing is asked for; more are dropped.
const BUFFER: usize = 64 << 20;
/// Datagrams of a batch.
const AT_ONCE: usize = 64;

/// The simulated network.
pub struct Sim;

/// Hosts and what their datagrams pass. Its clones are the same network.
#[derive(Clone)]
pub struct Network(Arc<Shared>);

struct Shared {
    clock: Clock,
    mtu: usize,
    state: Mutex<State>,
}

struct State {
    cells: path::Network<Packet>,
    /// To those that listen, and back from them.
    routes: [usize; 2],
    lines: [Line; 2],
    ports: BTreeMap<SocketAddr, Port>,
    /// Ports given to those that send.
    next: u16,
}

/// A port of a simulated host.
struct Port {
    waiting: VecDeque<Arrived>,
    bytes: usize,
    buffer: usize,
    dropped: u64,
    is_listening: bool,
}

struct Arrived {
    from: SocketAddr,
    at: Nanos,
    bytes: Arc<[u8]>,
}

#[derive(Clone, Debug)]
struct Packet {
    from: SocketAddr,
    to: SocketAddr,
    bytes: Arc<[u8]>,
}

impl Identity for Packet {
    fn identity(&self, _segment: u16) -> u64 {
        vtp::split(&self.bytes).map_or(0, |(number, _)| number)
    }
}

impl Network {
    /// A network in which datagrams pass cells of `laws`, each way with chances of its own that follow from `seed`. Packets have at
    /// most `mtu` bytes, the headers of IP included.
    pub fn new(clock: &Clock, laws: &[Law], mtu: usize, seed: u64) -> Network {
        let mut cells = path::Network::new();
        let lines = [0, 1].map(|way| cells.line(laws.iter().cloned(), seed.wrapping_mul(2) + way));
        let routes = [0, 1].map(|way: usize| cells.route(&[&lines[way]]));
        for cell in lines.iter().flat_map(|line| &line.cells) {
            cells.cell_mut(*cell).log(AT_ONCE * AT_ONCE);
        }
        Network(Arc::new(Shared {
            clock: clock.clone(),
            mtu,
            state: Mutex::new(State {
                cells,
                routes,
                lines,
                ports: BTreeMap::new(),
                next: 0,
            }),
        }))
    }

    /// The URL by which to listen on a port, or to send to it.
    pub fn to(&self, address: SocketAddr) -> Url {
        let handle = Handle::new(address, (self.clone(), address));
        Url::new(&Sim, Place::Handle(handle))
    }

    /// A socket of its own; one that listens has the address that is given, any other one of the network's.
    pub fn socket(&self, listening: Option<SocketAddr>, buffer: Option<usize>) -> Socket {
        let mut state = self.0.state.lock();
        let address = listening.unwrap_or_else(|| {
            state.next += 1;
            SocketAddr::from(([10, 255, 0, 1], state.next))
        });
        let port = Port {
            waiting: VecDeque::new(),
            bytes: 0,
            buffer: buffer.unwrap_or(BUFFER),
            dropped: 0,
            is_listening: listening.is_some(),
        };
        state.ports.insert(address, port);
        let place: Arc<dyn clock::Place> = Arc::new(Waits(Arc::clone(&self.0), address));
        Socket {
            network: self.clone(),
            address,
            places: [place],
        }
    }
}

impl Shared {
    /// Lets everything happen that is due.
    fn advance(&self, state: &mut State, now: Nanos) {
        let State {
            cells,
            lines,
            ports,
            ..
        } = state;
        cells.advance(now, |output| {
            let Output::Delivered { packet, piece, .. } = output else {
                return;
            };
            let Some(port) = ports.get_mut(&packet.to) else {
                return;
            };
            if port.bytes + packet.bytes.len() > port.buffer {
                port.dropped += 1;
                self.clock.log(format_args!("{} has no room", packet.to));
                return;
            }
            port.bytes += packet.bytes.len();
            port.waiting.push_back(Arrived {
                from: packet.from,
                at: piece.at,
                bytes: packet.bytes,
            });
        });
        for (way, cell) in (0..).zip(lines.iter().flat_map(|line| &line.cells)) {
            for entry in cells.cell_mut(*cell).take_log() {
                self.clock.log(format_args!("cell {way}: {entry:?}"));
            }
        }
    }
}

/// A simulated socket.
pub struct Socket {
    network: Network,
    address: SocketAddr,
    places: [Arc<dyn clock::Place>; 1],
}

impl Socket {
    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A datagram sets out.
    pub fn send_to(&self, to: SocketAddr, bytes: Arc<[u8]>, now: Nanos) {
        let shared = &self.network.0;
        let length = bytes.len() + UDP_HEADER + Family::V4.ip_header();
        let from = self.address;
        shared
            .clock
            .log(format_args!("{from} sends {} bytes to {to}", bytes.len()));
        let mut state = shared.state.lock();
        let is_listening = state.ports.get(&to).is_some_and(|port| port.is_listening);
        let route = state.routes[usize::from(!is_listening)];
        let train = path::Train::single(u32::try_from(length).unwrap_or(u32::MAX));
        let packet = Packet { from, to, bytes };
        state
            .cells
            .offer(route, packet, train, Piece::whole(now, &train), 0);
        shared.advance(&mut state, now);
    }

    /// The datagram that came first, who sent it, and when it came.
    pub fn receive(&self, now: Nanos) -> Option<(SocketAddr, Nanos, Arc<[u8]>)> {
        let shared = &self.network.0;
        let mut state = shared.state.lock();
        shared.advance(&mut state, now);
        let port = state.ports.get_mut(&self.address)?;
        let Arrived { from, at, bytes } = port.waiting.pop_front()?;
        port.bytes -= bytes.len();
        shared.clock.log(format_args!(
            "{} receives {} bytes from {from}, come at {}",
            self.address,
            bytes.len(),
            at.0
        ));
        Some((from, at, bytes))
    }

    /// Something comes.
    pub fn events(&self) -> Events<'_> {
        Events::at(&self.places)
    }

    fn dropped(&self) -> u64 {
        let state = self.network.0.state.lock();
        state
            .ports
            .get(&self.address)
            .map_or(0, |port| port.dropped)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.network.0.state.lock().ports.remove(&self.address);
    }
}

/// A port that something may come to.
struct Waits(Arc<Shared>, SocketAddr);

impl clock::Place for Waits {
    fn next(&self) -> Option<Nanos> {
        let state = self.0.state.lock();
        let port = state.ports.get(&self.1)?;
        match port.waiting.front() {
            Some(arrived) => Some(arrived.at),
            None => state.cells.next(),
        }
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
            most_ports: 1,
            honours: Honours {
                buffer: true,
                mtu: true,
                sequence: true,
                single: false,
                only: true,
                window: true,
                hold: true,
                interface: false,
                source: false,
                ttl: false,
            },
        }
    }

    fn open_out(&self, to: &Url, with: &OutOptions, _run: &Run) -> Opened<dyn Outgoing> {
        let (network, address) = handle_of(to)?;
        Ok(Box::new(Out {
            mtu: with.mtu.unwrap_or(network.0.mtu),
            socket: network.socket(None, None),
            to: address,
            counts: SendCounts::default(),
        }))
    }

    fn open_in(&self, at: &Url, with: &InOptions, _run: &Run) -> Opened<dyn Incoming> {
        let (network, address) = handle_of(at)?;
        Ok(Box::new(In {
            socket: network.socket(Some(address), with.buffer),
            memory: Vec::new(),
            messages: Vec::new(),
        }))
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

struct Out {
    socket: Socket,
    to: SocketAddr,
    mtu: usize,
    counts: SendCounts,
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
            self.socket.send_to(self.to, bytes.into(), now);
        }
        self.counts.calls += 1;
        Ok(())
    }

    fn drive(&mut self, now: Nanos) -> io::Result<Option<Nanos>> {
        while self.socket.receive(now).is_some() {
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

    fn wire_bytes(&self, length: usize) -> u64 {
        wire_bytes(length, Family::V4)
    }

    fn counts(&self) -> SendCounts {
        self.counts
    }
}

struct In {
    socket: Socket,
    memory: Vec<u8>,
    messages: Vec<Message>,
}

impl Incoming for In {
    fn receive(&mut self, now: Nanos) -> io::Result<Batch<'_>> {
        self.memory.clear();
        self.messages.clear();
        let utc = Duration::from_nanos(self.socket.network.0.clock.utc());
        while self.messages.len() < AT_ONCE
            && let Some((from, at, bytes)) = self.socket.receive(now)
        {
            let start = self.memory.len();
            self.memory.extend_from_slice(&bytes);
            self.messages.push(Message {
                range: start..self.memory.len(),
                peer: Peer::Socket(from),
                stamp: Some(utc - Duration::from_nanos(now.since(at).0)),
                ..Message::default()
            });
        }
        Ok(Batch {
            memory: &self.memory,
            messages: &self.messages,
            taken: self.memory.len() as u64,
        })
    }

    fn events(&self) -> Events<'_> {
        self.socket.events()
    }

    fn backlog(&self) -> io::Result<u64> {
        let state = self.socket.network.0.state.lock();
        let port = state.ports.get(&self.socket.address);
        Ok(port.map_or(0, |port| port.bytes as u64))
    }

    fn drops_told(&self) -> u64 {
        self.socket.dropped()
    }

    fn drops(&mut self) -> io::Result<u64> {
        Ok(self.socket.dropped())
    }

    fn local(&self) -> Vec<Local> {
        vec![Local::Socket(self.socket.address)]
    }
}
