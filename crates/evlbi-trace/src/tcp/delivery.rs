//! Delivery rate of a sender, as Linux estimates it (net/ipv4/tcp_rate.c; draft-cheng-iccrg-delivery-rate-estimation).

use std::collections::VecDeque;

use evlbi_core::time::Nanos;

/// What was known when a segment was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    at: Nanos,
    /// Segments delivered so far, and when the last of them was.
    delivered: u64,
    delivered_at: Nanos,
    /// When the segment was sent that was acknowledged last.
    begun: Nanos,
    is_limited: bool,
}

/// Segments over a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    segments: u64,
    time: Nanos,
    /// Whether the application had nothing to send meanwhile.
    pub is_limited: bool,
}

impl Rate {
    /// Bytes per second.
    pub fn bytes(&self, segment: u32) -> u64 {
        let bytes = u128::from(self.segments) * u128::from(segment) * 1_000_000_000;
        u64::try_from(bytes / u128::from(self.time.0.max(1))).unwrap_or(u64::MAX)
    }
}

/// Samples of the delivery rate.
#[derive(Debug, Default)]
pub struct Delivery {
    sent: VecDeque<Sent>,
    /// Segments delivered so far, when the last was, and when it was sent.
    pub delivered: u64,
    delivered_at: Nanos,
    begun: Nanos,
    /// The application had nothing to send before this number is delivered.
    limited_until: u64,
    /// The segment sent last, of those that an acknowledgement covers.
    sample: Option<Sent>,
    pub rate: Rate,
}

impl Delivery {
    /// A segment is sent, at this place among those that are not acknowledged.
    pub fn send(&mut self, place: usize, is_alone: bool, now: Nanos) {
        if is_alone {
            (self.begun, self.delivered_at) = (now, now);
        }
        let sent = Sent {
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            begun: self.begun,
            is_limited: self.limited_until > 0,
        };
        match self.sent.get_mut(place) {
            Some(known) => *known = sent,
            None => self.sent.push_back(sent),
        }
    }

    /// A segment at a place is delivered.
    pub fn deliver(&mut self, place: usize) {
        self.delivered += 1;
        let Some(sent) = self.sent.get(place) else {
            return;
        };
        if self.sample.is_none_or(|sample| sent.at >= sample.at) {
            self.sample = Some(*sent);
        }
    }

    /// The first segments are acknowledged.
    pub fn forget(&mut self, count: usize) {
        self.sent.drain(..count);
    }

    /// An acknowledgement has been taken.
    pub fn conclude(&mut self, shortest: Nanos, now: Nanos) {
        if self.delivered > self.limited_until {
            self.limited_until = 0;
        }
        let Some(sample) = self.sample.take() else {
            return;
        };
        (self.delivered_at, self.begun) = (now, sample.at);
        let time = sample
            .at
            .since(sample.begun)
            .max(now.since(sample.delivered_at));
        let rate = Rate {
            segments: self.delivered - sample.delivered,
            time,
            is_limited: sample.is_limited,
        };
        let known = self.rate;
        let is_faster = u128::from(rate.segments) * u128::from(known.time.0)
            >= u128::from(known.segments) * u128::from(time.0);
        // Shorter than a round trip, it is a burst of acknowledgements.
        if time >= shortest && (!rate.is_limited || is_faster) {
            self.rate = rate;
        }
    }

    /// The application has nothing to send while a number of segments are in flight.
    pub fn limit(&mut self, in_flight: u64) {
        self.limited_until = (self.delivered + in_flight).max(1);
    }
}
