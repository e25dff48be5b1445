//! A sender's round trips, and what limited it in each: the application, the receiver, loss, a full path, its window.
//!
//! Based on the root causes of Siekkinen et al. 2005 and the bottlenecks of Sansa 2006. Data in flight are estimated as the
//! sender sees them, wherever the capture was taken. When a packet left, the sender knew the acknowledgements whose timestamps
//! the packet echoes (RFC 7323). Without timestamps, it knew those that had passed the capture point one round trip (between the
//! capture point and the sender) earlier.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Extent;

/// Finest resolution of timestamps, in nanoseconds.
const FINE: u64 = 1_000_000;
/// Maximum number of acknowledgements in transit to the sender that are remembered.
const MAX_WAITING: usize = 1 << 16;
/// Number of rounds over which growth of the window is detected, and its minimum growth: in segments, and as a fraction (1/n).
const GROWTH: usize = 16;
const GROWN: u64 = 2;
const GROWN_PART: u64 = 10;
/// Growth factor per round above which a window is in slow start.
const SLOW_START: f64 = 1.1;
/// Fraction of its recent maximum in flight below which a sender without losses had no more to send.
const PART: f64 = 0.5;
/// Time after an acknowledgement, in nanoseconds, within which a packet is a response to it: an application that waited for room
/// has woken up by then.
const AT_ONCE: u64 = 200_000;
/// Fraction of the time covered by such intervals above which responses cannot be distinguished.
const COVERED: f64 = 0.3;
/// Fraction of bursts that respond to an acknowledgement below which the application sends by its own clock.
const ANSWERED: f64 = 0.6;
/// Factor by which round-trip times exceed the minimum if there is a queue, and a constant in nanoseconds.
const QUEUE: f64 = 1.25;
const QUEUE_TIME: f64 = 500_000.0;
/// Minimum idle time, in nanoseconds.
const MIN_IDLE: u64 = 1_000_000;

/// Limits of a sender, as fractions of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitedBy {
    /// Application: all data were acknowledged and nothing was sent, or less was in flight than possible.
    pub application: f64,
    /// Receiver's window.
    pub receiver: f64,
    /// Repair of losses.
    pub repair: f64,
    /// Path: round-trip times exceed the minimum, so there is a queue.
    pub path: f64,
    /// Congestion window, while it was growing.
    pub window: f64,
    /// Sender, which did not send more although nothing else limited it: an application with a rate of its own, its send buffer,
    /// or a constant congestion window.
    pub sender: f64,
}

impl LimitedBy {
    /// Converts times to fractions of their sum.
    fn in_parts(mut self) -> LimitedBy {
        let parts = [
            &mut self.application,
            &mut self.receiver,
            &mut self.repair,
            &mut self.path,
            &mut self.window,
            &mut self.sender,
        ];
        let all: f64 = parts.iter().map(|part| **part).sum();
        for part in parts {
            *part /= all.max(1.0);
        }
        self
    }
}

/// Times in which nothing was in flight and nothing was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Idle {
    /// Number of idle times that exceeded a round trip and 1 ms.
    pub periods: u64,
    /// Total time, in seconds.
    pub seconds: f64,
    /// Longest time, in seconds.
    pub longest: f64,
}

/// Acknowledgement in transit to the sender.
#[derive(Clone, Copy, Debug)]
struct Ack {
    /// Expected arrival at the sender.
    at: u64,
    stamp: Option<u32>,
    acknowledged: u64,
    selected: u64,
    edge: Option<u64>,
}

/// One round trip: from when data leave until they are acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    from: u64,
    /// Data acknowledged at the start; the round ends when the data up to `end` are.
    base: u64,
    mark: u64,
    /// Bytes in flight times nanoseconds.
    area: f64,
    top: u64,
    is_at_edge: bool,
    repairs: bool,
    acks: u64,
    /// Bursts of data, and those that respond to an acknowledgement.
    bursts: u64,
    answered: u64,
    shortest_trip: Option<u64>,
}

/// Results for a sender; [`DirectionReport`](super::DirectionReport) describes the fields.
pub struct Found {
    pub flight: Option<Extent>,
    pub behind: Option<f64>,
    pub path_rate: Option<f64>,
    pub held_back: LimitedBy,
    pub idle: Idle,
}

/// Reconstructed state of a sender.
#[derive(Debug, Default)]
pub struct Rounds {
    behind: Option<u64>,
    waiting: VecDeque<Ack>,
    now: u64,
    begun: Option<u64>,
    next: u64,
    acknowledged: u64,
    /// Selectively acknowledged bytes after that.
    selected: u64,
    edge: Option<u64>,
    segment: u64,
    round: Option<Round>,
    /// Start of the idle time, if all data are acknowledged.
    idle_since: Option<u64>,
    /// End of the data sent before a loss was repaired: the repair lasts until they are acknowledged.
    repaired_at: u64,
    /// Maximum data in flight of earlier rounds since the last loss.
    tops: VecDeque<u64>,
    last_sent: u64,
    unanswered: Option<u64>,
    shortest_trip: Option<u64>,
    /// Times in nanoseconds until the end.
    held: LimitedBy,
    path_bytes: u64,
    idle: Idle,
    flight: Option<Extent>,
    area: f64,
}

impl Rounds {
    /// Notes a round-trip time from the capture point to the sender; the minimum is kept.
    pub fn behind(&mut self, time: u64) {
        self.behind = Some(self.behind.map_or(time, |shortest| shortest.min(time)));
    }

    pub fn is_behind(&self) -> Option<u64> {
        self.behind
    }

    /// Sets the first sequence number of data.
    pub fn begins_at(&mut self, next: u64) {
        (self.next, self.acknowledged) = (next, next);
    }

    /// Notes new data up to this number, and the data in flight including them.
    pub fn sends(
        &mut self,
        at: u64,
        next: u64,
        echo: Option<u32>,
        [length, full]: [u32; 2],
    ) -> u64 {
        self.come_to(at, echo);
        self.segment = full.into();
        if self.begun.is_none() {
            (self.begun, self.now) = (Some(at), at);
            let first = next.saturating_sub(length.into());
            self.acknowledged = self.acknowledged.max(first);
        }
        self.pass(at);
        self.next = self.next.max(next);
        if let Some(since) = self.idle_since.take() {
            self.was_idle(at.saturating_sub(since), self.is_closed());
        }
        let unanswered = self.unanswered.take();
        let is_answer = unanswered.is_some_and(|since| at.saturating_sub(since) <= AT_ONCE);
        let is_burst = unanswered.is_some() || at.saturating_sub(self.last_sent) > AT_ONCE;
        self.last_sent = at;
        let flight = self.flight();
        let end = self.next + self.segment;
        let is_at_edge = self.edge.is_some_and(|edge| end > edge);
        let round = self.round(at);
        round.bursts += u64::from(is_burst);
        round.answered += u64::from(is_answer);
        round.top = round.top.max(flight);
        round.is_at_edge |= is_at_edge;
        let extent = self.flight.get_or_insert(Extent::of(flight));
        extent.most = extent.most.max(flight);
        extent.least = extent.least.min(flight);
        flight
    }

    /// Notes a retransmission.
    pub fn sends_again(&mut self, at: u64, echo: Option<u32>) {
        self.come_to(at, echo);
        self.pass(at);
        self.idle_since = None;
        if self.acknowledged >= self.repaired_at {
            self.repaired_at = self.next;
        }
        self.round(at).repairs = true;
        self.tops.clear();
        self.unanswered = None;
    }

    /// Notes an acknowledgement, which arrives at the sender later.
    pub fn hears(
        &mut self,
        at: u64,
        stamp: Option<u32>,
        [acknowledged, selected]: [u64; 2],
        edge: Option<u64>,
    ) {
        let newest = self.waiting.back();
        if self.begun.is_none() {
            self.waiting.clear();
        } else if newest.map_or(self.acknowledged, |ack| ack.acknowledged) >= self.next {
            // No data are in flight that could show more.
            self.come_to(at, None);
        }
        if self.waiting.len() == MAX_WAITING
            && let Some(first) = self.waiting.pop_front()
        {
            self.learn(first);
        }
        self.waiting.push_back(Ack {
            at: at.saturating_add(self.lag()),
            stamp,
            acknowledged,
            selected,
            edge,
        });
    }

    /// Notes a round-trip time from the capture point to the receiver.
    pub fn took(&mut self, time: u64) {
        let shorter = |trip: Option<u64>| Some(trip.map_or(time, |shortest| shortest.min(time)));
        self.shortest_trip = shorter(self.shortest_trip);
        if let Some(round) = &mut self.round {
            round.shortest_trip = shorter(round.shortest_trip);
        }
    }

    /// Returns the results.
    pub fn finish(mut self, last: u64) -> Found {
        self.come_to(u64::MAX, None);
        self.pass(last);
        // The last round does not show what an application would have sent.
        if let Some(round) = self.round.take() {
            self.close(&round);
        }
        let time = self.now.saturating_sub(self.begun.unwrap_or(0)) as f64;
        Found {
            flight: self.flight.map(|extent| Extent {
                mean: if time > 0.0 { self.area / time } else { 0.0 },
                ..extent
            }),
            behind: self.behind.map(|time| time as f64 * 1e-9),
            path_rate: (self.path_bytes > 0)
                .then(|| self.path_bytes as f64 * 8e9 / self.held.path.max(1.0)),
            held_back: self.held.in_parts(),
            idle: self.idle,
        }
    }

    /// Returns the round-trip time between the capture point and the sender; 0 if that is a negligible fraction of the shortest
    /// round trip.
    fn lag(&self) -> u64 {
        let ahead = self.shortest_trip.unwrap_or(u64::MAX);
        let matters = |behind: &u64| *behind >= FINE || *behind > ahead / 4;
        self.behind.filter(matters).unwrap_or(0)
    }

    /// Returns the current round, or starts one here.
    fn round(&mut self, at: u64) -> &mut Round {
        self.round.get_or_insert(Round {
            from: at,
            base: self.acknowledged,
            mark: self.next,
            ..Round::default()
        })
    }

    fn flight(&self) -> u64 {
        let sent = self.next.saturating_sub(self.acknowledged);
        sent.saturating_sub(self.selected)
    }

    /// Processes the acknowledgements that had arrived at the sender when it sent a packet that passes now with this echo.
    fn come_to(&mut self, at: u64, echo: Option<u32>) {
        let echo = echo.filter(|_| self.lag() >= FINE);
        let has_come = |ack: &mut Ack| match ack.stamp.zip(echo) {
            Some((stamp, echo)) => echo.wrapping_sub(stamp).cast_signed() >= 0,
            None => ack.at <= at,
        };
        while let Some(mut ack) = self.waiting.pop_front_if(has_come) {
            ack.at = ack.at.min(at);
            self.learn(ack);
        }
    }

    fn pass(&mut self, at: u64) {
        let time = at.saturating_sub(self.now) as f64;
        let area = self.flight() as f64 * time;
        self.now = self.now.max(at);
        if self.begun.is_some() {
            self.area += area;
        }
        if let Some(round) = &mut self.round {
            round.area += area;
        }
    }

    fn learn(&mut self, ack: Ack) {
        self.pass(ack.at);
        let was_closed = self.is_closed();
        self.edge = ack.edge.or(self.edge);
        self.selected = ack.selected;
        if let Some(since) = self.idle_since.filter(|_| self.is_closed() != was_closed) {
            self.was_idle(ack.at.saturating_sub(since), was_closed);
            self.idle_since = Some(ack.at);
        }
        if ack.acknowledged <= self.acknowledged {
            return;
        }
        self.acknowledged = ack.acknowledged;
        let Some(round) = &mut self.round else {
            return;
        };
        round.acks += 1;
        self.unanswered = Some(ack.at);
        let acknowledged = self.acknowledged;
        let Some(round) = self.round.take_if(|round| acknowledged >= round.mark) else {
            return;
        };
        self.close(&round);
        match self.flight() {
            0 => self.idle_since = Some(ack.at),
            flight => self.round(ack.at).top = flight,
        }
    }

    /// Returns whether the receiver's window has no room for a further segment.
    fn is_closed(&self) -> bool {
        self.edge
            .is_some_and(|edge| edge < self.acknowledged + self.segment)
    }

    /// Returns the minimum round-trip time.
    fn trip(&self) -> u64 {
        self.shortest_trip.unwrap_or(0) + self.behind.unwrap_or(0)
    }

    fn was_idle(&mut self, time: u64, is_closed: bool) {
        let part = match is_closed {
            true => &mut self.held.receiver,
            false => &mut self.held.application,
        };
        *part += time as f64;
        if time > self.trip().max(MIN_IDLE) && !is_closed {
            let seconds = time as f64 * 1e-9;
            self.idle.periods += 1;
            self.idle.seconds += seconds;
            self.idle.longest = self.idle.longest.max(seconds);
        }
    }

    fn close(&mut self, round: &Round) {
        let time = self.now.saturating_sub(round.from) as f64;
        if round.repairs || self.acknowledged < self.repaired_at {
            // Data in flight before do not predict the window after.
            self.held.repair += time;
            return;
        }
        *self.part(round, time) += time;
        if self.tops.len() == GROWTH {
            self.tops.pop_front();
        }
        self.tops.push_back(round.top);
    }

    /// Returns the counter for the time of a round in which nothing was repaired; while the path is full, its bytes are counted
    /// too.
    fn part(&mut self, round: &Round, time: f64) -> &mut f64 {
        if round.is_at_edge {
            return &mut self.held.receiver;
        }
        let before = self.tops.back().copied().unwrap_or(0);
        if round.top as f64 > before as f64 * SLOW_START + self.segment as f64 {
            return &mut self.held.window;
        }
        let most = self.tops.iter().copied().max().unwrap_or(0);
        if round.area / time.max(1.0) < PART * most as f64 {
            return &mut self.held.application;
        }
        // Near the sender it is visible whether data waited for acknowledgements.
        let soon = (AT_ONCE * round.acks) as f64;
        let is_answering = round.answered as f64 >= ANSWERED * round.bursts as f64;
        if self.lag() == 0 && soon < COVERED * time && !is_answering {
            return &mut self.held.application;
        }
        // A standing queue increases even the minimum of its round-trip times; one due to a burst does not.
        let queue = QUEUE * self.trip() as f64 + QUEUE_TIME;
        let behind = self.behind.unwrap_or(0);
        let shortest = round.shortest_trip.map(|trip| (trip + behind) as f64);
        if shortest.is_some_and(|shortest| shortest > queue) {
            self.path_bytes += self.acknowledged.saturating_sub(round.base);
            return &mut self.held.path;
        }
        let lately = self.tops.iter().rev().take(4).copied().max().unwrap_or(0);
        let first = self.tops.front().copied().unwrap_or(0);
        let grown = (GROWN * self.segment).max(first / GROWN_PART);
        if round.top > lately && round.top >= first + grown {
            return &mut self.held.window;
        }
        &mut self.held.sender
    }
}
