//! TCP under a constant bit rate: what its laws say, and what a connection does that obeys them, packet by packet.

mod backlog;
mod connection;
mod course;
mod delivery;
mod equations;
mod flow;
mod incoming;
mod info;
mod law;
mod outgoing;
mod packet;
mod receiver;
mod sender;
mod timely;

pub use backlog::{Backlog, Full};
pub use connection::{Connection, Failed, Read, Settings};
pub use course::{Bursts, Course, Disturbance, HeldBack, Interval, Loss, intervals};
pub use equations::{Cbr, Needs};
pub use flow::{Counting, Outcome, Sample, Scene};
pub use info::{Info, Phase, Reading};
pub use law::{Acked, Algorithm, CongestionControl, Moment};
pub use packet::{HEADERS, Packet};
pub use timely::{Arrival, Late, Timeliness, lateness};

#[cfg(test)]
mod tests;
