//! Reads a recording for the correlator: frame by frame into a track, with the gaps of its gaps file.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use evlbi_core::deframe::{Chunk, Deframer, Format};
use evlbi_fx::track::{Counts, Layout, LayoutError, Slab, Track, Trust};
use evlbi_stream::recording::{self, Blocks, Recording, gaps_beside};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Gaps, TimeGap};
use evlbi_wire::vdif::{self, Header};

use super::arrived::arrived;
use super::files::{FileError, read_text};
use super::options::Flag;
use super::plan::Shape;
use super::run::Station;
use super::tamper::{Tamper, Tampered};
use super::{Cause, CorrelateError};

/// Number of frames at or after the end of a range that show that the range is complete: frames may be out of order by about as many.
const MARGIN: usize = 8;

/// Reasons why a recording cannot be correlated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// Reading the recording failed.
    #[error("{0}")]
    Read(#[source] Cause),
    /// The recording is not suitable; the text is the reason, with the path.
    #[error("{0}")]
    Unfit(String),
    /// Neither the headers nor the options contain the sample rate.
    #[error("the sample rate of {} is unknown", .0.display())]
    NoRate(PathBuf),
    /// The frames do not fit the sample rate.
    #[error("{}", path.display())]
    Rate {
        /// Path of the recording.
        path: PathBuf,
        /// Reason.
        source: RateError,
    },
    /// The coding of the samples is unknown.
    #[error("cannot decode {}", path.display())]
    Layout {
        /// Path of the recording.
        path: PathBuf,
        /// The unknown feature of its headers.
        source: LayoutError,
    },
    /// The gaps file cannot be read.
    #[error("{0}")]
    Gaps(#[from] FileError),
    /// The gaps file is damaged.
    #[error("in {}", path.display())]
    GapsFormat {
        /// Path of the gaps file.
        path: PathBuf,
        /// The damage.
        source: serde_json::Error,
    },
    /// The gaps file belongs to another recording.
    #[error(
        "gaps file {} does not match {}: frame rate or byte ranges differ",
        gaps.display(),
        recording.display()
    )]
    OtherGaps {
        /// Path of the gaps file.
        gaps: PathBuf,
        /// Path of the recording next to it.
        recording: PathBuf,
    },
}

/// A sample rate at which a second is not a whole number of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sample rate {sample_rate}/s gives no whole number of frames per second at {samples} samples per frame"
)]
#[non_exhaustive]
pub struct RateError {
    /// Samples per second and channel.
    pub sample_rate: u64,
    /// Samples per channel in a frame.
    pub samples: u64,
}

/// The recording of one station.
pub struct StationFile {
    recording: Recording,
    shape: Shape,
    trust: Trust,
    gaps: Option<Gaps>,
}

impl StationFile {
    /// Opens the recording at `path` and the gaps file next to it, at this second (UTC since 1970). The rate is `sample_rate` if given,
    /// otherwise it is detected.
    pub fn open(
        path: &Path,
        sample_rate: Option<u64>,
        trust: Trust,
        second: i64,
    ) -> Result<StationFile, RecordingError> {
        let recording = Recording::survey(path, None, second);
        let mut recording = recording.map_err(|error| RecordingError::Read(error.into()))?;
        let shown = path.display();
        if recording.format != Format::Vdif {
            let why = format!("{shown} is not VDIF: only VDIF can be correlated");
            return Err(RecordingError::Unfit(why));
        }
        let header = first_header(&recording)?;
        let path_of = || path.to_owned();
        if let Some(rate) = sample_rate {
            let rate = frame_rate(&header, rate).map_err(|source| RecordingError::Rate {
                path: path_of(),
                source,
            })?;
            recording.frame_rate = Some(rate);
        }
        let rate = recording.frame_rate;
        let rate = rate.ok_or_else(|| RecordingError::NoRate(path_of()))?;
        let layout = Layout::of(&header, rate).map_err(|source| RecordingError::Layout {
            path: path_of(),
            source,
        })?;
        let station = header.key().station;
        let ours = recording.keys.iter().filter(|key| key.station == station);
        let mut threads: Vec<u16> = ours.map(|key| key.thread).collect();
        threads.sort_unstable();
        let gaps = match trust {
            Trust::Exact => read_gaps(path, &layout)?,
            _ => None,
        };
        let first = recording.first.ok_or_else(|| {
            let why = format!("no frame of {shown} has a plausible time");
            RecordingError::Unfit(why)
        })?;
        Ok(StationFile {
            recording,
            shape: Shape {
                layout,
                threads,
                station,
                first_second: first.second,
            },
            trust,
            gaps,
        })
    }

    /// Returns the length of its frames, in bytes.
    pub fn frame_length(&self) -> usize {
        self.recording.frame_length.unwrap_or(0)
    }

    /// Returns the format of its data.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the samples from the first to the last, counted from the UTC second `epoch`.
    pub fn samples(&self, epoch: i64) -> Result<Range<i64>, RecordingError> {
        let number = |time: Option<FrameTime>| {
            Some(frame_number(time?, epoch, self.shape.layout.frame_rate))
        };
        let (first, last) = (number(self.recording.first), number(self.recording.last));
        let samples = self.shape.layout.frame_samples();
        match (first, last) {
            (Some(first), Some(last)) if last >= first => Ok(first * samples..(last + 1) * samples),
            _ => Err(RecordingError::Unfit(format!(
                "the first and last frames of {} do not show its time span",
                self.recording.path.display()
            ))),
        }
    }

    /// Starts to read before the sample `from`. `tamper` damages the frames, from the start of the file; `flags` count from the UTC second
    /// `since`.
    pub fn read<'a>(
        &self,
        epoch: i64,
        from: i64,
        tamper: Option<Tamper>,
        flags: impl IntoIterator<Item = &'a Flag>,
        since: i64,
    ) -> Result<StationReader, RecordingError> {
        let Shape {
            layout, threads, ..
        } = &self.shape;
        let mut track = Track::new(*layout, threads, self.trust);
        let (samples, frame_rate) = (layout.frame_samples(), layout.frame_rate);
        let there = self.samples(epoch)?;
        let there = there.start / samples..there.end / samples;
        let ours = |gap: &&TimeGap| gap.key.station == self.shape.station;
        for gap in self.gaps.iter().flat_map(|gaps| &gaps.time).filter(ours) {
            let begin = frame_number(gap.start, epoch, frame_rate);
            // The part of the range that the recording covers.
            let first = begin.max(there.start);
            let end = begin.saturating_add_unsigned(gap.frames).min(there.end);
            let bits = layout.bits() as i64;
            match &gap.bytes {
                None => track.flag(gap.key.thread, first * samples..end * samples),
                Some(bytes) => {
                    let of = |byte: usize| byte as i64 * 8;
                    let part = of(bytes.start) / bits..(of(bytes.end) + bits - 1) / bits;
                    for frame in first..end {
                        let at = frame * samples;
                        track.flag(gap.key.thread, at + part.start..at + part.end);
                    }
                }
            }
        }
        let rate = layout.sample_rate() as f64;
        for flag in flags {
            let of = |seconds: f64| (((since - epoch) as f64 + seconds) * rate).round() as i64;
            for thread in threads {
                track.flag(*thread, of(flag.seconds.start)..of(flag.seconds.end));
            }
        }
        let file = open(&self.recording)?;
        let epoch_frame = epoch.saturating_mul(i64::from(frame_rate.get()));
        let frame = from.div_euclid(samples).saturating_add(epoch_frame);
        let time = FrameTime::from_index(frame, frame_rate);
        // Read one second of frames before it too, as frames may be out of order.
        let before = u64::from(frame_rate.get());
        let offset = match tamper {
            Some(_) => 0,
            None => {
                let offset = self.recording.offset_of(time, before);
                offset.map_err(|error| RecordingError::Read(error.into()))?
            }
        };
        let blocks = Blocks::from(file, offset, self.recording.size);
        Ok(StationReader {
            blocks: blocks.map_err(|error| RecordingError::Read(error.into()))?,
            deframer: self.recording.deframer(Some(frame_rate)),
            feeder: Feeder {
                track,
                tamper,
                epoch,
                shape: self.shape.clone(),
                others: 0,
            },
            ended: false,
        })
    }
}

/// A recording that is being read.
pub struct StationReader {
    blocks: Blocks,
    deframer: Deframer,
    feeder: Feeder,
    ended: bool,
}

/// The sink that passes frames to the track.
struct Feeder {
    track: Track,
    tamper: Option<Tamper>,
    epoch: i64,
    shape: Shape,
    /// Frames of other stations, or with other bits or channels.
    others: u64,
}

impl StationReader {
    /// Returns the effect of tampering on the frames.
    pub fn tampered(&self) -> Option<Tampered> {
        self.feeder.tamper.as_ref().map(Tamper::done)
    }
}

impl Station for StationReader {
    fn slab(&mut self, range: Range<i64>) -> Result<Slab, CorrelateError> {
        self.feeder.track.forget(range.start);
        while !self.ended && !self.feeder.track.has_come_to(range.end, MARGIN) {
            let take = |chunk: Chunk<'_>| self.feeder.take(chunk);
            let stepped = self.blocks.step(&mut self.deframer, take);
            self.ended = !stepped.map_err(|error| RecordingError::Read(error.into()))?;
        }
        Ok(self.feeder.track.slab(range))
    }

    fn counts(&self) -> Counts {
        let counts = self.feeder.track.counts();
        Counts {
            foreign: counts.foreign + self.feeder.others,
            ..counts
        }
    }
}

impl Feeder {
    fn take(&mut self, chunk: Chunk<'_>) {
        for frame in arrived(chunk) {
            if !self.shape.owns(&frame) {
                self.others += 1;
                continue;
            }
            let number = frame_number(frame.time, self.epoch, self.shape.layout.frame_rate);
            let track = &mut self.track;
            let mut push = |invalid: bool, payload: &[u8]| {
                track.push(frame.key.thread, number, invalid, payload);
            };
            match &mut self.tamper {
                Some(tamper) => tamper.take(&frame, &mut push),
                None => push(frame.invalid, frame.payload),
            }
        }
    }
}

/// Returns the number of a frame since the UTC second `epoch`.
pub fn frame_number(time: FrameTime, epoch: i64, rate: FrameRate) -> i64 {
    let second = time.second.saturating_sub(epoch);
    let frames = second.saturating_mul(i64::from(rate.get()));
    frames.saturating_add(i64::from(time.frame))
}

/// Returns the frame rate for a sample rate.
pub fn frame_rate(header: &Header, sample_rate: u64) -> Result<FrameRate, RateError> {
    let shape = header.shape();
    shape.frame_rate(sample_rate).ok_or_else(|| RateError {
        sample_rate,
        samples: shape.samples_per_frame(),
    })
}

/// Opens the file of a recording.
fn open(recording: &Recording) -> Result<File, RecordingError> {
    let file = recording::open(&recording.path);
    file.map_err(|error| RecordingError::Read(error.into()))
}

/// Returns the header of the first frame.
fn first_header(recording: &Recording) -> Result<Header, RecordingError> {
    use std::os::unix::fs::FileExt;
    let file = open(recording)?;
    let length = recording.frame_length.unwrap_or(0) as u64;
    let shape = recording.shape;
    for number in 0..recording.frames().min(64) {
        let mut bytes = [0; vdif::HEADER_LEN];
        file.read_exact_at(&mut bytes, recording.leading + number * length)
            .map_err(|error| RecordingError::Read(error.into()))?;
        if let Ok(header) = Header::parse(&bytes)
            && Some(header.shape()) == shape
        {
            return Ok(header);
        }
    }
    let shown = recording.path.display();
    let why = format!("{shown} starts with damaged frames");
    Err(RecordingError::Unfit(why))
}

fn read_gaps(recording: &Path, layout: &Layout) -> Result<Option<Gaps>, RecordingError> {
    let path = gaps_beside(recording);
    let text = match read_text(&path) {
        Ok(text) => text,
        Err(error) if error.source.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let gaps: Gaps = match serde_json::from_str(&text) {
        Ok(gaps) => gaps,
        Err(source) => return Err(RecordingError::GapsFormat { path, source }),
    };
    let is_other = |rate: FrameRate| rate != layout.frame_rate;
    let is_beyond = |bytes: &Range<usize>| bytes.start > bytes.end || bytes.end > layout.payload;
    let mut bytes = gaps.time.iter().flat_map(|gap| &gap.bytes);
    if gaps.frame_rate.is_some_and(is_other) || bytes.any(is_beyond) {
        return Err(RecordingError::OtherGaps {
            gaps: path,
            recording: recording.to_owned(),
        });
    }
    Ok(Some(gaps))
}
