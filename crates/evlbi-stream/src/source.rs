//! Sources of data to send: a recording, the test pattern, or a simulated station.

mod selected;

use std::io;
use std::num::{ParseIntError, TryFromIntError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use evlbi_core::deframe::Format;
use evlbi_core::rate::BitRate;
use evlbi_fx::sky::{self, PlanError, SkyPlan, Station};
use evlbi_net::file::{ReadError, Reader, ReaderOptions};
use evlbi_net::run::Run;
use evlbi_net::transmit::{FileSource, LoopSource, PatternSource, Source};
use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif::StreamKey;
use evlbi_wire::{fill, pattern};
use thiserror::Error;

use crate::recording::{self, Recording, RecordingError};
use crate::selection::Selection;

/// Prefix of a test pattern, before the length of its frames.
pub const PATTERN: &str = "pattern:";
/// Prefix of a simulated station, before its plan.
const SKY: &str = "sky:";

/// Memory for frames that are sent in a loop, in bytes.
const LOOP_BYTES: u64 = 64 << 20;
/// Memory for the test pattern, in bytes: as long as the longest burst where a CPU's own cache holds that, and one period of frames of up
/// to 1 MiB; longer patterns are generated while sending.
const PATTERN_BYTES: usize = 512 << 10;
const PERIOD_BYTES: usize = 64 << 20;

/// Reasons why a source cannot be sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The frame length of the test pattern is not a number.
    #[error("invalid frame length in bytes `{length}`")]
    NoLength {
        /// Text in place of the length.
        length: String,
        /// Reason.
        source: ParseIntError,
    },
    /// The test pattern cannot have frames of that length.
    #[error("{0}")]
    Length(#[from] pattern::LengthError),
    /// A simulated sky is named without a station.
    #[error("`{0}` names no station: give sky:PLAN.toml/STATION")]
    NoStation(String),
    /// The plan of a simulated sky cannot be read.
    #[error("cannot read the plan {}", path.display())]
    ReadPlan {
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The plan is invalid.
    #[error("in the plan {}", path.display())]
    ParsePlan {
        /// Its path.
        path: PathBuf,
        /// Place and reason.
        source: toml::de::Error,
    },
    /// The station cannot be simulated.
    #[error("cannot simulate `{spec}`")]
    Station {
        /// Source as requested.
        spec: String,
        /// Reason.
        source: PlanError,
    },
    /// The recording cannot be read.
    #[error("{0}")]
    Recording(#[from] RecordingError),
    /// A part of a generated source is selected.
    #[error(
        "cannot select a part of {0}, which is generated: only recordings contain other streams"
    )]
    Generated(String),
    /// The recording cannot be read ahead.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// The recording cannot be repeated as requested.
    #[error("{0}")]
    NotRepeatable(String),
    /// Repeated frames need later times, but the number of frames per second is unknown.
    #[error(
        "repeated frames need later times, but the frame rate of {} is unknown",
        .0.display()
    )]
    RateUnknown(PathBuf),
    /// The frames exceed the memory of this host.
    #[error("{0}")]
    TooLarge(#[from] TryFromIntError),
}

/// A source before it is cut into datagrams.
pub struct Input {
    /// Length of a frame in bytes; `None` for raw data.
    pub frame_length: Option<usize>,
    /// Whether the frames are VDIF.
    pub is_vdif: bool,
    /// Frames per second of each thread.
    pub frame_rate: Option<FrameRate>,
    /// Stations and threads.
    pub keys: Vec<StreamKey>,
    /// Bytes before the first whole frame.
    pub leading: u64,
    /// Bytes after the last whole frame, if known before all is read.
    pub truncated: u64,
    /// Length of one pass in bytes; `None` if endless or unknown.
    pub length: Option<u64>,
    /// Counts of what is not selected.
    pub left_out: Arc<LeftOut>,
    content: Content,
}

/// Counts of a recording of which only some stations and threads are read, so far.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// Frames that are not selected.
    pub unselected: AtomicU64,
    /// Bytes after the last whole frame.
    pub truncated: AtomicU64,
}

/// Origin of the data.
enum Content {
    /// A file.
    Recording(Box<Recording>),
    /// Frames in memory that are repeated with later times; `round` is the number of frames per thread in one round.
    Loop { frames: Vec<u8>, round: i64 },
    /// The test pattern, with frames of this length.
    Pattern(usize, FrameRate),
}

impl Input {
    /// Opens `FILE`, `pattern:LENGTH` or `sky:PLAN.toml/STATION`, at this second (UTC since 1970). Of a file, only the frames of the
    /// selection are read. `rate` is the bit rate of the flow, if known; a pattern takes its frame rate from it.
    ///
    /// # Errors
    /// Returns an error if there is no such source, it cannot be read, or does not contain what is selected.
    pub fn open(
        spec: &str,
        selection: &Selection,
        frame_rate: Option<FrameRate>,
        rate: Option<BitRate>,
        second: i64,
    ) -> Result<Input, SourceError> {
        let is_generated = spec.starts_with(PATTERN) || spec.starts_with(SKY);
        if is_generated && *selection != Selection::default() {
            return Err(SourceError::Generated(spec.to_owned()));
        }
        if let Some(length) = spec.strip_prefix(PATTERN) {
            let length = length.parse().map_err(|source| SourceError::NoLength {
                length: length.to_owned(),
                source,
            })?;
            return Ok(test_pattern(length, frame_rate, rate)?);
        }
        if let Some(place) = spec.strip_prefix(SKY) {
            let parts = place.rsplit_once('/');
            let (plan, station) = parts.ok_or_else(|| SourceError::NoStation(spec.to_owned()))?;
            let plan = read_plan(Path::new(plan))?;
            let station = plan.station(station);
            let station = station.map_err(|source| SourceError::Station {
                spec: spec.to_owned(),
                source,
            })?;
            return Ok(simulate(&station)?);
        }
        let recording = Recording::select(Path::new(spec), selection, frame_rate, second)?;
        Ok(Input {
            frame_length: recording.frame_length,
            is_vdif: recording.format == Format::Vdif,
            frame_rate: recording.frame_rate,
            keys: recording.keys.clone(),
            leading: recording.leading,
            truncated: match recording.is_part() {
                true => 0,
                false => recording.truncated_tail(),
            },
            length: Some(recording.length()).filter(|_| !recording.is_part()),
            left_out: Arc::default(),
            content: Content::Recording(Box::new(recording)),
        })
    }

    /// Returns the bit rate of the data in real time; `None` if the frame rate is unknown.
    pub fn rate(&self) -> Option<BitRate> {
        recording::stream_rate(self.frame_rate?, self.keys.len(), self.frame_length?)
    }

    /// Makes a simulated source `bytes` long (whole frames), instead of the length of its plan.
    pub fn lasting(self, bytes: u64) -> Input {
        let frame_length = self.frame_length.unwrap_or(1) as u64;
        let most = self.length.filter(|_| !self.is_vdif).unwrap_or(u64::MAX);
        Input {
            length: Some((bytes - bytes % frame_length).min(most)),
            ..self
        }
    }

    /// Starts to read the source in units of `unit` bytes, `repeat` times; a test pattern begins with the second of the run's clock. Warns if
    /// the format of a recording changes: then only the part before is read. Returns the reader and the number of fill bytes that complete
    /// its last unit.
    ///
    /// # Errors
    /// Returns an error if the source cannot be read, or not repeated as requested.
    pub fn into_source(
        self,
        unit: usize,
        repeat: u64,
        run: &Run,
    ) -> Result<(Box<dyn Source>, u64), SourceError> {
        match self.content {
            Content::Pattern(frame_length, frame_rate) => {
                let memory = memory_of(frame_length);
                let source =
                    PatternSource::new(frame_length, run.clock().second(), frame_rate, memory)?;
                Ok((Box::new(source), 0))
            }
            Content::Loop { frames, round } => {
                let total = self.length.map(|length| length.saturating_mul(repeat));
                let source = LoopSource::new(frames, round, total.unwrap_or(u64::MAX));
                Ok((Box::new(source), 0))
            }
            Content::Recording(recording) => {
                recording.warn_of_rest(run);
                let length = recording.length();
                let name = recording.path.display();
                let pass_frames = match (repeat > 1, recording.format) {
                    (false, _) | (_, Format::Raw) => 0,
                    (true, format @ (Format::Mark5b | Format::Mark4)) => {
                        return Err(SourceError::NotRepeatable(format!(
                            "cannot repeat {name}: later times are not supported for {format}"
                        )));
                    }
                    (true, Format::Vdif) => recording
                        .span_frames()
                        .ok_or_else(|| SourceError::RateUnknown(recording.path.clone()))?,
                };
                if recording.is_part() {
                    let reader = selected::reader(*recording, repeat, self.left_out, run)?;
                    let source = FileSource::new(reader, pass_frames, Vec::new());
                    return Ok((Box::new(source), 0));
                }
                let tail = tail_of(&recording, length, unit)?;
                if repeat > 1 && !tail.is_empty() {
                    return Err(SourceError::NotRepeatable(format!(
                        "cannot repeat {name}: its length is not a multiple of the datagrams' length"
                    )));
                }
                let padded = length.next_multiple_of(unit as u64) - length;
                let options = ReaderOptions {
                    unit,
                    start: recording.leading,
                    length: Some(length),
                    repeats: Some(repeat),
                    ..ReaderOptions::default()
                };
                let reader = Reader::open(&recording.path, options, run.clock())?;
                let source = FileSource::new(reader, pass_frames, tail);
                Ok((Box::new(source), padded))
            }
        }
    }
}

/// Returns the rest after the last whole unit, completed with fill pattern.
fn tail_of(recording: &Recording, length: u64, unit: usize) -> Result<Vec<u8>, RecordingError> {
    use std::os::unix::fs::FileExt;
    let there = (length % unit as u64) as usize;
    if there == 0 {
        return Ok(Vec::new());
    }
    let mut tail = vec![0; unit];
    let offset = recording.leading + length - there as u64;
    recording::open(&recording.path)?
        .read_exact_at(&mut tail[..there], offset)
        .map_err(RecordingError::read(&recording.path))?;
    fill::make_from(&mut tail[there..], there);
    Ok(tail)
}

/// Station and thread of the test pattern.
const PATTERN_KEY: StreamKey = StreamKey {
    station: pattern::STATION,
    thread: 0,
};

fn test_pattern(
    frame_length: usize,
    frame_rate: Option<FrameRate>,
    rate: Option<BitRate>,
) -> Result<Input, pattern::LengthError> {
    pattern::check_length(frame_length)?;
    // Whole frames per second, as VDIF counts them.
    let bits = 8 * frame_length as u64;
    let per_second = rate.map_or(25_600, |rate| (rate.get() + bits / 2) / bits);
    let frame_rate = frame_rate.unwrap_or_else(|| pattern::frame_rate(per_second));
    Ok(Input {
        frame_length: Some(frame_length),
        is_vdif: true,
        frame_rate: Some(frame_rate),
        keys: vec![PATTERN_KEY],
        leading: 0,
        truncated: 0,
        length: None,
        left_out: Arc::default(),
        content: Content::Pattern(frame_length, frame_rate),
    })
}

/// Returns the memory for the pattern of frames of this length: several periods of short frames, one of longer frames.
fn memory_of(frame_length: usize) -> usize {
    let period = frame_length.saturating_mul(pattern::PERIOD as usize);
    let periods = (PATTERN_BYTES / period.max(1)).clamp(1, 4);
    (period * periods).min(PERIOD_BYTES)
}

/// Reads the plan of a simulated sky.
///
/// # Errors
/// Returns an error if the file cannot be read or parsed.
pub fn read_plan(path: &Path) -> Result<SkyPlan, SourceError> {
    parse_plan(&read_text(path)?, path)
}

pub(crate) fn read_text(path: &Path) -> Result<String, SourceError> {
    std::fs::read_to_string(path).map_err(|source| SourceError::ReadPlan {
        path: path.to_owned(),
        source,
    })
}

/// Parses the plan of a simulated sky, which is in the file at `path`.
///
/// # Errors
/// Returns an error if it cannot be parsed.
pub fn parse_plan(text: &str, path: &Path) -> Result<SkyPlan, SourceError> {
    toml::from_str(text).map_err(|source| SourceError::ParsePlan {
        path: path.to_owned(),
        source,
    })
}

/// Simulates the frames of a station: all if memory allows, else as many as fit, to be sent in a loop.
///
/// # Errors
/// Returns an error if the size exceeds the address space of this host.
pub fn simulate(station: &Station) -> Result<Input, TryFromIntError> {
    let length = station.frame_length() as u64;
    let threads = u64::from(station.threads());
    let cycles = station.total_frames() / threads;
    let is_vdif = station.format() == sky::Format::Vdif;
    // Only VDIF gets later times in further rounds.
    let max = match is_vdif {
        true => (LOOP_BYTES / (length * threads)).max(1),
        false => cycles,
    };
    let round = cycles.min(max);
    let mut frames = vec![0; usize::try_from(round * threads * length)?];
    station.generator().fill(&mut frames);
    let keys = (0..station.threads()).map(|thread| match is_vdif {
        true => StreamKey {
            station: station.id(),
            thread,
        },
        false => StreamKey::default(),
    });
    Ok(Input {
        frame_length: Some(station.frame_length()),
        is_vdif,
        frame_rate: Some(station.frame_rate()),
        keys: keys.collect(),
        leading: 0,
        truncated: 0,
        length: Some(station.total_frames() * length),
        left_out: Arc::default(),
        content: Content::Loop {
            frames,
            round: i64::try_from(round)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_the_rate_that_was_asked_for() {
        for asked in [16_000_000u64, 100_000_000, 512_000_000, 10_000_000_000] {
            let (all, rate) = (Selection::default(), BitRate::new(asked));
            let input = Input::open("pattern:8032", &all, None, rate, 0).unwrap();
            let rate = input.rate().unwrap().get();
            assert!(rate.abs_diff(asked) <= 8 * 8032 / 2, "{rate} of {asked}");
        }
    }

    #[test]
    fn a_pattern_of_any_length_needs_little_memory() {
        for length in [40, 1032, 8032, 1 << 20, 134_217_720] {
            assert!(memory_of(length) <= PERIOD_BYTES, "{length}");
        }
        assert_eq!(memory_of(8032) % (64 * 8032), 0);
        let all = Selection::default();
        assert!(Input::open("pattern:134217728", &all, None, None, 0).is_err());
    }
}
