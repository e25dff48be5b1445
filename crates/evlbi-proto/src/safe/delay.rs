//! Round-trip time and delay of queues, from beats and reports.

use std::collections::VecDeque;

use evlbi_core::time::Nanos;

/// Time over which the shortest delay is the one without queues.
const BASE: Nanos = Nanos(60_000_000_000);
/// Difference of the rates of both clocks, as one in this many, that does not count as a queue.
const SKEW: u64 = 10_000;
/// Growth of the one-way delay beyond that of the round trip that is a step of the receiver's clock.
const STEP: Nanos = Nanos(2_000_000);
/// Weight of the past in the smoothed round-trip time (RFC 5348, section 4.3).
const PAST: f64 = 0.9;

/// Delays of a path.
#[derive(Clone, Debug, Default)]
pub struct Delay {
    smoothed: Option<f64>,
    round_trips: Minimum,
    /// Arrival by the receiver's clock less departure by the sender's.
    one_way: Minimum,
    queue: Nanos,
}

/// Minimum of the last [`BASE`], of numbers modulo 2^64 that are less than 2^63 apart.
#[derive(Clone, Debug, Default)]
struct Minimum {
    /// Ascending numbers with their times.
    values: VecDeque<(Nanos, u64)>,
}

impl Minimum {
    /// Notes a value, and returns how far it is above the minimum, and how old that is.
    fn note(&mut self, now: Nanos, value: u64) -> (Nanos, Nanos) {
        let is_less = |a: u64, b: u64| (a.wrapping_sub(b) as i64) < 0;
        while self
            .values
            .pop_front_if(|(at, _)| now.since(*at) > BASE)
            .is_some()
        {}
        while self
            .values
            .pop_back_if(|(_, before)| !is_less(*before, value))
            .is_some()
        {}
        self.values.push_back((now, value));
        let (at, least) = self.values.front().copied().unwrap_or((now, value));
        (Nanos(value.wrapping_sub(least)), now.since(at))
    }
}

impl Delay {
    /// Notes the echo of a beat in a report that arrives at `now`: when the beat departed by this clock, when it arrived by the
    /// receiver's clock, and how long the receiver held it.
    pub fn note(&mut self, now: Nanos, departure: Nanos, arrival: Nanos, held: Nanos) {
        let round_trip = now.since(departure).since(held);
        let smoothed = self.smoothed.map_or(round_trip.0 as f64, |before| {
            PAST * before + (1.0 - PAST) * round_trip.0 as f64
        });
        self.smoothed = Some(smoothed);
        let (both, _) = self.round_trips.note(now, round_trip.0);
        // A queue on the way back is in the first one only, a step or a wrong rate of the receiver's clock in the second one only.
        let one_way = arrival.0.wrapping_sub(departure.0);
        let (there, age) = self.one_way.note(now, one_way);
        let mut there = there.since(Nanos(age.0 / SKEW));
        if there > both.plus(STEP) {
            // More than the round trip has grown: the clock of the receiver was set.
            self.one_way = Minimum::default();
            self.one_way.note(now, one_way);
            there = Nanos(0);
        }
        self.queue = both.min(there);
    }

    /// Returns the smoothed round-trip time; `None` before the first report.
    pub fn round_trip(&self) -> Option<Nanos> {
        self.smoothed.map(|nanos| Nanos(nanos.max(1.0) as u64))
    }

    /// Returns the delay of queues on the way to the receiver, as of the last beat.
    pub fn queue(&self) -> Nanos {
        self.queue
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Ten beats per second over `seconds`; the delay there and back in ms and the receiver's clock as functions of the time in s.
    fn queue_after(
        seconds: u64,
        there: impl Fn(u64) -> u64,
        back: impl Fn(u64) -> u64,
        clock: impl Fn(u64) -> u64,
    ) -> Vec<u64> {
        let mut delay = Delay::default();
        (0..10 * seconds)
            .map(|beat| {
                let (sent, second) = (beat * 100 * MS, beat / 10);
                let arrived = sent + there(second) * MS;
                let now = arrived + 7 * MS + back(second) * MS;
                delay.note(
                    Nanos(now),
                    Nanos(sent),
                    Nanos(clock(arrived)),
                    Nanos(7 * MS),
                );
                delay.queue().0 / MS
            })
            .collect()
    }

    #[test]
    fn queues_on_the_way_there_are_seen() {
        let queue = |second| if (20..25).contains(&second) { 30 } else { 15 };
        let seen = queue_after(40, queue, |_| 15, |at| at);
        assert!(seen[..200].iter().all(|queue| *queue == 0));
        // Less what could be the rates of the clocks.
        assert!(seen[200..250].iter().all(|queue| (12..=15).contains(queue)));
        assert!(seen[250..].iter().all(|queue| *queue == 0));
    }

    #[test]
    fn queues_on_the_way_back_and_the_clock_of_the_receiver_are_not() {
        let queue = |second| if (20..25).contains(&second) { 300 } else { 15 };
        let steps = |at: u64| match at / Nanos::SECOND.0 {
            ..10 => at.wrapping_sub(1 << 40),
            10..15 => at.wrapping_add(3_600_000_000_000),
            _ => at + at / 10_000,
        };
        for clock in [(|at| at) as fn(u64) -> u64, steps, |at| at - at / 10_000] {
            let seen = queue_after(200, |_| 15, queue, clock);
            assert!(seen.iter().all(|queue| *queue == 0));
        }
    }

    proptest! {
        #[test]
        fn no_times_panic(times in proptest::collection::vec((0u64..1 << 50, any::<u64>(), any::<u64>(), any::<u64>()), 1..50)) {
            let mut delay = Delay::default();
            let mut now = Nanos(0);
            for (step, departure, arrival, held) in times {
                now = now.plus(Nanos(step));
                delay.note(now, Nanos(departure), Nanos(arrival), Nanos(held));
                prop_assert!(delay.queue() <= now);
            }
        }
    }
}
