//! TCP connections between simulated hosts.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;

use evlbi_core::time::Nanos;
use evlbi_trace::tcp::{self, Algorithm, Connection, Failed, Info, Read, Settings};

use super::{Host, Packet, State, What};
use crate::clock::{Clock, Place};

/// Length of the headers of IP and of TCP with timestamps (RFC 7323), in bytes.
const HEADERS: usize = 52;

/// A connection as one of its hosts sees it: local and remote address.
pub(super) type Ends = (SocketAddr, SocketAddr);

/// An endpoint of a connection.
pub(super) struct End {
    connection: Connection,
    readable: Arc<Place>,
    writable: Arc<Place>,
    /// Whether a program still has it open, and reads from it.
    is_held: bool,
    is_read: bool,
}

/// A listening port.
pub(super) struct Door {
    settings: Settings,
    /// Connections that nothing has accepted yet, in order of arrival.
    waiting: VecDeque<Ends>,
    place: Arc<Place>,
}

impl End {
    fn new(connection: Connection) -> End {
        End {
            connection,
            readable: Arc::default(),
            writable: Arc::default(),
            is_held: true,
            is_read: true,
        }
    }

    /// Updates the events that threads wait for.
    fn show(&self, now: Nanos) {
        let is_readable = self.connection.is_readable() || !self.is_read;
        self.readable.set(is_readable, now);
        self.writable.set(self.connection.is_writable(), now);
    }

    /// Closes it for the program. What was written is still sent; unread data resets the connection, as in Linux.
    fn close(&mut self) {
        self.is_held = false;
        match self.connection.unread() {
            0 => self.connection.shutdown(),
            _ => self.connection.abort(),
        }
    }

    /// Returns the time of its next timer.
    pub fn next(&self) -> Option<Nanos> {
        self.connection.next_at()
    }
}

impl State {
    /// Delivers a packet of a connection.
    pub(super) fn segment_arrived(
        &mut self,
        ends: Ends,
        packet: &tcp::Packet,
        now: Nanos,
        clock: &Clock,
    ) {
        let (here, there) = ends;
        clock.log(format_args!("{here} takes from {there}: {packet}"));
        if let Some(end) = self.ends.get_mut(&ends) {
            end.connection.handle(packet, now);
            if !end.is_held && end.connection.unread() > 0 {
                end.connection.abort();
            }
            if let Some(door) = self.doors.get_mut(&here)
                && end.is_held
                && end.connection.is_connected()
                && door.is_new(ends)
            {
                door.place.set(true, now);
            }
            return self.pump(ends, now);
        }
        let accepted = self.doors.get(&here).and_then(|door| {
            let settings = door.settings;
            Connection::accept(settings, packet, now)
        });
        match accepted {
            Some(connection) => {
                if let Some(door) = self.doors.get_mut(&here) {
                    door.waiting.push_back(ends);
                }
                self.ends.insert(ends, End::new(connection));
                self.pump(ends, now);
            }
            None if packet.is_reset() => {}
            None => self.depart(here, there, tcp::Packet::reset()),
        }
    }

    fn depart(&mut self, from: SocketAddr, to: SocketAddr, packet: tcp::Packet) {
        let length = packet.length() as usize + HEADERS;
        let packet = Packet::new(from, to, What::Segment(packet));
        self.leaving.push_back((packet, length));
    }

    /// Sends what a connection has to send, and updates its events.
    pub(super) fn pump(&mut self, ends: Ends, now: Nanos) {
        let (here, there) = ends;
        let Some(end) = self.ends.get_mut(&ends) else {
            return;
        };
        while let Some(packet) = end.connection.next_packet(now) {
            let length = packet.length() as usize + HEADERS;
            let packet = Packet::new(here, there, What::Segment(packet));
            self.leaving.push_back((packet, length));
        }
        end.show(now);
        self.timer = self.timer.into_iter().chain(end.next()).min();
        if !end.is_held && end.connection.has_ended() {
            self.ends.remove(&ends);
        }
    }

    /// Closes what the programs of a host had open.
    pub(super) fn close_all(&mut self, host: IpAddr, clock: &Clock) {
        let of_host = self.ends.keys().filter(|(here, _)| here.ip() == host);
        let all: Vec<Ends> = of_host.copied().collect();
        for ends in all {
            self.with(ends, clock, End::close);
        }
    }

    /// Acts on a connection, and processes the consequences.
    fn with<T>(&mut self, ends: Ends, clock: &Clock, act: impl FnOnce(&mut End) -> T) -> Option<T> {
        let done = act(self.ends.get_mut(&ends)?);
        self.pump(ends, clock.now());
        self.send_all(clock);
        Some(done)
    }
}

/// A simulated listener. Dropping it frees its port.
pub struct Listener {
    host: Host,
    address: SocketAddr,
    place: Arc<Place>,
}

/// An endpoint of a simulated connection, which closes when its last clone is dropped.
#[derive(Clone)]
pub struct Stream(Arc<Held>);

struct Held {
    host: Host,
    ends: Ends,
    readable: Arc<Place>,
    writable: Arc<Place>,
}

impl Held {
    fn with<T>(&self, act: impl FnOnce(&mut End) -> T) -> Option<T> {
        let shared = &self.host.network.0;
        let mut state = shared.state.lock();
        state.with(self.ends, &shared.clock, act)
    }
}

impl Host {
    /// Starts to connect to an address.
    pub fn connect(&self, to: SocketAddr, settings: &Settings) -> Stream {
        let shared = &self.network.0;
        let now = shared.clock.now();
        let mut state = shared.state.lock();
        let here = state.free_port(self.address, |state, at| {
            state.ends.keys().any(|(here, _)| *here == at) || state.doors.contains_key(&at)
        });
        let ends = (here, to);
        let end = End::new(Connection::connect(*settings, now));
        let stream = self.stream(ends, &end);
        state.ends.insert(ends, end);
        state.with(ends, &shared.clock, |_| ());
        stream
    }

    /// Listens at a port (0: any free one).
    ///
    /// # Errors
    /// Returns [`ErrorKind::AddrInUse`] if the port is taken.
    pub fn listen(&self, port: u16, settings: &Settings) -> io::Result<Listener> {
        let mut state = self.network.0.state.lock();
        let address = match port {
            0 => state.free_port(self.address, |state, at| state.doors.contains_key(&at)),
            port => SocketAddr::new(self.address, port),
        };
        if state.doors.contains_key(&address) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let place = Arc::<Place>::default();
        state.doors.insert(
            address,
            Door {
                settings: *settings,
                waiting: VecDeque::new(),
                place: Arc::clone(&place),
            },
        );
        drop(state);
        Ok(Listener {
            host: self.clone(),
            address,
            place,
        })
    }

    fn stream(&self, ends: Ends, end: &End) -> Stream {
        Stream(Arc::new(Held {
            host: self.clone(),
            ends,
            readable: Arc::clone(&end.readable),
            writable: Arc::clone(&end.writable),
        }))
    }
}

impl Door {
    fn is_new(&self, ends: Ends) -> bool {
        self.waiting.contains(&ends)
    }
}

impl Listener {
    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the place of arriving connections.
    pub fn place(&self) -> Arc<Place> {
        Arc::clone(&self.place)
    }

    /// Accepts the earliest waiting connection, if there is one.
    pub fn accept(&self) -> Option<Stream> {
        let shared = &self.host.network.0;
        let state = &mut *shared.state.lock();
        let door = state.doors.get_mut(&self.address)?;
        let is_there = |ends: &Ends| {
            let end = state.ends.get(ends);
            end.is_none_or(|end| end.connection.is_connected())
        };
        let first = door.waiting.iter().position(is_there);
        let taken = first.and_then(|first| door.waiting.remove(first));
        door.place
            .set(door.waiting.iter().any(is_there), shared.clock.now());
        let ends = taken?;
        let end = state.ends.get(&ends)?;
        Some(self.host.stream(ends, end))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let shared = &self.host.network.0;
        let mut state = shared.state.lock();
        // If its program was killed, another one may have the port.
        let is_own = |door: &Door| Arc::ptr_eq(&door.place, &self.place);
        if !state.doors.get(&self.address).is_some_and(is_own) {
            return;
        }
        let door = state.doors.remove(&self.address);
        for ends in door.into_iter().flat_map(|door| door.waiting) {
            state.with(ends, &shared.clock, |end| {
                end.is_held = false;
                end.connection.abort();
            });
        }
    }
}

impl Stream {
    /// Returns the local address.
    pub fn local(&self) -> SocketAddr {
        self.0.ends.0
    }

    /// Returns the remote address.
    pub fn peer(&self) -> SocketAddr {
        self.0.ends.1
    }

    /// Returns the place of readable data.
    pub fn readable(&self) -> Arc<Place> {
        Arc::clone(&self.0.readable)
    }

    /// Returns the place of room to write.
    pub fn writable(&self) -> Arc<Place> {
        Arc::clone(&self.0.writable)
    }

    /// Reads what has arrived; 0 bytes at the end of what the remote host sends.
    ///
    /// # Errors
    /// Returns [`ErrorKind::WouldBlock`] if nothing has arrived; else the reason why the connection has failed.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.take(|connection| connection.read(into))
    }

    /// Reads at most `max` bytes and discards them.
    ///
    /// # Errors
    /// The same as [`Stream::read`].
    pub fn discard(&self, max: usize) -> io::Result<usize> {
        self.take(|connection| connection.discard(max as u64))
    }

    fn take(
        &self,
        read: impl FnOnce(&mut Connection) -> Result<Read, Failed>,
    ) -> io::Result<usize> {
        let taken = self.0.with(|end| match end.is_read {
            true => read(&mut end.connection),
            false => Ok(Read::Closed),
        });
        match taken {
            Some(Ok(Read::Bytes(count))) => Ok(count as usize),
            Some(Ok(Read::Nothing)) => Err(ErrorKind::WouldBlock.into()),
            Some(Ok(Read::Closed)) | None => Ok(0),
            Some(Err(failed)) => Err(error(failed)),
        }
    }

    /// Writes as much as fits.
    ///
    /// # Errors
    /// Returns [`ErrorKind::WouldBlock`] if nothing fits; else the reason why the connection has failed.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.with(|end| end.connection.write(bytes)) {
            Some(Ok(0)) if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            Some(Ok(count)) => Ok(count),
            Some(Err(failed)) => Err(error(failed)),
            None => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Returns whether the remote host sends no more, and everything that it sent was read.
    pub fn has_ended(&self) -> bool {
        let ended = self.0.with(|end| end.connection.is_at_end());
        ended.unwrap_or(true)
    }

    /// Closes one direction or both.
    pub fn shutdown(&self, how: Shutdown) {
        self.0.with(|end| {
            if how != Shutdown::Read {
                end.connection.shutdown();
            }
            end.is_read &= how == Shutdown::Write;
        });
    }

    /// Resets the connection.
    pub fn abort(&self) {
        self.0.with(|end| end.connection.abort());
    }

    /// Returns whether the remote host has accepted it.
    pub fn is_connected(&self) -> bool {
        let connected = self.0.with(|end| end.connection.is_connected());
        connected.unwrap_or(false)
    }

    /// Returns the reason of its failure, if it has failed.
    pub fn error(&self) -> Option<io::Error> {
        let failed = self.0.with(|end| end.connection.failed());
        failed.flatten().map(error)
    }

    /// Returns its congestion control algorithm.
    pub fn algorithm(&self) -> Algorithm {
        let algorithm = self.0.with(|end| end.connection.algorithm());
        algorithm.unwrap_or(Algorithm::Cubic)
    }

    /// Changes its congestion control algorithm.
    pub fn set_algorithm(&self, algorithm: Algorithm) {
        self.0.with(|end| end.connection.set_algorithm(algorithm));
    }

    /// Returns its present state.
    pub fn info(&self) -> Info {
        let now = self.0.host.network.0.clock.now();
        let info = self.0.with(|end| end.connection.info(now));
        info.unwrap_or_default()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (here, there) = self.0.ends;
        write!(f, "Stream from {here} to {there}")
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener at {}", self.address)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.with(End::close);
    }
}

fn error(failed: Failed) -> io::Error {
    let kind = match failed {
        Failed::Refused => ErrorKind::ConnectionRefused,
        Failed::Reset => ErrorKind::ConnectionReset,
        Failed::TimedOut => ErrorKind::TimedOut,
        Failed::Closed => ErrorKind::BrokenPipe,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, failed)
}
