//! Packet-by-packet simulation of a flow of constant bit rate over one connection and the cells of a path. The only randomness is
//! that of the path's seed.

use std::collections::VecDeque;

use super::backlog::{Backlog, Full};
use super::congestion::Algorithm;
use super::connection::{Connection, Read, Settings};
use super::packet::{HEADERS, Packet};
pub use super::sender::Counting;
use evlbi_core::path::{Law, Network, Output, Piece, Train};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;

/// Length of the Ethernet header, in bytes.
const LINK_HEADER: u32 = 14;
/// Maximum lateness of a message that is on time, relative to the first ones, as a fraction of the round-trip time.
const TIMELY: f64 = 0.1;

/// Flow to simulate.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Bit rate of the payload.
    pub rate: BitRate,
    /// Payload of a segment in bytes; each is a message.
    pub segment: u32,
    /// Congestion control algorithm.
    pub algorithm: Algorithm,
    /// Unit of window growth.
    pub counting: Counting,
    /// Segments per acknowledgement, on average.
    pub per_ack: f64,
    /// Bytes that the sender can hold: not sent yet, or not acknowledged.
    pub buffer: u64,
    /// Behaviour if that is full.
    pub full: Full,
    /// Initial window, in segments; `None` starts with slow start.
    pub window: Option<f64>,
    /// Laws of the path in the outbound direction.
    pub there: Vec<Law>,
    /// Laws of the path in the return direction.
    pub back: Vec<Law>,
    /// Seed of the random choices of both.
    pub seed: u64,
    /// Simulated time.
    pub length: Nanos,
    /// Time between samples.
    pub every: Nanos,
}

/// State of a flow. Data are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time of the sample.
    pub at: Nanos,
    /// Congestion window, in segments.
    pub window: f64,
    /// Threshold of slow start, in segments; infinite before the first loss.
    pub threshold: f64,
    /// Smoothed round-trip time.
    pub round_trip: Nanos,
    /// Segments in flight.
    pub in_flight: u64,
    /// Bytes acknowledged in order so far.
    pub acknowledged: u64,
    /// Bytes due so far.
    pub due: u64,
    /// Bytes accepted by the sender and not acknowledged yet.
    pub held: u64,
    /// Segments retransmitted so far.
    pub sent_again: u64,
    /// Messages that have arrived.
    pub message: u64,
    /// Delay of the last of them after its due time.
    pub delay: Nanos,
}

/// Result of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Messages due.
    pub messages: u64,
    /// Messages shed.
    pub shed: u64,
    /// Messages delivered, in order.
    pub delivered: u64,
    /// Segments retransmitted.
    pub sent_again: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Minimum delay of a message after its due time.
    pub shortest: Nanos,
    /// Maximum delay of a message after its due time.
    pub longest: Nanos,
    /// When messages were first late.
    pub late_from: Option<Nanos>,
    /// When they were on time again, and remained so.
    pub timely_from: Option<Nanos>,
    /// Maximum number of late bytes: due so early that they should have arrived.
    pub delayed: u64,
    /// Maximum number of bytes that the sender held.
    pub held: u64,
    /// First reduction of the window.
    pub reduced_at: Option<Nanos>,
    /// When the window had recovered.
    pub regained_at: Option<Nanos>,
    /// Time for which messages were blocked in front of the buffer.
    pub blocked: Nanos,
}

/// Flow in progress: two endpoints that are connected from the start.
struct Flow<'a> {
    scene: &'a Scene,
    network: Network<Packet>,
    routes: [usize; 2],
    /// Sending and receiving endpoint.
    ends: [Connection; 2],
    /// Messages until they are acknowledged; this, and not the connection's send buffer, can be full.
    backlog: Backlog,
    acknowledged: u64,
    /// Due times of the messages that have not arrived.
    waiting: VecDeque<Nanos>,
    /// Packets that arrive at the same time; the buffer is reused.
    arriving: Vec<(usize, Packet)>,
    last_delay: Nanos,
    /// Window before the first reduction.
    before: f64,
    outcome: Outcome,
}

impl Scene {
    /// Simulates the flow, and calls `observe` for each sample.
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
    /// Returns when the next event is due.
    fn next(&self) -> Nanos {
        let backlog = &self.backlog;
        // A blocked message is admitted when an acknowledgement arrives.
        let message = (!backlog.is_blocked()).then(|| backlog.next_due());
        let [sender, receiver] = self.ends.each_ref().map(Connection::next_at);
        let all = [message, self.network.next(), sender, receiver];
        all.into_iter().flatten().min().unwrap_or(Nanos(u64::MAX))
    }

    fn advance(&mut self, now: Nanos) {
        let mut arriving = std::mem::take(&mut self.arriving);
        let receiver = self.routes[0];
        self.network.advance(now, |output| {
            // A packet with a wrong checksum is lost.
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

    /// Handles an acknowledgement: messages leave the backlog, and the window may have shrunk or recovered.
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

    /// Writes messages that are due, as long as the backlog has room.
    fn admit(&mut self, now: Nanos) {
        let first = self.backlog.due();
        self.backlog.admit(now);
        let end = self.backlog.due();
        self.backlog.stuck(now);
        let due = (first..end).map(|message| self.backlog.due_at(message));
        self.waiting.extend(due);
        // A connection that has timed out accepts nothing: then everything waits.
        let _ = self.ends[0].write_blank((end - first) * u64::from(self.scene.segment));
    }

    /// Reads data that have arrived in order.
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

    /// Sends packets of an endpoint along the path.
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
            held: self.backlog.max_bytes(),
            blocked: self.backlog.blocked(self.scene.length),
            sent_again: sender.sent_again,
            timeouts: sender.timeouts,
            ..self.outcome
        }
    }
}
