//! VDIF 1.1 frames: the header of eight (legacy: four) little-endian 32-bit words, and the payload after it.
//!
//! Here belongs a further version of extended user data (`extended`).

mod extended;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::extended::{ALMA_SYNC, Alma, Extended, Merged, Nict, Nrao, RateError, SYNC};
use crate::time::{Epoch, FrameRate, FrameTime};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 32;
/// Length of a legacy header in bytes.
pub const LEGACY_HEADER_LEN: usize = 16;
/// Longest frame that the 24-bit length field can tell, in bytes.
pub const MAX_FRAME_LEN: usize = 0x00ff_ffff * 8;

/// The longest time between two reference epochs, in seconds.
const HALF_YEAR: u64 = 184 * 86_400;

/// Why bytes are no VDIF header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than the header needs.
    #[error("a VDIF header needs {needed} bytes, here are {found}")]
    Short {
        /// Bytes that the header needs.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The length field says less than the header itself takes.
    #[error("the VDIF header gives a frame length of {0} bytes, less than the header itself")]
    FrameLength(usize),
}

/// Why a time does not fit a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the time {0:?} lies outside of VDIF's epochs (2000 to 2031) or its frame number needs more than 24 bits"
)]
#[non_exhaustive]
pub struct TimeError(pub FrameTime);

/// Why a header cannot describe frames of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The frame does not hold the header, or its length is no multiple of 8, or needs more than 24 bits.
    #[error(
        "a VDIF frame is longer than its header, at most {MAX_FRAME_LEN} bytes, and a multiple of 8; not {0} bytes"
    )]
    FrameLength(usize),
    /// More than 2^31 channels.
    #[error("a VDIF frame has at most 2^31 channels, not 2^{0}")]
    Channels(u8),
    /// No bits, or more than fit a word.
    #[error("a VDIF sample has 1 to 32 bits, not {0}")]
    Bits(u8),
    /// Not one sample of each channel fits the frame.
    #[error("one sample of each channel needs {needed} bits, the payload of the frame has {found}")]
    Samples {
        /// Bits that one complete sample takes.
        needed: u64,
        /// Bits of the payload.
        found: u64,
    },
}

/// Two ASCII characters or a number, as the station wishes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct StationId(pub u16);

impl StationId {
    /// The identifier that the two characters of `code` make, first character in the high byte.
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

/// What tells the sub-streams of one data stream apart: the station and its thread.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct StreamKey {
    /// Station identifier.
    pub station: StationId,
    /// Thread identifier, 10 bits.
    pub thread: u16,
}

/// What the samples of a frame look like; the same for every frame of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Length of the frame in bytes, header included; a multiple of 8.
    pub frame_length: usize,
    /// Base-2 logarithm of the number of channels, 0 to 31.
    pub log2_channels: u8,
    /// Bits per sample (per component where complex), 1 to 32.
    pub bits: u8,
    /// Samples have a real and an imaginary component.
    pub complex: bool,
    /// The header has four words instead of eight.
    pub legacy: bool,
}

impl Shape {
    /// Whether a header can describe frames of this shape, and a frame holds a sample of each channel.
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

    /// Length of the header in bytes.
    #[inline]
    pub fn header_length(&self) -> usize {
        match self.legacy {
            true => LEGACY_HEADER_LEN,
            false => HEADER_LEN,
        }
    }

    /// Length of the payload in bytes.
    pub fn payload_length(&self) -> usize {
        self.frame_length.saturating_sub(self.header_length())
    }

    /// Bits that one complete sample (all channels, both components) takes before packing to words.
    pub fn bits_per_complete_sample(&self) -> u64 {
        let components = u64::from(self.complex) + 1;
        (u64::from(self.bits) * components).saturating_mul(self.channels())
    }

    /// Complete samples (one per channel) in a frame. VDIF packs samples into 32-bit words without
    /// splitting one over two words: where its size is no power of two, bits are left over, and where
    /// the two components of a complex one do not fit a word together, each has a word of its own.
    pub fn samples_per_frame(&self) -> u64 {
        let words = self.payload_length() as u64 / 4;
        let bits = u64::from(self.bits).max(1) * if self.complex { 2 } else { 1 };
        let samples = match 32 / bits {
            0 => words / 2,
            per_word => words.saturating_mul(per_word),
        };
        samples / self.channels()
    }

    /// Frames per second of samples at a rate; `None` where they would not fill a second evenly.
    pub fn frame_rate(&self, sample_rate: u64) -> Option<FrameRate> {
        let samples = self.samples_per_frame();
        if samples == 0 || !sample_rate.is_multiple_of(samples) {
            return None;
        }
        FrameRate::new(u32::try_from(sample_rate / samples).ok()?)
    }

    /// Channels in a frame.
    pub fn channels(&self) -> u64 {
        1 << self.log2_channels.min(31)
    }
}

/// A VDIF header. Words that this type does not name are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    words: [u32; 8],
}

/// Place of a header field: word, lowest bit, width. VDIF 1.1, section 5.
struct Field(usize, u32, u32);

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
    /// A header of the given shape, all else zero. A shape that fails [`Shape::check`] loses the bits
    /// that have no place in the header.
    pub fn new(shape: Shape, key: StreamKey) -> Header {
        let mut header = Header { words: [0; 8] };
        header.set(LEGACY, u32::from(shape.legacy));
        header.set(LENGTH_8, (shape.frame_length / 8) as u32);
        header.set(LOG2_CHANNELS, u32::from(shape.log2_channels));
        header.set(BITS_MINUS_1, u32::from(shape.bits.wrapping_sub(1)));
        header.set(COMPLEX, u32::from(shape.complex));
        header.set_key(key);
        header
    }

    /// Reads the header at the beginning of `bytes`. Words 4 to 7 of a legacy header read as zero.
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

    /// The header's bytes; the first [`Header::len`] of them are to be written.
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        for (four, word) in bytes.chunks_exact_mut(4).zip(self.words) {
            four.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Overwrites the beginning of `frame` with this header. Bytes that `frame` lacks are not written.
    pub fn emit(&self, frame: &mut [u8]) {
        let len = self.len().min(frame.len());
        frame[..len].copy_from_slice(&self.to_bytes()[..len]);
    }

    /// Length of this header in bytes: 32, or 16 where legacy.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        match self.is_legacy() {
            true => LEGACY_HEADER_LEN,
            false => HEADER_LEN,
        }
    }

    /// The eight words, as they are.
    pub fn words(&self) -> [u32; 8] {
        self.words
    }

    /// The payload is not to be used.
    #[inline]
    pub fn is_invalid(&self) -> bool {
        self.get(INVALID) == 1
    }

    /// Marks the payload as not to be used, or as good.
    pub fn set_invalid(&mut self, invalid: bool) {
        self.set(INVALID, u32::from(invalid));
    }

    /// The header has four words only.
    #[inline]
    pub fn is_legacy(&self) -> bool {
        self.get(LEGACY) == 1
    }

    /// Seconds since the reference epoch, 30 bits.
    #[inline]
    pub fn seconds(&self) -> u32 {
        self.get(SECONDS)
    }

    /// Reference epoch.
    #[inline]
    pub fn epoch(&self) -> Epoch {
        Epoch::new(self.get(EPOCH) as u8).unwrap_or_else(|| unreachable!("six bits"))
    }

    /// Number of the frame within its second, 24 bits.
    #[inline]
    pub fn frame_number(&self) -> u32 {
        self.get(FRAME_NUMBER)
    }

    /// Time of the frame, exact.
    #[inline]
    pub fn time(&self) -> FrameTime {
        FrameTime {
            second: self.epoch().start() + i64::from(self.seconds()),
            frame: self.frame_number(),
        }
    }

    /// Puts the header at `time`. A step of at most half a year keeps the reference epoch where its 30
    /// bits of seconds reach, as recorders do that run over the end of one; a longer step, as from a new
    /// header, goes to the epoch that holds `time`.
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
        self.set(EPOCH, u32::from(epoch.half_years()));
        self.set(SECONDS, seconds);
        self.set(FRAME_NUMBER, time.frame);
        Ok(())
    }

    /// Length of the frame in bytes, header included.
    #[inline]
    pub fn frame_length(&self) -> usize {
        self.get(LENGTH_8) as usize * 8
    }

    /// VDIF version number, 3 bits.
    pub fn version(&self) -> u8 {
        self.get(VERSION) as u8
    }

    /// What the samples look like.
    pub fn shape(&self) -> Shape {
        Shape {
            frame_length: self.frame_length(),
            log2_channels: self.get(LOG2_CHANNELS) as u8,
            bits: self.get(BITS_MINUS_1) as u8 + 1,
            complex: self.get(COMPLEX) == 1,
            legacy: self.is_legacy(),
        }
    }

    /// Station and thread.
    #[inline]
    pub fn key(&self) -> StreamKey {
        StreamKey {
            station: StationId(self.get(STATION) as u16),
            thread: self.get(THREAD) as u16,
        }
    }

    /// Puts the header into another station's or thread's stream. The thread has 10 bits.
    pub fn set_key(&mut self, key: StreamKey) {
        self.set(STATION, u32::from(key.station.0));
        self.set(THREAD, u32::from(key.thread));
    }

    /// Extended data version of words 4 to 7; `None` in a legacy header.
    pub fn edv(&self) -> Option<u8> {
        (!self.is_legacy()).then(|| self.get(EDV) as u8)
    }

    /// Samples per second of each channel, which EDV 1 and 3 tell. Their field holds the rate of complex
    /// samples; real data has two samples for one of those.
    pub fn sample_rate(&self) -> Option<u64> {
        if !matches!(self.edv(), Some(1 | 3)) {
            return None;
        }
        let components = if self.shape().complex { 1 } else { 2 };
        Some(self.complex_rate() * components).filter(|rate| *rate > 0)
    }

    /// Frames per second as the sample rate in the header gives them; `None` where the header has no
    /// sample rate or the frames would not fill a second evenly.
    pub fn frame_rate(&self) -> Option<FrameRate> {
        self.shape().frame_rate(self.sample_rate()?)
    }

    /// The header of the invalid frame that stands in the place of a lost one: that of `time`, which lies
    /// `frames_on` frames (negative: back) from this one in the same station's same thread.
    ///
    /// The extended words that move from frame to frame move too: the packet serial number of version 2;
    /// the validity mask of version 4, in which nothing is good; the Mark 5B frame number and time code of
    /// version 0xAB, whose fraction of a second stays zero where `rate` is not known. All else is kept.
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

    #[inline]
    fn get(&self, Field(word, low, width): Field) -> u32 {
        self.words[word] >> low & (u32::MAX >> (32 - width))
    }

    #[inline]
    fn set(&mut self, Field(word, low, width): Field, value: u32) {
        let mask = u32::MAX >> (32 - width);
        self.words[word] = self.words[word] & !(mask << low) | (value & mask) << low;
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
