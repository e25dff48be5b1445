//! TCP under a constant bit rate: what its laws say, and what a connection does that obeys them, packet by packet.

mod backlog;
mod course;
mod equations;
mod flow;
mod info;
mod law;
mod receiver;
mod sender;
mod timely;

pub use backlog::{Backlog, Full};
pub use course::{Bursts, Course, Disturbance, HeldBack, Interval, Loss, intervals};
pub use equations::{Cbr, Needs};
pub use flow::{Counting, Outcome, Sample, Scene};
pub use info::{Info, Phase, Reading};
pub use law::{Acked, Algorithm, CongestionControl, Moment};
pub use timely::{Arrival, Late, Timeliness, lateness};

#[cfg(test)]
mod tests;
