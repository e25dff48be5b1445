//! Frames per second of a stream, and hence the cycle of a time.
//!
//! If the rate is not given, it is learnt at turns of the second:
//! - A thread whose frames arrived consecutively up to the turn, and continue with frame 0, shows it.
//! - Otherwise frames may be missing at the turn. Then the rate is the one in the headers. Without that it is the lowest rate
//!   that was not exceeded and with which a thread carries 2^n Mbit/s, or else one more than the largest frame number.
//! - A frame number beyond the second shows that a rate which was not given is too low.

use std::collections::VecDeque;

use evlbi_wire::time::{FrameRate, FrameTime};

use super::Lane;
use crate::rate::usual_frame_rate;

/// Minimum number of consecutive frames of a thread before a turn that shows the rate.
const RUN: u32 = 32;
/// Maximum number of frames that may be missing before a turn for each one missing after it, plus one.
const MAX_BEFORE: i64 = 8;
/// Maximum number of frames at the turn that may be out of order.
const SLACK: i64 = 3;
/// Maximum step by which a frame number may exceed the largest before.
const PLAUSIBLE: i64 = 1024;
/// Maximum number of changes of the rate that late frames may still belong to.
const MAX_SPANS: usize = 4;

/// Counter of cycles of threads: one for each frame of a thread.
#[derive(Clone, Debug)]
pub(super) struct Seconds {
    source: Source,
    /// Rate in the headers.
    told: Option<i64>,
    /// Bytes of data in a frame.
    payload: usize,
    /// Seconds of one length, the newest last.
    spans: VecDeque<Span>,
    /// Newest second, and the largest frame number in it.
    newest: i64,
    max: i64,
}

/// Source of the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Given,
    /// A turn of the second showed it.
    Turn,
    /// Assumed until a turn shows it.
    Assumed,
}

/// Seconds of one length, from a second on.
#[derive(Clone, Copy, Debug)]
struct Span {
    second: i64,
    /// First cycle.
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
            max: -1,
        }
    }

    /// Notes the rate in the headers, and the bytes of data in a frame.
    pub fn tell(&mut self, rate: Option<FrameRate>, payload: usize) {
        self.told = rate.map(|rate| i64::from(rate.get()));
        self.payload = payload;
    }

    /// Starts the stream in this second, near this frame.
    pub fn begin(&mut self, second: i64, frame: i64) {
        (self.newest, self.max) = (second, frame);
        self.spans[0].second = second;
    }

    /// Returns the rate, as far as it is known.
    pub fn rate(&self) -> Option<FrameRate> {
        let rate = match self.source {
            Source::Assumed => self.told?,
            _ => self.span().rate,
        };
        FrameRate::new(u32::try_from(rate).ok()?)
    }

    /// Returns the frames in the newest second: known, or estimated from those seen.
    pub fn frames(&self) -> i64 {
        match self.source {
            Source::Assumed => self.at_turn(false, 0),
            _ => self.span().rate,
        }
    }

    /// Returns whether a time is near those of the frames before, which is rare for a damaged header.
    pub fn is_plausible(&self, time: FrameTime) -> bool {
        let max = match time.second.abs_diff(self.newest) {
            0 => self.max,
            1 => 0,
            _ => return false,
        };
        i64::from(time.frame) <= max + PLAUSIBLE
    }

    /// Returns the cycle of a frame of this thread; `None` if it is beyond a given second.
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
                // Before the start.
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

    /// Notes an accepted frame of this thread. If another second starts with it, returns the second before.
    pub fn heard(&mut self, time: FrameTime, lane: &Lane) -> Option<i64> {
        let frame = i64::from(time.frame);
        let before = self.newest;
        if time.second < before {
            return None;
        }
        if time.second == before {
            self.max = self.max.max(frame);
            self.grow(frame);
            return None;
        }
        if self.source == Source::Assumed {
            self.set_rate(self.length(time, lane));
            if self.shows_rate(time, lane) {
                self.source = Source::Turn;
            }
        }
        (self.newest, self.max) = (time.second, frame);
        self.grow(frame);
        Some(before)
    }

    /// Raises a rate that was not given if a frame number exceeds it.
    fn grow(&mut self, frame: i64) {
        if self.source != Source::Given && self.span().rate > 0 && frame >= self.span().rate {
            self.source = Source::Assumed;
            self.told = self.told.filter(|told| frame < *told);
            self.set_rate(self.at_turn(false, 0));
        }
    }

    /// Sets the number of frames in the newest second.
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

    /// Returns the frames in the newest second, when a frame of a later one arrives.
    fn length(&self, time: FrameTime, lane: &Lane) -> i64 {
        match self.source {
            Source::Assumed => self.at_turn(self.shows_rate(time, lane), i64::from(time.frame)),
            _ => self.span().rate,
        }
    }

    /// Returns whether a thread's frames arrived consecutively up to the turn and continue with frame 0.
    fn shows_rate(&self, time: FrameTime, lane: &Lane) -> bool {
        let is_last =
            |last: FrameTime| last.second == self.newest && i64::from(last.frame) == self.max;
        time.second == self.newest + 1
            && time.frame == 0
            && lane.run >= RUN
            && lane.last.is_some_and(is_last)
    }

    /// Returns how many frames the newest second had; `shown`: the turn shows it. If `behind` frames are missing after the turn,
    /// some may be missing before it.
    fn at_turn(&self, shown: bool, behind: i64) -> i64 {
        let seen = self.max + 1;
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
