//! Windows in which losses are counted, and their classes.

use std::collections::VecDeque;

use evlbi_core::time::Nanos;

use super::equation::Flow;
use super::state::Mode;
use super::{
    BAD_WINDOWS, LAST_WINDOWS, MIN_WINDOW, PAUSE, SEVERE_FLOWS, SEVERE_LOSS, SEVERE_WINDOWS,
    WINDOW_ROUND_TRIPS,
};

/// Maximum length of a window without loss.
const MAX_WINDOW: Nanos = Nanos(60_000_000_000);

/// Datagrams of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent.
    pub sent: u64,
    /// Lost in the network.
    pub lost: u64,
    /// Lost in the receiving host.
    pub host: u64,
    /// Marked for congestion.
    pub marked: u64,
}

impl Counts {
    /// Returns the fraction that was lost in the network.
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.sent.max(self.lost).max(1) as f64
    }

    /// Returns the fraction that the receiving host lost.
    pub fn host_loss(&self) -> f64 {
        self.host as f64 / self.sent.max(self.host).max(1) as f64
    }

    fn is_clean(&self) -> bool {
        self.lost + self.host + self.marked == 0
    }

    fn add(&mut self, other: Counts) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.host += other.host;
        self.marked += other.marked;
    }
}

/// Class of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing was lost or marked.
    Clean,
    /// Only the receiving host lost something.
    Host,
    /// The flow counts as at most one TCP flow.
    Light,
    /// As more than one, and not more than it may.
    Watch,
    /// As more than it may.
    Act,
    /// As more than ten TCP flows.
    Severe,
    /// More than a tenth was lost.
    SevereLoss,
}

impl Class {
    /// Returns whether the flow must act if it lasts.
    pub fn is_bad(self) -> bool {
        matches!(self, Class::Act | Class::Severe | Class::SevereLoss)
    }

    /// Returns whether the flow must stop if it lasts at the lowest step.
    pub fn is_severe(self) -> bool {
        matches!(self, Class::Severe | Class::SevereLoss)
    }
}

/// Limits of the classes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Protection of the path.
    pub mode: Mode,
    /// Number of TCP flows that the flow may count as.
    pub weight: f64,
}

/// The open window and the last closed ones.
#[derive(Clone, Debug)]
pub struct Windows {
    limits: Limits,
    since: Nanos,
    open: Counts,
    /// When the last counts were added.
    noted: Nanos,
    closed: VecDeque<Class>,
    last: Counts,
    /// Number of successive windows without any loss.
    clean: usize,
}

impl Windows {
    /// Makes windows from `now` on.
    pub fn new(limits: Limits, now: Nanos) -> Windows {
        Windows {
            limits,
            since: now,
            open: Counts::default(),
            noted: now,
            closed: VecDeque::new(),
            last: Counts::default(),
            clean: 0,
        }
    }

    /// Forgets all windows; the next one starts at `from`.
    pub fn clear(&mut self, from: Nanos) {
        *self = Windows {
            last: self.last,
            ..Windows::new(self.limits, from)
        };
    }

    /// Returns the minimum length of a window on a path with this round-trip time.
    pub fn length(round_trip: Nanos) -> Nanos {
        MIN_WINDOW.max(Nanos(round_trip.0.saturating_mul(WINDOW_ROUND_TRIPS)))
    }

    /// Returns how long nothing must be lost for a clean window: a flow at the limit of what it may do would lose one datagram in that
    /// time, on average. A loss in a shorter time proves nothing, nor does its absence.
    pub fn clean_length(&self, flow: &Flow) -> Nanos {
        let length = Windows::length(Nanos::from_secs_f64(flow.round_trip));
        if self.limits.mode == Mode::Reserved {
            return length;
        }
        let datagrams = flow.rate / (8.0 * flow.size);
        let one_loss = 1.0 / (flow.loss_at(self.limits.weight) * datagrams);
        length.max(Nanos::from_secs_f64(one_loss).min(MAX_WINDOW))
    }

    /// Adds what was counted since the last call. `flows`: the number of TCP flows that the flow counts as. Returns the class of the
    /// window if it is complete.
    pub fn add(&mut self, now: Nanos, counts: Counts, flow: &Flow, flows: f64) -> Option<Class> {
        if now < self.since {
            return None;
        }
        if counts.is_clean() && counts.sent == 0 {
            return None;
        }
        let length = Windows::length(Nanos::from_secs_f64(flow.round_trip));
        let pause = now.since(self.noted.max(self.since));
        if pause > PAUSE {
            // Where nothing was sent, nothing could be lost.
            self.since = self.since.plus(pause);
        }
        if self.open.is_clean() && !counts.is_clean() && now.since(self.since) > length {
            // The time without loss was too short for a window of its own.
            self.since = self.noted.max(self.since);
            self.open = Counts::default();
        }
        self.noted = now;
        self.open.add(counts);
        let due = match self.open.is_clean() {
            true => self.clean_length(flow),
            false => length,
        };
        if now.since(self.since) < due {
            return None;
        }
        let class = self.class(flows);
        self.last = std::mem::take(&mut self.open);
        self.since = now;
        self.clean = match class {
            Class::Clean => self.clean + 1,
            _ => 0,
        };
        self.closed.push_front(class);
        self.closed.truncate(LAST_WINDOWS);
        Some(class)
    }

    fn class(&self, flows: f64) -> Class {
        let counts = &self.open;
        let is_reserved = self.limits.mode == Mode::Reserved;
        match counts {
            _ if counts.is_clean() => Class::Clean,
            _ if counts.lost + counts.marked == 0 => Class::Host,
            _ if counts.loss() > SEVERE_LOSS => Class::SevereLoss,
            _ if is_reserved => Class::Light,
            _ if flows > SEVERE_FLOWS => Class::Severe,
            _ if flows > self.limits.weight => Class::Act,
            _ if flows > 1.0 => Class::Watch,
            _ => Class::Light,
        }
    }

    /// Returns whether congestion lasts.
    pub fn are_bad(&self) -> bool {
        let bad = self.closed.iter().filter(|class| class.is_bad()).count();
        let mut first = self.closed.iter().take(SEVERE_WINDOWS);
        let is_severe = self.closed.len() >= SEVERE_WINDOWS
            && first.all(|class| *class == Class::SevereLoss)
            && self.limits.mode != Mode::Reserved;
        bad >= BAD_WINDOWS || is_severe
    }

    /// Returns whether the last windows were severe.
    pub fn are_severe(&self) -> bool {
        let severe = self.closed.iter().filter(|class| class.is_severe()).count();
        severe >= BAD_WINDOWS
    }

    /// Returns the number of successive windows without loss until now.
    pub fn clean(&self) -> usize {
        self.clean
    }

    /// Returns the counts of the last complete window.
    pub fn last(&self) -> &Counts {
        &self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: Flow = Flow {
        rate: 512e6,
        round_trip: 0.015,
        size: 1424.0,
    };

    fn windows(mode: Mode) -> Windows {
        Windows::new(Limits { mode, weight: 3.0 }, Nanos(0))
    }

    fn counts(lost: u64, host: u64, marked: u64) -> Counts {
        Counts {
            sent: 4500,
            lost,
            host,
            marked,
        }
    }

    /// Adds ten reports with these counts each.
    fn second(windows: &mut Windows, from: u64, counts: Counts, flows: f64) -> Vec<Class> {
        (1..=10)
            .filter_map(|tenth| {
                let now = Nanos((from * 10 + tenth) * 100_000_000);
                windows.add(now, counts, &FLOW, flows)
            })
            .collect()
    }

    #[test]
    fn classes_follow_from_loss_and_flows() {
        for (mode, of, flows, class) in [
            (Mode::Shared, counts(0, 0, 0), 50.0, Class::Clean),
            (Mode::Shared, counts(0, 9, 0), 50.0, Class::Host),
            (Mode::Shared, counts(1, 9, 0), 0.5, Class::Light),
            (Mode::Shared, counts(1, 0, 0), 2.0, Class::Watch),
            (Mode::Shared, counts(0, 0, 1), 3.1, Class::Act),
            (Mode::Shared, counts(1, 0, 0), 10.1, Class::Severe),
            (Mode::Shared, counts(451, 0, 0), 0.5, Class::SevereLoss),
            (Mode::Reserved, counts(400, 0, 0), 99.0, Class::Light),
            (Mode::Reserved, counts(451, 0, 0), 99.0, Class::SevereLoss),
        ] {
            assert_eq!(
                second(&mut windows(mode), 0, of, flows),
                [class],
                "{of:?} {flows}"
            );
        }
    }

    #[test]
    fn congestion_lasts_after_three_of_five_windows_or_two_severe_ones() {
        let mut shared = windows(Mode::Shared);
        for (at, lost) in [1, 0, 1, 0, 1].into_iter().enumerate() {
            assert!(!shared.are_bad());
            second(&mut shared, at as u64, counts(lost, 0, 0), 4.0);
        }
        assert!(shared.are_bad() && !shared.are_severe());
        for (mode, after) in [(Mode::Shared, 2), (Mode::Reserved, 3)] {
            let mut windows = windows(mode);
            for at in 0..after {
                assert!(!windows.are_bad());
                second(&mut windows, at, counts(1000, 0, 0), 1.0);
            }
            assert!(windows.are_bad());
        }
    }

    #[test]
    fn a_pause_counts_in_no_window() {
        let mut windows = windows(Mode::Shared);
        assert_eq!(second(&mut windows, 0, counts(1, 0, 0), 4.0), [Class::Act]);
        for tenth in 11..600 {
            let now = Nanos(tenth * 100_000_000);
            assert_eq!(windows.add(now, Counts::default(), &FLOW, 4.0), None);
        }
        // The second after the first report after the pause is a window.
        assert_eq!(second(&mut windows, 60, counts(1, 0, 0), 4.0), []);
        assert_eq!(second(&mut windows, 61, counts(1, 0, 0), 4.0), [Class::Act]);
        assert_eq!(windows.clean(), 0);
    }

    #[test]
    fn a_clean_window_is_as_long_as_a_loss_would_take() {
        let far = Flow {
            round_trip: 0.095,
            ..FLOW
        };
        let shared = windows(Mode::Shared);
        let seconds = shared.clean_length(&far).as_secs_f64();
        assert!((29.0..32.0).contains(&seconds), "{seconds}");
        assert_eq!(shared.clean_length(&FLOW), MIN_WINDOW);
        assert_eq!(windows(Mode::Reserved).clean_length(&far), MIN_WINDOW);
        // A loss every ten seconds: bad windows without clean ones between them.
        let mut windows = windows(Mode::Shared);
        let mut classes = Vec::new();
        for tenth in 1..=310 {
            let lost = u64::from(tenth % 100 == 0);
            let now = Nanos(tenth * 100_000_000);
            classes.extend(windows.add(now, counts(lost, 0, 0), &far, 5.0));
        }
        assert_eq!(classes, [Class::Act; 3]);
        let clean = (311..630).filter_map(|tenth| {
            let class = windows.add(Nanos(tenth * 100_000_000), counts(0, 0, 0), &far, 5.0)?;
            Some((tenth / 50, class))
        });
        assert_eq!(clean.collect::<Vec<_>>(), [(12, Class::Clean)]);
        assert_eq!(windows.clean(), 1);
    }
}
