//! Messages at a constant rate in front of a send buffer: which are due, waiting, or shed.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;

/// Behaviour if a message finds the send buffer full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Full {
    /// The message and all after it wait.
    #[default]
    Block,
    /// The message is shed.
    Shed,
}

/// Messages of one size that are due at a constant rate, and wait while the connection does not accept them.
///
/// ```
/// use evlbi_core::rate::BitRate;
/// use evlbi_trace::tcp::{Backlog, Full};
/// use evlbi_core::time::Nanos;
///
/// // 1000 bytes every millisecond, of which two messages may wait.
/// let rate = BitRate::new(8_000_000).unwrap();
/// let mut backlog = Backlog::new(rate, 1000, 2, Full::Shed);
/// backlog.admit(Nanos(2_500_000));
/// backlog.stuck(Nanos(2_500_000));
/// assert_eq!(backlog.first(10), Some(0..2));
/// assert_eq!(backlog.shed(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Backlog {
    rate: BitRate,
    size: u64,
    room: u64,
    full: Full,
    /// Number of the next message, in order of their due times.
    next: u64,
    waiting: VecDeque<Range<u64>>,
    count: u64,
    max: u64,
    shed: u64,
    blocked: Nanos,
    blocked_since: Option<Nanos>,
}

impl Backlog {
    /// Makes a backlog of messages of `size` bytes at a rate, of which `room` may wait (at least one).
    pub fn new(rate: BitRate, size: usize, room: u64, full: Full) -> Backlog {
        Backlog {
            rate,
            size: size as u64,
            room: room.max(1),
            full,
            next: 0,
            waiting: VecDeque::new(),
            count: 0,
            max: 0,
            shed: 0,
            blocked: Nanos::default(),
            blocked_since: None,
        }
    }

    /// Returns when a message is due, relative to the first.
    pub fn due_at(&self, message: u64) -> Nanos {
        due_at(self.rate, self.size, message)
    }

    /// Returns when the next message is due.
    pub fn next_due(&self) -> Nanos {
        self.due_at(self.next)
    }

    /// Admits messages that are due to the queue, as far as there is room.
    pub fn admit(&mut self, now: Nanos) {
        let more = (self.due_by(now) - self.next).min(self.room - self.count);
        if more == 0 {
            return;
        }
        if let Some(since) = self.blocked_since.take() {
            self.blocked = self.blocked.plus(now.since(since));
        }
        let end = self.next + more;
        match self.waiting.back_mut() {
            Some(last) if last.end == self.next => last.end = end,
            _ => self.waiting.push_back(self.next..end),
        }
        self.next = end;
        self.count += more;
        self.max = self.max.max(self.count);
    }

    /// Handles a connection that accepts nothing: messages due beyond the room are shed, or wait outside.
    pub fn stuck(&mut self, now: Nanos) {
        let more = self.due_by(now) - self.next;
        if self.count < self.room || more == 0 {
            return;
        }
        match self.full {
            Full::Block => {
                self.blocked_since.get_or_insert(now);
            }
            Full::Shed => {
                self.next += more;
                self.shed += more;
            }
        }
    }

    /// Returns the number of messages due by a time, without those already handled.
    fn due_by(&self, now: Nanos) -> u64 {
        let bits = u128::from(now.0.saturating_add(1)).saturating_mul(self.rate.get().into());
        let each = u128::from(self.size) * 8 * 1_000_000_000;
        let count = bits.saturating_sub(1) / each.max(1) + 1;
        u64::try_from(count).unwrap_or(u64::MAX).max(self.next)
    }

    /// Returns the first waiting messages in a row, at most `max`.
    pub fn first(&self, max: u64) -> Option<Range<u64>> {
        let first = self.waiting.front()?;
        Some(first.start..first.end.min(first.start.saturating_add(max)))
    }

    /// Removes the first `count` messages, which were sent.
    pub fn gone(&mut self, count: u64) {
        let mut left = count.min(self.count);
        self.count -= left;
        while left > 0
            && let Some(first) = self.waiting.front_mut()
        {
            let part = left.min(first.end - first.start);
            first.start += part;
            left -= part;
            if first.start == first.end {
                self.waiting.pop_front();
            }
        }
    }

    /// Returns the number of messages due so far: admitted or shed.
    pub fn due(&self) -> u64 {
        self.next
    }

    /// Returns the bytes that wait.
    pub fn bytes(&self) -> u64 {
        self.count * self.size
    }

    /// Returns the maximum number of bytes that waited at once.
    pub fn max_bytes(&self) -> u64 {
        self.max * self.size
    }

    /// Returns the number of messages shed.
    pub fn shed(&self) -> u64 {
        self.shed
    }

    /// Returns whether a message that is due waits outside.
    pub fn is_blocked(&self) -> bool {
        self.blocked_since.is_some()
    }

    /// Returns how long messages have waited outside, up to now.
    pub fn blocked(&self, now: Nanos) -> Nanos {
        let since = self.blocked_since.map(|since| now.since(since));
        self.blocked.plus(since.unwrap_or_default())
    }
}

/// Returns when a message of a constant rate is due, relative to the first.
pub fn due_at(rate: BitRate, size: u64, message: u64) -> Nanos {
    rate.due(u128::from(message) * u128::from(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog(full: Full) -> Backlog {
        Backlog::new(BitRate::new(8_000_000).unwrap(), 1000, 3, full)
    }

    const MS: u64 = 1_000_000;

    /// The closed form counts as the times one by one do, at rates that are not round.
    #[test]
    fn due_messages_are_counted_at_once() {
        for rate in [7, 999_999_937, u64::MAX] {
            let rate = BitRate::new(rate).unwrap();
            let backlog = Backlog::new(rate, 1448, 1, Full::Shed);
            for message in [0, 1, 2, 77, 1_000_003] {
                let at = backlog.due_at(message);
                assert!(backlog.due_by(at) > message, "{rate} {message}");
                if at.0 > 0 {
                    assert!(
                        backlog.due_by(Nanos(at.0 - 1)) <= message,
                        "{rate} {message}"
                    );
                }
            }
        }
        let mut fast = Backlog::new(BitRate::new(u64::MAX).unwrap(), 16, u64::MAX, Full::Shed);
        fast.admit(Nanos(u64::MAX));
        assert!(fast.first(10).is_some());
    }

    #[test]
    fn what_finds_no_room_waits_outside() {
        let mut backlog = backlog(Full::Block);
        backlog.admit(Nanos(5 * MS));
        backlog.stuck(Nanos(5 * MS));
        assert_eq!((backlog.due(), backlog.bytes()), (3, 3000));
        assert_eq!(backlog.first(2), Some(0..2));
        backlog.gone(2);
        backlog.admit(Nanos(9 * MS));
        assert_eq!(backlog.blocked(Nanos(9 * MS)), Nanos(4 * MS));
        assert_eq!(backlog.first(9), Some(2..5));
        assert_eq!((backlog.shed(), backlog.max_bytes()), (0, 3000));
    }

    #[test]
    fn what_finds_no_room_is_given_up() {
        let mut backlog = backlog(Full::Shed);
        backlog.admit(Nanos(5 * MS));
        backlog.stuck(Nanos(5 * MS));
        backlog.gone(1);
        backlog.admit(Nanos(6 * MS));
        assert_eq!((backlog.due(), backlog.shed()), (7, 3));
        assert_eq!(backlog.first(9), Some(1..3));
        backlog.gone(2);
        assert_eq!(backlog.first(9), Some(6..7));
        backlog.gone(1);
        assert_eq!(
            (backlog.first(9), backlog.blocked(Nanos(7 * MS))),
            (None, Nanos(0))
        );
    }
}
