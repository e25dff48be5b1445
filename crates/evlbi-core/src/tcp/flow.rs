//! A flow of constant bit rate over one connection, packet by packet over the cells of a path: a simulation without chance
//! but that of the path's own seed.

use std::collections::VecDeque;

use super::backlog::{self, Full};
use super::law::Algorithm;
use super::receiver::{Ack, Receiver};
pub use super::sender::Counting;
use super::sender::Sender;
use crate::path::{Identity, Law, Network, Output, Piece, Train};
use crate::rate::BitRate;
use crate::time::Nanos;

/// IPv4's and TCP's headers, with time stamps (RFC 7323), in bytes.
const HEADERS: u32 = 52;
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

#[derive(Clone, Copy, Debug)]
enum Packet {
    Data { segment: u64, left: Nanos },
    Ack(Ack),
}

impl Identity for Packet {
    fn identity(&self, _segment: u16) -> u64 {
        match self {
            Packet::Data { segment, .. } => *segment,
            Packet::Ack(ack) => ack.next,
        }
    }
}

/// A flow under way.
struct Flow<'a> {
    scene: &'a Scene,
    network: Network<Packet>,
    routes: [usize; 2],
    sender: Sender,
    receiver: Receiver,
    /// Messages that were due so far, and when the next is.
    due: u64,
    next_due: Nanos,
    /// Of these, accepted; and how many the send buffer holds.
    accepted: u64,
    room: u64,
    /// Times at which those were due that have not come.
    waiting: VecDeque<Nanos>,
    blocked_since: Option<Nanos>,
    /// What comes at a moment: memory that is kept.
    come: Vec<Packet>,
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
        let mut flow = Flow {
            scene: self,
            network,
            routes,
            sender: Sender::new(self.algorithm.begin(), self.counting, self.window),
            receiver: Receiver::new(self.per_ack),
            due: 0,
            next_due: Nanos::default(),
            accepted: 0,
            room: (self.buffer / u64::from(self.segment)).max(1),
            waiting: VecDeque::new(),
            blocked_since: None,
            come: Vec::new(),
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
        // A message that waits goes in when something is acknowledged.
        let message = self.blocked_since.is_none().then_some(self.next_due);
        let all = [
            message,
            self.network.next(),
            self.receiver.until,
            self.sender.timeout_at,
        ];
        all.into_iter().flatten().min().unwrap_or(Nanos(u64::MAX))
    }

    fn advance(&mut self, now: Nanos) {
        let mut come = std::mem::take(&mut self.come);
        self.network.advance(now, |output| {
            if let Output::Delivered { packet, .. } = output {
                come.push(packet);
            }
        });
        for packet in come.drain(..) {
            match packet {
                Packet::Data { segment, left } => {
                    let ack = self.receiver.take(segment, left, now);
                    self.deliver(now);
                    if let Some(ack) = ack {
                        self.put(1, Packet::Ack(ack), 0, now);
                    }
                }
                Packet::Ack(ack) => {
                    let was_open = self.sender.is_open();
                    let window = self.sender.window;
                    self.sender.acknowledged(&ack, now);
                    let is_open = self.sender.is_open();
                    let outcome = &mut self.outcome;
                    if was_open && !is_open && outcome.reduced_at.is_none() {
                        (self.before, outcome.reduced_at) = (window, Some(now));
                    }
                    let is_regained = is_open && self.sender.window >= self.before.floor();
                    if outcome.reduced_at.is_some() && is_regained {
                        outcome.regained_at.get_or_insert(now);
                    }
                }
            }
        }
        self.come = come;
        if self.receiver.until.is_some_and(|until| until <= now) {
            let ack = self.receiver.ack(None);
            self.put(1, Packet::Ack(ack), 0, now);
        }
        if self.sender.timeout_at.is_some_and(|at| at <= now) {
            self.outcome.timeouts += 1;
            self.sender.timed_out(now);
        }
        self.accept(now);
        while let Some(segment) = self.sender.send(self.accepted, now) {
            let data = Packet::Data { segment, left: now };
            self.put(0, data, self.scene.segment, now);
        }
        self.sender.has_sent();
    }

    /// Messages that are due go into the send buffer, as long as it has room.
    fn accept(&mut self, now: Nanos) {
        while self.next_due <= now {
            let due_at = self.next_due;
            let has_room = self.accepted - self.sender.first < self.room;
            if !has_room && self.scene.full == Full::Block {
                self.blocked_since.get_or_insert(now);
                break;
            }
            self.due += 1;
            let size = u64::from(self.scene.segment);
            self.next_due = backlog::due_at(self.scene.rate, size, self.due);
            if has_room {
                self.accepted += 1;
                self.waiting.push_back(due_at);
                if let Some(since) = self.blocked_since.take() {
                    self.outcome.blocked = self.outcome.blocked.plus(now.since(since));
                }
            } else {
                self.outcome.shed += 1;
            }
        }
        self.outcome.held = self.outcome.held.max(self.held());
    }

    fn held(&self) -> u64 {
        (self.accepted - self.sender.first) * u64::from(self.scene.segment)
    }

    /// What has come in order goes to the reader.
    fn deliver(&mut self, now: Nanos) {
        while self.outcome.delivered < self.receiver.next {
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
            let round_trip = self.sender.smoothed_round_trip();
            if late.0 as f64 > TIMELY * round_trip.0 as f64 {
                outcome.late_from.get_or_insert(now);
                outcome.timely_from = None;
            } else if outcome.late_from.is_some() {
                outcome.timely_from.get_or_insert(now);
            }
            // At the rate of the flow, what is late is so much data.
            let bytes = late.as_secs_f64() * self.scene.rate.get() as f64 / 8.0;
            outcome.delayed = outcome.delayed.max(bytes as u64);
        }
    }

    fn put(&mut self, way: usize, packet: Packet, payload: u32, now: Nanos) {
        let train = Train::single(payload + HEADERS + LINK_HEADER);
        let piece = Piece::whole(now, &train);
        self.network
            .offer(self.routes[way], packet, train, piece, LINK_HEADER);
    }

    fn sample(&self, at: Nanos) -> Sample {
        let segment = u64::from(self.scene.segment);
        Sample {
            at,
            window: self.sender.window,
            threshold: self.sender.threshold,
            round_trip: self.sender.smoothed_round_trip(),
            in_flight: self.sender.in_flight(),
            acknowledged: self.sender.first * segment,
            due: self.due * segment,
            held: self.held(),
            sent_again: self.sender.sent_again,
            message: self.outcome.delivered,
            delay: self.last_delay,
        }
    }

    fn finish(mut self) -> Outcome {
        if let Some(since) = self.blocked_since {
            let blocked = self.scene.length.since(since);
            self.outcome.blocked = self.outcome.blocked.plus(blocked);
        }
        self.outcome.messages = self.due;
        self.outcome.sent_again = self.sender.sent_again;
        self.outcome
    }
}
