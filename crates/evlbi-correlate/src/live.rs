//! Receives streams and correlates them as they arrive.
//!
//! Each address has a receiver and a drain like those of `recv`; the frames of each stream go into a track. The correlator takes each dump when all
//! stations have data beyond it, or when the wait for the others is over. Data that arrives after that is late, and counted.

use std::convert::Infallible;
use std::error::Error;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, mpsc};

use evlbi_core::deframe::Partial;
use evlbi_core::time::Nanos;
use evlbi_net::clock::Thread;
use evlbi_net::receive::{self, ReceiveReport};
use evlbi_net::run::Run;
use evlbi_net::transport::Url;
use evlbi_stream::counters::{self, RECEIVED, Received};
use evlbi_stream::drain;
use evlbi_stream::recv::{self, RecvOptions};
use evlbi_stream::samples::SamplesError;
use evlbi_stream::selection::Selection;
use evlbi_wire::units::show_seconds;
use parking_lot::Mutex;

use super::clocks::Clocks;
use super::feed::{Ending, Feed, Feeding, LiveStation, NAP, StreamError};
use super::integrations::{Done, Integrations};
use super::job::Job;
use super::lines::{Integration, shed, why_nothing};
use super::options::{CorrelateOptions, StreamOptions};
use super::plan::{Placed, PlanError, station_names};
use super::result::StationResult;
use super::shape::Shape;
use super::stream::{Reception, Stream, StreamResult};
use super::watch::{Watch, front};
use super::{Cause, CorrelateError, Correlation, LeftOut};

/// Interval between two messages that a stream has not arrived.
const NOTE_INTERVAL: Nanos = Nanos(5 * Nanos::SECOND.0);

/// Handler of finished integrations; an error ends the correlation.
pub type Show = Box<dyn FnMut(&Integration) -> Result<(), Cause> + Send>;

/// A running correlation of streams. Dropping it stops it.
pub struct Correlating {
    watch: Arc<Watch>,
    ending: Arc<Ending>,
    thread: Option<Thread<Result<Correlation, CorrelateError>>>,
}

/// Receives the streams of these URLs, each with its settings, and correlates them until they end or the run is stopped. Passes each
/// integration to `show`.
///
/// # Errors
/// Returns an error if options are only for recordings, or a stream cannot be received.
pub fn correlate_streams(
    inputs: &[(Url, Selection)],
    options: &CorrelateOptions,
    streams: &StreamOptions,
    run: &Run,
    show: Show,
) -> Result<Correlating, CorrelateError> {
    if !options.flag.is_empty() {
        return Err(StreamError::Flags.into());
    }
    if options.visibilities.is_some() {
        return Err(StreamError::Visibilities.into());
    }
    super::plan::check_given(inputs.iter().map(|(_, selection)| selection))?;
    let ending = Arc::new(Ending::new(run.part()));
    let epoch = Arc::default();
    let clocks = Clocks::new(inputs.len(), streams.wait.as_secs_f64());
    let clocks = Arc::new(Mutex::new(clocks));
    let feeds = inputs.iter().enumerate().map(|(number, (_, selection))| {
        let rate = options.sample_rate.map(|rate| rate.0.round() as u64);
        let (trust, clock) = (options.trust, run.clock());
        Feed::new(selection, rate, trust, &epoch, &clocks, number, clock)
    });
    let opened = Opened::new(inputs, &feeds.collect::<Vec<_>>(), streams, &ending.run)?;
    let watch = Arc::new(Watch::new(&opened.streams, run.clock()));
    let work = Work {
        urls: (inputs.iter())
            .map(|(url, selection)| selection.written(&url.to_string()))
            .collect(),
        options: options.clone(),
        epoch,
        ending: Arc::clone(&ending),
        watch: Arc::clone(&watch),
    };
    // Programs that wait for this message send to any of them.
    let local = opened.receptions.iter();
    let local = local.flat_map(|it| it.receiving.local());
    local.for_each(|local| run.listens(local));
    let correlating = move || work.run(opened, show);
    let thread = run.clock().spawn("correlate", correlating);
    let thread = thread.map_err(CorrelateError::Spawn)?;
    Ok(Correlating {
        watch,
        ending,
        thread: Some(thread),
    })
}

impl Correlating {
    /// Returns the status of the streams, for other threads.
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Waits until the correlation has ended.
    ///
    /// # Errors
    /// Returns an error if nothing could be correlated.
    pub fn join(mut self) -> Result<Correlation, CorrelateError> {
        // It is joined once.
        let thread = self.thread.take().ok_or(StreamError::Panicked)?;
        thread.join()
    }
}

impl Drop for Correlating {
    fn drop(&mut self) {
        self.ending.run.abandon();
        if let Some(thread) = self.thread.take() {
            // The result is not needed.
            let _ = thread.wait();
        }
    }
}

/// Streams that are received until this is dropped.
#[derive(Default)]
struct Opened {
    receptions: Vec<Reception>,
    streams: Vec<Stream>,
}

impl Opened {
    /// Starts to receive. Inputs of the same address share its socket, its ring and its drain. Port 0 is another one for each.
    fn new(
        inputs: &[(Url, Selection)],
        feeds: &[Arc<Feed>],
        options: &StreamOptions,
        run: &Run,
    ) -> Result<Opened, CorrelateError> {
        let is_any = |url: &Url| url.host().is_some_and(|host| host.port == 0);
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (number, (url, selection)) in inputs.iter().enumerate() {
            let is_here = |there: &Url| !is_any(url) && there.to_string() == url.to_string();
            let is_same = |(there, theirs): &(Url, Selection)| {
                let is_alike = (&theirs.station, &theirs.threads, &theirs.channels)
                    == (&selection.station, &selection.threads, &selection.channels);
                is_alike && is_here(there)
            };
            if inputs[..number].iter().any(is_same) {
                return Err(StreamError::Twice(selection.written(&url.to_string())).into());
            }
            let is_shared = |group: &&mut Vec<usize>| is_here(&inputs[group[0]].0);
            match groups.iter_mut().find(is_shared) {
                Some(group) => group.push(number),
                None => groups.push(vec![number]),
            }
        }
        let mut opened = Opened::default();
        let mut streams = Vec::new();
        for group in groups {
            let (url, _) = &inputs[group[0]];
            let year = group.iter().find_map(|number| inputs[*number].1.year);
            let ours = group.iter().map(|number| Arc::clone(&feeds[*number]));
            let reception = open(url, year, options, ours.collect(), run)?;
            streams.extend(group.iter().map(|number| {
                let stream = Stream {
                    reception: opened.receptions.len(),
                    watch: reception.receiving.watch(),
                    feed: Arc::clone(&feeds[*number]),
                };
                (*number, stream)
            }));
            opened.receptions.push(reception);
        }
        streams.sort_by_key(|(number, _)| *number);
        opened.streams = streams.into_iter().map(|(_, stream)| stream).collect();
        Ok(opened)
    }

    /// Stops the receivers. Data in the rings is still taken.
    fn stop(&self) {
        for stream in &self.streams {
            stream.feed.is_closed.store(true, Ordering::Relaxed);
        }
        let receptions = self.receptions.iter();
        receptions.for_each(|reception| reception.receiving.stop());
    }

    /// Returns the report of each reception.
    fn finish(mut self) -> Result<Vec<ReceiveReport>, StreamError> {
        let receptions = std::mem::take(&mut self.receptions);
        receptions.into_iter().map(finish).collect()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.stop();
        for reception in self.receptions.drain(..) {
            let _ = finish(reception);
        }
    }
}

/// A live correlation on a thread of its own.
struct Work {
    urls: Vec<String>,
    options: CorrelateOptions,
    epoch: Arc<OnceLock<i64>>,
    ending: Arc<Ending>,
    watch: Arc<Watch>,
}

impl Work {
    /// Correlates; a second thread polls the streams, even while the correlator waits.
    fn run(&self, opened: Opened, show: Show) -> Result<Correlation, CorrelateError> {
        let (watch, run) = (&self.watch, &self.ending.run);
        let (over, told) = mpsc::channel::<Infallible>();
        let poll = {
            let (watch, run) = (Arc::clone(watch), run.clone());
            move || watch.poll_until(&told, &run)
        };
        let polling = run.clock().spawn("status", poll);
        let polling = polling.map_err(CorrelateError::Spawn)?;
        let found = self.correlate(opened, show);
        drop(over);
        polling.join();
        watch.poll(run, true);
        found
    }

    /// Warns of the streams that are not correlated, and takes no more of them: those without a shape, and these others.
    fn leave_out(&self, streams: &[Stream], others: &[(usize, PlanError)]) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        for (number, (stream, url)) in streams.iter().zip(&self.urls).enumerate() {
            let other = others.iter().find(|(place, _)| *place == number);
            let unfit = stream.feed.state().error.clone();
            let unfit = unfit.map(|source| StreamError::Unfit {
                number: number + 1,
                source,
            });
            let error: Option<&(dyn Error + 'static)> = match (other, &unfit) {
                (Some((_, error)), _) => Some(error),
                (None, Some(error)) => Some(error),
                (None, None) => None,
            };
            if let Some(error) = error {
                left_out.push(LeftOut::new(url, error, &self.ending.run));
                stream.feed.leave_out();
            }
        }
        left_out
    }

    fn correlate(&self, opened: Opened, mut show: Show) -> Result<Correlation, CorrelateError> {
        let (options, run, all) = (&self.options, &self.ending.run, &opened.streams);
        let mut shapes = wait_for_shapes(all, run)?;
        let epoch = self.epoch.get().copied();
        let epoch = epoch.ok_or_else(|| StreamError::Ended("no stream has a time".into()))?;
        let firsts = begin(all, &mut shapes, epoch);
        let placed = shapes.iter().enumerate();
        let placed: Vec<Placed<'_>> = placed
            .filter_map(|(number, shape)| Some((number, shape.as_ref()?)))
            .collect();
        let mut plan = super::plan::plan(&self.urls, &placed, options, run)?;
        let left_out = self.leave_out(all, &plan.left_out);
        let placed: Vec<Placed<'_>> = plan.taken.iter().map(|index| placed[*index]).collect();
        let streams: Vec<&Stream> = placed.iter().map(|(number, _)| &all[*number]).collect();
        let firsts: Vec<_> = placed.iter().map(|(number, _)| firsts[*number]).collect();
        plan.count_from(epoch);
        let window = options.window();
        let mut job = Job::live(plan, &firsts, &window)?;
        let names = station_names(&job.setup);
        super::plan::check_names(options, &names, left_out.is_empty(), run)?;
        let mut of_all = vec![None; all.len()];
        for ((number, _), name) in placed.iter().zip(&names) {
            of_all[*number] = Some(name.clone());
        }
        // The names are set only here.
        let _ = self.watch.names.set(of_all);
        let shaped = streams.iter().zip(&placed);
        let stations = shaped.map(|(stream, (_, shape))| LiveStation {
            feed: Arc::clone(&stream.feed),
            layout: *shape.layout(),
            ending: Arc::clone(&self.ending),
        });
        let mut stations: Vec<LiveStation> = stations.collect();
        let whole = job.series();
        whole.check(&window, 0)?;
        let mut found = Integrations::new(&job, whole);
        run.line(format_args!(
            "correlating {} from {}",
            names.join(", "),
            job.utc(job.correlated().start as f64 / job.setup.part_rate() as f64)
        ));
        let mut seen = vec![receive::Snapshot::default(); streams.len()];
        let mut last = job.range.start;
        let mut done = |done: Done<'_>| match done {
            Done::Integration(begins, period) => {
                let period = (begins, period);
                let (integration, baselines) =
                    Integration::of(&job, period, &window, &mut seen, &streams);
                *self.watch.baselines.lock() = baselines;
                show(&integration).map_err(CorrelateError::Along)
            }
            Done::Gap(dumps) => {
                run.say(format_args!("{}", job.gap(&dumps)));
                Ok(())
            }
        };
        let counts = super::run::run(
            &job.setup,
            &mut stations,
            job.periods,
            job.range.clone(),
            options.threads(),
            run,
            |dump, sums| {
                if sums.inputs.iter().any(|input| input.good > 0) {
                    last = dump + 1;
                }
                found.add(dump, sums, &mut done)
            },
        );
        let counts = counts.and_then(|counts| found.end(done).map(|()| counts));
        let whole = found.whole;
        let reasons = streams.iter().enumerate();
        let reasons = reasons.map(|(station, stream)| why_nothing(station, &whole, stream));
        let reasons: Vec<Option<String>> = reasons.collect();
        opened.stop();
        // A station's time ends with its stream, like that of a recording; one that never arrived was missing all the time.
        let newest = stations.iter();
        let newest = newest.map(|station| station.feed.state().newest());
        let newest: Vec<Option<f64>> = newest.collect();
        for (number, newest) in newest.iter().enumerate() {
            let rate = placed[number].1.layout().sample_rate() as f64;
            if let Some(newest) = newest.map(|newest| (newest * rate).round() as i64) {
                let end = job.plan.span(number, &(newest..newest))?.end;
                job.spans[number].end = end.max(job.spans[number].start);
            }
        }
        job.range.end = last;
        let front = front(&newest);
        let receptions: Vec<usize> = streams.iter().map(|stream| stream.reception).collect();
        let reports = opened.finish()?;
        let counts = counts?;
        let parts = receptions.iter().zip(&counts).zip(reasons).enumerate();
        let results = parts.map(|(number, ((reception, counts), reason))| {
            let report = &reports[*reception];
            let (received, feed) = (Received::total(report), &stations[number].feed);
            StreamResult {
                station: names[number].clone(),
                counts: counters::Counts::total(RECEIVED, &received),
                shed: shed(&received.live),
                late_frames: counts.late,
                refused_frames: feed.refused(),
                reason,
                left_s: feed.state().left(),
                ended_early_s: newest[number].map_or(0.0, |newest| front - newest),
                seconds: report.seconds,
                rate_bps: received.rate_bps,
            }
        });
        let results: Vec<StreamResult> = results.collect();
        let integration = job.plan.integration;
        for result in (results.iter()).filter(|result| result.ended_early_s > integration) {
            run.say(format_args!(
                "{} ended {} before the last stream: its weights cover the time until then",
                result.station,
                show_seconds(result.ended_early_s)
            ));
        }
        for result in results.iter().filter(|result| result.left_s > 0.0) {
            run.say(format_args!(
                "{}: {} of received data not correlated, this host is too slow: lower the rate or use fewer stations",
                result.station,
                show_seconds(result.left_s)
            ));
        }
        Ok(Correlation {
            stations: StationResult::all(&job.setup, &self.urls, &placed, &counts),
            correlated: job.correlated(),
            spans: job.spans,
            setup: job.setup,
            series: whole,
            visibilities: None,
            sums: None,
            missing: Vec::new(),
            interrupted: run.is_stopped(),
            tampered: Vec::new(),
            integration,
            given: None,
            places: placed.iter().map(|(number, _)| *number).collect(),
            left_out,
            window,
            streams: results,
        })
    }
}

/// Starts to receive at an address, for these feeds. Their data are of this year, if it is known.
fn open(
    url: &Url,
    year: Option<i16>,
    streams: &StreamOptions,
    feeds: Vec<Arc<Feed>>,
    run: &Run,
) -> Result<Reception, CorrelateError> {
    let options = RecvOptions {
        from: url.clone(),
        idle: streams.idle,
        duration: streams.duration,
        safe: streams.safe.clone().filter(|_| url.can_be_safe()),
        // The rest of a frame whose datagrams did not all arrive has its weight.
        partial: Partial::Keep,
        ..RecvOptions::default()
    };
    let receive_options = recv::receive_options(&options);
    let receive_options = receive_options.map_err(|error| StreamError::Receive(error.into()))?;
    let (receiving, opening) =
        receive::start(receive_options, run).map_err(|error| StreamError::Receive(error.into()))?;
    let mut settings = recv::settings(&options, run.clock());
    let of_year = Selection {
        year,
        ..Selection::default()
    };
    settings.latest = of_year.read_at(settings.latest);
    let sink = Box::new(Feeding(feeds.clone()));
    let drainer = run.clock().spawn("sink", {
        let run = run.clone();
        move || {
            let drained = drain::all(&opening, settings, sink, &run);
            feeds.iter().for_each(|feed| feed.end());
            drained
        }
    });
    let drainer = drainer.map_err(CorrelateError::Spawn)?;
    Ok(Reception { receiving, drainer })
}

fn finish(reception: Reception) -> Result<ReceiveReport, StreamError> {
    let drained = reception.drainer.wait();
    drained.map_err(|_| StreamError::Panicked)?;
    Ok(reception.receiving.join())
}

/// Begins with the streams whose times agree; the others join when their times are right. Returns the first sample of each, counted from
/// the UTC second `epoch`.
fn begin(streams: &[Stream], shapes: &mut [Option<Shape>], epoch: i64) -> Vec<Option<i64>> {
    // While all are locked, none takes a frame.
    let mut states: Vec<_> = streams.iter().map(|stream| stream.feed.state()).collect();
    let mut firsts: Vec<Option<i64>> = (states.iter())
        .map(|state| state.track.as_ref()?.earliest())
        .collect();
    let times = firsts.iter().zip(&states).zip(shapes.iter());
    let times = times.map(|((first, state), shape)| {
        let rate = shape.as_ref()?.layout().sample_rate() as f64;
        Some(((*first)? as f64 / rate, state.newest()?))
    });
    let times: Vec<Option<(f64, f64)>> = times.collect();
    let Some(first) = streams.first() else {
        return firsts;
    };
    let (host, now) = (first.feed.host(), first.feed.now());
    let (start, members) = first.feed.clocks().begin(&times, host, now);
    for (number, state) in states.iter_mut().enumerate() {
        if !members.contains(&number) {
            firsts[number] = None;
            state.leave_out(epoch.saturating_add(start as i64), &streams[number].feed);
        }
        if shapes[number].is_some() {
            shapes[number].clone_from(&state.shape);
        }
        state.keep_all();
    }
    firsts
}

/// Waits until the format of each stream is known. When two have arrived, it waits a while longer for the others; then the run begins
/// without them, and they may still arrive. Returns `None` for streams that cannot be correlated, if two others can be.
fn wait_for_shapes(streams: &[Stream], run: &Run) -> Result<Vec<Option<Shape>>, StreamError> {
    let clock = run.clock();
    let mut told = clock.now();
    let mut enough: Option<f64> = None;
    loop {
        let mut shapes = Vec::new();
        let mut missing = Vec::new();
        // Among the missing ones.
        let (mut ended, mut absent) = (Vec::new(), Vec::new());
        let mut refused = Vec::new();
        for (number, stream) in streams.iter().enumerate() {
            let mut state = stream.feed.state();
            state.learn_in_time(&stream.feed);
            let shape = state.shape.clone().filter(|_| state.track.is_some());
            if let Some(source) = &state.error {
                refused.push((number, source.clone()));
            } else if shape.is_none() {
                missing.push(number);
                ended.extend(state.ended.then_some(number));
                absent.extend(state.absent.clone().map(|source| (number, source)));
            }
            shapes.push(shape);
        }
        let unfit = |(number, source): (usize, SamplesError)| {
            let number = number + 1;
            Err(StreamError::Unfit { number, source })
        };
        let usable = streams.len() - refused.len();
        if usable < 2 && !refused.is_empty() {
            return unfit(refused.remove(0));
        }
        if usable - absent.len() < 2 && !absent.is_empty() {
            return unfit(absent.remove(0));
        }
        if missing.is_empty() {
            return Ok(shapes);
        }
        let are_enough = usable - missing.len() > 1;
        let feed = &streams[missing[0]].feed;
        let (now, clocks) = (feed.now(), feed.clocks());
        let (timeout, are_over) = (clocks.timeout(), clocks.are_over(now));
        drop(clocks);
        let is_late = are_enough && now - *enough.get_or_insert(now) >= timeout;
        if let Some(like) = shapes.iter().flatten().next().cloned()
            && (is_late || (are_enough && ended == missing))
        {
            for number in missing {
                let why = absent.iter().find(|(of, _)| *of == number);
                let why = why.map_or(String::new(), |(_, why)| format!(" ({why})"));
                run.say(format_args!(
                    "stream {} has not arrived{why}: the others are correlated without it until it does",
                    number + 1
                ));
                shapes[number] = streams[number].feed.expect(&like).ok();
            }
            return Ok(shapes);
        }
        if let Some(number) = ended.first()
            && usable - ended.len() < 2
        {
            let why = format!("stream {} ended before a frame arrived", number + 1);
            return Err(StreamError::Ended(why));
        }
        if let Some(number) = shapes.iter().position(Option::is_some)
            && are_over
        {
            let why = format!("stream {} ended before another arrived", number + 1);
            return Err(StreamError::Ended(why));
        }
        let now = clock.now();
        if now.since(told) >= NOTE_INTERVAL {
            let numbers: Vec<String> = missing.iter().map(|n| (n + 1).to_string()).collect();
            run.line(format_args!("waiting for stream {}", numbers.join(", ")));
            told = now;
        }
        clock.sleep(NAP);
    }
}
