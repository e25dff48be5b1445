//! Sending endpoint of a connection: which segments are in flight, which are lost, and how many may be in flight.

use std::collections::VecDeque;

use super::congestion::{Acked, CongestionControl, Delivered, Moment};
use super::delivery::Delivery;
use super::info::Phase;
use super::receiver::Ack;
use evlbi_core::time::Nanos;

/// Number of segments arrived after a gap at which the gap counts as lost (RFC 6675, DupThresh).
const BEHIND: u64 = 3;
/// Initial window, in segments (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;
/// Bounds of the retransmission timeout (RFC 6298; the lower one as in Linux).
const MIN_TIMEOUT: Nanos = Nanos(200_000_000);
const MAX_TIMEOUT: Nanos = Nanos(120_000_000_000);
/// Maximum number of doublings: beyond it any timeout exceeds the maximum.
const MAX_DOUBLINGS: u32 = 10;

/// Unit of window growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Acknowledged segments (RFC 3465; Linux since 4.0).
    Segments,
    /// Acknowledgements (Linux before 4.0).
    Acks,
}

/// State of a segment that is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    UnderWay,
    /// It has arrived, after a gap.
    Come,
    Lost,
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open,
    /// Until everything that was in flight is acknowledged, with proportional rate reduction (RFC 6937).
    Recovery {
        point: u64,
        before: f64,
        delivered: f64,
        out: f64,
    },
    /// After a timeout, until everything that was in flight is acknowledged.
    Timeout(u64),
}

/// Round-trip times (RFC 6298).
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
        // In Linux the variation has a minimum, so that constant times do not give a short timeout.
        let variation = (4.0 * self.variation).max(MIN_TIMEOUT.0 as f64);
        Nanos((self.smoothed + variation) as u64).min(MAX_TIMEOUT)
    }
}

/// State of the sending endpoint.
#[derive(Debug)]
pub struct Sender {
    congestion: Box<dyn CongestionControl>,
    counting: Counting,
    pub window: f64,
    pub threshold: f64,
    state: State,
    /// First segment that is not acknowledged, and first that is not sent.
    pub first: u64,
    next: u64,
    /// Marks of the segments between.
    marks: VecDeque<Mark>,
    /// Number of segments marked as arrived, and as lost without retransmission.
    come: u64,
    lost: u64,
    /// End of the highest range that has arrived after a gap, below which no segment counts as in flight.
    highest: u64,
    judged: u64,
    /// First segment that may be lost.
    lowest_lost: u64,
    /// Retransmitted segments, in order of time.
    again: VecDeque<(u64, Nanos)>,
    round_trips: RoundTrips,
    pub timeout_at: Option<Nanos>,
    backoff: u32,
    last_sent: Option<Nanos>,
    usage: Usage,
    /// Segments per second, of an algorithm that sets them, and when the next one may leave.
    pacing: Option<f64>,
    paced: Nanos,
    /// Until when a segment waits for that.
    pub paced_until: Option<Nanos>,
    pub delivery: Delivery,
    /// Segments retransmitted so far, those of them that the receiver had, and timeouts.
    pub sent_again: u64,
    pub needless: u64,
    pub timeouts: u64,
}

/// How much of the window is used: a window that is not used does not grow (RFC 7661, as in Linux). It does not shrink while
/// anything is in flight, either: Linux restarts the timeout of RFC 2861 with each acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// Whether the window was the limit in this round trip, which ends with a segment.
    is_limited: bool,
    max: u64,
    until: u64,
}

impl Sender {
    /// Makes a sender at the start of slow start, or in the middle of a flow that has found its window.
    pub fn new(
        mut congestion: Box<dyn CongestionControl>,
        counting: Counting,
        window: Option<f64>,
    ) -> Sender {
        if let Some(window) = window {
            // Shows the algorithm its state.
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
            pacing: None,
            paced: Nanos::default(),
            paced_until: None,
            sent_again: 0,
            needless: 0,
            timeouts: 0,
            delivery: Delivery::default(),
        }
    }

    /// Notes a round-trip time that is not from a segment: that of the handshake.
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

    /// Returns the number of consecutive timeouts.
    pub fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Returns the time after which the first segment is retransmitted, after some timeouts in a row.
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

    /// Notes that nothing is left to send: the application may be the limit.
    pub fn has_nothing(&mut self) {
        let in_flight = self.in_flight();
        if self.lost == 0 && in_flight < self.window as u64 {
            self.delivery.limit(in_flight);
        }
    }

    /// Returns the bytes per second at which Linux paces segments of a size, if it does: the window per round trip, times 2 in
    /// the first half of slow start, times 1.2 after that (tcp_update_pacing_rate).
    pub fn pacing_rate(&self, segment: u32) -> u64 {
        if let Some(rate) = self.pacing {
            return (rate * f64::from(segment)) as u64;
        }
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

    /// Returns the number of segments that are not acknowledged; of these, those that have arrived after a gap; and those that
    /// are lost, retransmitted or not.
    pub fn counts(&self) -> [u64; 3] {
        let marks = self.marks.iter();
        let again = marks.filter(|mark| **mark == Mark::Again).count() as u64;
        [self.next - self.first, self.come, self.lost + again]
    }

    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns the number of segments in flight (RFC 6675, pipe).
    pub fn in_flight(&self) -> u64 {
        self.next - self.first - self.come - self.lost
    }

    /// Returns the segment that may be sent now, of those before `available`; `None` if the window is full or there is none.
    pub fn send(&mut self, available: u64, now: Nanos) -> Option<u64> {
        self.paced_until = None;
        if self.in_flight() >= self.window.max(1.0) as u64 {
            return None;
        }
        if self.paced > now && (self.lost > 0 || self.next < available) {
            self.paced_until = Some(self.paced);
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
        if let Some(rate) = self.pacing {
            self.paced = self.paced.max(now).plus(Nanos::from_secs_f64(1.0 / rate));
        }
        self.timeout_at
            .get_or_insert(now.plus(self.round_trips.timeout()));
        self.last_sent = Some(now);
        let (place, is_alone) = (segment - self.first, self.next - self.first == 1);
        self.delivery.send(place as usize, is_alone, now);
        Some(segment)
    }

    /// Restarts after nothing was in flight: for each timeout that has passed, half of the window is forgotten, down to the
    /// initial one (RFC 5681, section 4.1; Linux, tcp_cwnd_restart).
    fn resume(&mut self, now: Nanos) {
        let Some(last_sent) = self.last_sent else {
            return;
        };
        let mut idle = now.since(last_sent);
        self.congestion.resume(idle);
        if self.pacing.is_some() {
            return;
        }
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

    /// Notes that nothing more can be sent now: the window may be the limit.
    pub fn has_sent(&mut self) {
        let is_limited = self.in_flight() >= (self.window as u64);
        let out = self.next - self.first;
        let usage = &mut self.usage;
        if self.first >= usage.until || is_limited || !usage.is_limited && out > usage.max {
            (usage.is_limited, usage.max, usage.until) = (is_limited, out, self.next);
        }
    }

    fn is_limited(&self) -> bool {
        match self.window < self.threshold {
            // In slow start the window may grow to twice the used part.
            true => self.window < 2.0 * self.usage.max as f64,
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

    /// Handles an acknowledgement.
    pub fn acknowledged(&mut self, ack: &Ack, now: Nanos) {
        let (flight_before, lost_before) = (self.in_flight(), self.lost);
        let advanced = ack.next.saturating_sub(self.first);
        let newly = self.acknowledge(ack.next) + self.note_blocks(ack);
        self.needless += u64::from(ack.is_repeated);
        if newly > 0 {
            self.round_trips.add(now.since(ack.echo));
        }
        let sampled = self.delivery.conclude(self.round_trips.shortest, now);
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
                if self.pacing.is_none() {
                    self.window = self.threshold;
                }
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
        let control = self.congestion.control(&Delivered {
            now,
            window: self.window,
            newly: newly as f64,
            total: self.delivery.delivered,
            before: sampled.map_or(0, |sampled| sampled.before),
            rate: sampled.and_then(|sampled| sampled.rate),
            is_limited: sampled.is_some_and(|sampled| sampled.is_limited),
            round_trip: (newly > 0).then(|| now.since(ack.echo)),
            lost: self.lost.saturating_sub(lost_before),
            flight_before: flight_before as f64,
            in_flight: self.in_flight() as f64,
            phase: self.phase(),
        });
        if let Some(control) = control {
            (self.window, self.pacing) = (control.window, Some(control.pacing));
            if control.is_limited {
                self.delivery.limit(self.in_flight());
            }
            return;
        }
        match self.state {
            State::Recovery { .. } => self.reduce(newly as f64, advanced > 0),
            _ if newly > 0 && self.is_limited() => self.grow(acked, now),
            _ => {}
        }
    }

    /// Applies proportional rate reduction (RFC 6937, section 3): sends a fraction of the delivered data, given by the reduction.
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
            let max = (*delivered - *out).max(newly) + f64::from(u8::from(has_advanced));
            max.min(threshold - flight)
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

    /// Acknowledges everything before a segment; returns how many of these were not known to have arrived.
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

    /// Notes segments that have arrived after gaps; returns how many were not known to have arrived.
    fn note_blocks(&mut self, ack: &Ack) -> u64 {
        let mut newly = 0;
        for (first, end) in ack.blocks() {
            let (first, end) = (first.max(self.first), end.min(self.next));
            // Segments after all others are new; else one within has arrived.
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

    /// Detects losses: segments with enough later ones that have arrived, and those retransmitted before a segment that has
    /// arrived (RFC 8985, with a quarter of the minimum round-trip time for reordering).
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

    /// Marks a segment as lost, if it has this mark.
    fn lose(&mut self, segment: u64, mark: Mark) {
        let place = segment.checked_sub(self.first);
        let known = place.and_then(|place| self.marks.get_mut(place as usize));
        if let Some(known) = known.filter(|known| **known == mark) {
            *known = Mark::Lost;
            self.lost += 1;
            self.lowest_lost = self.lowest_lost.min(segment);
        }
    }

    /// Handles a timeout: everything that has not arrived is lost, and slow start restarts (RFC 5681, section 3.1).
    pub fn timed_out(&mut self, now: Nanos) {
        if !matches!(self.state, State::Timeout(_)) {
            self.threshold = self.congestion.reduce(&self.moment(now));
        }
        self.congestion.timed_out();
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
