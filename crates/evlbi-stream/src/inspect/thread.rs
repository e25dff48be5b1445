//! Collects the numbering and the sample statistics of one thread of one station.

use std::error::Error;
use std::num::NonZeroU32;

use evlbi_fx::statistics::{ChannelStatistics, Statistics};
use evlbi_fx::unpack::Unpacker;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::Intervals;
use evlbi_wire::vdif::{Header, StreamKey};
use serde::Serialize;
use serde_json::Value;

use super::{Moment, extended};
use crate::samples::{Samples, SamplesError};

/// Maximum number of sampled frames per thread.
const SAMPLED: u64 = 64;
/// Maximum number of sampled threads, the first ones.
const THREADS_SAMPLED: usize = 64;
/// Frame rate for the numbering while the true rate is unknown; higher than any real one.
const UNKNOWN_RATE: FrameRate = FrameRate(NonZeroU32::new(1 << 24).unwrap());
/// Bits per sample assumed for Mark 5B, whose headers do not contain it.
const MARK5B_BITS: u8 = 2;

/// Choice of the frames for the sample statistics.
#[derive(Clone, Copy, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sampling {
    /// Interval between sampled frames of a thread; the next valid one without fill pattern is taken.
    pub every: u64,
    /// Maximum number of frames per thread.
    most: u64,
}

impl Sampling {
    /// Chooses the interval for `frames` frames in `threads` threads.
    pub fn new(frames: u64, threads: usize) -> Sampling {
        Sampling {
            every: (frames / threads.max(1) as u64).div_ceil(SAMPLED).max(1),
            most: SAMPLED,
        }
    }
}

/// A run of missing frames of a thread.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gap {
    /// Two-letter name of the station, or its number.
    pub station: String,
    /// Number of the station in the frames.
    pub station_id: u16,
    /// Number of the thread.
    pub thread: u16,
    /// Time of the first missing frame.
    pub start: Moment,
    /// Number of missing frames.
    pub frames: u64,
}

/// Description of the samples of Mark 5B or Mark 4, or the reason why there is none; `None` for VDIF, whose headers describe them.
pub type Described = Option<Result<Samples, SamplesError>>;

/// Content of a thread.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadReport {
    /// Two-letter name of the station, or its number.
    pub station: String,
    /// Number of the station in the frames.
    pub station_id: u16,
    /// Number of the thread.
    pub thread: u16,
    /// Frames found.
    pub frames: u64,
    /// Frames with the invalid bit set.
    pub invalid: u64,
    /// Frames missing between the first and the last.
    pub missing: u64,
    /// Frames with the same time as another one.
    pub duplicates: u64,
    /// Frames after a later one, without duplicates.
    pub backward: u64,
    /// Time of the earliest frame.
    pub first: Option<Moment>,
    /// Time of the latest frame.
    pub last: Option<Moment>,
    /// Bits per sample, or per component if complex; `None` for Mark 5B, whose headers do not contain it, unless its format is given.
    pub bits: Option<u8>,
    /// Number of channels.
    pub channels: Option<u64>,
    /// Names of the channels: converter and sideband in Mark 4, else their numbers.
    pub channel_names: Vec<String>,
    /// Whether samples are complex.
    pub complex: Option<bool>,
    /// Whether headers are short (legacy, 16 bytes).
    pub legacy: Option<bool>,
    /// Samples per channel in a frame.
    pub samples_per_frame: Option<u64>,
    /// Samples per second and channel.
    pub sample_rate: Option<u64>,
    /// Bandwidth of each channel, in Hz.
    pub bandwidth: Option<f64>,
    /// Version of the extended data, and its content in the first frame.
    pub extended: Option<Value>,
    /// Frames that the statistics are from.
    pub sampled_frames: u64,
    /// Limitation of the statistics, or the reason why there are none.
    pub note: Option<String>,
    /// Sample values that are counted, in arbitrary units.
    pub levels: Vec<f32>,
    /// Statistics of each channel.
    pub statistics: Vec<ChannelStatistics>,
}

/// Reason why the samples of a thread are not counted.
type Unsampled = Box<dyn Error + Send + Sync>;

/// Results of a thread so far.
pub struct Thread {
    key: StreamKey,
    /// Header of the first frame; `None` unless it is VDIF.
    header: Option<Header>,
    described: Described,
    /// Payload of the last sampled frame.
    payload: Vec<u8>,
    frames: u64,
    invalid: u64,
    pub duplicates: u64,
    pub backward: u64,
    /// Frame rate used to number the frames.
    numbering: FrameRate,
    seen: Intervals,
    ends: Option<(FrameTime, FrameTime)>,
    /// Counter of the samples, or the reason why there is none.
    samples: Result<(Unpacker, Statistics), Unsampled>,
    pub sampled: u64,
    /// Frames until the next sampled one.
    next_sample: u64,
}

impl Thread {
    /// Creates a thread; `place` is its index in the recording.
    pub fn new(
        key: StreamKey,
        header: Option<Header>,
        described: &Described,
        rate: Option<FrameRate>,
        place: usize,
    ) -> Thread {
        Thread {
            key,
            header,
            described: described.clone(),
            payload: Vec::new(),
            frames: 0,
            invalid: 0,
            duplicates: 0,
            backward: 0,
            numbering: rate.unwrap_or(UNKNOWN_RATE),
            seen: Intervals::new(),
            ends: None,
            samples: statistics(header.as_ref(), described, place),
            sampled: 0,
            next_sample: 0,
        }
    }

    /// Takes the header of the first valid frame; headers of invalid frames may be wrong.
    pub fn describe(&mut self, header: Header, place: usize) {
        if self.frames == self.invalid && self.frames > 0 {
            self.header = Some(header);
            self.samples = statistics(Some(&header), &None, place);
        }
    }

    /// Counts a frame.
    pub fn see(&mut self, time: FrameTime, invalid: bool) {
        self.frames += 1;
        self.invalid += u64::from(invalid);
        let number = time.index(self.numbering);
        let (first, last) = self.ends.unwrap_or((time, time));
        if self.ends.is_some() && time <= last {
            let is_there = self.seen.contains(number);
            self.duplicates += u64::from(is_there);
            self.backward += u64::from(!is_there);
        }
        self.ends = Some((first.min(time), last.max(time)));
        self.seen.insert(number..number.saturating_add(1));
    }

    /// Counts the samples of the last frame, if it is due for sampling.
    pub fn sample(&mut self, payload: &[u8], sampling: Sampling) {
        if self.frames <= self.next_sample || self.sampled == sampling.most {
            return;
        }
        if let Ok((unpacker, statistics)) = &mut self.samples {
            unpacker.unpack(payload, &mut self.payload);
            let layout = unpacker.layout();
            let replaced = layout.replaced * layout.bits() / 8;
            statistics.add(self.payload.get(replaced..).unwrap_or_default());
            self.sampled += 1;
            self.next_sample = self.frames - 1 + sampling.every;
        }
    }

    /// Returns the times of the earliest and the latest frame.
    pub fn ends(&self) -> impl Iterator<Item = FrameTime> {
        let ends = self.ends.into_iter();
        ends.flat_map(|(first, last)| [first, last])
    }

    /// Returns the frame rate in the header.
    pub fn told_rate(&self) -> Option<FrameRate> {
        self.header?.frame_rate()
    }

    /// Returns the number of frames missing between the first and the last.
    pub fn missing(&self, rate: Option<FrameRate>) -> u64 {
        self.gaps(rate).map(|gap| gap.frames).sum()
    }

    /// Returns the runs of missing frames. Without a frame rate, frames missing at the end of a second cannot be detected.
    pub fn gaps(&self, rate: Option<FrameRate>) -> impl Iterator<Item = Gap> + '_ {
        let ends = self.seen.iter().map(|run| run.end);
        let begins = self.seen.iter().skip(1).map(|run| run.start);
        ends.zip(begins).filter_map(move |(from, until)| {
            let from = match rate {
                Some(_) => from,
                // Not before the second in which the frames resume.
                None => from.max(until - until.rem_euclid(i64::from(UNKNOWN_RATE.get()))),
            };
            let frames = u64::try_from(until.checked_sub(from)?).ok()?;
            (frames > 0).then(|| Gap {
                station: self.key.station.to_string(),
                station_id: self.key.station.0,
                thread: self.key.thread,
                start: Moment::new(FrameTime::from_index(from, self.numbering), rate),
                frames,
            })
        })
    }

    /// Returns all results of the thread.
    pub fn report(&self, rate: Option<FrameRate>) -> ThreadReport {
        let shape = self.header.map(|header| header.shape());
        let described = self.described.as_ref().and_then(|it| it.as_ref().ok());
        let layout = described.map(|samples| samples.unpacker.layout());
        let samples_per_frame = shape.map(|shape| shape.samples_per_frame());
        let samples_per_frame = samples_per_frame.or(layout.map(|it| it.frame_samples() as u64));
        let bits = shape.map(|shape| shape.bits);
        let channels = shape.map(|shape| shape.channels());
        let complex = shape.map(|shape| shape.complex);
        let complex = complex.or(layout.map(|layout| layout.complex));
        let names = described.map(|samples| samples.channels.iter().map(ToString::to_string));
        let numbered = || (0..channels.unwrap_or(0).min(4096)).map(|number| number.to_string());
        let counted = || samples_per_frame?.checked_mul(u64::from(rate?.get()));
        let told = self.header.and_then(|header| header.sample_rate());
        let sample_rate = told.or_else(counted).filter(|rate| *rate > 0);
        ThreadReport {
            station: self.key.station.to_string(),
            station_id: self.key.station.0,
            thread: self.key.thread,
            frames: self.frames,
            invalid: self.invalid,
            missing: self.missing(rate),
            duplicates: self.duplicates,
            backward: self.backward,
            first: self.ends.map(|(first, _)| Moment::new(first, rate)),
            last: self.ends.map(|(_, last)| Moment::new(last, rate)),
            bits: bits.or(layout.map(|layout| layout.codec.bits())),
            channels: channels.or(layout.map(|layout| layout.channels as u64)),
            channel_names: names.map_or_else(|| numbered().collect(), Iterator::collect),
            complex,
            legacy: shape.map(|shape| shape.legacy),
            samples_per_frame,
            sample_rate,
            bandwidth: sample_rate
                .zip(complex)
                .map(|(rate, complex)| rate as f64 / if complex { 1.0 } else { 2.0 }),
            extended: self.header.and_then(|header| extended::describe(&header)),
            sampled_frames: self.sampled,
            note: self.note(),
            levels: self.levels(),
            statistics: self.statistics(),
        }
    }

    fn note(&self) -> Option<String> {
        match (&self.samples, &self.described) {
            (Err(why), _) => Some(why.to_string()),
            (Ok(_), Some(Err(_))) => Some(format!(
                "Mark 5B headers do not contain the channels: all are counted together, as {MARK5B_BITS} bits"
            )),
            (Ok(_), _) => None,
        }
    }

    fn levels(&self) -> Vec<f32> {
        let Ok((unpacker, _)) = &self.samples else {
            return Vec::new();
        };
        let mut levels = unpacker.layout().codec.levels().to_vec();
        levels.sort_by(f32::total_cmp);
        levels
    }

    fn statistics(&self) -> Vec<ChannelStatistics> {
        let mut channels = match &self.samples {
            Ok((_, statistics)) if self.sampled > 0 => statistics.channels(),
            _ => Vec::new(),
        };
        if matches!(self.described, Some(Err(_))) {
            // The joint spectrum of all channels would describe none of them.
            for channel in &mut channels {
                channel.spectrum.clear();
            }
        }
        channels
    }
}

/// Returns the counter for the samples of frames with this header or of this description, or the reason why there is none.
fn statistics(
    header: Option<&Header>,
    described: &Described,
    place: usize,
) -> Result<(Unpacker, Statistics), Unsampled> {
    if place >= THREADS_SAMPLED {
        let why = format!("only the first {THREADS_SAMPLED} threads are sampled");
        return Err(why.into());
    }
    let unpacker = match (header, described) {
        (Some(header), _) => {
            header.shape().check()?;
            Unpacker::vdif(header, UNKNOWN_RATE)?
        }
        (None, Some(Ok(samples))) => samples.unpacker.clone(),
        (None, Some(Err(SamplesError::NoFormat(_)))) => {
            Unpacker::mark5b(1, MARK5B_BITS, UNKNOWN_RATE)?
        }
        (None, Some(Err(error))) => return Err(error.clone().into()),
        (None, None) => return Err("no header is undamaged".into()),
    };
    let layout = unpacker.layout();
    let statistics = Statistics::new(layout.codec, layout.channels as u64, layout.complex)?;
    Ok((unpacker, statistics))
}
