//! VLBI time in integers: UTC seconds, frames within a second, and the half-year epochs of VDIF.

use std::fmt;
use std::num::{NonZeroU32, ParseIntError};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Frames per second of one thread. VDIF requires a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameRate(pub NonZeroU32);

impl FrameRate {
    /// Makes a frame rate; `None` if `frames_per_second` is zero.
    pub fn new(frames_per_second: u32) -> Option<FrameRate> {
        NonZeroU32::new(frames_per_second).map(FrameRate)
    }

    /// Returns the frames per second.
    #[inline]
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl FromStr for FrameRate {
    type Err = String;

    fn from_str(text: &str) -> Result<FrameRate, String> {
        let rate = text
            .parse()
            .map_err(|error: ParseIntError| error.to_string())?;
        FrameRate::new(rate).ok_or_else(|| "invalid frame rate 0: the minimum is 1".to_owned())
    }
}

/// Exact time of a frame: a UTC second and the number of the frame within it.
///
/// Seconds are counted from 1970-01-01, as in Unix time. A leap second can only be the last second of a VDIF epoch (epochs start
/// in January and July, where leap seconds are inserted), so within an epoch the count and UTC agree. A header whose seconds
/// continue past a leap second is read like DiFX and jive5ab do, with 86 400 seconds per day; `baseband` subtracts those leap
/// seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameTime {
    /// UTC seconds since 1970-01-01.
    pub second: i64,
    /// Frame number within the second.
    pub frame: u32,
}

impl FrameTime {
    /// Returns the number of the frame since 1970-01-01, for a thread of `rate` frames per second.
    #[inline]
    pub fn index(self, rate: FrameRate) -> i64 {
        let begin = self.second.saturating_mul(i64::from(rate.get()));
        begin.saturating_add(i64::from(self.frame))
    }

    /// Calculates the time from an index: the inverse of [`FrameTime::index`].
    #[inline]
    pub fn from_index(index: i64, rate: FrameRate) -> FrameTime {
        let rate = i64::from(rate.get());
        FrameTime {
            second: index.div_euclid(rate),
            frame: index.rem_euclid(rate) as u32,
        }
    }

    /// Returns the nanoseconds since 1970-01-01, rounded down.
    pub fn nanos(self, rate: FrameRate) -> i128 {
        i128::from(self.second) * 1_000_000_000
            + i128::from(self.frame) * 1_000_000_000 / i128::from(rate.get())
    }

    /// Formats the time as in RFC 3339, with up to nine decimals, as many as needed. It is rounded down to the nanosecond; `None`
    /// outside the years -9999 to 9999.
    pub fn rfc3339(self, rate: FrameRate) -> Option<String> {
        let timestamp = jiff::Timestamp::from_nanosecond(self.nanos(rate)).ok()?;
        Some(timestamp.to_string())
    }
}

/// VDIF reference epoch: half-years since 2000-01-01. The header has six bits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(u8);

impl Epoch {
    /// Makes an epoch; `None` if `half_years` does not fit the six bits of the header.
    #[inline]
    pub fn new(half_years: u8) -> Option<Epoch> {
        (half_years < 64).then_some(Epoch(half_years))
    }

    /// Returns the half-years since 2000-01-01, 0 to 63.
    pub fn half_years(self) -> u8 {
        self.0
    }

    /// Returns the first second of the epoch, in UTC seconds since 1970-01-01.
    #[inline]
    pub fn start(self) -> i64 {
        let year = 2000 + i64::from(self.0 / 2);
        // Days from 1970-01-01 to 1 January: leap years between 1970 and 2032 are the multiples of 4.
        let days = (year - 1970) * 365 + (year - 1969) / 4;
        let leap = i64::from(year % 4 == 0);
        let half = if self.0 % 2 == 1 { 181 + leap } else { 0 };
        (days + half) * 86_400
    }

    /// Returns the epoch that contains `second` (UTC seconds since 1970-01-01); `None` before 2000 and from 2032 on.
    pub fn containing(second: i64) -> Option<Epoch> {
        (0..64u8)
            .rev()
            .map(Epoch)
            .find(|epoch| epoch.start() <= second)
            .filter(|epoch| second < epoch.end())
    }

    fn end(self) -> i64 {
        let next = Epoch::new(self.0 + 1);
        next.map_or(self.start() + 184 * 86_400, Epoch::start)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let month = if self.0.is_multiple_of(2) { "01" } else { "07" };
        write!(f, "{}-{month}-01", 2000 + u32::from(self.0 / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(year: i16, month: i8) -> i64 {
        jiff::civil::date(year, month, 1)
            .to_zoned(jiff::tz::TimeZone::UTC)
            .unwrap()
            .timestamp()
            .as_second()
    }

    #[test]
    fn epochs_start_on_their_calendar_dates() {
        for half_years in 0..64u8 {
            let epoch = Epoch::new(half_years).unwrap();
            let month = if half_years % 2 == 0 { 1 } else { 7 };
            assert_eq!(
                epoch.start(),
                unix(2000 + i16::from(half_years / 2), month),
                "{epoch}"
            );
            assert_eq!(Epoch::containing(epoch.start()), Some(epoch));
            assert_eq!(Epoch::containing(epoch.end() - 1), Some(epoch));
        }
        assert_eq!(Epoch::containing(unix(2000, 1) - 1), None);
        assert_eq!(Epoch::containing(unix(2032, 1)), None);
        assert_eq!(Epoch::new(64), None);
    }

    #[test]
    fn indices_convert_in_both_directions() {
        let rate = FrameRate::new(16_000).unwrap();
        let time = FrameTime {
            second: 1_580_232_600,
            frame: 15_999,
        };
        let next = FrameTime::from_index(time.index(rate) + 1, rate);
        assert_eq!(
            next,
            FrameTime {
                second: 1_580_232_601,
                frame: 0
            }
        );
        assert_eq!(FrameTime::from_index(next.index(rate), rate), next);
        assert_eq!(next.nanos(rate) - time.nanos(rate), 62_500);
    }
    #[test]
    fn dates_are_written_exactly() {
        let text = |second, frame, rate| {
            FrameTime { second, frame }.rfc3339(FrameRate::new(rate).unwrap())
        };
        let second = 1_402_898_167;
        assert_eq!(text(second, 0, 1600).unwrap(), "2014-06-16T05:56:07Z");
        assert_eq!(
            text(second, 1, 1600).unwrap(),
            "2014-06-16T05:56:07.000625Z"
        );
        assert_eq!(
            text(second, 2, 3).unwrap(),
            "2014-06-16T05:56:07.666666666Z"
        );
        assert_eq!(
            text(second, 390_624, 390_625).unwrap(),
            "2014-06-16T05:56:07.99999744Z"
        );
        assert_eq!(text(i64::MAX, 0, 1), None);
        assert_eq!(text(i64::MIN, u32::MAX, 1), None);
    }
}
