//! How many frames the seconds of a stream have, and so which cycle a time belongs to.
//!
//! Where the rate is not given, it is learnt at turns of the second:
//! - A thread whose frames came one after another up to the turn, and continue with frame 0, shows it.
//! - Otherwise frames may be missing at the turn. Then the rate is the one that the headers tell, or the least one that was not
//!   exceeded and with which a thread carries 2^n Mbit/s, or else one more than the largest frame number.
//! - A frame number beyond the second shows that a rate which was not given is too small.

use std::collections::VecDeque;

use evlbi_wire::time::{FrameRate, FrameTime};

use super::Lane;
use crate::rate::usual_frame_rate;

/// Frames of a thread that must have come one after another before a turn that shows the rate.
const RUN: u32 = 32;
/// Frames that may be missing before a turn for each one behind it, and one more.
const MAX_BEFORE: i64 = 8;
/// Frames at the turn that may come out of order.
const SLACK: i64 = 3;
/// A frame number may be this much larger than the largest before.
const PLAUSIBLE: i64 = 1024;
/// Changes of the rate that late frames may still belong to.
const MAX_SPANS: usize = 4;

/// Counts cycles of threads: one for each frame of a thread.
#[derive(Clone, Debug)]
pub(super) struct Seconds {
    source: Source,
    /// What the headers say.
    told: Option<i64>,
    /// Bytes of data in a frame.
    payload: usize,
    /// Seconds of one length, the newest last.
    spans: VecDeque<Span>,
    /// The newest second, and the largest frame number in it.
    newest: i64,
    most: i64,
}

/// Where the rate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Given,
    /// A turn of the second showed it.
    Turn,
    /// It is to be shown yet.
    Assumed,
}

/// Seconds from one on.
#[derive(Clone, Copy, Debug)]
struct Span {
    second: i64,
    /// The cycle that it begins with.
    cycle: i64,
    rate: i64,
}

impl Span {
    fn begin(&self, second: i64) -> i64 {
        let seconds = second.saturating_sub(self.second);
        self.cycle.wrapping_add(seconds.wrapping_mul(self.rate))
    }
}

impl Seconds {
    pub fn new(given: Option<FrameRate>) -> Seconds {
        let rate = given.map_or(0, |rate| i64::from(rate.get()));
        Seconds {
            source: match given {
                Some(_) => Source::Given,
                None => Source::Assumed,
            },
            told: None,
            payload: 0,
            spans: VecDeque::from([Span {
                second: 0,
                cycle: 0,
                rate,
            }]),
            newest: 0,
            most: -1,
        }
    }

    /// What headers say of the rate, and how many bytes of data frames have.
    pub fn tell(&mut self, rate: Option<FrameRate>, payload: usize) {
        self.told = rate.map(|rate| i64::from(rate.get()));
        self.payload = payload;
    }

    /// The stream begins in this second, near this frame.
    pub fn begin(&mut self, second: i64, frame: i64) {
        (self.newest, self.most) = (second, frame);
        self.spans[0].second = second;
    }

    /// The rate, as far as it is known.
    pub fn rate(&self) -> Option<FrameRate> {
        let rate = match self.source {
            Source::Assumed => self.told?,
            _ => self.span().rate,
        };
        FrameRate::new(u32::try_from(rate).ok()?)
    }

    /// Frames in the newest second: known, or estimated from those seen.
    pub fn frames(&self) -> i64 {
        match self.source {
            Source::Assumed => self.at_turn(false, 0),
            _ => self.span().rate,
        }
    }

    /// Whether a time lies near those of the frames before, as one whose header is damaged seldom does.
    pub fn is_plausible(&self, time: FrameTime) -> bool {
        let most = match time.second.abs_diff(self.newest) {
            0 => self.most,
            1 => 0,
            _ => return false,
        };
        i64::from(time.frame) <= most + PLAUSIBLE
    }

    /// The cycle of a frame of this thread; `None` beyond the second that was given.
    pub fn cycle(&self, time: FrameTime, lane: &Lane) -> Option<i64> {
        let frame = i64::from(time.frame);
        if self.source == Source::Given && frame >= self.span().rate {
            return None;
        }
        let begin = if time.second > self.newest {
            let seconds = time.second.saturating_sub(self.newest);
            let length = self.length(time, lane);
            let begin = self.span().begin(self.newest);
            begin.wrapping_add(seconds.wrapping_mul(length))
        } else {
            let mut spans = self.spans.iter().rev();
            let span = spans.find(|span| span.second <= time.second).copied();
            let span = span.unwrap_or_else(|| {
                // Before the beginning.
                let first = self.spans[0];
                let rate = Some(first.rate).filter(|rate| *rate > 0);
                Span {
                    rate: rate.unwrap_or_else(|| self.frames()),
                    ..first
                }
            });
            span.begin(time.second)
        };
        Some(begin.wrapping_add(frame))
    }

    /// A frame of this thread was taken. If another second begins with it, returns the second before.
    pub fn heard(&mut self, time: FrameTime, lane: &Lane) -> Option<i64> {
        let frame = i64::from(time.frame);
        let before = self.newest;
        if time.second < before {
            return None;
        }
        if time.second == before {
            self.most = self.most.max(frame);
            self.grow(frame);
            return None;
        }
        if self.source == Source::Assumed {
            self.set_rate(self.length(time, lane));
            if self.shows_rate(time, lane) {
                self.source = Source::Turn;
            }
        }
        (self.newest, self.most) = (time.second, frame);
        self.grow(frame);
        Some(before)
    }

    /// Frame numbers beyond the second disprove a rate that was not given.
    fn grow(&mut self, frame: i64) {
        if self.source != Source::Given && self.span().rate > 0 && frame >= self.span().rate {
            self.source = Source::Assumed;
            self.told = self.told.filter(|told| frame < *told);
            self.set_rate(self.at_turn(false, 0));
        }
    }

    /// The newest second has so many frames.
    fn set_rate(&mut self, rate: i64) {
        let (newest, span) = (self.newest, *self.span());
        if span.rate == rate {
            return;
        }
        let begins = Span {
            second: newest,
            cycle: span.begin(newest),
            rate,
        };
        if let Some(last) = self.spans.back_mut().filter(|last| last.second == newest) {
            *last = begins;
            return;
        }
        self.spans.push_back(begins);
        if self.spans.len() > MAX_SPANS {
            self.spans.pop_front();
        }
    }

    /// Frames in the newest second, when a frame of a later one comes.
    fn length(&self, time: FrameTime, lane: &Lane) -> i64 {
        match self.source {
            Source::Assumed => self.at_turn(self.shows_rate(time, lane), i64::from(time.frame)),
            _ => self.span().rate,
        }
    }

    /// Whether a thread's frames came one after another up to the turn and continue with frame 0.
    fn shows_rate(&self, time: FrameTime, lane: &Lane) -> bool {
        let is_last =
            |last: FrameTime| last.second == self.newest && i64::from(last.frame) == self.most;
        time.second == self.newest + 1
            && time.frame == 0
            && lane.run >= RUN
            && lane.last.is_some_and(is_last)
    }

    /// How many frames the newest second had; `shown`: the turn shows it. Where `behind` frames are missing behind it, so may be
    /// some before it.
    fn at_turn(&self, shown: bool, behind: i64) -> i64 {
        let seen = self.most + 1;
        let usual = usual_frame_rate(self.payload, seen);
        if shown {
            return usual.filter(|rate| rate - seen <= SLACK).unwrap_or(seen);
        }
        let told = self.told.filter(|told| *told >= seen);
        let missing = MAX_BEFORE * (1 + behind);
        let usual = usual.filter(|rate| *rate < 2 * seen && rate - seen <= missing);
        told.or(usual).unwrap_or(seen).max(1)
    }

    fn span(&self) -> &Span {
        &self.spans[self.spans.len() - 1]
    }
}
