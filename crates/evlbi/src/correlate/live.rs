//! `evlbi correlate --live`: streams are received and correlated as they come.
//!
//! Each stream has a receiver and a drain as `recv` has, whose frames go into a track. The correlator takes each
//! dump when all stations have come past it, or when those that have not were waited for long enough; what comes
//! of it later is late, and counted.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use evlbi_fx::track::Counts;
use evlbi_net::receive::{self, ReceiveReport, Receiving};
use serde::Serialize;

use super::clocks::Clocks;
use super::correlation::Correlation;
use super::feed::{Feed, LONG_ENOUGH, LiveStation, NAP, now};
use super::job::Job;
use super::plan::Shape;
use super::result::{BaselineResult, baselines};
use super::series::{Found, Series};
use crate::cli::{CorrelateArgs, RecvArgs};
use crate::drain::{self, Drained};
use crate::output::Results;
use crate::progress::interrupt;
use crate::recv;
use crate::sink::Sink;
use crate::steer;
use crate::units::{show_rate, show_seconds, utc};

/// A station that has not come so long after two others is not waited for, or after the time that late ones are.
const LATE_START: Duration = Duration::from_secs(10);
/// How often it is told how the streams are.
const LOOK: Duration = Duration::from_secs(1);
/// How often it is told that a stream is waited for.
const TELL: Duration = Duration::from_secs(5);

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
    /// Why it has no data; none where it has.
    reason: Option<String>,
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
    /// Frames whose times were not believed.
    refused_frames: u64,
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
    /// Frames whose times were not believed.
    refused_frames: u64,
    /// Why nothing of it was correlated; none where something was.
    reason: Option<String>,
    /// Seconds of data that had come when the run was stopped, and were not correlated.
    left_s: f64,
    /// How long before the last of all streams its data ended, in seconds: weights are those of the time before.
    ended_early_s: f64,
    seconds: f64,
    rate_bps: f64,
}

impl StreamResult {
    /// The station and why it contributed nothing, if it sent any. A station that sends none may be left out on purpose.
    pub fn nothing(&self) -> Option<String> {
        let reason = self.reason.as_ref().filter(|_| self.unique > 0)?;
        Some(format!("{}: {reason}", self.station))
    }
}

/// Receives the streams that `args` name and correlates them. `results` shows the baselines of each integration.
pub fn run(
    args: &CorrelateArgs,
    results: &mut Results,
) -> Result<(Correlation, Vec<StreamResult>)> {
    if !args.options.flag.is_empty() {
        bail!("--flag leaves out times of recordings, and a stream has none beforehand");
    }
    if args.out.is_some() {
        bail!("--live writes no visibilities; record the streams with `evlbi recv` for that");
    }
    let stop = interrupt();
    let epoch = Arc::default();
    let clocks = Clocks::new(args.files.len(), args.streams.wait.as_secs_f64());
    let clocks = Arc::new(Mutex::new(clocks));
    let streams = args
        .files
        .iter()
        .enumerate()
        .map(|(number, url)| open(url, number, args, &epoch, &clocks))
        .collect::<Result<Vec<Stream>>>()?;
    // Who waits for this sends to any of them.
    for address in streams
        .iter()
        .flat_map(|stream| stream.receiving.addresses())
    {
        steer::say_listening(*address);
    }
    let teller = Teller::start(&streams)?;
    let mut shapes = wait_for_shapes(&streams, args.streams.wait, &stop)?;
    let first = begin(&streams, &mut shapes, epoch.get().copied().unwrap_or(0));
    let mut plan = super::plan::plan(&args.files, &shapes, &args.options)?;
    plan.count_from(*epoch.get().context("no stream has a time")?);
    let names: Vec<String> = plan
        .stations
        .iter()
        .map(|station| station.name.clone())
        .collect();
    // Nobody named them before.
    let _ = teller.names.set(names.clone());
    let grid = plan.start as f64;
    let job = Job::live(plan, first, &super::window(&args.options))?;
    let feeds: Vec<Arc<Feed>> = streams
        .iter()
        .map(|stream| Arc::clone(&stream.feed))
        .collect();
    let stopped = Arc::default();
    let mut stations: Vec<LiveStation> = streams
        .iter()
        .zip(&shapes)
        .map(|(stream, shape)| LiveStation {
            feed: Arc::clone(&stream.feed),
            layout: shape.layout,
            stop: stream.receiving.stop_switch(),
            stopped: Arc::clone(&stopped),
        })
        .collect();
    let mut whole = job.series();
    whole.check(&super::window(&args.options), 0)?;
    let dumps = job.periods.count as usize;
    let mut period = Series::new(&job.setup, dumps, job.dump_seconds());
    let threads = super::threads(args.options.threads);
    let mut seen = Seen::new(&streams);
    let mut correlated = job.range.start..job.range.start;
    let mut has_any = false;
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
            has_any |= sums.inputs.iter().any(|input| input.good > 0);
            if (dump + 1).rem_euclid(job.periods.count) == 0 {
                let begins = job.begins(dump);
                // A gap in all streams prints nothing, however long it is.
                if std::mem::take(&mut has_any)
                    && let Some(lines) =
                        show(args, &job, &names, begins, &period, &mut seen, &streams)?
                {
                    results.line(&lines);
                }
                period = Series::new(&job.setup, dumps, job.dump_seconds());
            }
            Ok(())
        },
    );
    let reasons: Vec<Option<String>> = (0..streams.len())
        .map(|station| why_nothing(station, &whole, &streams[station]))
        .collect();
    for stream in &streams {
        stream.feed.is_closed.store(true, Ordering::Relaxed);
        stream.receiving.stop();
    }
    // A station's time ends with its stream, as that of a recording does; one that never came was missed all the time.
    let newest: Vec<Option<f64>> = feeds.iter().map(|feed| feed.state().newest()).collect();
    let front = newest
        .iter()
        .flatten()
        .copied()
        .fold(f64::NEG_INFINITY, f64::max);
    let ends: Vec<i64> = newest
        .iter()
        .map(|newest| {
            let end = (newest.unwrap_or(f64::INFINITY) - grid) * job.setup.part_rate() as f64;
            end.round() as i64
        })
        .collect();
    let reports = streams
        .into_iter()
        .map(finish)
        .collect::<Result<Vec<_>>>()?;
    drop(teller);
    let left: Vec<f64> = feeds.iter().map(|feed| feed.state().left()).collect();
    let counts = counts?;
    let results: Vec<StreamResult> = names
        .iter()
        .zip(&reports)
        .zip(&counts)
        .zip(left)
        .zip(newest)
        .zip(reasons)
        .map(
            |(((((station, report), counts), left), newest), reason)| StreamResult {
                reason,
                left_s: left,
                ended_early_s: newest.map_or(0.0, |newest| front - newest),
                ..stream_result(station, report, counts)
            },
        )
        .enumerate()
        .map(|(number, result)| StreamResult {
            refused_frames: feeds[number].clocks().refused(number),
            ..result
        })
        .collect();
    for result in results
        .iter()
        .filter(|result| result.ended_early_s > job.integration)
    {
        say!(
            "evlbi: {} ended {} before the last stream: its weights are those of the time before",
            result.station,
            show_seconds(result.ended_early_s)
        );
    }
    for result in results.iter().filter(|result| result.left_s > 0.0) {
        say!(
            "evlbi: {}: {} of data had come and were not correlated, since this host did not follow; a lower rate or fewer stations need less time",
            result.station,
            show_seconds(result.left_s)
        );
    }
    Ok((
        Correlation::of_streams(&job, whole, names, counts, &shapes, correlated, &ends),
        results,
    ))
}

fn open(
    url: &str,
    number: usize,
    args: &CorrelateArgs,
    epoch: &Arc<OnceLock<i64>>,
    clocks: &Arc<Mutex<Clocks>>,
) -> Result<Stream> {
    let recv = RecvArgs::stream(url, args.streams.idle, args.streams.duration)?;
    let (receiving, opening) = receive::start(recv::options(&recv, None)?)?;
    let rate = args.options.sample_rate.map(|rate| rate.0.round() as u64);
    let (trust, wait) = (args.options.trust.into(), args.streams.wait);
    let feed = Feed::new(rate, trust, wait, epoch, clocks, number);
    let sink = Sink::Feed(Arc::clone(&feed));
    let settings = recv::settings(&recv)?;
    let drainer = std::thread::Builder::new().name("sink".into()).spawn({
        let feed = Arc::clone(&feed);
        move || {
            let drained = drain::all(&opening, settings, sink);
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

/// Begins with the streams whose times agree; the others join when their times are right. Returns the beginning in seconds
/// after the UTC second `epoch`.
fn begin(streams: &[Stream], shapes: &mut [Shape], epoch: i64) -> f64 {
    // None of them takes a frame meanwhile.
    let mut states: Vec<_> = streams.iter().map(|stream| stream.feed.state()).collect();
    let times: Vec<Option<(f64, f64)>> = states
        .iter()
        .zip(shapes.iter())
        .map(|(state, shape)| {
            let earliest = state.track.as_ref()?.earliest()?;
            Some((
                earliest as f64 / shape.layout.sample_rate() as f64,
                state.newest()?,
            ))
        })
        .collect();
    let Some(first) = streams.first() else {
        return 0.0;
    };
    let host = evlbi_net::cpu::utc() as f64 * 1e-9 - epoch as f64;
    let (start, members) = first.feed.clocks().begin(&times, host, now());
    for (number, state) in states.iter_mut().enumerate() {
        if !members.contains(&number) {
            state.leave_out(epoch.saturating_add(start as i64), &streams[number].feed);
        }
        if let Some(shape) = &state.shape {
            shapes[number] = shape.clone();
        }
    }
    start
}

/// Why a series has nothing of a station; none if it has.
fn why_nothing(station: usize, series: &Series, stream: &Stream) -> Option<String> {
    let inputs = series
        .setup
        .inputs()
        .filter(|input| input.station == station);
    if inputs.map(|input| series.input(input).good).sum::<u64>() > 0 {
        return None;
    }
    let state = stream.feed.state();
    let late = state
        .track
        .as_ref()
        .is_some_and(|track| track.counts().late > 0);
    Some(
        stream
            .feed
            .clocks()
            .reason(station, late, state.ended, now()),
    )
}

/// Waits until it is known what each stream is. Where two have come, the others are waited for a while longer; then the
/// run begins without them, and they may still come.
fn wait_for_shapes(streams: &[Stream], wait: Duration, stop: &AtomicBool) -> Result<Vec<Shape>> {
    let patience = wait.max(LATE_START);
    let mut told = Instant::now();
    let mut enough: Option<Instant> = None;
    loop {
        let is_stopped = stop.load(Ordering::Relaxed);
        if is_stopped {
            streams.iter().for_each(|stream| stream.receiving.stop());
        }
        let mut shapes = Vec::new();
        let mut ended = Vec::new();
        for (number, stream) in streams.iter().enumerate() {
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
            shapes.push(state.shape.clone().filter(|_| state.track.is_some()));
            if state.ended && state.track.is_none() {
                ended.push(number);
            }
        }
        let missing: Vec<usize> = (0..streams.len())
            .filter(|number| shapes[*number].is_none())
            .collect();
        if missing.is_empty() {
            return Ok(shapes.into_iter().flatten().collect());
        }
        let here = streams.len() - missing.len();
        let since = match here {
            0 | 1 => None,
            _ => Some(*enough.get_or_insert_with(Instant::now)),
        };
        let is_late = since.is_some_and(|since| since.elapsed() >= patience);
        let come = shapes.iter().flatten().next().cloned();
        if let Some(like) = come
            && here > 1
            && (is_late || ended == missing)
        {
            for number in missing {
                say!(
                    "evlbi: stream {} has not come: the others are correlated without it until it does",
                    number + 1
                );
                shapes[number] = Some(streams[number].feed.expect(&like));
            }
            return Ok(shapes.into_iter().flatten().collect());
        }
        if let Some(number) = ended.first()
            && streams.len() - ended.len() < 2
        {
            bail!("stream {} ended before a frame of VDIF came", number + 1);
        }
        if told.elapsed() >= TELL {
            let numbers: Vec<String> = missing.iter().map(|n| (n + 1).to_string()).collect();
            say!("waiting for stream {}", numbers.join(", "));
            told = Instant::now();
        }
        std::thread::sleep(NAP);
    }
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
        refused_frames: 0,
        reason: None,
        left_s: 0.0,
        ended_early_s: 0.0,
        seconds: report.seconds,
        rate_bps: if report.seconds > 0.0 {
            report.bytes as f64 * 8.0 / report.seconds
        } else {
            0.0
        },
    }
}

/// Writes down once a second how the streams are, whatever the correlator waits for; and once more at the end.
struct Teller {
    /// The stations' names, when they are known.
    names: Arc<OnceLock<Vec<String>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    fn start(streams: &[Stream]) -> Result<Teller> {
        let names = Arc::new(OnceLock::new());
        let is_over = Arc::new(AtomicBool::new(false));
        let watched: Vec<Watched> = streams
            .iter()
            .map(|stream| Watched {
                watch: stream.receiving.watch(),
                feed: Arc::clone(&stream.feed),
                bytes: 0,
            })
            .collect();
        steer::on_status({
            let (watched, names) = (watched.clone(), Arc::clone(&names));
            move || {
                receive::Watch::refresh(watched.iter().map(|stream| &*stream.watch));
                tell_streams(&watched, &names, |_, _, before| before);
            }
        });
        let thread = std::thread::Builder::new().name("status".into()).spawn({
            let (names, is_over) = (Arc::clone(&names), Arc::clone(&is_over));
            move || watch(watched, &names, &is_over)
        })?;
        Ok(Teller {
            names,
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has nothing to say but what it has told.
            let _ = thread.join();
        }
    }
}

/// A stream, and the bytes that it had when it was looked at last.
#[derive(Clone)]
struct Watched {
    watch: Arc<receive::Watch>,
    feed: Arc<Feed>,
    bytes: u64,
}

fn watch(mut streams: Vec<Watched>, names: &OnceLock<Vec<String>>, is_over: &AtomicBool) {
    let mut before = Instant::now();
    loop {
        let has_ended = is_over.load(Ordering::Relaxed);
        let elapsed = before.elapsed();
        if elapsed < LOOK && !has_ended {
            std::thread::park_timeout(LOOK.saturating_sub(elapsed));
            continue;
        }
        before = Instant::now();
        let rate = |stream: &Watched, live: &receive::Live, _| match has_ended {
            true => 0.0,
            false => live.bytes.saturating_sub(stream.bytes) as f64 * 8.0 / elapsed.as_secs_f64(),
        };
        let bytes = tell_streams(&streams, names, rate);
        for (number, stream) in streams.iter().enumerate() {
            let host = evlbi_net::cpu::utc() as f64 * 1e-9 - stream.feed.epoch();
            let report = stream.feed.clocks().report(number, host, now());
            if let Some(report) = report {
                let name = names.get().and_then(|names| names.get(number).cloned());
                let name = name.unwrap_or_else(|| format!("stream {}", number + 1));
                say!("evlbi: {name}: {report}");
            }
        }
        if has_ended {
            return;
        }
        for (stream, bytes) in streams.iter_mut().zip(bytes) {
            stream.bytes = bytes;
        }
    }
}

/// Writes down how the streams are; `rate` is given the rate of before. Returns the bytes of each.
fn tell_streams(
    streams: &[Watched],
    names: &OnceLock<Vec<String>>,
    rate: impl Fn(&Watched, &receive::Live, f64) -> f64,
) -> Vec<u64> {
    let newest: Vec<Option<f64>> = streams.iter().map(|s| s.feed.state().newest()).collect();
    let front = newest
        .iter()
        .flatten()
        .copied()
        .fold(f64::NEG_INFINITY, f64::max);
    let mut bytes = Vec::new();
    steer::tell(|status| {
        // Read here, so that no older counters take the place of newer ones.
        let lives: Vec<receive::Live> = streams.iter().map(|stream| stream.watch.last()).collect();
        bytes.extend(lives.iter().map(|live| live.bytes));
        let of = |number: usize| {
            let (stream, live) = (&streams[number], &lives[number]);
            let before = status.receiving.get(number);
            let before = before.map_or(0.0, |before| before.rate_bps);
            steer::Receiving {
                station: names.get().map(|names| names[number].clone()),
                skew_s: newest[number].map(|newest| front - newest),
                ..steer::Receiving::of(live, rate(stream, live, before))
            }
        };
        status.receiving = (0..streams.len()).map(of).collect();
    });
    bytes
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
) -> Result<Option<String>> {
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
        let live = stream.receiving.watch().last();
        let before = &mut seen.streams[index];
        let elapsed = before.when.elapsed().as_secs_f64().max(1e-9);
        let gone = live.counters.lost;
        let expected = live.counters.expected.saturating_sub(before.expected);
        // What comes late is no longer lost.
        let share = gone.saturating_sub(before.lost) as f64 / expected.max(1) as f64;
        shares.push(share.min(1.0));
        let rate_bps = (live.bytes - before.bytes) as f64 * 8.0 / elapsed;
        let skew_s = front - times[index];
        lines.push(StreamLine {
            station: name.clone(),
            rate_bps,
            expected: live.counters.expected,
            lost: live.counters.lost,
            ring_full: live.counters.ring_full,
            late_frames: {
                let state = stream.feed.state();
                state.track.as_ref().map_or(0, |track| track.counts().late)
            },
            refused_frames: stream.feed.clocks().refused(index),
            skew_s,
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
            reason: result
                .stations
                .iter()
                .filter(|_| result.weight <= 0.0)
                .find_map(|name| {
                    let station = names.iter().position(|other| other == name)?;
                    let reason = why_nothing(station, period, &streams[station])?;
                    Some(format!("{name}: {reason}"))
                }),
        })
        .collect();
    tell(&of_baselines, &time, job, period, &found);
    if args.streams.no_lines {
        return Ok(None);
    }
    if args.json {
        let line = Line {
            schema: "evlbi.live/1",
            time,
            baselines: of_baselines,
            streams: lines,
        };
        let line = serde_json::to_string(&line).context("cannot write the line as JSON")?;
        return Ok(Some(line));
    }
    let mut shown = Vec::new();
    for BaselineLine {
        result: baseline,
        lost,
        reason,
    } in of_baselines
    {
        shown.push(format!(
            "{time}  {:<12} amplitude {:.5}  SNR {:>7.1}  delay {:>12}  weight {:.4}  lost {:.2} % and {:.2} %{}{}",
            baseline.stations.join("-"),
            baseline.amplitude.valid,
            baseline.snr,
            show_seconds(baseline.delay_s),
            baseline.weight,
            lost[0] * 100.0,
            lost[1] * 100.0,
            baseline.doubt(),
            reason.map_or_else(String::new, |reason| format!(" ({reason})")),
        ));
    }
    for line in lines {
        shown.push(format!(
            "{time}  {:<12} {}  lost {} of {}  ring full {}  late {}  behind {:.3} s",
            line.station,
            show_rate(line.rate_bps),
            line.lost,
            line.expected,
            line.ring_full,
            line.late_frames,
            line.skew_s
        ));
    }
    Ok(Some(shown.join("\n")))
}

/// Writes down how the run is.
fn tell(lines: &[BaselineLine<'_>], start: &str, job: &Job, period: &Series, found: &[Found]) {
    let pairs = job
        .setup
        .products()
        .iter()
        .map(|product| (product.a.station, product.b.station));
    let pairs: BTreeSet<(usize, usize)> = pairs.collect();
    let baselines = lines.iter().zip(pairs).map(|(line, pair)| {
        let result = line.result;
        steer::Baseline {
            stations: result.stations.clone(),
            start: start.to_owned(),
            amplitude: result.amplitude.valid,
            snr: result.snr,
            weight: result.weight,
            snr_loss: result.snr_loss,
            delay_s: result.delay_s,
            delay_error_s: result.delay_error_s,
            rate_hz: result.rate_hz,
            phase_rad: result.phase_rad,
            false_alarm: result.false_alarm,
            lost: line.lost,
            profile: period.profile(pair, found).unwrap_or_default(),
        }
    });
    let baselines = baselines.collect();
    steer::tell(|status| status.baselines = baselines);
}
