//! What a recording is, found out by reading as little of it as that takes.
//!
//! Here belongs a further kind of recording, or of recordings that belong together.

mod turns;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use evlbi_core::deframe::{Chunk, Deframer, Format, FrameState, Settings};
use evlbi_core::rate::BitRate;
use evlbi_wire::mark5b;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{self, Header, Shape, StreamKey};
use thiserror::Error;

/// Bytes read at a time.
pub(crate) const BLOCK: usize = 1 << 20;
/// Bytes at the beginning of the file that are read at most to learn its threads and frame rate,
const SURVEYED: u64 = 256 << 20;
/// and that are enough to learn its threads if the headers tell the rate.
const ENOUGH: u64 = 16 << 20;

/// Frames at the end of the file that are looked at for the last one of the first one's thread.
const LOOKED_AT: usize = 1024;
/// Frames of one recording lie no more seconds apart than this, or than there are frames.
const MAX_APART: u64 = 86_400;

/// Frames that are looked at to see whether a part of a recording may be skipped.
const CHECKED: u64 = 64;

/// Bytes that are read at most before a file is taken for raw data: three frames of 16 MiB fit.
const HOLD: usize = 50 << 20;

/// Why a recording cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The path names no file.
    #[error("{} is {what}; give a recording", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What it names instead.
        what: &'static str,
    },
    /// There is nothing in the file.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    /// What is in the file cannot be read.
    #[error("cannot read {what}")]
    Read {
        /// The path, where that is known.
        what: String,
        /// What the system says.
        source: io::Error,
    },
}

impl RecordingError {
    /// Of the file at `path`, which cannot be read any further.
    pub(crate) fn read(path: &Path) -> impl Fn(io::Error) -> RecordingError {
        move |source| RecordingError::Read {
            what: path.display().to_string(),
            source,
        }
    }

    /// Of a file whose path is not known.
    fn read_on(source: io::Error) -> RecordingError {
        let what = "the recording".to_owned();
        RecordingError::Read { what, source }
    }
}

/// What was found out about a recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Where the file is.
    pub path: PathBuf,
    /// Which frames it holds, if any.
    pub format: Format,
    /// Length of the file in bytes.
    pub size: u64,
    /// Bytes before the first whole frame.
    pub leading: u64,
    /// Length of a frame in bytes; none where the data is raw.
    pub frame_length: Option<usize>,
    /// Shape of the samples, in VDIF.
    pub shape: Option<Shape>,
    /// Stations and threads in the order in which they first appear.
    pub keys: Vec<StreamKey>,
    /// Frames per second of each thread, where that could be told.
    pub frame_rate: Option<FrameRate>,
    /// Time of the first frame of the first thread.
    pub first: Option<FrameTime>,
    /// Time of the last frame of that thread.
    pub last: Option<FrameTime>,
    /// The headers of Mark 5B repeat every 1000 days: they mean a time within 500 days of this UTC second.
    reference: i64,
}

/// How long before now the middle of those 1000 days lies, in seconds: recordings are of the past, but for clocks that differ.
const BEFORE: i64 = 498 * 86_400;

impl Recording {
    /// Looks into the file at `path`, at this second (UTC since 1970). `frame_rate` is what the user says; else it is found out.
    ///
    /// # Errors
    /// When it is no file with anything in it, or cannot be read.
    pub fn survey(
        path: &Path,
        frame_rate: Option<FrameRate>,
        second: i64,
    ) -> Result<Recording, RecordingError> {
        let file = open(path)?;
        let size = file.metadata().map_err(RecordingError::read(path))?.len();
        if size == 0 {
            return Err(RecordingError::Empty(path.to_owned()));
        }
        let mut survey = Survey::default();
        let reference = second - BEFORE;
        let mut deframer = deframer(frame_rate, reference);
        let mut blocks = Blocks::new(file, SURVEYED.min(size));
        while blocks.step(&mut deframer, |chunk| survey.note(chunk))? {
            if blocks.offset() >= ENOUGH && deframer.frame_rate().is_some() {
                break;
            }
        }
        let layout = deframer.layout();
        let mut recording = Recording {
            path: path.to_path_buf(),
            format: deframer.format().unwrap_or(Format::Raw),
            size,
            leading: blocks.leading().unwrap_or(0),
            frame_length: layout.map(|layout| layout.frame_length),
            shape: survey.shape,
            keys: survey.keys,
            frame_rate: deframer.frame_rate(),
            first: survey.first.map(|first| first.time),
            last: None,
            reference,
        };
        if let Some(first) = survey.first {
            recording.look_at_end(&blocks.file, first)?;
            if frame_rate.is_none() {
                let counted = recording.count_frames_of_seconds(&blocks.file, first)?;
                recording.frame_rate = counted.or(recording.frame_rate);
            }
        }
        Ok(recording)
    }

    /// Returns a deframer for it.
    pub fn deframer(&self, frame_rate: Option<FrameRate>) -> Deframer {
        deframer(frame_rate, self.reference)
    }

    /// Counts the whole frames in the file.
    pub fn frames(&self) -> u64 {
        self.frame_length
            .map_or(0, |length| (self.size - self.leading) / length as u64)
    }

    /// Returns the bytes of whole frames, or of raw data.
    pub fn length(&self) -> u64 {
        self.frame_length
            .map_or(self.size, |length| self.frames() * length as u64)
    }

    /// Bytes after the last whole frame.
    pub(crate) fn truncated_tail(&self) -> u64 {
        self.frame_length
            .map_or(0, |length| (self.size - self.leading) % length as u64)
    }

    /// Returns the frames of each thread from the first to the last, the distance by which a repeat is moved on.
    pub(crate) fn span_frames(&self) -> Option<i64> {
        let rate = self.frame_rate?;
        Some(self.last?.index(rate) - self.first?.index(rate) + 1)
    }

    /// Returns the bit rate of the data in real time; none where no frame rate is known.
    pub fn rate(&self) -> Option<BitRate> {
        stream_rate(self.frame_rate?, self.keys.len(), self.frame_length?)
    }

    /// Returns the length of a header in bytes; none where the data is raw.
    pub fn header_length(&self) -> Option<usize> {
        match self.format {
            Format::Vdif => Some(
                self.shape
                    .map_or(vdif::HEADER_LEN, |shape| shape.header_length()),
            ),
            Format::Mark5b => Some(mark5b::HEADER_LEN),
            Format::Raw => None,
        }
    }

    /// Finds the last frame of the first one's thread: among as many as there are threads, unless damaged.
    fn look_at_end(&mut self, file: &File, first: First) -> Result<(), RecordingError> {
        let looked_at = LOOKED_AT.max(4 * self.keys.len());
        let numbers = (first.number..self.frames()).rev().take(looked_at);
        let Some((number, last)) = self.time_among(file, first, numbers)? else {
            return Ok(());
        };
        self.last = Some(last);
        if self.frame_rate.is_none() {
            let distance = number - first.number;
            self.frame_rate = rate_between(first.time, last, distance, self.keys.len());
        }
        Ok(())
    }

    /// The first frame of the first one's thread among some.
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

    /// Returns the offset in the file of a frame that lies `margin` frames of each thread before the first one at `time` or later:
    /// the beginning, where that is near, or damaged frames, wrong times or a wrong order hide it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn offset_of(&self, time: FrameTime, margin: u64) -> Result<u64, RecordingError> {
        let (Some(length), Some(first)) = (self.frame_length, self.first) else {
            return Ok(0);
        };
        if time <= first {
            return Ok(0);
        }
        let file = open(&self.path)?;
        // None where the frame tells nothing.
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
                None => return Ok(0),
            }
        }
        let margin = margin * self.keys.len().max(1) as u64;
        let number = before.saturating_sub(margin);
        // One wrong time may have led astray: what is skipped must lie before, as far as some of it tells.
        let looked_at = CHECKED.min(before + 1);
        for step in 0..looked_at {
            let near = before - step * (before - number) / looked_at;
            let far = number - step * number / looked_at;
            for place in [near, far] {
                if lies_before(place)? == Some(false) {
                    return Ok(0);
                }
            }
        }
        Ok(match number {
            0 => 0,
            number => self.leading + number * length as u64,
        })
    }

    /// Station, thread and time of a frame of the file; none where its header tells no time of the recording.
    fn header_of(
        &self,
        file: &File,
        number: u64,
    ) -> Result<Option<(StreamKey, FrameTime)>, RecordingError> {
        let mut bytes = [0; vdif::HEADER_LEN];
        let at = self.leading + number * self.frame_length.unwrap_or(1) as u64;
        file.read_exact_at(&mut bytes, at)
            .map_err(RecordingError::read(&self.path))?;
        Ok(self.read_header(&bytes))
    }

    fn read_header(&self, bytes: &[u8]) -> Option<(StreamKey, FrameTime)> {
        match self.format {
            Format::Vdif => {
                let header = Header::parse(bytes).ok()?;
                let time = header.time();
                let like_us = Some(header.frame_length()) == self.frame_length;
                // Frames that are marked invalid may have any time. Those of one recording lie no further apart than that.
                let is_ours = !header.is_invalid()
                    || self.first.is_none_or(|first| {
                        time.second.abs_diff(first.second) <= MAX_APART.max(self.frames())
                    });
                (like_us && is_ours).then(|| (header.key(), time))
            }
            Format::Mark5b => {
                let time = mark5b::Header::parse(bytes)
                    .ok()?
                    .time(self.reference)
                    .ok()?;
                Some((StreamKey::default(), time))
            }
            Format::Raw => None,
        }
    }
}

/// The frame rate that two frames of a thread tell, `distance` frames of the stream apart, if nothing is
/// missing between them.
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

/// Bit rate of `threads` threads of `frame_rate` frames of `frame_length` bytes per second.
pub(crate) fn stream_rate(
    frame_rate: FrameRate,
    threads: usize,
    frame_length: usize,
) -> Option<BitRate> {
    let bits = (frame_length as u64).checked_mul(8)?;
    let frames = u64::from(frame_rate.get()).checked_mul(threads.max(1) as u64)?;
    BitRate::new(frames.checked_mul(bits)?)
}

fn deframer(frame_rate: Option<FrameRate>, reference: i64) -> Deframer {
    Deframer::new(Settings {
        frame_rate,
        reference,
        hold: HOLD,
        ..Settings::default()
    })
}

#[derive(Default)]
struct Survey {
    keys: Vec<StreamKey>,
    seen: HashSet<StreamKey>,
    shape: Option<Shape>,
    first: Option<First>,
    /// A frame was there that is not marked invalid.
    has_valid: bool,
    frames: u64,
}

/// The first frame that can be believed.
#[derive(Clone, Copy)]
struct First {
    number: u64,
    key: StreamKey,
    time: FrameTime,
    /// The frame rate that its header tells.
    told: Option<FrameRate>,
}

impl Survey {
    fn note(&mut self, chunk: Chunk<'_>) {
        for frame in chunk.frames {
            if let (Some(key), Some(time)) = (frame.key, frame.time) {
                // Of those that are marked invalid the header may be wrong.
                let is_better = frame.state == FrameState::Whole && !self.has_valid;
                if self.first.is_none() || is_better {
                    let header = Header::parse(&chunk.bytes[frame.bytes.clone()]).ok();
                    let told = header.and_then(|header| header.frame_rate());
                    self.shape = header.map(|header| header.shape());
                    let first = First {
                        number: self.frames,
                        key,
                        time,
                        told,
                    };
                    self.first.get_or_insert(first).told = told;
                    self.has_valid = is_better;
                }
                if self.seen.insert(key) {
                    self.keys.push(key);
                }
            }
            self.frames += 1;
        }
    }
}

/// Opens a recording for reading.
///
/// # Errors
/// When there is no file, or it may not be read.
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
        () => "no file but a device or a pipe",
    };
    let path = path.to_owned();
    Err(RecordingError::NoFile { path, what })
}

/// Reads a file in large blocks and keeps what a deframer leaves for the next.
pub struct Blocks {
    file: File,
    left: u64,
    buffer: Vec<u8>,
    filled: usize,
    /// Offset of the buffer in the file.
    offset: u64,
    /// Offset in the file of what was handed over first.
    leading: Option<u64>,
}

impl Blocks {
    /// Begins at an offset of a file of `size` bytes.
    ///
    /// # Errors
    /// When the file has no places to go to.
    pub fn from(mut file: File, offset: u64, size: u64) -> Result<Blocks, RecordingError> {
        file.seek(SeekFrom::Start(offset))
            .map_err(RecordingError::read_on)?;
        let mut blocks = Blocks::new(file, size.saturating_sub(offset));
        blocks.offset = offset;
        Ok(blocks)
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

    /// Walks all frames; `sink` sees them in pieces.
    ///
    /// # Errors
    /// When the file cannot be read any further.
    pub fn walk(
        &mut self,
        deframer: &mut Deframer,
        mut sink: impl FnMut(Chunk<'_>),
    ) -> Result<(), RecordingError> {
        while self.step(deframer, &mut sink)? {}
        Ok(())
    }

    /// Reads one block and walks its frames; says whether there is more.
    ///
    /// # Errors
    /// As [`Blocks::walk`].
    pub fn step(
        &mut self,
        deframer: &mut Deframer,
        mut sink: impl FnMut(Chunk<'_>),
    ) -> Result<bool, RecordingError> {
        if self.left == 0 {
            return Ok(false);
        }
        self.read()?;
        let bytes = &self.buffer[..self.filled];
        let (offset, leading) = (self.offset, &mut self.leading);
        let taken = deframer.walk(bytes, self.left == 0, &mut |chunk: Chunk<'_>| {
            // What a walk hands over lies in the buffer.
            let place = chunk.bytes.as_ptr() as usize - bytes.as_ptr() as usize;
            leading.get_or_insert(offset + place as u64);
            sink(chunk);
        });
        self.buffer.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        self.offset += taken as u64;
        Ok(self.left > 0)
    }

    /// Returns the bytes of the file before what was handed over first; none as long as nothing was.
    pub fn leading(&self) -> Option<u64> {
        self.leading
    }

    /// Returns the bytes of the file that were walked.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn read(&mut self) -> Result<(), RecordingError> {
        let wanted = usize::try_from(self.left).unwrap_or(BLOCK).min(BLOCK);
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

/// Says where the result of a recording is written: `OUT.vdif.result.json`.
pub fn result_beside(recording: &Path) -> PathBuf {
    recording.with_added_extension("result.json")
}

/// Says where the gaps of a recording are written when nothing else is said: `OUT.vdif.gaps.json`.
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
    fn two_frames_tell_the_rate() {
        assert_eq!(rate((10, 3), (12, 5), 202, 1), Some(100));
        assert_eq!(rate((10, 3), (12, 5), 404, 2), Some(100));
        assert_eq!(rate((10, 99), (11, 0), 1, 1), Some(100));
    }

    #[test]
    fn frames_that_do_not_fit_tell_none() {
        // No second ends; one is missing; frames of different threads; back in time; at any distance.
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
