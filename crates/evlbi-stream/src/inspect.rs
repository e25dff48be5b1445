//! Reports the content of a recording after reading all of it.
//!
//! Put here results that need all frames. [`recording`] finds out what the start of the file shows.

mod extended;
mod picture;
mod summary;
mod thread;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use evlbi_core::deframe::{Chunk, Deframer, Format, Frame, FrameState, Slip};
use evlbi_fx::unpack::Recorded;
use evlbi_net::run::Run;
use evlbi_wire::naming::Recorder;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{self, StreamKey};
use serde::Serialize;

use self::thread::{Described, Gap, Sampling, Thread, ThreadReport};
use crate::recording::{self, Blocks, Recording, RecordingError, Rest};
use crate::samples::Samples;
use crate::selection::Selection;
use evlbi_wire::units;

pub use self::picture::text_in_full;

/// Maximum number of gaps listed.
const MAX_GAPS: usize = 1000;
/// Lines of a screen.
const SCREEN: usize = 40;

/// Content of a recording.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    schema: &'static str,
    file: PathBuf,
    /// Length of the file, in bytes.
    bytes: u64,
    format: Format,
    /// Name of the format as mark5access has them: format, rate without headers in Mbit/s, channels, bits.
    format_name: Option<String>,
    /// Format of raw data that is known, but not read.
    not_read: Option<String>,
    /// VDIF version number.
    version: Option<u8>,
    /// Length of a frame in bytes, header included.
    frame_length: Option<usize>,
    header_length: Option<usize>,
    /// Frames per second of each thread.
    frame_rate: Option<u32>,
    frame_rate_from: Option<RateOrigin>,
    /// Bits per second of all threads, headers included.
    bit_rate: Option<u64>,
    /// Bits per second of all threads without the headers.
    payload_rate: Option<u64>,
    /// Year that the user gave: headers of Mark 5B and Mark 4 do not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    year: Option<i16>,
    /// Time of the earliest frame.
    first: Option<Moment>,
    /// Time of the latest frame.
    last: Option<Moment>,
    /// Time from the start of the earliest frame to the end of the latest.
    seconds: Option<f64>,
    frames: u64,
    /// Frames marked invalid.
    invalid_frames: u64,
    /// Frames whose header is damaged.
    odd_headers: u64,
    /// Frames of these after the first eight in a row, of which neither thread nor time is known. They are in none of the threads.
    untimed_frames: u64,
    /// Frames of Mark 4 with other channels on their tracks than at the start; their samples are not examined.
    frames_of_other_channels: u64,
    /// Frames missing from the numbering.
    missing_frames: u64,
    /// Repeated frames.
    duplicate_frames: u64,
    /// Frames with an earlier time than a previous one of their thread.
    backward_frames: u64,
    /// Bytes before the first frame.
    leading_bytes: u64,
    /// Bytes after the last whole frame.
    trailing_bytes: u64,
    /// Bytes between frames that belong to none; all bytes of raw data.
    unframed_bytes: u64,
    /// Places where frames are at another offset than expected: bytes were lost or inserted before. The first ones.
    frame_slips: Vec<Slip>,
    /// Part of another format after these frames, of which nothing else is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    rest: Option<Rest>,
    fill: FillFound,
    threads: Vec<ThreadReport>,
    /// Number of gaps in the numbering, over all threads.
    gaps_total: u64,
    /// The first gaps.
    gaps: Vec<Gap>,
    /// Choice of the frames for the sample statistics.
    sampling: Option<Sampling>,
    /// Whether the run was stopped before the end of the file.
    pub interrupted: bool,
}

/// Amount of fill pattern.
#[derive(Clone, Copy, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct FillFound {
    /// Bytes of fill pattern, in runs of two words (8 bytes) or more.
    bytes: u64,
    /// Frames that contain some.
    frames: u64,
    /// Frames of these that are not marked invalid.
    valid_frames: u64,
}

/// Origin of the frame rate.
#[derive(Clone, Copy, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum RateOrigin {
    /// Given by the user.
    Given,
    /// Read from the headers.
    Header,
    /// Counted from second to second.
    Counted,
}

/// The time of a frame.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Moment {
    #[serde(flatten)]
    time: FrameTime,
    /// UTC in the format of RFC 3339; `None` if the frame rate is unknown.
    utc: Option<String>,
}

impl Moment {
    fn new(time: FrameTime, rate: Option<FrameRate>) -> Moment {
        let utc = rate.and_then(|rate| time.rfc3339(rate));
        Moment { time, utc }
    }
}

/// Reads the recording at `path`. `selection` describes its samples where the headers do not, and its year; `given` is the number of frames
/// per second of a thread, if the file does not contain it.
///
/// # Errors
/// Returns an error if it cannot be read.
pub fn inspect(
    path: &Path,
    selection: &Selection,
    given: Option<FrameRate>,
    run: &Run,
) -> Result<Report, RecordingError> {
    let recording = Recording::open(path, selection, given, run.clock().second())?;
    let mut walked = walk(&recording, selection, recording.frame_rate, run)?;
    // The name of the format has the rate that no end of a second shows.
    let named = selection.format.filter(|named| {
        recording.format == Format::Mark5b
            && named.recorder() == Recorder::Mark5b
            && walked.frame_rate.is_none()
    });
    let given = given.or(named.and_then(|named| named.frame_rate()));
    let found = walked.frame_rate.or(given);
    if recording.frame_rate.is_none() && found.is_some() {
        // The rate was found after the survey's part of the file: count the frames before it again.
        walked = walk(&recording, selection, found, run)?;
    }
    Ok(report(&recording, given, selection.year, &walked))
}

/// Results so far.
struct Content {
    format: Format,
    frame_rate: Option<FrameRate>,
    described: Described,
    sampling: Sampling,
    /// In order of appearance.
    threads: Vec<Thread>,
    by_key: HashMap<StreamKey, usize>,
    fill: FillFound,
    untimed: u64,
    of_other_channels: u64,
    /// VDIF version number of the first frame.
    version: Option<u8>,
}

impl Content {
    fn new(recording: &Recording, selection: &Selection, frame_rate: Option<FrameRate>) -> Content {
        Content {
            format: recording.format,
            frame_rate,
            described: describe(recording, selection, frame_rate),
            sampling: Sampling::new(recording.frames(), recording.keys.len()),
            threads: Vec::new(),
            by_key: HashMap::new(),
            fill: FillFound::default(),
            untimed: 0,
            of_other_channels: 0,
            version: None,
        }
    }

    /// Counts a piece of the recording.
    fn take(&mut self, chunk: Chunk<'_>) {
        if chunk.frames.is_empty() {
            self.fill.bytes += fill_in(&Recorded::from(chunk.bytes));
        }
        for frame in chunk.frames {
            let header_length = chunk.layout.map_or(0, |layout| layout.header_length);
            let samples = frame.bytes.start + header_length..frame.bytes.end;
            if let Some(samples) = Recorded::new(chunk.with_next, samples) {
                self.take_frame(frame, &chunk.bytes[frame.bytes.clone()], &samples);
            }
        }
    }

    fn take_frame(&mut self, frame: &Frame, bytes: &[u8], samples: &Recorded<'_>) {
        let header = match self.format {
            Format::Vdif => vdif::Header::parse(bytes).ok(),
            Format::Mark5b | Format::Mark4 | Format::Raw => None,
        };
        let payload = samples.samples();
        let valid = frame.state == FrameState::Whole;
        let filled = fill_in(samples);
        self.fill.bytes += filled;
        self.fill.frames += u64::from(filled > 0);
        self.fill.valid_frames += u64::from(filled > 0 && valid);
        let (Some(key), Some(time)) = (frame.key, frame.time) else {
            self.untimed += 1;
            return;
        };
        if valid || self.version.is_none() {
            self.version = header.map(|header| header.version());
        }
        let (threads, frame_rate) = (&mut self.threads, self.frame_rate);
        let described = &self.described;
        let index = *self.by_key.entry(key).or_insert_with(|| {
            let place = threads.len();
            threads.push(Thread::new(key, header, described, frame_rate, place));
            threads.len() - 1
        });
        let thread = &mut threads[index];
        if valid && let Some(header) = header {
            thread.describe(header, index);
        }
        thread.see(time, frame.state == FrameState::SourceInvalid);
        let is_like = |samples: &Samples| !valid || samples.are_in(bytes);
        let is_alike = described
            .as_ref()
            .is_none_or(|it| it.as_ref().map_or(true, is_like));
        self.of_other_channels += u64::from(!is_alike);
        if valid && filled == 0 && is_alike {
            thread.sample(payload, self.sampling);
        }
    }
}

/// Describes the samples of Mark 5B and Mark 4.
fn describe(
    recording: &Recording,
    selection: &Selection,
    frame_rate: Option<FrameRate>,
) -> Described {
    let layout = recording.layout.filter(|it| it.format != Format::Vdif)?;
    let header = recording.header();
    Some(Samples::of(selection, &layout, &header, frame_rate, None))
}

/// Formats a report for people in at most 40 lines: each thread and channel if they fit, else those that are alike together.
pub fn text(report: &Report) -> String {
    if is_summarised(report) {
        summary::show(report)
    } else {
        picture::text_of_each(report)
    }
}

/// Returns whether [`text`] puts threads and channels together.
pub fn is_summarised(report: &Report) -> bool {
    picture::text_of_each(report).lines().count() > SCREEN
}

/// Counts the bytes of the fill pattern.
fn fill_in(samples: &Recorded<'_>) -> u64 {
    samples.fill().map(|run| run.len() as u64).sum()
}

/// Results of one pass over the file.
struct Walked {
    content: Content,
    deframer: Deframer,
    blocks: Blocks,
    frame_rate: Option<FrameRate>,
    interrupted: bool,
}

fn walk(
    recording: &Recording,
    selection: &Selection,
    frame_rate: Option<FrameRate>,
    run: &Run,
) -> Result<Walked, RecordingError> {
    let mut deframer = recording.deframer(frame_rate);
    let mut blocks = Blocks::new(recording::open(&recording.path)?, recording.end());
    let mut content = Content::new(recording, selection, frame_rate);
    let mut progress = run.progress(Some(recording.end()));
    let mut more = true;
    while more && !run.is_stopped() {
        more = blocks.step(&mut deframer, |chunk| content.take(chunk))?;
        if more && progress.is_due() {
            let frames = units::show_count(deframer.counts().frames);
            progress.show(blocks.offset(), &format!("{frames} frames"));
        }
    }
    Ok(Walked {
        content,
        frame_rate: frame_rate.or(deframer.frame_rate()),
        deframer,
        blocks,
        interrupted: more,
    })
}

fn report(
    recording: &Recording,
    given: Option<FrameRate>,
    year: Option<i16>,
    walked: &Walked,
) -> Report {
    let (content, rate) = (&walked.content, walked.frame_rate);
    let counts = walked.deframer.counts();
    let leading = walked.blocks.leading().unwrap_or(0);
    let threads = &content.threads;
    let sum = |of: fn(&Thread) -> u64| threads.iter().map(of).sum();
    let (gaps, gaps_total) = gaps(threads, rate);
    let times = || threads.iter().flat_map(Thread::ends);
    let (first, last) = (times().min(), times().max());
    let header_length = recording.header_length();
    let stream_rate = |length: Option<usize>| {
        let rate = recording::stream_rate(rate?, threads.len(), length?)?;
        Some(rate.get())
    };
    let lengths = recording.frame_length.zip(header_length);
    let payload = lengths.map(|(frame, header)| frame.saturating_sub(header));
    let sampled = threads.iter().any(|thread| thread.sampled > 0);
    let described = content.described.as_ref().and_then(|it| it.as_ref().ok());
    let name = described.zip(recording.layout);
    let name = name.and_then(|(samples, layout)| samples.format(&layout));
    Report {
        schema: "evlbi.inspect/1",
        file: recording.path.clone(),
        bytes: recording.size,
        format: recording.format,
        format_name: name.map(|name| name.to_string()),
        not_read: recording.relative.map(|relative| relative.to_string()),
        version: content.version,
        frame_length: recording.frame_length,
        header_length,
        frame_rate: rate.map(FrameRate::get),
        frame_rate_from: rate.map(|rate| origin(given, recording, threads, rate)),
        bit_rate: stream_rate(recording.frame_length),
        payload_rate: stream_rate(payload),
        seconds: rate.zip(first.zip(last)).map(|(rate, (first, last))| {
            let frames = last.index(rate) - first.index(rate) + 1;
            frames as f64 / f64::from(rate.get())
        }),
        year,
        first: first.map(|time| Moment::new(time, rate)),
        last: last.map(|time| Moment::new(time, rate)),
        frames: counts.frames,
        invalid_frames: counts.source_invalid,
        odd_headers: counts.odd_headers,
        untimed_frames: content.untimed,
        frames_of_other_channels: content.of_other_channels,
        missing_frames: threads.iter().map(|thread| thread.missing(rate)).sum(),
        duplicate_frames: sum(|thread| thread.duplicates),
        backward_frames: sum(|thread| thread.backward),
        leading_bytes: leading,
        trailing_bytes: (walked.blocks.offset()).saturating_sub(leading + counts.bytes),
        unframed_bytes: counts.unframed_bytes,
        frame_slips: walked.deframer.slips().to_vec(),
        rest: recording.rest,
        fill: content.fill,
        threads: threads.iter().map(|thread| thread.report(rate)).collect(),
        gaps_total,
        gaps,
        sampling: sampled.then_some(content.sampling),
        interrupted: walked.interrupted,
    }
}

fn origin(
    given: Option<FrameRate>,
    recording: &Recording,
    threads: &[Thread],
    rate: FrameRate,
) -> RateOrigin {
    let of_all = recording.layout.and_then(|layout| layout.frame_rate);
    let told = threads.iter().filter_map(Thread::told_rate);
    match given {
        Some(_) => RateOrigin::Given,
        None if told.chain(of_all).any(|told| told == rate) => RateOrigin::Header,
        None => RateOrigin::Counted,
    }
}

/// Returns the first gaps in order of time, and their total number.
fn gaps(threads: &[Thread], rate: Option<FrameRate>) -> (Vec<Gap>, u64) {
    let all = threads.iter().flat_map(|thread| thread.gaps(rate));
    let total = all.count() as u64;
    let first = threads.iter();
    let first = first.flat_map(|thread| thread.gaps(rate).take(MAX_GAPS));
    let mut gaps: Vec<Gap> = first.collect();
    gaps.sort_by_key(|gap| (gap.start.time, gap.station_id, gap.thread));
    gaps.truncate(MAX_GAPS);
    (gaps, total)
}
