//! Gaps that a file next to the input lists, for the gaps file of the output.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use evlbi_core::deframe::Frame;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Gaps, TimeGap};
use evlbi_wire::vdif::StreamKey;

use crate::gaps::GapsWriter;
use crate::lane::List;

/// Frames per second if these are unknown: the most that a header counts. The runs of such a list do not reach into another second.
const ANY_RATE: u32 = 1 << 24;

/// Listed gaps of each thread, and the first frame after those so far.
pub struct Listed {
    rate: FrameRate,
    threads: BTreeMap<StreamKey, (List, i64)>,
}

impl Listed {
    /// Takes the gaps of the threads that `is_kept` names.
    pub fn new(
        gaps: &Gaps,
        frame_rate: Option<FrameRate>,
        is_kept: impl Fn(StreamKey) -> bool,
    ) -> Listed {
        let rate = frame_rate.or(gaps.frame_rate);
        let rate = rate.or(FrameRate::new(ANY_RATE));
        let rate = rate.unwrap_or_else(|| unreachable!("a rate above 0"));
        let keys: BTreeSet<StreamKey> = gaps.time.iter().map(|gap| gap.key).collect();
        let keys = keys.into_iter().filter(|key| is_kept(*key));
        let threads = keys.map(|key| (key, (List::of(gaps, key, rate), i64::MIN)));
        Listed {
            rate,
            threads: threads.collect(),
        }
    }

    /// Adds the frames before this one that the input does not have.
    pub fn skip_to(&mut self, frame: &Frame, to: &mut GapsWriter) -> io::Result<()> {
        let (Some(key), Some(time)) = (frame.key, frame.time) else {
            return Ok(());
        };
        let Some((list, reached)) = self.threads.get_mut(&key) else {
            return Ok(());
        };
        let number = time.index(self.rate);
        skip(list, *reached..number, key, self.rate, to)?;
        *reached = number.saturating_add(1).max(*reached);
        Ok(())
    }

    /// Adds what is missing in a frame that is kept at a byte of the output; `None` if only parts of it are kept.
    pub fn keep(
        &self,
        frame: &Frame,
        first_byte: Option<u64>,
        to: &mut GapsWriter,
    ) -> io::Result<()> {
        let (Some(key), Some(start)) = (frame.key, frame.time) else {
            return Ok(());
        };
        let list = self.threads.get(&key).map(|(list, _)| list);
        let runs = list.map(|list| list.with(start.index(self.rate)));
        for run in runs.into_iter().flatten() {
            to.add(TimeGap {
                key,
                start,
                frames: 1,
                first_byte,
                bytes: run.bytes.clone(),
                cause: run.cause,
            })?;
        }
        Ok(())
    }

    /// Adds the frames after the last one.
    pub fn finish(&self, to: &mut GapsWriter) -> io::Result<()> {
        for (key, (list, reached)) in &self.threads {
            skip(list, *reached..i64::MAX, *key, self.rate, to)?;
        }
        Ok(())
    }
}

/// Adds the frames that are listed as a whole and of which the input has nothing.
fn skip(
    list: &List,
    mut frames: Range<i64>,
    key: StreamKey,
    rate: FrameRate,
    to: &mut GapsWriter,
) -> io::Result<()> {
    while let Some(run) = list.first_in(frames.clone()) {
        frames.start = run.frames.end;
        to.add(TimeGap {
            key,
            start: FrameTime::from_index(run.frames.start, rate),
            frames: run.frames.start.abs_diff(run.frames.end),
            first_byte: None,
            bytes: None,
            cause: run.cause,
        })?;
    }
    Ok(())
}
