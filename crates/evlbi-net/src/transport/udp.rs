//! UDP: with a sequence number before the data (VTP, jive5ab's udps), or plain.

use std::io;
use std::net::SocketAddr;

use evlbi_core::packetise::Family;
use evlbi_core::shed::wire_bytes;
use evlbi_core::time::Nanos;

use super::{
    Batch, Carries, Close, Events, Head, Honours, InOptions, Incoming, Limits, Listening, Local,
    Messages, Numbers, OpenError, Opened, OutOptions, Outgoing, Piece, Pieces, Place, Protocol,
    Query, Ready, Service, Train, Transport, Url, scheme, url,
};
use crate::clock::events;
use crate::run::Run;
use crate::socket::GrantedBuffer;
use crate::udp::{
    BUFFER_TIMEOUT, Listen, MAX_SEGMENTS, Received, Receiver, ReceiverOptions, SendCounts, Sender,
    SenderOptions,
};

/// Number of trains between two polls for datagrams that readers send back.
const DRAIN_EVERY: u64 = 16;

/// UDP.
pub struct Udp {
    /// Whether each datagram begins with its number.
    pub is_numbered: bool,
}

impl Transport for Udp {
    fn schemes(&self) -> &'static [&'static str] {
        match self.is_numbered {
            true => &[scheme::UDP, "udps", "vtp"],
            false => &[scheme::PUDP],
        }
    }

    fn form(&self) -> &'static str {
        match self.is_numbered {
            true => "udp://HOST:PORT",
            false => "pudp://HOST:PORT",
        }
    }

    fn service(&self) -> Service {
        Service {
            carries: Carries::Datagrams,
            numbers: match self.is_numbered {
                true => Numbers::InBand,
                false => Numbers::FromFrames,
            },
            reliable: false,
            max_ports: url::MAX_PORTS,
            honours: Honours {
                buffer: true,
                mtu: true,
                sequence: self.is_numbered,
                single: true,
                only: true,
                window: true,
                hold: true,
                interface: true,
                source: true,
                ttl: true,
            },
        }
    }

    fn place(&self, text: &str, _query: &mut Query<'_>) -> Result<Place, String> {
        url::host(text, self)
    }

    fn listens(&self, at: &Url) -> Result<Vec<Listening>, OpenError> {
        Listening::at_ports(at, Protocol::Udp)
    }

    fn open_out(&self, to: &Url, with: &OutOptions, _run: &Run) -> Opened<dyn Outgoing> {
        let mut options = SenderOptions {
            interface: to.interface.clone(),
            hops: to.ttl,
            max_segments: if with.single { 1 } else { MAX_SEGMENTS },
            waits: false,
            marks: with.marks,
            ..SenderOptions::default()
        };
        options.buffer = with.buffer.unwrap_or(options.buffer);
        let senders = url::first(to, |ports| {
            let senders = ports.iter().map(|port| Sender::connect(*port, &options));
            Ok(senders.collect::<Result<Vec<Sender>, _>>()?)
        })?;
        for remedy in senders.iter().filter_map(|it| it.buffer().remedy.as_ref()) {
            tracing::info!("send buffer: {remedy}");
        }
        let of_route = || senders.first().and_then(|first| first.path_mtu().ok());
        Ok(Box::new(Out {
            mtu: with.mtu.or_else(of_route),
            senders,
            trains: 0,
            held: Held::default(),
        }))
    }

    fn open_in(&self, at: &Url, with: &InOptions, _run: &Run) -> Opened<dyn Incoming> {
        let mut options = ReceiverOptions {
            join: !with.single,
            stamps: true,
            marks: with.marks,
            ..ReceiverOptions::default()
        };
        options.buffer = with.buffer.unwrap_or(options.buffer);
        let receiver = url::first(at, |ports| {
            let listen = |address: &SocketAddr| Listen {
                address: *address,
                source: at.source,
                interface: at.interface.clone(),
            };
            let listen: Vec<Listen> = ports.iter().map(listen).collect();
            Ok(Receiver::bind(&listen, &options)?)
        })?;
        Ok(Box::new(In::new(receiver)))
    }

    fn open_messages(
        &self,
        url: &Url,
        address: SocketAddr,
        listens: bool,
        _run: &Run,
    ) -> Result<Messages, OpenError> {
        match listens {
            true => Messages::at(address).map_err(|source| {
                let at = Local::Socket(address);
                OpenError::Messages { at, source }
            }),
            false => Messages::towards(address).map_err(|source| {
                let url = url.to_string();
                OpenError::Connect { url, source }
            }),
        }
    }
}

/// Sockets by which trains leave in turn, one per port.
struct Out {
    senders: Vec<Sender>,
    mtu: Option<usize>,
    trains: u64,
    held: Held,
}

/// Datagrams for which one of the sockets had no room.
#[derive(Default)]
struct Held {
    sender: usize,
    /// The datagrams one after the other, and the length of each.
    memory: Vec<u8>,
    lengths: Vec<usize>,
    /// Time at which they are given up.
    until: Nanos,
    pieces: Pieces,
    polls: Vec<libc::pollfd>,
}

impl Out {
    fn family(&self) -> Family {
        let is_v6 = |sender: &Sender| sender.destination().is_ipv6();
        match self.senders.first().is_some_and(is_v6) {
            true => Family::V6,
            false => Family::V4,
        }
    }

    /// Offers the held datagrams to their socket again.
    fn flush(&mut self, now: Nanos) -> io::Result<()> {
        let held = &mut self.held;
        let sender = &mut self.senders[held.sender];
        let mut train = held.pieces.begin();
        let mut rest = &held.memory[..];
        for length in &held.lengths {
            let (body, after) = rest.split_at(*length);
            train.push(Head::new(), body);
            rest = after;
        }
        let all = train.len();
        let mut done = sender.offer(&train)?;
        if done < all && now >= held.until {
            sender.give_up(all - done);
            done = all;
        }
        let bytes: usize = held.lengths.drain(..done).sum();
        held.memory.drain(..bytes);
        Ok(())
    }

    /// Keeps datagrams until `sender` has room.
    fn hold(&mut self, sender: usize, left: &[Piece], now: Nanos) {
        let held = &mut self.held;
        held.sender = sender;
        held.until = now.plus(BUFFER_TIMEOUT.into());
        held.polls.clear();
        held.polls.push(events::writable(&self.senders[sender]));
        for piece in left {
            held.memory.extend_from_slice(piece.head());
            held.memory.extend_from_slice(piece.body());
            held.lengths.push(piece.length());
        }
    }
}

impl Outgoing for Out {
    fn ready(&mut self, _now: Nanos) -> Ready {
        match self.held.lengths.is_empty() {
            true => Ready::Now(usize::MAX),
            false => Ready::OnEvent,
        }
    }

    fn send(&mut self, train: &Train<'_, '_>, now: Nanos) -> io::Result<()> {
        let ports = self.senders.len() as u64;
        let sender = (self.trains % ports) as usize;
        self.trains += 1;
        let done = self.senders[sender].offer(train)?;
        if done < train.len() {
            self.hold(sender, &train.pieces()[done..], now);
        }
        if self.trains.is_multiple_of(DRAIN_EVERY) {
            self.drive(now)?;
        }
        Ok(())
    }

    /// Counts the datagrams that readers have sent back.
    fn drive(&mut self, now: Nanos) -> io::Result<Option<Nanos>> {
        let senders = self.senders.iter_mut();
        senders.for_each(Sender::drain_back_traffic);
        if !self.held.lengths.is_empty() {
            self.flush(now)?;
        }
        let is_held = !self.held.lengths.is_empty();
        Ok(is_held.then_some(self.held.until))
    }

    fn close(&mut self, now: Nanos) -> io::Result<Close> {
        Ok(match self.drive(now)? {
            None => Close::Done,
            Some(_) => Close::OnEvent,
        })
    }

    fn events(&self) -> Events<'_> {
        match self.held.lengths.is_empty() {
            true => Events::NONE,
            false => Events::of(&self.held.polls),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            mtu: self.mtu,
            family: self.family(),
        }
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.senders.last().map(Sender::destination)
    }

    fn wire_bytes(&self, length: usize) -> u64 {
        wire_bytes(length, self.family())
    }

    fn counts(&self) -> SendCounts {
        let mut counts = SendCounts::default();
        for sender in &self.senders {
            counts.add(sender.counts());
        }
        counts
    }
}

/// Sockets on one or several ports.
pub struct In {
    receiver: Receiver,
    received: Received,
    polls: Vec<libc::pollfd>,
}

impl In {
    /// Creates an input from a bound receiver.
    pub fn new(receiver: Receiver) -> In {
        In {
            polls: receiver.sockets().map(events::readable).collect(),
            receiver,
            received: Received::new(),
        }
    }

    /// Returns its receiver.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }
}

impl Incoming for In {
    fn receive(&mut self, _now: Nanos) -> io::Result<Batch<'_>> {
        self.receiver.receive(&mut self.received)?;
        Ok(self.received.batch())
    }

    fn events(&self) -> Events<'_> {
        Events::of(&self.polls)
    }

    fn backlog(&self) -> io::Result<u64> {
        self.receiver.queued()
    }

    fn drops_reported(&self) -> u64 {
        self.receiver.overflow()
    }

    fn drops(&mut self) -> io::Result<u64> {
        self.receiver.drops()
    }

    fn buffer(&self) -> Option<&GrantedBuffer> {
        self.receiver.buffer()
    }

    fn local(&self) -> Vec<Local> {
        let addresses = self.receiver.local_addresses();
        addresses.map(Local::Socket).collect()
    }
}
