//! Plan of simulated stations, and its checks.

use std::collections::HashSet;

use evlbi_wire::mark4::{self, Channels, Order};
use evlbi_wire::mark5b;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{
    Extended, Header, Nict, Nrao, SYNC, Shape, ShapeError, StationId, StreamKey,
};
use serde::{Deserialize, Serialize};

use super::Station;
use super::frames::{Head, Tracks};
use super::signal::ChannelPlan;
use crate::codec::{Codec, CodecError};

/// Simulated stations that observe one source. Every key of the file except `station` has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SkyPlan {
    /// Time of the first frame: UTC seconds since 1970; in a file, date and time of RFC 3339 in quotes.
    #[serde(with = "rfc3339")]
    pub start: i64,
    /// Duration of the recording in seconds; the last frame is completed.
    pub duration: f64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Samples per second of each channel, real or complex: an integer.
    pub sample_rate: f64,
    /// Bits per sample, or per component of a complex one: 1, 2, 4 or 8.
    pub bits: u8,
    /// Number of channels of all threads.
    pub channels: u32,
    /// Number of threads that the channels are divided among: the first channels are those of thread 0.
    pub threads: u16,
    /// Whether samples have a real and an imaginary component.
    pub complex: bool,
    /// Length of the payload of a frame, in bytes.
    pub payload: usize,
    /// Extended data version of the headers: 0, or 1 or 3, which contain the sample rate.
    pub edv: u8,
    /// Whether headers have only four words, without extended data.
    pub legacy: bool,
    /// Correlation coefficient of two stations with `noise = 1`, before sampling, 0 to 1.
    pub correlation: f64,
    /// Sky frequency of the zero frequency of the first channel, Hz. Each channel starts where the one before it ends.
    pub sky_frequency: f64,
    /// Stations: `[[station]]` in a file.
    #[serde(rename = "station")]
    pub stations: Vec<StationPlan>,
}

impl Default for SkyPlan {
    /// Returns a plan without stations: one second of 64 Ms/s in 2 bits, one channel at 4.9 GHz, correlation 0.1.
    fn default() -> SkyPlan {
        SkyPlan {
            start: 1_704_067_200,
            duration: 1.0,
            seed: 1,
            sample_rate: 64e6,
            bits: 2,
            channels: 1,
            threads: 1,
            complex: false,
            payload: 8000,
            edv: 0,
            legacy: false,
            correlation: 0.1,
            sky_frequency: 4.9e9,
            stations: Vec::new(),
        }
    }
}

/// Station of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StationPlan {
    /// Two-letter code.
    pub name: String,
    /// Code in its frames, if another station records it; `None` for its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Power of the station's own noise, in units of the one that gives `correlation`.
    #[serde(default = "one")]
    pub noise: f64,
    /// Delay in s, s/s, s/s^2 and so on: coefficients of a polynomial in the seconds since the start.
    #[serde(default)]
    pub delay: Vec<f64>,
    /// Clock offset of the station, as a polynomial like `delay`, to which it is added.
    #[serde(default)]
    pub clock: Vec<f64>,
    /// Phase-calibration tones, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_cal: Option<PhaseCal>,
    /// Format of the recording: `vdif`, `mark5b` or `mark4`. The latter two have one stream of all channels; `threads`, `payload`,
    /// `edv` and `legacy` are for VDIF.
    #[serde(default)]
    pub format: Format,
    /// Samples of a channel in a bit time of Mark 4: 1, 2 or 4. It has `channels` x `bits` x `fan_out` tracks: 8, 16, 32 or 64.
    #[serde(default = "four")]
    pub fan_out: u8,
    /// Whether samples of Mark 4 are modulated.
    #[serde(default)]
    pub modulated: bool,
}

/// Format of a station's recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// VDIF frames.
    #[default]
    Vdif,
    /// Mark 5B frames.
    Mark5b,
    /// Mark 4 frames, as Mark 5A records them.
    Mark4,
}

impl Format {
    /// Returns the usual ending of the names of recordings.
    pub fn ending(self) -> &'static str {
        match self {
            Format::Vdif => "vdif",
            Format::Mark5b => "m5b",
            Format::Mark4 => "m4",
        }
    }
}

impl StationPlan {
    /// Makes a station without delay, and with the noise that gives the plan's correlation.
    pub fn new(name: &str) -> StationPlan {
        StationPlan {
            name: name.to_owned(),
            code: None,
            noise: one(),
            delay: Vec::new(),
            clock: Vec::new(),
            phase_cal: None,
            format: Format::Vdif,
            fan_out: four(),
            modulated: false,
        }
    }
}

/// Tones that a station adds to its signal, in phase with its clock: phase zero at the start of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseCal {
    /// Spacing of the tones, Hz: they are at the multiples of this sky frequency.
    pub spacing: f64,
    /// Total power of the tones of a channel, in units of the power of its noise.
    pub power: f64,
}

fn one() -> f64 {
    1.0
}

fn four() -> u8 {
    4
}

const WHOLE_KHZ: &str = "its rate field takes whole kHz only";

/// Reason why stations cannot be made from a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// There are no stations.
    #[error("the plan has no station: add `[[station]]` with `name = \"Ef\"`")]
    NoStation,
    /// No station of this name in the plan.
    #[error("the plan has no station {asked:?}; it has {known}")]
    UnknownStation {
        /// Requested name.
        asked: String,
        /// Names in the plan.
        known: String,
    },
    /// Station name that is not two letters or digits.
    #[error(
        "station name {0:?}: give the two letters or digits of the station's code, such as \"Ef\""
    )]
    Name(String),
    /// Two stations have the same name.
    #[error("two stations are named {0:?}: give each its own code")]
    SameName(String),
    /// Number out of range.
    #[error("{key} = {value} is out of range: give {expected}")]
    Range {
        /// Key in the plan.
        key: &'static str,
        /// Value in the plan.
        value: f64,
        /// Expected value.
        expected: &'static str,
    },
    /// Channels that cannot be divided among the threads.
    #[error(
        "{channels} channels over {threads} threads: each thread of VDIF has 1, 2, 4, 8 ... channels, \
         and there are at most 1024 threads and 4096 channels"
    )]
    Channels {
        /// Channels in the plan.
        channels: u32,
        /// Threads in the plan.
        threads: u16,
    },
    /// Unsupported number of bits.
    #[error("bits: {0}")]
    Bits(CodecError),
    /// Impossible VDIF frame.
    #[error("payload: {0}")]
    Shape(ShapeError),
    /// A second does not contain a whole number of frames.
    #[error(
        "payload = {payload}: its {samples} samples do not divide a second of {sample_rate}; \
         {remedy}"
    )]
    FramesPerSecond {
        /// Payload in the plan.
        payload: usize,
        /// Samples of each channel in the payload.
        samples: u64,
        /// Samples per second.
        sample_rate: u64,
        /// Nearest valid length.
        remedy: String,
    },
    /// Time that does not fit the headers.
    #[error(
        "start: the recording must be between 2000 and 2031, with at most 16777216 frames per second"
    )]
    Time,
    /// Format that does not match the rest.
    #[error("format = {}: {why}", format.ending())]
    Format {
        /// Format of the station.
        format: Format,
        /// Reason and remedy.
        why: String,
    },
    /// Extended data version that does not match the rest.
    #[error("edv = {edv}: {why}")]
    Edv {
        /// Version in the plan.
        edv: u8,
        /// Reason and remedy.
        why: &'static str,
    },
}

impl SkyPlan {
    /// Makes all stations, in the order of the plan.
    pub fn stations(&self) -> Result<Vec<Station>, PlanError> {
        if self.stations.is_empty() {
            return Err(PlanError::NoStation);
        }
        let mut names = HashSet::new();
        for station in &self.stations {
            if !names.insert(&station.name) {
                return Err(PlanError::SameName(station.name.clone()));
            }
        }
        self.stations
            .iter()
            .map(|station| self.make(station))
            .collect()
    }

    /// Makes the station of this name.
    pub fn station(&self, name: &str) -> Result<Station, PlanError> {
        let stations = self.stations()?;
        let names: Vec<&str> = stations.iter().map(Station::name).collect();
        let unknown = PlanError::UnknownStation {
            asked: name.to_owned(),
            known: names.join(", "),
        };
        stations
            .into_iter()
            .find(|station| station.name == name)
            .ok_or(unknown)
    }

    fn make(&self, station: &StationPlan) -> Result<Station, PlanError> {
        self.check_numbers()?;
        station.check_numbers()?;
        let sample_rate = self.sample_rate as u64;
        let frames = match station.format {
            Format::Vdif => self.vdif(station.recorded_id()?, sample_rate)?,
            Format::Mark5b => self.mark5b()?,
            Format::Mark4 => self.mark4(station)?,
        };
        let frame_rate = frames.rate;
        let count = (self.duration * f64::from(frame_rate.get()) - 1e-6).ceil();
        let frames_per_thread = count.max(1.0) as u64;
        let last = i64::try_from(frames_per_thread).map_err(|_| PlanError::Time)? - 1;
        let first = FrameTime {
            second: self.start,
            frame: 0,
        };
        let last = FrameTime::from_index(first.index(frame_rate).saturating_add(last), frame_rate);
        for time in [first, last] {
            if !frames.heads[0].clone().set_time(time, frame_rate) {
                return Err(PlanError::Time);
            }
        }
        let channels = (0..self.channels)
            .map(|channel| self.channel(station, channel))
            .collect::<Result<_, _>>()?;
        Ok(Station {
            name: station.name.clone(),
            id: station.recorded_id()?,
            format: station.format,
            heads: frames.heads,
            frame_length: frames.length,
            complex: self.complex,
            codec: frames.codec,
            frame_rate,
            start: self.start,
            frames_per_thread,
            channels,
        })
    }

    fn vdif(&self, station: StationId, sample_rate: u64) -> Result<Frames, PlanError> {
        let shape = self.shape()?;
        let headers = self.headers(shape, station, sample_rate)?;
        Ok(Frames {
            heads: headers.into_iter().map(Head::Vdif).collect(),
            length: shape.frame_length,
            rate: self.frame_rate(shape)?,
            codec: Codec::vdif(self.bits).map_err(PlanError::Bits)?,
        })
    }

    /// Returns the frames of one stream of all channels, in a format with a fixed payload of `samples` samples of each channel.
    fn one_stream(
        &self,
        format: Format,
        head: Head,
        (length, samples): (usize, u64),
        codec: Result<Codec, CodecError>,
        is_rate: impl Fn(u32) -> bool,
    ) -> Result<Frames, PlanError> {
        let error = |why| PlanError::Format { format, why };
        if self.complex {
            return Err(error("its samples are real".to_owned()));
        }
        let sample_rate = self.sample_rate as u64;
        let rate = sample_rate / samples.max(1);
        let is_whole = rate * samples == sample_rate;
        let rate = u32::try_from(rate)
            .ok()
            .filter(|rate| is_whole && is_rate(*rate));
        let rate = rate.and_then(FrameRate::new).ok_or_else(|| {
            error(format!(
                "a frame has {samples} samples of each channel, which does not fit {sample_rate} per second"
            ))
        })?;
        Ok(Frames {
            heads: vec![head],
            length,
            rate,
            codec: codec.map_err(PlanError::Bits)?,
        })
    }

    fn mark5b(&self) -> Result<Frames, PlanError> {
        let bits = self.channels.saturating_mul(u32::from(self.bits));
        if !bits.is_power_of_two() || bits > 32 {
            return Err(PlanError::Format {
                format: Format::Mark5b,
                why: format!("a sample of all channels has 1, 2, 4, 8, 16 or 32 bits, not {bits}"),
            });
        }
        let samples = 8 * mark5b::PAYLOAD_LEN as u64 / u64::from(bits);
        let header = mark5b::Header::from_words([mark5b::SYNC, 0, 0, 0]);
        let head = Head::Mark5b(header.map_err(|_| PlanError::Time)?);
        let codec = Codec::mark5b(self.bits);
        let length = mark5b::FRAME_LEN;
        self.one_stream(Format::Mark5b, head, (length, samples), codec, |rate| {
            rate <= mark5b::MAX_FRAME_RATE
        })
    }

    fn mark4(&self, station: &StationPlan) -> Result<Frames, PlanError> {
        let (bits, fan_out) = (usize::from(self.bits), usize::from(station.fan_out));
        let count = (self.channels as usize).saturating_mul(bits * fan_out);
        let tracks = mark4::Tracks::new(count);
        let channels = tracks.map(|tracks| Channels::usual(tracks, bits, fan_out));
        // Its names of further channels are those of lower sidebands.
        let channels = channels.filter(|_| self.channels <= 16);
        let channels = channels.and_then(Result::ok).ok_or_else(|| PlanError::Format {
            format: Format::Mark4,
            why: format!(
                "channels x bits x fan_out = {count} tracks: give 8, 16, 32 or 64, of at most 16 channels \
                 (upper sidebands) of 1 or 2 bits with a fan_out of 1, 2 or 4"
            ),
        })?;
        let mut header = mark4::Header::new(channels.tracks());
        channels.describe(&mut header);
        let samples = (mark4::FRAME_BITS * fan_out) as u64;
        let head = Head::Mark4(Box::new(Tracks {
            header,
            order: Order::of(&channels),
            is_modulated: station.modulated,
        }));
        let length = channels.tracks().frame_length();
        let codec = Codec::vdif(self.bits);
        self.one_stream(Format::Mark4, head, (length, samples), codec, |rate| {
            mark4::FRAME_RATES.contains(&rate)
        })
    }

    fn check_numbers(&self) -> Result<(), PlanError> {
        let whole = (1.0..=1e12).contains(&self.sample_rate) && self.sample_rate.fract() == 0.0;
        Number("sample_rate", self.sample_rate)
            .must(whole, "a whole number of samples per second")?;
        let finite = self.duration > 0.0 && self.duration < 1e9;
        Number("duration", self.duration).must(finite, "a positive number of seconds")?;
        let share = (0.0..=1.0).contains(&self.correlation);
        Number("correlation", self.correlation).must(share, "a coefficient from 0 to 1")?;
        let sky = (0.0..1e15).contains(&self.sky_frequency);
        Number("sky_frequency", self.sky_frequency).must(sky, "a frequency in Hz")
    }

    fn shape(&self) -> Result<Shape, PlanError> {
        let per_thread = self.channels.checked_div(u32::from(self.threads));
        let per_thread = per_thread
            .filter(|channels| {
                channels.is_power_of_two() && self.channels.is_multiple_of(u32::from(self.threads))
            })
            .filter(|_| self.threads <= 1024 && self.channels <= 4096)
            .ok_or(PlanError::Channels {
                channels: self.channels,
                threads: self.threads,
            })?;
        Codec::vdif(self.bits).map_err(PlanError::Bits)?;
        let header_length = if self.legacy { 16 } else { 32 };
        let shape = Shape {
            frame_length: self.payload.saturating_add(header_length),
            log2_channels: per_thread.ilog2() as u8,
            bits: self.bits,
            complex: self.complex,
            legacy: self.legacy,
        };
        shape.check().map_err(PlanError::Shape)?;
        Ok(shape)
    }

    fn frame_rate(&self, shape: Shape) -> Result<FrameRate, PlanError> {
        let sample_rate = self.sample_rate as u64;
        let bits_per_second = sample_rate.saturating_mul(shape.bits_per_complete_sample());
        let fits = |payload: usize| bits_per_second.is_multiple_of(payload as u64 * 8);
        if !fits(self.payload) {
            return Err(PlanError::FramesPerSecond {
                payload: self.payload,
                samples: shape.samples_per_frame(),
                sample_rate,
                remedy: match nearest(self.payload, fits) {
                    Some(payload) => format!("a payload of {payload} bytes does"),
                    None => "no payload does at this rate".to_owned(),
                },
            });
        }
        let frames = bits_per_second / (self.payload as u64 * 8);
        u32::try_from(frames)
            .ok()
            .filter(|frames| *frames <= 1 << 24)
            .and_then(FrameRate::new)
            .ok_or(PlanError::Time)
    }

    fn headers(
        &self,
        shape: Shape,
        station: StationId,
        sample_rate: u64,
    ) -> Result<Vec<Header>, PlanError> {
        let extended = self.extended(shape, sample_rate)?;
        let header = |thread| {
            let mut header = Header::new(shape, StreamKey { station, thread });
            if let Some(extended) = &extended {
                let set = header.set_extended(extended);
                set.map_err(|_| self.edv_error(WHOLE_KHZ))?;
            }
            Ok(header)
        };
        (0..self.threads).map(header).collect()
    }

    fn extended(&self, shape: Shape, sample_rate: u64) -> Result<Option<Extended>, PlanError> {
        let error = |why| Err(self.edv_error(why));
        let samples = if self.complex { 1 } else { 2 };
        let complex_rate = sample_rate / samples;
        match self.edv {
            0 => Ok(None),
            _ if self.legacy => {
                error("legacy headers have no extended data: leave out one of both")
            }
            _ if !sample_rate.is_multiple_of(samples) => error(WHOLE_KHZ),
            1 => Ok(Some(Extended::Nict(Nict {
                complex_rate,
                sync: SYNC,
                das: u64::from_le_bytes(*b"evlbi\0\0\0"),
            }))),
            3 if ![1000, 5000].contains(&self.payload) => {
                error("its frames have a payload of 1000 or 5000 bytes")
            }
            3 if shape.log2_channels != 0 => {
                error("its threads have one channel: give as many threads as channels")
            }
            3 => Ok(Some(Extended::Nrao(Nrao {
                complex_rate,
                sync: SYNC,
                upper: true,
                ..Nrao::default()
            }))),
            _ => error("give 0, 1 or 3"),
        }
    }

    fn edv_error(&self, why: &'static str) -> PlanError {
        PlanError::Edv { edv: self.edv, why }
    }

    fn channel(&self, station: &StationPlan, channel: u32) -> Result<ChannelPlan, PlanError> {
        let (width, lowest) = match self.complex {
            true => (self.sample_rate, -self.sample_rate / 2.0),
            false => (self.sample_rate / 2.0, 0.0),
        };
        let sky_frequency = self.sky_frequency + f64::from(channel) * width;
        let (mut tones, mut tone_power) = (Vec::new(), 0.0);
        if let Some(phase_cal) = station.phase_cal {
            tones = phase_cal.within(sky_frequency + lowest, width)?;
            tone_power = phase_cal.power / tones.len().max(1) as f64;
        }
        let common = self.correlation;
        let own = (1.0 - common) * station.noise;
        Ok(ChannelPlan {
            seed: self.seed,
            common: u64::from(channel),
            own: 1 << 63 | u64::from(station.id()?.0) << 32 | u64::from(channel),
            sample_rate: self.sample_rate,
            complex: self.complex,
            sky_frequency,
            delay: sum(&station.delay, &station.clock),
            share: if common > 0.0 {
                common / (common + own)
            } else {
                0.0
            },
            tones: tones.iter().map(|tone| tone - sky_frequency).collect(),
            tone_power,
        })
    }
}

fn id_of(code: &str) -> Result<StationId, PlanError> {
    match *code.as_bytes() {
        [a, b] if a.is_ascii_alphanumeric() && b.is_ascii_alphanumeric() => {
            Ok(StationId::from_code([a, b]))
        }
        _ => Err(PlanError::Name(code.to_owned())),
    }
}

impl StationPlan {
    fn id(&self) -> Result<StationId, PlanError> {
        id_of(&self.name)
    }

    fn recorded_id(&self) -> Result<StationId, PlanError> {
        id_of(self.code.as_ref().unwrap_or(&self.name))
    }

    fn check_numbers(&self) -> Result<(), PlanError> {
        let noise = (0.0..1e12).contains(&self.noise);
        Number("noise", self.noise).must(noise, "a power, 1 for what `correlation` says")?;
        for (key, coefficients) in [("delay", &self.delay), ("clock", &self.clock)] {
            for value in coefficients {
                let small = value.abs() <= 1.0;
                Number(key, *value).must(small, "coefficients in s, s/s ..., each at most 1")?;
            }
        }
        let rate = self.delay.get(1).copied().unwrap_or_default();
        Number("delay", rate).must(rate.abs() <= 1e-3, "a rate of at most 1e-3 s/s")
    }
}

impl PhaseCal {
    /// Returns the frequencies of the tones inside a channel.
    fn within(self, lowest: f64, width: f64) -> Result<Vec<f64>, PlanError> {
        let fits = self.spacing.is_finite() && self.spacing > width / 10_000.0;
        Number("spacing", self.spacing)
            .must(fits, "a frequency in Hz, at most 10000 tones to a channel")?;
        let power = (0.0..1e12).contains(&self.power);
        Number("power", self.power).must(power, "a power, 1 for that of the noise")?;
        let first = (lowest / self.spacing).floor() as i64 + 1;
        Ok((first..)
            .map(|tone| tone as f64 * self.spacing)
            .take_while(|tone| *tone < lowest + width)
            .collect())
    }
}

/// Frames of a station.
struct Frames {
    heads: Vec<Head>,
    length: usize,
    rate: FrameRate,
    codec: Codec,
}

/// Number of a plan: its key and its value.
struct Number(&'static str, f64);

impl Number {
    fn must(self, is_good: bool, expected: &'static str) -> Result<(), PlanError> {
        let Number(key, value) = self;
        is_good.then_some(()).ok_or(PlanError::Range {
            key,
            value,
            expected,
        })
    }
}

/// Returns the length nearest to `payload` for which `fits` is true, in steps of 8 bytes.
fn nearest(payload: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let payload = payload.next_multiple_of(8);
    (0..=payload / 8)
        .flat_map(|steps| [payload - 8 * steps, payload + 8 * steps])
        .find(|payload| *payload > 0 && fits(*payload))
}

/// Adds two polynomials.
fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    let coefficient = |of: &[f64], n: usize| of.get(n).copied().unwrap_or_default();
    let all = 0..a.len().max(b.len());
    all.map(|n| coefficient(a, n) + coefficient(b, n)).collect()
}

/// Whole UTC seconds as date and time in a file.
mod rfc3339 {
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    pub(super) fn serialize<S: Serializer>(second: &i64, to: S) -> Result<S::Ok, S::Error> {
        let time = jiff::Timestamp::from_second(*second).map_err(ser::Error::custom)?;
        to.collect_str(&time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        let advice = "give a date and time such as \"2024-05-01T12:00:00Z\", in quotes";
        let text = String::deserialize(from).map_err(|_| de::Error::custom(advice))?;
        let time: jiff::Timestamp = text
            .parse()
            .map_err(|error| de::Error::custom(format_args!("{error}; {advice}")))?;
        if time.subsec_nanosecond() != 0 {
            return Err(de::Error::custom("a recording starts with a whole second"));
        }
        Ok(time.as_second())
    }
}
