//! Cadence: the order and times in which the frames of a stream follow one another, which identify a lost frame.
//!
//! Threads and stations are interleaved in one stream. A lost frame belongs to the thread that was seen least recently, which is
//! exact for every fixed order. A thread is skipped if the next frames show that none of it is missing. The time of the lost
//! frame is one frame after the last one of its thread, so threads may have any offset in time.

use std::collections::HashMap;

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::StreamKey;

use super::format::Head;
use super::rate::{Rate, Tick};

/// Maximum number of frames that are examined to find out which thread's frame is missing.
pub(super) const MAX_AHEAD: i64 = 256;
/// Maximum number of threads: beyond it, those not seen for a while are forgotten, then all.
const MAX_STREAMS: usize = 4096;
/// Maximum distance in seconds from the time of every thread; a frame marked invalid further away has a wrong time.
const MAX_ASTRAY: u64 = 86_400;
/// Not an index of `streams`.
const NONE: usize = usize::MAX;

/// Header and its place, in frames of the stream since the start.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    pub at: i64,
    pub head: Head,
}

/// Header for a lost frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guess {
    /// Header; `None` if no header was seen yet.
    pub head: Option<Head>,
    /// Whether station, thread and time follow from the cadence. If not, the header has a thread that is not in the stream, so
    /// that no reader takes the frame for one of its threads.
    pub known: bool,
}

/// Sub-streams of a stream, and how they follow one another.
#[derive(Clone, Debug, Default)]
pub(super) struct Cadence {
    streams: Vec<Stream>,
    by_key: HashMap<StreamKey, usize>,
    /// Index of the last stream seen.
    latest: usize,
    /// Longest distance between two consecutive frames of a stream without loss between, in frames of the whole.
    reach: i64,
    /// Place of the last frame whose header was not seen.
    last_unseen: i64,
    rate: Rate,
    /// Number of lost frames whose header was a guess.
    pub ambiguous: u64,
}

/// One thread of one station.
#[derive(Clone, Debug)]
struct Stream {
    key: StreamKey,
    /// Place and time of the last frame, seen or found missing.
    at: i64,
    time: Tick,
    /// Number of frames found missing since `head` was seen.
    missing: i64,
    /// Last header seen, with its place and time.
    head: Head,
    seen_at: i64,
    seen: FrameTime,
    first: Sighting,
    /// Whether it was seen twice, so that it is not a damaged header. If seen once, it is trusted one cycle later.
    trusted: bool,
    /// Index of the stream that was seen next.
    next: usize,
    /// Place of a lost frame that is known not to be from this stream.
    passed_at: i64,
}

impl Cadence {
    pub fn new(rate: Option<FrameRate>) -> Cadence {
        Cadence {
            rate: Rate::given(rate),
            latest: NONE,
            last_unseen: -1,
            ..Cadence::default()
        }
    }

    pub fn frame_rate(&self) -> Option<FrameRate> {
        self.rate.get()
    }

    /// Returns the number of frames between place `at` and that of a header by its time; `None` if its thread or the rate is unknown.
    pub fn frames_until(&self, at: i64, head: &Head) -> Option<i64> {
        let stream = &self.streams[*self.by_key.get(&head.key())?];
        let cycles = self.rate.between(stream.time, head.time().into())?;
        let frames = cycles.checked_mul(self.streams.len() as i64)?;
        stream.at.checked_add(frames)?.checked_sub(at)
    }

    /// Notes that the frames before place `at` were lost, with their headers.
    pub fn skip_until(&mut self, at: i64) {
        self.last_unseen = at - 1;
    }

    /// Notes the frame rate that the times of headers show.
    pub fn measure(&mut self, rate: Option<FrameRate>) {
        self.rate.measure(rate);
    }

    /// Returns the number of threads, of all stations.
    pub fn threads(&self) -> usize {
        self.streams.len()
    }

    /// Skips `frames` lost frames, starting at place `at`. Returns for each thread the first of them, their number, and the time
    /// after them.
    pub fn pass_over(&mut self, at: i64, frames: u64) -> Vec<(Head, u64, Tick)> {
        let last = at.saturating_add_unsigned(frames).saturating_sub(1);
        self.last_unseen = last;
        let rate = self.rate.clone();
        let mut streams: Vec<&mut Stream> = self.streams.iter_mut().collect();
        streams.sort_by_key(|stream| stream.at);
        let threads = streams.len() as u64;
        let mut runs = Vec::new();
        for (rank, stream) in (0..).zip(streams) {
            let run = frames / threads + u64::from(rank < frames % threads);
            if run == 0 {
                continue;
            }
            let run_length = i64::try_from(run).unwrap_or(i64::MAX);
            let first = rate.after(stream.time, 1);
            let next = rate.after(first, run_length);
            let fill = |time| stream.head.fill_after(time, stream.missing + 1, rate.get());
            let head = first.time().and_then(fill);
            runs.extend(head.map(|head| (head, run, next)));
            stream.time = rate.after(stream.time, run_length);
            stream.missing = stream.missing.saturating_add(run_length);
            let cycles = (run_length - 1).saturating_mul(threads as i64);
            let end = at.saturating_add(cycles).saturating_add(rank as i64);
            stream.at = end.min(last);
        }
        runs
    }

    /// Returns how many frames are missing between this cadence and the frames that follow at place `at`, of which `ahead`
    /// arrived; `None` if the rate is unknown, or if they do not follow later.
    pub fn missing_until(&self, at: i64, ahead: &[Sighting]) -> Option<u64> {
        let threads = self.streams.len() as i64;
        let is_known = |s: &Sighting| self.by_key.contains_key(&s.head.key());
        if !ahead.iter().all(is_known) {
            return None;
        }
        let missing = self.streams.iter().map(|stream| {
            let first = ahead.iter().find(|s| s.head.key() == stream.key)?;
            let apart = self.rate.between(stream.time, first.head.time().into())?;
            // Frames lost after the gap already have their place.
            let lost = (first.at - at).div_euclid(threads);
            u64::try_from(apart.checked_sub(1)?.checked_sub(lost)?).ok()
        });
        missing.sum()
    }

    /// Returns how many frames must be seen after a lost one to identify it.
    pub fn reach(&self) -> i64 {
        self.reach.clamp(1, MAX_AHEAD)
    }

    /// Returns the time of the frame after the one at `time` in the same thread.
    pub fn after(&self, time: FrameTime) -> Tick {
        self.rate.after(time.into(), 1)
    }

    /// Forgets the stream but keeps the frame rate, which is probably the same.
    pub fn restart(&mut self) {
        self.forget_streams();
        self.rate.restart();
        self.reach = 0;
    }

    fn forget_streams(&mut self) {
        self.streams.clear();
        self.by_key.clear();
        self.latest = NONE;
    }

    /// Determines the order of a stream that starts at `start` from its first frames, before any of them is taken. Returns false
    /// while they are too few, unless they must suffice.
    pub fn prime(&mut self, start: i64, first: &[Sighting], must_suffice: bool) -> bool {
        self.forget_streams();
        self.last_unseen = start - 1;
        let rate = self.rate.clone();
        let valid = || first.iter().filter(|s| !s.head.is_invalid());
        let is_near = |head: &Head| valid().any(|valid| are_near(&valid.head, head));
        let has_valid = valid().next().is_some();
        let mut next = start;
        for sighting in first {
            let head = &sighting.head;
            if head.is_without_time() || head.is_invalid() && has_valid && !is_near(head) {
                continue;
            }
            if sighting.at > next {
                // The missing frames may be the end of a second.
                self.last_unseen = sighting.at - 1;
            }
            next = sighting.at + 1;
            self.rate.tell(head.frame_rate());
            self.see(sighting.at, head);
        }
        self.last_unseen = start - 1;
        let streams = self.streams.len() as i64;
        let cycle = self.rate.cycle().unwrap_or(streams).max(1);
        for stream in &mut self.streams {
            // As if the stream had always run: place and time of its last frame before `start`.
            let cycles = (stream.first.at - start) / cycle + 1;
            stream.at = stream.first.at - cycles * cycle;
            stream.seen_at = stream.first.at;
            stream.head = stream.first.head.clone();
            stream.seen = stream.head.time();
            stream.time = self.rate.after(stream.seen.into(), -cycles);
            stream.missing = -cycles;
        }
        self.reach = self.reach.max(cycle).min(MAX_AHEAD);
        self.latest = NONE;
        let suffice = must_suffice || self.all_twice(first);
        if !suffice {
            // It will be learnt again, from these and more.
            self.rate = rate;
        }
        suffice
    }

    /// Returns whether every stream is seen twice among the last sightings without a missing frame between.
    fn all_twice(&self, sightings: &[Sighting]) -> bool {
        let mut seen = vec![0; self.streams.len()];
        let mut next = None;
        for sighting in sightings.iter().rev() {
            if next.is_some_and(|next| next != sighting.at + 1) {
                break;
            }
            next = Some(sighting.at);
            if let Some(index) = self.by_key.get(&sighting.head.key()) {
                seen[*index] += 1;
            }
        }
        !seen.is_empty() && seen.iter().all(|times| *times >= 2)
    }

    /// Notes the header of the frame at place `at`.
    #[inline]
    pub fn see(&mut self, at: i64, head: &Head) {
        let Some(index) = self.find(head.key()) else {
            let head = head.clone();
            self.begin(Sighting { at, head });
            return;
        };
        let time = head.time();
        let clean = self.last_unseen < self.streams[index].seen_at;
        let stream = &mut self.streams[index];
        let distance = at - stream.seen_at;
        if time.second != stream.seen.second {
            self.rate.turn(stream.seen, time, distance, clean);
        } else if time.frame == stream.seen.frame.wrapping_add(1) {
            self.rate.step(time, distance);
        }
        if stream.missing > 0 {
            self.ambiguous += u64::from(self.rate.contradicts(stream.time, stream.missing, time));
        }
        if clean {
            self.reach = self.reach.max((at - stream.at).min(MAX_AHEAD));
        }
        stream.trusted |= at != stream.first.at;
        stream.at = at;
        stream.time = time.into();
        stream.missing = 0;
        stream.head.clone_from(head);
        stream.seen_at = at;
        stream.seen = time;
    }

    /// Returns the index of the stream of `key`. Usually the same stream follows the latest one as the last time.
    #[inline]
    fn find(&mut self, key: StreamKey) -> Option<usize> {
        let followed = self.streams.get(self.latest).map_or(NONE, |s| s.next);
        let index = match self.streams.get(followed) {
            Some(stream) if stream.key == key => followed,
            _ => {
                let index = *self.by_key.get(&key)?;
                if let Some(latest) = self.streams.get_mut(self.latest) {
                    latest.next = index;
                }
                index
            }
        };
        self.latest = index;
        Some(index)
    }

    fn begin(&mut self, first: Sighting) {
        if self.streams.len() >= MAX_STREAMS {
            self.forget_some(first.at);
        }
        let time = first.head.time();
        self.by_key.insert(first.head.key(), self.streams.len());
        self.latest = self.streams.len();
        self.streams.push(Stream {
            key: first.head.key(),
            at: first.at,
            time: time.into(),
            missing: 0,
            head: first.head.clone(),
            seen_at: first.at,
            seen: time,
            first,
            trusted: false,
            next: NONE,
            passed_at: -1,
        });
    }

    fn forget_some(&mut self, now: i64) {
        let oldest = now - 2 * self.reach();
        self.streams.retain(|stream| stream.at >= oldest);
        if self.streams.len() >= MAX_STREAMS {
            self.streams.clear();
        }
        self.by_key.clear();
        for (index, stream) in self.streams.iter_mut().enumerate() {
            stream.next = NONE;
            self.by_key.insert(stream.key, index);
        }
        self.latest = NONE;
    }

    /// Returns the header of the lost frame at place `at`; `ahead` are the headers that arrived in the next [`Cadence::reach`]
    /// frames.
    pub fn predict(&mut self, at: i64, ahead: &[Sighting]) -> Guess {
        let head = self.next_missing(at, ahead, true);
        self.ambiguous += u64::from(head.is_none());
        Guess {
            known: head.is_some(),
            head: head.or_else(|| self.stray(ahead)),
        }
    }

    /// Returns whether a header has no time, or belongs to a frame marked invalid with a time that is not the stream's.
    pub fn is_astray(&self, head: &Head) -> bool {
        let is_near = |stream: &Stream| are_near(&stream.head, head);
        let is_far = !self.streams.is_empty() && !self.streams.iter().any(is_near);
        head.is_without_time() || head.is_invalid() && is_far
    }

    /// Returns whether the header fits the cadence. Headers of frames that their source marked invalid are often wrong: such a
    /// header must be the expected one, or of a new thread.
    pub fn believes(&self, head: &Head) -> bool {
        if !head.is_invalid() {
            return true;
        }
        if self.is_astray(head) {
            return false;
        }
        let Some(index) = self.by_key.get(&head.key()) else {
            return true;
        };
        let last = self.streams[*index].time;
        let on = self.rate.between(last, head.time().into());
        on.is_none_or(|on| on == 1)
    }

    /// Notes a frame at place `at` with an unusable header. Returns the header that belongs there.
    pub fn pass(&mut self, at: i64, ahead: &[Sighting]) -> Option<Head> {
        self.next_missing(at, ahead, false)
    }

    /// Treats the frame at place `at` as the next one of a stream; `lost`: it did not arrive.
    fn next_missing(&mut self, at: i64, ahead: &[Sighting], lost: bool) -> Option<Head> {
        self.last_unseen = at;
        for trusted in [true, false] {
            while let Some(index) = self.least_recent(at, trusted) {
                let stream = &mut self.streams[index];
                let time = self.rate.after(stream.time, 1);
                let frames_on = stream.missing + 1;
                let head = match time.time() {
                    Some(time) if !comes_next(stream.key, time, ahead) => {
                        stream.head.fill_after(time, frames_on, self.rate.get())
                    }
                    _ => None,
                };
                if head.is_some() {
                    stream.at = at;
                    stream.time = time;
                    stream.missing = frames_on;
                    self.ambiguous += u64::from(!trusted && lost);
                    return head;
                }
                stream.passed_at = at;
            }
        }
        self.new_stream(at, ahead)
    }

    /// Determines the rate if a second ends among lost frames and `ahead`, the frames after them, shows it.
    pub fn learn_rate(&mut self, ahead: &[Sighting]) {
        for sighting in ahead {
            if let Some(index) = self.by_key.get(&sighting.head.key()) {
                let stream = &self.streams[*index];
                let (seen, distance) = (stream.seen, sighting.at - stream.seen_at);
                self.rate.turn(seen, sighting.head.time(), distance, false);
            }
        }
    }

    fn least_recent(&self, at: i64, trusted: bool) -> Option<usize> {
        let oldest = at - 2 * self.reach();
        let due = self.rate.cycle().map(|cycle| at - cycle);
        let candidates = self.streams.iter().enumerate().filter(|(_, stream)| {
            let is_trusted = stream.trusted || Some(stream.at) == due;
            is_trusted == trusted && stream.passed_at != at && stream.at >= oldest
        });
        Some(candidates.min_by_key(|(_, stream)| stream.at)?.0)
    }

    /// Returns the frame before the first one of a new thread that follows.
    fn new_stream(&mut self, at: i64, ahead: &[Sighting]) -> Option<Head> {
        let unknown =
            |s: &&Sighting| !self.by_key.contains_key(&s.head.key()) && !self.is_astray(&s.head);
        let first = ahead.iter().find(unknown)?;
        let time = self.rate.after(first.head.time().into(), -1);
        let head = first.head.fill_after(time.time()?, -1, self.rate.get())?;
        let first = Sighting {
            at,
            head: head.clone(),
        };
        self.begin(first);
        Some(head)
    }

    /// Returns a header for a frame of which only the neighbours are known: their station and time, and a thread that none of
    /// them has.
    fn stray(&self, ahead: &[Sighting]) -> Option<Head> {
        let latest = self.streams.get(self.latest).map(|stream| &stream.head);
        let mut head = latest
            .or(ahead.first().map(|sighting| &sighting.head))?
            .clone();
        let key = head.key();
        let is_free = |thread: &u16| {
            let thread = *thread;
            !self.by_key.contains_key(&StreamKey { thread, ..key })
        };
        let thread = (0..1024).rev().find(is_free).unwrap_or(1023);
        head.set_thread(thread);
        head.set_invalid(true);
        Some(head)
    }
}

/// Returns whether two headers have times that one recording may have.
fn are_near(a: &Head, b: &Head) -> bool {
    a.time().second.abs_diff(b.time().second) <= MAX_ASTRAY
}

/// Returns whether the next frame of `key` has this time.
fn comes_next(key: StreamKey, time: FrameTime, ahead: &[Sighting]) -> bool {
    let next = ahead.iter().find(|s| s.head.key() == key);
    next.is_some_and(|s| s.head.time() == time)
}
