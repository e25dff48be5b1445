//! Mark 5B disk frames: a header of four little-endian 32-bit words, then 10 000 bytes of samples.
//!
//! The header gives the time twice: as a frame number within the second, which is exact, and as VLBA time code in BCD (MJD modulo
//! 1000, second of the day, truncated tenths of a millisecond) with a CRC-16. Mark 5B system user's manual, section 5.

use std::fmt;
use std::num::NonZeroU32;

use crc::{CRC_16_UMTS, Crc};

use crate::field::{from_bcd, to_bcd};
use crate::time::{FrameRate, FrameTime};

/// Length of a header, in bytes.
pub const HEADER_LEN: usize = 16;
/// Length of the samples, in bytes.
pub const PAYLOAD_LEN: usize = 10_000;
/// Length of a frame, in bytes.
pub const FRAME_LEN: usize = HEADER_LEN + PAYLOAD_LEN;
/// First word of every header.
pub const SYNC: u32 = 0xABAD_DEED;

/// MJD of 1970-01-01.
const UNIX_MJD: i64 = 40_587;
const DAY: i64 = 86_400;
const MAX_FRAME_NUMBER: u32 = 0x7fff;
/// Maximum number of frames per second: the number of a frame has 15 bits.
pub const MAX_FRAME_RATE: u32 = MAX_FRAME_NUMBER + 1;

/// CRC with polynomial x^16 + x^15 + x^2 + 1, initial value zero, most significant bit first.
const TIME_CODE_CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_UMTS);

/// Reason why bytes are not a Mark 5B frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than needed.
    #[error("truncated Mark 5B frame: need {needed} bytes, got {found}")]
    Short {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes given.
        found: usize,
    },
    /// The first word is not the sync word.
    #[error("not a Mark 5B header: it starts with {0:#010x} instead of {SYNC:#010x}")]
    Sync(u32),
}

/// A word of the time code with a digit above 9, or with a second that is not in any day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid Mark 5B time code {0:#010x}: not a time in BCD")]
#[non_exhaustive]
pub struct TimeCodeError(pub u32);

/// A frame number that does not fit the 15 bits of the header, or is not below the frame rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid Mark 5B frame number {frame} at {rate} frames per second", rate = rate.get())]
#[non_exhaustive]
pub struct TimeError {
    /// Requested frame number.
    pub frame: u32,
    /// Requested frame rate.
    pub rate: FrameRate,
}

/// Mark 5B header.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    words: [u32; 4],
}

impl Header {
    /// Parses the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(HeaderError::Short {
                needed: HEADER_LEN,
                found: bytes.len(),
            });
        };
        let words = bytes.as_chunks().0;
        Header::from_words(std::array::from_fn(|word| u32::from_le_bytes(words[word])))
    }

    /// Makes a header of these words. VDIF's extended data version 0xAB carries them as its words 4 to 7.
    pub fn from_words(words: [u32; 4]) -> Result<Header, HeaderError> {
        match words[0] {
            SYNC => Ok(Header { words }),
            other => Err(HeaderError::Sync(other)),
        }
    }

    /// Returns the four words unchanged.
    pub fn words(&self) -> [u32; 4] {
        self.words
    }

    /// Returns the header as bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        for (four, word) in bytes.chunks_exact_mut(4).zip(self.words) {
            four.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Writes this header to the start of `frame`. If `frame` is shorter, the rest of the header is not written.
    pub fn emit(&self, frame: &mut [u8]) {
        let len = HEADER_LEN.min(frame.len());
        frame[..len].copy_from_slice(&self.to_bytes()[..len]);
    }

    /// Returns the number of the frame within its second, 15 bits.
    pub fn frame_number(&self) -> u32 {
        self.words[1] & MAX_FRAME_NUMBER
    }

    /// Returns whether the samples are from the test vector generator.
    pub fn is_test_vector(&self) -> bool {
        self.words[1] >> 15 & 1 == 1
    }

    /// Returns the user-defined field.
    pub fn user(&self) -> u16 {
        (self.words[1] >> 16) as u16
    }

    /// Returns the MJD modulo 1000.
    pub fn day(&self) -> Result<u32, TimeCodeError> {
        self.decimal(2, 20, 12)
    }

    /// Returns the second of the day; 86 400 is a leap second.
    pub fn second_of_day(&self) -> Result<u32, TimeCodeError> {
        let second = Some(self.decimal(2, 0, 20)?).filter(|second| i64::from(*second) <= DAY);
        second.ok_or(TimeCodeError(self.words[2]))
    }

    /// Returns the tenths of a millisecond since the start of the second, truncated. Some recorders leave them zero.
    pub fn fraction(&self) -> Result<u32, TimeCodeError> {
        self.decimal(3, 16, 16)
    }

    fn decimal(&self, word: usize, low: u32, width: u32) -> Result<u32, TimeCodeError> {
        let word = self.words[word];
        from_bcd(word >> low & (u32::MAX >> (32 - width))).ok_or(TimeCodeError(word))
    }

    /// Returns the exact time of the frame, from the day and second of the time code and the frame number. The time code repeats
    /// every 1000 days; the result is the repetition nearest to `reference` (UTC seconds since 1970-01-01).
    pub fn time(&self, reference: i64) -> Result<FrameTime, TimeCodeError> {
        let (day, second) = (self.day()?, self.second_of_day()?);
        let reference = reference.div_euclid(DAY) + UNIX_MJD;
        let mjd = reference + (i64::from(day) - reference + 500).rem_euclid(1000) - 500;
        Ok(FrameTime {
            second: (mjd - UNIX_MJD)
                .saturating_mul(DAY)
                .saturating_add(i64::from(second)),
            frame: self.frame_number(),
        })
    }

    /// Sets frame number, time code and CRC to `time`.
    pub fn set_time(&mut self, time: FrameTime, rate: FrameRate) -> Result<(), TimeError> {
        let frame = time.frame;
        if frame > MAX_FRAME_NUMBER || frame >= rate.get() {
            return Err(TimeError { frame, rate });
        }
        let mjd = time.second.div_euclid(DAY) + UNIX_MJD;
        let day = mjd.rem_euclid(1000) as u32;
        let second = time.second.rem_euclid(DAY) as u32;
        // Recorders truncate: sample.m5b of `baseband` has 0.0003 s for 0.3125 ms.
        let fraction = u64::from(frame) * 10_000 / u64::from(rate.get());
        self.words[1] = self.words[1] & !MAX_FRAME_NUMBER | frame;
        self.words[2] = to_bcd(day) << 20 | to_bcd(second);
        self.set_fraction(fraction as u32);
        Ok(())
    }

    fn set_fraction(&mut self, fraction: u32) {
        self.words[3] = to_bcd(fraction) << 16;
        self.words[3] |= u32::from(self.computed_crc());
    }

    /// Returns the header of the frame that replaces a lost one at `time`. If `rate` is unknown, the fraction of the second is
    /// zero, as some recorders leave it.
    pub fn fill_at(&self, time: FrameTime, rate: Option<FrameRate>) -> Result<Header, TimeError> {
        const FASTEST: FrameRate = FrameRate(NonZeroU32::new(MAX_FRAME_NUMBER + 1).unwrap());
        let mut header = *self;
        header.set_time(time, rate.unwrap_or(FASTEST))?;
        if rate.is_none() {
            header.set_fraction(0);
        }
        Ok(header)
    }

    /// Returns the CRC in the header.
    pub fn crc(&self) -> u16 {
        self.words[3] as u16
    }

    /// Calculates the CRC of the time code in the header.
    pub fn computed_crc(&self) -> u16 {
        let mut code = [0; 6];
        code[..4].copy_from_slice(&self.words[2].to_be_bytes());
        code[4..].copy_from_slice(&self.words[3].to_be_bytes()[..2]);
        TIME_CODE_CRC.checksum(&code)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("frame_number", &self.frame_number())
            .field("test_vector", &self.is_test_vector())
            .field("user", &format_args!("{:#06x}", self.user()))
            .field("time_code", &format_args!("{:08x}", self.words[2]))
            .field("fraction", &format_args!("{:04x}", self.words[3] >> 16))
            .field("crc", &format_args!("{:#06x}", self.crc()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Headers of sample.m5b, a recording shipped with `baseband`: 6400 frames per second, 2014-06-13T05:30:01.
    const SAMPLE: [[u32; 4]; 4] = [
        [0xabaddeed, 0xbead0000, 0x82119801, 0x0000975d],
        [0xabaddeed, 0xbead0001, 0x82119801, 0x00011758],
        [0xabaddeed, 0xbead0002, 0x82119801, 0x00039757],
        [0xabaddeed, 0xbead0003, 0x82119801, 0x00041746],
    ];
    const SAMPLE_SECOND: i64 = 1_402_637_401;

    fn bytes(words: [u32; 4]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_recorded_header_is_parsed() {
        for (number, words) in (0u32..).zip(SAMPLE) {
            let header = Header::parse(&bytes(words)).unwrap();
            assert_eq!(header.frame_number(), number);
            assert_eq!(header.user(), 0xbead);
            assert!(!header.is_test_vector());
            assert_eq!(header.day(), Ok(821));
            assert_eq!(header.second_of_day(), Ok(19_801));
            assert_eq!(header.fraction(), Ok([0, 1, 3, 4][number as usize]));
            assert_eq!(header.computed_crc(), header.crc());
            let time = FrameTime {
                second: SAMPLE_SECOND,
                frame: number,
            };
            assert_eq!(header.time(SAMPLE_SECOND + 400 * DAY), Ok(time));
            assert_eq!(header.to_bytes().as_slice(), bytes(words));
        }
    }

    #[test]
    fn a_header_is_made_as_the_recorder_made_it() {
        let rate = FrameRate::new(6400).unwrap();
        for (frame, words) in (0u32..).zip(SAMPLE) {
            let mut header = Header::from_words([SYNC, 0xbead << 16, 0, 0]).unwrap();
            let second = SAMPLE_SECOND;
            header.set_time(FrameTime { second, frame }, rate).unwrap();
            assert_eq!(header.words(), words);
        }
    }

    #[test]
    fn a_lost_frame_has_the_header_that_was_recorded() {
        let first = Header::from_words(SAMPLE[0]).unwrap();
        for (frame, words) in (0u32..).zip(SAMPLE) {
            let second = SAMPLE_SECOND;
            let time = FrameTime { second, frame };
            let filled = first.fill_at(time, FrameRate::new(6400)).unwrap();
            assert_eq!(filled.words(), words);
            let unknown_rate = first.fill_at(time, None).unwrap();
            assert_eq!(unknown_rate.time(SAMPLE_SECOND), Ok(time));
            assert_eq!(unknown_rate.fraction(), Ok(0));
            assert_eq!(unknown_rate.crc(), unknown_rate.computed_crc());
        }
    }

    #[test]
    fn the_reference_chooses_the_nearest_thousand_days() {
        let header = Header::from_words(SAMPLE[0]).unwrap();
        let second = |days: i64| header.time(SAMPLE_SECOND + days * DAY).unwrap().second;
        for thousands in [-30, -1, 0, 1, 7] {
            let expected = SAMPLE_SECOND + thousands * 1000 * DAY;
            for near in [-499, -1, 0, 1, 499] {
                assert_eq!(second(thousands * 1000 + near), expected);
            }
        }
    }

    #[test]
    fn a_wrong_time_code_is_an_error() {
        for code in [0x8211_980a, 0xa211_9801, 0x8218_6401, 0x8219_9999] {
            let mut words = SAMPLE[0];
            words[2] = code;
            let header = Header::from_words(words).unwrap();
            assert_eq!(header.time(SAMPLE_SECOND), Err(TimeCodeError(code)));
            assert_ne!(header.computed_crc(), header.crc());
        }
        let leap = Header::from_words([SYNC, 0, 0x8218_6400, 0]).unwrap();
        assert_eq!(leap.second_of_day(), Ok(86_400));
    }

    #[test]
    fn a_frame_that_no_second_has_is_an_error() {
        let mut header = Header::from_words([SYNC, 0, 0, 0]).unwrap();
        let mut set = |frame, rate| {
            let rate = FrameRate::new(rate).unwrap();
            header.set_time(FrameTime { second: 0, frame }, rate)
        };
        assert_eq!(set(6399, 6400), Ok(()));
        assert!(set(6400, 6400).is_err());
        assert_eq!(set(0x7fff, 40_000), Ok(()));
        assert!(set(0x8000, 40_000).is_err());
    }

    #[test]
    fn other_bytes_are_not_a_frame() {
        let short = |needed, found| HeaderError::Short { needed, found };
        assert_eq!(Header::parse(&[0; 15]), Err(short(16, 15)));
        assert_eq!(Header::parse(&[0; 16]), Err(HeaderError::Sync(0)));
        let mut frame = bytes(SAMPLE[1]);
        frame.resize(FRAME_LEN, 7);
        assert_eq!(Header::parse(&frame).unwrap().words(), SAMPLE[1]);
    }

    proptest! {
        #[test]
        fn every_field_is_parsed_as_written(
            user: u16,
            test: bool,
            second in -5_000_000_000i64..20_000_000_000,
            (rate, frame) in (1u32..=0x8000).prop_flat_map(|rate| (Just(rate), 0..rate)),
            days_off in -499i64..=499,
        ) {
            let rate = FrameRate::new(rate).unwrap();
            let time = FrameTime { second, frame };
            let mut header = Header::from_words([SYNC, 0, 0, 0]).unwrap();
            header.set_time(time, rate).unwrap();
            header.words[1] |= u32::from(user) << 16 | u32::from(test) << 15;
            let read = Header::parse(&header.to_bytes()).unwrap();
            prop_assert_eq!(read, header);
            prop_assert_eq!(read.user(), user);
            prop_assert_eq!(read.is_test_vector(), test);
            prop_assert_eq!(read.time(second + days_off * DAY), Ok(time));
            prop_assert_eq!(read.crc(), read.computed_crc());
            // The fraction is truncated to tenths of a millisecond.
            let nanos = (time.nanos(rate) - i128::from(second) * 1_000_000_000) as u32;
            prop_assert_eq!(read.fraction(), Ok(nanos / 100_000));
        }

        #[test]
        fn no_header_and_no_reference_makes_it_panic(words: [u32; 4], reference: i64) {
            let words = [SYNC, words[1], words[2], words[3]];
            let header = Header::from_words(words).unwrap();
            let _ = (header.time(reference), header.fraction(), header.computed_crc());
            let _ = format!("{header:?}");
            prop_assert_eq!(header.words(), words);
        }
    }
}
