//! Passes the frames of a stream from the drain to the correlator: frames go into a track, and the correlator takes slabs when all data has
//! arrived or the wait is over.
//!
//! Put here what happens to frames of a live stream before they are correlated.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrayvec::ArrayVec;
use evlbi_core::deframe::{self, Chunk, Format, Selected};
use evlbi_core::time::Nanos;
use evlbi_fx::layout::Layout;
use evlbi_fx::track::{Counts, Slab, Track, Trust};
use evlbi_fx::unpack::Recorded;
use evlbi_net::clock::Clock;
use evlbi_net::run::Run;
use evlbi_stream::drain::ABSENT;
use evlbi_stream::samples::{Samples, SamplesError};
use evlbi_stream::selection::Selection;
use evlbi_stream::sink::{Sink, SinkReport};
use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::StreamKey;
use parking_lot::{Mutex, MutexGuard};

use super::arrived::{Arrived, arrived};
use super::clocks::{Clocks, HOLD, RUN, Verdict};
use super::run::Station;
use super::shape::Shape;
use super::station::frame_number;
use super::{Cause, CorrelateError};

/// Frames judged together, so that locks are taken once per group.
const GROUP: usize = 32;
/// Frames from which the threads of a stream are detected.
const ENOUGH: usize = 256;
/// Time after the first frame at which the threads are detected from fewer frames.
const LONG_ENOUGH: Nanos = Nanos(300_000_000);
/// Time for which a stopped run correlates the data that had arrived.
const AFTER_STOP: Nanos = Nanos(10 * Nanos::SECOND.0);
/// Maximum number of stations and threads that are listed if the selected ones are not there.
const MAX_PASSED: usize = 1024;
/// A thread that is this many seconds behind itself for several consecutive frames was set back.
const BACK: i64 = 1;
/// Minimum poll interval while waiting for data.
pub const NAP: Duration = Duration::from_millis(2);
/// Maximum poll interval: slow streams cost little CPU time.
const MAX_NAP: Duration = Duration::from_millis(16);

/// Data of a stream, filled by the drain and emptied by the correlator.
pub struct Feed {
    state: Mutex<State>,
    selection: Selection,
    selected: Selected,
    sample_rate: Option<u64>,
    trust: Trust,
    /// The times of all stations, and the index of this one.
    clocks: Arc<Mutex<Clocks>>,
    station: usize,
    /// UTC second from which the samples of all streams are counted: midnight before the first frame of the first stream.
    epoch: Arc<OnceLock<i64>>,
    clock: Clock,
    /// Whether the correlator takes no more.
    pub is_closed: AtomicBool,
}

#[derive(Default)]
pub struct State {
    /// Frames that arrived before the threads were known.
    early: Vec<Early>,
    /// Arrival of the first frame.
    first: Option<Nanos>,
    pub shape: Option<Shape>,
    pub track: Option<Track>,
    /// First sample that is still needed; `None` until the correlator begins.
    needed: Option<i64>,
    /// End of the samples that the correlator waits for or took.
    wanted: Option<i64>,
    /// First sample that was ever needed.
    begins: Option<i64>,
    /// Late frames from before the run.
    too_late: u64,
    /// Whether the stream had not arrived when the run began; it then belongs to the station of its first frame.
    is_of_anyone: bool,
    pub ended: bool,
    pub error: Option<SamplesError>,
    /// Whether the stream is not correlated.
    is_left_out: bool,
    /// Reason for which the selected station seems not to be in the stream.
    pub absent: Option<SamplesError>,
    /// Consecutive frames of each thread that are behind the thread's own data.
    behind: BTreeMap<u16, u32>,
    /// Reason why the stream, which arrived late, cannot take the place that was kept for it.
    unlike: Option<String>,
    /// Frames of other stations, or with other bits or channels.
    others: u64,
    /// Stations and threads that are not selected, and the arrival of the first of them.
    passed: BTreeSet<StreamKey>,
    first_passed: Option<Nanos>,
}

/// A frame with an accepted time.
struct Judged<'a> {
    frame: Arrived<'a>,
    /// Number since the epoch.
    number: i64,
    /// End of the frame, in seconds since the epoch.
    end: f64,
    /// Whether the station's time restarts with this frame.
    is_new: bool,
}

struct Early {
    layout: deframe::Layout,
    key: StreamKey,
    time: FrameTime,
    invalid: bool,
    is_odd: bool,
    header: Vec<u8>,
    /// Samples with the bytes next to them.
    bytes: Vec<u8>,
    /// Place of the samples in these.
    samples: Range<usize>,
}

impl Feed {
    pub fn new(
        selection: &Selection,
        sample_rate: Option<u64>,
        trust: Trust,
        epoch: &Arc<OnceLock<i64>>,
        clocks: &Arc<Mutex<Clocks>>,
        station: usize,
        clock: &Clock,
    ) -> Arc<Feed> {
        Arc::new(Feed {
            state: Mutex::new(State::default()),
            selection: selection.clone(),
            selected: selection.part(),
            sample_rate,
            trust,
            epoch: Arc::clone(epoch),
            clocks: Arc::clone(clocks),
            station,
            clock: clock.clone(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Returns the number of a frame since the epoch; the first frame of all streams sets the epoch.
    fn number(&self, time: FrameTime, layout: &Layout) -> i64 {
        let midnight = || time.second.saturating_sub(time.second.rem_euclid(86_400));
        frame_number(time, *self.epoch.get_or_init(midnight), layout.frame_rate)
    }

    /// Returns this host's time for [`Clocks`], in seconds.
    pub fn now(&self) -> f64 {
        self.clock.now().as_secs_f64()
    }

    /// Returns this host's UTC, in seconds since the epoch.
    pub fn host(&self) -> f64 {
        self.clock.utc() as f64 * 1e-9 - self.epoch.get().copied().unwrap_or(0) as f64
    }

    pub fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.clocks.lock()
    }

    /// Returns the end of the newest data, in seconds since the epoch, even if all data were late.
    pub fn newest(&self) -> Option<f64> {
        let held = self.state().newest();
        held.or_else(|| self.clocks().newest(self.station))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes frames from the drain. Blocks while the correlator is far behind: then the ring fills, and drops.
    fn put<'a>(&self, frames: impl Iterator<Item = Arrived<'a>>) {
        let mut frames = frames.peekable();
        while frames.peek().is_some() {
            let mut state = self.state();
            if state.is_full(&self.clocks()) && !self.is_closed.load(Ordering::Relaxed) {
                drop(state);
                self.clock.sleep(NAP);
            } else if state.track.is_some() {
                state.take(self, &mut frames);
            } else if let Some(frame) = frames.next() {
                state.push(self, &frame);
            }
        }
    }

    /// Gives a stream that has not arrived the format of another one, and lets it be of any station, unless one is selected. Refuses it if
    /// that format does not have its channels.
    pub fn expect(&self, like: &Shape) -> Result<Shape, SamplesError> {
        let mut state = self.state();
        if let (Some(shape), Some(_)) = (&state.shape, &state.track) {
            return Ok(shape.clone());
        }
        let threads = match self.selection.threads.as_slice() {
            [] => &like.threads,
            selected => selected,
        };
        let samples = like.samples.clone().select(&self.selection.channels);
        let shape = Shape {
            samples: samples.inspect_err(|error| state.error = Some(error.clone()))?,
            frames: like.frames,
            threads: threads.to_vec(),
            station: self.selected.only_station().unwrap_or_default(),
            first_second: like.first_second,
            selected: self.selected.clone(),
            selection: self.selection.clone(),
        };
        state.track = Some(self.track(&shape));
        state.early.clear();
        state.is_of_anyone = true;
        state.shape = Some(shape.clone());
        Ok(shape)
    }

    /// Takes no more frames of a stream that is not correlated.
    pub fn leave_out(&self) {
        let mut state = self.state();
        (state.shape, state.track) = (None, None);
        state.early.clear();
        state.is_left_out = true;
        self.clocks().end(self.station, self.now());
    }

    /// Returns the number of frames whose times were not accepted.
    pub fn refused(&self) -> u64 {
        self.clocks().refused(self.station)
    }

    /// Returns the reason why it contributes nothing.
    pub fn why_nothing(&self) -> String {
        let state = self.state();
        if let Some(why) = state.unlike.as_ref().filter(|_| state.is_of_anyone) {
            return why.clone();
        }
        let (late, has_ended) = (state.late() > 0, state.ended);
        self.clocks()
            .reason(self.station, late, has_ended, self.now())
    }

    /// Returns an empty track for frames of this shape.
    fn track(&self, shape: &Shape) -> Track {
        Track::new(&shape.samples.unpacker, &shape.threads, self.trust)
    }

    /// Notes the end of the stream.
    pub fn end(&self) {
        let mut state = self.state();
        state.learn(self);
        state.ended = true;
        self.clocks().end(self.station, self.now());
    }
}

/// A sink that passes frames from the drain to feeds, of which each takes its own.
pub struct Feeding(pub Vec<Arc<Feed>>);

impl Sink for Feeding {
    fn take(&mut self, chunk: Chunk<'_>) {
        // In small groups: a feed that is full waits for the correlator, which may wait for data of another.
        for frames in chunk.frames.chunks(GROUP) {
            for feed in &self.0 {
                feed.put(arrived(Chunk { frames, ..chunk }));
            }
        }
    }

    fn finish(self: Box<Self>) -> SinkReport {
        SinkReport::default()
    }
}

impl State {
    /// Takes frames once the threads are known: as many as there is room for, at most a group. All are judged by the clocks at the start of
    /// the group.
    fn take<'a>(&mut self, feed: &Feed, frames: &mut impl Iterator<Item = Arrived<'a>>) {
        let mut group = ArrayVec::<Judged<'_>, GROUP>::new();
        let mut clocks = feed.clocks();
        let is_closed = feed.is_closed.load(Ordering::Relaxed);
        let room = clocks.room().filter(|_| !is_closed).unwrap_or(f64::MAX);
        let (now, mut newest) = (feed.now(), self.newest().unwrap_or(f64::MIN));
        for _ in 0..GROUP {
            let Some(frame) = (newest <= room).then(|| frames.next()).flatten() else {
                break;
            };
            if let Some(judged) = self.judge(feed, &mut clocks, now, frame) {
                newest = newest.max(judged.end);
                group.push(judged);
            }
        }
        drop(clocks);
        group.iter().for_each(|judged| self.place(feed, judged));
        self.keep_newest();
    }

    /// Takes a frame while the threads are unknown.
    fn push(&mut self, feed: &Feed, frame: &Arrived<'_>) {
        if !feed.selected.has(Some(frame.key)) {
            self.pass(frame.key, feed);
            return;
        }
        if !self.admits(frame, feed) {
            return;
        }
        if self.shape.is_none() {
            if frame.is_odd {
                return;
            }
            let rate = frame.layout.frame_rate;
            let (selection, given) = (&feed.selection, feed.sample_rate);
            match Samples::of(selection, &frame.layout, frame.header, rate, given) {
                Ok(samples) => self.begin(samples, frame, feed),
                Err(error) => {
                    self.error = Some(error);
                    return;
                }
            }
        }
        let (bytes, samples) = frame.samples.with_context();
        self.early.push(Early {
            layout: frame.layout,
            key: frame.key,
            time: frame.time,
            invalid: frame.invalid,
            is_odd: frame.is_odd,
            header: frame.header.to_vec(),
            bytes: bytes.to_vec(),
            samples,
        });
        if self.early.len() >= ENOUGH {
            self.learn(feed);
        }
        self.learn_in_time(feed);
    }

    /// Notes a frame of another station or thread than the selected ones, which are not there if only others are for a while.
    fn pass(&mut self, key: StreamKey, feed: &Feed) {
        if self.passed.len() < MAX_PASSED {
            self.passed.insert(key);
        }
        let now = feed.clock.now();
        let first = *self.first_passed.get_or_insert(now);
        if now.since(first) >= ABSENT && self.shape.is_none() && self.absent.is_none() {
            self.absent = feed.selection.check(&self.passed).err();
        }
    }

    /// Returns whether a frame belongs to this stream.
    fn admits(&mut self, frame: &Arrived<'_>, feed: &Feed) -> bool {
        if self.error.is_some() || self.is_left_out {
            return false;
        }
        let Some(shape) = &mut self.shape else {
            return true;
        };
        if shape.leaves_out(frame) {
            return false;
        }
        if self.is_of_anyone && !frame.is_odd {
            match shape.like(frame, feed.sample_rate) {
                Ok(own) => {
                    self.track = Some(feed.track(&own));
                    *shape = own;
                    self.is_of_anyone = false;
                }
                Err(why) => {
                    self.unlike.get_or_insert(why);
                }
            }
        }
        let is_own = !self.is_of_anyone && shape.owns(frame);
        self.others += u64::from(!is_own);
        is_own
    }

    /// Checks whether a frame belongs to this stream and its time is accepted.
    fn judge<'a>(
        &mut self,
        feed: &Feed,
        clocks: &mut Clocks,
        now: f64,
        frame: Arrived<'a>,
    ) -> Option<Judged<'a>> {
        if !self.admits(&frame, feed) {
            return None;
        }
        let shape = self.shape.as_ref()?;
        let layout = *shape.layout();
        let is_dated = shape.frames.format == Format::Vdif || feed.selection.year.is_some();
        clocks.set_dated(feed.station, is_dated);
        let number = feed.number(frame.time, &layout);
        let rate = layout.sample_rate() as f64;
        let end = number
            .saturating_add(1)
            .saturating_mul(layout.frame_samples()) as f64
            / rate;
        let length = layout.frame_samples() as f64 / rate;
        let verdict = clocks.judge(feed.station, end, length, now);
        (verdict != Verdict::Refuse).then_some(Judged {
            frame,
            number,
            end,
            is_new: verdict == Verdict::Restart,
        })
    }

    /// Stores a frame at its time.
    fn place(&mut self, feed: &Feed, judged: &Judged<'_>) {
        let (Some(track), Some(shape)) = (&mut self.track, &mut self.shape) else {
            return;
        };
        let Judged { frame, number, .. } = judged;
        let layout = shape.layout();
        let (samples, rate) = (layout.frame_samples(), layout.sample_rate());
        let end = number.saturating_add(1).saturating_mul(samples);
        let thread = frame.key.thread;
        if judged.is_new {
            *track = feed.track(shape);
            shape.first_second = frame.time.second;
            self.behind.clear();
        }
        let newest = track.newest_of(thread).unwrap_or(i64::MIN);
        if end < newest.saturating_sub(BACK * rate) {
            let behind = self.behind.entry(thread).or_insert(0);
            *behind += 1;
            if *behind >= RUN {
                self.behind.remove(&thread);
                track.rewind(thread, *number);
                let newest = track.newest().unwrap_or(end) as f64 / rate as f64;
                feed.clocks().set_back(feed.station, newest, feed.now());
            }
        } else if !self.behind.is_empty() {
            self.behind.remove(&thread);
        }
        if self.begins.is_some_and(|begins| end <= begins) {
            // A frame from before the run is late once the correlator has taken data.
            self.too_late += u64::from(self.needed > self.begins);
            return;
        }
        track.push(thread, *number, frame.invalid, frame.samples.clone());
    }

    /// Keeps only the newest data while the run waits for other streams.
    fn keep_newest(&mut self) {
        if let (None, Some(track)) = (self.needed, &mut self.track) {
            let newest = track.newest().unwrap_or(i64::MIN);
            let rate = track.layout().sample_rate() as f64;
            track.forget(newest.saturating_sub((HOLD * rate) as i64));
        }
    }

    /// Starts the run: all data is needed from now on.
    pub fn keep_all(&mut self) {
        self.needed = self.track.as_ref().and_then(Track::earliest);
    }

    /// Discards all data from before the run that is not from its time, which begins in this UTC second.
    pub fn leave_out(&mut self, second: i64, feed: &Feed) {
        if let (Some(track), Some(shape)) = (&mut self.track, &mut self.shape) {
            *track = feed.track(shape);
            shape.first_second = second;
        }
    }

    fn begin(&mut self, samples: Samples, frame: &Arrived<'_>, feed: &Feed) {
        self.first = Some(feed.clock.now());
        self.shape = Some(Shape {
            samples,
            frames: frame.layout,
            threads: Vec::new(),
            station: frame.key.station,
            first_second: frame.time.second,
            selected: feed.selected.clone(),
            selection: feed.selection.clone(),
        });
    }

    /// Detects the threads if the first frame arrived long enough ago.
    pub fn learn_in_time(&mut self, feed: &Feed) {
        let since = |first: Nanos| feed.clock.now().since(first);
        if self.first.is_some_and(|first| since(first) >= LONG_ENOUGH) {
            self.learn(feed);
        }
    }

    /// Sets the threads to those seen so far.
    fn learn(&mut self, feed: &Feed) {
        let Some(shape) = &mut self.shape else {
            return;
        };
        if self.track.is_some() {
            return;
        }
        let arrived: BTreeSet<StreamKey> = self.early.iter().map(|frame| frame.key).collect();
        if let Err(error) = feed.selection.check(arrived.iter().chain(&self.passed)) {
            self.error = Some(error);
            return;
        }
        let threads: BTreeSet<u16> = arrived.iter().map(|key| key.thread).collect();
        shape.threads = match feed.selection.threads.as_slice() {
            [] => threads.into_iter().collect(),
            selected => selected.to_vec(),
        };
        self.track = Some(feed.track(shape));
        for early in std::mem::take(&mut self.early) {
            let Some(samples) = Recorded::new(&early.bytes, early.samples.clone()) else {
                continue;
            };
            let frame = Arrived {
                layout: early.layout,
                key: early.key,
                time: early.time,
                invalid: early.invalid,
                is_odd: early.is_odd,
                begin: 0,
                header: &early.header,
                samples,
            };
            let judged = self.judge(feed, &mut feed.clocks(), feed.now(), frame);
            judged.iter().for_each(|judged| self.place(feed, judged));
        }
    }

    /// Returns the end of the newest data, in seconds since the epoch.
    pub fn newest(&self) -> Option<f64> {
        let (track, shape) = (self.track.as_ref()?, self.shape.as_ref()?);
        Some(track.newest()? as f64 / shape.layout().sample_rate() as f64)
    }

    /// Returns the seconds of data after the last that the correlator took.
    pub fn left(&self) -> f64 {
        let (Some(track), Some(end)) = (&self.track, self.wanted) else {
            return 0.0;
        };
        track.held(end) as f64 / track.layout().sample_rate() as f64
    }

    /// Returns the number of late frames.
    pub fn late(&self) -> u64 {
        let track = self.track.as_ref();
        self.too_late + track.map_or(0, |track| track.counts().late)
    }

    /// Returns whether no more data may wait for the correlator. Data that it wants is always admitted.
    fn is_full(&self, clocks: &Clocks) -> bool {
        let room = clocks.room();
        matches!((self.newest(), room), (Some(newest), Some(room)) if newest > room)
    }
}

/// Reasons why streams cannot be correlated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The options flag times, which are unknown for a stream that has not arrived.
    #[error("flags cannot be used with streams, whose times are not known beforehand")]
    Flags,
    /// The options ask for visibilities.
    #[error("a correlation of streams cannot write visibilities")]
    Visibilities,
    /// A stream cannot be received.
    #[error("{0}")]
    Receive(#[source] Cause),
    /// Two inputs take the same part of one stream.
    #[error("{0} is given twice: give it once, or select other parts of it")]
    Twice(String),
    /// The stream cannot be correlated.
    #[error("stream {number}")]
    Unfit {
        /// Index of the stream among the URLs, from 1.
        number: usize,
        /// The problem with its frames.
        source: SamplesError,
    },
    /// The stream can no longer be correlated.
    #[error("{0}")]
    Format(#[from] SamplesError),
    /// A stream ended before there was anything to correlate; the text names the stream.
    #[error("{0}")]
    Ended(String),
    /// A receiving thread panicked.
    #[error("the thread that empties a ring panicked")]
    Panicked,
}

/// End of a run: data that had arrived when it is stopped is correlated for a while, unless the run is abandoned.
pub struct Ending {
    pub run: Run,
    /// Time at which the stop was noticed.
    stopped: OnceLock<Nanos>,
}

impl Ending {
    pub fn new(run: Run) -> Ending {
        Ending {
            run,
            stopped: OnceLock::new(),
        }
    }

    /// Returns whether the remaining work took too long.
    fn is_over(&self) -> bool {
        let now = || self.run.clock().now();
        let has_time = || now().since(*self.stopped.get_or_init(now)) < AFTER_STOP;
        self.run.is_stopped() && (self.run.is_abandoned() || !has_time())
    }
}

/// A stream as a station of the correlator.
pub struct LiveStation {
    pub feed: Arc<Feed>,
    pub layout: Layout,
    pub ending: Arc<Ending>,
}

impl LiveStation {
    /// Waits until the stream has data up to the end of `range`, has ended, or is no longer waited for.
    fn come(&self, range: &Range<i64>) -> Result<MutexGuard<'_, State>, StreamError> {
        let mut nap = NAP;
        loop {
            if let Some(state) = self.has_come(range)? {
                return Ok(state);
            }
            self.feed.clock.sleep(nap);
            nap = (nap * 2).min(MAX_NAP);
        }
    }

    /// Returns the stream's state if the correlator need not wait for it. All streams keep room for what arrives in the meantime.
    fn has_come(&self, range: &Range<i64>) -> Result<Option<MutexGuard<'_, State>>, StreamError> {
        let end = range.end as f64 / self.layout.sample_rate() as f64;
        // First, because the other stations' data may change the state of this one.
        let mut clocks = self.feed.clocks();
        clocks.want(end);
        let over = !clocks.is_waited_for(self.feed.station, end, self.feed.now());
        drop(clocks);
        let over = over || self.ending.is_over();
        let mut state = self.feed.state();
        if let Some(error) = &state.error {
            return Err(error.clone().into());
        }
        state.needed = Some(range.start);
        state.wanted = Some(range.end);
        state.begins.get_or_insert(range.start);
        let over = over || state.ended;
        if let Some(track) = &mut state.track {
            track.forget(range.start);
            if over || track.has_come_to(range.end, 1) {
                return Ok(Some(state));
            }
        } else if state.ended {
            return Err(StreamError::Ended("a stream ended before it began".into()));
        }
        Ok(None)
    }
}

impl Station for LiveStation {
    fn slab(&mut self, range: Range<i64>) -> Result<Slab, CorrelateError> {
        let state = self.come(&range)?;
        let track = state.track.as_ref();
        let track = track.ok_or_else(|| StreamError::Ended("a stream without a track".into()))?;
        Ok(track.slab(range))
    }

    fn first(&mut self, range: Range<i64>) -> Result<Option<i64>, CorrelateError> {
        let state = self.come(&range)?;
        Ok(state.track.as_ref().and_then(Track::earliest))
    }

    fn counts(&self) -> Counts {
        let state = self.feed.state();
        let counts = state
            .track
            .as_ref()
            .map_or_else(Counts::default, Track::counts);
        Counts {
            late: state.late(),
            foreign: counts.foreign + state.others + self.feed.refused(),
            ..counts
        }
    }

    fn is_over(&self, sample: i64) -> bool {
        if self.ending.is_over() {
            return true;
        }
        let state = self.feed.state();
        let has_more = |track: &Track| track.held(sample) > 0;
        let is_left = || {
            self.feed
                .clocks()
                .is_left(self.feed.station, self.feed.now())
        };
        let comes_no_more = state.ended || is_left();
        comes_no_more && !state.track.as_ref().is_some_and(has_more)
    }
}

#[cfg(test)]
mod instructions;
#[cfg(test)]
mod tests;
