//! Limits how far the numbers of a stream may jump.

use crate::time::Nanos;

/// A jump of up to this many datagrams is always a gap.
pub const MIN_JUMP: u64 = 4096;
/// Time in which datagrams may be missing although others arrived.
const SLACK: Nanos = Nanos(2_000_000_000);

/// Count of datagrams per second.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    begun: Nanos,
    count: u64,
    highest: u64,
}

impl Pace {
    /// Counts a datagram.
    #[inline]
    pub fn heard(&mut self, now: Nanos) {
        if now.since(self.begun) >= Nanos::SECOND {
            self.begun = now;
            self.count = 0;
        }
        self.count += 1;
        self.highest = self.highest.max(self.count);
    }

    /// Returns the longest jump that is a gap after this silence: 1.5 times the count of the busiest second so far, for each
    /// second of the silence and two more.
    pub fn jump(&self, silence: Nanos) -> u64 {
        let seconds = u128::from(silence.0) + u128::from(SLACK.0);
        let max = u128::from(self.highest) * 3 * seconds / (2 * u128::from(Nanos::SECOND.0));
        u64::try_from(max).unwrap_or(u64::MAX).max(MIN_JUMP)
    }
}
