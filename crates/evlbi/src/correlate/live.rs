//! `evlbi correlate --live`: streams are received and correlated as they come.
//!
//! Each stream has a receiver and a drain as `recv` has, whose frames go into a track. The correlator takes each
//! dump when all stations have come past it, or when those that have not were waited for long enough; what comes
//! of it later is late, and counted.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::deframe::Chunk;
use evlbi_fx::track::{Counts, Layout, Slab, Track, Trust};
use evlbi_net::receive::{self, ReceiveReport, Receiving};
use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::{Header, StreamKey};
use serde::Serialize;

use super::arrived::{Arrived, arrived};
use super::correlation::Correlation;
use super::job::Job;
use super::plan::Shape;
use super::result::{BaselineResult, baselines};
use super::run::Station;
use super::series::{Found, Series};
use super::station::{frame_number, frame_rate};
use crate::cli::{CorrelateArgs, RecvArgs};
use crate::drain::{self, Drained};
use crate::progress::interrupt;
use crate::recv;
use crate::sink::Sink;
use crate::units::{show_rate, show_seconds, utc};

/// Frames from which the threads of a stream are learnt.
const ENOUGH: usize = 256;
/// Or so long after the first.
const LONG_ENOUGH: Duration = Duration::from_millis(300);
/// Data of a stream that waits for the correlator at most, in seconds, beside what late stations are waited for;
/// then its ring fills.
const MOST_WAITING: f64 = 4.0;
/// A frame this far ahead of all before, in seconds, is believed when so many of them came in a row.
const WILD: f64 = 10.0;
const WILD_RUN: u32 = 64;
const NAP: Duration = Duration::from_millis(2);
/// How often it is told that a stream is waited for.
const TELL: Duration = Duration::from_secs(5);

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
    is_closed: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Frames that came before the threads were known.
    early: Vec<Early>,
    first: Option<Instant>,
    shape: Option<Shape>,
    track: Option<Track>,
    /// First sample that is still needed; none until the correlator begins.
    needed: Option<i64>,
    /// The sample before which all is waited for.
    wanted: Option<i64>,
    /// First sample that was ever needed: what lies before it is not late.
    begins: Option<i64>,
    ended: bool,
    error: Option<String>,
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
    fn new(
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

    fn state(&self) -> MutexGuard<'_, State> {
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
    fn learn(&mut self, feed: &Feed) {
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
    fn newest(&self) -> Option<f64> {
        let (track, shape) = (self.track.as_ref()?, self.shape.as_ref()?);
        Some(track.newest()? as f64 / shape.layout.sample_rate() as f64)
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
struct LiveStation {
    feed: Arc<Feed>,
    layout: Layout,
    /// Those of all stations.
    all: Vec<Arc<Feed>>,
    wait: Duration,
}

impl Station for LiveStation {
    /// Waits until the stream has come past `range`, has ended, or is later than all others by more than the wait.
    fn slab(&mut self, range: Range<i64>) -> Result<Slab> {
        let end = range.end as f64 / self.layout.sample_rate() as f64;
        loop {
            // Before the stream is looked at: what the others have may be news to it.
            let front = self.all.iter().filter_map(|feed| feed.state().newest());
            let waited = front.fold(f64::NEG_INFINITY, f64::max) - end >= self.wait.as_secs_f64();
            let over = waited || interrupt().load(Ordering::Relaxed);
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
        let state = self.feed.state();
        let newest = state.track.as_ref().and_then(Track::newest);
        state.ended && newest.is_none_or(|newest| newest <= sample)
    }
}

/// One stream's receiving end.
struct Stream {
    receiving: Receiving,
    drainer: JoinHandle<Drained>,
    feed: Arc<Feed>,
}

/// What a period of all baselines says.
#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    time: String,
    baselines: Vec<BaselineLine<'a>>,
    streams: Vec<StreamLine>,
}

/// What a period of a baseline says.
#[derive(Serialize)]
struct BaselineLine<'a> {
    #[serde(flatten)]
    result: &'a BaselineResult,
    /// Shares of the packets that did not come of its stations' streams since the line before.
    lost: [f64; 2],
}

/// What a period of a stream says, counted from the start.
#[derive(Serialize)]
struct StreamLine {
    station: String,
    rate_bps: f64,
    expected: u64,
    lost: u64,
    ring_full: u64,
    /// Frames that came when they had been waited for long enough.
    late_frames: u64,
    /// How far its newest data lie behind the newest of all, in seconds.
    skew_s: f64,
}

/// What came of a live run, beside what was correlated.
#[derive(Serialize)]
pub struct StreamResult {
    station: String,
    expected: u64,
    unique: u64,
    lost: u64,
    host_lost: u64,
    network_lost: u64,
    unattributed: u64,
    ring_full: u64,
    /// Frames that came when they had been waited for long enough.
    late_frames: u64,
    seconds: f64,
    rate_bps: f64,
}

/// Receives the streams that `args` name and correlates them. `line` shows the baselines of each integration.
pub fn run(args: &CorrelateArgs) -> Result<(Correlation, Vec<StreamResult>)> {
    if !args.options.flag.is_empty() {
        bail!("--flag leaves out times of recordings, and a stream has none beforehand");
    }
    if args.out.is_some() {
        bail!("--live writes no visibilities; record the streams with `evlbi recv` for that");
    }
    let stop = interrupt();
    let epoch = Arc::default();
    let streams = args
        .files
        .iter()
        .map(|url| open(url, args, &epoch))
        .collect::<Result<Vec<Stream>>>()?;
    let shapes = wait_for_shapes(&streams, &stop)?;
    let mut plan = super::plan::plan(&args.files, &shapes, &args.options)?;
    plan.count_from(*epoch.get().context("no stream has a time")?);
    let names: Vec<String> = plan
        .stations
        .iter()
        .map(|station| station.name.clone())
        .collect();
    let first = shapes
        .iter()
        .zip(&streams)
        .filter_map(|(shape, stream)| {
            let state = stream.feed.state();
            let earliest = state.track.as_ref()?.earliest()?;
            Some(earliest as f64 / shape.layout.sample_rate() as f64)
        })
        .fold(f64::NEG_INFINITY, f64::max);
    let job = Job::live(plan, first, &super::window(&args.options))?;
    let feeds: Vec<Arc<Feed>> = streams
        .iter()
        .map(|stream| Arc::clone(&stream.feed))
        .collect();
    let mut stations: Vec<LiveStation> = streams
        .iter()
        .zip(&shapes)
        .map(|(stream, shape)| LiveStation {
            feed: Arc::clone(&stream.feed),
            layout: shape.layout,
            all: feeds.clone(),
            wait: args.streams.wait,
        })
        .collect();
    let mut whole = job.series();
    whole.check(&super::window(&args.options), 0)?;
    let dumps = job.periods.count as usize;
    let mut period = Series::new(&job.setup, dumps, job.dump_seconds());
    let threads = super::threads(args.options.threads);
    let mut seen = Seen::new(&streams);
    let mut correlated = job.range.start..job.range.start;
    let counts = super::run::run(
        &job.setup,
        &mut stations,
        job.periods,
        job.range.clone(),
        threads,
        |dump, sums| {
            whole.add(sums);
            period.add(sums);
            if sums.inputs.iter().any(|input| input.good > 0) {
                correlated.end = dump + 1;
            }
            if (dump + 1).rem_euclid(job.periods.count) == 0 {
                let begins = job.begins(dump);
                show(args, &job, &names, begins, &period, &mut seen, &streams)?;
                period = Series::new(&job.setup, dumps, job.dump_seconds());
            }
            Ok(())
        },
    );
    for stream in &streams {
        stream.feed.is_closed.store(true, Ordering::Relaxed);
        stream.receiving.stop();
    }
    let reports = streams
        .into_iter()
        .map(finish)
        .collect::<Result<Vec<_>>>()?;
    let counts = counts?;
    let results = names
        .iter()
        .zip(&reports)
        .zip(&counts)
        .map(|((station, report), counts)| stream_result(station, report, counts))
        .collect();
    Ok((
        Correlation::of_streams(&job, whole, names, counts, &shapes, correlated),
        results,
    ))
}

fn open(url: &str, args: &CorrelateArgs, epoch: &Arc<OnceLock<i64>>) -> Result<Stream> {
    let recv = RecvArgs::stream(url, args.streams.idle, args.streams.duration)?;
    let (receiving, opening) = receive::start(recv::options(&recv, None)?)?;
    for address in receiving.addresses() {
        recv::say_listening(*address);
    }
    let rate = args.options.sample_rate.map(|rate| rate.0.round() as u64);
    let feed = Feed::new(rate, args.options.trust.into(), args.streams.wait, epoch);
    let sink = Sink::Feed(Arc::clone(&feed));
    let settings = recv::settings(&recv)?;
    let drainer = std::thread::Builder::new().name("sink".into()).spawn({
        let feed = Arc::clone(&feed);
        move || {
            let drained = drain::all(opening, settings, sink);
            feed.end();
            drained
        }
    })?;
    Ok(Stream {
        receiving,
        drainer,
        feed,
    })
}

fn finish(stream: Stream) -> Result<ReceiveReport> {
    stream
        .drainer
        .join()
        .map_err(|_| anyhow!("the thread that empties a ring panicked"))?;
    Ok(stream.receiving.join())
}

/// Waits until it is known what each stream is.
fn wait_for_shapes(streams: &[Stream], stop: &AtomicBool) -> Result<Vec<Shape>> {
    let mut shapes = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        let mut told = Instant::now();
        loop {
            if told.elapsed() >= TELL {
                eprintln!("waiting for stream {}", number + 1);
                told = Instant::now();
            }
            if stop.load(Ordering::Relaxed) {
                streams.iter().for_each(|stream| stream.receiving.stop());
            }
            {
                let mut state = stream.feed.state();
                if let Some(error) = &state.error {
                    bail!("stream {}: {error}", number + 1);
                }
                let long_ago = state
                    .first
                    .is_some_and(|first| first.elapsed() >= LONG_ENOUGH);
                if long_ago {
                    state.learn(&stream.feed);
                }
                if state.track.is_some() {
                    shapes.extend(state.shape.clone());
                    break;
                }
                if state.ended {
                    bail!("stream {} ended before a frame of VDIF came", number + 1);
                }
            }
            std::thread::sleep(NAP);
        }
    }
    Ok(shapes)
}

fn stream_result(station: &str, report: &ReceiveReport, counts: &Counts) -> StreamResult {
    let counters = &report.account.counters;
    StreamResult {
        station: station.to_owned(),
        expected: counters.expected,
        unique: counters.unique,
        lost: counters.lost,
        host_lost: report.attribution.host_lost,
        network_lost: report.attribution.network_lost,
        unattributed: report.attribution.unattributed,
        ring_full: counters.ring_full,
        late_frames: counts.late,
        seconds: report.seconds,
        rate_bps: if report.seconds > 0.0 {
            report.bytes as f64 * 8.0 / report.seconds
        } else {
            0.0
        },
    }
}

/// What was shown last of each stream.
struct Seen {
    streams: Vec<SeenOfStream>,
}

#[derive(Clone, Copy)]
struct SeenOfStream {
    bytes: u64,
    expected: u64,
    lost: u64,
    when: Instant,
}

impl Seen {
    fn new(streams: &[Stream]) -> Seen {
        Seen {
            streams: vec![
                SeenOfStream {
                    bytes: 0,
                    expected: 0,
                    lost: 0,
                    when: Instant::now(),
                };
                streams.len()
            ],
        }
    }
}

fn show(
    args: &CorrelateArgs,
    job: &Job,
    names: &[String],
    begins: f64,
    period: &Series,
    seen: &mut Seen,
    streams: &[Stream],
) -> Result<()> {
    let window = super::window(&args.options);
    let parts = (job.integration * job.setup.part_rate() as f64).round() as i64;
    let found: Vec<Found> = (0..job.setup.products().len())
        .map(|index| period.find(index, parts, &window))
        .collect();
    let baselines = baselines(&job.setup, names, &found);
    let newest = |stream: &Stream| stream.feed.state().newest();
    let times: Vec<f64> = streams
        .iter()
        .map(|stream| newest(stream).unwrap_or(f64::NEG_INFINITY))
        .collect();
    let front = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut lines = Vec::new();
    let mut shares = Vec::new();
    for (index, (stream, name)) in streams.iter().zip(names).enumerate() {
        let live = stream.receiving.live();
        let live = live.lock().map_or_else(
            |poisoned| poisoned.into_inner().clone(),
            |live| live.clone(),
        );
        let before = &mut seen.streams[index];
        let elapsed = before.when.elapsed().as_secs_f64().max(1e-9);
        let gone = live.counters.lost;
        let expected = live.counters.expected.saturating_sub(before.expected);
        // What comes late is no longer lost.
        let share = gone.saturating_sub(before.lost) as f64 / expected.max(1) as f64;
        shares.push(share.min(1.0));
        lines.push(StreamLine {
            station: name.clone(),
            rate_bps: (live.bytes - before.bytes) as f64 * 8.0 / elapsed,
            expected: live.counters.expected,
            lost: live.counters.lost,
            ring_full: live.counters.ring_full,
            late_frames: {
                let state = stream.feed.state();
                state.track.as_ref().map_or(0, |track| track.counts().late)
            },
            skew_s: front - times[index],
        });
        *before = SeenOfStream {
            bytes: live.bytes,
            expected: live.counters.expected,
            lost: gone,
            when: Instant::now(),
        };
    }
    let moment = job
        .setup
        .middle(0)
        .plus(begins - job.setup.block_seconds() / 2.0);
    let time = utc(moment.second as f64 + moment.fraction);
    let share = |station: &String| {
        let place = names.iter().position(|name| name == station);
        place.map_or(0.0, |place| shares[place])
    };
    let of_baselines: Vec<BaselineLine<'_>> = baselines
        .iter()
        .map(|result| BaselineLine {
            result,
            lost: [share(&result.stations[0]), share(&result.stations[1])],
        })
        .collect();
    if args.json {
        let line = Line {
            schema: "evlbi.live/1",
            time,
            baselines: of_baselines,
            streams: lines,
        };
        let line = serde_json::to_string(&line).context("cannot write the line as JSON")?;
        println!("{line}");
        return Ok(());
    }
    for BaselineLine {
        result: baseline,
        lost,
    } in of_baselines
    {
        println!(
            "{time}  {:<12} amplitude {:.5}  SNR {:>7.1}  delay {:>12}  weight {:.4}  lost {:.2} % and {:.2} %{}",
            baseline.stations.join("-"),
            baseline.amplitude.valid,
            baseline.snr,
            show_seconds(baseline.delay_s),
            baseline.weight,
            lost[0] * 100.0,
            lost[1] * 100.0,
            baseline.doubt(),
        );
    }
    for line in lines {
        println!(
            "{time}  {:<12} {}  lost {} of {}  ring full {}  late {}  behind {:.3} s",
            line.station,
            show_rate(line.rate_bps),
            line.lost,
            line.expected,
            line.ring_full,
            line.late_frames,
            line.skew_s
        );
    }
    Ok(())
}
