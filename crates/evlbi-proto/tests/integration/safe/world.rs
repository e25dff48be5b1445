//! A flow under SafeUDP over the cells of a path, packet by packet in virtual time, with TCP flows on the same path.

mod source;

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use evlbi_core::path::{Identity, Law, Network, Output, Piece, Train};
use evlbi_core::reorder::{MAX_GAP, Reorder, Settings as Window, Verdict};
use evlbi_core::time::Nanos;
use evlbi_proto::safe::message::Received;
use evlbi_proto::safe::{
    Accounts, Arrivals, HOLD, Key, Kind, Notice, Order, Output as Act, Progress, Reason, Receiver,
    Sender, Settings, State, Step,
};
use evlbi_trace::tcp::{Algorithm, Connection, Counting, HEADERS, Packet, Read, Settings as Tcp};
use evlbi_wire::time::FrameRate;

use self::source::Source;

/// Bytes of headers of a datagram: Ethernet, IPv4, UDP and its sequence number.
const DATAGRAM_HEADERS: u32 = 14 + 20 + 8 + 8;
const MESSAGE_HEADERS: u32 = 14 + 20 + 8;
const LINK_HEADER: u32 = 14;
/// Maximum time between two looks at what has arrived.
const TICK: Nanos = Nanos(5_000_000);
/// Slots of the receiver's ring, which is emptied at once.
const RING: u64 = 1 << 20;

/// Flow and path.
pub struct Scene {
    pub settings: Settings,
    /// Datagrams per second at full rate.
    pub datagrams: u32,
    /// Laws of the path in both directions, the shared ones first.
    pub there: Vec<Law>,
    pub back: Vec<Law>,
    /// TCP flows that send as much as they can.
    pub tcps: Vec<Algorithm>,
    /// Whether kept data are spread over the time of what is shed.
    pub spreads: bool,
    pub seed: u64,
    /// Number of flows, which start a few seconds one after the other.
    pub flows: usize,
    /// Changes of laws in the outbound direction: when, of which, and to what.
    pub changes: Vec<(Nanos, usize, Law)>,
}

/// Decision about a datagram in the receiving host: whether it is dropped there.
pub type HostDrops = Box<dyn FnMut(Nanos, u64) -> bool>;
/// Change of messages from the receiver to the sender: when each arrives, as often as it arrives.
pub type Mangle = Box<dyn FnMut(Nanos, Vec<u8>) -> Vec<(Nanos, Vec<u8>)>>;

#[derive(Clone, Debug)]
enum P {
    Data(u64),
    Message(Vec<u8>),
    Tcp(Packet),
}

impl Identity for P {
    fn identity(&self, segment: u16) -> u64 {
        match self {
            P::Data(number) => *number,
            P::Message(_) => 0,
            P::Tcp(packet) => packet.identity(segment),
        }
    }
}

pub struct World {
    pub now: Nanos,
    network: Network<P>,
    pub flows: Vec<Flowing>,
    tcps: Vec<Tcps>,
    routes: Vec<Route>,
}

/// Both ends of a flow.
pub struct Flowing {
    pub sender: Sender,
    pub receiver: Receiver,
    pub settings: Settings,
    there: usize,
    back: usize,
    starts: Nanos,
    source: Source,
    reorder: Reorder,
    arrivals: Arrivals,
    overflow: (u64, u64),
    /// How many of the dropped datagrams of each run the host counts; the others are possible.
    pub certain: u64,
    pub host: Option<HostDrops>,
    /// Decision about a datagram in the network, which lets messages pass: whether it is dropped there.
    pub filter: Option<HostDrops>,
    /// Whether the receiver runs at all.
    pub is_alive: bool,
    pub mangle: Option<Mangle>,
    mangled: Vec<(Nanos, Vec<u8>)>,
    /// The receiver's clock.
    pub clock: fn(Nanos) -> Nanos,
    pub notices: Vec<Notice>,
    /// States of the sender that the receiver noticed.
    pub noticed: Vec<(State, f64)>,
    /// When each datagram of the data was sent.
    pub sent: Vec<Nanos>,
    /// When each beat was sent.
    pub beats: Vec<Nanos>,
    /// Orders and states, and when they began.
    pub orders: Vec<(Nanos, Order)>,
    pub states: Vec<(Nanos, State)>,
    out: Vec<(usize, P)>,
    /// Whether messages have arrived since the last tick of each end.
    is_heard_there: bool,
    is_heard_here: bool,
    ticked: Nanos,
}

impl Deref for World {
    type Target = Flowing;

    fn deref(&self) -> &Flowing {
        &self.flows[0]
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Flowing {
        &mut self.flows[0]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    There(usize),
    Back(usize),
    TcpThere(usize),
    TcpBack(usize),
}

struct Tcps {
    ends: [Connection; 2],
    routes: [usize; 2],
    received: u64,
    next: Nanos,
}

pub fn key() -> Key {
    Key::new(&[3; 32])
}

impl Scene {
    /// A flow of 512 Mbit/s of 1424 bytes at a tenth of its rate, over a clean path of 15 ms.
    pub fn tenth() -> Scene {
        let datagrams = 4494;
        Scene {
            settings: Settings {
                rate: u64::from(datagrams) * 1424 * 8,
                size: 1424,
                least: Step::LOWEST,
                first: 1000,
                flow: 77,
                ..Settings::default()
            },
            datagrams,
            there: vec![delay(7_500)],
            back: vec![delay(7_500)],
            tcps: Vec::new(),
            spreads: true,
            seed: 1,
            flows: 1,
            changes: Vec::new(),
        }
    }

    pub fn world(self) -> World {
        let mut network = Network::new();
        let there_line = network.line(self.there.iter().cloned(), self.seed);
        let back_line = network.line(self.back.iter().cloned(), self.seed.wrapping_add(1));
        for (at, law, to) in self.changes {
            network.cell_mut(there_line.cells[law]).change_at(at, to);
        }
        let mut routes = Vec::new();
        let mut route = |network: &mut Network<P>, is: Route| {
            let is_there = matches!(is, Route::There(_) | Route::TcpThere(_));
            let line = if is_there { &there_line } else { &back_line };
            routes.push(is);
            network.route(&[line])
        };
        let flows = (0..self.flows).map(|number| {
            let settings = Settings {
                flow: self.settings.flow + number as u64,
                ..self.settings
            };
            let starts = Nanos::SECOND.plus(Nanos(7_300_000_000 * number as u64));
            Flowing {
                sender: Sender::new(settings, key(), starts),
                receiver: Receiver::new(key(), 4711),
                settings,
                there: route(&mut network, Route::There(number)),
                back: route(&mut network, Route::Back(number)),
                starts,
                source: Source {
                    rate: FrameRate::new(self.datagrams).unwrap(),
                    begins: None,
                    next: 0,
                    shed: None,
                    step: None,
                    is_stopped: false,
                    free: Nanos(0),
                    slowed: None,
                    spreads: self.spreads,
                    spacing: Nanos(1_000_000_000 / u64::from(self.datagrams)),
                    progress: Progress::default(),
                    end: None,
                },
                reorder: window(),
                arrivals: Arrivals::default(),
                overflow: (0, 0),
                certain: u64::MAX,
                host: None,
                filter: None,
                is_alive: true,
                mangle: None,
                mangled: Vec::new(),
                clock: |now| now,
                notices: Vec::new(),
                noticed: Vec::new(),
                sent: Vec::new(),
                beats: Vec::new(),
                orders: Vec::new(),
                states: Vec::new(),
                out: Vec::new(),
                is_heard_there: false,
                is_heard_here: true,
                ticked: Nanos(0),
            }
        });
        let flows = flows.collect();
        let tcps = self.tcps.iter().enumerate().map(|(number, algorithm)| {
            let settings = Tcp {
                algorithm: *algorithm,
                counting: Counting::Segments,
                segment: 1424,
                send_buffer: 4 << 20,
                receive_buffer: u64::MAX,
                ..Tcp::default()
            };
            Tcps {
                ends: Connection::pair([settings, settings]),
                routes: [
                    route(&mut network, Route::TcpThere(number)),
                    route(&mut network, Route::TcpBack(number)),
                ],
                received: 0,
                // Not all at once.
                next: Nanos(10_000_000 * number as u64),
            }
        });
        World {
            tcps: tcps.collect(),
            now: Nanos::SECOND,
            network,
            flows,
            routes,
        }
    }
}

/// Address of the sender, which does not matter here.
fn somewhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 9))
}

fn window() -> Reorder {
    Reorder::new(Window {
        window: 1 << 16,
        hold: HOLD,
        capacity: RING,
        max_gap: MAX_GAP,
    })
}

pub fn delay(micros: u64) -> Law {
    Law::Delay {
        delay: Nanos(micros * 1000),
        jitter: Nanos(0),
        shape: evlbi_core::path::Shape::Uniform,
        reorders: false,
    }
}

impl World {
    /// Lowers the rate of the first flow's application, in bits of data per second.
    pub fn set_rate(&mut self, rate: u64) {
        let now = self.now;
        self.flows[0].set_rate(rate, now);
    }

    /// Runs until `seconds` after the data of the first flow began, or until it has failed.
    pub fn run_for(&mut self, seconds: f64) {
        self.run_until(seconds, |_| false);
    }

    /// Runs until `is` holds, or until `seconds` after the data of the first flow began.
    pub fn run_until(&mut self, seconds: f64, mut is: impl FnMut(&World) -> bool) {
        let span = Nanos::from_secs_f64(seconds);
        while !is(self) && self.sender.order() != Order::Fail {
            let next = self.next();
            let begun = self.source.begins;
            if begun.is_some_and(|begun| next > begun.plus(span)) {
                break;
            }
            self.step(next);
        }
    }

    /// Ends all flows, and runs until both ends of each agree. Returns the accounts at both ends of each.
    pub fn finish(&mut self) -> Vec<(Accounts, Accounts)> {
        let now = self.now;
        for flow in &mut self.flows {
            flow.source.end = Some(now);
        }
        while self.flows.iter().any(|flow| !flow.is_over(self.now)) {
            let next = self.next();
            self.step(next);
            for flow in &mut self.flows {
                if flow.source.next_at().is_none() {
                    flow.sender.end(self.now);
                }
            }
        }
        let accounts = |flow: &Flowing| {
            let here = flow.sender.accounts().expect("a last report");
            (here, flow.receiver.accounts().expect("beats"))
        };
        self.flows.iter().map(accounts).collect()
    }

    fn next(&self) -> Nanos {
        let flows = self.flows.iter().filter_map(|flow| flow.next(self.now));
        let tcps = self.tcps.iter().map(|tcp| tcp.next);
        let next = flows.chain(tcps).chain(self.network.next()).min();
        // The window and the breaker look at the clock themselves.
        let tick = Nanos((self.now.0 / 10_000_000 + 1) * 10_000_000);
        next.map_or(tick, |next| next.min(tick)).max(self.now)
    }

    fn step(&mut self, next: Nanos) {
        self.now = next;
        let mut arriving = Vec::new();
        self.network.advance(next, |output| {
            if let Output::Delivered {
                route,
                packet,
                piece,
            } = output
            {
                arriving.push((route, packet, piece.marks.congestion));
            }
        });
        for (route, packet, marked) in arriving {
            match (self.routes[route], packet) {
                (Route::There(flow), packet) => self.flows[flow].arrive_there(packet, marked, next),
                (Route::Back(flow), packet) => self.flows[flow].arrive_back(packet, next),
                (Route::TcpThere(tcp), P::Tcp(packet)) => {
                    let one = &mut self.tcps[tcp];
                    one.ends[1].handle(&packet, next);
                    if let Ok(Read::Bytes(bytes)) = one.ends[1].discard(u64::MAX) {
                        one.received += bytes;
                    }
                    self.drive_tcp(tcp);
                }
                (Route::TcpBack(tcp), P::Tcp(packet)) => {
                    self.tcps[tcp].ends[0].handle(&packet, next);
                    self.drive_tcp(tcp);
                }
                _ => unreachable!("a packet on a route of another kind"),
            }
        }
        for number in 0..self.flows.len() {
            let flow = &mut self.flows[number];
            if next >= flow.starts {
                flow.tick(next);
            }
            let size = flow.settings.size;
            for (route, packet) in std::mem::take(&mut flow.out) {
                self.offer_packet(route, packet, size);
            }
        }
        for tcp in 0..self.tcps.len() {
            if self.tcps[tcp].next <= self.now {
                self.drive_tcp(tcp);
            }
        }
    }

    fn offer_packet(&mut self, route: usize, packet: P, size: u16) {
        let length = match &packet {
            P::Data(_) => u32::from(size) + DATAGRAM_HEADERS,
            P::Message(bytes) => bytes.len() as u32 + MESSAGE_HEADERS,
            P::Tcp(packet) => packet.length() + HEADERS + LINK_HEADER,
        };
        let train = Train::single(length);
        let piece = Piece::whole(self.now, &train);
        self.network.offer(route, packet, train, piece, LINK_HEADER);
    }

    fn drive_tcp(&mut self, tcp: usize) {
        let now = self.now;
        let mut packets = Vec::new();
        let one = &mut self.tcps[tcp];
        // As much as fits into its buffer.
        let _ = one.ends[0].write_blank(1 << 30);
        for (end, route) in one.ends.iter_mut().zip(one.routes) {
            while let Some(packet) = end.next_packet(now) {
                packets.push((route, packet));
            }
        }
        let next = one.ends.iter().filter_map(Connection::next_at).min();
        one.next = next.map_or(Nanos(u64::MAX), |next| next.max(Nanos(now.0 + 1)));
        for (route, packet) in packets {
            self.offer_packet(route, P::Tcp(packet), 0);
        }
    }

    /// Returns the bytes that each TCP flow has delivered.
    pub fn tcp_bytes(&self) -> Vec<u64> {
        self.tcps.iter().map(|tcp| tcp.received).collect()
    }
}

impl Flowing {
    fn is_over(&self, now: Nanos) -> bool {
        self.source.next_at().is_none() && self.sender.is_complete(now)
    }

    fn next(&self, now: Nanos) -> Option<Nanos> {
        let source = self.source.next_at().map(|due| due.max(self.source.free()));
        let mangled = self.mangled.iter().map(|(at, _)| *at).min();
        let receiver = self.receiver.next_at().filter(|_| self.is_alive).map(|at| {
            // Its clock may be slower.
            let left = at.since((self.clock)(now)).0;
            now.plus(Nanos(left + left / 5000 + u64::from(left > 0)))
        });
        let sender = self.sender.next_at().max(self.starts);
        [source, mangled, receiver, Some(sender)]
            .into_iter()
            .flatten()
            .min()
    }

    fn arrive_there(&mut self, packet: P, marked: bool, now: Nanos) {
        match packet {
            _ if !self.is_alive => {}
            P::Data(number) => {
                let is_lost = self.filter.as_mut().is_some_and(|drops| drops(now, number));
                if !is_lost {
                    self.receive(number, marked, now);
                }
            }
            P::Message(bytes) => {
                let _ = self.receiver.handle(&bytes, somewhere(), (self.clock)(now));
                self.is_heard_there = true;
            }
            P::Tcp(_) => unreachable!("TCP on a route of another kind"),
        }
    }

    fn arrive_back(&mut self, packet: P, now: Nanos) {
        let P::Message(bytes) = packet else {
            unreachable!("only reports return")
        };
        match &mut self.mangle {
            Some(mangle) => self.mangled.extend(mangle(now, bytes)),
            None => {
                let _ = self.sender.handle(&bytes, now);
                self.is_heard_here = true;
            }
        }
    }

    fn receive(&mut self, number: u64, marked: bool, now: Nanos) {
        if self.host.as_mut().is_some_and(|drops| drops(now, number)) {
            self.overflow.0 += 1;
            return;
        }
        let before = self.reorder.heard();
        match self.reorder.offer(number, u64::MAX >> 1) {
            Verdict::Place(_) | Verdict::Late | Verdict::Duplicate => {}
            Verdict::Strange => {
                self.reorder.consider(number);
                return;
            }
            Verdict::Replay => {
                self.reorder.offer(number, u64::MAX >> 1);
            }
            other => panic!("{other:?}"),
        }
        if self.overflow.0 > self.overflow.1 {
            // Drops since the datagram before this one.
            let count = self.overflow.0 - self.overflow.1;
            self.overflow.1 = self.overflow.0;
            let before = before.unwrap_or(self.settings.first);
            self.receiver
                .dropped(before, number, count.min(self.certain), count);
        }
        let found = self.reorder.counters();
        let counters = &mut self.arrivals.counters;
        *counters = Received {
            received: found.received,
            unique: found.unique,
            duplicates: found.duplicates,
            reordered: found.reordered,
            late: found.late,
            marked: counters.marked + u64::from(marked),
            ..*counters
        };
        self.arrivals.heard = self.reorder.heard();
        self.arrivals.end = self.reorder.current().map(|(_, end)| end);
    }

    /// Does what is due at both ends.
    fn tick(&mut self, now: Nanos) {
        let is_due = now.since(self.ticked) >= TICK
            || self
                .receiver
                .next_at()
                .is_some_and(|at| (self.clock)(now) >= at);
        if std::mem::take(&mut self.is_heard_there) || is_due {
            self.ticked = now;
            self.tick_receiver(now);
        }
        let is_mangled = self.mangled.iter().any(|(at, _)| *at <= now);
        if std::mem::take(&mut self.is_heard_here) || is_mangled || now >= self.sender.next_at() {
            self.tick_sender(now);
        }
        self.offer(now);
    }

    fn tick_receiver(&mut self, at: Nanos) {
        if !self.is_alive {
            return;
        }
        let now = (self.clock)(at);
        self.reorder.advance(at);
        let receiver = &mut self.receiver;
        let first = self.settings.first;
        if self.arrivals.released.is_none()
            && let Some((start, _)) = self.reorder.current()
        {
            receiver.missing(first, start);
        }
        self.arrivals.released = self
            .reorder
            .list_missing(|first, end| receiver.missing(first, end));
        self.arrivals.emptied = now;
        self.receiver.observe(&self.arrivals, now);
        while let Some((first, end)) = self.receiver.next_shed() {
            self.reorder.shed(first, end);
        }
        while let Some(notice) = self.receiver.next_notice() {
            self.noticed.push(notice);
        }
        while let Some((report, _)) = self.receiver.poll(now) {
            self.out.push((self.back, P::Message(report)));
        }
    }

    fn tick_sender(&mut self, now: Nanos) {
        let mangled = self.mangled.extract_if(.., |(at, _)| *at <= now);
        let due: Vec<Vec<u8>> = mangled.map(|(_, bytes)| bytes).collect();
        for bytes in due {
            let _ = self.sender.handle(&bytes, now);
        }
        while let Some(act) = self.sender.poll(now) {
            match act {
                Act::Message(bytes) => {
                    if bytes.starts_with(b"EVGB") {
                        self.beats.push(now);
                    }
                    self.out.push((self.there, P::Message(bytes)));
                }
                Act::Notice(notice) => self.notices.push(notice),
            }
        }
        let order = self.sender.order();
        if self
            .orders
            .last()
            .is_none_or(|(_, before)| *before != order)
        {
            self.orders.push((now, order));
        }
        let state = self.sender.status().state;
        if self
            .states
            .last()
            .is_none_or(|(_, before)| *before != state)
        {
            self.states.push((now, state));
        }
        if order != Order::Wait {
            self.source.begins.get_or_insert(now);
            self.source.set(order);
        }
    }

    /// Offers what is due of the source.
    fn offer(&mut self, now: Nanos) {
        while let Some(due) = self.source.next_at().filter(|due| *due <= now) {
            let is_shed = self.source.decide();
            if !is_shed && self.source.free() > now {
                break;
            }
            let number = self.source.next;
            self.source.next += 1;
            let progress = &mut self.source.progress;
            progress.next += 1;
            progress.shed += u64::from(is_shed);
            if is_shed {
                self.sender.shed(number, number + 1);
            } else {
                let kept = self.source.step.map_or(1.0, Step::kept);
                let span = (self.source.spacing.0 as f64 / kept) as u64;
                self.source.free = self.source.free.max(due).plus(Nanos(span));
                self.sent.push(now);
                let number = self.settings.first.wrapping_add(number);
                self.out.push((self.there, P::Data(number)));
            }
            self.sender.progress(self.source.progress, now);
        }
    }

    /// Returns the datagrams sent within this time of the world's clock.
    pub fn sent_within(&self, from: Nanos, to: Nanos) -> usize {
        self.sent.partition_point(|at| *at < to) - self.sent.partition_point(|at| *at < from)
    }

    /// Returns when the data began.
    pub fn begun(&self) -> Nanos {
        self.source.begins.expect("data began")
    }

    /// Returns the names of the notices, with their times in seconds since the data began.
    pub fn told(&self) -> Vec<(f64, &'static str)> {
        let begun = self.source.begins.unwrap_or_default();
        let seconds = |at: Nanos| (at.0 as f64 - begun.0 as f64) * 1e-9;
        self.notices
            .iter()
            .map(|notice| (seconds(notice.at), notice.kind.name()))
            .collect()
    }

    /// Returns the names of the notices.
    pub fn names(&self) -> Vec<&'static str> {
        self.notices
            .iter()
            .map(|notice| notice.kind.name())
            .collect()
    }

    /// Returns the first notice with this name, and its time in seconds since the data began.
    pub fn first(&self, name: &str) -> Option<(f64, &Notice)> {
        let notice = self
            .notices
            .iter()
            .find(|notice| notice.kind.name() == name)?;
        Some((notice.at.since(self.begun()).as_secs_f64(), notice))
    }

    /// Returns why the flow was stopped first.
    pub fn stopped(&self) -> Option<Reason> {
        let reason = |notice: &Notice| match notice.kind {
            Kind::Stopped { reason, .. } => Some(reason),
            _ => None,
        };
        self.notices.iter().find_map(reason)
    }

    /// Lowers the rate of the application, in bits of data per second.
    pub fn set_rate(&mut self, rate: u64, now: Nanos) {
        self.sender.set_rate(rate, now);
        self.is_heard_here = true;
        self.source
            .slow(rate as f64 / self.settings.rate as f64, now);
    }

    /// Pauses the data for some seconds.
    pub fn pause(&mut self, seconds: f64) {
        let at = self.source.next_at().unwrap();
        self.source.slowed = Some((
            self.source.next,
            at.plus(Nanos::from_secs_f64(seconds)),
            1.0,
        ));
    }

    /// Replaces the receiver by a new one, as if its program had been started again.
    pub fn restart_receiver(&mut self) {
        self.receiver = Receiver::new(key(), 4712);
        self.reorder = window();
        self.arrivals = Arrivals::default();
        self.overflow = (0, 0);
    }
}
