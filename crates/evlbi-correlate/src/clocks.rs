//! Decides by the times in the frames which frames of streams are accepted, and which stations the correlator waits for.
//!
//! No station's clock can delay the others or remove their data:
//! - A frame is refused if it is more than [`Clocks::leap`] ahead of the newest data of every other station that sends (extrapolated to
//!   now), unless it continues its own station's data. A station's own leaps do not raise that limit. The frame is accepted after all if two
//!   stations or more agree, and outnumber those that do not.
//! - The correlator waits for a station until two others are ahead by the wait; or one, if the station is silent, or if the other can hold
//!   no more and no third one sends.

use std::collections::BTreeSet;

use evlbi_wire::units::{show_count, show_seconds};

/// Maximum gap in the data of a station that is ahead of the others and still continues its data, in seconds.
const BREAK: f64 = 0.5;

/// Maximum data that wait for the correlator, in seconds, in addition to the wait.
pub const HOLD: f64 = 4.0;
/// Minimum time to wait for missing stations once two have arrived, in seconds.
const LATE_START: f64 = 10.0;
/// A station that is this many seconds off has the wrong year: times of Mark 5B repeat after 1000 days.
const YEARS: f64 = 500.0 * 86_400.0;
/// Consecutive frames that establish a new time; fewer may have damaged headers.
pub const RUN: u32 = 8;

/// The times of all stations. Data times are seconds since an epoch; `now` is this host's time since any start.
pub struct Clocks {
    wait: f64,
    has_begun: bool,
    /// End of the data that the correlator waits for or took, over all stations.
    wanted: Option<f64>,
    stations: Vec<Clock>,
}

#[derive(Clone, Default)]
struct Clock {
    /// Newest accepted time.
    newest: Option<f64>,
    /// Time of this host at which `newest` advanced.
    advanced: f64,
    /// Maximum of `newest` minus `now` on arrival: data that are only delayed on the way are not behind.
    lead: f64,
    /// Time of the last frame, accepted or not, and its arrival.
    last: Option<(f64, f64)>,
    /// Consecutive frames that were not accepted.
    odd: u32,
    refused: u64,
    /// Whether neither its headers nor the user gave the year.
    is_undated: bool,
    /// Time of this host at which its stream ended.
    ended: Option<f64>,
    /// Number of late frames at the last report, and the side that it reported.
    late: u64,
    reported: Side,
}

/// Position of a station's frames relative to the other stations.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Side {
    /// In agreement with them.
    #[default]
    Right,
    /// So far ahead that they are refused.
    Ahead,
    /// So far behind that they are late.
    Behind,
}

impl Clock {
    fn set(&mut self, newest: f64, now: f64) {
        (self.newest, self.advanced, self.lead) = (Some(newest), now, newest - now);
    }

    /// Returns whether any frame has arrived, accepted or not.
    fn has_come(&self) -> bool {
        self.newest.is_some() || self.last.is_some()
    }

    /// Returns whether a frame with this start continues the accepted data.
    fn is_continued(&self, begin: f64, now: f64) -> bool {
        self.newest.is_some() && begin <= self.lead + now + BREAK
    }

    /// Returns the newest accepted time, extrapolated to now.
    fn reach(&self, now: f64) -> Option<f64> {
        Some(self.newest? + (now - self.advanced))
    }

    /// Returns the time of the last frame, extrapolated to now.
    fn at(&self, now: f64) -> Option<f64> {
        self.last.map(|(time, came)| time + (now - came))
    }
}

/// Treatment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Used at its time.
    Take,
    /// Left out.
    Refuse,
    /// Used, as the run has not begun; the station starts again with this time.
    Restart,
}

impl Clocks {
    pub fn new(stations: usize, wait: f64) -> Clocks {
        Clocks {
            wait,
            has_begun: false,
            wanted: None,
            stations: vec![Clock::default(); stations],
        }
    }

    /// Returns by how many seconds a frame may be ahead of a plausible time: half of [`HOLD`] less than can be held.
    fn leap(&self) -> f64 {
        self.wait + HOLD / 2.0
    }

    /// Begins with the largest group of stations whose times agree; of equally large groups, with the one closest to `host`, this host's
    /// time. `times` are the earliest and the newest data of each station. Returns the time from which all of the group have data, and
    /// which stations belong to it.
    pub fn begin(
        &mut self,
        times: &[Option<(f64, f64)>],
        host: f64,
        now: f64,
    ) -> (f64, BTreeSet<usize>) {
        let leap = self.leap();
        let group = |of: f64| -> BTreeSet<usize> {
            let is_near = |(_, newest): (f64, f64)| (newest - of).abs() <= leap;
            let all = 0..times.len();
            all.filter(|at| times[*at].is_some_and(is_near)).collect()
        };
        let groups = times.iter().flatten();
        let groups = groups.map(|(_, newest)| (group(*newest), *newest));
        let best = groups.min_by(|(a, x), (b, y)| {
            let far = |time: &f64| (time - host).abs();
            b.len().cmp(&a.len()).then(far(x).total_cmp(&far(y)))
        });
        let members = best.map(|(members, _)| members).unwrap_or_default();
        let mut start = f64::NEG_INFINITY;
        for (at, (clock, times)) in self.stations.iter_mut().zip(times).enumerate() {
            let ours = times.filter(|_| members.contains(&at));
            *clock = Clock {
                ended: clock.ended,
                ..Clock::default()
            };
            if let Some((_, newest)) = ours {
                clock.set(newest, now);
            }
            start = ours.map_or(start, |(earliest, _)| start.max(earliest));
        }
        self.has_begun = true;
        (start, members)
    }

    /// Decides about a frame that ends at `time` and lasts `length`.
    pub fn judge(&mut self, station: usize, time: f64, length: f64, now: f64) -> Verdict {
        let own = self.stations[station].reach(now);
        let front = self.front(station, now).filter(|_| self.has_begun);
        let leap = self.leap();
        let is_plausible = front.or(own).is_none_or(|front| time <= front + leap)
            || (self.has_begun && self.stations[station].is_continued(time - length, now));
        // Nothing is late before the run.
        let is_plausible =
            is_plausible && (self.has_begun || own.is_none_or(|own| time >= own - leap));
        let clock = &mut self.stations[station];
        clock.last = Some((time, now));
        if is_plausible {
            clock.odd = 0;
            if clock.newest.is_none_or(|newest| time > newest) {
                let lead = clock.newest.map(|_| clock.lead);
                clock.set(time, now);
                clock.lead = lead.map_or(clock.lead, |lead| lead.max(clock.lead));
            }
            return Verdict::Take;
        }
        clock.odd = clock.odd.saturating_add(1);
        let is_new = clock.odd >= RUN && (!self.has_begun || self.is_agreed(station, time, now));
        let clock = &mut self.stations[station];
        if !is_new {
            clock.refused += 1;
            return Verdict::Refuse;
        }
        clock.odd = 0;
        clock.set(time, now);
        match self.has_begun {
            true => Verdict::Take,
            false => Verdict::Restart,
        }
    }

    /// Returns the newest time of the other stations that send.
    fn front(&self, station: usize, now: f64) -> Option<f64> {
        let is_sending = |clock: &&Clock| !self.is_silent(clock, now);
        let senders = self.others(station).filter(is_sending);
        let reached = senders.filter_map(|clock| clock.reach(now));
        reached.reduce(f64::max)
    }

    fn others(&self, station: usize) -> impl Iterator<Item = &Clock> {
        let all = self.stations.iter().enumerate();
        all.filter(move |(at, _)| *at != station)
            .map(|(_, clock)| clock)
    }

    /// Notes that a station's data went back to an earlier time.
    pub fn set_back(&mut self, station: usize, newest: f64, now: f64) {
        self.stations[station].set(newest, now);
    }

    /// Returns whether a station whose frames are refused, with others that agree, outnumbers the remaining ones.
    fn is_agreed(&self, station: usize, time: f64, now: f64) -> bool {
        let leap = self.leap();
        let (mut with, mut without) = (1, 0);
        let is_near = |there: f64| (there - time).abs() <= leap;
        for clock in self.others(station) {
            if clock.odd >= RUN && clock.at(now).is_some_and(is_near) {
                with += 1;
            } else if clock.newest.is_some() && now - clock.advanced < leap {
                without += 1;
            }
        }
        with >= 2 && with > without
    }

    /// Notes that the correlator wants each station's data before `end`.
    pub fn want(&mut self, end: f64) {
        self.wanted = Some(self.wanted.map_or(end, |wanted| wanted.max(end)));
    }

    /// Returns the time up to which a station's data may wait for the correlator; `None` if it has not begun. There is always enough room
    /// for the correlator to continue without a station that lags.
    pub fn room(&self) -> Option<f64> {
        Some(self.wanted? + self.wait + HOLD)
    }

    /// Notes that a station's stream has ended.
    pub fn end(&mut self, station: usize, now: f64) {
        self.stations[station].ended = Some(now);
    }

    /// Returns how long the correlator waits for missing stations after others have arrived, in seconds.
    pub fn timeout(&self) -> f64 {
        self.wait.max(LATE_START)
    }

    /// Returns whether all stations that arrived ended so long ago that no other will arrive.
    pub fn are_over(&self, now: f64) -> bool {
        let come = self.stations.iter().filter(|clock| clock.has_come());
        let ended = come.map(|clock| clock.ended.unwrap_or(f64::INFINITY));
        let last = ended.reduce(f64::max);
        last.is_some_and(|last| now - last >= self.timeout())
    }

    /// Returns whether a station has not arrived and will not.
    pub fn is_left(&self, station: usize, now: f64) -> bool {
        !self.stations[station].has_come() && self.are_over(now)
    }

    /// Returns whether the correlator waits for a station's data before `end`.
    pub fn is_waited_for(&self, station: usize, end: f64, now: f64) -> bool {
        if self.is_left(station, now) {
            return false;
        }
        let others = || self.others(station);
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

    /// Returns the number of refused frames of a station.
    pub fn refused(&self, station: usize) -> u64 {
        self.stations[station].refused
    }

    /// Returns the newest accepted time of a station.
    pub fn newest(&self, station: usize) -> Option<f64> {
        self.stations[station].newest
    }

    /// Notes whether a station's headers or the user give the year.
    pub fn set_dated(&mut self, station: usize, is_dated: bool) {
        self.stations[station].is_undated = !is_dated;
    }

    /// Returns the remedy for a station that is `offset` seconds off, to be added to a sentence.
    fn remedy(&self, station: usize, offset: f64) -> &'static str {
        match self.stations[station].is_undated && offset.abs() > YEARS {
            true => {
                ": the headers of this station do not show the year, so give it with #year=YEAR"
            }
            false => "",
        }
    }

    /// Returns how far a station's last frame is ahead of the others' newest accepted time, in seconds; negative if behind.
    fn offset(&self, station: usize, now: f64) -> f64 {
        let all = || {
            let reached = self.others(station).filter_map(|clock| clock.reach(now));
            reached.reduce(f64::max)
        };
        let front = self.front(station, now).or_else(all);
        let own = self.stations[station].at(now);
        own.zip(front).map_or(0.0, |(own, front)| own - front)
    }

    /// Returns whether a station's frames are refused now. The others may have caught up with frames refused earlier.
    fn refuses(&self, station: usize, now: f64) -> bool {
        self.stations[station].odd >= RUN && self.offset(station, now) > self.leap()
    }

    /// Returns the reason why a station contributes nothing; `late` tells whether frames of it were late.
    pub fn reason(&self, station: usize, late: bool, has_ended: bool, now: f64) -> String {
        let clock = &self.stations[station];
        let offset = self.offset(station, now);
        let (refused, silence) = (show_count(clock.refused), now - clock.advanced);
        let remedy = self.remedy(station, offset);
        match clock.newest {
            _ if self.refuses(station, now) => format!(
                "{refused} frames refused, {} ahead of the other stations{remedy}",
                show_seconds(offset)
            ),
            _ if offset <= -self.wait || (late && offset < 0.0) => format!(
                "its frames are {} behind the other stations, and the wait is {}{remedy}",
                show_seconds(-offset),
                show_seconds(self.wait)
            ),
            None if clock.refused == 0 => "no data have arrived".into(),
            None => format!("all of its {refused} frames were refused"),
            Some(_) if has_ended => "its stream has ended".into(),
            Some(_) if silence >= self.wait => format!("no data for {}", show_seconds(silence)),
            Some(_) => "no valid samples at the time that is correlated".into(),
        }
    }

    /// Returns a message if a station's frames began or ceased to be refused or late since the last call. `late` is the number of late
    /// frames so far; `host` is this host's time.
    pub fn report(&mut self, station: usize, late: u64, host: f64, now: f64) -> Option<String> {
        let offset = self.offset(station, now);
        let (leap, refuses) = (self.leap(), self.refuses(station, now));
        let remedy = match self.remedy(station, offset) {
            "" => "; they are used as soon as their time is right",
            year => year,
        };
        let clock = &mut self.stations[station];
        let is_late = std::mem::replace(&mut clock.late, late) < late;
        let before = clock.reported;
        let side = match before {
            _ if !self.has_begun => Side::Right,
            _ if refuses => Side::Ahead,
            _ if is_late && offset < -leap => Side::Behind,
            Side::Behind if offset < -self.wait => Side::Behind,
            _ => Side::Right,
        };
        clock.reported = side;
        if side == before {
            return None;
        }
        let of_host = clock.at(now).unwrap_or(host) - host;
        let of_host = format!(
            "{} {} this host's clock",
            show_seconds(of_host.abs()),
            if of_host < 0.0 { "behind" } else { "ahead of" },
        );
        let by = show_seconds(offset.abs());
        Some(match (side, before) {
            (Side::Ahead, _) => format!(
                "frames refused: they are {by} ahead of the other stations, and {of_host}{remedy}"
            ),
            (Side::Behind, _) => format!(
                "frames too late: they are {by} behind the other stations, and {of_host}{remedy}"
            ),
            (Side::Right, Side::Ahead) => format!(
                "time right again after {} refused frames",
                show_count(clock.refused)
            ),
            (Side::Right, _) => "time right again".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the clocks of stations that started at second 0, with a wait of 1 s.
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
                assert_eq!(clocks.judge(station, now, 0.0, now), Verdict::Take);
            }
            // 30 s or an hour ahead.
            let ahead = if tick < 10 { 30.0 } else { 3600.0 };
            assert_eq!(clocks.judge(2, now + ahead, 0.0, now), Verdict::Refuse);
            for station in [0, 1] {
                assert!(clocks.is_waited_for(station, now + 0.1, now));
            }
        }
        assert_eq!(clocks.refused(2), 20);
        let said = clocks.report(2, 0, 2.0, 2.0).unwrap();
        assert!(
            said.contains("3600.0") && said.contains("of this host's"),
            "{said}"
        );
        assert_eq!(clocks.report(2, 0, 2.0, 2.0), None);
        let reason = clocks.reason(2, false, false, 2.0);
        assert!(reason.contains("20 frames refused"), "{reason}");
        assert_eq!(clocks.judge(2, 2.1, 0.0, 2.1), Verdict::Take);
        assert!(
            clocks
                .report(2, 0, 2.1, 2.1)
                .unwrap()
                .contains("right again")
        );
    }

    #[test]
    fn one_station_ahead_zeroes_nobody() {
        // Ahead by less than the limit, with others and alone.
        for stations in [2, 3] {
            let mut clocks = begun(stations);
            for tick in 1..=50 {
                let now = f64::from(tick) * 0.1;
                for station in 1..stations {
                    assert_eq!(clocks.judge(station, now, 0.0, now), Verdict::Take);
                }
                assert_eq!(clocks.judge(0, now + 1.95, 0.0, now), Verdict::Take);
                assert!((1..stations).all(|station| clocks.is_waited_for(station, now, now)));
            }
        }
    }

    /// A clock that leaps twice by less than the limit does not leave the right one behind. One that gains steadily is a recording sent
    /// faster than in real time, and is accepted.
    #[test]
    fn leaps_do_not_add_up() {
        let mut clocks = begun(2);
        for tick in 1..=50 {
            let now = f64::from(tick) * 0.1;
            assert_eq!(clocks.judge(1, now, 0.1, now), Verdict::Take);
            let (ahead, expected) = match tick {
                ..10 => (0.0, Verdict::Take),
                10..20 => (2.9, Verdict::Take),
                _ => (5.8, Verdict::Refuse),
            };
            assert_eq!(clocks.judge(0, now + ahead, 0.1, now), expected, "{tick}");
            assert!(clocks.is_waited_for(1, now + 0.1, now));
        }
        let mut clocks = begun(2);
        for frame in 1..=100 {
            assert_eq!(
                clocks.judge(0, f64::from(frame) * 0.2, 0.2, 0.0),
                Verdict::Take
            );
        }
    }

    /// A station that is an hour behind from the start, and sends.
    #[test]
    fn a_clock_far_behind_is_reported() {
        let mut clocks = Clocks::new(3, 1.0);
        let times = [Some((0.0, 0.1)), Some((0.0, 0.1)), Some((-3600.0, -3599.9))];
        assert_eq!(clocks.begin(&times, 0.0, 0.0).1, BTreeSet::from([0, 1]));
        for tick in 1..=20 {
            let now = f64::from(tick) * 0.1;
            for (station, time) in [(0, now), (1, now), (2, now - 3600.0)] {
                assert_eq!(clocks.judge(station, time, 0.1, now), Verdict::Take);
            }
            assert!(!clocks.is_waited_for(2, now - 1.5, now));
        }
        // While it sends, when it is silent, and when all have ended.
        for (has_ended, now) in [(false, 2.0), (false, 3.5), (true, 20.0)] {
            let reason = clocks.reason(2, false, has_ended, now);
            assert!(reason.contains("3600.0000 s behind the"), "{reason}");
        }
        let said = clocks.report(2, 5, 2.0, 2.0).unwrap();
        assert!(said.contains("3600.0000 s behind the"), "{said}");
        assert_eq!(clocks.report(2, 9, 2.0, 2.0), None);
        assert_eq!(clocks.judge(2, 2.1, 0.1, 2.1), Verdict::Take);
        assert!(
            clocks
                .report(2, 9, 2.1, 2.1)
                .unwrap()
                .contains("right again")
        );
    }

    /// Only a station whose year is assumed can be of another one.
    #[test]
    fn a_wrong_year_has_a_remedy() {
        let days = 1000.0 * 86_400.0;
        for (is_undated, off) in [(true, -days), (true, days), (true, -3600.0), (false, -days)] {
            let mut clocks = begun(3);
            clocks.set_dated(2, !is_undated);
            for tick in 1..=20 {
                let now = f64::from(tick) * 0.1;
                for (station, time) in [(0, now), (1, now), (2, now + off)] {
                    clocks.judge(station, time, 0.1, now);
                }
            }
            let reason = clocks.reason(2, true, false, 2.0);
            let said = clocks.report(2, 5, 2.0, 2.0).unwrap();
            for text in [reason, said] {
                let has_remedy = text.ends_with("so give it with #year=YEAR");
                assert_eq!(has_remedy, is_undated && off.abs() == days, "{text}");
            }
        }
    }

    #[test]
    fn two_ahead_leave_a_late_station_behind_and_report_why() {
        let mut clocks = begun(3);
        for (station, time) in [(0, 5.0), (1, 5.0), (2, 3.05)] {
            assert_eq!(clocks.judge(station, time, 0.0, 5.0), Verdict::Take);
        }
        assert!(!clocks.is_waited_for(2, 4.0, 5.0));
        assert!(clocks.is_waited_for(2, 4.5, 5.0));
        let reason = clocks.reason(2, true, false, 5.0);
        assert!(reason.contains("1.9500 s behind"), "{reason}");
    }

    /// The other stations have ended, each at its own time.
    #[test]
    fn a_missing_station_delays_no_end() {
        let mut clocks = Clocks::new(3, 1.0);
        let times = [Some((0.0, 0.1)), Some((0.0, 0.1)), None];
        assert_eq!(clocks.begin(&times, 0.0, 0.0).1, BTreeSet::from([0, 1]));
        clocks.judge(0, 5.0, 0.1, 5.0);
        clocks.end(0, 5.0);
        clocks.end(1, 7.0);
        assert!(clocks.is_waited_for(2, 5.0, 16.9) && !clocks.is_left(2, 16.9));
        assert!(!clocks.is_waited_for(2, 5.0, 17.0) && clocks.is_left(2, 17.0));
        // Unless it arrives in time.
        clocks.judge(2, 16.0, 0.1, 16.0);
        assert!(!clocks.is_left(2, 30.0));
    }

    #[test]
    fn the_wait_for_a_silent_station_is_as_long_as_requested() {
        let mut clocks = begun(2);
        clocks.judge(1, 1.0, 0.0, 1.0);
        clocks.judge(0, 2.0, 0.0, 2.0);
        assert!(clocks.is_waited_for(1, 1.0, 1.9));
        assert!(!clocks.is_waited_for(1, 1.0, 2.0));
        // The correlator does not wait for one that lags by more than can be held either.
        clocks.judge(1, 1.1, 0.0, 2.0);
        assert!(clocks.is_waited_for(1, 1.0, 2.0));
        clocks.judge(0, 6.5, 0.0, 6.5);
        clocks.judge(1, 1.2, 0.0, 6.5);
        assert!(!clocks.is_waited_for(1, 1.2, 6.5));
    }

    #[test]
    fn a_pause_and_a_jump_of_the_majority_are_believed() {
        let mut clocks = begun(3);
        // As much time has passed on this host.
        assert_eq!(clocks.judge(0, 60.0, 0.0, 60.0), Verdict::Take);
        assert_eq!(clocks.judge(1, 60.0, 0.0, 60.0), Verdict::Take);
        assert_eq!(clocks.judge(2, 60.0, 0.0, 60.0), Verdict::Take);
        // Recordings with a gap that arrive faster than in real time.
        for number in 1..=RUN {
            let time = 1000.0 + f64::from(number);
            assert_eq!(clocks.judge(0, time, 0.0, 60.0), Verdict::Refuse);
            let second = clocks.judge(1, time, 0.0, 60.0);
            let expected = if number < RUN {
                Verdict::Refuse
            } else {
                Verdict::Take
            };
            assert_eq!(second, expected, "{number}");
        }
        // The first station has sent no frame since: it is right, and there is nothing to report.
        assert_eq!(clocks.report(0, 0, 60.0, 60.0), None);
        let reason = clocks.reason(0, false, false, 60.0);
        assert!(!reason.contains("refused"), "{reason}");
        assert_eq!(clocks.judge(0, 1009.0, 0.0, 60.0), Verdict::Take);
    }

    #[test]
    fn a_run_starts_with_the_stations_that_agree() {
        let mut clocks = Clocks::new(3, 1.0);
        let times = [Some((3600.0, 3601.0)), Some((0.0, 1.0)), Some((0.5, 1.5))];
        let (start, members) = clocks.begin(&times, 3600.0, 0.0);
        assert_eq!((start, members), (0.5, BTreeSet::from([1, 2])));
        // Between two, this host's clock decides.
        let mut clocks = Clocks::new(2, 1.0);
        let (start, members) = clocks.begin(&times[..2], 5.0, 0.0);
        assert_eq!((start, members), (0.0, BTreeSet::from([1])));
        // Before the run, a station's own time may change.
        let mut clocks = Clocks::new(2, 1.0);
        assert_eq!(clocks.judge(0, 30.0, 0.0, 0.0), Verdict::Take);
        for _ in 1..RUN {
            assert_eq!(clocks.judge(0, 0.0, 0.0, 0.1), Verdict::Refuse);
        }
        assert_eq!(clocks.judge(0, 0.0, 0.0, 0.1), Verdict::Restart);
    }
}
