//! Directions between the two endpoints of a test.

use serde::Serialize;

/// Direction of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Outbound: to the responder.
    #[default]
    There,
    /// Return: from the responder.
    Back,
}

impl Direction {
    /// Both directions, the outbound one first.
    pub const BOTH: [Direction; 2] = [Direction::There, Direction::Back];

    /// Returns its name in results: `there` or `back`.
    pub fn name(self) -> &'static str {
        match self {
            Direction::There => "there",
            Direction::Back => "back",
        }
    }

    /// Returns its name in text for people: `outbound` or `return`.
    pub fn label(self) -> &'static str {
        match self {
            Direction::There => "outbound",
            Direction::Back => "return",
        }
    }

    /// Orders a local and a remote value as sender's and receiver's. The return direction swaps them, so this also converts sender's and
    /// receiver's values to local and remote.
    pub(crate) fn ends<T>(self, here: T, there: T) -> (T, T) {
        match self {
            Direction::There => (here, there),
            Direction::Back => (there, here),
        }
    }
}
