//! The ways between the two ends of a test.

use serde::Serialize;

/// The way of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To the responder.
    #[default]
    There,
    /// From it.
    Back,
}

impl Direction {
    /// Both, that to the responder first.
    pub const BOTH: [Direction; 2] = [Direction::There, Direction::Back];

    /// Its name in results: there or back.
    pub fn name(self) -> &'static str {
        match self {
            Direction::There => "there",
            Direction::Back => "back",
        }
    }

    /// Sender and receiver, of what is here and what is there. It exchanges the two on the way back, so that it also gives what is
    /// here and there, of sender and receiver.
    pub(crate) fn ends<T>(self, here: T, there: T) -> (T, T) {
        match self {
            Direction::There => (here, there),
            Direction::Back => (there, here),
        }
    }
}
