//! When data leaves: an absolute schedule that never drifts, and what to do when the sender fell behind.
//!
//! Nominal times come from a bit rate ([`ByRate`]) or from the times in the frames ([`ByTime`]). The
//! [`Pacer`] turns them into times of departure. Its rule for catching up: what is overdue leaves at up to
//! [`CATCH_UP`] times the nominal rate; a sender more than [`MOST_LAG`] behind gives that time up (a
//! *slip*, counted) instead of flooding the path.

use std::collections::HashMap;

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::StreamKey;
use serde::Serialize;

use crate::rate::BitRate;
use crate::time::Nanos;

/// How much faster than nominal overdue data leaves.
pub const CATCH_UP: u64 = 2;
/// The lag that is given up instead of caught up.
pub const MOST_LAG: Nanos = Nanos::SECOND;
/// A jump between the times of successive frames that is taken for an error in the recording rather
/// than for a pause: forward beyond this, or backward at all.
const LONGEST_PAUSE: Nanos = Nanos(60_000_000_000);
/// At intervals as long as this each datagram leaves by itself, exactly spaced.
const SINGLE_FROM: Nanos = Nanos(10_000);
/// Length of a train of datagrams, where they follow each other faster than that.
const TRAIN: Nanos = Nanos(100_000);
/// Most datagrams in a train.
pub const LONGEST_TRAIN: u32 = 256;

/// Nominal times of a stream of constant bit rate, exact for any number of bytes.
#[derive(Clone, Copy, Debug)]
pub struct ByRate {
    rate: BitRate,
}

impl ByRate {
    /// A stream of `rate` bits per second.
    pub fn new(rate: BitRate) -> ByRate {
        ByRate { rate }
    }

    /// When the byte at `offset` is due, counted from the start of the stream.
    pub fn due(&self, offset: u64) -> Nanos {
        let nanos = u128::from(offset) * 8_000_000_000 / u128::from(self.rate.get());
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Nominal times of frames that leave when their own time comes.
///
/// Each thread is measured against its own first frame, since threads of one recording may lie apart by
/// a constant; frames of one time are spread evenly over the time that a frame lasts. Pauses of the
/// recording are kept. A frame whose time lies before its predecessor's, or more than a minute after
/// it, follows its predecessor at once and counts as a jump.
#[derive(Clone, Debug)]
pub struct ByTime {
    rate: FrameRate,
    threads: u64,
    first: HashMap<StreamKey, First>,
    last_due: Nanos,
    jumps: u64,
}

/// Where a thread began.
#[derive(Clone, Copy, Debug)]
struct First {
    index: i64,
    due: Nanos,
}

impl ByTime {
    /// `threads` sub-streams (station and thread) of `rate` frames per second each.
    pub fn new(rate: FrameRate, threads: usize) -> ByTime {
        ByTime {
            rate,
            threads: threads.max(1) as u64,
            first: HashMap::new(),
            last_due: Nanos(0),
            jumps: 0,
        }
    }

    /// When a frame is due, counted from the first frame.
    pub fn due(&mut self, key: StreamKey, time: FrameTime) -> Nanos {
        let index = time.index(self.rate);
        let step = self.frame_span();
        let follows = match self.first.is_empty() {
            true => Nanos(0),
            false => self.last_due.plus(step),
        };
        let known = self.first.len() as u64;
        let first = *self.first.entry(key).or_insert(First {
            index,
            // A thread that begins later than the others begins where the stream is.
            due: if known < self.threads {
                Nanos(known * step.0).max(follows)
            } else {
                follows
            },
        });
        let due = first
            .due
            .0
            .checked_add_signed(self.signed_span(index.saturating_sub(first.index)));
        let due = due.map(Nanos).filter(|due| {
            due.plus(step) >= self.last_due && due.since(self.last_due) <= LONGEST_PAUSE
        });
        let due = due.unwrap_or_else(|| {
            self.jumps += 1;
            self.first.insert(
                key,
                First {
                    index,
                    due: follows,
                },
            );
            follows
        });
        self.last_due = self.last_due.max(due);
        due
    }

    /// When a frame is due whose header does not tell its time: after the one before it.
    pub fn follow(&mut self) -> Nanos {
        if !self.first.is_empty() {
            self.last_due = self.last_due.plus(self.frame_span());
        }
        self.last_due
    }

    /// The time between two frames of the whole stream.
    pub fn frame_span(&self) -> Nanos {
        Nanos(self.span(1).0 / self.threads)
    }

    /// Frames whose time could not be followed.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }

    fn span(&self, frames: u64) -> Nanos {
        let nanos = u128::from(frames) * 1_000_000_000 / u128::from(self.rate.get());
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn signed_span(&self, frames: i64) -> i64 {
        let span = i64::try_from(self.span(frames.unsigned_abs()).0).unwrap_or(i64::MAX);
        if frames < 0 { -span } else { span }
    }
}

/// Turns nominal times into times of departure.
#[derive(Clone, Debug)]
pub struct Pacer {
    start: Nanos,
    /// Nothing leaves before this: the rule for catching up.
    not_before: Nanos,
    slipped: Nanos,
    slips: u64,
}

/// How far a sender fell behind its schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Slips {
    /// How often time was given up.
    pub count: u64,
    /// How much of it, in seconds.
    pub seconds: f64,
}

impl Pacer {
    /// A schedule whose zero is `start`.
    pub fn new(start: Nanos) -> Pacer {
        Pacer {
            start,
            not_before: start,
            slipped: Nanos(0),
            slips: 0,
        }
    }

    /// When a train may leave that is nominally due at `due`.
    pub fn departure(&self, due: Nanos) -> Nanos {
        self.start.plus(self.slipped).plus(due).max(self.not_before)
    }

    /// A train that was nominally due at `due` and lasts `span` left at `now`.
    pub fn left(&mut self, now: Nanos, due: Nanos, span: Nanos) {
        let lag = now.since(self.start.plus(self.slipped).plus(due));
        if lag > MOST_LAG {
            self.slipped = self.slipped.plus(lag);
            self.slips += 1;
        }
        self.not_before = now.plus(Nanos(span.0 / CATCH_UP));
    }

    /// Time given up so far.
    pub fn slips(&self) -> Slips {
        Slips {
            count: self.slips,
            seconds: self.slipped.as_secs_f64(),
        }
    }
}

/// How many datagrams leave back to back when `datagram` bytes of data are due every `interval`: one at
/// intervals of 10 us and more, else trains of about 100 us.
pub fn train_length(interval: Nanos) -> u32 {
    if interval >= SINGLE_FROM {
        return 1;
    }
    u32::try_from(TRAIN.0.div_ceil(interval.0.max(1)))
        .unwrap_or(LONGEST_TRAIN)
        .min(LONGEST_TRAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evlbi_wire::vdif::StationId;
    use proptest::prelude::*;

    fn key(thread: u16) -> StreamKey {
        StreamKey {
            station: StationId(7),
            thread,
        }
    }

    fn rate(frames: u32) -> FrameRate {
        FrameRate::new(frames).unwrap()
    }

    #[test]
    fn a_rate_does_not_drift() {
        // 1464 bytes at 937 Mbit/s: 12.4994... us, never a whole number of nanoseconds.
        let schedule = ByRate::new(BitRate::new(937_000_000).unwrap());
        let n = 1_000_000_000_000u64;
        let exact = 1464.0 * 8.0 * n as f64 / 937e6;
        assert!((schedule.due(n * 1464).as_secs_f64() - exact).abs() < 1e-3);
        // A year at 32 Gbit/s still fits.
        let fast = ByRate::new(BitRate::new(32_000_000_000).unwrap());
        assert_eq!(
            fast.due(4_000_000_000 * 31_536_000),
            Nanos(31_536_000_000_000_000)
        );
    }

    #[test]
    fn frames_leave_when_their_time_comes() {
        let mut times = ByTime::new(rate(1000), 2);
        let mut due = |thread, second, frame| times.due(key(thread), FrameTime { second, frame }).0;
        assert_eq!(due(0, 100, 998), 0);
        assert_eq!(due(1, 100, 998), 500_000);
        assert_eq!(due(0, 100, 999), 1_000_000);
        assert_eq!(due(1, 100, 999), 1_500_000);
        assert_eq!(due(0, 101, 0), 2_000_000);
        // A pause of the recording is kept.
        assert_eq!(due(0, 103, 0), 2_002_000_000);
        assert_eq!(due(1, 103, 0), 2_002_500_000);
        assert_eq!(times.jumps(), 0);
    }

    #[test]
    fn threads_may_lie_apart_by_a_constant() {
        let mut times = ByTime::new(rate(100), 2);
        for frame in 0..50u32 {
            let index = u64::from(frame);
            let here = FrameTime {
                second: 14_363_767,
                frame,
            };
            let far = FrameTime {
                second: 11_383,
                frame,
            };
            assert_eq!(times.due(key(1), here).0, index * 10_000_000);
            assert_eq!(times.due(key(0), far).0, index * 10_000_000 + 5_000_000);
        }
        assert_eq!(times.jumps(), 0);
    }

    #[test]
    fn wild_times_do_not_stop_the_stream() {
        let mut times = ByTime::new(rate(1000), 1);
        let mut due = |second, frame| times.due(key(0), FrameTime { second, frame }).0;
        assert_eq!(due(100, 0), 0);
        assert_eq!(due(900_000_000, 1), 1_000_000);
        assert_eq!(due(100, 2), 2_000_000);
        assert_eq!(due(100, 3), 3_000_000);
        assert_eq!(due(i64::MAX, u32::MAX), 4_000_000);
        assert_eq!(due(i64::MIN, 0), 5_000_000);
        assert_eq!(times.jumps(), 4);
    }

    #[test]
    fn what_is_overdue_leaves_at_twice_the_rate() {
        let mut pacer = Pacer::new(Nanos(1000));
        let span = Nanos(100);
        assert_eq!(pacer.departure(Nanos(0)), Nanos(1000));
        pacer.left(Nanos(1000), Nanos(0), span);
        assert_eq!(pacer.departure(span), Nanos(1100));
        // The sender is stopped and 9 spans behind.
        let mut now = Nanos(2000);
        pacer.left(now, span, span);
        let mut trains = 2;
        loop {
            let due = Nanos(trains * span.0);
            let departure = pacer.departure(due);
            if departure == Nanos(1000).plus(due) {
                break;
            }
            assert_eq!(departure.since(now), Nanos(50));
            now = departure;
            pacer.left(now, due, span);
            trains += 1;
        }
        // It gains half a span with each train and is there after 18, and gave nothing up.
        assert_eq!(trains, 1 + 18);
        assert_eq!(pacer.slips(), Slips::default());
    }

    #[test]
    fn a_long_stop_is_given_up_and_counted() {
        let mut pacer = Pacer::new(Nanos(0));
        let now = Nanos(5 * Nanos::SECOND.0);
        pacer.left(now, Nanos(0), Nanos(100));
        assert_eq!(
            pacer.slips(),
            Slips {
                count: 1,
                seconds: 5.0
            }
        );
        assert_eq!(pacer.departure(Nanos(100)), now.plus(Nanos(100)));
    }

    #[test]
    fn trains_follow_from_the_rate() {
        assert_eq!(train_length(Nanos(12_500)), 1);
        assert_eq!(train_length(Nanos(10_000)), 1);
        assert_eq!(train_length(Nanos(9_999)), 11);
        assert_eq!(train_length(Nanos(1_000)), 100);
        assert_eq!(train_length(Nanos(390)), 256);
        assert_eq!(train_length(Nanos(0)), LONGEST_TRAIN);
    }

    proptest! {
        #[test]
        fn times_never_panic(times in proptest::collection::vec((any::<u16>(), any::<i64>(), any::<u32>()), 1..50)) {
            let mut schedule = ByTime::new(rate(25_600), 4);
            for (thread, second, frame) in times {
                schedule.due(key(thread), FrameTime { second, frame });
            }
        }

        #[test]
        fn departures_never_run_ahead_of_the_schedule(stalls in proptest::collection::vec(0u64..3000, 1..100)) {
            let mut pacer = Pacer::new(Nanos(0));
            let span = Nanos(100);
            let mut now = Nanos(0);
            for (n, stall) in stalls.into_iter().enumerate() {
                let due = Nanos(n as u64 * span.0);
                now = now.plus(Nanos(stall)).max(pacer.departure(due));
                prop_assert!(now >= due);
                pacer.left(now, due, span);
            }
        }
    }
}
