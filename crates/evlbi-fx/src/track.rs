//! Recording of a station, sorted by time: frames are added as they arrive, slabs of samples are read.
//!
//! Each sample is valid or not. Samples that are marked invalid, are fill pattern, did not arrive or were flagged are not valid,
//! whatever their bytes are.

use std::collections::VecDeque;
use std::ops::Range;

use evlbi_wire::validity::Intervals;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::unpack::{Recorded, Unpacker};

/// Payload in bytes up to which the following numbers of frames hold. Of longer frames, fewer take the same memory.
const NOMINAL: usize = 8 << 10;

/// Maximum number of frames per thread that are kept for later, 2 GiB: beyond it a new frame replaces the latest one. A header with a
/// damaged time must not fill the memory.
const MAX_FRAMES: usize = 1 << 18;
/// Minimum number of forgotten frames whose memory is kept.
const MIN_SPARE: usize = 1024;
/// Number of frames far ahead that are too many to have damaged times.
const MANY: usize = 1024;
/// Number of frames by which a thread must be ahead before it stops waiting for others.
const FAR: usize = 1 << 14;

/// Sources of the validity of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trust {
    /// All: the invalid bit, the fill pattern anywhere in the payload, the flags.
    #[default]
    Exact,
    /// Only the invalid bit.
    Headers,
    /// None: all samples that arrived are valid.
    Blind,
}

/// Counts of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Frames that were kept.
    pub frames: u64,
    /// Frames that arrived too late.
    pub late: u64,
    /// Frames of a time that already exists.
    pub duplicates: u64,
    /// Frames of another length, thread or from too far ahead.
    pub foreign: u64,
}

/// Recording of one station.
#[derive(Debug)]
pub struct Track {
    unpacker: Unpacker,
    layout: Layout,
    trust: Trust,
    lanes: Vec<Lane>,
    /// Number of the first frame that may still be used.
    first: i64,
    /// First frame that was ever requested.
    begin: i64,
    counts: Counts,
}

/// One thread.
#[derive(Debug)]
struct Lane {
    thread: u16,
    /// Frames by number.
    frames: VecDeque<Held>,
    /// Memory of forgotten frames, to be reused: in the long run none is allocated. It is limited to that of the frames forgotten
    /// last, so that a time in which many were held does not keep its memory.
    spare: Vec<Vec<u8>>,
    /// Numbers of flagged samples.
    flags: Intervals,
    /// Number of the latest frame that arrived.
    newest: i64,
}

#[derive(Debug)]
struct Held {
    number: i64,
    payload: Vec<u8>,
    /// Numbers in the frame of the invalid samples.
    bad: Intervals,
}

/// Samples of a station over some time, including missing ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Slab {
    /// Number of the first sample since 1970.
    pub first: i64,
    /// Threads, in the order of the track's.
    pub lanes: Vec<SlabLane>,
}

/// One thread of a slab.
#[derive(Clone, Debug, PartialEq)]
pub struct SlabLane {
    /// Coded samples, zero if missing.
    pub bytes: Vec<u8>,
    /// Numbers since 1970 of the valid samples.
    pub good: Intervals,
}

impl Track {
    /// Makes an empty recording of these threads.
    pub fn new(unpacker: &Unpacker, threads: &[u16], trust: Trust) -> Track {
        let lane = |thread: &u16| Lane {
            thread: *thread,
            frames: VecDeque::new(),
            spare: Vec::new(),
            flags: Intervals::new(),
            newest: i64::MIN,
        };
        Track {
            layout: *unpacker.layout(),
            unpacker: unpacker.clone(),
            trust,
            lanes: threads.iter().map(lane).collect(),
            first: i64::MIN,
            begin: i64::MAX,
            counts: Counts::default(),
        }
    }

    /// Returns the layout of its samples.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the current counts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Flags samples of a thread as invalid. Numbers are since 1970.
    pub fn flag(&mut self, thread: u16, samples: Range<i64>) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.thread == thread) {
            lane.flags.insert(samples);
        }
    }

    /// Takes the samples of a frame. `number` is its index since 1970.
    pub fn push<'a>(
        &mut self,
        thread: u16,
        number: i64,
        invalid: bool,
        recorded: impl Into<Recorded<'a>>,
    ) {
        let recorded = recorded.into();
        let samples = recorded.samples();
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.thread == thread) else {
            self.counts.foreign += 1;
            return;
        };
        let is_time = |number: i64| number.checked_mul(self.layout.frame_samples()).is_some();
        if samples.len() != self.unpacker.recorded_length() || !is_time(number.saturating_add(1)) {
            self.counts.foreign += 1;
            return;
        }
        lane.newest = lane.newest.max(number);
        if number < self.first {
            // Frames before everything that was requested are not late.
            self.counts.late += u64::from(number >= self.begin);
            return;
        }
        let at = lane.place(number);
        if lane
            .frames
            .get(at)
            .is_some_and(|held| held.number == number)
        {
            self.counts.duplicates += 1;
            return;
        }
        let bad = bad_samples(
            &self.unpacker,
            self.trust,
            number,
            invalid,
            &recorded,
            &lane.flags,
        );
        let mut payload = lane.spare.pop().unwrap_or_default();
        self.unpacker.unpack(samples, &mut payload);
        let held = Held {
            number,
            payload,
            bad,
        };
        lane.frames.insert(at, held);
        self.counts.frames += 1;
        if lane.frames.len() > limit(MAX_FRAMES, &self.layout) {
            lane.frames.pop_back();
            self.counts.frames -= 1;
            self.counts.foreign += 1;
        }
    }

    /// Returns whether each thread has reached sample `end`: it has `margin` frames at or after it. Frames more than a second
    /// after it may have damaged times; only many of them count. A thread that is far ahead does not wait for others that have
    /// ended.
    pub fn has_come_to(&self, end: i64, margin: usize) -> bool {
        let frame = end.div_euclid(self.layout.frame_samples());
        let near = frame..frame.saturating_add(i64::from(self.layout.frame_rate.get()));
        let [many, far] = [MANY, FAR].map(|frames| limit(frames, &self.layout));
        let come = |lane: &Lane| {
            lane.place(near.end) - lane.place(frame) >= margin || lane.count_from(near.end) >= many
        };
        let far = |lane: &Lane| lane.count_from(frame) >= far;
        self.lanes.iter().all(come) || self.lanes.iter().any(far)
    }

    /// Returns the samples in `range`, extended to whole frames. Numbers are since 1970.
    pub fn slab(&self, range: Range<i64>) -> Slab {
        let samples = self.layout.frame_samples();
        let from = range.start.div_euclid(samples);
        let to = (range.end - 1).div_euclid(samples).max(from) + 1;
        let lanes = self
            .lanes
            .iter()
            .map(|lane| lane.slab(from..to, &self.layout));
        Slab {
            first: from * samples,
            lanes: lanes.collect(),
        }
    }

    /// Forgets everything before sample `before`; frames of it that arrive later are late.
    pub fn forget(&mut self, before: i64) {
        let first = before.div_euclid(self.layout.frame_samples());
        if first <= self.first {
            return;
        }
        self.first = first;
        self.begin = self.begin.min(first);
        for lane in &mut self.lanes {
            let count = lane.place(first);
            let over = lane.frames.drain(..count);
            lane.spare.extend(over.map(|held| held.payload));
            lane.spare
                .truncate(count.max(limit(MIN_SPARE, &self.layout)));
        }
    }

    /// Rewinds a thread to a frame: frames at or after it are removed, and will arrive again.
    pub fn rewind(&mut self, thread: u16, number: i64) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.thread == thread) {
            lane.frames.truncate(lane.place(number));
            lane.newest = number - 1;
        }
    }

    /// Returns the number of the first sample after the latest frame of a thread.
    pub fn newest_of(&self, thread: u16) -> Option<i64> {
        let lane = self.lanes.iter().find(|lane| lane.thread == thread)?;
        (lane.newest > i64::MIN).then(|| (lane.newest + 1) * self.layout.frame_samples())
    }

    /// Returns how many samples of the fullest thread are held in frames at or after a sample.
    pub fn held(&self, sample: i64) -> i64 {
        let samples = self.layout.frame_samples();
        let from = sample.div_euclid(samples);
        let held = |lane: &Lane| lane.count_from(from) as i64;
        self.lanes.iter().map(held).max().unwrap_or(0) * samples
    }

    /// Returns the number of the first sample of the earliest frame.
    pub fn earliest(&self) -> Option<i64> {
        let first = |lane: &Lane| lane.frames.front().map(|held| held.number);
        let number = self.lanes.iter().filter_map(first).min()?;
        Some(number * self.layout.frame_samples())
    }

    /// Returns the number of the first sample after the latest frame that arrived.
    pub fn newest(&self) -> Option<i64> {
        let number = self.lanes.iter().map(|lane| lane.newest).max()?;
        (number > i64::MIN).then(|| (number + 1) * self.layout.frame_samples())
    }
}

impl Lane {
    /// Returns the index of the frame of this number, or where to insert it. This takes constant time at the end, which is the
    /// normal case.
    fn place(&self, number: i64) -> usize {
        match self.frames.back() {
            Some(last) if last.number >= number => {
                self.frames.partition_point(|held| held.number < number)
            }
            _ => self.frames.len(),
        }
    }

    /// Returns how many frames have this number or a later one.
    fn count_from(&self, number: i64) -> usize {
        self.frames.len() - self.place(number)
    }

    fn slab(&self, frames: Range<i64>, layout: &Layout) -> SlabLane {
        let count = (frames.end - frames.start) as usize;
        let mut bytes = Vec::with_capacity(count * layout.payload);
        let mut good = Intervals::new();
        let held = self.place(frames.start)..self.place(frames.end);
        for held in self.frames.range(held) {
            let missing = (held.number - frames.start) as usize * layout.payload;
            bytes.resize(missing, 0);
            bytes.extend_from_slice(&held.payload);
            let samples = layout.frame_samples();
            let first = held.number * samples;
            let mut from = first + layout.replaced as i64;
            for bad in held.bad.iter().chain(std::iter::once(samples..samples)) {
                good.insert(from..first + bad.start);
                from = from.max(first + bad.end);
            }
        }
        bytes.resize(count * layout.payload, 0);
        SlabLane { bytes, good }
    }
}

/// Returns how many frames take the memory of `frames` short ones.
fn limit(frames: usize, layout: &Layout) -> usize {
    (frames * NOMINAL / layout.payload.max(NOMINAL)).max(1)
}

/// Returns the invalid samples of a frame, by their numbers in it.
fn bad_samples(
    unpacker: &Unpacker,
    trust: Trust,
    number: i64,
    invalid: bool,
    recorded: &Recorded<'_>,
    flags: &Intervals,
) -> Intervals {
    let samples = unpacker.layout().frame_samples();
    if invalid && trust != Trust::Blind {
        return std::iter::once(0..samples).collect();
    }
    let mut bad = unpacker.missing(recorded);
    if trust != Trust::Exact {
        return bad;
    }
    bad.extend(unpacker.filled(recorded).iter());
    let offset = number * samples;
    let flagged = flags.within(offset..offset + samples);
    bad.extend(
        flagged
            .iter()
            .map(|flag| flag.start - offset..flag.end - offset),
    );
    bad
}

#[cfg(test)]
mod tests {
    use evlbi_wire::time::FrameRate;

    use super::*;
    use crate::codec::Codec;

    fn track() -> Track {
        with_payload(16)
    }

    fn with_payload(payload: usize) -> Track {
        let layout = Layout {
            codec: Codec::vdif(2).unwrap(),
            complex: false,
            channels: 1,
            payload,
            replaced: 0,
            frame_rate: FrameRate::new(100).unwrap(),
        };
        Track::new(&Unpacker::plain(layout), &[0, 3], Trust::Exact)
    }

    #[test]
    fn frames_of_any_order_are_placed_in_time_and_gaps_are_not_good() {
        let mut track = track();
        for number in [7, 5, 9] {
            track.push(0, number, false, &[number as u8; 16]);
            track.push(3, number, number == 7, &[1; 16]);
        }
        track.flag(0, 64 * 9..64 * 9 + 10);
        track.push(0, 8, false, &[8; 16]);
        let slab = track.slab(64 * 5 + 3..64 * 9 + 1);
        assert_eq!((slab.first, slab.lanes[0].bytes.len()), (64 * 5, 80));
        assert_eq!(
            slab.lanes[0].bytes[..20],
            [[5; 16].as_slice(), &[0; 4]].concat()
        );
        let good: Vec<Range<i64>> = slab.lanes[0].good.iter().collect();
        assert_eq!(good, [320..384, 448..640]);
        assert!(!slab.lanes[1].good.covers(448..449) && slab.lanes[1].good.covers(576..640));
    }

    #[test]
    fn frames_that_do_not_fit_are_counted() {
        let mut track = track();
        track.push(0, 5, false, &[0; 16]);
        track.push(0, 5, false, &[0; 16]);
        track.push(1, 5, false, &[0; 16]);
        track.push(0, 6, false, &[0; 15]);
        track.push(0, i64::MAX, false, &[0; 16]);
        track.push(0, i64::MIN, false, &[0; 16]);
        track.forget(64 * 5);
        track.forget(64 * 20);
        track.push(0, 10, false, &[0; 16]);
        // Before everything that was requested.
        track.push(0, 3, false, &[0; 16]);
        assert_eq!(
            track.counts(),
            Counts {
                frames: 1,
                late: 1,
                duplicates: 1,
                foreign: 4,
            }
        );
        assert_eq!(track.earliest(), None);
        assert_eq!(track.newest(), Some(64 * 11));
    }

    #[test]
    fn the_number_of_frames_is_limited_by_their_memory() {
        let layout = |payload| *with_payload(payload).layout();
        for (payload, frames) in [
            (16, 1 << 18),
            (8 << 10, 1 << 18),
            (1 << 20, 2048),
            (16 << 20, 128),
        ] {
            assert_eq!(limit(MAX_FRAMES, &layout(payload)), frames);
        }
        assert_eq!(limit(MANY, &layout(16 << 20)), 1);
    }

    #[test]
    fn a_thread_goes_back_in_time() {
        let mut track = track();
        for number in 5..10 {
            track.push(0, number, false, &[1; 16]);
            track.push(3, number, false, &[1; 16]);
        }
        track.rewind(0, 7);
        assert_eq!(
            (track.newest_of(0), track.newest_of(3)),
            (Some(64 * 7), Some(64 * 10))
        );
        track.push(0, 7, false, &[2; 16]);
        assert_eq!(track.slab(64 * 7..64 * 8).lanes[0].bytes, [2; 16]);
        assert_eq!(track.counts().duplicates, 0);
        assert_eq!((track.held(64 * 9), track.held(64 * 10)), (64, 0));
    }

    #[test]
    fn a_few_damaged_times_do_not_end_a_wait() {
        let mut track = track();
        for number in 0..20 {
            track.push(0, number, false, &[0; 16]);
            track.push(3, number, false, &[0; 16]);
            track.push(0, 1_000_000 + number, false, &[0; 16]);
            track.push(3, 1_000_000 + number, false, &[0; 16]);
        }
        assert!(track.has_come_to(64 * 12, 8));
        assert!(!track.has_come_to(64 * 13, 8));
        // A thread that is further ahead does not help the other.
        for number in 20..30 {
            track.push(0, number, false, &[0; 16]);
        }
        assert!(!track.has_come_to(64 * 13, 8));
    }
}
