//! Delivery rate of a sender, as Linux estimates it (net/ipv4/tcp_rate.c; draft-cheng-iccrg-delivery-rate-estimation).

use std::collections::VecDeque;

use evlbi_core::time::Nanos;

/// State when a segment was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    at: Nanos,
    /// Number of segments delivered by then, and when the last of them was.
    delivered: u64,
    delivered_at: Nanos,
    /// When the last acknowledged segment had been sent.
    begun: Nanos,
    is_limited: bool,
}

/// Number of segments in a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    segments: u64,
    time: Nanos,
    /// Whether the application had nothing to send in that time.
    pub is_limited: bool,
}

impl Rate {
    /// Returns the bytes per second.
    pub fn bytes(&self, segment: u32) -> u64 {
        let bytes = u128::from(self.segments) * u128::from(segment) * 1_000_000_000;
        u64::try_from(bytes / u128::from(self.time.0.max(1))).unwrap_or(u64::MAX)
    }
}

/// Sample of the segment sent last, of those that an acknowledgement covers.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// Segments delivered when it was sent.
    pub before: u64,
    /// Segments per second since; `None` for less than a round trip.
    pub rate: Option<f64>,
    pub is_limited: bool,
}

/// Estimator of the delivery rate.
#[derive(Debug, Default)]
pub struct Delivery {
    sent: VecDeque<Sent>,
    /// Number of segments delivered so far, when the last one was delivered, and when it had been sent.
    pub delivered: u64,
    delivered_at: Nanos,
    begun: Nanos,
    /// Number of deliveries up to which the application had nothing to send.
    limited_until: u64,
    /// Latest sent segment that the current acknowledgement covers.
    sample: Option<Sent>,
    pub rate: Rate,
}

impl Delivery {
    /// Notes that a segment is sent, at this index among those that are not acknowledged.
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

    /// Notes that the segment at an index is delivered.
    pub fn deliver(&mut self, place: usize) {
        self.delivered += 1;
        let Some(sent) = self.sent.get(place) else {
            return;
        };
        if self.sample.is_none_or(|sample| sent.at >= sample.at) {
            self.sample = Some(*sent);
        }
    }

    /// Removes the first segments, which are acknowledged.
    pub fn forget(&mut self, count: usize) {
        self.sent.drain(..count);
    }

    /// Ends the processing of an acknowledgement. Returns its sample, if it covers anything new.
    pub fn conclude(&mut self, shortest: Nanos, now: Nanos) -> Option<Sampled> {
        if self.delivered > self.limited_until {
            self.limited_until = 0;
        }
        let sample = self.sample.take()?;
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
        // A time shorter than a round trip is a burst of acknowledgements.
        let is_whole = time >= shortest && time > Nanos::default();
        if is_whole && (!rate.is_limited || is_faster) {
            self.rate = rate;
        }
        Some(Sampled {
            before: sample.delivered,
            rate: is_whole.then(|| rate.segments as f64 / time.as_secs_f64()),
            is_limited: rate.is_limited,
        })
    }

    /// Notes that the application has nothing to send while a number of segments are in flight.
    pub fn limit(&mut self, in_flight: u64) {
        self.limited_until = (self.delivered + in_flight).max(1);
    }
}
