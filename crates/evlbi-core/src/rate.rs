//! Bit rates.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::time::Nanos;

/// Bits per second, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BitRate(NonZeroU64);

/// Text that is not a valid bit rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid bit rate `{0}`: give bits per second, e.g. 512M, 1.024G, 800k")]
pub struct BitRateError(String);

impl BitRate {
    /// Makes a bit rate; `None` for zero.
    pub const fn new(bits_per_second: u64) -> Option<BitRate> {
        match NonZeroU64::new(bits_per_second) {
            Some(rate) => Some(BitRate(rate)),
            None => None,
        }
    }

    /// Returns the bits per second.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns when the byte after `bytes` is due, relative to the start of the stream: exact for any number of bytes.
    pub fn due(self, bytes: impl Into<u128>) -> Nanos {
        let nanos = bytes.into() * 8_000_000_000 / u128::from(self.get());
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the whole bytes of this many nanoseconds.
    pub fn bytes_in(self, nanos: u64) -> u64 {
        let bytes = u128::from(nanos) * u128::from(self.get()) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl FromStr for BitRate {
    type Err = BitRateError;

    fn from_str(text: &str) -> Result<BitRate, BitRateError> {
        let error = || BitRateError(text.to_string());
        let number = text.trim().trim_end_matches("bit/s");
        let number = number.trim_end_matches("bps");
        let factor = match number.chars().last().ok_or_else(error)? {
            'k' | 'K' => 1e3,
            'M' => 1e6,
            'G' => 1e9,
            'T' => 1e12,
            _ => 1.0,
        };
        let unit = usize::from(factor > 1.0);
        let number = number[..number.len() - unit].trim_end();
        if !number.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(error());
        }
        let bits = number.parse::<f64>().map_err(|_| error())? * factor;
        if !(1.0..1e15).contains(&bits) {
            return Err(error());
        }
        BitRate::new(bits.round() as u64).ok_or_else(error)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.get();
        let (factor, unit) = match bits {
            1_000_000_000.. => (1_000_000_000, "G"),
            1_000_000.. => (1_000_000, "M"),
            1_000.. => (1_000, "k"),
            _ => (1, ""),
        };
        if bits.is_multiple_of(factor) {
            return write!(f, "{}{unit}", bits / factor);
        }
        let width = factor.ilog10() as usize;
        let decimals = format!("{:0width$}", bits % factor);
        let decimals = decimals.trim_end_matches('0');
        write!(f, "{}.{decimals}{unit}", bits / factor)
    }
}

/// Returns the lowest frame rate from `min` on with which a thread whose frames contain `payload` bytes carries 2^n Mbit/s.
pub fn usual_frame_rate(payload: usize, min: i64) -> Option<i64> {
    let bits = i64::try_from(payload).ok()?.checked_mul(8)?;
    (0..20)
        .map(|n| 1_000_000i64 << n)
        .filter(|rate| bits > 0 && rate % bits == 0)
        .map(|rate| rate / bits)
        .find(|rate| *rate >= min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_as_people_write_them() {
        for (text, bits) in [
            ("512M", 512_000_000),
            ("1.024G", 1_024_000_000),
            ("9600", 9_600),
            ("100 Gbit/s", 100_000_000_000),
            ("2.5kbps", 2_500),
        ] {
            assert_eq!(text.parse(), Ok(BitRate::new(bits).unwrap()), "{text}");
        }
        for bad in ["", "fast", "0", "-1M", "1Q", "1e300", "NaN", "G", "inf"] {
            assert!(bad.parse::<BitRate>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn shown_rates_read_back(bits in 1u64..1_000_000_000_000) {
            let rate = BitRate::new(bits).unwrap();
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }
}
