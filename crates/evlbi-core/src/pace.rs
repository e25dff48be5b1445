//! Departure times: an absolute schedule that never drifts, and how a sender catches up after falling behind.
//!
//! Nominal times come from a bit rate ([`BitRate::due`](crate::rate::BitRate::due)) or from the times in the frames ([`ByTime`]).
//! The [`Pacer`] converts them to departure times. Overdue data leave faster than the nominal rate by a limited percentage. A
//! sender that is too far behind gives up that time (a *slip*, counted) instead of flooding the path ([`CatchUp`]).

use std::collections::HashMap;

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::StreamKey;
use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// Longest pause in a recording that is kept. A time further ahead is treated as an error.
const MAX_PAUSE: Nanos = Nanos(60_000_000_000);
/// Maximum delay of a frame in its recording that counts as reordering. A time further back is treated as an error.
const MAX_DISORDER: Nanos = Nanos::SECOND;
/// Minimum interval at which each datagram leaves by itself, exactly spaced.
const SINGLE_FROM: Nanos = Nanos(10_000);
/// Length of a burst of datagrams, if the interval is shorter than that.
const TRAIN: Nanos = Nanos(100_000);
/// Maximum number of datagrams in a burst.
pub const MAX_TRAIN: u32 = 256;

/// Nominal times of frames that leave at the times in their headers.
///
/// Each thread is timed relative to its own first frame, since threads of one recording may differ by a constant. Frames of the
/// same time are spread evenly over the duration of a frame. Pauses of the recording are kept up to a minute. A frame up to a
/// second earlier than its predecessor is out of order: it follows at once and moves no other frame.
///
/// Any other time is a jump, which is counted; its frame follows its predecessor after one frame interval. The next frame of the
/// same thread shows whether the recording continues elsewhere or one header is wrong. It either continues the jump, and the
/// thread is timed relative to that from then on, or the thread continues as if nothing had happened.
#[derive(Clone, Debug)]
pub struct ByTime {
    rate: FrameRate,
    threads: u64,
    seen: HashMap<StreamKey, Thread>,
    last_due: Nanos,
    jumps: u64,
}

/// Reference frames of a thread.
#[derive(Clone, Copy, Debug)]
struct Thread {
    anchor: Anchor,
    /// Last frame, if its time was a jump.
    jumped: Option<Anchor>,
}

/// Frame with a known nominal time.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    index: i64,
    due: Nanos,
}

impl ByTime {
    /// Makes a schedule for `threads` sub-streams (station and thread) of `rate` frames per second each.
    pub fn new(rate: FrameRate, threads: usize) -> ByTime {
        ByTime {
            rate,
            threads: threads.max(1) as u64,
            seen: HashMap::new(),
            last_due: Nanos(0),
            jumps: 0,
        }
    }

    /// Returns when a frame is due, relative to the first frame; never before the previous frame.
    pub fn due(&mut self, key: StreamKey, time: FrameTime) -> Nanos {
        let index = time.index(self.rate);
        let next = Anchor {
            index,
            due: self.next_due(),
        };
        let thread = self.seen.get(&key).copied().unwrap_or(Thread {
            anchor: next,
            jumped: None,
        });
        let anchors = [Some(thread.anchor), thread.jumped].into_iter().flatten();
        let mut dues =
            anchors.filter_map(|anchor| Some((anchor, self.due_against(anchor, index)?)));
        let believed = dues.next();
        let (anchor, due) = believed.unwrap_or((thread.anchor, next.due));
        let jumped = believed.is_none().then_some(next);
        self.jumps += u64::from(jumped.is_some());
        self.seen.insert(key, Thread { anchor, jumped });
        self.last_due = due;
        due
    }

    /// Returns when a frame without a time in its header is due: after the one before it.
    pub fn follow(&mut self) -> Nanos {
        self.last_due = self.next_due();
        self.last_due
    }

    /// Returns the time between two frames of the whole stream.
    pub fn frame_span(&self) -> Nanos {
        Nanos(Nanos::SECOND.0 / u64::from(self.rate.get()) / self.threads)
    }

    /// Returns the number of frames whose time was a jump.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }

    /// Returns when the frame after the last one is due, whatever its time.
    fn next_due(&self) -> Nanos {
        match self.seen.is_empty() {
            true => Nanos(0),
            false => self.last_due.plus(self.frame_span()),
        }
    }

    /// Returns when frame `index` is due relative to `anchor`; `None` if that is a jump.
    fn due_against(&self, anchor: Anchor, index: i64) -> Option<Nanos> {
        let frames = i128::from(index) - i128::from(anchor.index);
        let span = frames * i128::from(Nanos::SECOND.0) / i128::from(self.rate.get());
        let ahead = i128::from(anchor.due.0) + span - i128::from(self.last_due.0);
        (-i128::from(MAX_DISORDER.0)..=i128::from(MAX_PAUSE.0))
            .contains(&ahead)
            .then(|| self.last_due.plus(Nanos(ahead.max(0) as u64)))
    }
}

/// Rule for a sender that is behind.
#[derive(Clone, Copy, Debug)]
pub struct CatchUp {
    /// Lag above which time is given up instead of caught up.
    pub max_lag: Nanos,
    /// How much faster than nominal overdue data leave, in percent.
    pub percent: u32,
}

impl CatchUp {
    /// Rule for data, which must arrive: up to twice the rate, unless more than a second behind.
    pub const DATA: CatchUp = CatchUp {
        max_lag: Nanos::SECOND,
        percent: 100,
    };
}

/// Conversion of nominal times to departure times.
#[derive(Clone, Debug)]
pub struct Pacer {
    start: Nanos,
    catch_up: CatchUp,
    /// Earliest next departure, from the rule for catching up.
    not_before: Nanos,
    slipped: Nanos,
    slips: u64,
}

/// Time that a sender gave up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Slips {
    /// Number of times that time was given up.
    pub count: u64,
    /// Total time given up, in seconds.
    pub seconds: f64,
}

impl Pacer {
    /// Makes a schedule that starts at `start`.
    pub fn new(start: Nanos, catch_up: CatchUp) -> Pacer {
        Pacer {
            start,
            catch_up,
            not_before: start,
            slipped: Nanos(0),
            slips: 0,
        }
    }

    /// Returns when a burst that is nominally due at `due` may leave.
    pub fn departure(&self, due: Nanos) -> Nanos {
        self.nominal(due).max(self.not_before)
    }

    /// Returns when a burst that is nominally due at `due` should leave: its departure if nothing before it was late.
    pub fn nominal(&self, due: Nanos) -> Nanos {
        self.start.plus(self.slipped).plus(due)
    }

    /// Returns how far behind a sender whose data last until `due` is at `now`, including the time given up.
    pub fn behind(&self, now: Nanos, due: Nanos) -> Nanos {
        now.since(self.start.plus(due))
    }

    /// Notes that a burst that was nominally due at `due` and lasts `span` left at `now`.
    pub fn left(&mut self, now: Nanos, due: Nanos, span: Nanos) {
        let lag = now.since(self.nominal(due));
        if lag > self.catch_up.max_lag {
            self.slipped = self.slipped.plus(lag);
            self.slips += 1;
        }
        let min_span = u128::from(span.0) * 100 / u128::from(100 + self.catch_up.percent);
        self.not_before = now.plus(Nanos(min_span as u64));
    }

    /// Lets nothing leave before `moment`.
    pub fn hold(&mut self, moment: Nanos) {
        self.not_before = self.not_before.max(moment);
    }

    /// Returns what is nominally due at `now`.
    pub fn due_at(&self, now: Nanos) -> Nanos {
        now.since(self.start.plus(self.slipped))
    }

    /// Allows the next burst to leave at `now` even if the last one was late.
    pub fn hurry(&mut self, now: Nanos) {
        self.not_before = self.not_before.min(now.max(self.start));
    }

    /// Returns the time given up so far.
    pub fn slips(&self) -> Slips {
        Slips {
            count: self.slips,
            seconds: self.slipped.as_secs_f64(),
        }
    }
}

/// Returns how many datagrams leave back to back if one is due every `interval`: one at intervals of 10 us and more, else bursts
/// of about 100 us.
pub fn train_length(interval: Nanos) -> u32 {
    if interval >= SINGLE_FROM {
        return 1;
    }
    let datagrams = TRAIN.0.div_ceil(interval.0.max(1));
    datagrams.min(MAX_TRAIN.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::BitRate;
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
        // 1464 bytes at 937 Mbit/s: 12.4994... us, never a whole number of nanoseconds. 10^12 packets take 11 712 / 937 * 10^6 s
        // = 12 499 466 s 382 070 437 ns and a fraction of one.
        let schedule = BitRate::new(937_000_000).unwrap();
        let n = 1_000_000_000_000u64;
        assert_eq!(schedule.due(n * 1464), Nanos(12_499_466_382_070_437));
        // The next packet is still exactly one interval later, to the nanosecond.
        let interval = schedule.due((n + 1) * 1464).since(schedule.due(n * 1464));
        assert!((12_499..=12_500).contains(&interval.0), "{interval:?}");
        // A year at 32 Gbit/s still fits.
        let fast = BitRate::new(32_000_000_000).unwrap();
        assert_eq!(
            fast.due(4_000_000_000u64 * 31_536_000),
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
        // A pause in the recording is kept.
        assert_eq!(due(0, 103, 0), 2_002_000_000);
        assert_eq!(due(1, 103, 0), 2_002_500_000);
        assert_eq!(times.jumps(), 0);
    }

    #[test]
    fn threads_may_differ_by_a_constant() {
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
        assert_eq!(due(100, 6), 6_000_000);
        assert_eq!(times.jumps(), 3);
    }

    #[test]
    fn a_wild_time_loses_no_pause_of_the_recording() {
        let mut times = ByTime::new(rate(1000), 2);
        let mut due = |thread, second, frame| times.due(key(thread), FrameTime { second, frame }).0;
        assert_eq!(due(0, 100, 0), 0);
        assert_eq!(due(1, 100, 0), 500_000);
        assert_eq!(due(0, 500_000, 1), 1_000_000);
        // Frames 1 to 9 of thread 1 are missing.
        assert_eq!(due(1, 100, 10), 10_500_000);
        assert_eq!(due(0, 100, 11), 11_000_000);
        assert_eq!(times.jumps(), 1);
    }

    #[test]
    fn a_recording_that_continues_elsewhere_is_followed() {
        let mut times = ByTime::new(rate(1000), 2);
        let mut due = |thread, second, frame| times.due(key(thread), FrameTime { second, frame }).0;
        assert_eq!(due(0, 100, 0), 0);
        assert_eq!(due(1, 100, 0), 500_000);
        // The next scan, an hour later; and one from the year before.
        for (jump, second) in [(1, 3700), (2, -31_000_000)] {
            let begins = jump * 5_000_000 - 4_000_000;
            for frame in 0..5 {
                let step = begins + u64::from(frame) * 1_000_000;
                assert_eq!(due(0, second, frame), step);
                assert_eq!(due(1, second, frame), step + 500_000);
            }
        }
        assert_eq!(times.jumps(), 4);
    }

    #[test]
    fn frames_out_of_order_do_not_delay_the_rest() {
        // The fourth of every ten frames arrives three places late.
        let order = [0, 1, 2, 4, 5, 6, 3, 7, 8, 9];
        let mut times = ByTime::new(rate(1000), 1);
        let mut last = 0;
        for ten in 0..10_000u64 {
            for (place, frame) in order.into_iter().enumerate() {
                let index = ten * 10 + frame;
                let time = FrameTime::from_index(index as i64, rate(1000));
                let due = times.due(key(0), time).0;
                // The late one leaves with the one before it.
                let expected = if place == 6 { index + 3 } else { index };
                assert_eq!(due, expected * 1_000_000);
                assert!(due >= last);
                last = due;
            }
        }
        assert_eq!(times.jumps(), 0);
    }

    #[test]
    fn threads_in_any_order_keep_the_time() {
        let mut times = ByTime::new(rate(1000), 8);
        let slot = Nanos(125_000);
        for index in 0..10_000u64 {
            for place in 0..8 {
                let thread = (place + index % 8) % 8;
                let time = FrameTime::from_index(index as i64, rate(1000));
                let due = times.due(key(thread as u16), time).0;
                let begins = index * 1_000_000;
                assert!(
                    (begins..begins + 8 * slot.0).contains(&due),
                    "{index}: {due}"
                );
            }
        }
        assert_eq!(times.jumps(), 0);
    }

    #[test]
    fn recordings_may_start_out_of_order() {
        let mut times = ByTime::new(rate(1000), 1);
        let mut due = |frame| times.due(key(0), FrameTime { second: 100, frame }).0;
        assert_eq!([due(3), due(0), due(1), due(4)], [0, 0, 0, 1_000_000]);
        assert_eq!(times.jumps(), 0);
    }

    #[test]
    fn overdue_data_leave_at_twice_the_rate() {
        let mut pacer = Pacer::new(Nanos(1000), CatchUp::DATA);
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
        // It gains half a span with each burst, has caught up after 18, and gave nothing up.
        assert_eq!(trains, 1 + 18);
        assert_eq!(pacer.slips(), Slips::default());
    }

    #[test]
    fn a_long_stop_is_given_up_and_counted() {
        let mut pacer = Pacer::new(Nanos(0), CatchUp::DATA);
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
        // Time given up stays lost, although nothing is late from now on.
        let later = now.plus(Nanos(100));
        assert_eq!(later.since(pacer.nominal(Nanos(100))), Nanos(0));
        assert_eq!(pacer.behind(later, Nanos(100)), now);
    }

    #[test]
    fn catching_up_is_late_by_the_schedule() {
        let mut pacer = Pacer::new(Nanos(0), CatchUp::DATA);
        let now = Nanos(900_000_000);
        pacer.left(now, Nanos(0), Nanos(100));
        // The next one leaves when catching up allows, which is still late.
        let next = pacer.departure(Nanos(100));
        assert_eq!(next, now.plus(Nanos(50)));
        assert_eq!(next.since(pacer.nominal(Nanos(100))), Nanos(899_999_950));
    }

    #[test]
    fn burst_lengths_follow_from_the_rate() {
        assert_eq!(train_length(Nanos(12_500)), 1);
        assert_eq!(train_length(Nanos(10_000)), 1);
        assert_eq!(train_length(Nanos(9_999)), 11);
        assert_eq!(train_length(Nanos(1_000)), 100);
        assert_eq!(train_length(Nanos(390)), 256);
        assert_eq!(train_length(Nanos(0)), MAX_TRAIN);
    }

    proptest! {
        #[test]
        fn times_never_panic(times in proptest::collection::vec((any::<u16>(), any::<i64>(), any::<u32>()), 1..50)) {
            let mut schedule = ByTime::new(rate(25_600), 4);
            let mut last = Nanos(0);
            for (thread, second, frame) in times {
                let due = schedule.due(key(thread), FrameTime { second, frame });
                prop_assert!(due >= last);
                last = due;
            }
        }

        #[test]
        fn gaps_and_disorder_never_drift(
            steps in proptest::collection::vec((1i64..2000, 0i64..500), 1..200),
            threads in 1u16..5, frames in 1u32..50_000,
        ) {
            // Randomly lost frames; between the others, any number arrives up to half a second late.
            let mut schedule = ByTime::new(rate(frames), usize::from(threads));
            let due_of = |index: i64| (index as u128 * 1_000_000_000 / u128::from(frames)) as u64;
            let late_by = |permille: i64| permille * i64::from(frames) / 1000;
            let mut index = 0;
            for thread in 0..threads {
                schedule.due(key(thread), FrameTime::from_index(0, rate(frames)));
            }
            for (step, late) in steps {
                index += step % i64::from(frames) + 1;
                for thread in 0..threads {
                    let due = schedule.due(key(thread), FrameTime::from_index(index, rate(frames)));
                    let slot = schedule.frame_span().0 * u64::from(thread);
                    prop_assert_eq!(due.0, due_of(index) + slot);
                }
                let back = (index - late_by(late)).max(0);
                let straggler = schedule.due(key(0), FrameTime::from_index(back, rate(frames)));
                prop_assert!(straggler.0 >= due_of(index));
                prop_assert!(straggler.0 < due_of(index + 1));
            }
            prop_assert_eq!(schedule.jumps(), 0);
        }

        #[test]
        fn a_rate_is_exact_anywhere(bits in 1u64..1_000_000_000_000, bytes in 0u64..1 << 40) {
            let Nanos(due) = BitRate::new(bits).unwrap().due(bytes);
            // The largest whole number of nanoseconds in which no more than these bytes are sent.
            let bits_by = |nanos: u64| u128::from(nanos) * u128::from(bits);
            let wanted = u128::from(bytes) * 8_000_000_000;
            prop_assert!(due == u64::MAX || (bits_by(due) <= wanted && wanted < bits_by(due + 1)));
        }

        #[test]
        fn no_stall_makes_more_than_twice_the_rate(stalls in proptest::collection::vec(0u64..3000, 1..100)) {
            let mut pacer = Pacer::new(Nanos(0), CatchUp::DATA);
            let span = Nanos(100);
            let mut left = Vec::new();
            let mut now = Nanos(0);
            for (n, stall) in stalls.into_iter().enumerate() {
                let due = Nanos(n as u64 * span.0);
                // Stopped now and then, else punctual.
                let stopped = if stall > 2000 { stall * 10 } else { 0 };
                now = now.plus(Nanos(stopped)).max(pacer.departure(due));
                pacer.left(now, due, span);
                left.push(now);
            }
            for (from, first) in left.iter().enumerate() {
                for (to, last) in left.iter().enumerate().skip(from) {
                    let trains = (to - from) as u64;
                    prop_assert!(last.since(*first).0 >= trains * span.0 / 2);
                }
            }
        }

        #[test]
        fn departures_never_run_ahead_of_the_schedule(stalls in proptest::collection::vec(0u64..3000, 1..100)) {
            let mut pacer = Pacer::new(Nanos(0), CatchUp::DATA);
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
