//! ARQ: a reliable datagram transport, over UDP (IPv4) or a simulated network. It shows that the interface of transports fits protocols
//! with acknowledgements: the data plane only sees a [`Url`].
//!
//! A datagram is a byte for its kind, a key (8 bytes), a number (8 bytes), and a body; integers are big-endian.
//!
//! | kind | from | key | number | body |
//! |---|---|---|---|---|
//! | `HELLO` | sender | its nonce | the cookie, 0 at first | |
//! | `COOKIE` | receiver | the nonce | the cookie | |
//! | `DATA` | sender | the cookie | of the datagram, from 0 | data; the last one has none |
//! | `ACK` | receiver | the cookie | the lowest missing number | the end of the window, and the missing numbers |
//! | `DONE` | sender | the cookie | 0 | |
//!
//! A receiver stores nothing of a peer that has not returned its cookie, a hash of the address, the nonce and the time. `HELLO` on an
//! open connection requests an `ACK`. `DONE` answers the `ACK` of the last `DATA`.
//!
//! [`Sender`] and [`Receiver`] are the protocol without I/O: `handle` takes a received datagram, `next_datagram` returns the next one
//! to send.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use evlbi_core::packetise::Family;
use evlbi_core::shed::wire_bytes;
use evlbi_core::time::Nanos;
use evlbi_net::clock::Events;
use evlbi_net::run::Run;
use evlbi_net::sim::Network;
use evlbi_net::transport::{
    Batch, Carries, Close, Handle, Honours, InOptions, Incoming, Limits, Local, Message, Numbers,
    Opened, OutOptions, Outgoing, Peer, Place, Ready, Service, Train, Transport, Url,
};
use evlbi_net::udp::SendCounts;
use sha2::{Digest, Sha256};

use crate::link::Link;

const HELLO: u8 = 1;
const COOKIE: u8 = 2;
const DATA: u8 = 3;
const ACK: u8 = 4;
const DONE: u8 = 5;

/// Length of the header in bytes.
const HEADER: usize = 17;
/// Default maximum packet length in bytes.
const MTU: usize = 1500;
/// Maximum number of datagrams in flight or not taken yet.
pub const WINDOW: u64 = 256;
/// Maximum number of peers with a connection at the same time.
const MAX_PEERS: usize = 64;
/// Maximum number of datagrams that are taken, or reported missing, at once.
const AT_ONCE: usize = 64;
/// A cookie is valid for one to two of these.
const COOKIE_TIME: Nanos = Nanos(10_000_000_000);
/// Time without an event after which the oldest datagram is retransmitted.
const TIMEOUT: Nanos = Nanos(100_000_000);
/// Silence after which the remote host counts as gone.
const SILENCE: Nanos = Nanos(5_000_000_000);
/// Time after which an overtaken datagram counts as missing, and interval at which it is reported.
const NAK_TIME: Nanos = Nanos(40_000_000);
/// Interval between datagrams.
const SPACING: Nanos = Nanos(5_000);

fn datagram(kind: u8, key: u64, number: u64, body: &[u8]) -> Arc<[u8]> {
    let (key, number) = (key.to_be_bytes(), number.to_be_bytes());
    [&[kind], &key[..], &number, body].concat().into()
}

/// Splits a datagram into kind, key, number and body.
fn parse(bytes: &[u8]) -> Option<(u8, u64, u64, &[u8])> {
    let (head, body) = bytes.split_at_checked(HEADER)?;
    let mut numbers = numbers(&head[1..]);
    Some((head[0], numbers.next()?, numbers.next()?, body))
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|it| u64::from_be_bytes(*it))
}

/// Returns a hash that only the holder of the secret can calculate.
fn keyed(secret: u64, address: SocketAddr, nonce: u64, time: u64) -> u64 {
    let hash = Sha256::digest(format!("{secret} {address} {nonce} {time}"));
    numbers(&hash).next().unwrap_or(0)
}

/// The sender's side of the protocol.
#[derive(Default)]
pub struct Sender {
    nonce: u64,
    cookie: u64,
    /// Number of the oldest datagram that is not acknowledged.
    base: u64,
    kept: VecDeque<Arc<[u8]>>,
    due: VecDeque<Arc<[u8]>>,
    /// End of the window; 0 before the connection is open.
    limit: u64,
    is_finished: bool,
    timer: Nanos,
    heard: Nanos,
}

impl Sender {
    /// Creates a sender that starts its handshake at `now`.
    pub fn new(nonce: u64, now: Nanos) -> Sender {
        Sender {
            nonce,
            timer: now,
            heard: now,
            ..Sender::default()
        }
    }

    fn next(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    /// Returns how many datagrams [`Sender::push`] may take.
    pub fn room(&self) -> u64 {
        let limit = if self.is_finished { 0 } else { self.limit };
        limit.saturating_sub(self.next())
    }

    /// Adds a datagram.
    pub fn push(&mut self, body: &[u8], now: Nanos) {
        let bytes = datagram(DATA, self.cookie, self.next(), body);
        self.kept.push_back(Arc::clone(&bytes));
        self.due.push_back(bytes);
        self.timer = now.plus(TIMEOUT);
    }

    /// Ends the data. Does nothing before the connection is open.
    pub fn finish(&mut self, now: Nanos) {
        if self.limit > 0 && !self.is_finished {
            self.push(&[], now);
            self.is_finished = true;
        }
    }

    /// Returns whether the receiver has everything, and knows that it was everything.
    pub fn is_done(&self) -> bool {
        self.is_finished && self.kept.is_empty()
    }

    /// Processes a datagram from the receiver.
    pub fn handle(&mut self, bytes: &[u8], now: Nanos) {
        let (kind, key, number, body) = parse(bytes).unwrap_or_default();
        if kind == COOKIE && key == self.nonce && self.limit == 0 {
            (self.cookie, self.timer) = (number, now);
        }
        if kind != ACK || key != self.cookie {
            return;
        }
        self.heard = now;
        let mut told = numbers(body);
        self.limit = self.limit.max(told.next().unwrap_or(0));
        while self.base < number && self.kept.pop_front().is_some() {
            self.base += 1;
            self.timer = now.plus(TIMEOUT);
        }
        let places = told.filter_map(|missing| missing.checked_sub(self.base));
        let missing = places.filter_map(|place| self.kept.get(place as usize));
        self.due.extend(missing.map(Arc::clone));
        let parting = self.is_done().then(|| datagram(DONE, key, 0, &[]));
        self.due.extend(parting);
    }

    /// Returns the next datagram to send.
    pub fn next_datagram(&mut self, now: Nanos) -> Option<Arc<[u8]>> {
        if now >= self.timer {
            self.timer = now.plus(TIMEOUT);
            let hello = datagram(HELLO, self.nonce, self.cookie, &[]);
            let first = self.kept.front().unwrap_or(&hello);
            // The last one shows the receiver everything that is missing before it.
            let last = self.kept.back();
            self.due
                .extend([first].into_iter().chain(last).map(Arc::clone));
        }
        self.due.pop_front()
    }
}

/// The receiver's side of the protocol.
#[derive(Default)]
pub struct Receiver {
    secret: u64,
    /// By peer and cookie.
    connections: BTreeMap<(SocketAddr, u64), Connection>,
    due: VecDeque<(SocketAddr, Arc<[u8]>)>,
}

/// A receiver's state for a peer that has returned its cookie.
#[derive(Default)]
struct Connection {
    /// Lowest missing number.
    next: u64,
    /// Lowest number that was not taken.
    handed: u64,
    /// Received datagrams that were not taken.
    held: BTreeMap<u64, Vec<u8>>,
    is_whole: bool,
    is_parted: bool,
    heard: Nanos,
    is_owed: bool,
    /// End of the window that was last announced to the sender.
    told: u64,
    /// When the next negative acknowledgement is due.
    nak: Nanos,
}

impl Receiver {
    /// Creates a receiver that derives its cookies from `secret`.
    pub fn new(secret: u64) -> Receiver {
        Receiver {
            secret,
            ..Receiver::default()
        }
    }

    /// Returns the number of connections with stored state.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Processes a datagram from a sender.
    pub fn handle(&mut self, from: SocketAddr, bytes: &[u8], now: Nanos) {
        let (kind, key, number, body) = parse(bytes).unwrap_or_default();
        let all = &mut self.connections;
        let time = now.0 / COOKIE_TIME.0;
        let cookie = |time| keyed(self.secret, from, key, time);
        let is_hello = kind == HELLO;
        if is_hello && !all.contains_key(&(from, number)) {
            if number != cookie(time) && number != cookie(time.saturating_sub(1)) {
                let reply = datagram(COOKIE, key, cookie(time), &[]);
                return self.due.push_back((from, reply));
            }
            all.retain(|_, it| now.since(it.heard) < SILENCE || it.handed < it.next);
            if all.len() < MAX_PEERS {
                all.insert((from, number), Connection::default());
            }
        }
        if let Some(it) = all.get_mut(&(from, if is_hello { number } else { key })) {
            it.handle(kind, number, body, now);
        }
    }

    /// Returns the next datagram of the data.
    pub fn take(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let mut all = self.connections.iter_mut();
        let ((peer, _), it) = all.find(|(_, it)| it.handed < it.next)?;
        let bytes = it.held.remove(&it.handed)?;
        it.handed += 1;
        it.is_whole = bytes.is_empty();
        (!it.is_whole).then_some((*peer, bytes))
    }

    /// Returns whether a peer has sent everything, and everything was taken.
    pub fn has_ended(&self, peer: SocketAddr, now: Nanos) -> bool {
        let has_parted = |it: &Connection| it.is_parted || now.since(it.heard) >= SILENCE;
        let mut all = self.connections.iter();
        all.any(|((from, _), it)| *from == peer && it.is_whole && has_parted(it))
    }

    /// Returns the next datagram to send.
    pub fn next_datagram(&mut self, now: Nanos) -> Option<(SocketAddr, Arc<[u8]>)> {
        let mut all = self.connections.iter_mut();
        let answer = || all.find_map(|(to, it)| Some((to.0, it.answer(to.1, now)?)));
        self.due.pop_front().or_else(answer)
    }

    /// Returns when there is something to send, unless something arrives first.
    pub fn next_timer(&self) -> Option<Nanos> {
        let all = self.connections.values();
        all.filter(|it| !it.gap().is_empty()).map(|it| it.nak).min()
    }
}

impl Connection {
    fn handle(&mut self, kind: u8, number: u64, body: &[u8], now: Nanos) {
        self.heard = now;
        self.is_parted |= kind == DONE;
        self.is_owed |= kind != DONE;
        if kind == DATA && (self.next..=self.handed + WINDOW).contains(&number) {
            self.held.entry(number).or_insert_with(|| body.to_vec());
        }
        while self.held.contains_key(&self.next) {
            self.next += 1;
            self.nak = now.plus(NAK_TIME);
        }
    }

    /// Returns the numbers from the lowest missing one to the highest received one.
    fn gap(&self) -> Range<u64> {
        self.next..self.held.last_key_value().map_or(0, |(last, _)| *last)
    }

    fn answer(&mut self, key: u64, now: Nanos) -> Option<Arc<[u8]>> {
        let is_nak = !self.gap().is_empty() && now >= self.nak;
        let limit = self.handed + WINDOW;
        if !self.is_owed && !is_nak && limit < self.told + WINDOW / 4 {
            return None;
        }
        (self.is_owed, self.told) = (false, limit);
        let mut body = limit.to_be_bytes().to_vec();
        if is_nak {
            self.nak = now.plus(NAK_TIME);
            let missing = self.gap().filter(|number| !self.held.contains_key(number));
            body.extend(missing.take(AT_ONCE).flat_map(u64::to_be_bytes));
        }
        Some(datagram(ACK, key, self.next, &body))
    }
}

/// The transport, over anything that carries datagrams.
struct Arq;

/// Address to listen on or to send to, and the secret.
type Way = (Option<Network>, SocketAddr, u64);

/// Returns the URL of an address of a simulated network, or of this host. A listener derives its cookies from `secret`.
pub fn url(network: Option<&Network>, address: SocketAddr, secret: u64) -> Url {
    let way: Way = (network.cloned(), address, secret);
    Url::new(&Arq, Place::Handle(Handle::new(address, way)))
}

fn way(url: &Url) -> &Way {
    match &url.place {
        Place::Handle(handle) => handle.get().expect("a handle of its own"),
        _ => unreachable!("it has no other URLs"),
    }
}

impl Transport for Arq {
    fn schemes(&self) -> &'static [&'static str] {
        &["arq"]
    }

    fn service(&self) -> Service {
        Service {
            carries: Carries::Datagrams,
            numbers: Numbers::InBand,
            reliable: true,
            max_ports: 1,
            honours: Honours {
                buffer: false,
                mtu: true,
                sequence: true,
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

    fn open_out(&self, to: &Url, with: &OutOptions, run: &Run) -> Opened<dyn Outgoing> {
        let (network, address, secret) = way(to);
        let now = run.clock().now();
        Ok(Box::new(Out {
            link: Link::open(network.as_ref(), None)?,
            to: *address,
            mtu: with.mtu.unwrap_or(MTU),
            sender: Sender::new(keyed(*secret, *address, 0, now.0), now),
            spaced: now,
        }))
    }

    fn open_in(&self, at: &Url, _with: &InOptions, _run: &Run) -> Opened<dyn Incoming> {
        let (network, address, secret) = way(at);
        Ok(Box::new(In {
            link: Link::open(network.as_ref(), Some(*address))?,
            receiver: Receiver::new(*secret),
            now: Nanos(0),
            reads: false,
            memory: Vec::new(),
            messages: Vec::new(),
        }))
    }
}

struct Out {
    link: Link,
    to: SocketAddr,
    mtu: usize,
    sender: Sender,
    /// Earliest departure of the next train.
    spaced: Nanos,
}

impl Outgoing for Out {
    fn ready(&mut self, now: Nanos) -> Ready {
        match self.sender.room() {
            0 => Ready::OnEvent,
            _ if now < self.spaced => Ready::At(self.spaced),
            room => Ready::Now(room as usize),
        }
    }

    fn send(&mut self, train: &Train<'_, '_>, now: Nanos) -> io::Result<()> {
        for piece in train.pieces() {
            let bytes = [piece.head(), piece.body()].concat();
            self.sender.push(&bytes, now);
        }
        self.spaced = now.plus(Nanos(SPACING.0 * train.len() as u64));
        self.drive(now).map(drop)
    }

    fn drive(&mut self, now: Nanos) -> io::Result<Option<Nanos>> {
        for (_, bytes) in self.link.receive() {
            self.sender.handle(&bytes, now);
        }
        while let Some(bytes) = self.sender.next_datagram(now) {
            self.link.send(self.to, &bytes, now);
        }
        match now.since(self.sender.heard) < SILENCE {
            true => Ok(Some(self.sender.timer)),
            false => Err(io::Error::other("the receiver does not answer")),
        }
    }

    fn close(&mut self, now: Nanos) -> io::Result<Close> {
        self.sender.finish(now);
        self.drive(now)?;
        Ok(match self.sender.is_done() {
            true => Close::Done,
            false => Close::OnEvent,
        })
    }

    fn events(&self) -> Events<'_> {
        self.link.events()
    }

    fn limits(&self) -> Limits {
        Limits {
            mtu: Some(self.mtu - HEADER),
            family: Family::V4,
        }
    }

    fn wire_bytes(&self, length: usize) -> u64 {
        wire_bytes(length + HEADER, Family::V4)
    }

    /// Counts as sent what the receiver has.
    fn counts(&self) -> SendCounts {
        SendCounts {
            sent: self.sender.base - u64::from(self.sender.is_done()),
            ..SendCounts::default()
        }
    }
}

struct In {
    link: Link,
    receiver: Receiver,
    /// Time of the last receive, and whether the next drive reads the socket.
    now: Nanos,
    reads: bool,
    memory: Vec<u8>,
    messages: Vec<Message>,
}

impl Incoming for In {
    fn receive(&mut self, now: Nanos) -> io::Result<Batch<'_>> {
        // It is read now, not at the next drive.
        self.reads = true;
        self.drive(now)?;
        (self.now, self.reads) = (now, false);
        self.memory.clear();
        self.messages.clear();
        for (peer, bytes) in std::iter::from_fn(|| self.receiver.take()).take(AT_ONCE) {
            let start = self.memory.len();
            self.memory.extend_from_slice(&bytes);
            self.messages.push(Message {
                range: start..self.memory.len(),
                peer: Peer::Socket(peer),
                ..Message::default()
            });
        }
        Ok(Batch {
            memory: &self.memory,
            messages: &self.messages,
            taken: self.memory.len() as u64,
        })
    }

    /// Reads the socket if nothing is received for lack of room: the sender must learn of that.
    fn drive(&mut self, now: Nanos) -> io::Result<Option<Nanos>> {
        if std::mem::replace(&mut self.reads, true) {
            for (from, bytes) in self.link.receive() {
                self.receiver.handle(from, &bytes, now);
            }
        }
        while let Some((to, bytes)) = self.receiver.next_datagram(now) {
            self.link.send(to, &bytes, now);
        }
        Ok(self.receiver.next_timer())
    }

    fn has_ended(&self, peer: Peer) -> bool {
        matches!(peer, Peer::Socket(peer) if self.receiver.has_ended(peer, self.now))
    }

    fn events(&self) -> Events<'_> {
        self.link.events()
    }

    fn local(&self) -> Vec<Local> {
        self.link.local().into_iter().collect()
    }
}
