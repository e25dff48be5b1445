//! The header of one track, and its time code.

use std::fmt;

use crc::{CRC_12_DECT, Crc};
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::field::{Field, from_bcd, to_bcd};

/// CRC with polynomial x^12 + x^11 + x^3 + x^2 + x + 1, initial value zero, most significant bit first.
const TRACK_CRC: Crc<u16> = Crc::<u16>::new(&CRC_12_DECT);

const DAY: i64 = 86_400;
/// Seconds by which a time may be after the reference: clocks differ.
const AHEAD: i64 = DAY;
/// Years among which one has any digit and day: leap years that end in the same digit are 20 years apart, or 40 around 2100.
const YEARS: i16 = 40;

/// Header of one track: 160 bits, most significant bit first.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TrackHeader {
    pub(super) words: [u32; 5],
}

// Fields of a header: memo 230, section 2.1.
const STACK: Field = Field(1, 30, 2);
const TRACK_TENS: Field = Field(1, 28, 2);
const TRACK_UNITS: Field = Field(1, 24, 4);
const SUB_SAMPLE: Field = Field(1, 22, 2);
const MAGNITUDE: Field = Field(1, 21, 1);
const SIDEBAND: Field = Field(1, 20, 1);
const CONVERTER: Field = Field(1, 16, 4);
const ERRORS: Field = Field(1, 12, 4);
const BARREL_ROLL: Field = Field(1, 9, 1);
const STATION: Field = Field(1, 0, 8);
const CRC: Field = Field(4, 0, 12);

impl TrackHeader {
    /// Sync word.
    pub const SYNC: u32 = u32::MAX;

    /// Makes a header of these five words.
    pub fn from_words(words: [u32; 5]) -> TrackHeader {
        TrackHeader { words }
    }

    /// Returns the five words: two of auxiliary data, the sync word, time code and CRC.
    pub fn words(&self) -> [u32; 5] {
        self.words
    }

    /// Returns the headstack, 0 to 3.
    pub fn stack(&self) -> u8 {
        STACK.of(&self.words) as u8
    }

    /// Returns the number of the track on its headstack: 2 to 33 in recordings.
    pub fn track(&self) -> u8 {
        (TRACK_TENS.of(&self.words) * 10 + TRACK_UNITS.of(&self.words)) as u8
    }

    /// Returns which of the samples of a bit time is on this track, 0 to 3.
    pub fn sub_sample(&self) -> usize {
        SUB_SAMPLE.of(&self.words) as usize
    }

    /// Returns whether the track holds magnitude bits; otherwise it holds sign bits.
    pub fn is_magnitude(&self) -> bool {
        MAGNITUDE.of(&self.words) == 1
    }

    /// Returns whether the track holds the lower sideband of its converter.
    pub fn is_lower(&self) -> bool {
        SIDEBAND.of(&self.words) == 1
    }

    /// Returns the converter, counted from 0.
    pub fn converter(&self) -> u8 {
        CONVERTER.of(&self.words) as u8
    }

    /// Returns whether the formatter reports an error: of the time's sync, of its clock, of its processor, or of communication.
    pub fn is_faulty(&self) -> bool {
        ERRORS.of(&self.words) != 0
    }

    /// Returns whether tracks change places from frame to frame.
    pub fn is_rolled(&self) -> bool {
        BARREL_ROLL.of(&self.words) == 1
    }

    /// Returns the number of the station's recorder. It is even in recordings of Mark 5A.
    pub fn station(&self) -> u8 {
        STATION.of(&self.words) as u8
    }

    /// Sets which samples the track holds.
    pub(super) fn set_samples(&mut self, converter: u8, lower: bool, magnitude: bool, sub: usize) {
        CONVERTER.set(&mut self.words, u32::from(converter));
        SIDEBAND.set(&mut self.words, u32::from(lower));
        MAGNITUDE.set(&mut self.words, u32::from(magnitude));
        SUB_SAMPLE.set(&mut self.words, sub as u32);
    }

    /// Sets headstack and number of the track.
    pub(super) fn set_place(&mut self, stack: u8, track: u8) {
        STACK.set(&mut self.words, u32::from(stack));
        TRACK_TENS.set(&mut self.words, u32::from(track / 10));
        TRACK_UNITS.set(&mut self.words, u32::from(track % 10));
    }

    pub(super) fn set_station(&mut self, station: u8) {
        STATION.set(&mut self.words, u32::from(station));
    }

    /// Returns the time code.
    pub fn time_code(&self) -> Result<TimeCode, TimeCodeError> {
        let digits = u64::from(self.words[3]) << 20 | u64::from(self.words[4]) >> 12;
        TimeCode::from_digits(digits)
    }

    /// Sets the time code, and the CRC of the header.
    pub fn set_time_code(&mut self, time: TimeCode) {
        let digits = time.digits();
        self.words[3] = (digits >> 20) as u32;
        self.words[4] = (digits as u32) << 12;
        let crc = u32::from(self.computed_crc());
        CRC.set(&mut self.words, crc);
    }

    /// Returns the CRC in the header.
    pub fn crc(&self) -> u16 {
        CRC.of(&self.words) as u16
    }

    /// Calculates the CRC of the first 148 bits.
    ///
    /// It does not detect a slip of a few bits: a header that is read k bits late is again correct on one track in 2^k.
    pub fn computed_crc(&self) -> u16 {
        let mut digest = TRACK_CRC.digest();
        // Leading zeros change nothing: they complete the first byte.
        let mut before = 0;
        for (place, word) in self.words.iter().enumerate() {
            let wide = u64::from(before) << 32 | u64::from(*word);
            let bytes = ((wide >> 4) as u32).to_be_bytes();
            match place {
                // The last twelve bits are the CRC itself.
                4 => digest.update(&bytes[..3]),
                _ => digest.update(&bytes),
            }
            before = *word;
        }
        digest.finalize()
    }

    /// Returns whether the CRC is correct.
    pub fn is_intact(&self) -> bool {
        self.crc() == self.computed_crc()
    }
}

impl fmt::Debug for TrackHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e] = self.words;
        write!(f, "TrackHeader({a:08x} {b:08x} {c:08x} {d:08x} {e:08x})")
    }
}

/// A time code with a digit above 9, milliseconds that no frame has, or a date or time that does not exist: 13 BCD digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid Mark 4 time code {0:013x}: not a time in BCD (year, day, hour, minute, second, millisecond)"
)]
#[non_exhaustive]
pub struct TimeCodeError(pub u64);

/// Time in a header: all but the decade of the year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeCode {
    /// Last digit of the year.
    year: u8,
    /// Day of the year, 1 to 366.
    day: u16,
    /// Second of the day, 0 to 86 399: a leap second cannot be written.
    second: u32,
    /// Microseconds of the second, a multiple of 1250.
    micros: u32,
}

impl TimeCode {
    /// Duration of the fastest frames, in microseconds: each frame starts at a multiple of it.
    pub const STEP: u32 = 1250;

    /// Makes the time code of a time: UTC seconds since 1970-01-01, and microseconds of the second; `None` if a frame cannot start
    /// there.
    pub fn new(second: i64, micros: u32) -> Option<TimeCode> {
        if micros >= 1_000_000 || !micros.is_multiple_of(TimeCode::STEP) {
            return None;
        }
        let date = jiff::Timestamp::from_second(second).ok()?;
        let date = date.to_zoned(TimeZone::UTC).date();
        Some(TimeCode {
            year: date.year().rem_euclid(10) as u8,
            day: date.day_of_year() as u16,
            second: second.rem_euclid(DAY) as u32,
            micros,
        })
    }

    fn from_digits(digits: u64) -> Result<TimeCode, TimeCodeError> {
        let number = |low: u32, count: u32| {
            let digits = (digits >> (4 * low)) as u32;
            from_bcd(digits & (u32::MAX >> (32 - 4 * count)))
        };
        let read = || {
            let milli = number(0, 3)?;
            let (second, minute, hour) = (number(3, 2)?, number(5, 2)?, number(7, 2)?);
            let time = TimeCode {
                year: number(12, 1)? as u8,
                day: number(9, 3)? as u16,
                second: hour * 3600 + minute * 60 + second,
                // Frames start at multiples of 1.25 ms, of which the fraction is cut off.
                micros: milli * 1000 + milli % 5 * 250,
            };
            let is_time = hour < 24 && minute < 60 && second < 60 && milli % 5 < 4;
            // Leap years are even.
            let days = if time.year.is_multiple_of(2) {
                366
            } else {
                365
            };
            (is_time && (1..=days).contains(&time.day)).then_some(time)
        };
        read().ok_or(TimeCodeError(digits))
    }

    fn digits(self) -> u64 {
        let clock = self.second;
        let parts = [
            (u32::from(self.year), 1),
            (u32::from(self.day), 3),
            (clock / 3600, 2),
            (clock / 60 % 60, 2),
            (clock % 60, 2),
            (self.micros / 1000, 3),
        ];
        parts.into_iter().fold(0, |digits, (number, count)| {
            digits << (4 * count) | u64::from(to_bcd(number))
        })
    }

    /// Returns the microseconds of the second.
    pub fn micros(self) -> u32 {
        self.micros
    }

    /// Returns the microseconds from this time to a later one, at most a day; `None` if `later` is not on this day or the next.
    pub fn micros_until(self, later: TimeCode) -> Option<u64> {
        let of = |time: TimeCode| u64::from(time.second) * 1_000_000 + u64::from(time.micros);
        let day = DAY.unsigned_abs() * 1_000_000;
        let days = match later.day.abs_diff(self.day) {
            0 if later.year == self.year => 0,
            // Another day: the next one, or the first one of the next year.
            1 | 364 | 365 => day,
            _ => return None,
        };
        (of(later) + days)
            .checked_sub(of(self))
            .filter(|it| *it <= day)
    }

    /// Returns the UTC second since 1970-01-01. The year has one digit: the result is in the latest year with that digit and such a
    /// day, of those that are at most a day after `reference` (UTC seconds, too); `None` if none of 40 years has.
    pub fn second(self, reference: i64) -> Option<i64> {
        let latest = jiff::Timestamp::from_second(reference.checked_add(AHEAD)?).ok()?;
        let year = latest.to_zoned(TimeZone::UTC).year();
        let years = (year.checked_sub(YEARS)?..=year).rev();
        let mut seconds = years.filter_map(|year| self.second_in(year));
        seconds.find(|second| *second <= latest.as_second())
    }

    /// Returns the UTC second in a year that has this digit and day.
    fn second_in(self, year: i16) -> Option<i64> {
        let has_digit = year.rem_euclid(10) == i16::from(self.year);
        let new_year = Date::new(year, 1, 1).ok().filter(|_| has_digit)?;
        if self.day > new_year.days_in_year() as u16 {
            return None;
        }
        let midnight = new_year.to_zoned(TimeZone::UTC).ok()?.timestamp();
        Some(midnight.as_second() + i64::from(self.day - 1) * DAY + i64::from(self.second))
    }
}
