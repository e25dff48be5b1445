//! What comes of a stream on its way from the drain to the correlator: frames go into a track, and slabs of it are taken when
//! all has come, or was waited for long enough.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use evlbi_core::deframe::Chunk;
use evlbi_fx::track::{Counts, Layout, Slab, Track, Trust};
use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::{Header, StationId, StreamKey};

use super::arrived::{Arrived, arrived};
use super::plan::Shape;
use super::run::Station;
use super::station::{frame_number, frame_rate};
use crate::progress::interrupt;

/// Frames from which the threads of a stream are learnt.
const ENOUGH: usize = 256;
/// Or so long after the first.
pub const LONG_ENOUGH: Duration = Duration::from_millis(300);
/// Data of a stream that waits for the correlator at most, in seconds, beside what late stations are waited for;
/// then its ring fills.
const MOST_WAITING: f64 = 4.0;
/// How long a run that was stopped goes on with what had come.
const AFTER_STOP: Duration = Duration::from_secs(10);
/// A frame this far ahead of all before, in seconds, is believed when so many of them came in a row.
const WILD: f64 = 10.0;
const WILD_RUN: u32 = 64;
/// Between two looks at what has come.
pub const NAP: Duration = Duration::from_millis(2);

/// What a stream brings, for the drain that fills it and the correlator that empties it.
pub struct Feed {
    state: Mutex<State>,
    sample_rate: Option<u64>,
    trust: Trust,
    /// Seconds of data that may wait for the correlator.
    most_waiting: f64,
    /// UTC second that the samples of all streams are counted from: midnight before the first frame of the first.
    epoch: Arc<OnceLock<i64>>,
    /// The correlator takes no more.
    pub is_closed: AtomicBool,
}

#[derive(Default)]
pub struct State {
    /// Frames that came before the threads were known.
    early: Vec<Early>,
    pub first: Option<Instant>,
    pub shape: Option<Shape>,
    pub track: Option<Track>,
    /// First sample that is still needed; none until the correlator begins.
    needed: Option<i64>,
    /// The sample before which all is waited for.
    wanted: Option<i64>,
    /// First sample that was ever needed: what lies before it is not late.
    begins: Option<i64>,
    /// It had not come when the run began: the station of its first frame is its station.
    is_of_anyone: bool,
    pub ended: bool,
    pub error: Option<String>,
    /// Frames in a row that were far ahead.
    wild: u32,
    /// Frames of other stations, of other bits or channels, and of single wild times.
    others: u64,
}

struct Early {
    key: StreamKey,
    time: FrameTime,
    invalid: bool,
    payload: Vec<u8>,
}

impl Feed {
    pub fn new(
        sample_rate: Option<u64>,
        trust: Trust,
        wait: Duration,
        epoch: &Arc<OnceLock<i64>>,
    ) -> Arc<Feed> {
        Arc::new(Feed {
            state: Mutex::new(State::default()),
            sample_rate,
            trust,
            most_waiting: wait.as_secs_f64() + MOST_WAITING,
            epoch: Arc::clone(epoch),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Number of a frame since the epoch, which is that frame's if none came before.
    fn number(&self, time: FrameTime, layout: &Layout) -> i64 {
        let midnight = || time.second.saturating_sub(time.second.rem_euclid(86_400));
        frame_number(time, *self.epoch.get_or_init(midnight), layout.frame_rate)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes frames from the drain. Waits while the correlator is far behind: then the ring fills, and drops.
    pub fn take(&self, chunk: Chunk<'_>) {
        for frame in arrived(chunk) {
            loop {
                let mut state = self.state();
                if !state.is_full(self.most_waiting) || self.is_closed.load(Ordering::Relaxed) {
                    state.push(self, &frame);
                    break;
                }
                drop(state);
                std::thread::sleep(NAP);
            }
        }
    }

    /// Of a stream that has not come nothing is known: it is taken to be like another, of whatever station comes.
    pub fn expect(&self, like: &Shape) -> Shape {
        let mut state = self.state();
        if state.track.is_none() {
            let shape = Shape {
                station: StationId::default(),
                ..like.clone()
            };
            state.track = Some(Track::new(shape.layout, &shape.threads, self.trust));
            state.early.clear();
            state.is_of_anyone = true;
            state.shape = Some(shape);
        }
        state.shape.clone().unwrap_or_else(|| like.clone())
    }

    /// The stream has ended.
    pub fn end(&self) {
        let mut state = self.state();
        state.learn(self);
        state.ended = true;
    }
}

impl State {
    fn push(&mut self, feed: &Feed, frame: &Arrived<'_>) {
        if self.error.is_some() {
            return;
        }
        if self.is_of_anyone
            && let Some(shape) = &mut self.shape
        {
            shape.station = frame.key.station;
            self.is_of_anyone = !shape.owns(frame);
        }
        if self.shape.as_ref().is_some_and(|shape| !shape.owns(frame)) {
            self.others += 1;
            return;
        }
        if let (Some(track), Some(shape)) = (&mut self.track, &self.shape) {
            let number = feed.number(frame.time, &shape.layout);
            let ahead = number
                .saturating_mul(shape.layout.frame_samples())
                .saturating_sub(track.newest().unwrap_or(i64::MAX));
            let is_wild = ahead as f64 > WILD * shape.layout.sample_rate() as f64;
            let end = number
                .saturating_add(1)
                .saturating_mul(shape.layout.frame_samples());
            if self.begins.is_some_and(|begins| end <= begins) {
                return;
            }
            self.wild = if is_wild { self.wild + 1 } else { 0 };
            if is_wild && self.wild < WILD_RUN {
                self.others += 1;
                return;
            }
            track.push(frame.key.thread, number, frame.invalid, frame.payload);
            if self.needed.is_none() {
                // Others are waited for: only the newest is kept.
                let rate = shape.layout.sample_rate() as f64;
                let newest = track.newest().unwrap_or(i64::MIN);
                track.forget(newest.saturating_sub((MOST_WAITING * rate) as i64));
            }
            return;
        }
        if self.shape.is_none() {
            match layout(&frame.header, feed.sample_rate) {
                Ok(layout) => self.begin(layout, frame),
                Err(error) => {
                    self.error = Some(crate::output::explain(&error));
                    return;
                }
            }
        }
        self.early.push(Early {
            key: frame.key,
            time: frame.time,
            invalid: frame.invalid,
            payload: frame.payload.to_vec(),
        });
        let long_ago = self
            .first
            .is_some_and(|first| first.elapsed() >= LONG_ENOUGH);
        if self.early.len() >= ENOUGH || long_ago {
            self.learn(feed);
        }
    }

    fn begin(&mut self, layout: Layout, frame: &Arrived<'_>) {
        self.first = Some(Instant::now());
        self.shape = Some(Shape {
            layout,
            threads: Vec::new(),
            station: frame.key.station,
            first_second: frame.time.second,
        });
    }

    /// The threads are those that came so far.
    pub fn learn(&mut self, feed: &Feed) {
        let Some(shape) = &mut self.shape else {
            return;
        };
        if self.track.is_some() {
            return;
        }
        let threads: BTreeSet<u16> = self.early.iter().map(|frame| frame.key.thread).collect();
        shape.threads = threads.into_iter().collect();
        let mut track = Track::new(shape.layout, &shape.threads, feed.trust);
        for frame in self.early.drain(..) {
            let number = feed.number(frame.time, &shape.layout);
            track.push(frame.key.thread, number, frame.invalid, &frame.payload);
        }
        self.track = Some(track);
    }

    /// Newest data in seconds since the epoch.
    pub fn newest(&self) -> Option<f64> {
        let (track, shape) = (self.track.as_ref()?, self.shape.as_ref()?);
        Some(track.newest()? as f64 / shape.layout.sample_rate() as f64)
    }

    /// Seconds of data behind the last that the correlator took.
    pub fn left(&self) -> f64 {
        let (Some(track), Some(shape), Some(end)) = (&self.track, &self.shape, self.wanted) else {
            return 0.0;
        };
        let left = track.newest().unwrap_or(end).saturating_sub(end).max(0);
        left as f64 / shape.layout.sample_rate() as f64
    }

    fn is_full(&self, most: f64) -> bool {
        let (Some(track), Some(shape), Some(needed)) = (&self.track, &self.shape, self.needed)
        else {
            return false;
        };
        // What is waited for must come, however much it is.
        let from = self.wanted.unwrap_or(needed);
        let waiting = track.newest().unwrap_or(from).saturating_sub(from);
        waiting as f64 > most * shape.layout.sample_rate() as f64
    }
}

fn layout(header: &Header, sample_rate: Option<u64>) -> Result<Layout> {
    let rate = match sample_rate {
        Some(rate) => frame_rate(header, rate)?,
        None => header.frame_rate().ok_or_else(|| {
            anyhow!("the headers of the stream do not tell its sample rate; give --sample-rate")
        })?,
    };
    Ok(Layout::of(header, rate)?)
}

/// A stream as the correlator sees it.
pub struct LiveStation {
    pub feed: Arc<Feed>,
    pub layout: Layout,
    /// Those of all stations.
    pub all: Vec<Arc<Feed>>,
    pub wait: Duration,
    /// Stops the receiver.
    pub stop: Arc<AtomicBool>,
    /// When the run was stopped.
    pub stopped: Arc<OnceLock<Instant>>,
}

impl LiveStation {
    /// Whether what is left of a run that was stopped took too long. The first to find it stopped stops its receiver,
    /// so that its stream ends with what has come.
    fn is_out_of_time(&self) -> bool {
        if !interrupt().load(Ordering::Relaxed) {
            return false;
        }
        self.stop.store(true, Ordering::Relaxed);
        self.stopped.get_or_init(Instant::now).elapsed() >= AFTER_STOP
    }
}

impl Station for LiveStation {
    /// Waits until the stream has come past `range`, has ended, or is later than all others by more than the wait.
    fn slab(&mut self, range: Range<i64>) -> Result<Slab> {
        let end = range.end as f64 / self.layout.sample_rate() as f64;
        loop {
            // Before the stream is looked at: what the others have may be news to it.
            let front = self.all.iter().filter_map(|feed| feed.state().newest());
            let waited = front.fold(f64::NEG_INFINITY, f64::max) - end >= self.wait.as_secs_f64();
            let over = waited || self.is_out_of_time();
            let mut state = self.feed.state();
            if let Some(error) = &state.error {
                bail!("{error}");
            }
            state.needed = Some(range.start);
            state.wanted = Some(range.end);
            state.begins.get_or_insert(range.start);
            let over = over || state.ended;
            if let Some(track) = &mut state.track {
                track.forget(range.start);
                if over || track.has_come_to(range.end, 1) {
                    return Ok(track.slab(range));
                }
            } else if state.ended {
                bail!("a stream ended before it began");
            }
            drop(state);
            std::thread::sleep(NAP);
        }
    }

    fn counts(&self) -> Counts {
        let state = self.feed.state();
        let counts = state
            .track
            .as_ref()
            .map_or_else(Counts::default, Track::counts);
        Counts {
            foreign: counts.foreign + state.others,
            ..counts
        }
    }

    fn is_over(&self, sample: i64) -> bool {
        if self.is_out_of_time() {
            return true;
        }
        let state = self.feed.state();
        let newest = state.track.as_ref().and_then(Track::newest);
        state.ended && newest.is_none_or(|newest| newest <= sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evlbi_wire::time::FrameRate;
    use evlbi_wire::vdif;

    const SAMPLE_RATE: u64 = 16_000;
    /// Of frames of 800 bytes, 3200 samples each.
    const FRAMES_A_SECOND: i64 = 5;
    /// Midnight.
    const START: i64 = 1_704_067_200;

    fn push(feed: &Feed, number: i64) {
        let shape = vdif::Shape {
            frame_length: 832,
            log2_channels: 0,
            bits: 2,
            complex: false,
            legacy: false,
        };
        let station = StationId::from_code(*b"Ef");
        let key = StreamKey { station, thread: 0 };
        let rate = FrameRate::new(FRAMES_A_SECOND as u32).unwrap();
        let time = FrameTime::from_index(START * FRAMES_A_SECOND + number, rate);
        let mut header = Header::new(shape, key);
        header.set_time(time).unwrap();
        let frame = Arrived {
            header,
            key,
            time,
            invalid: false,
            payload: &[0x55; 800],
        };
        feed.state().push(feed, &frame);
    }

    /// However long an integration is, and however little else may wait.
    #[test]
    fn what_the_correlator_waits_for_finds_room() {
        let wait = Duration::from_secs(5);
        let feed = Feed::new(Some(SAMPLE_RATE), Trust::Exact, wait, &Arc::default());
        push(&feed, 0);
        feed.state().learn(&feed);
        // An integration of 160 s.
        let integration = 160;
        let mut state = feed.state();
        state.needed = Some(0);
        state.wanted = Some(integration * SAMPLE_RATE as i64);
        drop(state);
        let most = integration + wait.as_secs() as i64 + MOST_WAITING as i64;
        for number in 1..=most * FRAMES_A_SECOND {
            assert!(!feed.state().is_full(feed.most_waiting), "{number}");
            push(&feed, number);
        }
        assert!(feed.state().is_full(feed.most_waiting));
        // It has taken that, and waits for the next.
        let mut state = feed.state();
        state.needed = state.wanted;
        state.wanted = Some(2 * integration * SAMPLE_RATE as i64);
        assert!(!state.is_full(feed.most_waiting));
    }
}
