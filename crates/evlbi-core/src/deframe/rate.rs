//! Frames per second: given, or learnt at the end of a second.

use evlbi_wire::time::{FrameRate, FrameTime};

/// Time that may be before the start of the second (negative frame numbers), since it is not known yet how many frames the second
/// before had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    pub second: i64,
    pub frame: i64,
}

impl From<FrameTime> for Tick {
    fn from(time: FrameTime) -> Tick {
        Tick {
            second: time.second,
            frame: i64::from(time.frame),
        }
    }
}

impl Tick {
    /// Returns the time; `None` before the start of the second.
    pub fn time(self) -> Option<FrameTime> {
        Some(FrameTime {
            second: self.second,
            frame: u32::try_from(self.frame).ok()?,
        })
    }
}

/// Source of the frame rate, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// From the distance of two frames in the stream, with others lost between them.
    Distance,
    /// From the last frame of a second and the first of the next, without loss between them.
    Turn,
    /// From a header.
    Header,
    /// From the user.
    Given,
    /// From the times in two headers, which contain fractions of a second.
    Times,
}

/// Number of turns of the second that must agree on a larger rate than the current one: a single one may be a damaged header.
const TURNS_FOR_MORE: u32 = 2;
/// Number of turns that must agree on a smaller rate: usually the source has lost the last frames of a second, of each thread.
const TURNS_FOR_LESS: u32 = 200;
/// Number of steps of equal length that make a cycle with which distances can be measured.
const STEADY: u32 = 3;

/// Frame rate of the stream, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Rate {
    known: Option<(FrameRate, Origin)>,
    /// Another rate that turns of the second showed, and how many in a row.
    rival: Option<(FrameRate, u32)>,
    /// Frames of the stream between two consecutive frames of a thread.
    cycle: i64,
    /// Number of consecutive steps of this length.
    steady: u32,
}

impl Rate {
    pub fn given(rate: Option<FrameRate>) -> Rate {
        Rate {
            known: rate.map(|rate| (rate, Origin::Given)),
            ..Rate::default()
        }
    }

    pub fn get(&self) -> Option<FrameRate> {
        self.known.map(|(rate, _)| rate)
    }

    /// Returns the frames of the stream between two consecutive frames of a thread, if that is constant.
    pub fn cycle(&self) -> Option<i64> {
        (self.steady >= STEADY).then_some(self.cycle)
    }

    /// Notes the rate in a header.
    pub fn tell(&mut self, rate: Option<FrameRate>) {
        if let Some(rate) = rate
            && self.known.is_none_or(|(_, origin)| origin < Origin::Header)
        {
            self.known = Some((rate, Origin::Header));
        }
    }

    /// Notes the rate that the times in two headers show.
    pub fn measure(&mut self, rate: Option<FrameRate>) {
        if let Some(rate) = rate {
            self.known = Some((rate, Origin::Times));
        }
    }

    /// Keeps the rate of the previous sender as a first guess.
    pub fn restart(&mut self) {
        if let Some((_, origin)) = &mut self.known
            && *origin != Origin::Given
        {
            *origin = Origin::Distance;
        }
        self.rival = None;
        self.steady = 0;
    }

    /// Notes two frames of a thread in one second, one frame number and `distance` frames of the stream apart.
    #[inline]
    pub fn step(&mut self, to: FrameTime, distance: i64) {
        if distance == self.cycle {
            self.steady = self.steady.saturating_add(1);
        } else {
            self.cycle = distance;
            self.steady = 1;
        }
        if let Some((rate, origin)) = self.known
            && to.frame >= rate.get()
            && origin < Origin::Given
        {
            self.known = None;
        }
    }

    /// Notes two frames of a thread in different seconds, `distance` frames of the stream apart; `clean`: all frames between them
    /// arrived.
    pub fn turn(&mut self, from: FrameTime, to: FrameTime, distance: i64, clean: bool) {
        if from.second.checked_add(1) != Some(to.second) {
            return;
        }
        if clean && to.frame == 0 {
            self.count_turn(from.frame.saturating_add(1));
        } else if self.known.is_none()
            && let Some(rate) = self.by_distance(from, to, distance)
        {
            self.known = Some((rate, Origin::Distance));
        }
    }

    fn count_turn(&mut self, rate: u32) {
        let Some(rate) = FrameRate::new(rate) else {
            return;
        };
        let believed = match self.known {
            None | Some((_, Origin::Distance)) => {
                self.known = Some((rate, Origin::Turn));
                return;
            }
            Some((_, Origin::Given | Origin::Times)) => return,
            Some((believed, _)) => believed,
        };
        if rate == believed {
            self.rival = None;
            return;
        }
        let turns = match self.rival {
            Some((rival, turns)) if rival == rate => turns + 1,
            _ => 1,
        };
        let needed = match rate > believed {
            true => TURNS_FOR_MORE,
            false => TURNS_FOR_LESS,
        };
        if turns >= needed {
            self.known = Some((rate, Origin::Turn));
            self.rival = None;
        } else {
            self.rival = Some((rate, turns));
        }
    }

    fn by_distance(&self, from: FrameTime, to: FrameTime, distance: i64) -> Option<FrameRate> {
        let cycle = self.cycle()?;
        if cycle <= 0 || distance % cycle != 0 {
            return None;
        }
        let frames = (distance / cycle).checked_add(i64::from(from.frame))?;
        let rate = u32::try_from(frames - i64::from(to.frame)).ok()?;
        FrameRate::new(rate).filter(|rate| rate.get() > from.frame.max(to.frame))
    }

    /// Returns the time `frames` frames after `tick`.
    pub fn after(&self, tick: Tick, frames: i64) -> Tick {
        let frame = tick.frame.saturating_add(frames);
        match self.get() {
            Some(rate) if !(0..i64::from(rate.get())).contains(&frame) => {
                let rate = i64::from(rate.get());
                Tick {
                    second: tick.second.saturating_add(frame.div_euclid(rate)),
                    frame: frame.rem_euclid(rate),
                }
            }
            _ => Tick { frame, ..tick },
        }
    }

    /// Returns whether the frames inserted for `missing` lost ones, the last of them at `last`, contradict the next frame of
    /// their thread, at `next`.
    pub fn contradicts(&self, last: Tick, missing: i64, next: FrameTime) -> bool {
        let rate = self.get().map(|rate| i64::from(rate.get()));
        let on = self.between(last, next.into());
        rate.is_some_and(|rate| last.frame >= rate) || on.is_some_and(|on| on <= 0 && on > -missing)
    }

    /// Returns the frames from `from` to `to`; `None` if the rate is needed and unknown.
    pub fn between(&self, from: Tick, to: Tick) -> Option<i64> {
        let frames = to.frame.saturating_sub(from.frame);
        if from.second == to.second {
            return Some(frames);
        }
        let rate = i64::from(self.get()?.get());
        let seconds = to.second.saturating_sub(from.second);
        Some(seconds.saturating_mul(rate).saturating_add(frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64, frame: u32) -> FrameTime {
        FrameTime { second, frame }
    }

    fn rate(rate: u32) -> Option<FrameRate> {
        FrameRate::new(rate)
    }

    #[test]
    fn a_clean_turn_gives_the_rate() {
        let mut learnt = Rate::default();
        learnt.turn(at(7, 24), at(8, 0), 3, true);
        assert_eq!(learnt.get(), rate(25));
        assert_eq!(learnt.after(at(7, 24).into(), 1), at(8, 0).into());
        assert_eq!(learnt.after(at(7, 0).into(), -1), at(6, 24).into());
        assert_eq!(
            learnt.between(at(7, 24).into(), at(9, 1).into()),
            Some(25 + 2)
        );
    }

    #[test]
    fn a_distance_gives_the_rate_when_the_cycle_is_steady() {
        let mut learnt = Rate::default();
        let turn = |learnt: &mut Rate| learnt.turn(at(7, 20), at(8, 2), 21, false);
        turn(&mut learnt);
        assert_eq!(learnt.get(), None);
        for frame in 1..=STEADY {
            learnt.step(at(7, frame), 3);
        }
        learnt.turn(at(7, 20), at(8, 2), 22, false);
        assert_eq!(learnt.get(), None);
        turn(&mut learnt);
        assert_eq!(learnt.get(), rate(25));
    }

    #[test]
    fn a_frame_beyond_the_second_disproves_a_detected_rate_but_not_a_given_one() {
        let mut learnt = Rate::default();
        learnt.turn(at(7, 23), at(8, 0), 1, true);
        learnt.step(at(8, 24), 1);
        assert_eq!(learnt.get(), None);
        let mut given = Rate::given(rate(24));
        given.step(at(8, 24), 1);
        for second in 0..300 {
            given.turn(at(second, 24), at(second + 1, 0), 1, true);
        }
        assert_eq!(given.get(), rate(24));
    }

    #[test]
    fn a_header_outranks_a_detected_rate_but_not_a_given_one() {
        let mut learnt = Rate::default();
        learnt.turn(at(7, 23), at(8, 0), 1, true);
        learnt.tell(rate(25));
        assert_eq!(learnt.get(), rate(25));
        learnt.tell(None);
        learnt.tell(rate(26));
        assert_eq!(learnt.get(), rate(25), "the first one");
        let mut given = Rate::given(rate(24));
        given.tell(rate(25));
        assert_eq!(given.get(), rate(24));
    }

    #[test]
    fn times_outrank_a_given_rate() {
        let mut given = Rate::given(rate(100));
        given.measure(None);
        assert_eq!(given.get(), rate(100));
        given.measure(rate(400));
        for second in 0..300 {
            given.turn(at(second, 24), at(second + 1, 0), 1, true);
        }
        assert_eq!(given.get(), rate(400));
        given.restart();
        given.measure(rate(800));
        assert_eq!(given.get(), rate(800));
    }

    #[test]
    fn one_damaged_turn_does_not_change_the_rate() {
        let mut learnt = Rate::default();
        learnt.turn(at(7, 24), at(8, 0), 1, true);
        learnt.turn(at(8, 4000), at(9, 0), 1, true);
        learnt.turn(at(8, 23), at(9, 0), 1, true);
        learnt.turn(at(9, 24), at(10, 0), 1, true);
        assert_eq!(learnt.get(), rate(25));
        learnt.turn(at(9, 49), at(10, 0), 1, true);
        learnt.turn(at(10, 49), at(11, 0), 1, true);
        learnt.turn(at(11, 49), at(12, 0), 1, true);
        assert_eq!(learnt.get(), rate(50));
        for second in 0..300 {
            learnt.turn(at(second, 24), at(second + 1, 0), 1, true);
        }
        assert_eq!(learnt.get(), rate(25));
    }

    #[test]
    fn a_second_sender_sets_another_rate() {
        let mut learnt = Rate::default();
        learnt.turn(at(7, 24), at(8, 0), 1, true);
        learnt.restart();
        assert_eq!(learnt.get(), rate(25));
        learnt.turn(at(7, 9), at(8, 0), 1, true);
        assert_eq!(learnt.get(), rate(10));
    }
}
