//! Analysis of the samples of a connection: losses and how the window recovered, what limited the flow, bursts and silences.

use serde::{Deserialize, Serialize};

use super::info::{Info, Phase, Reading};
use evlbi_core::time::Nanos;

/// Number of round trips after a loss in which bursts are searched for; at least a second.
const AFTER: u64 = 10;
/// Minimum silence, as a fraction (1/n) of a round trip.
const SILENCE: u64 = 4;

/// Time series of a connection, as reported by its sender's kernel. Times in seconds are relative to the first sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimeSeries {
    /// Losses, each with its effect on the window.
    pub losses: Vec<Loss>,
    /// Limits of the flow, as fractions of the time.
    pub held_back: LimitedBy,
    /// Smoothed round-trip time in microseconds: minimum, mean and maximum.
    pub round_trip: Option<[f64; 3]>,
    /// Congestion window in segments: minimum, mean and maximum.
    pub window: Option<[f64; 3]>,
}

/// Loss, or several that were repaired together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Loss {
    /// When it was detected.
    pub at: f64,
    /// Window before the loss.
    pub before: u32,
    /// Threshold of slow start after the loss.
    pub threshold: u32,
    /// Minimum window after it, until the next loss.
    pub lowest: u32,
    /// Segments retransmitted for it.
    pub sent_again: u32,
    /// Whether it was a retransmission timeout, after which all data in flight count as lost.
    pub timed_out: bool,
    /// Recovery time of the window in seconds; `None` if it did not recover before the next loss or the end.
    pub recovery: Option<f64>,
}

/// Limits of a flow, as fractions of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitedBy {
    /// Application: there was nothing to send.
    pub application: f64,
    /// Congestion window.
    pub window: f64,
    /// Receiver's window.
    pub receiver: f64,
    /// Send buffer: everything in it was in flight, and the application had more.
    pub buffer: f64,
    /// Repair of losses.
    pub repair: f64,
    /// None of these: the sending host, or pacing by the kernel.
    pub host: f64,
}

/// How evenly data arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bursts {
    /// Start, in seconds since the first sample.
    pub from: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Times without data that were longer than a quarter of a round trip.
    pub silences: u64,
    /// Longest of these, in seconds.
    pub longest_silence: f64,
    /// Fraction of the time without data.
    pub silent: f64,
    /// Maximum rate between two samples, in bits per second.
    pub highest: f64,
    /// Mean rate in bits per second.
    pub mean: f64,
}

/// Effect of a temporary disturbance on a flow's rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Disturbance {
    /// Start of the disturbance, in seconds since the first sample.
    pub from: f64,
    /// End of the disturbance.
    pub to: f64,
    /// Mean rate of acknowledged data before it, in bits per second.
    pub before: f64,
    /// Minimum rate since its start, over intervals of a hundredth of the time before it, ten samples or 0.1 s.
    pub lowest: f64,
    /// Time after its end until the rate was nine tenths of that before, in seconds; `None` if it never was.
    pub recovery: Option<f64>,
}

/// Fraction of the earlier rate at which the rate has recovered.
const AS_BEFORE: f64 = 0.9;

impl Disturbance {
    /// Analyses the samples at the sender; `None` if nothing was sent before.
    pub fn new(readings: &[Reading], from: f64, to: f64) -> Option<Disturbance> {
        let apart = seconds(readings.first()?, readings.get(1)?);
        let length = (from / 100.0).max(10.0 * apart).max(0.1);
        let all = intervals(readings, length);
        // Exclude slow start from the rate before.
        let during = |one: &&Interval| one.from >= from / 2.0 && one.to <= from;
        let before = all.iter().filter(during).map(|interval| interval.rate);
        let before = before.clone().sum::<f64>() / before.count().max(1) as f64;
        let since = all.iter().filter(|interval| interval.to > from);
        let lowest = since.map(|interval| interval.rate).reduce(f64::min)?;
        let mut after = all.iter().filter(|interval| interval.to > to);
        let again = after.find(|interval| interval.rate >= AS_BEFORE * before);
        (before > 0.0).then(|| Disturbance {
            from,
            to,
            before,
            lowest,
            recovery: again.map(|interval| (interval.from - to).max(0.0)),
        })
    }
}

/// Interval of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interval {
    /// Start, in seconds since the first sample.
    pub from: f64,
    /// End.
    pub to: f64,
    /// Acknowledged bits per second.
    pub rate: f64,
    /// Segments retransmitted.
    pub sent_again: u32,
    /// Mean congestion window, in segments.
    pub window: f64,
    /// Mean smoothed round-trip time, in microseconds.
    pub round_trip: f64,
}

/// Divides the samples at the sender into intervals of `every` seconds.
pub fn intervals(readings: &[Reading], every: f64) -> Vec<Interval> {
    let Some(begin) = readings.first() else {
        return Vec::new();
    };
    let mut intervals = Vec::new();
    let mut first = 0;
    while first + 1 < readings.len() {
        let end = ((seconds(begin, &readings[first]) / every).floor() + 1.0) * every;
        let mut later = readings[first + 1..].iter();
        let beyond = later.position(|reading| seconds(begin, reading) >= end);
        let last = beyond.map_or(readings.len() - 1, |place| first + 1 + place);
        let before = first;
        let (from, to) = (&readings[before], &readings[last]);
        let time = seconds(from, to);
        first = last;
        if time <= 0.0 {
            continue;
        }
        let acknowledged = to.info.acknowledged.saturating_sub(from.info.acknowledged);
        let during = &readings[before + 1..=last];
        let mean = |get: fn(&Reading) -> u32| {
            let values = during.iter().map(|reading| f64::from(get(reading)));
            values.sum::<f64>() / during.len() as f64
        };
        intervals.push(Interval {
            from: seconds(begin, from),
            to: seconds(begin, to),
            rate: acknowledged as f64 * 8.0 / time,
            sent_again: to.info.sent_again.saturating_sub(from.info.sent_again),
            window: mean(|reading| reading.info.window),
            round_trip: mean(|reading| reading.info.round_trip),
        });
    }
    intervals
}

/// Returns the seconds from one sample to another.
fn seconds(from: &Reading, to: &Reading) -> f64 {
    to.at.saturating_sub(from.at) as f64 * 1e-9
}

fn extent(values: impl Iterator<Item = f64>) -> Option<[f64; 3]> {
    let (mut min, mut max, mut sum, mut count) = (f64::INFINITY, 0.0_f64, 0.0, 0_u64);
    for value in values {
        (min, max) = (min.min(value), max.max(value));
        (sum, count) = (sum + value, count + 1);
    }
    (count > 0).then(|| [min, sum / count as f64, max])
}

impl TimeSeries {
    /// Analyses the samples of one connection at its sender, in order of time. `is_offered`: the application always has more than
    /// the connection accepts.
    pub fn new(readings: &[Reading], is_offered: bool) -> TimeSeries {
        let infos = readings.iter().map(|reading| &reading.info);
        let round_trips = infos.clone().map(|info| f64::from(info.round_trip));
        TimeSeries {
            losses: losses(readings),
            held_back: held_back(readings, is_offered),
            round_trip: extent(round_trips.filter(|time| *time > 0.0)),
            window: extent(infos.map(|info| f64::from(info.window))),
        }
    }
}

fn losses(readings: &[Reading]) -> Vec<Loss> {
    let mut losses = Vec::<Loss>::new();
    let Some(first) = readings.first() else {
        return losses;
    };
    let mut is_repairing = false;
    for [last, now] in readings.array_windows() {
        let at = seconds(first, now);
        let (last, now) = (&last.info, &now.info);
        let again = now.sent_again.saturating_sub(last.sent_again);
        let repairs = matches!(now.phase, Phase::Recovery | Phase::Loss);
        if !is_repairing && (repairs || again > 0) {
            losses.push(Loss {
                at,
                before: last.window,
                threshold: now.threshold,
                lowest: now.window,
                ..Loss::default()
            });
        }
        if let Some(loss) = losses.last_mut() {
            loss.sent_again = loss.sent_again.saturating_add(again);
            loss.timed_out |= now.phase == Phase::Loss || now.timeouts > last.timeouts;
            loss.lowest = loss.lowest.min(now.window);
            if repairs {
                loss.threshold = now.threshold;
            } else if now.window >= loss.before && loss.lowest < loss.before {
                loss.recovery.get_or_insert(at - loss.at);
            }
        }
        is_repairing = repairs;
    }
    losses
}

fn held_back(readings: &[Reading], is_offered: bool) -> LimitedBy {
    let mut parts = LimitedBy::default();
    let mut all = 0.0;
    // Reported by the kernel, and not counted yet.
    let mut told = [0.0; 2];
    for [last, now] in readings.array_windows() {
        let time = seconds(last, now);
        let info = &now.info;
        // Measured by the kernel itself (tcp_chrono).
        let limited =
            |get: fn(&Info) -> u64| get(info).saturating_sub(get(&last.info)) as f64 * 1e-6;
        // The kernel counts in ticks, which may be longer than this interval: the rest counts for the next one.
        told[0] += limited(|info| info.receiver_limited);
        told[1] += limited(|info| info.buffer_limited);
        let receiver = told[0].min(time);
        let buffer = told[1].min(time - receiver);
        told[0] -= receiver;
        told[1] -= buffer;
        parts.receiver += receiver;
        parts.buffer += buffer;
        // A burst of offloaded segments waits until it fits as a whole.
        let in_flight = u64::from(info.in_flight);
        let is_full = in_flight + in_flight / 8 + 1 >= info.window.into();
        let rest = if matches!(info.phase, Phase::Recovery | Phase::Loss) {
            &mut parts.repair
        } else if is_full && (is_offered || info.not_sent > 0) {
            &mut parts.window
        } else if info.not_sent == 0 && now.backlog > 0 {
            &mut parts.buffer
        } else if is_offered || info.not_sent > 0 {
            &mut parts.host
        } else {
            &mut parts.application
        };
        *rest += time - receiver - buffer;
        all += time;
    }
    for part in [
        &mut parts.application,
        &mut parts.window,
        &mut parts.receiver,
        &mut parts.buffer,
        &mut parts.repair,
        &mut parts.host,
    ] {
        *part /= f64::max(all, f64::MIN_POSITIVE);
    }
    parts
}

impl Bursts {
    /// Analyses how data arrived at a receiver after a moment, by its samples, over paths of this round-trip time: section 2.6.1
    /// of the EXPReS report. `None` if no samples are closer than a silence.
    pub fn after(readings: &[Reading], moment: u64, round_trip: Nanos) -> Option<Bursts> {
        let length = round_trip.0.saturating_mul(AFTER).max(1_000_000_000);
        let time = moment..moment.saturating_add(length);
        let during = readings.iter().filter(|reading| time.contains(&reading.at));
        let during: Vec<&Reading> = during.collect();
        let (first, last) = (*during.first()?, *during.last()?);
        let span = seconds(first, last);
        let shortest = round_trip.0 as f64 * 1e-9 / SILENCE as f64;
        let mut pairs = during.array_windows();
        let is_fine = pairs.all(|[one, next]| seconds(one, next) < shortest);
        if !is_fine || span <= 0.0 {
            return None;
        }
        let mut bursts = Bursts {
            from: seconds(readings.first()?, first),
            seconds: span,
            mean: last.info.received.saturating_sub(first.info.received) as f64 * 8.0 / span,
            ..Bursts::default()
        };
        let mut silence = 0.0;
        for [one, next] in during.array_windows() {
            let bytes = next.info.received.saturating_sub(one.info.received);
            let time = seconds(one, next);
            if bytes == 0 {
                silence += time;
            } else {
                bursts.highest = bursts.highest.max(bytes as f64 * 8.0 / time.max(1e-9));
                bursts.end(std::mem::take(&mut silence), shortest);
            }
        }
        bursts.end(silence, shortest);
        bursts.silent /= span;
        Some(bursts)
    }

    fn end(&mut self, silence: f64, shortest: f64) {
        if silence > shortest {
            self.silences += 1;
            self.silent += silence;
            self.longest_silence = self.longest_silence.max(silence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(count: u64, info: impl Fn(u64) -> Info) -> Vec<Reading> {
        let reading = |number| Reading {
            at: number * 10_000_000,
            connection: 0,
            backlog: 0,
            info: info(number),
        };
        (0..count).map(reading).collect()
    }

    #[test]
    fn a_halved_window_recovers() {
        let course = TimeSeries::new(
            &readings(300, |number| Info {
                window: match number {
                    0..100 => 400,
                    100..102 => 210,
                    _ => (200 + (number - 102) as u32 * 2).min(420),
                },
                threshold: if number < 100 { 1 << 30 } else { 200 },
                sent_again: u32::from(number >= 100),
                phase: match number {
                    100..102 => Phase::Recovery,
                    _ => Phase::Open,
                },
                segment: 1000,
                peer_window: 10_000_000,
                in_flight: 300,
                not_sent: if (102..202).contains(&number) {
                    5000
                } else {
                    0
                },
                round_trip: 15_000,
                ..Info::default()
            }),
            false,
        );
        assert_eq!(course.losses.len(), 1);
        let loss = &course.losses[0];
        assert_eq!((loss.before, loss.threshold, loss.lowest), (400, 200, 200));
        assert_eq!((loss.sent_again, loss.timed_out), (1, false));
        assert!((loss.recovery.unwrap() - 1.02).abs() < 1e-9, "{loss:?}");
        let held = course.held_back;
        let of = |part: f64| (part * 299.0).round();
        // While the window is smaller than the data in flight and an eighth.
        assert_eq!(of(held.repair), 2.0);
        assert_eq!(of(held.window + held.host), 100.0);
        assert_eq!(of(held.application), 197.0);
        assert_eq!(course.round_trip, Some([15e3; 3]));
    }

    #[test]
    fn a_burst_of_others_is_recovered_from() {
        // 8 Mbit/s; half of it from 10 to 15 s, though the others end at 12 s.
        let all = readings(2000, |number| Info {
            acknowledged: 10_000 * number.min(1000)
                + 5_000 * number.saturating_sub(1000).min(500)
                + 10_000 * number.saturating_sub(1500),
            ..Info::default()
        });
        let found = Disturbance::new(&all, 10.0, 12.0).unwrap();
        assert!((found.before - 8e6).abs() < 1.0 && (found.lowest - 4e6).abs() < 1.0);
        assert!((found.recovery.unwrap() - 3.0).abs() < 0.2, "{found:?}");
    }

    #[test]
    fn bursts_have_silences_between() {
        // Periods of 100 ms: a burst of 20 ms, and nothing for 80 ms.
        let all = readings(200, |number| Info {
            received: (number / 10) * 100_000 + (number % 10).min(2) * 50_000,
            ..Info::default()
        });
        let found = Bursts::after(&all, 0, Nanos(95_000_000)).unwrap();
        assert_eq!(found.silences, 10);
        assert!((found.longest_silence - 0.08).abs() < 1e-9);
        assert!((found.silent - 0.8).abs() < 0.02, "{found:?}");
        assert!((found.highest - 50_000.0 * 8.0 / 0.01).abs() < 1.0);
        assert_eq!(Bursts::after(&all, 0, Nanos(30_000_000)), None);
    }
}
