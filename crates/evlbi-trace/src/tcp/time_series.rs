//! What the readings of a connection tell: when something was lost and how the window came back, what held the flow back,
//! bursts and silences.

use serde::{Deserialize, Serialize};

use super::info::{Info, Phase, Reading};
use evlbi_core::time::Nanos;

/// After a loss it is looked at for so many round trips whether data comes in bursts, and for no less than a second.
const AFTER: u64 = 10;
/// A silence is longer than this part of a round trip.
const SILENCE: u64 = 4;

/// The course of a connection, as its sender's kernel told it. Times in seconds are from the first reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSeries {
    /// Losses, each with what became of the window.
    pub losses: Vec<Loss>,
    /// What held the flow back, in parts of the time.
    pub held_back: LimitedBy,
    /// Round-trip times in microseconds: shortest, mean and longest smoothed one.
    pub round_trip: Option<[f64; 3]>,
    /// Congestion window in segments: smallest, mean and largest.
    pub window: Option<[f64; 3]>,
}

/// A loss, or several that were repaired together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// When it was noticed.
    pub at: f64,
    /// Window before.
    pub before: u32,
    /// Where the law set slow start's threshold.
    pub threshold: u32,
    /// Smallest window after it, until the next loss.
    pub lowest: u32,
    /// Segments that were sent again for it.
    pub sent_again: u32,
    /// Whether nothing was acknowledged for so long that all was taken for lost.
    pub timed_out: bool,
    /// Seconds until the window was as before; none if it was not until the next loss or the end.
    pub recovery: Option<f64>,
}

/// What held a flow back, in parts of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitedBy {
    /// The application: there was nothing to send.
    pub application: f64,
    /// The congestion window.
    pub window: f64,
    /// The receiver's window.
    pub receiver: f64,
    /// The send buffer: all in it was under way, and the application had more.
    pub buffer: f64,
    /// The repair of losses.
    pub repair: f64,
    /// None of these: the sending host, or the kernel's own spacing.
    pub host: f64,
}

/// How evenly data comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bursts {
    /// From when, in seconds from the first reading.
    pub from: f64,
    /// For how long.
    pub seconds: f64,
    /// Times without data that were longer than a quarter of a round trip.
    pub silences: u64,
    /// Longest of these in seconds.
    pub longest_silence: f64,
    /// Part of the time that they are.
    pub silent: f64,
    /// Highest rate between two readings, in bits per second.
    pub highest: f64,
    /// Mean rate in bits per second.
    pub mean: f64,
}

/// What something for a while did to a flow's rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// From when to when, in seconds from the first reading.
    pub from: f64,
    /// Its end.
    pub to: f64,
    /// Mean rate of acknowledged data before, in bits per second.
    pub before: f64,
    /// Lowest rate since, of stretches of a hundredth of the time before, ten readings or a tenth of a second.
    pub lowest: f64,
    /// Seconds after its end until the rate was nine tenths of that before; none if it never was.
    pub recovery: Option<f64>,
}

/// The rate is as before when it is so much of it.
const AS_BEFORE: f64 = 0.9;

impl Disturbance {
    /// By the readings at the sender. None where nothing was carried before.
    pub fn new(readings: &[Reading], from: f64, to: f64) -> Option<Disturbance> {
        let apart = seconds(readings.first()?, readings.get(1)?);
        let length = (from / 100.0).max(10.0 * apart).max(0.1);
        let all = intervals(readings, length);
        // Slow start is not what it was like before.
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

/// A stretch of time of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// From when, in seconds from the first reading.
    pub from: f64,
    /// Until when.
    pub to: f64,
    /// Bits per second that were acknowledged.
    pub rate: f64,
    /// Segments that were sent again.
    pub sent_again: u32,
    /// Mean congestion window in segments.
    pub window: f64,
    /// Mean smoothed round-trip time in microseconds.
    pub round_trip: f64,
}

/// The course of a connection in stretches of so many seconds, by its readings at the sender.
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

/// Seconds from one reading to another.
fn seconds(from: &Reading, to: &Reading) -> f64 {
    to.at.saturating_sub(from.at) as f64 * 1e-9
}

fn extent(values: impl Iterator<Item = f64>) -> Option<[f64; 3]> {
    let (mut least, mut most, mut sum, mut count) = (f64::INFINITY, 0.0_f64, 0.0, 0_u64);
    for value in values {
        (least, most) = (least.min(value), most.max(value));
        (sum, count) = (sum + value, count + 1);
    }
    (count > 0).then(|| [least, sum / count as f64, most])
}

impl TimeSeries {
    /// Of one connection's readings at its sender, in the order of time. `is_offered` where the application always has more
    /// than the connection takes.
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
    // Told by the kernel, and not counted yet.
    let mut told = [0.0; 2];
    for [last, now] in readings.array_windows() {
        let time = seconds(last, now);
        let info = &now.info;
        // What the kernel has measured itself (tcp_chrono).
        let limited =
            |get: fn(&Info) -> u64| get(info).saturating_sub(get(&last.info)) as f64 * 1e-6;
        // It counts in steps of its own clock, which may be longer than this time: the rest is the next one's.
        told[0] += limited(|info| info.receiver_limited);
        told[1] += limited(|info| info.buffer_limited);
        let receiver = told[0].min(time);
        let buffer = told[1].min(time - receiver);
        told[0] -= receiver;
        told[1] -= buffer;
        parts.receiver += receiver;
        parts.buffer += buffer;
        // A burst of offloaded segments waits until it has room as a whole.
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
    /// How data came to a receiver after a moment, by its readings, over paths of this round trip: section 2.6.1 of the EXPReS
    /// report. None without readings that are closer than a silence.
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
    fn a_halved_window_comes_back() {
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
        // While the window is smaller than what is under way and an eighth.
        assert_eq!(of(held.repair), 2.0);
        assert_eq!(of(held.window + held.host), 100.0);
        assert_eq!(of(held.application), 197.0);
        assert_eq!(course.round_trip, Some([15e3; 3]));
    }

    #[test]
    fn a_burst_of_others_is_recovered_from() {
        // 8 Mbit/s; half of it from 10 to 15 s, though the others go at 12 s.
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
        // 100 ms each: a burst of 20 ms, and nothing for 80.
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
