//! The order and the times in which the frames of a stream follow one another: what tells which frame a
//! lost one was.
//!
//! Threads and stations are interleaved in one stream. A lost frame belongs to the thread that was seen
//! least recently, which is exact for every fixed order. A thread is passed over where the frames that
//! follow show that none of it is missing. The time of the lost frame is one frame after the last one of
//! its thread, so the times of threads may lie anywhere to one another.

use std::collections::HashMap;

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::StreamKey;

use super::format::Head;
use super::rate::{Rate, Tick};

/// So many frames are looked at, at most, to find out which thread's frame is missing.
pub(super) const MAX_AHEAD: i64 = 256;
/// With so many threads, those not seen for a while are forgotten, then all.
const MAX_STREAMS: usize = 4096;
/// A frame marked invalid whose time is further from that of every thread has a wrong one, in seconds.
const MAX_ASTRAY: u64 = 86_400;
/// No index of `streams`.
const NONE: usize = usize::MAX;

/// A header and its place: frames of the stream since the beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sighting {
    pub at: i64,
    pub head: Head,
}

/// The header for a lost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guess {
    /// `None` where no header at all has been seen.
    pub head: Option<Head>,
    /// Station, thread and time follow from the cadence. Else nothing does, and the header says another
    /// thread than any of the stream, so that no reader takes the frame for one of those.
    pub known: bool,
}

/// The sub-streams of a stream, and how they follow one another.
#[derive(Clone, Debug, Default)]
pub(super) struct Cadence {
    streams: Vec<Stream>,
    by_key: HashMap<StreamKey, usize>,
    /// Index of the stream that was seen last.
    latest: usize,
    /// The longest way from a frame of a stream to its next with nothing lost between, in frames of the whole.
    reach: i64,
    /// Place of the last frame whose header was not seen.
    last_unseen: i64,
    rate: Rate,
    /// Lost frames whose header was a guess.
    pub ambiguous: u64,
}

/// One station's one thread.
#[derive(Clone, Debug)]
struct Stream {
    key: StreamKey,
    /// Place and time of the last frame, seen or found missing.
    at: i64,
    time: Tick,
    /// Found missing since `head` was seen.
    missing: i64,
    /// The last header that was seen, with its place and time.
    head: Head,
    seen_at: i64,
    seen: FrameTime,
    first: Sighting,
    /// Seen twice: not the work of a damaged header. Seen once, it is to be trusted one cycle later.
    trusted: bool,
    /// Index of the stream that was seen next.
    next: usize,
    /// The lost frame at this place is not one of this stream.
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

    /// How many threads there are, of all stations.
    pub fn threads(&self) -> usize {
        self.streams.len()
    }

    /// Passes over so many lost frames from place `at` on. Returns for each thread the first of them, how many, and the time behind
    /// them.
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

    /// How many frames are missing between those of this cadence and those that follow at place `at`, of which `ahead` are there;
    /// `None` if the rate is unknown, or if they do not follow later.
    pub fn missing_until(&self, at: i64, ahead: &[Sighting]) -> Option<u64> {
        let threads = self.streams.len() as i64;
        let is_known = |s: &Sighting| self.by_key.contains_key(&s.head.key());
        if !ahead.iter().all(is_known) {
            return None;
        }
        let missing = self.streams.iter().map(|stream| {
            let first = ahead.iter().find(|s| s.head.key() == stream.key)?;
            let apart = self.rate.between(stream.time, first.head.time().into())?;
            // Those that are lost behind the gap have their place already.
            let lost = (first.at - at).div_euclid(threads);
            u64::try_from(apart.checked_sub(1)?.checked_sub(lost)?).ok()
        });
        missing.sum()
    }

    /// How many frames must be seen after a lost one to tell what it was.
    pub fn reach(&self) -> i64 {
        self.reach.clamp(1, MAX_AHEAD)
    }

    /// The time of the frame after the one at `time` in the same thread.
    pub fn after(&self, time: FrameTime) -> Tick {
        self.rate.after(time.into(), 1)
    }

    /// Another stream begins; the frame rate is probably the same.
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

    /// Learns from the first frames that are there of a stream that begins at `start`, before any of them
    /// is taken; false while they do not suffice, and must not.
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
                // What is missing may be the end of a second.
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
            // As if the stream had always run: where and when its last frame before `start` was.
            let cycles = (stream.first.at - start) / cycle + 1;
            stream.at = stream.first.at - cycles * cycle;
            stream.seen_at = stream.first.at;
            stream.head = stream.first.head;
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

    /// Whether every stream is seen twice among the last sightings between which no frame is missing.
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

    /// The frame at place `at` has this header.
    #[inline]
    pub fn see(&mut self, at: i64, head: &Head) {
        let Some(index) = self.find(head.key()) else {
            self.begin(Sighting { at, head: *head });
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
        stream.head = *head;
        stream.seen_at = at;
        stream.seen = time;
    }

    /// Index of the stream of `key`. The stream that followed the latest one the last time usually does so
    /// again.
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
            head: first.head,
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

    /// The header of the frame at place `at`, which is lost; `ahead` are the headers that are there in the
    /// next [`Cadence::reach`] frames.
    pub fn predict(&mut self, at: i64, ahead: &[Sighting]) -> Guess {
        let head = self.next_missing(at, ahead, true);
        self.ambiguous += u64::from(head.is_none());
        Guess {
            known: head.is_some(),
            head: head.or_else(|| self.stray(ahead)),
        }
    }

    /// Whether a header has no time, or is of a frame marked invalid and has one that is none of the stream's.
    pub fn is_astray(&self, head: &Head) -> bool {
        let is_near = |stream: &Stream| are_near(&stream.head, head);
        let is_far = !self.streams.is_empty() && !self.streams.iter().any(is_near);
        head.is_without_time() || head.is_invalid() && is_far
    }

    /// Whether the cadence can follow this header. The headers of frames that their source marked invalid
    /// are often wrong: such a one must be the expected one, or of a thread not seen before.
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

    /// The frame at place `at` is there, but its header says nothing that can be believed. Returns the header that belongs there.
    pub fn pass(&mut self, at: i64, ahead: &[Sighting]) -> Option<Head> {
        self.next_missing(at, ahead, false)
    }

    /// Takes the frame at place `at` for the next one of a stream; `lost`: it is one.
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

    /// The second may end among lost frames: `ahead`, those that follow, may tell the rate.
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

    /// The frame before the first one of a thread that has not been seen before, but follows.
    fn new_stream(&mut self, at: i64, ahead: &[Sighting]) -> Option<Head> {
        let unknown =
            |s: &&Sighting| !self.by_key.contains_key(&s.head.key()) && !self.is_astray(&s.head);
        let first = *ahead.iter().find(unknown)?;
        let time = self.rate.after(first.head.time().into(), -1);
        let head = first.head.fill_after(time.time()?, -1, self.rate.get())?;
        self.begin(Sighting { at, head });
        Some(head)
    }

    /// A header for a frame of which nothing is known but its neighbours: their station and time, and a
    /// thread that none of them has.
    fn stray(&self, ahead: &[Sighting]) -> Option<Head> {
        let latest = self.streams.get(self.latest).map(|stream| stream.head);
        let mut head = latest.or(ahead.first().map(|sighting| sighting.head))?;
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

/// Whether two headers are of times that one recording may have.
fn are_near(a: &Head, b: &Head) -> bool {
    a.time().second.abs_diff(b.time().second) <= MAX_ASTRAY
}

/// Whether the next frame of `key` that follows is the one of `time`.
fn comes_next(key: StreamKey, time: FrameTime, ahead: &[Sighting]) -> bool {
    let next = ahead.iter().find(|s| s.head.key() == key);
    next.is_some_and(|s| s.head.time() == time)
}
