//! Missing samples of frames that are turned: where, why, and what stands there instead.

use std::ops::Range;

use evlbi_wire::fill;
use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::{Cause, Gaps};
use evlbi_wire::vdif::StreamKey;

use super::frame::Piece;

/// Content in the place of missing samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Nothing: the input has no frame there.
    Nothing,
    /// An invalid frame or the fill pattern.
    Fill,
    /// Data that a gaps file lists as missing.
    Data,
}

/// Missing samples of a frame or a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Samples since the start of the frame or slot.
    pub samples: Range<u64>,
    /// Cause.
    pub cause: Cause,
    /// Content in their place.
    pub instead: Instead,
}

impl Missing {
    /// Returns the same for a frame that starts at sample `from`.
    pub fn after(&self, from: u64) -> Missing {
        Missing {
            samples: self.samples.start + from..self.samples.end + from,
            ..*self
        }
    }
}

/// Run of listed frames.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Numbers of the frames, as [`FrameTime::index`](evlbi_wire::time::FrameTime::index) counts them.
    pub frames: Range<i64>,
    /// Missing bytes of each payload; `None` for all of it.
    pub bytes: Option<Range<usize>>,
    /// Cause.
    pub cause: Cause,
    /// Whether the recording has the frames.
    is_there: bool,
}

/// List of the missing frames of a thread.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// Runs, by their starts.
    runs: Vec<Listed>,
    /// Last end of the runs up to each.
    ends: Vec<i64>,
}

impl List {
    /// Takes the runs of a thread from a gaps document.
    pub fn of(gaps: &Gaps, key: StreamKey, rate: FrameRate) -> List {
        let ours = gaps.time.iter().filter(|gap| gap.key == key);
        let runs = ours.map(|gap| Listed {
            frames: gap.indices(rate),
            bytes: gap.bytes.clone(),
            cause: gap.cause,
            is_there: gap.first_byte.is_some(),
        });
        let mut runs: Vec<Listed> = runs.collect();
        runs.sort_by_key(|run| run.frames.start);
        let ends = runs.iter().scan(i64::MIN, |end, run| {
            *end = run.frames.end.max(*end);
            Some(*end)
        });
        List {
            ends: ends.collect(),
            runs,
        }
    }

    /// Returns the runs that contain a frame.
    pub fn with(&self, frame: i64) -> impl Iterator<Item = &Listed> {
        let until = self.runs.partition_point(|run| run.frames.start <= frame);
        let from = self.ends.partition_point(|end| *end <= frame).min(until);
        let runs = self.runs[from..until].iter();
        runs.filter(move |run| run.frames.contains(&frame))
    }

    /// Returns the first run of wholly missing frames with frames in `range`, cut to it.
    pub fn first_in(&self, range: Range<i64>) -> Option<Listed> {
        if range.is_empty() {
            return None;
        }
        let from = self.ends.partition_point(|end| *end <= range.start);
        let runs = self.runs[from..].iter();
        let mut runs = runs.take_while(|run| run.frames.start < range.end);
        let run = runs.find(|run| run.bytes.is_none() && run.frames.end > range.start)?;
        Some(Listed {
            frames: run.frames.start.max(range.start)..run.frames.end.min(range.end),
            ..run.clone()
        })
    }

    /// Returns the cause for which a frame is listed as a whole.
    pub fn cause_of(&self, frame: i64) -> Option<Cause> {
        let mut whole = self.with(frame).filter(|run| run.bytes.is_none());
        whole.next().map(|run| run.cause)
    }

    /// Adds the samples of a valid frame that are listed, of `width` bits each.
    pub fn add_of(&self, frame: i64, piece: &Piece<'_>, width: u64, found: &mut Vec<Missing>) {
        for run in self.with(frame) {
            let all = 0..piece.recorded.samples().len();
            let bytes = run.bytes.clone().unwrap_or(all.clone());
            let instead = match (is_fill(piece.recorded.samples(), &bytes), run.is_there) {
                // A whole frame is there, whatever the list says.
                (true, false) if bytes != all => Instead::Nothing,
                (true, _) => Instead::Fill,
                (false, _) => Instead::Data,
            };
            found.push(Missing {
                samples: piece.samples_of(&bytes, width),
                cause: run.cause,
                instead,
            });
        }
    }
}

/// Adds the samples of a valid frame that its header replaced or that are fill pattern.
pub fn add_fill(piece: &Piece<'_>, width: u64, found: &mut Vec<Missing>) {
    let filled = |samples, cause| Missing {
        samples,
        cause,
        instead: Instead::Fill,
    };
    let replaced = Some(0..piece.replaced()).filter(|samples| !samples.is_empty());
    found.extend(replaced.map(|samples| filled(samples, Cause::Source)));
    let runs = piece.filled(width).into_iter();
    found.extend(runs.map(|samples| filled(samples, Cause::Lost)));
}

/// Returns whether all whole words in `bytes` of a payload are the fill pattern, and there is one.
fn is_fill(payload: &[u8], bytes: &Range<usize>) -> bool {
    let words = bytes.start.next_multiple_of(4)..bytes.end / 4 * 4;
    payload.get(words).is_some_and(fill::is_fill)
}

/// Returns the bytes of a payload that have bits of `samples`.
pub fn bytes_of(samples: &Range<u64>, width: u64) -> Range<usize> {
    let start = samples.start * width / 8;
    start as usize..(samples.end * width).div_ceil(8) as usize
}

/// Joins the missing samples of several streams, each of which may list a sample more than once, to separate ranges in ascending
/// order. A sample is missing if it is in one of the streams. Nothing stands there only if none of the streams has a frame.
pub fn join(streams: &[Vec<Missing>], joined: &mut Vec<Missing>) {
    joined.clear();
    let all = || streams.iter().flatten();
    let mut edges: Vec<u64> = all()
        .flat_map(|missing| [missing.samples.start, missing.samples.end])
        .collect();
    edges.sort_unstable();
    edges.dedup();
    for edge in edges.windows(2) {
        let has =
            |missing: &&Missing| missing.samples.start <= edge[0] && edge[1] <= missing.samples.end;
        let Some(first) = all().find(has) else {
            continue;
        };
        let is = |instead| move |missing: &Missing| missing.instead == instead;
        let has_nothing =
            |stream: &Vec<Missing>| stream.iter().filter(has).any(is(Instead::Nothing));
        let instead = match () {
            () if streams.iter().all(has_nothing) => Instead::Nothing,
            () if all().filter(has).all(is(Instead::Data)) => Instead::Data,
            () => Instead::Fill,
        };
        let next = Missing {
            samples: edge[0]..edge[1],
            cause: first.cause,
            instead,
        };
        match joined.last_mut() {
            Some(last) if continues(last, &next) && last.instead == instead => {
                last.samples.end = edge[1];
            }
            _ => joined.push(next),
        }
    }
}

/// Returns whether a gaps file lists both ranges as one.
pub fn continues(last: &Missing, next: &Missing) -> bool {
    let is_there = |missing: &Missing| missing.instead != Instead::Nothing;
    last.samples.end == next.samples.start
        && last.cause == next.cause
        && is_there(last) == is_there(next)
}

#[cfg(test)]
mod tests {
    use evlbi_wire::time::FrameTime;
    use evlbi_wire::validity::TimeGap;

    use super::*;

    fn missing(samples: Range<u64>, cause: Cause, instead: Instead) -> Missing {
        Missing {
            samples,
            cause,
            instead,
        }
    }

    #[test]
    fn a_sample_is_missing_if_one_stream_lacks_it() {
        let (lost, shed) = (Cause::Lost, Cause::Shed);
        let streams = [
            vec![missing(0..40, lost, Instead::Nothing)],
            vec![
                missing(10..20, shed, Instead::Nothing),
                missing(30..60, shed, Instead::Data),
            ],
        ];
        let mut joined = Vec::new();
        join(&streams, &mut joined);
        let expected = [
            missing(0..10, lost, Instead::Fill),
            missing(10..20, lost, Instead::Nothing),
            missing(20..40, lost, Instead::Fill),
            missing(40..60, shed, Instead::Data),
        ];
        assert_eq!(joined, expected);
    }

    #[test]
    fn samples_are_widened_to_bytes() {
        assert_eq!(bytes_of(&(3..5), 2), 0..2);
        assert_eq!(bytes_of(&(4..8), 2), 1..2);
    }

    #[test]
    fn runs_of_a_thread_are_found_by_the_frame() {
        let rate = FrameRate::new(10).unwrap();
        let gap = |frame, frames, bytes| TimeGap {
            key: StreamKey::default(),
            start: FrameTime { second: 5, frame },
            frames,
            first_byte: None,
            bytes,
            cause: Cause::Lost,
        };
        let gaps = Gaps {
            time: vec![
                gap(8, 9, None),
                gap(0, 1, Some(4..8)),
                gap(0, 3, Some(12..16)),
            ],
            ..Gaps::default()
        };
        let list = List::of(&gaps, StreamKey::default(), rate);
        let count = |frame| list.with(frame).count();
        assert_eq!(
            [49, 50, 51, 52, 53, 58, 66, 67].map(count),
            [0, 2, 1, 1, 0, 1, 1, 0]
        );
        assert_eq!(list.cause_of(50), None);
        assert_eq!(list.cause_of(60), Some(Cause::Lost));
        let first = |range| list.first_in(range).map(|run| run.frames);
        assert_eq!(first(0..60), Some(58..60));
        assert_eq!(first(60..100), Some(60..67));
        assert_eq!(first(67..100), None);
        assert_eq!(first(0..58), None);
        assert_eq!(first(60..60), None);
    }
}
