//! Joins recordings: the threads of each station to one thread with all channels, or threads and stations to one file.
//!
//! Put here how the frames of several files are brought together by time. How their samples are rearranged is in [`lane`](crate::lane).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use evlbi_core::deframe::{Chunk, Deframer, Format};
use evlbi_net::file::{OutputError, same_file};
use evlbi_net::run::Run;
use evlbi_plot::lines;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::units::show_count;
use evlbi_wire::validity::Gaps;
use evlbi_wire::vdif::{Shape, StationId, StreamKey};
use serde::Serialize;
use thiserror::Error;

use crate::gaps::{self, GapsError};
use crate::lane::{Lane, LaneError, Made, MadeFile, Output, Piece};
use crate::recording::{Blocks, LeftOut, Recording, RecordingError, gaps_beside};
use crate::selection::Selection;

/// Reasons why recordings cannot be joined.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// There is nothing to join.
    #[error("no recordings to join")]
    Nothing,
    /// A recording cannot be read.
    #[error("{0}")]
    Recording(#[from] RecordingError),
    /// A recording is not VDIF.
    #[error("{} is not VDIF", .0.display())]
    NotVdif(PathBuf),
    /// The gaps file next to a recording cannot be used.
    #[error("{0}")]
    Gaps(#[from] GapsError),
    /// The frames per second are unknown.
    #[error("the frames per second of {} are unknown", .0.display())]
    RateUnknown(PathBuf),
    /// Two recordings, or two threads of one, differ.
    #[error("{} has {theirs}, but {} has {ours}", path.display(), first.display())]
    Differ {
        /// Path of the first recording.
        first: PathBuf,
        /// Its property.
        ours: String,
        /// Path of the other recording.
        path: PathBuf,
        /// Its property.
        theirs: String,
    },
    /// Two recordings do not start within a second.
    #[error("{} starts {seconds} s after {}", late.display(), early.display())]
    Starts {
        /// Path of the earlier recording.
        early: PathBuf,
        /// Path of the later recording.
        late: PathBuf,
        /// Seconds between the starts.
        seconds: f64,
    },
    /// No frame would have all channels, although all threads have valid frames.
    #[error(
        "none of the {0} joined frames has all channels: the recordings are not of the same time"
    )]
    NoneComplete(u64),
    /// Two recordings contain the same thread.
    #[error(
        "{} and {} both contain thread {} of station {}",
        first.display(),
        path.display(),
        key.thread,
        key.station
    )]
    SameThread {
        /// Path of the first recording.
        first: PathBuf,
        /// Path of the other recording.
        path: PathBuf,
        /// Station and thread.
        key: StreamKey,
    },
    /// The threads of a station come in another order than that of their numbers. As a warning: the inputs give the order.
    #[error(
        "channels have the order of the recordings: thread {thread} of {} comes after thread {before} of {}",
        path.display(),
        first.display()
    )]
    Order {
        /// Path of the earlier recording.
        first: PathBuf,
        /// Its thread.
        before: u16,
        /// Path of the later recording.
        path: PathBuf,
        /// Its thread, of a lower number.
        thread: u16,
    },
    /// A recording is given twice.
    #[error("{} is given twice", .0.display())]
    Twice(PathBuf),
    /// The threads of a station cannot be joined.
    #[error("cannot join the {threads} threads of station {station}")]
    Station {
        /// Station.
        station: StationId,
        /// Number of its threads.
        threads: usize,
        /// Reason.
        source: LaneError,
    },
    /// The stations have different numbers of threads, so that their joined frames have different lengths.
    #[error(
        "the joined threads of stations {first} and {other} would have frames of different lengths: join one station at a time"
    )]
    Lengths {
        /// First station.
        first: StationId,
        /// Other station.
        other: StationId,
    },
    /// The output is the same file as an input.
    #[error("{} is an input itself: write to another file", .0.display())]
    Itself(PathBuf),
    /// The output exists or cannot be written.
    #[error("{0}")]
    Output(#[from] OutputError),
}

/// Options of [`join()`].
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// Recordings to read, in the order of their channels, and the stations and threads to take from each.
    pub inputs: Vec<(PathBuf, Selection)>,
    /// Recording to write.
    pub output: PathBuf,
    /// Whether threads are kept as they are.
    pub keep_threads: bool,
    /// Length of a frame of joined channels in bytes, header included; `None` for one frame per frame of the inputs.
    pub frame: Option<usize>,
    /// Frames per second of a thread, if the files do not contain it.
    pub frame_rate: Option<FrameRate>,
    /// Whether existing files are overwritten.
    pub force: bool,
}

/// Result of [`join()`].
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JoinReport {
    schema: &'static str,
    /// Recordings read, and their settings.
    inputs: Vec<String>,
    /// Threads in the output.
    threads: usize,
    /// Channels of each.
    channels: u64,
    /// Frames per second of each.
    frame_rate: u32,
    /// Frames in the inputs.
    frames: u64,
    /// Frames that were left out: without a place in time, with a time that is over or that another one has, or with samples of another
    /// shape.
    frames_left_out: u64,
    /// Frames of the output that lack some of their channels, and are marked or listed as missing in these samples.
    frames_incomplete: u64,
    /// Recording written.
    output: MadeFile,
    /// Whether the run was stopped before the end.
    pub interrupted: bool,
}

/// A recording to join.
struct Source {
    recording: Recording,
    /// Lane and input of each thread.
    places: BTreeMap<StreamKey, (usize, usize)>,
    blocks: Blocks,
    deframer: Deframer,
    /// Time of the newest frame.
    newest: Option<FrameTime>,
    /// Frames that were left out.
    left_out: LeftOut,
    is_over: bool,
}

/// Joins recordings, and their gaps files if they have some.
///
/// # Errors
/// Returns an error if a recording cannot be read, they do not belong together, or the output exists or cannot be written.
pub fn join(options: &JoinOptions, run: &Run) -> Result<JoinReport, JoinError> {
    let recordings = survey(options, run)?;
    let rate = common_rate(&recordings)?;
    check(options, &recordings, rate)?;
    let (mut lanes, places) = lanes(options, &recordings)?;
    if !options.keep_threads
        && let Some(order) = other_order(&recordings)
    {
        run.warn(format_args!("{}", run.explain(&order)));
    }
    let mut sources = Vec::new();
    for (recording, places) in recordings.into_iter().zip(places) {
        recording.warn_of_truncation(run);
        let layout = recording.layout;
        let gaps = layout.map(|layout| gaps::read_beside(&recording.path, Some(rate), &layout));
        let gaps = gaps.transpose()?.flatten();
        for (lane, input) in places.values() {
            set(&mut lanes[*lane], *input, rate, gaps.as_ref(), &recording)?;
        }
        sources.push(Source {
            blocks: recording.blocks(run)?,
            deframer: recording.deframer(Some(rate)),
            newest: None,
            left_out: LeftOut::default(),
            is_over: false,
            places,
            recording,
        });
    }
    let joined = Joined::new(options, &lanes, rate)?;
    walk(options, lanes, sources, joined, run)
}

fn survey(options: &JoinOptions, run: &Run) -> Result<Vec<Recording>, JoinError> {
    let mut recordings: Vec<Recording> = Vec::new();
    for (number, (path, selection)) in options.inputs.iter().enumerate() {
        let mut before = options.inputs[..number].iter();
        if before.any(|(other, part)| part == selection && same_file(other, path)) {
            return Err(JoinError::Twice(path.clone()));
        }
        for output in [&options.output, &gaps_beside(&options.output)] {
            if same_file(path, output) {
                return Err(JoinError::Itself(output.clone()));
            }
        }
        let second = run.clock().second();
        let recording = Recording::select(path, selection, options.frame_rate, second)?;
        if recording.format != Format::Vdif {
            return Err(JoinError::NotVdif(path.clone()));
        }
        recordings.push(recording);
    }
    Ok(recordings)
}

/// Returns the frames per second of all threads.
fn common_rate(recordings: &[Recording]) -> Result<FrameRate, JoinError> {
    let first = recordings.first().ok_or(JoinError::Nothing)?;
    // The rate that one recording shows is that of all, unless another one shows a different rate.
    let known = recordings
        .iter()
        .find(|recording| recording.frame_rate.is_some());
    let unknown = || JoinError::RateUnknown(first.path.clone());
    let known = known.ok_or_else(unknown)?;
    for other in recordings {
        if other.frame_rate.is_some() {
            same(known, other, |recording| {
                let rate = recording.frame_rate.map_or(0, FrameRate::get);
                format!("{rate} frames per second")
            })?;
        }
    }
    known.frame_rate.ok_or_else(unknown)
}

/// Checks that recordings belong together.
fn check(
    options: &JoinOptions,
    recordings: &[Recording],
    rate: FrameRate,
) -> Result<(), JoinError> {
    let Some((first, others)) = recordings.split_first() else {
        return Err(JoinError::Nothing);
    };
    for other in others {
        same(first, other, |recording| {
            format!("frames of {} bytes", recording.frame_length.unwrap_or(0))
        })?;
        if options.keep_threads {
            continue;
        }
        same(first, other, |recording| {
            recording.shape.map_or_else(String::new, shown)
        })?;
    }
    let starts = recordings.iter();
    let starts = starts.filter_map(|it| Some((it.first?.index(rate), it)));
    let early = starts.clone().min_by_key(|(start, _)| *start);
    let late = starts.max_by_key(|(start, _)| *start);
    if let (Some((from, early)), Some((to, late)), false) = (early, late, options.keep_threads)
        && to - from >= i64::from(rate.get())
    {
        return Err(JoinError::Starts {
            early: early.path.clone(),
            late: late.path.clone(),
            seconds: (to - from) as f64 / f64::from(rate.get()),
        });
    }
    Ok(())
}

fn same(
    first: &Recording,
    other: &Recording,
    property: impl Fn(&Recording) -> String,
) -> Result<(), JoinError> {
    let (ours, theirs) = (property(first), property(other));
    if ours == theirs {
        return Ok(());
    }
    Err(JoinError::Differ {
        first: first.path.clone(),
        ours,
        path: other.path.clone(),
        theirs,
    })
}

fn shown(shape: Shape) -> String {
    let kind = if shape.complex { "complex" } else { "real" };
    let (channels, bits) = (shape.channels(), shape.bits);
    format!("{channels} channels of {bits}-bit {kind} samples")
}

/// Returns the first thread behind one of its station that has a higher number, as when a shell sorts channel 10 before channel 2.
fn other_order(recordings: &[Recording]) -> Option<JoinError> {
    let mut newest: BTreeMap<StationId, (u16, &Recording)> = BTreeMap::new();
    for recording in recordings {
        let keys: BTreeSet<StreamKey> = recording.keys.iter().copied().collect();
        for key in keys {
            let before = newest.insert(key.station, (key.thread, recording));
            if let Some((before, first)) = before.filter(|(before, _)| *before > key.thread) {
                return Some(JoinError::Order {
                    first: first.path.clone(),
                    before,
                    path: recording.path.clone(),
                    thread: key.thread,
                });
            }
        }
    }
    None
}

type Places = Vec<BTreeMap<StreamKey, (usize, usize)>>;

/// Makes a lane for each thread of the output, and assigns the threads of the inputs to them.
fn lanes(
    options: &JoinOptions,
    recordings: &[Recording],
) -> Result<(Vec<Lane>, Places), JoinError> {
    let mut lanes = Vec::new();
    let mut places: Places = vec![BTreeMap::new(); recordings.len()];
    let all = recordings
        .iter()
        .enumerate()
        .flat_map(|(number, recording)| {
            let mut keys = recording.keys.clone();
            keys.sort_unstable();
            keys.into_iter().map(move |key| (number, key))
        });
    let Some(shape) = recordings.first().and_then(|recording| recording.shape) else {
        return Err(JoinError::Nothing);
    };
    if options.keep_threads {
        let mut owners: BTreeMap<StreamKey, usize> = BTreeMap::new();
        for (number, key) in all {
            if let Some(owner) = owners.insert(key, number) {
                return Err(JoinError::SameThread {
                    first: recordings[owner].path.clone(),
                    path: recordings[number].path.clone(),
                    key,
                });
            }
            places[number].insert(key, (lanes.len(), 0));
            lanes.push(Lane::copy(key, recordings[number].shape.unwrap_or(shape)));
        }
        return Ok((lanes, places));
    }
    let mut stations: Vec<(StationId, Vec<StreamKey>)> = Vec::new();
    for (number, key) in all {
        let known = stations
            .iter()
            .position(|(station, _)| *station == key.station);
        let lane = known.unwrap_or_else(|| {
            stations.push((key.station, Vec::new()));
            stations.len() - 1
        });
        let keys = &mut stations[lane].1;
        places[number].insert(key, (lane, keys.len()));
        keys.push(key);
    }
    let mut length = None;
    for (station, keys) in stations {
        let lane = Lane::join(&keys, shape, options.frame);
        let lane = lane.map_err(|source| JoinError::Station {
            station,
            threads: keys.len(),
            source,
        })?;
        let ours = lane.out_shape().frame_length;
        let (first, theirs) = *length.get_or_insert((station, ours));
        if theirs != ours {
            let other = station;
            return Err(JoinError::Lengths { first, other });
        }
        lanes.push(lane);
    }
    Ok((lanes, places))
}

fn set(
    lane: &mut Lane,
    input: usize,
    rate: FrameRate,
    gaps: Option<&Gaps>,
    recording: &Recording,
) -> Result<(), JoinError> {
    lane.set_rate(rate).map_err(|source| JoinError::Station {
        station: recording.keys.first().copied().unwrap_or_default().station,
        threads: recording.keys.len(),
        source,
    })?;
    if let Some(gaps) = gaps {
        lane.set_gaps(input, gaps);
    }
    Ok(())
}

/// The output so far.
struct Joined {
    output: Output,
    frames_incomplete: u64,
    /// Whether a frame had all channels.
    has_complete: bool,
    error: Option<OutputError>,
}

impl Joined {
    fn new(options: &JoinOptions, lanes: &[Lane], rate: FrameRate) -> Result<Joined, JoinError> {
        let lane = lanes.first().ok_or(JoinError::Nothing)?;
        let (length, rate) = (lane.out_shape().frame_length, lane.out_rate(rate).ok());
        Ok(Joined {
            output: Output::create(&options.output, options.force, length, rate)?,
            frames_incomplete: 0,
            has_complete: false,
            error: None,
        })
    }

    fn put(&mut self, made: &Made<'_>) {
        if self.error.is_none() {
            self.frames_incomplete += u64::from(made.is_incomplete);
            let header = made.frame.as_ref().map(|(header, _)| header);
            self.has_complete |=
                !made.is_incomplete && header.is_some_and(|header| !header.is_invalid());
            self.error = self.output.put(made).err();
        }
    }
}

/// Walks all recordings in parallel, so that they are at about the same time.
fn walk(
    options: &JoinOptions,
    mut lanes: Vec<Lane>,
    mut sources: Vec<Source>,
    mut joined: Joined,
    run: &Run,
) -> Result<JoinReport, JoinError> {
    let total = sources.iter().map(|source| source.recording.end()).sum();
    let mut progress = run.progress(Some(total));
    let mut frames = 0;
    let mut seen = BTreeSet::new();
    loop {
        let open = sources
            .iter_mut()
            .enumerate()
            .filter(|(_, source)| !source.is_over);
        let Some((number, source)) = open.min_by_key(|(_, source)| source.newest) else {
            break;
        };
        if run.is_stopped() {
            break;
        }
        let mut differs = None;
        let (places, newest) = (&source.places, &mut source.newest);
        let left_out = &mut source.left_out;
        let mut last: Option<FrameTime> = None;
        let more = source
            .blocks
            .step_at(&mut source.deframer, |chunk: Chunk<'_>, at| {
                for frame in chunk.frames {
                    frames += 1;
                    let place = frame.key.and_then(|key| places.get(&key));
                    let like = place.and_then(|(lane, input)| lanes[*lane].like(*input));
                    let piece = Piece::read(frame, chunk.with_next, like);
                    let (Some(piece), Some((lane, input))) = (piece, place) else {
                        left_out.add(at + frame.bytes.start as u64);
                        continue;
                    };
                    let lane = &mut lanes[*lane];
                    let (ours, theirs) = (lane.shape(), piece.header.shape());
                    if piece.invalid.is_none()
                        && seen.insert((number, piece.header.key()))
                        && ours != theirs
                    {
                        differs = Some((ours, theirs));
                    }
                    // The earlier of two: one wrong time must not look like the future of the recording.
                    let time = piece.header.time();
                    *newest = Some(last.map_or(time, |last| last.min(time)));
                    last = Some(time);
                    if !lane.take(*input, &piece) {
                        left_out.add(at + frame.bytes.start as u64);
                    }
                }
            })?;
        source.is_over = !more;
        if let Some((ours, theirs)) = differs {
            let path = source.recording.path.clone();
            return Err(JoinError::Differ {
                first: options.inputs[0].0.clone(),
                ours: shown(ours),
                path,
                theirs: shown(theirs),
            });
        }
        emit(&mut lanes, &sources, &mut |made| joined.put(&made));
        if let Some(error) = joined.error.take() {
            return Err(error.into());
        }
        if progress.is_due() {
            let done = sources.iter().map(|source| source.blocks.offset()).sum();
            progress.show(done, &format!("{} frames", show_count(frames)));
        }
    }
    let interrupted = run.is_stopped() && sources.iter().any(|source| !source.is_over);
    for lane in &mut lanes {
        lane.finish(&mut |made| joined.put(&made));
    }
    if let Some(error) = joined.error.take() {
        return Err(error.into());
    }
    let threads: usize = sources.iter().map(|source| source.places.len()).sum();
    let incomplete = joined.frames_incomplete;
    if !interrupted && !joined.has_complete && incomplete > 0 && seen.len() == threads {
        return Err(JoinError::NoneComplete(incomplete));
    }
    for source in &sources {
        source.left_out.warn(&source.recording, run);
    }
    let rate = lanes.first().and_then(Lane::frame_rate);
    Ok(JoinReport {
        schema: "evlbi.join/1",
        inputs: (options.inputs.iter())
            .map(|(path, selection)| selection.written(&path.to_string_lossy()))
            .collect(),
        threads: lanes.len(),
        channels: lanes.first().map_or(0, |lane| lane.out_shape().channels()),
        frame_rate: rate.map_or(0, FrameRate::get),
        frames,
        frames_left_out: sources.iter().map(|source| source.left_out.frames).sum(),
        frames_incomplete: incomplete,
        output: joined.output.finish(!interrupted)?,
        interrupted,
    })
}

/// Emits, in the order of time, the slots that all recordings have passed; all slots if all recordings are over.
fn emit(lanes: &mut [Lane], sources: &[Source], to: &mut dyn FnMut(Made<'_>)) {
    let open = sources.iter().filter(|source| !source.is_over);
    let until = match open.map(|source| source.newest).min() {
        Some(limit) => {
            let limit = limit.unwrap_or(FrameTime {
                second: i64::MIN,
                frame: 0,
            });
            let complete = lanes.iter().filter_map(|lane| lane.complete_until(limit));
            let Some(until) = complete.max() else {
                return;
            };
            Some(until)
        }
        None => None,
    };
    loop {
        let firsts = lanes
            .iter_mut()
            .filter_map(|lane| Some((lane.first()?, lane)));
        let Some((time, lane)) = firsts.min_by_key(|(time, _)| *time) else {
            return;
        };
        if until.is_some_and(|until| time > until) {
            return;
        }
        lane.emit_first(to);
    }
}

/// Formats a report as text.
pub fn text(report: &JoinReport) -> String {
    let mut frames = format!("{} in", show_count(report.frames));
    for (count, what) in [
        (report.frames_left_out, "left out"),
        (report.frames_incomplete, "lack some channels"),
    ] {
        if count > 0 {
            frames += &format!(", {} {what}", show_count(count));
        }
    }
    let threads = format!("{}, {} channels each", report.threads, report.channels);
    let mut pairs = vec![
        ("frames", frames),
        ("threads", threads),
        ("output", report.output.to_string()),
    ];
    if report.interrupted {
        let text = "before the end of the inputs: no file was kept";
        pairs.push(("interrupted", text.to_owned()));
    }
    lines(&pairs)
}
