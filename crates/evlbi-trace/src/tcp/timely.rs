//! Whether messages of a constant rate arrive on time: the timely line of TCPdelay (EXPReS report, section 2.3).

use serde::{Deserialize, Serialize};

use super::backlog::due_at;
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;

/// Lateness of messages. Times in seconds are relative to when the first message was due.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timeliness {
    /// Maximum lateness that counts as on time, in nanoseconds.
    pub tolerance: u64,
    /// Periods in which messages were late.
    pub late: Vec<Late>,
    /// Maximum number of bytes that were late at once: they should have arrived and had not.
    pub delayed_bytes: u64,
    /// Maximum lateness, in nanoseconds.
    pub longest: i64,
    /// Lateness of the last message.
    pub at_end: i64,
}

/// Period in which messages were late.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Late {
    /// Number of the first late message.
    pub message: u64,
    /// When it arrived.
    pub from: f64,
    /// When the latest of them arrived.
    pub worst_at: f64,
    /// Lateness of that message, in nanoseconds.
    pub worst: i64,
    /// Bytes that should have arrived by then and had not: lateness times rate.
    pub delayed_bytes: u64,
    /// When messages were on time again; `None` if not before the end.
    pub until: Option<f64>,
}

/// Message that arrived: its number, and nanoseconds from when the first message was due to its arrival.
pub type Arrival = (u64, i64);

/// Returns how late a message is relative to the earliest of all, in nanoseconds.
pub fn lateness(
    rate: BitRate,
    size: usize,
    arrivals: &[Arrival],
) -> impl Iterator<Item = i64> + Clone {
    let late = move |(number, at): &Arrival| {
        at.saturating_sub_unsigned(due_at(rate, size as u64, *number).0)
    };
    let base = arrivals.iter().map(late).min().unwrap_or(0);
    arrivals
        .iter()
        .map(move |arrival| late(arrival).saturating_sub(base))
}

impl Timeliness {
    /// Analyses messages of `size` bytes at a rate, in order of arrival. A message is late if it arrives later than the earliest
    /// one by more than the tolerance; the period ends when the lateness is less than half of that.
    pub fn new(rate: BitRate, size: usize, tolerance: Nanos, arrivals: &[Arrival]) -> Timeliness {
        let mut timeliness = Timeliness {
            tolerance: tolerance.0,
            ..Timeliness::default()
        };
        let tolerance = tolerance.0.cast_signed();
        let bytes = |late: i64| (late.max(0) as f64 * 1e-9 * rate.get() as f64 / 8.0) as u64;
        let mut open = None::<Late>;
        let all = arrivals.iter().zip(lateness(rate, size, arrivals));
        for ((message, at), late) in all {
            let at = *at as f64 * 1e-9;
            timeliness.longest = timeliness.longest.max(late);
            timeliness.at_end = late;
            if open.is_none() && late > tolerance {
                open = Some(Late {
                    message: *message,
                    from: at,
                    ..Late::default()
                });
            }
            if let Some(stretch) = &mut open
                && late > stretch.worst
            {
                (stretch.worst, stretch.worst_at) = (late, at);
                stretch.delayed_bytes = bytes(late);
            }
            if late <= tolerance / 2
                && let Some(stretch) = open.take()
            {
                timeliness.late.push(Late {
                    until: Some(at),
                    ..stretch
                });
            }
        }
        timeliness.late.extend(open);
        timeliness.delayed_bytes = bytes(timeliness.longest);
        timeliness
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// A stop of 100 ms, followed by data at twice the rate.
    #[test]
    fn a_stop_is_caught_up() {
        let rate = BitRate::new(8_000_000).unwrap();
        let at = |number: i64| match number {
            0..100 => number * MS,
            100..300 => 200 * MS + (number - 100) * MS / 2,
            _ => number * MS,
        };
        let arrivals: Vec<Arrival> = (0..500)
            .map(|number| (number as u64, at(number) + 7 * MS))
            .collect();
        let found = Timeliness::new(rate, 1000, Nanos(4_000_000), &arrivals);
        assert_eq!(found.late.len(), 1);
        let late = &found.late[0];
        assert_eq!((late.message, late.worst), (100, 100 * MS));
        assert_eq!(
            (late.delayed_bytes, found.delayed_bytes),
            (100_000, 100_000)
        );
        let until = late.until.unwrap();
        assert!((0.300..0.306).contains(&until), "{until}");
        assert_eq!(found.at_end, 0);
        // Shed messages do not arrive, and are not late.
        let sparse: Vec<Arrival> = arrivals
            .iter()
            .copied()
            .filter(|(number, _)| number % 7 == 0)
            .collect();
        let found = Timeliness::new(rate, 1000, Nanos(4_000_000), &sparse);
        assert_eq!(found.late.len(), 1);
    }
}
