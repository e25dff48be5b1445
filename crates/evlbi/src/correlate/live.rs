//! `evlbi correlate --live`: streams are received and correlated as they come.
//!
//! Each stream has a receiver and a drain as `recv` has, whose frames go into a track. The correlator takes each
//! dump when all stations have come past it, or when those that have not were waited for long enough; what comes
//! of it later is late, and counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use evlbi_fx::track::Counts;
use evlbi_net::receive::{self, ReceiveReport, Receiving};
use evlbi_net::run::Run;
use parking_lot::Mutex;
use serde::Serialize;

use super::clocks::Clocks;
use super::correlation::Correlation;
use super::feed::{Feed, LONG_ENOUGH, LiveStation, NAP, now};
use super::integrations::{Done, Integrations};
use super::job::Job;
use super::lines::{Seen, show, why_nothing};
use super::plan::Shape;
use super::teller::Teller;
use crate::cli::CorrelateArgs;
use crate::drain::{self, Drained};
use crate::output::Results;
use crate::progress::interrupt;
use crate::recv::{self, RecvOptions};
use crate::steer;
use crate::units::show_seconds;

/// A station that has not come so long after two others is not waited for, or after the time that late ones are.
const LATE_START: Duration = Duration::from_secs(10);
/// How often it is told that a stream is waited for.
const TELL: Duration = Duration::from_secs(5);

/// One stream's receiving end.
pub(super) struct Stream {
    pub(super) receiving: Receiving,
    run: Run,
    drainer: JoinHandle<Drained>,
    pub(super) feed: Arc<Feed>,
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
            stop: stream.run.clone(),
            stopped: Arc::clone(&stopped),
        })
        .collect();
    let whole = job.series();
    whole.check(&super::window(&args.options), 0)?;
    let mut found = Integrations::new(&job, whole);
    say!(
        "evlbi: correlating {} from {}",
        names.join(", "),
        job.utc(first)
    );
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
            if sums.inputs.iter().any(|input| input.good > 0) {
                correlated.end = dump + 1;
            }
            found.add(dump, sums, |done| {
                let done = match done {
                    Done::Integration(begins, period) => {
                        show(args, &job, &names, begins, period, &mut seen, &streams)?
                    }
                    Done::Gap(dumps) => {
                        say!("evlbi: {}", job.gap(&dumps));
                        None
                    }
                };
                if let Some(lines) = done {
                    results.line(&lines);
                }
                Ok(())
            })
        },
    );
    let whole = found.whole;
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
    let options = RecvOptions {
        from: url.parse().map_err(|error: String| anyhow!(error))?,
        idle: args.streams.idle,
        duration: args.streams.duration,
        ..RecvOptions::default()
    };
    let run = Run::silent();
    let (receiving, opening) = receive::start(recv::receive_options(&options)?, &run)?;
    let rate = args.options.sample_rate.map(|rate| rate.0.round() as u64);
    let feed = Feed::new(rate, args.trust.into(), epoch, clocks, number);
    let sink = Box::new(Arc::clone(&feed));
    let settings = recv::settings(&options);
    let drainer = std::thread::Builder::new().name("sink".into()).spawn({
        let feed = Arc::clone(&feed);
        let run = run.clone();
        move || {
            let drained = drain::all(&opening, settings, sink, &run);
            feed.end();
            drained
        }
    })?;
    Ok(Stream {
        receiving,
        run,
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
        state.keep_all();
    }
    start
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
