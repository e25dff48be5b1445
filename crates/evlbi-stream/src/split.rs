//! Splits a recording in VDIF, Mark 5B or Mark 4: one file in VDIF per station, thread or channel, or some of its channels.
//!
//! Put here what is chosen and which frame belongs where. How the samples of frames are rearranged is in [`lane`](crate::lane); the same
//! splitter works for a live stream in [`sink`](crate::sink).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use evlbi_core::deframe::{Chunk, Format, FrameState, Layout};
use evlbi_net::file::{OutputError, same_file};
use evlbi_net::run::Run;
use evlbi_plot::lines;
use evlbi_wire::time::FrameRate;
use evlbi_wire::units::show_count;
use evlbi_wire::validity::Gaps;
use evlbi_wire::vdif::{Header, StreamKey};
use serde::Serialize;
use thiserror::Error;

use crate::gaps::{self, GapsError};
use crate::lane::{Converter, Lane, LaneError, Made, MadeFile, Output, Piece};
use crate::recording::{LeftOut, Recording, RecordingError, gaps_beside};
use crate::samples::SamplesError;
use crate::selection::{ChannelId, Selection, SelectionError, channel_list};
use crate::template::{MAX_FILES, Place, Template, TemplateError};

/// Reasons why a recording cannot be split.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SplitError {
    /// The recording cannot be read.
    #[error("{0}")]
    Recording(#[from] RecordingError),
    /// The recording has no frames.
    #[error("{} is neither VDIF, Mark 5B nor Mark 4", .0.display())]
    Raw(PathBuf),
    /// Stations or threads would be separated, of which the format has one.
    #[error("{} is {format}, which has no stations and threads to separate", path.display())]
    NoThreads {
        /// Path of the recording.
        path: PathBuf,
        /// Its format.
        format: Format,
    },
    /// The channels are chosen twice.
    #[error("channels are chosen after `#` and in the options: choose them once")]
    ChannelsTwice,
    /// Samples of VDIF are described after the path.
    #[error("{} is VDIF, whose headers describe the samples: after `#`, only station, thread and channels have an effect", .0.display())]
    Described(PathBuf),
    /// The samples of Mark 4 or Mark 5B are unknown.
    #[error("cannot decode {}", path.display())]
    Samples {
        /// Path of the recording.
        path: PathBuf,
        /// Reason.
        source: SamplesError,
    },
    /// The settings after the path are not valid.
    #[error("{0}")]
    Selection(#[from] SelectionError),
    /// The gaps file next to the recording cannot be used.
    #[error("{0}")]
    Gaps(#[from] GapsError),
    /// The frames per second are unknown.
    #[error("the frames per second of {} are unknown", .0.display())]
    RateUnknown(PathBuf),
    /// All would be copied to one file.
    #[error("{0} names one file, and no channels are chosen: nothing would be split")]
    One(String),
    /// The name of the outputs is not valid.
    #[error("{0}")]
    Name(#[from] TemplateError),
    /// A thread cannot be split.
    #[error("cannot split thread {} of station {} in {}", key.thread, key.station, path.display())]
    Thread {
        /// Path of the recording.
        path: PathBuf,
        /// Station and thread.
        key: StreamKey,
        /// Reason.
        source: LaneError,
    },
    /// Threads of one output have frames of different lengths.
    #[error(
        "the threads of {} have frames of different lengths, {length} and {other} bytes, and {} would contain both",
        path.display(),
        output.display()
    )]
    Lengths {
        /// Path of the recording.
        path: PathBuf,
        /// Path of the output.
        output: PathBuf,
        /// Length of the frames in the output, in bytes.
        length: usize,
        /// Length of others, in bytes.
        other: usize,
    },
    /// There would be too many outputs.
    #[error("{} has more than {MAX_FILES} stations, threads and channels", .0.display())]
    Files(PathBuf),
    /// An output is the same file as the input.
    #[error("{} is the input itself: write to another file", .0.display())]
    Itself(PathBuf),
    /// An output exists or cannot be written.
    #[error("{0}")]
    Output(#[from] OutputError),
}

/// Channels that are chosen, in the order of the output: `0,2,4-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels(Vec<ChannelId>);

impl FromStr for Channels {
    type Err = String;

    fn from_str(text: &str) -> Result<Channels, String> {
        let channels = channel_list(text).ok_or_else(|| {
            format!(
                "invalid channels `{text}`: give numbers from 0, e.g. 0,2,4-7, or names of Mark 4, e.g. 0U,1L, each once"
            )
        })?;
        Ok(Channels(channels))
    }
}

/// Options of [`split()`].
#[derive(Clone, Debug, Default)]
pub struct SplitOptions {
    /// Recording to read.
    pub input: PathBuf,
    /// Station, threads and channels to read; description of the samples of Mark 4 and Mark 5B where the headers do not contain it, and the
    /// name of their station.
    pub selection: Selection,
    /// Name of the outputs, with `{station}`, `{thread}` and `{channel}` as far as these are separated.
    pub to: String,
    /// Channels to extract from each thread; `None` for those of the selection.
    pub channels: Option<Channels>,
    /// Frames per second of a thread, if the file does not contain it.
    pub frame_rate: Option<FrameRate>,
    /// Whether existing files are overwritten.
    pub force: bool,
}

/// Result of [`split()`].
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SplitReport {
    schema: &'static str,
    input: PathBuf,
    /// Length of a frame of the input in bytes, header included.
    frame_length: usize,
    /// Frames per second of each thread of the input.
    frame_rate: Option<u32>,
    /// Frames of a thread that become one frame of each channel.
    frames_per_frame: u32,
    /// Frames in the input.
    frames: u64,
    /// Frames that were left out: without a place in time, with a time that another one has, or with samples of another shape.
    frames_left_out: u64,
    /// Frames of stations and threads that were not selected.
    unselected_frames: u64,
    /// Bytes before the first whole frame, not copied.
    leading_bytes: u64,
    /// Bytes after the last whole frame, not copied.
    truncated_bytes: u64,
    /// Recordings written.
    outputs: Vec<MadeFile>,
    /// Whether the run was stopped before the end.
    pub interrupted: bool,
}

/// Assignment of frames to the lanes of their threads.
#[derive(Debug)]
pub(crate) struct Splitter {
    /// Whether frames are copied as they are.
    is_copy: bool,
    channels: Option<Channels>,
    /// Whether channels are separated.
    apart: bool,
    /// Frames per second of a thread, once known.
    rate: Option<FrameRate>,
    gaps: Gaps,
    /// Description of the samples of Mark 4 and Mark 5B, and their station.
    described: Selection,
    key: StreamKey,
    /// Converter of frames of Mark 4 and Mark 5B.
    converter: Option<Converter>,
    lanes: BTreeMap<StreamKey, Lane>,
    /// Frames taken.
    frames: u64,
    /// Frames that have no place.
    pub left_out: LeftOut,
    /// Bytes of these, and of data without frames.
    pub left_out_bytes: u64,
}

impl Splitter {
    /// Makes a splitter that separates the channels of each thread of a live stream. The settings select channels, and describe the samples
    /// of Mark 4 and Mark 5B.
    pub fn live(selection: &Selection) -> Result<Splitter, SelectionError> {
        let (_, described) = selection.clone().apart();
        let channels = Some(&selection.channels).filter(|channels| !channels.is_empty());
        Ok(Splitter {
            is_copy: false,
            channels: channels.cloned().map(Channels),
            key: described.key()?,
            described,
            apart: true,
            rate: None,
            gaps: Gaps::default(),
            converter: None,
            lanes: BTreeMap::new(),
            frames: 0,
            left_out: LeftOut::default(),
            left_out_bytes: 0,
        })
    }

    /// Takes a piece of the stream, at this offset of a recording. Returns an error for a thread that cannot be split; its frames have no place.
    pub fn take(
        &mut self,
        chunk: Chunk<'_>,
        at: u64,
        to: &mut dyn FnMut(Made<'_>),
    ) -> Result<(), (StreamKey, LaneError)> {
        if chunk.frames.is_empty() {
            self.left_out_bytes += chunk.bytes.len() as u64;
        }
        self.rate = self.rate.or(chunk.frame_rate);
        let is_vdif = chunk.layout.is_some_and(|it| it.format == Format::Vdif);
        let header_length = chunk.layout.map_or(0, |layout| layout.header_length);
        let (mut converter, mut result) = match self.converter.take() {
            None if !is_vdif => match self.converter_of(chunk) {
                Ok(converter) => (converter, Ok(())),
                Err(error) => (None, Err((StreamKey::default(), error.into()))),
            },
            converter => (converter, Ok(())),
        };
        let fits = |it: &&mut Converter| chunk.layout.is_some_and(|layout| it.fits(&layout));
        for frame in chunk.frames {
            let bytes = &chunk.bytes[frame.bytes.clone()];
            self.frames += 1;
            let lane = frame.key.and_then(|key| self.lanes.get(&key));
            let piece = match &mut converter {
                Some(converter) if !fits(&converter) => None,
                Some(converter) => converter.piece(frame, chunk.with_next, header_length),
                None if is_vdif => {
                    Piece::read(frame, chunk.with_next, lane.and_then(|lane| lane.like(0)))
                }
                None => None,
            };
            let is_taken = piece.map_or(Ok(false), |piece| self.take_piece(&piece, to));
            if !matches!(is_taken, Ok(true)) {
                self.left_out.add(at + frame.bytes.start as u64);
                self.left_out_bytes += bytes.len() as u64;
            }
            if let Err(error) = is_taken {
                result = Err(error);
            }
        }
        self.converter = converter;
        result
    }

    /// Returns the converter of the frames of a live stream by its headers; `None` if none of these is undamaged.
    fn converter_of(&self, chunk: Chunk<'_>) -> Result<Option<Converter>, SamplesError> {
        let whole = chunk.frames.iter().find(|it| it.state == FrameState::Whole);
        let (Some(layout), Some(frame)) = (chunk.layout, whole) else {
            return Ok(None);
        };
        let (first, rate) = (&chunk.bytes[frame.bytes.clone()], chunk.frame_rate);
        Converter::new(&self.described, &layout, first, rate, self.key).map(Some)
    }

    fn take_piece(
        &mut self,
        piece: &Piece<'_>,
        to: &mut dyn FnMut(Made<'_>),
    ) -> Result<bool, (StreamKey, LaneError)> {
        let key = piece.header.key();
        if !self.lanes.contains_key(&key) {
            let (described, time) = (&self.described, piece.header.time());
            if let (Some(year), None, false) = (
                described.year,
                piece.invalid,
                described.is_year_of(time.second),
            ) {
                return Err((key, LaneError::Year(year)));
            }
            let lane = self.lane(&piece.header, piece.names);
            self.lanes.insert(key, lane.map_err(|error| (key, error))?);
        }
        let Some(lane) = self.lanes.get_mut(&key) else {
            return Ok(false);
        };
        if let Some(rate) = self.rate.filter(|_| lane.frame_rate().is_none()) {
            lane.set_rate(rate).map_err(|error| (key, error))?;
            lane.set_gaps(0, &self.gaps);
        }
        let is_taken = lane.take(0, piece);
        lane.advance(to);
        Ok(is_taken)
    }

    /// Makes the lane of the thread of a header, whose channels have these names.
    fn lane(&self, header: &Header, names: &[ChannelId]) -> Result<Lane, LaneError> {
        let (key, shape) = (header.key(), header.shape());
        let channels = self.channels.as_ref().map(|channels| &channels.0[..]);
        match self.is_copy {
            true => Ok(Lane::copy(key, shape)),
            false => Lane::split(key, shape, names, channels, self.apart),
        }
    }

    /// Returns whether frames of a thread have been split.
    pub fn has_lanes(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// Returns the frames of a thread that become one frame of each channel.
    fn parts(&self) -> u32 {
        self.lanes.values().map(Lane::parts).max().unwrap_or(1)
    }

    /// Emits the rest.
    pub fn finish(&mut self, to: &mut dyn FnMut(Made<'_>)) {
        for lane in self.lanes.values_mut() {
            lane.finish(to);
        }
    }
}

/// Splits a recording, and its gaps file if it has one.
///
/// # Errors
/// Returns an error if the recording cannot be read, its threads cannot be split, or an output exists or cannot be written.
pub fn split(options: &SplitOptions, run: &Run) -> Result<SplitReport, SplitError> {
    let template = Template::new(&options.to)?;
    let channels = match (&options.channels, options.selection.channels.as_slice()) {
        (Some(_), [_, ..]) => return Err(SplitError::ChannelsTwice),
        (None, [_, ..]) => Some(Channels(options.selection.channels.clone())),
        (chosen, []) => chosen.clone(),
    };
    let (part, described) = options.selection.clone().apart();
    if template.is_one() && channels.is_none() && !part.is_part() {
        return Err(SplitError::One(options.to.clone()));
    }
    let is_copy = !template.has_channel() && channels.is_none();
    let second = run.clock().second();
    let recording = Recording::select(&options.input, &part, options.frame_rate, second)?;
    let path = || options.input.clone();
    let layout = recording.layout.ok_or_else(|| SplitError::Raw(path()))?;
    let converter = converter(&described, &recording, &layout, is_copy)?;
    let converted = converter.as_ref().map(Converter::frame_rate);
    let rate = converted.or(recording.frame_rate);
    let mut gaps = gaps::read_beside(&options.input, rate, &layout)?;
    if converter.is_some() {
        let key = described.key()?;
        let gaps = gaps.iter_mut().flat_map(|gaps| &mut gaps.time);
        gaps.for_each(|gap| gap.key = key);
    }
    if rate.is_none() && gaps.as_ref().is_some_and(|gaps| !gaps.time.is_empty()) {
        return Err(SplitError::RateUnknown(path()));
    }
    let mut splitter = Splitter {
        is_copy,
        channels,
        apart: template.has_channel(),
        rate,
        gaps: gaps.unwrap_or_default(),
        converter,
        ..Splitter::live(&described)?
    };
    let mut files = Files {
        options,
        template,
        outputs: BTreeMap::new(),
        rate,
        error: None,
    };
    let mut deframer = recording.deframer(rate);
    let mut blocks = recording.blocks(run)?;
    let mut progress = run.progress(Some(recording.end()));
    let mut more = true;
    while more && !run.is_stopped() {
        let mut taken = Ok(());
        more = blocks.step_at(&mut deframer, |chunk, at| {
            if taken.is_ok() {
                taken = splitter.take(chunk, at, &mut |made| files.put(&made));
            }
        })?;
        taken.map_err(|(key, source)| SplitError::Thread {
            path: options.input.clone(),
            key,
            source,
        })?;
        files.check(&splitter)?;
        if progress.is_due() {
            let line = format!("{} files", files.outputs.len());
            progress.show(blocks.offset(), &line);
        }
    }
    splitter.finish(&mut |made| files.put(&made));
    files.check(&splitter)?;
    splitter.left_out.warn(&recording, run);
    Ok(SplitReport {
        schema: "evlbi.split/1",
        input: options.input.clone(),
        frame_length: layout.frame_length,
        frame_rate: rate.map(FrameRate::get),
        frames_per_frame: splitter.parts(),
        frames: splitter.frames,
        frames_left_out: splitter.left_out.frames,
        unselected_frames: deframer.counts().unselected_frames,
        leading_bytes: recording.leading,
        truncated_bytes: recording.truncated_tail(),
        outputs: files.finish(!more)?,
        interrupted: more,
    })
}

/// Returns the converter of the frames of a recording into VDIF; `None` if they are VDIF.
fn converter(
    selection: &Selection,
    recording: &Recording,
    layout: &Layout,
    is_copy: bool,
) -> Result<Option<Converter>, SplitError> {
    let path = || recording.path.clone();
    if layout.format == Format::Vdif {
        return match *selection == Selection::default() {
            true => Ok(None),
            false => Err(SplitError::Described(path())),
        };
    }
    if is_copy {
        let format = layout.format;
        let path = path();
        return Err(SplitError::NoThreads { path, format });
    }
    let key = selection.key()?;
    let first = recording.header();
    let converter = Converter::new(selection, layout, &first, recording.frame_rate, key);
    let unknown = |source| SplitError::Samples {
        path: path(),
        source,
    };
    converter.map(Some).map_err(unknown)
}

/// Outputs by station, thread and channel.
struct Files<'o> {
    options: &'o SplitOptions,
    template: Template,
    outputs: BTreeMap<Place, (usize, Output)>,
    /// Frames per second of a thread of the input.
    rate: Option<FrameRate>,
    /// First error.
    error: Option<SplitError>,
}

impl Files<'_> {
    fn put(&mut self, made: &Made<'_>) {
        if self.error.is_none() {
            self.error = self.write(made).err();
        }
    }

    fn write(&mut self, made: &Made<'_>) -> Result<(), SplitError> {
        let place = self.template.place(made.from, made.channel);
        let length = made.frame_length;
        let is_full = self.outputs.len() == MAX_FILES;
        let (first, output) = match self.outputs.entry(place) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if is_full => {
                return Err(SplitError::Files(self.options.input.clone()));
            }
            Entry::Vacant(entry) => {
                let name = self.template.name(made.from, made.channel);
                let path = Path::new(&name);
                for path in [path, &gaps_beside(path)] {
                    if same_file(&self.options.input, path) {
                        return Err(SplitError::Itself(path.to_owned()));
                    }
                }
                let output = Output::create(path, self.options.force, length, made.frame_rate)?;
                entry.insert((length, output))
            }
        };
        if *first != length {
            return Err(SplitError::Lengths {
                path: self.options.input.clone(),
                output: output.path().to_owned(),
                length: *first,
                other: length,
            });
        }
        Ok(output.put(made)?)
    }
}

impl Files<'_> {
    /// Returns the first error so far.
    fn check(&mut self, splitter: &Splitter) -> Result<(), SplitError> {
        if self.rate.is_none() && splitter.parts() > 1 {
            return Err(SplitError::RateUnknown(self.options.input.clone()));
        }
        self.error.take().map_or(Ok(()), Err)
    }

    /// Completes the outputs, in the order of their names.
    fn finish(self, keep: bool) -> Result<Vec<MadeFile>, SplitError> {
        let outputs = self.outputs.into_values();
        let made = outputs.map(|(_, output)| output.finish(keep));
        Ok(made.collect::<Result<_, _>>()?)
    }
}

/// Formats a report as text.
pub fn text(report: &SplitReport) -> String {
    let left_out = match report.frames_left_out {
        0 => String::new(),
        frames => format!(", {} left out", show_count(frames)),
    };
    let mut pairs = vec![(
        "frames",
        format!(
            "{} of {} bytes{left_out}",
            show_count(report.frames),
            report.frame_length
        ),
    )];
    if report.frames_per_frame > 1 {
        let text = format!(
            "{} frames become one of each channel",
            report.frames_per_frame
        );
        pairs.push(("together", text));
    }
    for (bytes, place) in [
        (report.leading_bytes, "before the first whole frame"),
        (report.truncated_bytes, "of a truncated last frame"),
    ] {
        if bytes > 0 {
            pairs.push(("left out", format!("{} bytes {place}", show_count(bytes))));
        }
    }
    pairs.extend(
        report
            .outputs
            .iter()
            .map(|made| ("output", made.to_string())),
    );
    if report.interrupted {
        let text = "before the end of the input: no file was kept";
        pairs.push(("interrupted", text.to_owned()));
    }
    lines(&pairs)
}
