//! One thread of a relay: takes frames from hosts, sends them through the network of cells, and delivers them.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use evlbi_core::path::{CellId, Law, Line, Marks, Network, Output, Piece};
use evlbi_core::time::Nanos;
use evlbi_net::clock::{pollfd, readable};
use evlbi_net::path::Tap;
use evlbi_net::ring;

use super::frames::{Handle, Packet, Pool};
use super::turns::Turns;
use super::{HostSnapshot, LOGGED, Lateness, Part, Shared};
use crate::frame::{Frame, MAX};
use crate::plan::{Direction, Plan};

/// Maximum frames taken from a host before others are served.
const AT_ONCE: usize = 64;
/// Maximum interval between segments of a packet that are delivered together: no host can tell the difference.
const TOGETHER: Nanos = Nanos(4_000);
/// Divisor of the initially free memory for frames in flight in one direction; frames beyond that are dropped and counted as overrun.
const MEMORY_SHARE: u64 = 4;
/// Default for free memory in bytes, if the kernel does not report it.
const FREE_MEMORY: u64 = 4 << 30;

fn host_of(address: [u8; 6]) -> Option<usize> {
    let number = usize::from(u16::from_be_bytes([address[4], address[5]]));
    (address[..4] == [0x02, 0x65, 0x76, 0x6c] && number > 0).then(|| number - 1)
}

/// Returns the number of a direction among all.
fn place_of(direction: Direction) -> usize {
    2 * direction.link + usize::from(direction.backward)
}

/// One thread of a relay.
pub struct Worker<'a> {
    plan: &'a Plan,
    taps: &'a [Tap],
    shared: &'a Shared,
    /// The hosts whose frames it takes.
    hosts: Vec<usize>,
    network: Network<Handle>,
    /// The direction of each route, and its line.
    routes: Vec<(Direction, Line)>,
    /// The route over each direction, by [`place_of`]; `None` if another thread serves it.
    route_of: Vec<Option<usize>>,
    pool: Rc<RefCell<Pool>>,
    scratch: Vec<u8>,
    /// Memory into which a packet is read.
    reading: Vec<u8>,
    /// Counters of all hosts.
    counts: Vec<HostSnapshot>,
    late: (u64, u128, u64),
    turns: Turns,
    most_memory: u64,
    logs: bool,
}

impl<'a> Worker<'a> {
    /// Creates the worker of the current thread for the directions of `group`.
    pub fn new(
        plan: &'a Plan,
        taps: &'a [Tap],
        group: &[Direction],
        shared: &'a Shared,
        logs: bool,
    ) -> Worker<'a> {
        let mut network = Network::new();
        let mut routes = Vec::new();
        let mut route_of = vec![None; 2 * plan.links.len()];
        for direction in group {
            let cells = plan.cells(*direction);
            let laws = cells.iter().map(|cell| cell.law.clone());
            let line = network.line(laws, plan.seed_of(*direction));
            for (id, cell) in line.cells.iter().zip(cells) {
                for (at, law) in &cell.changes {
                    network.cell_mut(*id).change_at(*at, law.clone());
                }
                if logs {
                    network.cell_mut(*id).log(LOGGED);
                }
            }
            route_of[place_of(*direction)] = Some(network.route(&[&line]));
            routes.push((*direction, line));
        }
        let starts = |node: usize| group.iter().any(|direction| plan.from(*direction) == node);
        let hosts = (0..plan.nodes.len()).filter(|node| starts(*node));
        Worker {
            plan,
            taps,
            shared,
            hosts: hosts.filter_map(|node| plan.host_at(node)).collect(),
            network,
            routes,
            route_of,
            pool: Rc::default(),
            scratch: Vec::with_capacity(MAX),
            reading: vec![0; MAX],
            counts: vec![HostSnapshot::default(); taps.len()],
            late: (0, 0, 0),
            // A rate must be kept, even if the hosts starve.
            turns: Turns::new(
                (group.iter())
                    .flat_map(|direction| plan.cells(*direction))
                    .any(|cell| matches!(cell.law, Law::Rate { .. })),
            ),
            most_memory: ring::available().unwrap_or(FREE_MEMORY) / MEMORY_SHARE,
            logs,
        }
    }

    /// Relays until it must stop.
    ///
    /// # Errors
    /// Returns an error if a device has failed.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let taps = self.hosts.iter().map(|host| &self.taps[*host]);
        let mut polled: Vec<pollfd> = taps.map(readable).collect();
        let mut outputs = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let mut moved = false;
            for place in 0..self.hosts.len() {
                moved |= self.take_from(self.hosts[place])?;
            }
            // Packets that fall due during delivery wait until hosts have been polled.
            let now = self.turns.now();
            loop {
                self.network.advance(now, |output| outputs.push(output));
                if outputs.is_empty() {
                    break;
                }
                moved = true;
                self.deliver(&mut outputs);
            }
            self.look_after();
            if moved {
                self.turns.pause();
            } else {
                self.turns.nap(self.network.next(), &mut polled);
            }
            self.turns.take();
        }
        self.publish();
        Ok(())
    }

    /// Takes the frames that a host has sent. A frame's time is when it is read, not before, so that none leaves early.
    fn take_from(&mut self, host: usize) -> io::Result<bool> {
        let mut moved = false;
        for _ in 0..AT_ONCE {
            let Some(length) = self.taps[host].read(&mut self.reading)? else {
                break;
            };
            moved = true;
            let at = self.turns.now();
            let Some(frame) = Frame::new(&self.reading[..length]) else {
                continue;
            };
            let (train, link_header) = (frame.train(), frame.link_header());
            let to = frame.destination();
            let counts = &mut self.counts[host];
            counts.sent += u64::from(train.count);
            if self.pool.borrow().used > self.most_memory {
                counts.overrun += u64::from(train.count);
                continue;
            }
            let mut buffer = self.pool.borrow_mut().take(length, self.most_memory);
            if buffer.len() == self.reading.len() {
                std::mem::swap(&mut buffer, &mut self.reading);
            } else {
                buffer[..length].copy_from_slice(&self.reading[..length]);
            }
            let packet = Handle(Rc::new(Packet {
                buffer,
                length,
                train,
                link_header,
                to,
                pool: Rc::clone(&self.pool),
            }));
            let piece = Piece::whole(at, &train);
            self.forward(self.plan.node_of(host), None, &packet, piece);
        }
        Ok(moved)
    }

    /// Forwards a packet from a node.
    fn forward(&mut self, node: usize, from: Option<usize>, packet: &Handle, piece: Piece) {
        let to = packet.0.to;
        let host = host_of(to).filter(|host| *host < self.taps.len());
        let next = host.and_then(|host| self.plan.next(node, self.plan.node_of(host)));
        match (host, next) {
            (_, Some(direction)) => self.offer(direction, packet, piece),
            // To all.
            (None, None) if to[0] & 1 == 1 => {
                for direction in self.plan.leaving(node) {
                    if Some(direction.link) != from {
                        self.offer(direction, packet, piece);
                    }
                }
            }
            (host, None) => {
                let host = host.or(self.plan.host_at(node)).unwrap_or(0);
                self.counts[host].astray += u64::from(piece.count);
            }
        }
    }

    fn offer(&mut self, direction: Direction, packet: &Handle, piece: Piece) {
        let Some(route) = self.route_of[place_of(direction)] else {
            return;
        };
        let (train, link_header) = (packet.0.train, packet.0.link_header);
        self.network
            .offer(route, packet.clone(), train, piece, link_header);
    }

    /// Delivers what has arrived, or forwards it.
    fn deliver(&mut self, outputs: &mut Vec<Output<Handle>>) {
        let mut waiting: Option<(usize, Handle, Piece)> = None;
        for output in outputs.drain(..) {
            match output {
                Output::Delivered {
                    route,
                    packet,
                    piece,
                } => {
                    let direction = self.routes[route].0;
                    let node = self.plan.to(direction);
                    let to = packet.0.to;
                    let here = self.plan.host_at(node);
                    let is_its = host_of(to) == here;
                    if here.is_none() || !is_its {
                        self.forward(node, Some(direction.link), &packet, piece);
                    }
                    let Some(host) = here.filter(|_| is_its || to[0] & 1 == 1) else {
                        continue;
                    };
                    // Segments of one packet, one directly after the other.
                    if let Some((at, before, joined)) = &mut waiting
                        && *at == host
                        && Rc::ptr_eq(&before.0, &packet.0)
                        && joined.first + joined.count == piece.first
                        && joined.marks == Marks::default()
                        && piece.marks == Marks::default()
                        && piece.at.since(joined.at) < TOGETHER
                    {
                        joined.count += piece.count;
                        joined.at = piece.at;
                        continue;
                    }
                    if let Some((host, packet, piece)) = waiting.replace((host, packet, piece)) {
                        self.hand_over(host, &packet, &piece);
                    }
                }
                Output::TooLong { packet, longest } => self.tell(&packet, longest),
            }
        }
        if let Some((host, packet, piece)) = waiting {
            self.hand_over(host, &packet, &piece);
        }
    }

    fn hand_over(&mut self, host: usize, packet: &Handle, piece: &Piece) {
        let is_whole = piece.count == packet.0.train.count && piece.marks == Marks::default();
        let taken = if is_whole {
            self.taps[host].write(packet.0.bytes())
        } else {
            let Some(frame) = Frame::new(packet.0.bytes()) else {
                return;
            };
            frame.cut(piece, &mut self.scratch);
            self.taps[host].write(&self.scratch)
        };
        let counts = &mut self.counts[host];
        if taken {
            counts.received += u64::from(piece.count);
        } else {
            counts.refused += u64::from(piece.count);
        }
        let late = self.turns.now().since(piece.at).0;
        let (frames, sum, most) = &mut self.late;
        *frames += 1;
        *sum += u128::from(late);
        *most = (*most).max(late);
    }

    /// Notifies the sender of a packet that was too long. The message comes from the packet's destination, at once.
    fn tell(&mut self, packet: &Handle, longest: u32) {
        let message = Frame::new(packet.0.bytes()).and_then(|frame| frame.too_long(longest));
        let Some(message) = message else {
            return;
        };
        let to = Frame::new(&message).and_then(|frame| host_of(frame.destination()));
        if let Some(host) = to.filter(|host| *host < self.taps.len()) {
            self.taps[host].write(&message);
        }
    }

    /// Applies requested changes, and publishes the state.
    fn look_after(&mut self) {
        // The client then knows about changes that were made before.
        let asked = self.shared.asked.load(Ordering::Acquire);
        for (direction, cell, law) in std::mem::take(&mut *self.shared.changes.lock()) {
            if let Some(id) = self.cell(direction, cell) {
                let now = self.turns.now();
                self.network.cell_mut(id).change(now, law);
            }
        }
        let is_asked = self.shared.answered.load(Ordering::Relaxed) < asked;
        if is_asked || self.has_much_to_log() {
            self.publish();
            self.shared.answered.store(asked, Ordering::Release);
        }
    }

    fn has_much_to_log(&self) -> bool {
        let mut cells = self.routes.iter().flat_map(|(_, line)| &line.cells);
        self.logs && cells.any(|id| self.network.cell(*id).logged() > LOGGED / 2)
    }

    fn cell(&self, direction: Direction, cell: usize) -> Option<CellId> {
        let route = self.route_of[place_of(direction)]?;
        self.routes[route].1.cells.get(cell).copied()
    }

    fn publish(&mut self) {
        let (mut counted, mut lines) = (Vec::new(), Vec::new());
        for (direction, line) in &self.routes {
            for (number, id) in line.cells.iter().enumerate() {
                let place = (*direction, number);
                let cell = self.network.cell_mut(*id);
                if self.logs {
                    lines.extend(cell.take_log().into_iter().map(|logged| (place, logged)));
                }
                counted.push((place, cell.truth().clone()));
            }
        }
        let (frames, sum, most) = self.late;
        self.shared.log.lock().extend(lines);
        *self.shared.snapshot.lock() = Part {
            cells: counted,
            hosts: self.counts.clone(),
            lateness: Lateness {
                frames,
                mean_s: sum as f64 * 1e-9 / frames.max(1) as f64,
                max_s: most as f64 * 1e-9,
                memory: self.pool.borrow().made,
                first_of_all: self.turns.share_first(),
            },
            error: None,
        };
    }
}
