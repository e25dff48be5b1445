//! Plan of a stream of test datagrams: their size, and the departure of each.

use evlbi_core::packetise::Family;
use evlbi_core::rate::BitRate;
use evlbi_core::shed::wire_bytes;
use evlbi_core::time::Nanos;
use evlbi_wire::probe::HEADER_LEN;
use serde::{Deserialize, Serialize};

/// Maximum number of datagrams in a burst, which leave as fast as the host can, regardless of the rate; [`MAX_BURST_BYTES`] is their
/// maximum size.
const MAX_BURST: u32 = 10_000;
const MAX_BURST_BYTES: u64 = 4 << 20;
/// Maximum payload of UDP over IPv4, in bytes.
const MAX: usize = 65_507;

/// A stream in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stream {
    /// UDP payload of each datagram in bytes.
    pub size: usize,
    /// Spacing of datagrams, or bursts.
    pub spacing: Spacing,
    /// Datagrams per burst, sent back to back.
    pub burst: u32,
    /// Number of datagrams; `u64::MAX` for as many as the time allows.
    pub count: u64,
}

/// Spacing of datagrams, or of bursts of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// Nanoseconds from the start of one to that of the next; 0 is as fast as the host can.
    Nanoseconds(u64),
    /// Spacing that results in this rate of UDP payload.
    BitsPerSecond(BitRate),
}

/// Reason why a stream is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Too short for the header, or too long for UDP.
    #[error("invalid datagram size {0}: give {HEADER_LEN} to {MAX} bytes")]
    Size(usize),
    /// A burst is too large.
    #[error(
        "burst of {0} datagrams and {1} bytes too large: the maximum is {MAX_BURST} datagrams and {MAX_BURST_BYTES} bytes"
    )]
    Burst(u32, u64),
    /// Nothing to send.
    #[error("empty stream: give one or more datagrams, in bursts of one or more")]
    Nothing,
}

impl Stream {
    /// Checks that it is valid.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn check(&self) -> Result<(), StreamError> {
        if !(HEADER_LEN..=MAX).contains(&self.size) {
            return Err(StreamError::Size(self.size));
        }
        if self.count == 0 || self.burst == 0 {
            return Err(StreamError::Nothing);
        }
        let bytes = u64::from(self.burst) * self.size as u64;
        if self.burst > MAX_BURST || self.burst > 1 && bytes > MAX_BURST_BYTES {
            return Err(StreamError::Burst(self.burst, bytes));
        }
        Ok(())
    }

    /// Returns the departure of a datagram, counted from the first, without cumulative error.
    pub fn due(&self, number: u64) -> Nanos {
        let burst = u64::from(self.burst.max(1));
        let before = u128::from(number / burst);
        match self.spacing {
            Spacing::Nanoseconds(apart) => {
                let nanos = before * u128::from(apart);
                Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            Spacing::BitsPerSecond(rate) => {
                rate.due(before * u128::from(burst) * self.size as u128)
            }
        }
    }

    /// Returns its length: until the departure of a datagram after its last.
    pub fn duration(&self) -> Nanos {
        let burst = u64::from(self.burst.max(1));
        self.due(self.count.div_ceil(burst).saturating_mul(burst))
    }

    /// Returns the number of datagrams that leave in a time.
    pub fn within(&self, duration: Nanos) -> u64 {
        let burst = u128::from(self.burst.max(1));
        let bursts = match self.spacing {
            Spacing::Nanoseconds(apart) => {
                u128::from(duration.0).div_ceil(u128::from(apart.max(1)))
            }
            Spacing::BitsPerSecond(rate) => {
                let bits = u128::from(duration.0) * u128::from(rate.get());
                bits.div_ceil(burst * self.size.max(1) as u128 * 8_000_000_000)
            }
        };
        u64::try_from(bursts * burst).unwrap_or(u64::MAX)
    }

    /// Returns the requested rate of UDP payload, in bits per second; `None` for as fast as the host can.
    pub fn rate(&self) -> Option<f64> {
        match self.spacing {
            Spacing::Nanoseconds(0) => None,
            Spacing::Nanoseconds(apart) => {
                Some(self.size as f64 * f64::from(self.burst) * 8e9 / apart as f64)
            }
            Spacing::BitsPerSecond(rate) => Some(rate.get() as f64),
        }
    }

    /// Returns the rate on Ethernet including all overhead, in bits per second; `None` for as fast as the host can.
    pub fn wire_rate(&self, family: Family) -> Option<f64> {
        let on_the_wire = wire_bytes(self.size, family) as f64;
        Some(self.rate()? * on_the_wire / self.size.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_spacings() {
        let stream = Stream {
            size: 1472,
            spacing: Spacing::BitsPerSecond(BitRate::new(942_080_000).unwrap()),
            burst: 1,
            count: 50_000_000,
        };
        // 11776 bits at 942.08 Mbit/s: 12.5 us, 625 s in all.
        assert_eq!(stream.due(1), Nanos(12_500));
        assert_eq!(stream.duration(), Nanos(625_000_000_000));
        assert_eq!(stream.within(Nanos(625_000_000_000)), 50_000_000);
        let bursts = Stream {
            spacing: Spacing::Nanoseconds(100_000),
            burst: 10,
            ..stream
        };
        assert_eq!(
            [9, 10, 25].map(|number| bursts.due(number).0),
            [0, 100_000, 200_000]
        );
        assert_eq!(bursts.rate(), Some(1_177_600_000.0));
        assert_eq!(bursts.within(Nanos(1_000_000)), 100);
    }

    #[test]
    fn impossible_streams_are_refused_with_a_reason() {
        let good = Stream {
            size: HEADER_LEN,
            spacing: Spacing::Nanoseconds(0),
            burst: 1,
            count: 1,
        };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.rate(), None);
        let short = Stream { size: 31, ..good };
        assert_eq!(short.check(), Err(StreamError::Size(31)));
        let flood = Stream {
            burst: 5_000_000,
            ..good
        };
        assert_eq!(
            flood.check(),
            Err(StreamError::Burst(5_000_000, 160_000_000))
        );
        assert_eq!(
            Stream { count: 0, ..good }.check(),
            Err(StreamError::Nothing)
        );
        assert_eq!(
            Stream { burst: 0, ..good }.check(),
            Err(StreamError::Nothing)
        );
    }

    proptest! {
        #[test]
        fn as_many_leave_as_are_due(
            size in 32usize..9000, burst in 1u32..100, apart in 1u64..1_000_000, bits in 1_000u64..100_000_000_000,
            by_rate: bool, duration in 1u64..10_000_000_000,
        ) {
            let spacing = match BitRate::new(bits) {
                Some(rate) if by_rate => Spacing::BitsPerSecond(rate),
                _ => Spacing::Nanoseconds(apart),
            };
            let stream = Stream { size, spacing, burst, count: u64::MAX };
            let count = stream.within(Nanos(duration));
            prop_assert!(stream.due(count - 1).0 < duration);
            prop_assert!(stream.due(count).0 + 1 >= duration);
        }

        #[test]
        fn nothing_overflows(
            size: usize, burst: u32, count: u64, apart: u64, number: u64, duration: u64,
        ) {
            let stream = Stream { size, spacing: Spacing::Nanoseconds(apart), burst, count };
            let _ = (stream.check(), stream.due(number), stream.duration(), stream.rate());
            let _ = stream.within(Nanos(duration));
        }
    }
}
