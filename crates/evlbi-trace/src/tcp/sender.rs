//! The sending end of a connection: which segments are under way, which are lost, and how many may be under way.

use std::collections::VecDeque;

use super::congestion::{Acked, CongestionControl, Moment};
use super::delivery::Delivery;
use super::info::Phase;
use super::receiver::Ack;
use evlbi_core::time::Nanos;

/// Segments that have come behind a gap of which no acknowledgement is waited for any more (RFC 6675, DupThresh).
const BEHIND: u64 = 3;
/// Segments under way at the beginning (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;
/// Bounds of the time after which a segment is sent again (RFC 6298, the lower one as Linux has it).
const MIN_TIMEOUT: Nanos = Nanos(200_000_000);
const MAX_TIMEOUT: Nanos = Nanos(120_000_000_000);
/// With more doublings any timeout is longer than the longest.
const MAX_DOUBLINGS: u32 = 10;

/// What is counted when a window grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Segments that are acknowledged (RFC 3465; Linux since 4.0).
    Segments,
    /// Acknowledgements, as Linux did before.
    Acks,
}

/// What is known of a segment that is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    UnderWay,
    /// It has come, behind a gap.
    Come,
    Lost,
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open,
    /// Until everything that was under way is acknowledged, with proportional rate reduction (RFC 6937).
    Recovery {
        point: u64,
        before: f64,
        delivered: f64,
        out: f64,
    },
    /// After a timeout, likewise.
    Timeout(u64),
}

/// Times of round trips (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
struct RoundTrips {
    latest: Nanos,
    shortest: Nanos,
    smoothed: f64,
    variation: f64,
}

impl RoundTrips {
    fn add(&mut self, time: Nanos) {
        let sample = time.0 as f64;
        if self.latest == Nanos::default() {
            (self.shortest, self.smoothed, self.variation) = (time, sample, sample / 2.0);
        } else {
            self.shortest = self.shortest.min(time);
            self.variation += ((self.smoothed - sample).abs() - self.variation) / 4.0;
            self.smoothed += (sample - self.smoothed) / 8.0;
        }
        self.latest = time;
    }

    fn timeout(&self) -> Nanos {
        if self.latest == Nanos::default() {
            return Nanos::SECOND;
        }
        // The variation has a lower bound of its own in Linux, so that even times do not make a short timeout.
        let variation = (4.0 * self.variation).max(MIN_TIMEOUT.0 as f64);
        Nanos((self.smoothed + variation) as u64).min(MAX_TIMEOUT)
    }
}

/// The sending end.
#[derive(Debug)]
pub struct Sender {
    congestion: Box<dyn CongestionControl>,
    counting: Counting,
    pub window: f64,
    pub threshold: f64,
    state: State,
    /// Not acknowledged yet, and not sent yet.
    pub first: u64,
    next: u64,
    /// Of the segments between.
    marks: VecDeque<Mark>,
    /// Of these: come, and lost without having been sent again.
    come: u64,
    lost: u64,
    /// The highest that has come behind a gap, and below which none is taken for under way.
    highest: u64,
    judged: u64,
    /// The lowest that may be lost.
    lowest_lost: u64,
    /// Sent again, in the order of time.
    again: VecDeque<(u64, Nanos)>,
    round_trips: RoundTrips,
    pub timeout_at: Option<Nanos>,
    backoff: u32,
    last_sent: Option<Nanos>,
    usage: Usage,
    pub delivery: Delivery,
    /// Segments retransmitted so far, those of them that the receiver had, and timeouts.
    pub sent_again: u64,
    pub needless: u64,
    pub timeouts: u64,
}

/// How much of the window is used: one that is not used does not grow (RFC 7661, as Linux has it). Nor does it shrink while
/// anything is in flight: Linux restarts the timeout of RFC 2861 with each acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// Whether the window was the limit in this round trip, which ends with a segment.
    is_limited: bool,
    most: u64,
    until: u64,
}

impl Sender {
    /// At the beginning of slow start; or in the middle of a flow that has found its window.
    pub fn new(
        mut congestion: Box<dyn CongestionControl>,
        counting: Counting,
        window: Option<f64>,
    ) -> Sender {
        if let Some(window) = window {
            // By this the law knows where it is.
            let moment = Moment {
                window,
                ..Moment::default()
            };
            congestion.grow(&moment, Acked::default());
        }
        Sender {
            congestion,
            counting,
            window: window.unwrap_or(FIRST_WINDOW),
            threshold: window.unwrap_or(f64::INFINITY),
            state: State::Open,
            first: 0,
            next: 0,
            marks: VecDeque::new(),
            come: 0,
            lost: 0,
            highest: 0,
            judged: 0,
            lowest_lost: 0,
            again: VecDeque::new(),
            round_trips: RoundTrips::default(),
            timeout_at: None,
            backoff: 0,
            last_sent: None,
            usage: Usage::default(),
            sent_again: 0,
            needless: 0,
            timeouts: 0,
            delivery: Delivery::default(),
        }
    }

    /// A round trip is known beside those of segments: that of the handshake.
    pub fn measure(&mut self, round_trip: Nanos) {
        self.round_trips.add(round_trip);
    }

    pub fn smoothed_round_trip(&self) -> Nanos {
        Nanos(self.round_trips.smoothed as u64)
    }

    pub fn round_trip_deviation(&self) -> Nanos {
        Nanos(self.round_trips.variation as u64)
    }

    pub fn shortest_round_trip(&self) -> Nanos {
        self.round_trips.shortest
    }

    /// Timeouts in a row.
    pub fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Time after which the first segment is retransmitted, after some timeouts in a row.
    pub fn timeout(&self, backoff: u32) -> Nanos {
        let timeout = self.round_trips.timeout().0;
        Nanos(timeout << backoff.min(MAX_DOUBLINGS)).min(MAX_TIMEOUT)
    }

    pub fn phase(&self) -> Phase {
        match self.state {
            State::Open if self.come > 0 => Phase::Disorder,
            State::Open => Phase::Open,
            State::Recovery { .. } => Phase::Recovery,
            State::Timeout(_) => Phase::Loss,
        }
    }

    /// Nothing is left to be sent: is it the application that limits the rate?
    pub fn has_nothing(&mut self) {
        let in_flight = self.in_flight();
        if self.lost == 0 && in_flight < self.window as u64 {
            self.delivery.limit(in_flight);
        }
    }

    /// Bytes per second at which Linux spaces segments of a size, where it does: the window each round trip, and twice as much
    /// in the first half of slow start, a fifth more beyond (tcp_update_pacing_rate).
    pub fn pacing_rate(&self, segment: u32) -> u64 {
        let ratio = if self.window < self.threshold / 2.0 {
            2.0
        } else {
            1.2
        };
        let window = self.window.max((self.next - self.first) as f64);
        let round_trip = self.round_trips.smoothed * 1e-9;
        // Nothing is known before the first round trip.
        if round_trip > 0.0 {
            (ratio * window * f64::from(segment) / round_trip) as u64
        } else {
            0
        }
    }

    /// Segments that are not acknowledged; of these, those that have arrived behind a gap; and those that are lost,
    /// retransmitted or not.
    pub fn counts(&self) -> [u64; 3] {
        let marks = self.marks.iter();
        let again = marks.filter(|mark| **mark == Mark::Again).count() as u64;
        [self.next - self.first, self.come, self.lost + again]
    }

    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Segments under way (RFC 6675, pipe).
    pub fn in_flight(&self) -> u64 {
        self.next - self.first - self.come - self.lost
    }

    /// The segment that may leave now, of those before `available`; none while the window is full or there is none.
    pub fn send(&mut self, available: u64, now: Nanos) -> Option<u64> {
        if self.in_flight() >= self.window.max(1.0) as u64 {
            return None;
        }
        let segment = if self.lost > 0 {
            self.send_again(now)?
        } else if self.next < available {
            if self.first == self.next {
                self.resume(now);
            }
            self.marks.push_back(Mark::UnderWay);
            self.next += 1;
            self.next - 1
        } else {
            return None;
        };
        if let State::Recovery { out, .. } = &mut self.state {
            *out += 1.0;
        }
        self.timeout_at
            .get_or_insert(now.plus(self.round_trips.timeout()));
        self.last_sent = Some(now);
        let (place, is_alone) = (segment - self.first, self.next - self.first == 1);
        self.delivery.send(place as usize, is_alone, now);
        Some(segment)
    }

    /// Nothing was in flight: for each timeout that has passed so, half of the window is forgotten, down to the first one
    /// (RFC 5681, section 4.1; Linux, tcp_cwnd_restart).
    fn resume(&mut self, now: Nanos) {
        let Some(last_sent) = self.last_sent else {
            return;
        };
        let mut idle = now.since(last_sent);
        self.congestion.resume(idle);
        let timeout = self.round_trips.timeout();
        if idle > timeout {
            self.threshold = self.threshold.max(0.75 * self.window);
        }
        let smallest = self.window.min(FIRST_WINDOW);
        while idle > timeout && self.window > smallest {
            idle = idle.since(timeout);
            self.window = (self.window / 2.0).max(smallest);
        }
    }

    fn send_again(&mut self, now: Nanos) -> Option<u64> {
        let from = self.lowest_lost.max(self.first);
        let mut behind = self.marks.iter().skip((from - self.first) as usize);
        let place = behind.position(|mark| *mark == Mark::Lost)?;
        let segment = from + place as u64;
        self.marks[(segment - self.first) as usize] = Mark::Again;
        self.lost -= 1;
        self.lowest_lost = segment + 1;
        self.again.push_back((segment, now));
        self.sent_again += 1;
        Some(segment)
    }

    /// Nothing more can leave now: was the window the limit?
    pub fn has_sent(&mut self) {
        let is_limited = self.in_flight() >= (self.window as u64);
        let out = self.next - self.first;
        let usage = &mut self.usage;
        if self.first >= usage.until || is_limited || !usage.is_limited && out > usage.most {
            (usage.is_limited, usage.most, usage.until) = (is_limited, out, self.next);
        }
    }

    fn is_limited(&self) -> bool {
        match self.window < self.threshold {
            // In slow start the window may grow to twice what is used.
            true => self.window < 2.0 * self.usage.most as f64,
            false => self.usage.is_limited,
        }
    }

    fn moment(&self, now: Nanos) -> Moment {
        Moment {
            now,
            window: self.window,
            round_trip: self.round_trips.latest,
            shortest: self.round_trips.shortest,
        }
    }

    /// An acknowledgement comes.
    pub fn acknowledged(&mut self, ack: &Ack, now: Nanos) {
        let advanced = ack.next.saturating_sub(self.first);
        let newly = self.acknowledge(ack.next) + self.note_blocks(ack);
        self.needless += u64::from(ack.is_repeated);
        if newly > 0 {
            self.round_trips.add(now.since(ack.echo));
        }
        self.delivery.conclude(self.round_trips.shortest, now);
        self.judge(ack.echo);
        let acked = Acked {
            segments: newly as f64,
            acks: 1.0,
            counted: match self.counting {
                Counting::Segments => newly as f64,
                Counting::Acks => 1.0,
            },
        };
        if newly > 0 {
            self.congestion.measure(&self.moment(now), acked);
        }
        if advanced > 0 {
            self.backoff = 0;
            self.timeout_at =
                (self.first < self.next).then(|| now.plus(self.round_trips.timeout()));
        }
        match self.state {
            State::Recovery { point, .. } if self.first >= point => {
                self.state = State::Open;
                self.window = self.threshold;
                if let Some(window) = self.congestion.recovered(&self.moment(now)) {
                    (self.window, self.threshold) = (window, window);
                }
            }
            State::Timeout(point) if self.first >= point => self.state = State::Open,
            _ => {}
        }
        if self.lost > 0 && self.state == State::Open {
            self.threshold = self.congestion.reduce(&self.moment(now));
            self.state = State::Recovery {
                point: self.next,
                before: self.window,
                delivered: 0.0,
                out: 0.0,
            };
        }
        match self.state {
            State::Recovery { .. } => self.reduce(newly as f64, advanced > 0),
            _ if newly > 0 && self.is_limited() => self.grow(acked, now),
            _ => {}
        }
    }

    /// Proportional rate reduction (RFC 6937, section 3): as much leaves for what is delivered as the reduction leaves.
    fn reduce(&mut self, newly: f64, has_advanced: bool) {
        let (flight, threshold) = (self.in_flight() as f64, self.threshold);
        let State::Recovery {
            before,
            delivered,
            out,
            ..
        } = &mut self.state
        else {
            return;
        };
        if newly <= 0.0 {
            return;
        }
        *delivered += newly;
        let mut count = if flight > threshold {
            (*delivered * threshold / *before).ceil() - *out
        } else {
            // Slow start back up to the threshold (PRR-SSRB).
            let most = (*delivered - *out).max(newly) + f64::from(u8::from(has_advanced));
            most.min(threshold - flight)
        };
        if *out == 0.0 {
            count = count.max(1.0);
        }
        self.window = flight + count.max(0.0);
    }

    fn grow(&mut self, acked: Acked, now: Nanos) {
        let mut rest = acked;
        if self.window < self.threshold {
            let taken = acked.counted.min(self.threshold - self.window);
            self.window += taken;
            rest.counted -= taken;
        }
        if rest.counted > 0.0 {
            self.window += self.congestion.grow(&self.moment(now), rest);
        }
    }

    /// Everything before is acknowledged: how many that were not known to have come.
    fn acknowledge(&mut self, next: u64) -> u64 {
        let count = next.min(self.next).saturating_sub(self.first);
        self.first += count;
        let mut newly = count;
        for (place, mark) in self.marks.drain(..count as usize).enumerate() {
            self.lost -= u64::from(mark == Mark::Lost);
            if mark == Mark::Come {
                self.come -= 1;
                newly -= 1;
            } else {
                self.delivery.deliver(place);
            }
        }
        self.delivery.forget(count as usize);
        newly
    }

    /// What has come behind gaps: how many that were not known to have.
    fn note_blocks(&mut self, ack: &Ack) -> u64 {
        let mut newly = 0;
        for (first, end) in ack.blocks() {
            let (first, end) = (first.max(self.first), end.min(self.next));
            // What has come behind all else is new; else something within has.
            let new = if end > self.highest {
                self.highest.max(first)
            } else {
                first
            };
            for segment in new..end {
                let place = (segment - self.first) as usize;
                let mark = &mut self.marks[place];
                match std::mem::replace(mark, Mark::Come) {
                    Mark::Come => continue,
                    Mark::Lost => self.lost -= 1,
                    Mark::UnderWay | Mark::Again => {}
                }
                self.come += 1;
                newly += 1;
                self.delivery.deliver(place);
            }
            self.highest = self.highest.max(end);
        }
        newly
    }

    /// What is lost: segments with enough behind them that have come, and those sent again before something that has come
    /// (RFC 8985, with a quarter of the shortest round trip for reordering).
    fn judge(&mut self, echo: Nanos) {
        let end = self.highest.saturating_sub(BEHIND).min(self.next);
        let from = self.judged.max(self.first);
        for segment in from..end {
            self.lose(segment, Mark::UnderWay);
        }
        self.judged = from.max(end);
        let (first, reordering) = (self.first, Nanos(self.round_trips.shortest.0 / 4));
        let is_over = |again: &mut (u64, Nanos)| echo > again.1.plus(reordering) || again.0 < first;
        while let Some((segment, _)) = self.again.pop_front_if(is_over) {
            self.lose(segment, Mark::Again);
        }
    }

    /// A segment is lost, if this is its mark.
    fn lose(&mut self, segment: u64, mark: Mark) {
        let place = segment.checked_sub(self.first);
        let known = place.and_then(|place| self.marks.get_mut(place as usize));
        if let Some(known) = known.filter(|known| **known == mark) {
            *known = Mark::Lost;
            self.lost += 1;
            self.lowest_lost = self.lowest_lost.min(segment);
        }
    }

    /// Nothing came for too long: everything that has not come is lost, and it begins anew (RFC 5681, section 3.1).
    pub fn timed_out(&mut self, now: Nanos) {
        if !matches!(self.state, State::Timeout(_)) {
            self.threshold = self.congestion.reduce(&self.moment(now));
        }
        self.window = 1.0;
        self.state = State::Timeout(self.next);
        for mark in &mut self.marks {
            if *mark != Mark::Come && *mark != Mark::Lost {
                *mark = Mark::Lost;
                self.lost += 1;
            }
        }
        self.lowest_lost = self.first;
        self.judged = self.next;
        self.again.clear();
        self.timeouts += 1;
        self.backoff += 1;
        self.timeout_at = Some(now.plus(self.timeout(self.backoff)));
    }
}
