//! A flow of constant bit rate over one connection, packet by packet over the cells of a path: a simulation without chance
//! but that of the path's own seed.

use std::collections::VecDeque;

use super::backlog::{Backlog, Full};
use super::congestion::Algorithm;
use super::connection::{Connection, Read, Settings};
use super::packet::{HEADERS, Packet};
pub use super::sender::Counting;
use evlbi_core::path::{Law, Network, Output, Piece, Train};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;

/// Ethernet's.
const LINK_HEADER: u32 = 14;
/// A message is timely when it comes no later after its time than the first ones by so much of the round trip.
const TIMELY: f64 = 0.1;

/// A flow to simulate.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Of the payload.
    pub rate: BitRate,
    /// Payload of a segment in bytes; each is a message.
    pub segment: u32,
    /// By which the window goes.
    pub algorithm: Algorithm,
    /// What it grows by.
    pub counting: Counting,
    /// Segments for each acknowledgement, on average.
    pub per_ack: f64,
    /// Bytes that the sender holds: not sent yet, and not acknowledged.
    pub buffer: u64,
    /// What happens where these are too few.
    pub full: Full,
    /// The window at the beginning; without one it begins with slow start.
    pub window: Option<f64>,
    /// What the path does on the way there.
    pub there: Vec<Law>,
    /// And on the way back.
    pub back: Vec<Law>,
    /// From which the chance of both follows.
    pub seed: u64,
    /// How long it is simulated.
    pub length: Nanos,
    /// Time between samples.
    pub every: Nanos,
}

/// A flow at a moment. Data in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When.
    pub at: Nanos,
    /// Congestion window in segments.
    pub window: f64,
    /// Slow start's, in segments; infinite before the first loss.
    pub threshold: f64,
    /// Smoothed.
    pub round_trip: Nanos,
    /// Segments.
    pub in_flight: u64,
    /// In order, so far.
    pub acknowledged: u64,
    /// What should have left by now.
    pub due: u64,
    /// Accepted by the sender, and not acknowledged yet.
    pub held: u64,
    /// Segments so far.
    pub sent_again: u64,
    /// Messages that have come.
    pub message: u64,
    /// How long after its time the last of them came.
    pub delay: Nanos,
}

/// What a flow came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Messages that were due.
    pub messages: u64,
    /// Given up, of these.
    pub shed: u64,
    /// Come, in order.
    pub delivered: u64,
    /// Segments.
    pub sent_again: u64,
    /// Times that nothing came for too long.
    pub timeouts: u64,
    /// Shortest delay of a message after its time.
    pub shortest: Nanos,
    /// Longest.
    pub longest: Nanos,
    /// When messages were late first.
    pub late_from: Option<Nanos>,
    /// When they were timely again, and remained so.
    pub timely_from: Option<Nanos>,
    /// Most bytes that were late: due so much earlier that they should have come.
    pub delayed: u64,
    /// Most bytes that the sender held.
    pub held: u64,
    /// First reduction of the window.
    pub reduced_at: Option<Nanos>,
    /// When it was as before again.
    pub regained_at: Option<Nanos>,
    /// How long messages were blocked before the buffer.
    pub blocked: Nanos,
}

/// A flow in progress: two ends that are connected from the beginning.
struct Flow<'a> {
    scene: &'a Scene,
    network: Network<Packet>,
    routes: [usize; 2],
    /// The one that sends and the one that receives.
    ends: [Connection; 2],
    /// Messages until they are acknowledged: it, and not the connection's send buffer, is what is full.
    backlog: Backlog,
    acknowledged: u64,
    /// Due times of the messages that have not arrived.
    waiting: VecDeque<Nanos>,
    /// What arrives at a moment: memory that is kept.
    arriving: Vec<(usize, Packet)>,
    last_delay: Nanos,
    /// Window before the first reduction.
    before: f64,
    outcome: Outcome,
}

impl Scene {
    /// Simulates it, with samples for `observe`.
    pub fn run(&self, mut observe: impl FnMut(&Sample)) -> Outcome {
        let mut network = Network::new();
        let there = network.line(self.there.iter().cloned(), self.seed);
        let back = network.line(self.back.iter().cloned(), self.seed.wrapping_add(1));
        let routes = [network.route(&[&there]), network.route(&[&back])];
        let settings = Settings {
            algorithm: self.algorithm,
            counting: self.counting,
            per_ack: self.per_ack,
            segment: self.segment,
            send_buffer: u64::MAX,
            receive_buffer: u64::MAX,
            window: self.window,
        };
        let room = self.buffer / u64::from(self.segment);
        let mut flow = Flow {
            scene: self,
            network,
            routes,
            ends: Connection::pair([settings, settings]),
            backlog: Backlog::new(self.rate, self.segment as usize, room, self.full),
            acknowledged: 0,
            waiting: VecDeque::new(),
            arriving: Vec::new(),
            last_delay: Nanos::default(),
            before: 0.0,
            outcome: Outcome {
                shortest: Nanos(u64::MAX),
                ..Outcome::default()
            },
        };
        let mut sample_at = Nanos::default();
        loop {
            let now = flow.next();
            while sample_at <= now.min(self.length) {
                observe(&flow.sample(sample_at));
                sample_at = sample_at.plus(self.every.max(Nanos(1)));
            }
            if now > self.length {
                break;
            }
            flow.advance(now);
        }
        flow.finish()
    }
}

impl Flow<'_> {
    /// When something happens next.
    fn next(&self) -> Nanos {
        let backlog = &self.backlog;
        // A message that is blocked goes in when something is acknowledged.
        let message = (!backlog.is_blocked()).then(|| backlog.next_due());
        let [sender, receiver] = self.ends.each_ref().map(Connection::next_at);
        let all = [message, self.network.next(), sender, receiver];
        all.into_iter().flatten().min().unwrap_or(Nanos(u64::MAX))
    }

    fn advance(&mut self, now: Nanos) {
        let mut arriving = std::mem::take(&mut self.arriving);
        let receiver = self.routes[0];
        self.network.advance(now, |output| {
            // A wrong checksum makes a packet a lost one.
            if let Output::Delivered {
                route,
                packet,
                piece,
            } = output
                && piece.marks.corrupt.is_none()
            {
                arriving.push((usize::from(route == receiver), packet));
            }
        });
        for (end, packet) in arriving.drain(..) {
            match end {
                0 => self.acknowledge(&packet, now),
                _ => {
                    self.ends[1].handle(&packet, now);
                    self.deliver(now);
                    self.send(1, now);
                }
            }
        }
        self.arriving = arriving;
        self.send(1, now);
        self.admit(now);
        self.send(0, now);
    }

    /// An acknowledgement arrives: messages leave the backlog, and the window may be reduced or regained.
    fn acknowledge(&mut self, packet: &Packet, now: Nanos) {
        let [sender, _] = &mut self.ends;
        let (was_open, window) = (sender.sender().is_open(), sender.sender().window);
        sender.handle(packet, now);
        let sender = sender.sender();
        self.backlog.gone(sender.first - self.acknowledged);
        self.acknowledged = sender.first;
        let outcome = &mut self.outcome;
        if was_open && !sender.is_open() && outcome.reduced_at.is_none() {
            (self.before, outcome.reduced_at) = (window, Some(now));
        }
        let is_regained = sender.is_open() && sender.window >= self.before.floor();
        if outcome.reduced_at.is_some() && is_regained {
            outcome.regained_at.get_or_insert(now);
        }
    }

    /// Messages that are due are written, as long as the backlog has room.
    fn admit(&mut self, now: Nanos) {
        let first = self.backlog.due();
        self.backlog.admit(now);
        let end = self.backlog.due();
        self.backlog.stuck(now);
        let due = (first..end).map(|message| self.backlog.due_at(message));
        self.waiting.extend(due);
        // A connection that has timed out takes nothing: then it all waits.
        let _ = self.ends[0].write_blank((end - first) * u64::from(self.scene.segment));
    }

    /// What has arrived in order goes to the reader.
    fn deliver(&mut self, now: Nanos) {
        let Ok(Read::Bytes(bytes)) = self.ends[1].discard(u64::MAX) else {
            return;
        };
        for _ in 0..bytes / u64::from(self.scene.segment) {
            let Some(due_at) = self.waiting.pop_front() else {
                return;
            };
            self.outcome.delivered += 1;
            let delay = now.since(due_at);
            self.last_delay = delay;
            let outcome = &mut self.outcome;
            outcome.shortest = outcome.shortest.min(delay);
            outcome.longest = outcome.longest.max(delay);
            let late = delay.since(outcome.shortest);
            let round_trip = self.ends[0].sender().smoothed_round_trip();
            if late.0 as f64 > TIMELY * round_trip.0 as f64 {
                outcome.late_from.get_or_insert(now);
                outcome.timely_from = None;
            } else if outcome.late_from.is_some() {
                outcome.timely_from.get_or_insert(now);
            }
            // Data that the flow sends in that time.
            let bytes = late.as_secs_f64() * self.scene.rate.get() as f64 / 8.0;
            outcome.delayed = outcome.delayed.max(bytes as u64);
        }
    }

    /// Puts on the path what an end sends.
    fn send(&mut self, end: usize, now: Nanos) {
        while let Some(packet) = self.ends[end].next_packet(now) {
            let train = Train::single(packet.length() + HEADERS + LINK_HEADER);
            let piece = Piece::whole(now, &train);
            self.network
                .offer(self.routes[end], packet, train, piece, LINK_HEADER);
        }
    }

    fn sample(&self, at: Nanos) -> Sample {
        let segment = u64::from(self.scene.segment);
        let sender = self.ends[0].sender();
        Sample {
            at,
            window: sender.window,
            threshold: sender.threshold,
            round_trip: sender.smoothed_round_trip(),
            in_flight: sender.in_flight(),
            acknowledged: sender.first * segment,
            due: self.backlog.due() * segment,
            held: self.backlog.bytes(),
            sent_again: sender.sent_again,
            message: self.outcome.delivered,
            delay: self.last_delay,
        }
    }

    fn finish(self) -> Outcome {
        let sender = self.ends[0].sender();
        Outcome {
            messages: self.backlog.due(),
            shed: self.backlog.shed(),
            held: self.backlog.most_bytes(),
            blocked: self.backlog.blocked(self.scene.length),
            sent_again: sender.sent_again,
            timeouts: sender.timeouts,
            ..self.outcome
        }
    }
}
