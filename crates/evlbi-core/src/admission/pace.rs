//! How far the numbers of a stream may jump.

use crate::time::Nanos;

/// A jump no longer than this is always taken for a gap.
pub const MIN_JUMP: u64 = 4096;
/// Time in which datagrams may be missing although others came.
const SLACK: Nanos = Nanos(2_000_000_000);

/// Counts datagrams by the second.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    begun: Nanos,
    count: u64,
    highest: u64,
}

impl Pace {
    /// A datagram came.
    #[inline]
    pub fn heard(&mut self, now: Nanos) {
        if now.since(self.begun) >= Nanos::SECOND {
            self.begun = now;
            self.count = 0;
        }
        self.count += 1;
        self.highest = self.highest.max(self.count);
    }

    /// The longest jump after such a silence that is a gap: half as many again as came in the busiest second so far, for each second
    /// of the silence and two more.
    pub fn jump(&self, silence: Nanos) -> u64 {
        let seconds = u128::from(silence.0) + u128::from(SLACK.0);
        let most = u128::from(self.highest) * 3 * seconds / (2 * u128::from(Nanos::SECOND.0));
        u64::try_from(most).unwrap_or(u64::MAX).max(MIN_JUMP)
    }
}
