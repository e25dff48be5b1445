//! What a recording is, found out by reading as little of it as that takes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use evlbi_core::deframe::{Chunk, Deframer, Format, Settings};
use evlbi_core::pace::ByTime;
use evlbi_core::rate::BitRate;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, Shape, StreamKey};

/// Bytes read at a time.
pub const BLOCK: usize = 8 << 20;
/// Bytes at the beginning of the file that are read to learn its threads and frame rate.
const SURVEYED: u64 = 256 << 20;

/// What was found out about a recording.
#[derive(Clone, Debug)]
pub struct Recording {
    pub path: PathBuf,
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
}

impl Recording {
    /// Looks into the file at `path`. `frame_rate` is what the user says; else it is found out.
    pub fn survey(path: &Path, frame_rate: Option<FrameRate>) -> Result<Recording> {
        let file = open(path)?;
        let size = file.metadata()?.len();
        if size == 0 {
            bail!("{} is empty", path.display());
        }
        let mut survey = Survey::default();
        let mut deframer = Deframer::new(Settings {
            frame_rate,
            reference: now(),
            ..Settings::default()
        });
        let mut blocks = Blocks::new(file, SURVEYED.min(size));
        blocks.walk(&mut deframer, |chunk| survey.note(chunk))?;
        let layout = deframer.layout();
        let mut recording = Recording {
            path: path.to_path_buf(),
            format: deframer.format().unwrap_or(Format::Raw),
            size,
            leading: 0,
            frame_length: layout.map(|layout| layout.frame_length),
            shape: None,
            keys: survey.keys,
            frame_rate: deframer.frame_rate(),
            first: survey.first,
            last: None,
        };
        if layout.is_some() {
            let handed_over = deframer.counts().bytes;
            recording.leading = match size <= SURVEYED {
                true => deframer.counts().trimmed_bytes.min(size - handed_over),
                false => 0,
            };
            recording.look_at_ends(blocks.file_mut())?;
        }
        Ok(recording)
    }

    /// Whole frames in the file.
    pub fn frames(&self) -> u64 {
        match self.frame_length {
            Some(length) => (self.size - self.leading) / length as u64,
            None => 0,
        }
    }

    /// Bytes after the last whole frame.
    pub fn truncated_tail(&self) -> u64 {
        match self.frame_length {
            Some(length) => (self.size - self.leading) % length as u64,
            None => 0,
        }
    }

    /// Frames of each thread from the first to the last, the distance by which a repeat is moved on.
    pub fn span_frames(&self) -> Option<i64> {
        let rate = self.frame_rate?;
        Some(self.last?.index(rate) - self.first?.index(rate) + 1)
    }

    /// Bit rate of the data in real time.
    pub fn rate(&self) -> Option<BitRate> {
        stream_rate(self.frame_rate?, self.keys.len(), self.frame_length?)
    }

    fn look_at_ends(&mut self, file: &mut File) -> Result<()> {
        if self.format != Format::Vdif {
            return Ok(());
        }
        let length = self.frame_length.unwrap_or(1) as u64;
        let header_at = |number: u64| -> Result<Option<Header>> {
            let mut bytes = [0; 32];
            file.read_exact_at(&mut bytes, self.leading + number * length)?;
            Ok(Header::parse(&bytes).ok())
        };
        let frames = self.frames();
        let Some(first) = header_at(0)? else {
            return Ok(());
        };
        self.shape = Some(first.shape());
        // The last frame of the first one's thread: among as many as there are threads, unless damaged.
        for number in (0..frames).rev().take(4 * self.keys.len().max(1)) {
            let Some(last) = header_at(number)? else {
                continue;
            };
            if last.key() == first.key() {
                self.last = Some(last.time());
                if self.frame_rate.is_none() {
                    self.frame_rate = rate_between(&first, &last, number, self.keys.len());
                }
                break;
            }
        }
        Ok(())
    }
}

/// The frame rate that two frames of a thread tell, `distance` frames of the stream apart, if nothing is
/// missing between them.
fn rate_between(first: &Header, last: &Header, distance: u64, threads: usize) -> Option<FrameRate> {
    let seconds = last.time().second.checked_sub(first.time().second)?;
    let cycles = i64::try_from(distance / threads.max(1) as u64).ok()?;
    let frames = cycles - i64::from(last.time().frame) + i64::from(first.time().frame);
    let whole =
        seconds > 0 && distance.is_multiple_of(threads.max(1) as u64) && frames % seconds == 0;
    let rate = u32::try_from(frames.checked_div(seconds)?).ok()?;
    let highest = last.time().frame.max(first.time().frame);
    FrameRate::new(rate).filter(|_| whole && rate > highest)
}

/// Bit rate of `threads` threads of `frame_rate` frames of `frame_length` bytes per second.
pub fn stream_rate(frame_rate: FrameRate, threads: usize, frame_length: usize) -> Option<BitRate> {
    BitRate::new(u64::from(frame_rate.get()) * threads.max(1) as u64 * frame_length as u64 * 8)
}

/// The schedule of a recording that is sent in real time.
pub fn by_time(frame_rate: FrameRate, keys: &[StreamKey]) -> ByTime {
    ByTime::new(frame_rate, keys.len())
}

#[derive(Default)]
struct Survey {
    keys: Vec<StreamKey>,
    first: Option<FrameTime>,
}

impl Survey {
    fn note(&mut self, chunk: Chunk<'_>) {
        for frame in chunk.frames {
            if self.first.is_none() {
                self.first = frame.time;
            }
            if let Some(key) = frame.key
                && !self.keys.contains(&key)
            {
                self.keys.push(key);
            }
        }
    }
}

/// Opens a recording for reading.
pub fn open(path: &Path) -> Result<File> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    if file.metadata()?.is_dir() {
        bail!("{} is a directory; give a recording", path.display());
    }
    Ok(file)
}

/// Reads a file in large blocks and keeps what a deframer leaves for the next.
pub struct Blocks {
    file: File,
    left: u64,
    buffer: Vec<u8>,
    filled: usize,
}

impl Blocks {
    /// The first `length` bytes of `file`.
    pub fn new(file: File, length: u64) -> Blocks {
        Blocks {
            file,
            left: length,
            buffer: Vec::new(),
            filled: 0,
        }
    }

    /// Walks all frames; `sink` sees them in pieces.
    pub fn walk(&mut self, deframer: &mut Deframer, mut sink: impl FnMut(Chunk<'_>)) -> Result<()> {
        while self.left > 0 {
            self.read()?;
            let taken = deframer.walk(&self.buffer[..self.filled], self.left == 0, &mut sink);
            self.buffer.copy_within(taken..self.filled, 0);
            self.filled -= taken;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let wanted = usize::try_from(self.left).unwrap_or(BLOCK).min(BLOCK);
        if self.buffer.len() < self.filled + wanted {
            self.buffer.resize(self.filled + wanted, 0);
        }
        let read = self
            .file
            .read(&mut self.buffer[self.filled..self.filled + wanted])
            .context("cannot read the recording")?;
        self.filled += read;
        self.left = if read == 0 {
            0
        } else {
            self.left - read as u64
        };
        Ok(())
    }

    fn file_mut(&mut self) -> &mut File {
        let _ = self.file.seek(SeekFrom::Start(0));
        &mut self.file
    }
}

/// UTC seconds since 1970, to tell which thousand days a Mark 5B header means.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}
