//! Finds out the format of a recording from as few bytes as possible.
//!
//! Put here further kinds of recordings, or of recordings that belong together.

mod error;
mod survey;
mod turns;

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use evlbi_core::deframe::{Chunk, Deframer, Format, Layout, Selected, Settings};
use evlbi_core::rate::BitRate;
use evlbi_net::run::Run;
use evlbi_wire::mark4;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::units::utc;
use evlbi_wire::vdif::{Shape, StreamKey};
use serde::{Deserialize, Serialize};

pub use self::error::RecordingError;

use self::survey::{First, Start, Survey};
use crate::samples::SamplesError;
use crate::selection::Selection;

/// Bytes per read.
pub(crate) const BLOCK: usize = 1 << 20;
/// Maximum number of bytes read from the start of the file to find out its threads and frame rate.
const MAX_SURVEYED: u64 = 256 << 20;
/// Number of bytes read to find out the threads if the headers contain the rate.
const ENOUGH: u64 = 16 << 20;

/// Frames at the end of a long file that are searched for the last one of the first frame's thread. If it is not
/// among them, the file is read whole.
const FROM_END: usize = 1024;
/// Frames of each thread before the last undamaged header of a file from which those behind it are found.
const LEAD: u64 = 32;
/// Maximum distance of two frames of a recording, in seconds; or the number of frames, if larger.
const MAX_APART: u64 = 86_400;

/// Frames checked before a part of a recording is skipped.
const MAX_CHECKED: u64 = 64;

/// Maximum number of bytes read before a file counts as raw data: three frames of 16 MiB fit.
const HOLD: usize = 50 << 20;

/// Format, threads and times of a recording. As a document, it serves to read the recording elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    /// Path of the file.
    pub path: PathBuf,
    /// Format of its frames, if any.
    pub format: Format,
    /// Length of the file, in bytes.
    pub size: u64,
    /// Bytes before the first whole frame.
    pub leading: u64,
    /// Length of a frame in bytes; `None` for raw data.
    pub frame_length: Option<usize>,
    /// Common properties of the frames; `None` for raw data.
    pub layout: Option<Layout>,
    /// Shape of the samples, for VDIF.
    pub shape: Option<Shape>,
    /// First undamaged header of Mark 4.
    #[serde(skip)]
    pub mark4: Option<Box<mark4::Header>>,
    /// Format of raw data that is known, but not read.
    #[serde(skip)]
    pub relative: Option<mark4::Relative>,
    /// Stations and threads in order of appearance.
    pub keys: Vec<StreamKey>,
    /// Frames per second of each thread; `None` if unknown.
    pub frame_rate: Option<FrameRate>,
    /// Time of the first frame of the first thread, among those that are selected.
    pub first: Option<FrameTime>,
    /// Time of the last frame of that thread.
    pub last: Option<FrameTime>,
    /// Part after the frames that are described here, if any.
    pub rest: Option<Rest>,
    /// Latest time that the data can be from, in UTC seconds: times of Mark 5B and Mark 4 repeat.
    latest: i64,
    /// Stations and threads whose frames are read.
    selected: Selected,
}

/// Part of a recording that is of another format, or has frames of another length, than its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rest {
    /// Offset in the file of the end of the last frame before it.
    pub byte: u64,
    /// Format of its frames.
    pub format: Format,
    /// Length of these frames, in bytes.
    pub frame_length: usize,
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rest {
            byte,
            format,
            frame_length,
        } = self;
        write!(
            f,
            "from byte {byte} on, it is {format} with frames of {frame_length} bytes"
        )
    }
}

impl Recording {
    /// Inspects the file at `path`, at this second (UTC since 1970). `frame_rate` overrides the detected rate. If the format changes within
    /// the file, describes its start.
    ///
    /// # Errors
    /// Returns an error if the path is not a file, or the file is empty or cannot be read, or times of Mark 4 contradict the given rate.
    pub fn survey(
        path: &Path,
        frame_rate: Option<FrameRate>,
        second: i64,
    ) -> Result<Recording, RecordingError> {
        Recording::open(path, &Selection::default(), frame_rate, second)
    }

    /// Inspects the file at `path` in the same way. Its first and last frames are those of the station and threads that these settings
    /// select, and it is of their year; the other settings do not matter.
    ///
    /// # Errors
    /// Returns an error if it cannot be read, does not contain what is selected, or is of another year.
    pub fn open(
        path: &Path,
        selection: &Selection,
        frame_rate: Option<FrameRate>,
        second: i64,
    ) -> Result<Recording, RecordingError> {
        let (selected, second) = (selection.part(), selection.read_at(second));
        let is_there = |recording: &Recording| match recording.format {
            _ if selected.is_all() => Ok(()),
            Format::Raw => Err(SamplesError::Raw),
            _ => selection.check(&recording.keys),
        };
        let file = open(path)?;
        let size = file.metadata().map_err(RecordingError::read(path))?.len();
        if size == 0 {
            return Err(RecordingError::Empty(path.to_owned()));
        }
        let mut rest: Option<Rest> = None;
        loop {
            let end = rest.map_or(size, |rest| rest.byte);
            let read = |length, enough| -> Result<(Start, Recording), RecordingError> {
                let start = Start::read(path, &selected, frame_rate, second, length, enough)?;
                let recording = start.recording(path, size, second);
                Ok((start, recording))
            };
            let (mut start, mut recording) = read(end.min(MAX_SURVEYED), ENOUGH)?;
            let is_part = start.read < end && start.survey.rest.is_none();
            if is_part
                && (is_there(&recording).is_err()
                    || recording.find_last(&file, &start.survey, end)?.is_none())
            {
                (start, recording) = read(end, u64::MAX)?;
            }
            if let Some(change) = start.survey.rest {
                let byte = start.leading + change.byte;
                rest = Some(Rest { byte, ..change });
                continue;
            }
            is_there(&recording).map_err(|source| RecordingError::NotThere {
                path: path.to_owned(),
                source,
            })?;
            recording.rest = rest;
            if let Some((given, found)) = start.deframer.take_other_rate() {
                let path = path.to_owned();
                let (given, found) = (given.get(), found.get());
                return Err(RecordingError::OtherRate { path, given, found });
            }
            recording.finish(&file, &start.survey, frame_rate)?;
            if let (Some(year), Some(first)) = (selection.year, recording.first)
                && !selection.is_year_of(first.second)
            {
                return Err(RecordingError::OtherYear {
                    path: path.to_owned(),
                    year,
                    begins: utc(first.second as f64),
                });
            }
            return Ok(recording);
        }
    }

    /// Adds what neither the start nor the end shows.
    fn finish(
        &mut self,
        file: &File,
        survey: &Survey,
        given: Option<FrameRate>,
    ) -> Result<(), RecordingError> {
        if self.layout.is_none() {
            let mut start = vec![0; BLOCK.min(self.size as usize)];
            let read = file.read_exact_at(&mut start, 0);
            read.map_err(RecordingError::read(&self.path))?;
            self.relative = mark4::Relative::find(&start);
        }
        let Some(first) = survey.first else {
            return Ok(());
        };
        if self.last.is_none()
            && let Some((number, last)) = survey.last
        {
            self.end_with(first, number, last);
        }
        if given.is_none()
            && self
                .layout
                .is_some_and(|layout| layout.frame_rate.is_none())
        {
            let counted = self.count_frames_of_seconds(file, first)?;
            self.frame_rate = counted.or(self.frame_rate);
        }
        Ok(())
    }

    /// Returns the offset in the file of the end of the frames that are described here.
    pub fn end(&self) -> u64 {
        self.rest.map_or(self.size, |rest| rest.byte)
    }

    /// Opens the file again to read the frames that are described here. Warns if its format changes behind them.
    pub(crate) fn blocks(&self, run: &Run) -> Result<Blocks, RecordingError> {
        self.warn_of_rest(run);
        Ok(Blocks::new(open(&self.path)?, self.end()))
    }

    /// Warns if the last frame is truncated.
    pub(crate) fn warn_of_truncation(&self, run: &Run) {
        let bytes = self.truncated_tail();
        if bytes > 0 {
            let error = RecordingError::Truncated {
                path: self.path.clone(),
                bytes,
                byte: self.end() - bytes,
            };
            run.warn(format_args!("{}", run.explain(&error)));
        }
    }

    /// Warns if the format changes behind the frames that are described here.
    pub(crate) fn warn_of_rest(&self, run: &Run) {
        if let Some(rest) = self.rest {
            let path = self.path.clone();
            let error = RecordingError::Changes { path, rest };
            run.warn(format_args!("{}", run.explain(&error)));
        }
    }

    /// Inspects the file at `path` in the same way, to read only the frames of the station and threads that these settings select.
    ///
    /// # Errors
    /// Returns an error if it cannot be read, does not contain what is selected, or if settings have no meaning for whole frames.
    pub fn select(
        path: &Path,
        selection: &Selection,
        frame_rate: Option<FrameRate>,
        second: i64,
    ) -> Result<Recording, RecordingError> {
        let selected = selection.streams();
        let selected = selected.map_err(|source| RecordingError::Selection {
            path: path.to_owned(),
            source,
        })?;
        let mut recording = Recording::open(path, selection, frame_rate, second)?;
        recording.keys.retain(|key| selected.has(Some(*key)));
        recording.selected = selected;
        Ok(recording)
    }

    /// Returns a deframer for the selected frames of the recording.
    pub fn deframer(&self, frame_rate: Option<FrameRate>) -> Deframer {
        deframer(frame_rate, self.latest, self.selected.clone())
    }

    /// Returns whether the frames of a station and thread are selected.
    pub(crate) fn has(&self, key: StreamKey) -> bool {
        self.selected.has(Some(key))
    }

    /// Returns whether only some stations and threads are selected.
    pub(crate) fn is_part(&self) -> bool {
        !self.selected.is_all()
    }

    /// Returns the number of whole frames that are described here.
    pub fn frames(&self) -> u64 {
        self.frame_length
            .map_or(0, |length| (self.end() - self.leading) / length as u64)
    }

    /// Returns the number of bytes of these frames, or of raw data.
    pub fn length(&self) -> u64 {
        self.frame_length
            .map_or(self.size, |length| self.frames() * length as u64)
    }

    /// Returns the number of bytes after the last of these frames, without those of another format.
    pub(crate) fn truncated_tail(&self) -> u64 {
        self.frame_length
            .map_or(0, |length| (self.end() - self.leading) % length as u64)
    }

    /// Returns the frames of each thread from the first to the last: the time by which a repeat is shifted.
    pub(crate) fn span_frames(&self) -> Option<i64> {
        let rate = self.frame_rate?;
        Some(self.last?.index(rate) - self.first?.index(rate) + 1)
    }

    /// Returns the bit rate of the data in real time; `None` if the frame rate is unknown.
    pub fn rate(&self) -> Option<BitRate> {
        stream_rate(self.frame_rate?, self.keys.len(), self.frame_length?)
    }

    /// Returns the length of a header in bytes; `None` for raw data.
    pub fn header_length(&self) -> Option<usize> {
        self.layout.map(|layout| layout.header_length)
    }

    /// Returns an undamaged header of Mark 4; of another format, as many bytes without content.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut header = vec![0; self.header_length().unwrap_or(0)];
        if let Some(first) = &self.mark4 {
            first.emit(&mut header);
        }
        header
    }

    /// Finds the last frame of the first frame's thread before the byte `end`; among as many frames as there are threads, unless some are
    /// damaged. `None` if it is not where frames of one length end.
    fn find_last(
        &mut self,
        file: &File,
        survey: &Survey,
        end: u64,
    ) -> Result<Option<()>, RecordingError> {
        let (Some(first), Some(length)) = (survey.first, self.frame_length) else {
            return Ok(Some(()));
        };
        let count = FROM_END.max(4 * self.keys.len());
        let frames = (end - self.leading) / length as u64;
        let numbers = (first.number..frames).rev().take(count);
        let Some(found) = self.time_among(file, first, numbers)? else {
            return Ok(None);
        };
        let from = found.0.saturating_sub(LEAD * self.keys.len() as u64);
        let (number, last) = match found.0 + 1 < frames {
            true => self.last_behind(first, from, end)?.unwrap_or(found),
            false => found,
        };
        self.end_with(first, number, last);
        Ok(Some(()))
    }

    /// Returns the last frame of the first frame's thread behind a frame, if there are only frames: one with a damaged header counts as long
    /// as its place shows its time.
    fn last_behind(
        &self,
        first: First,
        number: u64,
        end: u64,
    ) -> Result<Option<(u64, FrameTime)>, RecordingError> {
        let length = self.frame_length.unwrap_or(1) as u64;
        let start = self.leading + number * length;
        let mut survey = Survey::of(Selected::of(first.key));
        let mut deframer = deframer(self.frame_rate, self.latest, Selected::default());
        let mut blocks = Blocks::from(open(&self.path)?, start, end)?;
        blocks.walk(&mut deframer, |chunk| survey.note(chunk))?;
        let is_whole = blocks.leading() == Some(start) && deframer.counts().slips == 0;
        let last = survey.last.filter(|_| is_whole && survey.rest.is_none());
        Ok(last.map(|(behind, time)| (number + behind, time)))
    }

    /// Takes the last frame of the first frame's thread.
    fn end_with(&mut self, first: First, number: u64, last: FrameTime) {
        self.last = Some(last);
        if self.frame_rate.is_none() {
            let distance = number - first.number;
            self.frame_rate = rate_between(first.time, last, distance, self.keys.len());
        }
    }

    /// Returns the time of the first among some frames that is of the first frame's thread.
    fn time_among(
        &self,
        file: &File,
        first: First,
        numbers: impl Iterator<Item = u64>,
    ) -> Result<Option<(u64, FrameTime)>, RecordingError> {
        for number in numbers {
            let header = self.header_of(file, number)?;
            if let Some((_, time)) = header.filter(|(key, _)| *key == first.key) {
                return Ok(Some((number, time)));
            }
        }
        Ok(None)
    }

    /// Returns the offset in the file of a frame `margin` frames of each thread before the first one at `time` or later. Returns the start
    /// of the file if that is close; `None` if damaged frames, wrong times or a wrong order hide the place.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn offset_of(&self, time: FrameTime, margin: u64) -> Result<Option<u64>, RecordingError> {
        let (Some(length), Some(first)) = (self.frame_length, self.first) else {
            return Ok(None);
        };
        if time <= first {
            return Ok(Some(0));
        }
        let file = open(&self.path)?;
        // `None` if the frame shows no time.
        let lies_before = |number: u64| -> Result<Option<bool>, RecordingError> {
            let read = self.header_of(&file, number)?;
            let ours = read.filter(|(key, _)| self.keys.contains(key));
            Ok(ours.map(|(_, there)| there < time))
        };
        let (mut before, mut behind) = (0, self.frames());
        while behind - before > 1 {
            let middle = before + (behind - before) / 2;
            match lies_before(middle)? {
                Some(true) => before = middle,
                Some(false) => behind = middle,
                None => return Ok(None),
            }
        }
        let margin = margin * self.keys.len().max(1) as u64;
        let number = before.saturating_sub(margin);
        // One wrong time can mislead the search: check a sample of the frames that would be skipped.
        let checked = MAX_CHECKED.min(before + 1);
        for step in 0..checked {
            let near = before - step * (before - number) / checked;
            let far = number - step * number / checked;
            for place in [near, far] {
                if lies_before(place)? == Some(false) {
                    return Ok(None);
                }
            }
        }
        Ok(Some(match number {
            0 => 0,
            number => self.leading + number * length as u64,
        }))
    }

    /// Returns station, thread and time of a frame of the file; `None` if its header has no time of the recording.
    fn header_of(
        &self,
        file: &File,
        number: u64,
    ) -> Result<Option<(StreamKey, FrameTime)>, RecordingError> {
        let Some(layout) = self.layout else {
            return Ok(None);
        };
        let mut bytes = vec![0; layout.header_length];
        let at = self.leading + number * layout.frame_length as u64;
        file.read_exact_at(&mut bytes, at)
            .map_err(RecordingError::read(&self.path))?;
        let stamp = layout.stamp(&bytes, self.latest);
        // Frames marked invalid may have any time.
        let ours = stamp.filter(|stamp| {
            !stamp.is_invalid
                || (self.first).is_none_or(|first| is_near(first, stamp.time, self.frames()))
        });
        Ok(ours.map(|stamp| (stamp.key, stamp.time)))
    }
}

/// Frames of a recording that have no place in an output.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut {
    /// Number of these frames.
    pub frames: u64,
    /// Offset of the first one in the recording.
    first: Option<u64>,
}

impl LeftOut {
    /// Counts a frame at this offset of the recording.
    pub fn add(&mut self, at: u64) {
        self.frames += 1;
        self.first.get_or_insert(at);
    }

    /// Warns of these frames.
    pub fn warn(&self, recording: &Recording, run: &Run) {
        if let Some(byte) = self.first {
            let error = RecordingError::LeftOut {
                path: recording.path.clone(),
                frames: self.frames,
                byte,
            };
            run.warn(format_args!("{}", run.explain(&error)));
        }
    }
}

/// Returns whether frames of one recording of `frames` frames can have these times.
fn is_near(first: FrameTime, other: FrameTime, frames: u64) -> bool {
    other.second.abs_diff(first.second) <= MAX_APART.max(frames)
}

/// Returns the frame rate from two frames of a thread, `distance` frames of the stream apart, if none is missing between them.
fn rate_between(
    first: FrameTime,
    last: FrameTime,
    distance: u64,
    threads: usize,
) -> Option<FrameRate> {
    let threads = threads.max(1) as u64;
    let seconds = last.second.checked_sub(first.second)?;
    let cycles = i64::try_from(distance / threads).ok()?;
    let frames = cycles - i64::from(last.frame) + i64::from(first.frame);
    let whole = seconds > 0 && distance.is_multiple_of(threads) && frames % seconds == 0;
    let rate = u32::try_from(frames.checked_div(seconds)?).ok()?;
    FrameRate::new(rate).filter(|_| whole && rate > last.frame.max(first.frame))
}

/// Returns the bit rate of `threads` threads of `frame_rate` frames of `frame_length` bytes per second.
pub(crate) fn stream_rate(
    frame_rate: FrameRate,
    threads: usize,
    frame_length: usize,
) -> Option<BitRate> {
    let bits = (frame_length as u64).checked_mul(8)?;
    let frames = u64::from(frame_rate.get()).checked_mul(threads.max(1) as u64)?;
    BitRate::new(frames.checked_mul(bits)?)
}

fn deframer(frame_rate: Option<FrameRate>, latest: i64, selected: Selected) -> Deframer {
    Deframer::new(Settings {
        frame_rate,
        latest,
        selected,
        hold: HOLD,
        ..Settings::default()
    })
}

/// Opens a recording for reading.
///
/// # Errors
/// Returns an error if the path is not a file, or the file cannot be opened.
pub fn open(path: &Path) -> Result<File, RecordingError> {
    let file = File::open(path).map_err(|source| RecordingError::Open {
        path: path.to_owned(),
        source,
    })?;
    let kind = file
        .metadata()
        .map_err(RecordingError::read(path))?
        .file_type();
    let what = match () {
        () if kind.is_file() => return Ok(file),
        () if kind.is_dir() => "a directory",
        () => "a device or a pipe, not a file",
    };
    let path = path.to_owned();
    Err(RecordingError::NoFile { path, what })
}

/// Reader of a file in large blocks; it keeps the bytes that a deframer leaves for the next step.
pub struct Blocks {
    file: File,
    left: u64,
    buffer: Vec<u8>,
    filled: usize,
    /// Offset of the buffer in the file.
    offset: u64,
    /// Offset in the file of the first byte passed on.
    leading: Option<u64>,
}

impl Blocks {
    /// Starts at an offset of a file of `size` bytes.
    ///
    /// # Errors
    /// Returns an error if the file cannot seek.
    pub fn from(mut file: File, offset: u64, size: u64) -> Result<Blocks, RecordingError> {
        file.seek(SeekFrom::Start(offset))
            .map_err(RecordingError::read_on)?;
        Ok(Blocks::at(file, offset, size))
    }

    /// Starts at an offset of a file of `size` bytes, of which `rest` holds the bytes from there on.
    pub fn at(rest: File, offset: u64, size: u64) -> Blocks {
        let mut blocks = Blocks::new(rest, size.saturating_sub(offset));
        blocks.offset = offset;
        blocks
    }

    /// Reads the first `length` bytes of `file`.
    pub fn new(file: File, length: u64) -> Blocks {
        Blocks {
            file,
            left: length,
            buffer: Vec::new(),
            filled: 0,
            offset: 0,
            leading: None,
        }
    }

    /// Walks all frames; `sink` receives them in pieces.
    ///
    /// # Errors
    /// Returns an error if reading fails.
    pub fn walk(
        &mut self,
        deframer: &mut Deframer,
        mut sink: impl FnMut(Chunk<'_>),
    ) -> Result<(), RecordingError> {
        while self.step(deframer, &mut sink)? {}
        Ok(())
    }

    /// Reads one block and walks its frames; returns whether there is more.
    ///
    /// # Errors
    /// See [`Blocks::walk`].
    pub fn step(
        &mut self,
        deframer: &mut Deframer,
        mut sink: impl FnMut(Chunk<'_>),
    ) -> Result<bool, RecordingError> {
        self.step_at(deframer, |chunk, _| sink(chunk))
    }

    /// Reads one block in the same way; `sink` also receives the offset of each piece in the file.
    pub(crate) fn step_at(
        &mut self,
        deframer: &mut Deframer,
        mut sink: impl FnMut(Chunk<'_>, u64),
    ) -> Result<bool, RecordingError> {
        if self.left == 0 {
            return Ok(false);
        }
        self.read()?;
        let bytes = &self.buffer[..self.filled];
        let (offset, leading) = (self.offset, &mut self.leading);
        let taken = deframer.walk(bytes, self.left == 0, &mut |chunk: Chunk<'_>| {
            // A walk passes on slices of the buffer.
            let place = chunk.bytes.as_ptr() as usize - bytes.as_ptr() as usize;
            let at = offset + place as u64;
            leading.get_or_insert(at);
            sink(chunk, at);
        });
        self.buffer.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        self.offset += taken as u64;
        Ok(self.left > 0)
    }

    /// Returns the number of bytes before the first one passed on; `None` if none was passed on yet.
    pub fn leading(&self) -> Option<u64> {
        self.leading
    }

    /// Returns the number of bytes walked.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn read(&mut self) -> Result<(), RecordingError> {
        // Blocks end at the same places of the file, wherever its reading starts.
        let begun = ((self.offset + self.filled as u64) % BLOCK as u64) as usize;
        let wanted = usize::try_from(self.left).unwrap_or(BLOCK);
        let wanted = wanted.min(BLOCK - begun);
        if self.buffer.len() < self.filled + wanted {
            self.buffer.resize(self.filled + wanted, 0);
        }
        let place = &mut self.buffer[self.filled..self.filled + wanted];
        let read = match self.file.read(place) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            read => read.map_err(RecordingError::read_on)?,
        };
        self.filled += read;
        self.left = match read {
            0 => 0,
            read => self.left - read as u64,
        };
        Ok(())
    }
}

/// Returns the path of a recording's result: `OUT.vdif.result.json`.
pub fn result_beside(recording: &Path) -> PathBuf {
    recording.with_added_extension("result.json")
}

/// Returns the default path of a recording's gaps file: `OUT.vdif.gaps.json`.
pub fn gaps_beside(recording: &Path) -> PathBuf {
    recording.with_added_extension("gaps.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(first: (i64, u32), last: (i64, u32), distance: u64, threads: usize) -> Option<u32> {
        let time = |(second, frame)| FrameTime { second, frame };
        rate_between(time(first), time(last), distance, threads).map(FrameRate::get)
    }

    #[test]
    fn two_frames_give_the_rate() {
        assert_eq!(rate((10, 3), (12, 5), 202, 1), Some(100));
        assert_eq!(rate((10, 3), (12, 5), 404, 2), Some(100));
        assert_eq!(rate((10, 99), (11, 0), 1, 1), Some(100));
    }

    #[test]
    fn inconsistent_frames_give_no_rate() {
        // No second ends; a frame is missing; frames of different threads; back in time; any distance.
        assert_eq!(rate((10, 3), (10, 9), 6, 1), None);
        assert_eq!(rate((10, 3), (12, 5), 201, 1), None);
        assert_eq!(rate((10, 3), (12, 5), 403, 2), None);
        assert_eq!(rate((12, 5), (10, 3), 202, 1), None);
        assert_eq!(rate((10, 0), (11, 99), 100, 1), None);
        assert_eq!(rate((i64::MIN, 0), (i64::MAX, 0), u64::MAX, 0), None);
    }

    #[test]
    fn a_rate_beyond_all_bounds_is_none() {
        let fast = FrameRate::new(u32::MAX).unwrap();
        assert_eq!(stream_rate(fast, usize::MAX, usize::MAX), None);
        let rate = FrameRate::new(25_600).unwrap();
        assert_eq!(
            stream_rate(rate, 2, 5032).unwrap().get(),
            2 * 25_600 * 5032 * 8
        );
    }
}
