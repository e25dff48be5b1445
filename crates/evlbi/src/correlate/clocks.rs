//! Which frames of streams are believed, and which stations are waited for, by the times in the frames.
//!
//! No station's clock can hold back or zero the others:
//! - A frame is refused if it lies more than [`Clocks::leap`] ahead of each station's newest data, the time that has passed
//!   since included. It is believed after all if two stations or more agree, and are more than those that do not.
//! - A station is waited for until two others are ahead by the wait; or one, if the station is silent, or if the other can
//!   hold no more and no third one sends.

use std::collections::BTreeSet;

use crate::units::{show_count, show_seconds};

/// Data that wait for the correlator at most, in seconds, beside the wait.
pub const HOLD: f64 = 4.0;
/// Frames in a row that make a time of their own; fewer may have damaged headers.
pub const RUN: u32 = 8;

/// The times of all stations. Times of data are seconds since an epoch; `now` is this host's time since any moment.
pub struct Clocks {
    wait: f64,
    has_begun: bool,
    stations: Vec<Clock>,
}

#[derive(Clone, Default)]
struct Clock {
    /// Newest time that is believed.
    newest: Option<f64>,
    /// When it advanced.
    advanced: f64,
    /// Frames in a row that were not believed, and the time of the last and when it came.
    odd: u32,
    odd_time: f64,
    odd_at: f64,
    refused: u64,
    /// Refused frames were reported, and it is not yet right again.
    is_reported: bool,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes where its time says.
    Take,
    /// It is left out.
    Refuse,
    /// The run has not begun, and the station's time is another one from here on.
    Restart,
}

impl Clocks {
    pub fn new(stations: usize, wait: f64) -> Clocks {
        Clocks {
            wait,
            has_begun: false,
            stations: vec![Clock::default(); stations],
        }
    }

    /// Seconds that a frame may be ahead of what is plausible: what is held of it is not yet all that can be.
    fn leap(&self) -> f64 {
        self.wait + HOLD / 2.0
    }

    /// Begins with the largest group of stations whose times agree; of equal groups with that nearest to `host`, this host's
    /// time. `times`: of each station the earliest and the newest data. Returns when all of the group have data, and which
    /// stations are of it.
    pub fn begin(
        &mut self,
        times: &[Option<(f64, f64)>],
        host: f64,
        now: f64,
    ) -> (f64, BTreeSet<usize>) {
        let leap = self.leap();
        let group = |of: f64| -> BTreeSet<usize> {
            let near = |(_, time): &(usize, &Option<(f64, f64)>)| {
                time.is_some_and(|(_, newest)| (newest - of).abs() <= leap)
            };
            times
                .iter()
                .enumerate()
                .filter(near)
                .map(|(at, _)| at)
                .collect()
        };
        let groups = times
            .iter()
            .flatten()
            .map(|(_, newest)| (group(*newest), *newest));
        let best = groups.min_by(|(a, x), (b, y)| {
            let far = |time: &f64| (time - host).abs();
            b.len().cmp(&a.len()).then(far(x).total_cmp(&far(y)))
        });
        let members = best.map(|(members, _)| members).unwrap_or_default();
        let mut start = f64::NEG_INFINITY;
        for (at, (clock, times)) in self.stations.iter_mut().zip(times).enumerate() {
            let ours = times.filter(|_| members.contains(&at));
            *clock = Clock {
                newest: ours.map(|(_, newest)| newest),
                advanced: now,
                ..Clock::default()
            };
            start = ours.map_or(start, |(earliest, _)| start.max(earliest));
        }
        self.has_begun = true;
        (start, members)
    }

    /// Decides about a frame.
    pub fn judge(&mut self, station: usize, time: f64, now: f64) -> Verdict {
        let reach = |clock: &Clock| Some(clock.newest? + (now - clock.advanced));
        let own = reach(&self.stations[station]);
        let reached = match self.has_begun {
            true => self.stations.iter().filter_map(reach).reduce(f64::max),
            false => own,
        };
        let leap = self.leap();
        let is_plausible = reached.is_none_or(|reached| time <= reached + leap)
            // Before the run nothing is late.
            && (self.has_begun || own.is_none_or(|own| time >= own - leap));
        if is_plausible {
            let clock = &mut self.stations[station];
            clock.odd = 0;
            if clock.newest.is_none_or(|newest| time > newest) {
                (clock.newest, clock.advanced) = (Some(time), now);
            }
            return Verdict::Take;
        }
        let clock = &mut self.stations[station];
        (clock.odd, clock.odd_time, clock.odd_at) = (clock.odd.saturating_add(1), time, now);
        let is_new = clock.odd >= RUN && (!self.has_begun || self.is_agreed(station, time, now));
        let clock = &mut self.stations[station];
        if !is_new {
            clock.refused += 1;
            return Verdict::Refuse;
        }
        (clock.odd, clock.newest, clock.advanced) = (0, Some(time), now);
        match self.has_begun {
            true => Verdict::Take,
            false => Verdict::Restart,
        }
    }

    /// The station's data were taken back to a time before.
    pub fn set_back(&mut self, station: usize, newest: f64, now: f64) {
        let clock = &mut self.stations[station];
        (clock.newest, clock.advanced) = (Some(newest), now);
    }

    /// Whether a station whose frames are refused and others like it are more than those that go on.
    fn is_agreed(&self, station: usize, time: f64, now: f64) -> bool {
        let leap = self.leap();
        let (mut with, mut without) = (1, 0);
        for (at, clock) in self.stations.iter().enumerate() {
            if at == station {
                continue;
            }
            let there = clock.odd_time + (now - clock.odd_at);
            if clock.odd >= RUN && (there - time).abs() <= leap {
                with += 1;
            } else if clock.newest.is_some() && now - clock.advanced < leap {
                without += 1;
            }
        }
        with >= 2 && with > without
    }

    /// Whether the correlator waits for a station's data before `end`.
    pub fn is_waited_for(&self, station: usize, end: f64, now: f64) -> bool {
        let others = || {
            let others = self.stations.iter().enumerate();
            others
                .filter(|(at, _)| *at != station)
                .map(|(_, clock)| clock)
        };
        let ahead = |by: f64| {
            let is = move |clock: &&Clock| clock.newest.is_some_and(|newest| newest >= end + by);
            others().filter(is).count()
        };
        match ahead(self.wait) {
            0 => true,
            1 => {
                let is_alone = others().filter(|clock| !self.is_silent(clock, now)).count() <= 1;
                let is_full = is_alone && ahead(self.wait + HOLD) == 1;
                !self.is_silent(&self.stations[station], now) && !is_full
            }
            _ => false,
        }
    }

    fn is_silent(&self, clock: &Clock, now: f64) -> bool {
        clock.newest.is_none() || now - clock.advanced >= self.wait
    }

    /// Frames of a station that were refused.
    pub fn refused(&self, station: usize) -> u64 {
        self.stations[station].refused
    }

    /// How far a station's newest frames are ahead of the other stations' newest that are believed; negative if behind.
    pub fn offset(&self, station: usize, now: f64) -> Option<f64> {
        let clock = &self.stations[station];
        let others = self
            .stations
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != station);
        let front = others.filter_map(|(_, clock)| Some(clock.newest? + (now - clock.advanced)));
        let front = front.reduce(f64::max)?;
        let own = match clock.odd >= RUN {
            true => clock.odd_time + (now - clock.odd_at),
            false => clock.newest? + (now - clock.advanced),
        };
        Some(own - front)
    }

    /// Why a station contributes nothing; `late`: frames of it came too late.
    pub fn reason(&self, station: usize, late: bool, has_ended: bool, now: f64) -> String {
        let clock = &self.stations[station];
        let offset = self.offset(station, now).unwrap_or(0.0);
        if clock.odd >= RUN {
            let count = show_count(clock.refused);
            return format!(
                "{count} frames refused, {} ahead of the other stations",
                show_seconds(offset)
            );
        }
        if late && offset < 0.0 {
            return format!(
                "its data arrive {} behind the other stations, and the wait is {}",
                show_seconds(-offset),
                show_seconds(self.wait)
            );
        }
        match clock.newest {
            None if clock.refused == 0 => "no data have arrived".into(),
            None => format!(
                "all of its {} frames were refused",
                show_count(clock.refused)
            ),
            Some(_) if has_ended => "its stream has ended".into(),
            Some(_) if now - clock.advanced >= self.wait => {
                format!("no data for {}", show_seconds(now - clock.advanced))
            }
            Some(_) => "no valid samples at the time that is correlated".into(),
        }
    }

    /// What there is to report about a station's clock since the last call: that frames are refused, or no more. `host`: this
    /// host's time.
    pub fn report(&mut self, station: usize, host: f64, now: f64) -> Option<String> {
        let offset = self.offset(station, now).unwrap_or(0.0);
        let clock = &mut self.stations[station];
        let refuses = clock.odd >= RUN && self.has_begun;
        if refuses == clock.is_reported {
            return None;
        }
        clock.is_reported = refuses;
        if !refuses {
            return Some(format!(
                "time right again after {} refused frames",
                show_count(clock.refused)
            ));
        }
        let of_host = clock.odd_time + (now - clock.odd_at) - host;
        let (by, side) = (
            of_host.abs(),
            if of_host < 0.0 { "behind" } else { "ahead of" },
        );
        Some(format!(
            "frames refused: they are {} ahead of the other stations, and {} {side} this host's clock; they are used as soon as their time is right",
            show_seconds(offset),
            show_seconds(by)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stations that began at second 0, with a wait of 1 s.
    fn begun(stations: usize) -> Clocks {
        let mut clocks = Clocks::new(stations, 1.0);
        let times = vec![Some((0.0, 0.0)); stations];
        let (start, members) = clocks.begin(&times, 0.0, 0.0);
        assert_eq!((start, members.len()), (0.0, stations));
        clocks
    }

    #[test]
    fn a_clock_far_ahead_is_refused_and_used_again_at_once() {
        let mut clocks = begun(3);
        for tick in 1..=20 {
            let now = f64::from(tick) * 0.1;
            for station in [0, 1] {
                assert_eq!(clocks.judge(station, now, now), Verdict::Take);
            }
            // 30 s or an hour ahead.
            let ahead = if tick < 10 { 30.0 } else { 3600.0 };
            assert_eq!(clocks.judge(2, now + ahead, now), Verdict::Refuse);
            for station in [0, 1] {
                assert!(clocks.is_waited_for(station, now + 0.1, now));
            }
        }
        assert_eq!(clocks.refused(2), 20);
        let said = clocks.report(2, 2.0, 2.0).unwrap();
        assert!(
            said.contains("3600.0") && said.contains("of this host's"),
            "{said}"
        );
        assert_eq!(clocks.report(2, 2.0, 2.0), None);
        let reason = clocks.reason(2, false, false, 2.0);
        assert!(reason.contains("20 frames refused"), "{reason}");
        assert_eq!(clocks.judge(2, 2.1, 2.1), Verdict::Take);
        assert!(clocks.report(2, 2.1, 2.1).unwrap().contains("right again"));
    }

    #[test]
    fn one_station_ahead_zeroes_nobody() {
        // Ahead by less than is refused, in company and alone.
        for stations in [2, 3] {
            let mut clocks = begun(stations);
            for tick in 1..=50 {
                let now = f64::from(tick) * 0.1;
                for station in 1..stations {
                    assert_eq!(clocks.judge(station, now, now), Verdict::Take);
                }
                assert_eq!(clocks.judge(0, now + 1.95, now), Verdict::Take);
                assert!((1..stations).all(|station| clocks.is_waited_for(station, now, now)));
            }
        }
    }

    #[test]
    fn two_ahead_leave_a_late_station_behind_and_say_why() {
        let mut clocks = begun(3);
        for (station, time) in [(0, 5.0), (1, 5.0), (2, 3.05)] {
            assert_eq!(clocks.judge(station, time, 5.0), Verdict::Take);
        }
        assert!(!clocks.is_waited_for(2, 4.0, 5.0));
        assert!(clocks.is_waited_for(2, 4.5, 5.0));
        let reason = clocks.reason(2, true, false, 5.0);
        assert!(reason.contains("1.9500 s behind"), "{reason}");
    }

    #[test]
    fn a_silent_station_is_waited_for_as_long_as_was_asked() {
        let mut clocks = begun(2);
        clocks.judge(1, 1.0, 1.0);
        clocks.judge(0, 2.0, 2.0);
        assert!(clocks.is_waited_for(1, 1.0, 1.9));
        assert!(!clocks.is_waited_for(1, 1.0, 2.0));
        // One that lags by more than can be held is not waited for either.
        clocks.judge(1, 1.1, 2.0);
        assert!(clocks.is_waited_for(1, 1.0, 2.0));
        clocks.judge(0, 6.5, 6.5);
        clocks.judge(1, 1.2, 6.5);
        assert!(!clocks.is_waited_for(1, 1.2, 6.5));
    }

    #[test]
    fn a_pause_and_a_jump_of_the_majority_are_believed() {
        let mut clocks = begun(3);
        // As much time has passed here.
        assert_eq!(clocks.judge(0, 60.0, 60.0), Verdict::Take);
        assert_eq!(clocks.judge(1, 60.0, 60.0), Verdict::Take);
        assert_eq!(clocks.judge(2, 60.0, 60.0), Verdict::Take);
        // Recordings with a gap that come faster than in real time.
        for number in 1..=RUN {
            let time = 1000.0 + f64::from(number);
            assert_eq!(clocks.judge(0, time, 60.0), Verdict::Refuse);
            let second = clocks.judge(1, time, 60.0);
            let expected = if number < RUN {
                Verdict::Refuse
            } else {
                Verdict::Take
            };
            assert_eq!(second, expected, "{number}");
        }
        assert_eq!(clocks.judge(0, 1009.0, 60.0), Verdict::Take);
    }

    #[test]
    fn a_run_begins_with_the_stations_that_agree() {
        let mut clocks = Clocks::new(3, 1.0);
        let times = [Some((3600.0, 3601.0)), Some((0.0, 1.0)), Some((0.5, 1.5))];
        let (start, members) = clocks.begin(&times, 3600.0, 0.0);
        assert_eq!((start, members), (0.5, BTreeSet::from([1, 2])));
        // Of two this host's clock decides.
        let mut clocks = Clocks::new(2, 1.0);
        let (start, members) = clocks.begin(&times[..2], 5.0, 0.0);
        assert_eq!((start, members), (0.0, BTreeSet::from([1])));
        // Before, a station's own time may change.
        let mut clocks = Clocks::new(2, 1.0);
        assert_eq!(clocks.judge(0, 30.0, 0.0), Verdict::Take);
        for _ in 1..RUN {
            assert_eq!(clocks.judge(0, 0.0, 0.1), Verdict::Refuse);
        }
        assert_eq!(clocks.judge(0, 0.0, 0.1), Verdict::Restart);
    }
}
