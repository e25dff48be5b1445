//! Counts the frames of a second, at several turns of the second all over a recording: frames can be lost at any of them.

use std::fs::File;

use evlbi_core::rate::usual_frame_rate;
use evlbi_wire::time::FrameRate;

use super::{First, Recording, RecordingError};

/// Maximum number of turns that are examined.
const TURNS: i64 = 8;
/// Consecutive frames required before a turn, with the first frame of the next second after it, for a complete turn.
const RUN: usize = 8;
/// Complete turns that must agree on a rate that overrides the header or a common rate.
const SHOWN: usize = 2;
/// Maximum number of frames by which a turn may fall short of a common rate.
const SLACK: i64 = 3;

/// Number of frames before the end of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    /// Frames of the second up to the last one found.
    frames: i64,
    /// Whether the turn is complete: consecutive frames, directly followed by the next second.
    shown: bool,
}

impl Recording {
    /// Returns the frame rate from several seconds of the first frame's thread and from its header; `None` if no second ends.
    pub(super) fn count_frames_of_seconds(
        &self,
        file: &File,
        first: First,
    ) -> Result<Option<FrameRate>, RecordingError> {
        let Some(last) = self.last.filter(|last| last.second > first.time.second) else {
            return Ok(None);
        };
        let ends = last.second - first.time.second;
        let examined = ends.min(TURNS);
        let mut turns = Vec::new();
        for turn in 0..examined {
            let second = first.time.second + 1 + ends * turn / examined;
            turns.extend(self.turn(file, first, second)?);
        }
        if turns.is_empty() {
            return Ok(None);
        }
        turns.push(Turn {
            frames: i64::from(last.frame) + 1,
            shown: false,
        });
        let payload = self.frame_length.unwrap_or(0) - self.header_length().unwrap_or(0);
        let rate = decide(&turns, first.told, payload);
        Ok(u32::try_from(rate).ok().and_then(FrameRate::new))
    }

    /// Returns the turn at which `second` begins, if the frames are in order.
    fn turn(&self, file: &File, first: First, second: i64) -> Result<Option<Turn>, RecordingError> {
        let near = 4 * self.cycle();
        let (mut before, mut behind) = (first.number, self.frames());
        while behind - before > 1 {
            let middle = before + (behind - before) / 2;
            match self.time_among(file, first, (middle..behind).take(near))? {
                Some((_, time)) if time.second < second => before = middle,
                _ => behind = middle,
            }
        }
        let after = (behind..self.frames()).take(near);
        let Some((_, next)) = self.time_among(file, first, after)? else {
            return Ok(None);
        };
        // Backwards through the frames of the thread.
        let mut frames: Vec<u32> = Vec::new();
        for number in (first.number..behind).rev().take(RUN * self.cycle()) {
            let Some((key, time)) = self.header_of(file, number)? else {
                continue;
            };
            if key == first.key {
                if time.second != second - 1 {
                    break;
                }
                frames.push(time.frame);
            }
        }
        let is_run = frames.windows(2).all(|pair| pair[0] == pair[1] + 1);
        Ok(frames
            .first()
            .filter(|_| next.second == second)
            .map(|last| Turn {
                frames: i64::from(*last) + 1,
                shown: is_run && frames.len() >= RUN && next.frame == 0,
            }))
    }

    fn cycle(&self) -> usize {
        self.keys.len().max(1)
    }
}

/// Returns the highest rate seen. The header's rate, or a common rate slightly above, has priority unless several complete turns agree on
/// less.
fn decide(turns: &[Turn], told: Option<FrameRate>, payload: usize) -> i64 {
    let most = |turns: &mut dyn Iterator<Item = &Turn>| turns.map(|turn| turn.frames).max();
    let shown = most(&mut turns.iter().filter(|turn| turn.shown));
    let Some(seen) = shown.max(most(&mut turns.iter())) else {
        return 0;
    };
    let agree = |turn: &&Turn| turn.shown && turn.frames == seen;
    let is_sure = turns.iter().filter(agree).count() >= SHOWN;
    let told = told.map(|rate| i64::from(rate.get()));
    if let Some(told) = told.filter(|told| *told >= seen)
        && (!is_sure || told - seen <= SLACK)
    {
        return told;
    }
    let usual = usual_frame_rate(payload, seen).filter(|rate| rate - seen <= SLACK);
    usual.filter(|_| !is_sure).unwrap_or(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_one_with_the_fewest_missing_frames() {
        let turns = |shown: &[i64], cut: &[i64]| -> Vec<Turn> {
            let turn = |shown: bool| {
                move |frames: &i64| Turn {
                    frames: *frames,
                    shown,
                }
            };
            let cut = cut.iter().map(turn(false));
            shown.iter().map(turn(true)).chain(cut).collect()
        };
        let rate = |frames| FrameRate::new(frames);
        for (turns, told, expected) in [
            // One second lacks its last frame; the only one lacks its last frames; any number of them.
            (turns(&[1999, 2000, 2000], &[]), None, 2000),
            (turns(&[1999], &[]), None, 2000),
            (turns(&[1998], &[1200]), None, 2000),
            (turns(&[1400, 1700], &[2000]), None, 2000),
            // An uncommon rate in all seconds.
            (turns(&[1999, 1999], &[]), None, 1999),
            // The header is right about lost frames, and wrong if none is lost.
            (turns(&[1500], &[1700]), rate(2000), 2000),
            (turns(&[1999, 1999], &[]), rate(2000), 2000),
            (turns(&[2000, 2000], &[]), rate(8400), 2000),
            (turns(&[2000], &[]), rate(1000), 2000),
        ] {
            assert_eq!(decide(&turns, told, 8000), expected, "{turns:?} {told:?}");
        }
    }
}
