//! Numbers as people write and read them: `64KiB`, `100ms`, `1%`.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Text that is not a valid number of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} `{text}`: give {form}")]
#[non_exhaustive]
pub struct UnitError {
    /// Given text.
    pub text: String,
    /// Expected kind.
    pub kind: &'static str,
    /// Expected form.
    pub form: &'static str,
}

impl UnitError {
    fn of(text: &str, kind: &'static str, form: &'static str) -> UnitError {
        let text = text.to_owned();
        UnitError { text, kind, form }
    }
}

impl From<UnitError> for String {
    fn from(error: UnitError) -> String {
        error.to_string()
    }
}

/// A number without a unit, where a unit is needed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} `{text}`: add a unit, e.g. {text}{}, {text}{}", units[0], units[1])]
#[non_exhaustive]
pub struct UnitMissing {
    /// The number.
    pub text: String,
    /// Quantity that it gives.
    pub kind: &'static str,
    /// Two units that it may have.
    pub units: [&'static str; 2],
}

impl From<UnitMissing> for String {
    fn from(error: UnitMissing) -> String {
        error.to_string()
    }
}

/// Returns the text, which is then parsed, unless it is a number without a unit. 0 needs no unit.
///
/// # Errors
/// [`UnitMissing`]
pub fn with_unit<'t>(
    text: &'t str,
    kind: &'static str,
    units: [&'static str; 2],
) -> Result<&'t str, UnitMissing> {
    let text = text.trim();
    match text.parse::<f64>() {
        Ok(number) if number != 0.0 && number.is_finite() => Err(UnitMissing {
            text: text.to_owned(),
            kind,
            units,
        }),
        _ => Ok(text),
    }
}

/// Parses a size in bytes: `8032`, `64KiB`, `1.5GiB`, `10MB` (powers of 1000 without the `i`).
///
/// # Errors
/// [`UnitError`]
pub fn size(text: &str) -> Result<u64, UnitError> {
    let error = || {
        UnitError::of(
            text,
            "size",
            "bytes, or a number and a unit, e.g. 64KiB, 1MiB, 10MB, 2GiB",
        )
    };
    let (number, unit) = split_number(text).ok_or_else(error)?;
    let factor: f64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "tb" | "t" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(error()),
    };
    Some(number * factor)
        .filter(|bytes| (0.0..9e18).contains(bytes))
        .map(|bytes| bytes.round() as u64)
        .ok_or_else(error)
}

/// Parses a duration: `250us`, `15ms`, `2s`, `10min`, `24h`. A bare number is in seconds.
///
/// # Errors
/// [`UnitError`]
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    let error = || {
        UnitError::of(
            text,
            "duration",
            "a number and a unit, e.g. 250us, 15ms, 2s, 10min, 24h",
        )
    };
    let (number, unit) = split_number(text).ok_or_else(error)?;
    let seconds = match unit {
        "ns" => number * 1e-9,
        "us" => number * 1e-6,
        "ms" => number * 1e-3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err(error()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| error())
}

/// Formats a duration as [`duration`] parses it: `250us`, `10s`, `24h`.
pub fn span(span: Duration) -> String {
    let nanoseconds = span.as_nanos();
    let units = [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1000, "us"),
    ];
    let whole = |unit: &&(u128, &str)| nanoseconds > 0 && nanoseconds.is_multiple_of(unit.0);
    let (length, name) = units.iter().find(whole).unwrap_or(&(1, "ns"));
    format!("{}{name}", nanoseconds / length)
}

/// Formats a fraction as [`fraction`] parses it: `0.1%`.
pub fn percent(fraction: f64) -> String {
    format!("{}%", fraction * 100.0)
}

/// Parses a range of ports: `1024-65535`, or one port.
///
/// # Errors
/// [`UnitError`]
pub fn ports(text: &str) -> Result<RangeInclusive<u16>, UnitError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(UnitError::of(
            text,
            "range of ports",
            "one port or a range, e.g. 1024-65535",
        )),
    }
}

/// Parses a list of numbers up to `max`, such as threads or channels: `0,2,4-7`. Returns them in ascending order, each once, or
/// `None` if the text is not such a list.
pub fn numbers(text: &str, max: u16) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > max {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

/// Parses a fraction from 0 to 1: `0.01` or `1%`.
///
/// # Errors
/// [`UnitError`]
pub fn fraction(text: &str) -> Result<f64, UnitError> {
    let error = || UnitError::of(text, "fraction", "0.01 or 1%, from 0 to 1 (100%)");
    scaled(text, &[("%", 0.01)])
        .filter(|fraction| (0.0..=1.0).contains(fraction))
        .ok_or_else(error)
}

/// Parses a finite number. If it ends with one of these units, the number is multiplied by that unit's factor.
pub fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let split = |(unit, scale): &(&str, f64)| Some((text.strip_suffix(unit)?, *scale));
    let (number, scale) = units.iter().find_map(split).unwrap_or((text, 1.0));
    let value = number.trim().parse::<f64>().ok()? * scale;
    value.is_finite().then_some(value)
}

/// Functions that let serde read a value of a file as the command line does: `#[serde(deserialize_with = "setting::time")]`.
pub mod setting {
    use std::convert::Infallible;
    use std::fmt::{self, Display, Formatter};
    use std::ops::RangeInclusive;
    use std::str::FromStr;
    use std::time::Duration;

    use serde::Deserializer;
    use serde::de::{Error, Visitor};

    /// Expected form of a time.
    const TIME: &str = "a time such as \"15ms\"";

    /// Visitor of a text. A value of another type is refused with the expected form.
    struct Text(&'static str);

    impl Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
    }

    /// Reads a text and parses it. `form` is the expected form, for a value that is not a text.
    ///
    /// # Errors
    /// Returns the error of the parser.
    pub fn read<'de, D: Deserializer<'de>, T, E: Display>(
        from: D,
        form: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, D::Error> {
        parse(&from.deserialize_str(Text(form))?).map_err(Error::custom)
    }

    /// Reads a [`size`](super::size()).
    ///
    /// # Errors
    /// As [`size`](super::size()).
    pub fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        read(from, "a size such as \"64KiB\"", super::size)
    }

    /// Reads a [`duration`](super::duration()).
    ///
    /// # Errors
    /// As [`duration`](super::duration()).
    pub fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        read(from, TIME, super::duration)
    }

    /// Reads the text of a [`duration`](super::duration()), which is parsed later.
    ///
    /// # Errors
    /// Returns an error if the value is not a text.
    pub fn time_text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        read(from, TIME, |text| Ok::<_, Infallible>(text.to_owned()))
    }

    /// Reads a range of [`ports`](super::ports()).
    ///
    /// # Errors
    /// As [`ports`](super::ports()).
    pub fn ports<'de, D: Deserializer<'de>>(from: D) -> Result<RangeInclusive<u16>, D::Error> {
        read(from, "ports such as \"1024-65535\"", super::ports)
    }

    /// Reads an optional value.
    ///
    /// # Errors
    /// As its parser.
    pub fn some<'de, D: Deserializer<'de>, T>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
    {
        read(from, "a text", |text| text.parse().map(Some))
    }
}

fn split_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

/// Formats a bit rate for people: `1.024 Gbit/s`.
pub fn show_rate(bits_per_second: f64) -> String {
    // The sum of no rates is -0.
    let (value, unit) = match bits_per_second + 0.0 {
        rate if rate >= 1e9 => (rate / 1e9, "Gbit/s"),
        rate if rate >= 1e6 => (rate / 1e6, "Mbit/s"),
        rate if rate >= 1e3 => (rate / 1e3, "kbit/s"),
        rate => (rate, "bit/s"),
    };
    format!("{value:.3} {unit}")
}

/// Formats a size for people, exactly: `64 MiB`.
pub fn show_size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units
        .iter()
        .find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift))
    {
        Some((shift, unit)) => format!("{} {unit}", show_count(bytes >> shift)),
        None => format!("{} bytes", show_count(bytes)),
    }
}

/// Formats an amount of data for people: `1.25 MB`.
pub fn show_bytes(bytes: f64) -> String {
    match bytes {
        small if small < 1e6 => format!("{:.1} kB", small * 1e-3),
        middle if middle < 1e9 => format!("{:.2} MB", middle * 1e-6),
        large => format!("{:.3} GB", large * 1e-9),
    }
}

/// Formats a time in seconds for people: `12.5 us`.
pub fn show_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds.abs() {
        0.0 => (0.0, "s"),
        length if length < 1e-6 => (seconds * 1e9, "ns"),
        length if length < 1e-3 => (seconds * 1e6, "us"),
        length if length < 1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    format!("{value:.4} {unit}")
}

/// Formats a frequency in Hz for people: `492.1245 Hz`.
pub fn show_hertz(hertz: f64) -> String {
    let (value, unit) = match hertz.abs() {
        0.0 => (0.0, "Hz"),
        rate if rate < 1e-3 => (hertz * 1e6, "uHz"),
        rate if rate < 1.0 => (hertz * 1e3, "mHz"),
        rate if rate < 1e3 => (hertz, "Hz"),
        rate if rate < 1e6 => (hertz * 1e-3, "kHz"),
        rate if rate < 1e9 => (hertz * 1e-6, "MHz"),
        _ => (hertz * 1e-9, "GHz"),
    };
    format!("{value:.4} {unit}")
}

/// Formats UTC seconds since 1970 as date and time, to a tenth of a millisecond: `2024-05-01T12:00:00.5Z`.
pub fn utc(seconds: f64) -> String {
    let tenths = (seconds * 1e4).round() as i128;
    jiff::Timestamp::from_nanosecond(tenths * 100_000)
        .map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Formats a count for people: `1,234,567`.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("8032"), Ok(8032));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("1.5GiB"), Ok(1_610_612_736));
        assert_eq!(size("10MB"), Ok(10_000_000));
        for bad in ["", "-1", "KiB", "12 parsecs", "1e400", "99999999999TiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown_exactly() {
        assert_eq!(show_size(64 << 20), "64 MiB");
        assert_eq!(show_size(3 << 40), "3,072 GiB");
        assert_eq!(show_size((64 << 20) + 1), "67,108,865 bytes");
        assert_eq!(show_size(0), "0 bytes");
    }

    #[test]
    fn durations() {
        assert_eq!(duration("15ms"), Ok(Duration::from_millis(15)));
        assert_eq!(duration("0.5us"), Ok(Duration::from_nanos(500)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        for bad in ["", "soon", "-2s", "2 fortnights"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_without_a_unit_are_refused() {
        let duration = |text| with_unit(text, "duration", ["ms", "s"]);
        for good in ["15ms", "0", "0.0", "24h", "soon", "", "nan"] {
            assert_eq!(duration(good), Ok(good));
        }
        for (bad, says) in [
            ("15", "invalid duration `15`: add a unit, e.g. 15ms, 15s"),
            (
                " 1.5 ",
                "invalid duration `1.5`: add a unit, e.g. 1.5ms, 1.5s",
            ),
            (
                "-2e-12",
                "invalid duration `-2e-12`: add a unit, e.g. -2e-12ms, -2e-12s",
            ),
        ] {
            assert_eq!(duration(bad).unwrap_err().to_string(), says);
        }
    }

    #[test]
    fn fractions() {
        assert_eq!(fraction("1%"), Ok(0.01));
        assert_eq!(fraction("0.25"), Ok(0.25));
        for bad in ["", "101%", "-0.1", "NaN", "lots"] {
            assert!(fraction(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shown_for_people() {
        assert_eq!(show_rate(1.024e9), "1.024 Gbit/s");
        assert_eq!(show_rate(12.0), "12.000 bit/s");
        for (hertz, shown) in [
            (0.0, "0.0000 Hz"),
            (-1.5e-5, "-15.0000 uHz"),
            (-0.0021, "-2.1000 mHz"),
            (492.124_483_5, "492.1245 Hz"),
            (3906.3, "3.9063 kHz"),
            (32e6, "32.0000 MHz"),
            (4.9e9, "4.9000 GHz"),
        ] {
            assert_eq!(show_hertz(hertz), shown);
        }
        assert_eq!(show_count(0), "0");
        assert_eq!(show_count(999), "999");
        assert_eq!(show_count(1_234_567), "1,234,567");
    }
}
