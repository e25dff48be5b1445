//! Which track holds which bit of which channel.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::header::Header;
use super::{Tracks, track::TrackHeader};

/// Sideband of a converter, written as `U` or `L`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Sideband {
    /// Frequencies above that of the oscillator.
    #[serde(rename = "U")]
    Upper,
    /// Frequencies below it.
    #[serde(rename = "L")]
    Lower,
}

/// A channel: a sideband of a converter, which is counted from 0. Its name is `3L` for the lower sideband of converter 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// Converter.
    pub converter: u8,
    /// Sideband.
    pub sideband: Sideband,
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sideband = match self.sideband {
            Sideband::Upper => 'U',
            Sideband::Lower => 'L',
        };
        write!(f, "{}{sideband}", self.converter)
    }
}

impl FromStr for Channel {
    type Err = String;

    fn from_str(text: &str) -> Result<Channel, String> {
        let invalid = || {
            format!("invalid Mark 4 channel {text}: use converter (0 to 15) and sideband, as in 3L")
        };
        let (converter, sideband) = match text.strip_suffix(['U', 'u']) {
            Some(converter) => (converter, Sideband::Upper),
            None => {
                let converter = text.strip_suffix(['L', 'l']).ok_or_else(invalid)?;
                (converter, Sideband::Lower)
            }
        };
        let converter = converter.parse().ok().filter(|number| *number < 16);
        Ok(Channel {
            converter: converter.ok_or_else(invalid)?,
            sideband,
        })
    }
}

/// Reason why tracks do not hold whole channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// Two tracks hold the same bits, as of two stations, or in headers without auxiliary data.
    #[error("tracks {0} and {1} hold the same bits of channel {2}, by their headers")]
    Twice(usize, usize, Channel),
    /// A channel lacks a track.
    #[error("channel {0} lacks tracks of some of its bits, by the headers")]
    Incomplete(Channel),
    /// Channels differ in bits or fan-out.
    #[error(
        "channels {0} and {1} differ in bits per sample or in samples per bit time, by the headers"
    )]
    Differ(Channel, Channel),
    /// Bits or fan-out that do not exist, or do not fit the number of tracks.
    #[error(
        "no order of {tracks} tracks has {bits} bits per sample and {fan_out} samples per bit time"
    )]
    Unknown {
        /// Number of tracks.
        tracks: usize,
        /// Bits per sample.
        bits: usize,
        /// Samples of a channel per bit time.
        fan_out: usize,
    },
}

/// The channels on the tracks of a recording, in the order of converter and sideband, upper first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels {
    tracks: Tracks,
    bits: usize,
    fan_out: usize,
    channels: Vec<Channel>,
    /// Indices of tracks: for each channel, the signs of its samples in a bit time, then their magnitudes.
    places: Vec<Vec<u8>>,
}

/// Channels that have names: two sidebands of 16 converters.
const MAX_CHANNELS: usize = 32;

/// A bit of a channel: magnitude or sign, of which sample of a bit time.
type Bit = (bool, usize);

impl Channels {
    /// Reads from the headers of the tracks which bits they hold.
    pub fn of(header: &Header) -> Result<Channels, ChannelError> {
        let channel = |head: &TrackHeader| Channel {
            converter: head.converter(),
            sideband: match head.is_lower() {
                true => Sideband::Lower,
                false => Sideband::Upper,
            },
        };
        let bit = |head: &TrackHeader| -> Bit { (head.is_magnitude(), head.sub_sample()) };
        let heads = header.tracks().iter().enumerate();
        let mut held: Vec<(Channel, Bit, u8)> = heads
            .map(|(index, head)| (channel(head), bit(head), index as u8))
            .collect();
        held.sort_unstable();
        let twice = held.windows(2).find(|two| {
            let [a, b] = [&two[0], &two[1]];
            (a.0, a.1) == (b.0, b.1)
        });
        if let Some(two) = twice {
            let [a, b] = [two[0].2, two[1].2].map(usize::from);
            return Err(ChannelError::Twice(a, b, two[0].0));
        }
        let of_channel = held.chunk_by(|a, b| a.0 == b.0);
        let mut shapes = Vec::new();
        let (mut channels, mut places) = (Vec::new(), Vec::new());
        for held in of_channel {
            let channel = held[0].0;
            let signs = held.iter().filter(|(_, (magnitude, _), _)| !magnitude);
            let fan_out = signs.count();
            let bits = held.len().checked_div(fan_out).unwrap_or(0);
            let expected = (0..bits).flat_map(|bit| (0..fan_out).map(move |sub| (bit == 1, sub)));
            let is_whole = held.iter().map(|held| held.1).eq(expected);
            if !is_whole || !matches!(bits, 1 | 2) || !matches!(fan_out, 1 | 2 | 4) {
                return Err(ChannelError::Incomplete(channel));
            }
            shapes.push((bits, fan_out));
            channels.push(channel);
            places.push(held.iter().map(|held| held.2).collect());
        }
        let (bits, fan_out) = shapes[0];
        let other = shapes.iter().position(|shape| *shape != (bits, fan_out));
        if let Some(other) = other {
            return Err(ChannelError::Differ(channels[0], channels[other]));
        }
        Ok(Channels {
            tracks: header.tracks,
            bits,
            fan_out,
            channels,
            places,
        })
    }

    /// Makes the usual order of channels on tracks: the tables of memo 230, with converters counted in the order of the tables, all of
    /// them upper sidebands; from the seventeenth channel on, lower ones.
    pub fn usual(tracks: Tracks, bits: usize, fan_out: usize) -> Result<Channels, ChannelError> {
        let count = tracks.count();
        let is_known = matches!(bits, 1 | 2) && matches!(fan_out, 1 | 2 | 4);
        let held = bits.saturating_mul(fan_out);
        if !is_known || held > count || count / held > MAX_CHANNELS {
            let tracks = count;
            return Err(ChannelError::Unknown {
                tracks,
                bits,
                fan_out,
            });
        }
        // A table is about the 32 tracks of a headstack, of which fewer are the even ones. Even and odd tracks hold channels by
        // themselves, which alternate but for two bits without fan-out.
        let halves = if count < 32 { 1 } else { 2 };
        let groups = count.min(32) / halves / held;
        let alternate = (bits, fan_out) != (2, 1);
        let of_channel = |channel: usize| -> Vec<u8> {
            let (stack, channel) = (channel / (halves * groups), channel % (halves * groups));
            let (group, half) = match alternate {
                true => (channel / halves, channel % halves),
                false => (channel % groups, channel / groups),
            };
            let place = |number: usize| 32 * stack + halves * (group * held + number) + half;
            (0..held).map(|number| place(number) as u8).collect()
        };
        let places: Vec<Vec<u8>> = (0..count / held).map(of_channel).collect();
        let channel = |converter: usize| Channel {
            converter: (converter % 16) as u8,
            sideband: match converter / 16 % 2 {
                0 => Sideband::Upper,
                _ => Sideband::Lower,
            },
        };
        Ok(Channels {
            tracks,
            bits,
            fan_out,
            channels: (0..places.len()).map(channel).collect(),
            places,
        })
    }

    /// Returns the tracks.
    pub fn tracks(&self) -> Tracks {
        self.tracks
    }

    /// Returns the bits per sample, 1 or 2.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Returns the samples of a channel per bit time: 1, 2 or 4.
    pub fn fan_out(&self) -> usize {
        self.fan_out
    }

    /// Returns the channels, in order.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Returns the index of the track that holds a bit: `bit` 0 is the sign, 1 the magnitude.
    pub(super) fn place(&self, channel: usize, bit: usize, sub_sample: usize) -> usize {
        usize::from(self.places[channel][bit * self.fan_out + sub_sample])
    }

    /// Writes into the headers of the tracks which bits they hold.
    pub fn describe(&self, header: &mut Header) {
        for (channel, places) in self.channels.iter().zip(&self.places) {
            let lower = channel.sideband == Sideband::Lower;
            for (number, place) in places.iter().enumerate() {
                let (bit, sub) = (number / self.fan_out, number % self.fan_out);
                let heads = header.tracks_mut();
                if let Some(head) = heads.get_mut(usize::from(*place)) {
                    head.set_samples(channel.converter, lower, bit == 1, sub);
                }
            }
        }
    }
}
