//! A sender's round trips, and what held it back in each: the application, the receiver, loss, a full path, its window.
//!
//! After the root causes of Siekkinen et al. 2005 and the bottlenecks of Sansa 2006. What is under way is reckoned at the sender,
//! wherever the capture was taken: a packet left it knowing the acknowledgements whose time stamps it echoes (RFC 7323) or,
//! without these, those that had passed here a round trip between here and the sender before.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Extent;

/// Time stamps are no finer than this, in nanoseconds.
const FINE: u64 = 1_000_000;
/// Acknowledgements on their way to the sender that are remembered.
const MAX_WAITING: usize = 1 << 16;
/// Rounds over which a window's growth is looked for, and how far it grows in them at least: in segments, and in parts of it.
const GROWTH: usize = 16;
const GROWN: u64 = 2;
const GROWN_PART: u64 = 10;
/// A window that grows by more than this in a round is in slow start.
const SLOW_START: f64 = 1.1;
/// A sender that has less under way than this part of what it had lately, and lost nothing, had no more to send.
const PART: f64 = 0.5;
/// What leaves so soon after an acknowledgement, in nanoseconds, answers it: an application that waited for room is awake by then.
const AT_ONCE: u64 = 200_000;
/// Where acknowledgements are so close that this part of the time comes soon after one, nothing can be told from it.
const COVERED: f64 = 0.3;
/// An application that sends by a clock of its own answers fewer of them.
const ANSWERED: f64 = 0.6;
/// Round trips this much longer than the shortest have a queue in them.
const QUEUE: f64 = 1.25;
const QUEUE_TIME: f64 = 500_000.0;
/// An idle time is no shorter, in nanoseconds.
const MIN_IDLE: u64 = 1_000_000;

/// What held a sender back, in parts of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitedBy {
    /// The application: all was acknowledged and nothing came, or less was under way than could be.
    pub application: f64,
    /// The receiver's window.
    pub receiver: f64,
    /// The repair of losses.
    pub repair: f64,
    /// The path: round trips are longer than they can be, so a queue stands somewhere.
    pub path: f64,
    /// The congestion window, which was growing.
    pub window: f64,
    /// The sender, which did not send more although nothing else held it back: an application with a rate of its own, its send
    /// buffer, or a congestion window that stays.
    pub sender: f64,
}

impl LimitedBy {
    /// Times as parts of their sum.
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

/// Times in which nothing was under way and nothing was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// How many were longer than a round trip and than 1 ms.
    pub periods: u64,
    /// Their time in seconds.
    pub seconds: f64,
    /// The longest in seconds.
    pub longest: f64,
}

/// An acknowledgement on its way to the sender.
#[derive(Clone, Copy, Debug)]
struct Ack {
    /// When it comes to the sender, if nothing keeps it up.
    at: u64,
    stamp: Option<u32>,
    acknowledged: u64,
    selected: u64,
    edge: Option<u64>,
}

/// One round trip: from when data leaves until it is acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    from: u64,
    /// What had been acknowledged, and when what is, it ends.
    base: u64,
    mark: u64,
    /// Bytes under way times nanoseconds.
    area: f64,
    top: u64,
    is_at_edge: bool,
    repairs: bool,
    acks: u64,
    /// Bursts of data, and those that answer an acknowledgement.
    bursts: u64,
    answered: u64,
    shortest_trip: Option<u64>,
}

/// What came of the rounds of a sender; [`DirectionReport`](super::DirectionReport) says what each field is.
pub struct Found {
    pub flight: Option<Extent>,
    pub behind: Option<f64>,
    pub path_rate: Option<f64>,
    pub held_back: LimitedBy,
    pub idle: Idle,
}

/// A sender, as it must have been.
#[derive(Debug, Default)]
pub struct Rounds {
    behind: Option<u64>,
    waiting: VecDeque<Ack>,
    now: u64,
    begun: Option<u64>,
    next: u64,
    acknowledged: u64,
    /// Bytes behind that which have been acknowledged selectively.
    selected: u64,
    edge: Option<u64>,
    segment: u64,
    round: Option<Round>,
    /// Since when all is acknowledged.
    idle_since: Option<u64>,
    /// All before it was sent when a loss was repaired: until it is acknowledged the repair goes on.
    repaired_at: u64,
    /// Most under way in the rounds before, since the last loss.
    tops: VecDeque<u64>,
    last_sent: u64,
    unanswered: Option<u64>,
    shortest_trip: Option<u64>,
    /// In nanoseconds until the end.
    held: LimitedBy,
    path_bytes: u64,
    idle: Idle,
    flight: Option<Extent>,
    area: f64,
}

impl Rounds {
    /// From here to the sender and back it takes no longer.
    pub fn behind(&mut self, time: u64) {
        self.behind = Some(self.behind.map_or(time, |shortest| shortest.min(time)));
    }

    pub fn is_behind(&self) -> Option<u64> {
        self.behind
    }

    /// The first number of data.
    pub fn begins_at(&mut self, next: u64) {
        (self.next, self.acknowledged) = (next, next);
    }

    /// New data up to this number; how much is under way with it.
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

    /// Data once more.
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

    /// An acknowledgement passes: it comes to the sender later.
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
            // Nothing is under way that could tell more.
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

    /// A round trip from here to the receiver.
    pub fn took(&mut self, time: u64) {
        let shorter = |trip: Option<u64>| Some(trip.map_or(time, |shortest| shortest.min(time)));
        self.shortest_trip = shorter(self.shortest_trip);
        if let Some(round) = &mut self.round {
            round.shortest_trip = shorter(round.shortest_trip);
        }
    }

    /// What came of it.
    pub fn finish(mut self, last: u64) -> Found {
        self.come_to(u64::MAX, None);
        self.pass(last);
        // The end says nothing of what an application would have sent.
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

    /// How long acknowledgements and what answers them are on their way between here and the sender: nothing that matters if
    /// that is a small part of a short round trip.
    fn lag(&self) -> u64 {
        let ahead = self.shortest_trip.unwrap_or(u64::MAX);
        let matters = |behind: &u64| *behind >= FINE || *behind > ahead / 4;
        self.behind.filter(matters).unwrap_or(0)
    }

    /// The round that goes on, or begins here.
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

    /// What had come to the sender when it sent a packet that passes now, with this echo.
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

    /// Whether not even a segment fits the receiver's window beyond what it has acknowledged.
    fn is_closed(&self) -> bool {
        self.edge
            .is_some_and(|edge| edge < self.acknowledged + self.segment)
    }

    /// The shortest round trip.
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
            // What was under way before says nothing of the window after.
            self.held.repair += time;
            return;
        }
        *self.part(round, time) += time;
        if self.tops.len() == GROWTH {
            self.tops.pop_front();
        }
        self.tops.push_back(round.top);
    }

    /// Where the time of a round is counted in which nothing was repaired; while the path is full, its bytes are counted too.
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
        // At the sender it shows whether data waited for acknowledgements.
        let soon = (AT_ONCE * round.acks) as f64;
        let is_answering = round.answered as f64 >= ANSWERED * round.bursts as f64;
        if self.lag() == 0 && soon < COVERED * time && !is_answering {
            return &mut self.held.application;
        }
        // A queue that stands makes even the shortest of its round trips longer; one that a burst makes does not.
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
