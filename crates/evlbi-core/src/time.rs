//! Points on a monotonic clock.

use serde::{Deserialize, Serialize};

/// Nanoseconds of a monotonic clock, or a time span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Nanos(pub u64);

impl Nanos {
    /// One second.
    pub const SECOND: Nanos = Nanos(1_000_000_000);

    /// Returns the point `span` later, at most the end of the clock.
    pub fn plus(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }

    /// Returns the span since `earlier`; zero if that is later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// Converts seconds; negative numbers become zero.
    pub fn from_secs_f64(seconds: f64) -> Nanos {
        Nanos((seconds * 1e9) as u64)
    }

    /// Returns the seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 * 1e-9
    }
}

/// Returns `a - b`, clamped to the range of the type.
pub fn apart(a: u64, b: u64) -> i64 {
    clamped(i128::from(a) - i128::from(b))
}

/// Returns a number clamped to the range of the type.
pub fn clamped(number: i128) -> i64 {
    number.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

impl From<std::time::Duration> for Nanos {
    fn from(span: std::time::Duration) -> Nanos {
        Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}
