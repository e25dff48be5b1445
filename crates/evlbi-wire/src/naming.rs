//! Names of how samples are recorded: `MKIV1_4-512-8-2` is Mark 4 with a fan-out of 4, 512 Mbit/s, 8 channels and 2 bits.
//!
//! jive5ab and mark5access use these names. The rate is that of all samples, without the headers of frames; samples that the headers of
//! Mark 4 replace count. Names of further recorders belong here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::mark4::Tracks;
use crate::mark5b;
use crate::time::FrameRate;

/// Text that does not name a format, or one that names a format that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Not FORMAT-RATE-CHANNELS-BITS with a known format.
    #[error(
        "invalid format `{0}`: give recorder, Mbit/s, channels and bits, e.g. MKIV1_4-512-8-2, Mark5B-1024-16-2, VDIF_8000-1024-16-2"
    )]
    Form(String),
    /// A format of which only the name is known.
    #[error(
        "unsupported format `{name}`: {kind} cannot be decoded, only Mark 4 with a fan-out of 1, 2 or 4, Mark 5B and VDIF"
    )]
    Unsupported {
        /// Given name.
        name: String,
        /// Kind of the format.
        kind: &'static str,
    },
    /// Numbers that do not fit each other or the recorder.
    #[error("invalid format `{name}`: {why}")]
    Numbers {
        /// Given name.
        name: String,
        /// Reason.
        why: String,
    },
}

/// Recorder whose frames contain the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recorder {
    /// Mark 4 on disk, with the samples of a channel on this many tracks in turn.
    Mark4 {
        /// Samples of a channel per bit time: 1, 2 or 4.
        fan_out: usize,
    },
    /// Mark 5B.
    Mark5b,
    /// VDIF.
    Vdif {
        /// Length of a payload in bytes, if it was given.
        payload: Option<usize>,
    },
}

/// Name of a format: recorder, rate, channels and bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FormatName {
    recorder: Recorder,
    /// Bits of samples per second.
    rate: u64,
    channels: usize,
    bits: u8,
}

impl FormatName {
    /// Returns the recorder.
    pub fn recorder(&self) -> Recorder {
        self.recorder
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the bits per sample.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Returns the bits of samples per second of all channels.
    pub fn bit_rate(&self) -> u64 {
        self.rate
    }

    /// Returns the samples of a channel per second.
    pub fn sample_rate(&self) -> u64 {
        self.rate / self.sample_bits()
    }

    /// Returns the number of tracks, for Mark 4.
    pub fn tracks(&self) -> Option<Tracks> {
        match self.recorder {
            Recorder::Mark4 { fan_out } => {
                Tracks::new(self.channels * usize::from(self.bits) * fan_out)
            }
            _ => None,
        }
    }

    /// Returns the frames per second; `None` if that is not a whole number, or depends on the length of VDIF's frames.
    pub fn frame_rate(&self) -> Option<FrameRate> {
        let length = match self.recorder {
            Recorder::Mark4 { .. } => self.tracks()?.frame_length(),
            Recorder::Mark5b => mark5b::PAYLOAD_LEN,
            Recorder::Vdif { payload } => payload?,
        };
        let bits = 8u64.checked_mul(length as u64)?;
        let rate = self.rate.is_multiple_of(bits).then(|| self.rate / bits)?;
        FrameRate::new(u32::try_from(rate).ok()?)
    }

    /// Makes the name of a format; `None` if the numbers do not fit each other or the recorder.
    pub fn new(recorder: Recorder, rate: u64, channels: usize, bits: u8) -> Option<FormatName> {
        let name = FormatName {
            recorder,
            rate,
            channels,
            bits,
        };
        name.why_not().is_none().then_some(name)
    }

    fn sample_bits(&self) -> u64 {
        (self.channels as u64)
            .saturating_mul(u64::from(self.bits))
            .max(1)
    }

    fn why_not(&self) -> Option<String> {
        let (channels, bits, width) = (self.channels, self.bits, self.sample_bits());
        if channels == 0 || channels > MAX_CHANNELS || !(1..=32).contains(&bits) {
            return Some(format!(
                "{channels} channels of {bits} bits: give 1 to {MAX_CHANNELS} channels of 1 to 32 bits"
            ));
        }
        if self.rate == 0 || !self.rate.is_multiple_of(width) {
            return Some(format!(
                "{} Mbit/s are not a whole number of samples per second of {width} bits",
                megabits(self.rate)
            ));
        }
        match self.recorder {
            Recorder::Mark4 { .. } | Recorder::Mark5b if bits > 2 => {
                Some(format!("{bits} bits per sample: it records 1 or 2"))
            }
            Recorder::Mark4 { fan_out } => {
                let tracks = channels * usize::from(bits) * fan_out;
                let track_rate = self.rate / tracks.max(1) as u64;
                let is_exact = track_rate * tracks as u64 == self.rate;
                match Tracks::new(tracks) {
                    None => Some(format!(
                        "{tracks} tracks (channels, bits and fan-out multiplied): Mark 5A records 8, 16, 32 or 64"
                    )),
                    Some(_) if is_exact && TRACK_RATES.contains(&track_rate) => None,
                    Some(_) => Some(format!(
                        "{} Mbit/s on {tracks} tracks: a track records 0.125, 0.25, 0.5, 1, 2, 4, 8 or 16 Mbit/s",
                        megabits(self.rate)
                    )),
                }
            }
            Recorder::Mark5b if !width.is_power_of_two() || width > 32 => Some(format!(
                "{width} bits of all channels: Mark 5B records 1, 2, 4, 8, 16 or 32"
            )),
            _ => None,
        }
    }
}

/// Maximum number of channels.
const MAX_CHANNELS: usize = 1 << 16;

/// Bits per second of a track, without parity. Memo 230, table 2.
const TRACK_RATES: [u64; 8] = [
    125_000, 250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000,
];

/// Returns a rate in Mbit/s.
fn megabits(rate: u64) -> String {
    let text = format!("{}.{:06}", rate / 1_000_000, rate % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Parses a rate in Mbit/s, with up to six decimals.
fn rate(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !are_digits(whole) || !are_digits(part) || part.len() > 6 {
        return None;
    }
    let part: u64 = format!("{part:0<6}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(1_000_000)?.checked_add(part)
}

impl FromStr for FormatName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<FormatName, NameError> {
        let form = || NameError::Form(text.to_owned());
        let (kind, numbers) = text.split_once('-').unwrap_or((text, ""));
        let recorder = recorder(text, kind)?;
        let numbers = match numbers.split_once('/') {
            // mark5access adds the decimation.
            Some((numbers, "1")) => numbers,
            Some((_, decimation)) => {
                return Err(NameError::Numbers {
                    name: text.to_owned(),
                    why: format!(
                        "a decimation of {decimation}: all samples are used, leave it out"
                    ),
                });
            }
            None => numbers,
        };
        let numbers: Vec<&str> = numbers.split('-').collect();
        let [megabits, channels, bits] = numbers[..] else {
            return Err(form());
        };
        let name = FormatName {
            recorder,
            rate: rate(megabits).ok_or_else(form)?,
            channels: channels.parse().map_err(|_| form())?,
            bits: bits.parse().map_err(|_| form())?,
        };
        match name.why_not() {
            Some(why) => Err(NameError::Numbers {
                name: text.to_owned(),
                why,
            }),
            None => Ok(name),
        }
    }
}

/// Returns the recorder that the first part of the name `text` names.
fn recorder(text: &str, kind: &str) -> Result<Recorder, NameError> {
    let unsupported = |kind| {
        Err(NameError::Unsupported {
            name: text.to_owned(),
            kind,
        })
    };
    let kind = kind.to_ascii_lowercase().replace(' ', "");
    let is_any = |names: &[&str]| names.iter().any(|name| kind.starts_with(name));
    if is_any(&["mkiii", "markiii", "mark3", "mk3"]) {
        return unsupported("Mark IIIA");
    }
    if is_any(&["vlba", "vlbn"]) {
        return unsupported("VLBA tape");
    }
    let form = || NameError::Form(text.to_owned());
    if let Some(fan) = kind.strip_prefix("mkiv") {
        let (tracks_in, out) = fan.split_once('_').ok_or_else(form)?;
        return match (tracks_in, out) {
            ("1", "1" | "2" | "4") => Ok(Recorder::Mark4 {
                fan_out: out.parse().map_err(|_| form())?,
            }),
            ("2" | "4", _) => unsupported("fan-in, several channels on a track,"),
            _ => Err(form()),
        };
    }
    match kind.strip_prefix("vdif") {
        Some("") => Ok(Recorder::Vdif { payload: None }),
        Some(payload) => {
            let payload = payload.strip_prefix('_').and_then(|it| it.parse().ok());
            let payload = payload.filter(|payload| *payload > 0);
            payload.map_or_else(
                || Err(form()),
                |payload| {
                    Ok(Recorder::Vdif {
                        payload: Some(payload),
                    })
                },
            )
        }
        None if kind == "mark5b" => Ok(Recorder::Mark5b),
        None => Err(form()),
    }
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.recorder {
            Recorder::Mark4 { fan_out } => write!(f, "MKIV1_{fan_out}")?,
            Recorder::Mark5b => write!(f, "Mark5B")?,
            Recorder::Vdif { payload: None } => write!(f, "VDIF")?,
            Recorder::Vdif {
                payload: Some(payload),
            } => write!(f, "VDIF_{payload}")?,
        }
        write!(
            f,
            "-{}-{}-{}",
            megabits(self.rate),
            self.channels,
            self.bits
        )
    }
}

impl TryFrom<String> for FormatName {
    type Error = NameError;

    fn try_from(text: String) -> Result<FormatName, NameError> {
        text.parse()
    }
}

impl From<FormatName> for String {
    fn from(name: FormatName) -> String {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<FormatName, String> {
        text.parse().map_err(|error: NameError| error.to_string())
    }

    #[test]
    fn names_of_jive5ab_and_mark5access_are_read() {
        let mark4 = read("MKIV1_4-512-8-2").unwrap();
        assert_eq!(mark4.recorder(), Recorder::Mark4 { fan_out: 4 });
        assert_eq!((mark4.channels(), mark4.bits()), (8, 2));
        assert_eq!(mark4.tracks().map(Tracks::count), Some(64));
        assert_eq!(mark4.sample_rate(), 32_000_000);
        assert_eq!(mark4.frame_rate().map(FrameRate::get), Some(400));
        assert_eq!(read("mkiv1_4-512-8-2/1").unwrap(), mark4);
        let mark5b = read("Mark5B-1024-16-2").unwrap();
        assert_eq!(
            (mark5b.recorder(), mark5b.sample_rate()),
            (Recorder::Mark5b, 32_000_000)
        );
        assert_eq!(mark5b.frame_rate().map(FrameRate::get), Some(12_800));
        let vdif = read("VDIF_8000-1024-16-2").unwrap();
        assert_eq!(vdif.frame_rate().map(FrameRate::get), Some(16_000));
        assert_eq!(read("VDIF-1024-16-2").unwrap().frame_rate(), None);
        // Frames of 80 ms begin within seconds.
        let slow = read("MKIV1_1-16-32-2").unwrap();
        assert_eq!((slow.sample_rate(), slow.frame_rate()), (250_000, None));
    }

    #[test]
    fn formats_that_cannot_be_decoded_are_refused_by_name() {
        for (text, says) in [
            ("MKIV4_1-512-8-2", "fan-in"),
            ("MKIV2_1-64-8-2", "fan-in"),
            ("VLBA1_2-256-8-2", "VLBA tape"),
            ("VLBN1_2-256-8-2", "VLBA tape"),
            ("MarkIIIA-112-28-1", "Mark IIIA"),
            ("Mark 3A", "Mark IIIA"),
            ("MKIV1_4-512-8-2/2", "decimation of 2"),
            ("MKIV1_4-480-8-3", "1 or 2"),
            ("MKIV1_4-384-3-2", "24 tracks"),
            ("MKIV1_4-576-8-2", "a track records"),
            ("MKIV1_3-512-8-2", "invalid format"),
            ("Mark5B-384-3-2", "6 bits of all channels"),
            ("Mark5B-512-3-2", "whole number of samples"),
            ("Mark5B-1024-0-2", "give 1 to 65536 channels"),
            ("Mark5B-1024-16", "e.g. MKIV1_4-512-8-2"),
            ("512-8-2", "e.g. MKIV1_4-512-8-2"),
            ("VDIF_0-512-8-2", "invalid format"),
            ("VDIF--512-8-2", "invalid format"),
            ("", "invalid format"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(MKIV|Mark5B|VDIF|VLBA|[a-z]{0,3})[-_/.0-9]{0,16}") {
            if let Ok(name) = read(&text) {
                prop_assert_eq!(read(&name.to_string()), Ok(name));
            }
        }

        #[test]
        fn names_are_read_as_they_are_written(
            fan_out in prop::sample::select(vec![1usize, 2, 4]),
            log_channels in 0u32..5,
            bits in 1u8..3,
            payload in prop::option::of(1usize..10_000),
            rate in 1u64..5000,
        ) {
            let channels = 1 << log_channels;
            let recorders = [Recorder::Mark4 { fan_out }, Recorder::Mark5b, Recorder::Vdif { payload }];
            for recorder in recorders {
                let rate = rate * 125_000 * channels as u64 * u64::from(bits);
                if let Some(name) = FormatName::new(recorder, rate, channels, bits) {
                    prop_assert_eq!(read(&name.to_string()), Ok(name));
                }
            }
        }
    }
}
