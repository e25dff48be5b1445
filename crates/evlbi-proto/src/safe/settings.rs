//! Settings of a flow.

use evlbi_core::time::Nanos;

use super::state::{Mode, Step};
use super::{GRACE, MAX_WEIGHT, MIN_WEIGHT, START, WEIGHT};

/// Settings of a sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Protection of the path.
    pub mode: Mode,
    /// The lowest step at which the data are of use: below it, no data are sent.
    pub least: Step,
    /// Time for the application to act before data are shed.
    pub grace: Nanos,
    /// Number of TCP flows that the flow may count as (k), from [`MIN_WEIGHT`] to [`MAX_WEIGHT`], in mode strict to 1. Several flows on
    /// one path divide it between them.
    pub weight: f64,
    /// Whether sending is tried again after a stop without an operator.
    pub rearm: bool,
    /// Time for the receiver to answer the first beats; at least [`START`].
    pub patience: Nanos,
    /// Bits of data per second that the application offers.
    pub rate: u64,
    /// Data per datagram, in bytes.
    pub size: u16,
    /// Sequence number of the first datagram.
    pub first: u64,
    /// Random number of the flow; it also seeds random choices.
    pub flow: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mode: Mode::Shared,
            least: Step::at_least(0.25),
            grace: GRACE,
            weight: WEIGHT,
            rearm: false,
            patience: START,
            rate: 0,
            size: 0,
            first: 0,
            flow: 0,
        }
    }
}

impl Settings {
    /// Returns the number of TCP flows that the flow may count as: at most 1 in mode strict.
    pub fn weight(&self) -> f64 {
        match self.mode {
            Mode::Strict => self.weight.clamp(MIN_WEIGHT, 1.0),
            Mode::Shared | Mode::Reserved => self.weight.clamp(MIN_WEIGHT, MAX_WEIGHT),
        }
    }
}
