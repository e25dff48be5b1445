//! Causes of loss, as far as they show.

use evlbi_core::time::Nanos;
use serde::{Deserialize, Serialize};

/// Minimum delay that is a queue, or another route.
const MIN_QUEUE: Nanos = Nanos(2_000_000);
/// Minimum delay that is a queue, as a fraction of the round-trip time: one in this many.
const QUEUE_PART: u64 = 20;
/// Minimum length of an outage.
const OUTAGE: Nanos = Nanos(50_000_000);
/// Minimum fraction of the losses that an outage, or the burst of another route, has in one run.
const IN_ONE_RUN: f64 = 0.9;
/// Minimum number of losses by which random loss is distinguished from a policer.
const MIN_LOSSES: u64 = 30;
/// Minimum fraction of the earlier loss fraction that remains when less is sent, if the loss is random.
const REMAINS: f64 = 0.7;

/// Cause of a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Cause {
    /// It does not show: neither a queue nor a mark, an outage or another route. A policer or random loss, if data were not shed yet.
    #[default]
    Unknown,
    /// The receiving host.
    Host,
    /// A queue grew before the loss.
    Queue,
    /// A router marked datagrams (ECN).
    Mark,
    /// A policer: no queue, and less is lost if less is sent.
    Police,
    /// Another route: the delay changed with one burst of loss.
    Route,
    /// One long run of loss.
    Outage,
    /// Random: no queue, and as much is lost if less is sent.
    Random,
}

impl Cause {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        [
            "unknown", "host", "queue", "mark", "police", "route", "outage", "random",
        ][self as usize]
    }
}

/// Signs of a cause since the loss began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signs {
    /// Datagrams lost in the network.
    pub lost: u64,
    /// Datagrams that the receiving host lost.
    pub host: u64,
    /// Datagrams marked.
    pub marked: u64,
    /// The longest run of loss: its length, and its time.
    pub longest: (u64, Nanos),
    /// Maximum delay of queues shortly before losses.
    pub queue_before: Nanos,
    /// Minimum delay, above the shortest, since the last loss; `None` before a report without loss.
    pub delay_after: Option<Nanos>,
    /// Loss fraction before data were shed; and datagrams sent and lost since then.
    pub shed: Option<(f64, u64, u64)>,
}

impl Signs {
    /// Returns the cause that these signs show on a path with this round-trip time.
    pub fn cause(&self, round_trip: Nanos) -> Cause {
        let queue = MIN_QUEUE.max(Nanos(round_trip.0 / QUEUE_PART));
        let is_one_run = self.longest.0 as f64 >= IN_ONE_RUN * self.lost as f64;
        match self.lost + self.marked {
            0 if self.host > 0 => Cause::Host,
            0 => Cause::Unknown,
            _ if self.marked > self.lost => Cause::Mark,
            _ if self.queue_before > queue => Cause::Queue,
            _ if is_one_run && self.delay_after.is_some_and(|delay| delay > queue) => Cause::Route,
            _ if is_one_run && self.longest.1 >= OUTAGE => Cause::Outage,
            _ => self.by_shedding(),
        }
    }

    /// Distinguishes a policer from random loss by what shedding changed.
    fn by_shedding(&self) -> Cause {
        match self.shed {
            Some((before, sent, lost))
                if before > 0.0 && before * sent as f64 >= MIN_LOSSES as f64 =>
            {
                match lost as f64 >= REMAINS * before * sent as f64 {
                    true => Cause::Random,
                    false => Cause::Police,
                }
            }
            _ => Cause::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_their_signs() {
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        let some = Signs {
            lost: 100,
            longest: (3, Nanos(100_000)),
            ..Signs::default()
        };
        for (signs, cause) in [
            (Signs::default(), Cause::Unknown),
            (
                Signs {
                    host: 1,
                    ..Signs::default()
                },
                Cause::Host,
            ),
            (some, Cause::Unknown),
            (
                Signs {
                    marked: 101,
                    ..some
                },
                Cause::Mark,
            ),
            (
                Signs {
                    queue_before: ms(3),
                    ..some
                },
                Cause::Queue,
            ),
            (
                Signs {
                    queue_before: ms(1),
                    ..some
                },
                Cause::Unknown,
            ),
            (
                Signs {
                    longest: (95, ms(20)),
                    delay_after: Some(ms(30)),
                    ..some
                },
                Cause::Route,
            ),
            (
                Signs {
                    longest: (95, ms(20)),
                    delay_after: Some(ms(0)),
                    ..some
                },
                Cause::Unknown,
            ),
            (
                Signs {
                    longest: (95, ms(60)),
                    delay_after: Some(ms(0)),
                    ..some
                },
                Cause::Outage,
            ),
            (
                Signs {
                    longest: (50, ms(60)),
                    ..some
                },
                Cause::Unknown,
            ),
            (
                Signs {
                    shed: Some((0.01, 2000, 0)),
                    ..some
                },
                Cause::Unknown,
            ),
            (
                Signs {
                    shed: Some((0.01, 3000, 2)),
                    ..some
                },
                Cause::Police,
            ),
            (
                Signs {
                    shed: Some((0.01, 3000, 22)),
                    ..some
                },
                Cause::Random,
            ),
        ] {
            assert_eq!(signs.cause(ms(15)), cause, "{signs:?}");
        }
        // A twentieth of a long round trip.
        let far = Signs {
            queue_before: ms(3),
            ..some
        };
        assert_eq!(far.cause(ms(95)), Cause::Unknown);
    }
}
