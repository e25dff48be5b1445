//! States of a sender, its modes, and the steps in which it sheds.

use serde::{Deserialize, Serialize};

/// Sixteenths of the data that are kept, from all to the least.
pub const STEPS: [u8; 9] = [16, 14, 12, 8, 6, 4, 3, 2, 1];

/// One of [`STEPS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step(usize);

impl Step {
    /// Everything is kept.
    pub const ALL: Step = Step(0);
    /// The lowest step.
    pub const LOWEST: Step = Step(STEPS.len() - 1);

    /// Returns the lowest step that keeps at least this fraction; all for a fraction above 1.
    pub fn at_least(fraction: f64) -> Step {
        let place = STEPS
            .iter()
            .rposition(|kept| f64::from(*kept) / 16.0 >= fraction);
        Step(place.unwrap_or(0))
    }

    /// Returns the highest step that keeps at most this fraction; the lowest for less.
    pub fn at_most(fraction: f64) -> Step {
        let place = STEPS
            .iter()
            .position(|kept| f64::from(*kept) / 16.0 <= fraction);
        place.map_or(Step::LOWEST, Step)
    }

    /// Returns the sixteenths that are kept.
    pub fn sixteenths(self) -> u8 {
        STEPS[self.0]
    }

    /// Returns the fraction that is kept.
    pub fn kept(self) -> f64 {
        f64::from(self.sixteenths()) / 16.0
    }

    /// Returns the fraction that is kept, in units of 10^-9.
    pub(super) fn billionths(self) -> u32 {
        u32::from(self.sixteenths()) * 62_500_000
    }

    /// Returns the next lower step; the lowest has none.
    pub fn lower(self) -> Option<Step> {
        (self < Step::LOWEST).then_some(Step(self.0 + 1))
    }

    /// Returns the next higher step; the highest has none.
    pub fn higher(self) -> Option<Step> {
        self.0.checked_sub(1).map(Step)
    }

    /// Returns whether it keeps less than another one.
    pub fn is_below(self, other: Step) -> bool {
        self > other
    }
}

/// Protection that the user has chosen for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Others use the path too.
    #[default]
    Shared,
    /// The path is reserved: only loss above a tenth, a lack of reports and a lack of progress count.
    Reserved,
    /// Others use the path, and this flow counts as one of theirs: it gets no more than one TCP flow and no time to act.
    Strict,
}

/// State of a sender. The numbers are those of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum State {
    /// Waits for the first report, then sends probes.
    #[default]
    Start = 0,
    /// Sends everything; nothing is lost.
    Clear = 1,
    /// Sends everything; something was lost.
    Suspect = 2,
    /// The receiving host loses data.
    Overloaded = 3,
    /// Congestion lasts; the application has time to act.
    Congested = 4,
    /// Has just shed data.
    Shedding = 5,
    /// Sheds data, and waits for a better path.
    Held = 6,
    /// Tries a higher step.
    Trial = 7,
    /// Sends no data.
    Breaker = 8,
    /// The flow has ended.
    Ended = 9,
}

impl State {
    const ALL: [State; 10] = [
        State::Start,
        State::Clear,
        State::Suspect,
        State::Overloaded,
        State::Congested,
        State::Shedding,
        State::Held,
        State::Trial,
        State::Breaker,
        State::Ended,
    ];

    /// Returns the state with this number in messages.
    pub fn from_byte(byte: u8) -> Option<State> {
        State::ALL.get(usize::from(byte)).copied()
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        [
            "start",
            "clear",
            "suspect",
            "overloaded",
            "congested",
            "shedding",
            "held",
            "trial",
            "breaker",
            "ended",
        ][self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_numbers() {
        for (byte, state) in (0..).zip(State::ALL) {
            assert_eq!(state as u8, byte);
            assert_eq!(State::from_byte(byte), Some(state));
        }
        assert_eq!(State::from_byte(10), None);
    }

    #[test]
    fn steps_are_found_by_their_fraction() {
        assert_eq!(Step::at_most(1.0), Step::ALL);
        assert_eq!(Step::at_most(0.8).sixteenths(), 12);
        assert_eq!(Step::at_most(0.5).sixteenths(), 8);
        assert_eq!(Step::at_most(0.01), Step::LOWEST);
        assert_eq!(Step::at_least(0.25).sixteenths(), 4);
        assert_eq!(Step::at_least(0.2).sixteenths(), 4);
        assert_eq!(Step::at_least(0.0), Step::LOWEST);
        assert_eq!(Step::at_least(2.0), Step::ALL);
        assert!(Step::LOWEST.is_below(Step::ALL) && Step::LOWEST.lower().is_none());
        assert_eq!(Step::ALL.lower().unwrap().higher(), Some(Step::ALL));
        assert_eq!(Step::at_least(0.75).billionths(), 750_000_000);
    }
}
