//! VDIF 1.1 frames: the header of eight (legacy: four) little-endian 32-bit words, followed by the payload.
//!
//! New versions of extended user data belong in `extended`.

mod extended;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::extended::{ALMA_SYNC, Alma, Extended, Merged, Nict, Nrao, RateError, SYNC};
use crate::field::Field;
use crate::time::{Epoch, FrameRate, FrameTime};

/// Length of a header, in bytes.
pub const HEADER_LEN: usize = 32;
/// Length of a legacy header, in bytes.
pub const LEGACY_HEADER_LEN: usize = 16;
/// Maximum length of a frame in bytes, from the 24-bit length field.
pub const MAX_FRAME_LEN: usize = 0x00ff_ffff * 8;

/// Longest time between two reference epochs, in seconds.
const HALF_YEAR: u64 = 184 * 86_400;

/// Reason why bytes are not a VDIF header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than the header needs.
    #[error("truncated VDIF header: need {needed} bytes, got {found}")]
    Short {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes given.
        found: usize,
    },
    /// The length field gives less than the length of the header.
    #[error("invalid frame length in a VDIF header: {0} bytes, less than the header itself")]
    FrameLength(usize),
}

/// Time that does not fit a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "time {0:?} does not fit a VDIF header: it is outside VDIF's epochs (2000 to 2031), or its frame number needs more than 24 bits"
)]
#[non_exhaustive]
pub struct TimeError(pub FrameTime);

/// Reason why a header cannot describe frames of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The frame is not longer than its header, or its length is not a multiple of 8, or needs more than 24 bits.
    #[error(
        "invalid VDIF frame length {0} bytes: use a multiple of 8, longer than the header, at most {MAX_FRAME_LEN} bytes"
    )]
    FrameLength(usize),
    /// More than 2^31 channels.
    #[error("too many channels for a VDIF frame: 2^{0}, the maximum is 2^31")]
    Channels(u8),
    /// No bits, or more than fit a word.
    #[error("invalid number of bits of a VDIF sample, {0}: use 1 to 32")]
    Bits(u8),
    /// One sample of each channel does not fit the frame.
    #[error(
        "VDIF frame too short: one sample of each channel needs {needed} bits, the payload has {found}"
    )]
    Samples {
        /// Bits of one complete sample.
        needed: u64,
        /// Bits of the payload.
        found: u64,
    },
}

/// Station identifier: two ASCII characters or a number, as the station chooses.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StationId(pub u16);

impl StationId {
    /// Makes the identifier of two characters, with the first one in the high byte.
    pub fn from_code(code: [u8; 2]) -> StationId {
        StationId(u16::from_be_bytes(code))
    }
}

impl fmt::Display for StationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.0.to_be_bytes();
        if code.iter().all(u8::is_ascii_alphanumeric) {
            write!(f, "{}{}", code[0] as char, code[1] as char)
        } else {
            write!(f, "{}", self.0)
        }
    }
}

/// Identity of a sub-stream: the station and its thread.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamKey {
    /// Station identifier.
    pub station: StationId,
    /// Thread identifier, 10 bits.
    pub thread: u16,
}

/// Format of the samples of a frame, the same for every frame of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Length of the frame in bytes, header included; a multiple of 8.
    pub frame_length: usize,
    /// Base-2 logarithm of the number of channels, 0 to 31.
    pub log2_channels: u8,
    /// Bits per sample (for complex samples: per component), 1 to 32.
    pub bits: u8,
    /// Whether samples have a real and an imaginary component.
    pub complex: bool,
    /// Whether the header has four words instead of eight.
    pub legacy: bool,
}

impl Shape {
    /// Checks that a header can describe frames of this shape, and that a frame holds a sample of each channel.
    pub fn check(&self) -> Result<(), ShapeError> {
        let lengths = self.header_length() + 1..=MAX_FRAME_LEN;
        if !lengths.contains(&self.frame_length) || !self.frame_length.is_multiple_of(8) {
            return Err(ShapeError::FrameLength(self.frame_length));
        }
        if self.log2_channels > 31 {
            return Err(ShapeError::Channels(self.log2_channels));
        }
        if !(1..=32).contains(&self.bits) {
            return Err(ShapeError::Bits(self.bits));
        }
        if self.samples_per_frame() == 0 {
            return Err(ShapeError::Samples {
                needed: self.bits_per_complete_sample(),
                found: self.payload_length() as u64 * 8,
            });
        }
        Ok(())
    }

    /// Returns the length of the header, in bytes.
    #[inline]
    pub fn header_length(&self) -> usize {
        match self.legacy {
            true => LEGACY_HEADER_LEN,
            false => HEADER_LEN,
        }
    }

    /// Returns the length of the payload, in bytes.
    pub fn payload_length(&self) -> usize {
        self.frame_length.saturating_sub(self.header_length())
    }

    /// Returns the bits of one complete sample (all channels, both components), before packing to words.
    pub fn bits_per_complete_sample(&self) -> u64 {
        let components = u64::from(self.complex) + 1;
        (u64::from(self.bits) * components).saturating_mul(self.channels())
    }

    /// Returns the complete samples (one per channel) in a frame. VDIF packs samples into 32-bit words without splitting one
    /// across two words. If the size of a sample is not a power of two, some bits are unused. If the two components of a complex
    /// sample do not fit a word together, each has a word of its own.
    pub fn samples_per_frame(&self) -> u64 {
        let words = self.payload_length() as u64 / 4;
        let bits = u64::from(self.bits).max(1) * if self.complex { 2 } else { 1 };
        let samples = match 32 / bits {
            0 => words / 2,
            per_word => words.saturating_mul(per_word),
        };
        samples / self.channels()
    }

    /// Returns the frames per second at a sample rate; `None` if that is not a whole number.
    pub fn frame_rate(&self, sample_rate: u64) -> Option<FrameRate> {
        let samples = self.samples_per_frame();
        if samples == 0 || !sample_rate.is_multiple_of(samples) {
            return None;
        }
        FrameRate::new(u32::try_from(sample_rate / samples).ok()?)
    }

    /// Returns the channels in a frame.
    pub fn channels(&self) -> u64 {
        1 << self.log2_channels.min(31)
    }
}

/// VDIF header. Words that this type does not name are kept unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    words: [u32; 8],
}

// Fields of a header: VDIF 1.1, section 5.
const INVALID: Field = Field(0, 31, 1);
const LEGACY: Field = Field(0, 30, 1);
const SECONDS: Field = Field(0, 0, 30);
const EPOCH: Field = Field(1, 24, 6);
const FRAME_NUMBER: Field = Field(1, 0, 24);
const VERSION: Field = Field(2, 29, 3);
const LOG2_CHANNELS: Field = Field(2, 24, 5);
const LENGTH_8: Field = Field(2, 0, 24);
const COMPLEX: Field = Field(3, 31, 1);
const BITS_MINUS_1: Field = Field(3, 26, 5);
const THREAD: Field = Field(3, 16, 10);
const STATION: Field = Field(3, 0, 16);
const EDV: Field = Field(4, 24, 8);
const RATE_UNIT: Field = Field(4, 23, 1);
const RATE: Field = Field(4, 0, 23);

impl Header {
    /// Makes a header of the given shape; all else is zero. If the shape fails [`Shape::check`], bits that do not fit the header
    /// are dropped.
    pub fn new(shape: Shape, key: StreamKey) -> Header {
        let mut header = Header { words: [0; 8] };
        LEGACY.set(&mut header.words, u32::from(shape.legacy));
        header.set_shape(shape);
        header.set_key(key);
        header
    }

    /// Parses the header at the start of `bytes`. Words 4 to 7 of a legacy header are zero.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
        let short = |needed| HeaderError::Short {
            needed,
            found: bytes.len(),
        };
        let mut header = Header { words: [0; 8] };
        if bytes.len() < LEGACY_HEADER_LEN {
            return Err(short(LEGACY_HEADER_LEN));
        }
        header.read_words(&bytes[..LEGACY_HEADER_LEN]);
        if !header.is_legacy() {
            if bytes.len() < HEADER_LEN {
                return Err(short(HEADER_LEN));
            }
            header.read_words(&bytes[..HEADER_LEN]);
        }
        if header.frame_length() < header.len() {
            return Err(HeaderError::FrameLength(header.frame_length()));
        }
        Ok(header)
    }

    #[inline]
    fn read_words(&mut self, bytes: &[u8]) {
        for (word, four) in self.words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        }
    }

    /// Returns the header as bytes, of which the first [`Header::len`] are to be written.
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        for (four, word) in bytes.chunks_exact_mut(4).zip(self.words) {
            four.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Writes this header to the start of `frame`. If `frame` is shorter, the rest of the header is not written.
    pub fn emit(&self, frame: &mut [u8]) {
        let len = self.len().min(frame.len());
        frame[..len].copy_from_slice(&self.to_bytes()[..len]);
    }

    /// Returns the length of this header in bytes: 32, or 16 if legacy.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        match self.is_legacy() {
            true => LEGACY_HEADER_LEN,
            false => HEADER_LEN,
        }
    }

    /// Returns the eight words unchanged.
    pub fn words(&self) -> [u32; 8] {
        self.words
    }

    /// Returns whether the payload is marked invalid.
    #[inline]
    pub fn is_invalid(&self) -> bool {
        INVALID.of(&self.words) == 1
    }

    /// Marks the payload as invalid or valid.
    pub fn set_invalid(&mut self, invalid: bool) {
        INVALID.set(&mut self.words, u32::from(invalid));
    }

    /// Returns whether the header has only four words.
    #[inline]
    pub fn is_legacy(&self) -> bool {
        LEGACY.of(&self.words) == 1
    }

    /// Returns the seconds since the reference epoch, 30 bits.
    #[inline]
    pub fn seconds(&self) -> u32 {
        SECONDS.of(&self.words)
    }

    /// Returns the reference epoch.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        Epoch::new(EPOCH.of(&self.words) as u8).unwrap_or_else(|| unreachable!("six bits"))
    }

    /// Returns the number of the frame within its second, 24 bits.
    #[inline]
    pub fn frame_number(&self) -> u32 {
        FRAME_NUMBER.of(&self.words)
    }

    /// Returns the exact time of the frame.
    #[inline]
    pub fn time(&self) -> FrameTime {
        FrameTime {
            second: self.epoch().start() + i64::from(self.seconds()),
            frame: self.frame_number(),
        }
    }

    /// Sets the time. The reference epoch stays for a step of up to half a year if its 30 bits of seconds suffice, as in
    /// recordings that run past the end of an epoch. A longer step, as from a new header, selects the epoch that contains `time`.
    #[inline]
    pub fn set_time(&mut self, time: FrameTime) -> Result<(), TimeError> {
        let since = |epoch: Epoch| {
            u32::try_from(time.second.checked_sub(epoch.start())?)
                .ok()
                .filter(|seconds| *seconds < 1 << 30)
        };
        let kept = since(self.epoch())
            .filter(|_| time.second.abs_diff(self.time().second) <= HALF_YEAR)
            .map(|seconds| (self.epoch(), seconds));
        let (epoch, seconds) = kept
            .or_else(|| {
                let epoch = Epoch::containing(time.second)?;
                Some((epoch, since(epoch)?))
            })
            .filter(|_| time.frame < 1 << 24)
            .ok_or(TimeError(time))?;
        EPOCH.set(&mut self.words, u32::from(epoch.half_years()));
        SECONDS.set(&mut self.words, seconds);
        FRAME_NUMBER.set(&mut self.words, time.frame);
        Ok(())
    }

    /// Returns the length of the frame in bytes, header included.
    #[inline]
    pub fn frame_length(&self) -> usize {
        LENGTH_8.of(&self.words) as usize * 8
    }

    /// Returns the VDIF version number, 3 bits.
    pub fn version(&self) -> u8 {
        VERSION.of(&self.words) as u8
    }

    /// Returns the format of the samples.
    pub fn shape(&self) -> Shape {
        Shape {
            frame_length: self.frame_length(),
            log2_channels: LOG2_CHANNELS.of(&self.words) as u8,
            bits: BITS_MINUS_1.of(&self.words) as u8 + 1,
            complex: COMPLEX.of(&self.words) == 1,
            legacy: self.is_legacy(),
        }
    }

    /// Sets the format of the samples, except whether the header is a legacy one. As in [`Header::new`], bits that do not fit are
    /// dropped.
    pub fn set_shape(&mut self, shape: Shape) {
        LENGTH_8.set(&mut self.words, (shape.frame_length / 8) as u32);
        LOG2_CHANNELS.set(&mut self.words, u32::from(shape.log2_channels));
        BITS_MINUS_1.set(&mut self.words, u32::from(shape.bits.wrapping_sub(1)));
        COMPLEX.set(&mut self.words, u32::from(shape.complex));
    }

    /// Returns station and thread.
    #[inline]
    pub fn key(&self) -> StreamKey {
        StreamKey {
            station: StationId(STATION.of(&self.words) as u16),
            thread: THREAD.of(&self.words) as u16,
        }
    }

    /// Sets station and thread. The thread has 10 bits.
    pub fn set_key(&mut self, key: StreamKey) {
        STATION.set(&mut self.words, u32::from(key.station.0));
        THREAD.set(&mut self.words, u32::from(key.thread));
    }

    /// Returns the extended data version of words 4 to 7; `None` in a legacy header.
    pub fn edv(&self) -> Option<u8> {
        (!self.is_legacy()).then(|| EDV.of(&self.words) as u8)
    }

    /// Returns the samples per second of each channel, which EDV 1 and 3 give. Their field holds the rate of complex samples;
    /// real data have two samples for each of those.
    pub fn sample_rate(&self) -> Option<u64> {
        if !matches!(self.edv(), Some(1 | 3)) {
            return None;
        }
        let components = if self.shape().complex { 1 } else { 2 };
        Some(self.complex_rate() * components).filter(|rate| *rate > 0)
    }

    /// Returns the frames per second from the sample rate in the header; `None` if the header has no sample rate or the frames
    /// per second are not a whole number.
    pub fn frame_rate(&self) -> Option<FrameRate> {
        self.shape().frame_rate(self.sample_rate()?)
    }

    /// Makes the header of the invalid frame that replaces a lost one at `time`, `frames_on` frames after this one (negative:
    /// before) in the same thread of the same station.
    ///
    /// Extended words that change from frame to frame are updated: the packet serial number of version 2; the validity mask of
    /// version 4, which becomes all invalid; the Mark 5B frame number and time code of version 0xAB, whose fraction of a second
    /// is zero if `rate` is unknown. All else is kept.
    pub fn fill_after(
        &self,
        time: FrameTime,
        frames_on: i64,
        rate: Option<FrameRate>,
    ) -> Result<Header, TimeError> {
        let mut header = *self;
        header.set_time(time)?;
        header.set_invalid(true);
        match header.extended() {
            Some(Extended::Alma(alma)) => {
                header.set_words_6_and_7(alma.serial.wrapping_add_signed(frames_on));
            }
            Some(Extended::Merged(_)) => header.set_words_6_and_7(0),
            Some(Extended::Mark5b(inner)) => {
                let inner = inner.fill_at(time, rate).map_err(|_| TimeError(time))?;
                header.words[4..].copy_from_slice(&inner.words());
            }
            _ => {}
        }
        Ok(header)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("time", &self.time())
            .field("key", &self.key())
            .field("shape", &self.shape())
            .field("invalid", &self.is_invalid())
            .field("edv", &self.edv())
            .finish()
    }
}
