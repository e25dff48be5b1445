//! TCP: one byte stream, like jive5ab's `tcp`, over connections of the kernel or of a simulated host.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evlbi_core::admission::ENOUGH_BYTES;
use evlbi_core::packetise::Family;
use evlbi_core::shed::wire_bytes_of_segment;
use evlbi_core::time::Nanos;

use super::{
    Batch, Carries, Close, Events, Honours, InOptions, Incoming, Limits, Listening, Local, Message,
    Numbers, OpenError, Opened, OutOptions, Outgoing, Peer, Place, Protocol, Query, Read, Ready,
    Service, Train, Transport, Url, scheme, url,
};
use crate::clock::events::{Event, Several};
use crate::run::Run;
use crate::socket::{self, GrantedBuffer};
use crate::tcp::{self, Change, Listener, Options, Stream, Unconnected};
use crate::udp::SendCounts;

/// Maximum number of connections of which it is not decided whether they send the stream.
const MAX_WAITING: usize = 64;
/// Pieces passed to the kernel at once.
const AT_ONCE: usize = 64;
/// Amount of data for which a reader is woken, unless it waits for its maximum time: it reads more at once, and the kernel acknowledges
/// data before it is read (`SO_RCVLOWAT`, socket(7)).
const WORTH_WAKING: c_int = 1 << 20;
/// No timeout of its own: the kernel decides how long it tries to connect, which may be minutes.
const FOREVER: Duration = Duration::MAX;

/// TCP.
pub struct Tcp;

impl Transport for Tcp {
    fn schemes(&self) -> &'static [&'static str] {
        &[scheme::TCP]
    }

    fn form(&self) -> &'static str {
        "tcp://HOST:PORT"
    }

    fn service(&self) -> Service {
        Service {
            carries: Carries::Bytes,
            numbers: Numbers::InOrder,
            reliable: true,
            max_ports: 1,
            honours: Honours {
                buffer: true,
                mtu: false,
                sequence: false,
                single: false,
                only: true,
                window: false,
                hold: false,
                interface: false,
                source: false,
                ttl: false,
            },
        }
    }

    fn place(&self, text: &str, _query: &mut Query<'_>) -> Result<Place, String> {
        url::host(text, self)
    }

    fn listens(&self, at: &Url) -> Result<Vec<Listening>, OpenError> {
        Listening::at_ports(at, Protocol::Tcp)
    }

    fn open_out(&self, to: &Url, with: &OutOptions, run: &Run) -> Opened<dyn Outgoing> {
        let connection = url::first(to, |ports| connect(to, ports[0], with.buffer, run))?;
        let failed = url::failed(to);
        let segment = connection.info().map_err(failed)?.segment as usize;
        let is_v6 = connection.peer_addr().is_ok_and(|peer| peer.is_ipv6());
        Ok(Box::new(Out {
            room: connection.event(Change::Writable),
            connection,
            segment: segment.max(1),
            family: if is_v6 { Family::V6 } else { Family::V4 },
            rest: Vec::new(),
            at: 0,
            ends: VecDeque::new(),
            counts: SendCounts::default(),
        }))
    }

    fn open_in(&self, at: &Url, with: &InOptions, run: &Run) -> Opened<dyn Incoming> {
        let (listener, buffer) = url::first(at, |ports| listen(ports[0], with.buffer, run))?;
        let local = listener.local_addr().map(Local::Socket);
        let mut incoming = In {
            local: local.into_iter().collect(),
            listener: Some(listener),
            only: with.only.map(|only| only.to_canonical()),
            callers: Vec::new(),
            stream: None,
            memory: Vec::new(),
            messages: Vec::new(),
            buffer,
            watched: Several::default(),
        };
        incoming.watch();
        Ok(Box::new(incoming))
    }
}

/// Connects to an address.
fn connect(
    to: &Url,
    address: SocketAddr,
    buffer: Option<usize>,
    run: &Run,
) -> Result<Stream, OpenError> {
    let options = Options {
        send_buffer: buffer,
        ..Options::default()
    };
    let refused = |error| url::failed(to)(io::Error::other(error));
    let (unconnected, [granted, _]) = tcp::set_up(address, &options, run).map_err(refused)?;
    if let Some(remedy) = granted.and_then(|granted| granted.remedy) {
        tracing::info!("send buffer: {remedy}");
    }
    let connected = unconnected.connect(address, FOREVER, run);
    connected.map_err(|error| match run.is_stopped() {
        true => OpenError::Stopped(to.to_string()),
        false => url::failed(to)(error),
    })
}

fn listen(
    address: SocketAddr,
    buffer: Option<usize>,
    run: &Run,
) -> Result<(Listener, Option<GrantedBuffer>), OpenError> {
    let options = Options {
        receive_buffer: buffer,
        ..Options::default()
    };
    let make = || -> io::Result<_> {
        let set_up = tcp::set_up(address, &options, run);
        let (unconnected, [_, granted]) = set_up.map_err(io::Error::other)?;
        if let Unconnected::Kernel(socket) = &unconnected {
            // Connections that have ended do not keep the port.
            socket.set_reuse_address(true)?;
        }
        Ok((unconnected.listen(address)?, granted))
    };
    let at = Local::Socket(address);
    make().map_err(|source| OpenError::Listen { at, source })
}

/// A connection that sends trains one after the other.
struct Out {
    connection: Stream,
    segment: usize,
    family: Family,
    /// Data of the previous train that the kernel has not accepted, from `at` on.
    rest: Vec<u8>,
    at: usize,
    /// Ends of its pieces, in bytes of the whole stream.
    ends: VecDeque<u64>,
    counts: SendCounts,
    room: Event,
}

impl Out {
    /// Passes bytes to the kernel; returns how many it accepted.
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            self.counts.calls += 1;
            match self.connection.write_vectored(slices) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.counts.bytes += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.at < self.rest.len() {
            let rest = std::mem::take(&mut self.rest);
            let written = self.write(&[IoSlice::new(&rest[self.at..])]);
            self.rest = rest;
            match written? {
                0 => break,
                count => self.at += count,
            }
        }
        let gone = |end: &u64| *end <= self.counts.bytes;
        while self.ends.front().is_some_and(gone) {
            self.ends.pop_front();
            self.counts.sent += 1;
        }
        Ok(())
    }
}

impl Outgoing for Out {
    fn ready(&mut self, _now: Nanos) -> Ready {
        match self.at < self.rest.len() {
            true => Ready::OnEvent,
            false => Ready::Now(usize::MAX),
        }
    }

    /// Keeps what the kernel does not accept at once, and sends it before the next train.
    fn send(&mut self, train: &Train<'_, '_>, _now: Nanos) -> io::Result<()> {
        self.flush()?;
        self.counts.messages += 1;
        let mut is_full = self.at < self.rest.len();
        if !is_full {
            self.rest.clear();
            self.at = 0;
        }
        let mut end = self.counts.bytes + (self.rest.len() - self.at) as u64;
        for pieces in train.pieces().chunks(AT_ONCE) {
            let mut slices = [IoSlice::new(&[]); 2 * AT_ONCE];
            let parts = pieces.iter().flat_map(|it| [it.head(), it.body()]);
            for (slice, part) in slices.iter_mut().zip(parts) {
                *slice = IoSlice::new(part);
            }
            let mut left = &mut slices[..2 * pieces.len()];
            while !is_full && !left.is_empty() {
                let written = self.write(left)?;
                is_full = written == 0;
                IoSlice::advance_slices(&mut left, written);
            }
            left.iter()
                .for_each(|part| self.rest.extend_from_slice(part));
            for piece in pieces {
                end += piece.length() as u64;
                self.ends.push_back(end);
            }
        }
        self.flush()
    }

    fn drive(&mut self, _now: Nanos) -> io::Result<Option<Nanos>> {
        self.flush()?;
        Ok(None)
    }

    fn close(&mut self, _now: Nanos) -> io::Result<Close> {
        self.flush()?;
        Ok(match self.at < self.rest.len() {
            true => Close::OnEvent,
            false => Close::Done,
        })
    }

    fn events(&self) -> Events<'_> {
        self.room.events()
    }

    fn limits(&self) -> Limits {
        Limits {
            mtu: None,
            family: self.family,
        }
    }

    fn wire_bytes(&self, length: usize) -> u64 {
        let whole = wire_bytes_of_segment(self.segment, self.family) * length as u64;
        whole.div_ceil(self.segment as u64)
    }

    fn counts(&self) -> SendCounts {
        self.counts
    }
}

/// A port, and its connections.
struct In {
    local: Vec<Local>,
    /// `None` once it is decided which peer sends the stream: another sender then learns that it is not accepted.
    listener: Option<Listener>,
    only: Option<IpAddr>,
    callers: Vec<Caller>,
    /// The connection that sends the stream, and how many of its first bytes were read.
    stream: Option<(Caller, usize)>,
    /// Room for [`ENOUGH_BYTES`] of each caller.
    memory: Vec<u8>,
    messages: Vec<Message>,
    buffer: Option<GrantedBuffer>,
    watched: Several,
}

/// A connection of which it is not decided whether it sends the stream.
struct Caller {
    connection: Stream,
    peer: SocketAddr,
    /// Offset and length of its first bytes in the memory.
    place: usize,
    heard: usize,
    is_closed: bool,
}

impl In {
    /// Accepts connections. One that only connects neither ends the wait for a sender nor keeps the sender out.
    fn accept(&mut self) {
        for _ in 0..MAX_WAITING {
            // Whatever the error, the next connection may be the sender's.
            let Some(Ok((connection, peer))) = self.listener.as_ref().map(Listener::accept) else {
                return;
            };
            let ip = peer.ip().to_canonical();
            if self.only.is_some_and(|only| only != ip) {
                continue;
            }
            self.make_room();
            let is_free = |place: &usize| self.callers.iter().all(|it| it.place != *place);
            let place = (0..).step_by(ENOUGH_BYTES).find(is_free).unwrap_or(0);
            let needed = self.memory.len().max(place + ENOUGH_BYTES);
            self.memory.resize(needed, 0);
            self.callers.push(Caller {
                connection,
                peer,
                place,
                heard: 0,
                is_closed: false,
            });
        }
    }

    /// Limits the number of connections: closes the oldest of the host that has the most.
    fn make_room(&mut self) {
        if self.callers.len() < MAX_WAITING {
            return;
        }
        let of = |ip: IpAddr| {
            let of_host = self.callers.iter().filter(|it| it.peer.ip() == ip);
            of_host.count()
        };
        let most = self.callers.iter().map(|it| of(it.peer.ip())).max();
        let has_most = |it: &Caller| Some(of(it.peer.ip())) == most;
        if let Some(oldest) = self.callers.iter().position(has_most) {
            self.callers.remove(oldest);
        }
    }

    /// Watches what is open.
    fn watch(&mut self) {
        let stream = self.stream.as_ref().map(|(it, _)| it);
        let open = self.callers.iter().chain(stream).filter(|it| !it.is_closed);
        let callers = open.map(|it| it.connection.event(Change::Readable));
        let listener = self.listener.as_ref().map(Listener::event);
        self.watched = listener.into_iter().chain(callers).collect();
    }
}

impl Caller {
    /// Takes what has arrived, as far as there is room; returns whether there is anything new.
    fn hear(&mut self, memory: &mut [u8]) -> bool {
        let before = (self.heard, self.is_closed);
        while self.heard < ENOUGH_BYTES && !self.is_closed {
            let room = &mut memory[self.place + self.heard..self.place + ENOUGH_BYTES];
            match self.connection.read(room) {
                Ok(count) if count > 0 => self.heard += count,
                Err(error) if is_wait(&error) => break,
                _ => self.is_closed = true,
            }
        }
        (self.heard, self.is_closed) != before
    }
}

impl Incoming for In {
    /// Returns the first bytes of each connection so far, whenever there are more; `truncated` if more will follow.
    fn receive(&mut self, _now: Nanos) -> io::Result<Batch<'_>> {
        self.messages.clear();
        if self.listener.is_none() {
            return Ok(Batch::EMPTY);
        }
        self.accept();
        for caller in &mut self.callers {
            if caller.hear(&mut self.memory) {
                self.messages.push(Message {
                    range: caller.place..caller.place + caller.heard,
                    peer: Peer::Socket(caller.peer),
                    truncated: !caller.is_closed,
                    ..Message::default()
                });
            }
        }
        self.watch();
        Ok(Batch {
            memory: &self.memory,
            messages: &self.messages,
            taken: 0,
        })
    }

    fn read(&mut self, _peer: Peer, into: &mut [u8]) -> io::Result<Read> {
        let Some((stream, read)) = &mut self.stream else {
            return Ok(Read::Nothing);
        };
        if *read < stream.heard {
            let heard = &self.memory[stream.place + *read..stream.place + stream.heard];
            let count = heard.len().min(into.len());
            into[..count].copy_from_slice(&heard[..count]);
            *read += count;
            return Ok(Read::Bytes(count));
        }
        match stream.connection.read(into) {
            Ok(0) => Ok(Read::Closed),
            Ok(count) => Ok(Read::Bytes(count)),
            Err(error) if is_wait(&error) => Ok(Read::Nothing),
            Err(error) => Err(error),
        }
    }

    fn verdict(&mut self, peer: Peer, is_stream: bool) {
        let is_it = |it: &Caller| Peer::Socket(it.peer) == peer;
        let Some(place) = self.callers.iter().position(is_it) else {
            return;
        };
        let caller = self.callers.remove(place);
        if is_stream {
            if let Stream::Kernel(socket) = &caller.connection {
                let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
                if let Err(error) = socket::set(socket, level, name, &WORTH_WAKING) {
                    tracing::debug!("the reader is woken for every segment: {error}");
                }
            }
            self.stream = Some((caller, 0));
            self.listener = None;
            self.callers.clear();
        }
        self.watch();
    }

    fn events(&self) -> Events<'_> {
        self.watched.events()
    }

    fn buffer(&self) -> Option<&GrantedBuffer> {
        self.buffer.as_ref()
    }

    fn local(&self) -> Vec<Local> {
        self.local.clone()
    }
}

fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
