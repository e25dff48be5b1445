//! TCP: congestion control algorithms, what a constant bit rate needs of them, and one endpoint of a connection without clock and
//! sockets, which simulates flows packet by packet.
//!
//! New models belong here; new algorithms belong in `congestion`.

mod backlog;
mod congestion;
mod connection;
mod delivery;
mod equations;
mod flow;
mod incoming;
mod info;
mod outgoing;
mod packet;
mod receiver;
mod sender;
mod time_series;
mod timely;

pub use backlog::{Backlog, Full};
pub use congestion::{Acked, Algorithm, CongestionControl, Control, Delivered, Moment};
pub use connection::{Connection, Failed, Read, Settings};
pub use equations::{Cbr, Needs};
pub use flow::{Counting, Outcome, Sample, Scene};
pub use info::{Info, Phase, Reading};
pub use packet::{HEADERS, Packet};
pub use time_series::{Bursts, Disturbance, Interval, LimitedBy, Loss, TimeSeries, intervals};
pub use timely::{Arrival, Late, Timeliness, lateness};

#[cfg(test)]
mod tests;
