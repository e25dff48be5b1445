//! Simulated hosts and the path between them: what they send passes the cells of an emulated path, in virtual time.
//!
//! A [`Run`](crate::run::Run) on such a host uses its sockets, its clock and its counters instead of the kernel's. All events are
//! written to the clock's log, if one is kept, so that two runs can be compared.
//!
//! This module contains what a kernel offers to a host: sockets, counters, faults. The effects of the path on packets are in
//! [`evlbi_core::path`].

mod socket;
mod stream;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};

use evlbi_core::packetise::{Family, UDP_HEADER};
use evlbi_core::path::{self, CellTruth, Identity, Law, Line, Output, Piece};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_trace::tcp::{self, Settings};
use evlbi_wire::vtp;
use parking_lot::Mutex;

use crate::clock::{Clock, Place, Source};
use crate::host::Counters;

pub use socket::Socket;
use stream::{Door, End, Ends};
pub use stream::{Listener, Stream};

/// Default receive buffer of a port, in bytes; further datagrams are dropped.
const BUFFER: usize = 64 << 20;
/// Maximum number of entries in a cell's log between two polls.
const LOGGED: usize = 4096;
/// First port that is assigned to sockets which request none.
const FIRST_PORT: u16 = 32_768;

/// Hosts and the path between them. Clones are the same network.
///
/// Hosts whose address begins with 10.255 are on the local side, all others on the remote side. Packets from one side to the other pass
/// the cells of that direction; between hosts of one side there is nothing.
#[derive(Clone)]
pub struct Network(Arc<Shared>);

struct Shared {
    clock: Clock,
    mtu: usize,
    state: Mutex<State>,
}

struct State {
    cells: path::Network<Packet>,
    /// To the remote side, to the local side, and within a side.
    routes: [usize; 3],
    lines: [Line; 2],
    ports: BTreeMap<SocketAddr, Port>,
    ends: BTreeMap<Ends, End>,
    doors: BTreeMap<SocketAddr, Door>,
    /// No connection has a timer before this time, which may be too early.
    timer: Option<Nanos>,
    /// Time of the next event, or earlier.
    next: Arc<Place>,
    /// Packets of connections that leave as soon as the cells are free, with their lengths.
    leaving: VecDeque<(Packet, usize)>,
    /// Packets that have arrived, and when: memory that is reused.
    came: Vec<(Packet, Nanos)>,
    hosts: BTreeMap<IpAddr, Properties>,
    next_port: u16,
}

/// Properties of a host that its network uses.
struct Properties {
    clock: Clock,
    counters: Counters,
    /// Time to receive a datagram.
    work: Nanos,
    /// Default settings of its connections.
    tcp: Settings,
    /// Interface through which its datagrams leave; `None` if they leave at once.
    card: Option<Card>,
}

/// An interface and its queue.
struct Card {
    rate: BitRate,
    /// Maximum number of queued bytes.
    queue: u64,
    /// Time at which the last packet will have left.
    free: Nanos,
}

impl Card {
    /// Returns when a packet of this length will have left; `None` if it finds no room.
    fn leaves(&mut self, bytes: usize, now: Nanos) -> Option<Nanos> {
        let (bytes, rate) = (bytes as u64, self.rate.get());
        let byte = 8 * Nanos::SECOND.0;
        let waiting = self.free.since(now).0 * rate / byte;
        // A packet always fits into an empty queue.
        let has_room = waiting == 0 || waiting + bytes <= self.queue;
        has_room.then(|| {
            let takes = Nanos((bytes * byte).div_ceil(rate));
            self.free = self.free.max(now).plus(takes);
            self.free
        })
    }
}

/// A datagram port of a simulated host.
struct Port {
    waiting: VecDeque<Arrived>,
    bytes: usize,
    buffer: usize,
    dropped: u64,
    /// Earliest time to receive the next datagram.
    free: Nanos,
    place: Arc<Place>,
}

struct Arrived {
    from: SocketAddr,
    at: Nanos,
    bytes: Vec<u8>,
}

/// A packet in flight: a pointer, since cells move it often.
#[derive(Clone, Debug)]
struct Packet(Arc<Sent>);

#[derive(Clone, Debug)]
struct Sent {
    from: SocketAddr,
    to: SocketAddr,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Datagram(Vec<u8>),
    Segment(tcp::Packet),
}

impl Packet {
    #[inline]
    fn new(from: SocketAddr, to: SocketAddr, what: What) -> Packet {
        Packet(Arc::new(Sent { from, to, what }))
    }
}

impl Identity for Packet {
    fn identity(&self, segment: u16) -> u64 {
        match &self.0.what {
            What::Datagram(bytes) => number(bytes),
            What::Segment(packet) => packet.identity(segment),
        }
    }
}

/// A direction of a [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the remote side.
    There,
    /// To the local side.
    Back,
}

impl Network {
    /// Creates a network with the same laws in both directions, each with its own random numbers, seeded by `seed`. Packets have at
    /// most `mtu` bytes, including the IP headers.
    pub fn new(clock: &Clock, laws: &[Law], mtu: usize, seed: u64) -> Network {
        Network::between(clock, [laws, laws], mtu, seed)
    }

    /// Creates a network with separate laws for the two directions: to the remote side, and back.
    pub fn between(clock: &Clock, laws: [&[Law]; 2], mtu: usize, seed: u64) -> Network {
        let mut cells = path::Network::new();
        let lines = [0, 1].map(|way| {
            let seed = seed.wrapping_mul(2).wrapping_add(way as u64);
            cells.line(laws[way].iter().cloned(), seed)
        });
        let routes = [
            cells.route(&[&lines[0]]),
            cells.route(&[&lines[1]]),
            cells.route(&[]),
        ];
        for cell in lines.iter().flat_map(|line| &line.cells) {
            cells.cell_mut(*cell).log(LOGGED);
        }
        let next = Arc::<Place>::default();
        let shared = Arc::new(Shared {
            clock: clock.clone(),
            mtu,
            state: Mutex::new(State {
                cells,
                routes,
                lines,
                ports: BTreeMap::new(),
                ends: BTreeMap::new(),
                doors: BTreeMap::new(),
                timer: None,
                next: Arc::clone(&next),
                leaving: VecDeque::new(),
                came: Vec::new(),
                hosts: BTreeMap::new(),
                next_port: FIRST_PORT,
            }),
        });
        let source: Weak<Shared> = Arc::downgrade(&shared);
        clock.add(next, source);
        Network(shared)
    }

    /// Returns the host on the local side with this number.
    pub fn near(&self, number: u8) -> Host {
        self.at(Ipv4Addr::new(10, 255, 0, number).into())
    }

    /// Returns the host on the remote side with this number.
    pub fn far(&self, number: u8) -> Host {
        self.at(Ipv4Addr::new(10, 0, 0, number).into())
    }

    /// Returns the host with this address.
    pub fn at(&self, address: IpAddr) -> Host {
        let mut state = self.0.state.lock();
        let clock = state.host(address, &self.0.clock).clock.clone();
        drop(state);
        Host {
            network: self.clone(),
            address,
            clock,
        }
    }

    /// Returns the maximum packet length in bytes, including the IP headers.
    pub fn mtu(&self) -> usize {
        self.0.mtu
    }

    /// Changes the law of a cell from now on.
    pub fn change(&self, direction: Direction, cell: usize, law: Law) {
        let now = self.0.clock.now();
        let mut state = self.0.state.lock();
        let cell = state.lines[direction as usize].cells[cell];
        state.cells.cell_mut(cell).change(now, law);
    }

    /// Returns what a cell has done so far.
    pub fn truth(&self, direction: Direction, cell: usize) -> CellTruth {
        let state = self.0.state.lock();
        let cell = state.lines[direction as usize].cells[cell];
        state.cells.cell(cell).truth().clone()
    }
}

impl State {
    /// Returns the route of a packet.
    fn route(&self, from: IpAddr, to: IpAddr) -> usize {
        let is_near =
            |address: IpAddr| matches!(address, IpAddr::V4(v4) if v4.octets()[..2] == [10, 255]);
        match (is_near(from), is_near(to)) {
            (true, false) => self.routes[0],
            (false, true) => self.routes[1],
            _ => self.routes[2],
        }
    }

    fn host(&mut self, address: IpAddr, clock: &Clock) -> &mut Properties {
        self.hosts.entry(address).or_insert_with(|| Properties {
            clock: clock.of_host(),
            counters: Counters::default(),
            work: Nanos(0),
            tcp: Settings::default(),
            card: None,
        })
    }

    /// Sends a packet.
    fn send(&mut self, packet: Packet, length: usize, now: Nanos) {
        let route = self.route(packet.0.from.ip(), packet.0.to.ip());
        let train = path::Train::single(u32::try_from(length).unwrap_or(u32::MAX));
        let piece = Piece::whole(now, &train);
        self.cells.offer(route, packet, train, piece, 0);
    }

    /// Sends the packets of connections; then updates the time of the next event.
    fn send_all(&mut self, clock: &Clock) {
        while let Some((packet, length)) = self.leaving.pop_front() {
            let Sent { from, to, what } = &*packet.0;
            if let What::Segment(packet) = what {
                clock.log(format_args!("{from} transmits to {to}: {packet}"));
            }
            self.send(packet, length, clock.now());
        }
        match self.timer.into_iter().chain(self.cells.next()).min() {
            Some(next) => self.next.happens(next),
            None => self.next.clear(),
        }
    }

    /// Returns the next free port of a host.
    fn free_port(
        &mut self,
        host: IpAddr,
        is_taken: impl Fn(&State, SocketAddr) -> bool,
    ) -> SocketAddr {
        loop {
            let address = SocketAddr::new(host, self.next_port);
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            if !is_taken(self, address) {
                return address;
            }
        }
    }

    /// Processes all events that are due by `now`.
    fn advance(&mut self, now: Nanos, clock: &Clock) {
        let mut came = std::mem::take(&mut self.came);
        self.cells.advance(now, |output| {
            if let Output::Delivered { packet, piece, .. } = output {
                came.push((packet, piece.at));
            }
        });
        for (packet, at) in came.drain(..) {
            self.arrived(packet, at, clock);
        }
        self.came = came;
        if clock.is_logged() {
            let lines = self.lines.iter().flat_map(|line| &line.cells);
            for (number, cell) in lines.enumerate() {
                for entry in self.cells.cell_mut(*cell).take_log() {
                    clock.log(format_args!("cell {number}: {entry:?}"));
                }
            }
        }
        if self.timer.is_some_and(|at| at <= now) {
            let is_due = |(ends, end): (&Ends, &End)| {
                let is_due = end.next().is_some_and(|at| at <= now);
                is_due.then_some(*ends)
            };
            let due: Vec<Ends> = self.ends.iter().filter_map(is_due).collect();
            for ends in due {
                self.pump(ends, now);
            }
            self.timer = self.ends.values().filter_map(End::next).min();
        }
        self.send_all(clock);
    }

    /// Delivers a packet.
    fn arrived(&mut self, mut packet: Packet, at: Nanos, clock: &Clock) {
        // Kept in its memory: it is long.
        let Sent { from, to, what } = Arc::make_mut(&mut packet.0);
        let (from, to) = (*from, *to);
        let bytes = match what {
            What::Datagram(bytes) => std::mem::take(bytes),
            What::Segment(packet) => {
                return self.segment_arrived((to, from), packet, at, clock);
            }
        };
        let Some(host) = self.hosts.get_mut(&to.ip()) else {
            clock.log(format_args!("there is no host {}", to.ip()));
            return;
        };
        let udp = &mut host.counters.udp;
        let Some(port) = self.ports.get_mut(&to) else {
            udp.no_ports += 1;
            let number = number(&bytes);
            clock.log(format_args!(
                "nobody listens at {to} for {number} from {from}"
            ));
            return;
        };
        if port.bytes + bytes.len() > port.buffer {
            port.dropped += 1;
            udp.receive_buffer_errors += 1;
            udp.in_errors += 1;
            let number = number(&bytes);
            clock.log(format_args!("{to} has no room for {number} from {from}"));
            return;
        }
        udp.in_datagrams += 1;
        port.bytes += bytes.len();
        if port.waiting.is_empty() {
            port.place.happens(at.max(port.free));
        }
        port.waiting.push_back(Arrived { from, at, bytes });
    }
}

impl Source for Shared {
    fn advance(&self, now: Nanos) {
        self.state.lock().advance(now, &self.clock);
    }
}

/// A simulated host. Clones are the same host.
#[derive(Clone)]
pub struct Host {
    network: Network,
    address: IpAddr,
    clock: Clock,
}

impl Host {
    /// Returns its address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns its network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns what it has counted since the beginning.
    pub fn counters(&self) -> Counters {
        let state = self.network.0.state.lock();
        let host = state.hosts.get(&self.address);
        host.map(|host| host.counters.clone()).unwrap_or_default()
    }

    /// Sets the time that it takes to receive each datagram, like a slow or shared CPU.
    pub fn work(&self, work: Nanos) {
        let mut state = self.network.0.state.lock();
        state.host(self.address, &self.clock).work = work;
    }

    /// Makes its datagrams leave through an interface one after the other, at `rate` (in bits of IP packets per second), with up to
    /// `queue` waiting bytes. Like Linux, it counts what finds no room and does not tell the sending program.
    pub fn set_card(&self, rate: BitRate, queue: u64) {
        let mut state = self.network.0.state.lock();
        state.host(self.address, &self.clock).card = Some(Card {
            rate,
            queue,
            free: Nanos(0),
        });
    }

    /// Returns the default settings of its connections.
    pub fn tcp(&self) -> Settings {
        let mut state = self.network.0.state.lock();
        state.host(self.address, &self.clock).tcp
    }

    /// Changes the settings of its future connections, like another kernel.
    pub fn set_tcp(&self, settings: Settings) {
        let mut state = self.network.0.state.lock();
        state.host(self.address, &self.clock).tcp = settings;
    }

    /// Kills its programs: their threads never continue, and the host closes everything that they had open, as a kernel does.
    pub fn kill(&self) {
        self.clock.kill();
        let shared = &self.network.0;
        let mut state = shared.state.lock();
        state.ports.retain(|at, _| at.ip() != self.address);
        state.doors.retain(|at, _| at.ip() != self.address);
        state.close_all(self.address, &shared.clock);
    }

    /// Opens a datagram socket at a port (0: any free one) with a receive buffer of this many bytes.
    ///
    /// # Errors
    /// Returns [`ErrorKind::AddrInUse`] if the port is taken.
    pub fn bind(&self, port: u16, buffer: Option<usize>) -> io::Result<Socket> {
        let shared = &self.network.0;
        let mut state = shared.state.lock();
        let address = match port {
            0 => state.free_port(self.address, |state, at| state.ports.contains_key(&at)),
            port => SocketAddr::new(self.address, port),
        };
        if state.ports.contains_key(&address) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let place = Arc::<Place>::default();
        let buffer = buffer.unwrap_or(BUFFER);
        state.ports.insert(
            address,
            Port {
                waiting: VecDeque::new(),
                bytes: 0,
                buffer,
                dropped: 0,
                free: Nanos(0),
                place: Arc::clone(&place),
            },
        );
        drop(state);
        Ok(Socket::new(self.clone(), address, buffer, place))
    }

    /// Opens a datagram socket like [`Host::bind`], at a port that must be free.
    ///
    /// # Panics
    /// Panics if the port is taken.
    pub fn socket(&self, port: u16, buffer: Option<usize>) -> Socket {
        self.bind(port, buffer).expect("a port that is free")
    }
}

/// Returns the VTP sequence number of a datagram; 0 if it has none.
fn number(datagram: &[u8]) -> u64 {
    vtp::split(datagram).map_or(0, |(number, _)| number)
}

/// Returns the packet length of a datagram with this many bytes.
fn packet_length(datagram: usize) -> usize {
    datagram + UDP_HEADER + Family::V4.ip_header()
}

#[cfg(test)]
mod tests;
