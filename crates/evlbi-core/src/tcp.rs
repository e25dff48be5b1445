//! TCP under a constant bit rate: what its laws say, and what a connection does that obeys them, packet by packet.

mod equations;
mod flow;
mod law;
mod receiver;
mod sender;

pub use equations::{Cbr, Needs};
pub use flow::{Counting, Full, HEADERS, LINK_HEADER, Outcome, Sample, Scene};
pub use law::{Acked, Algorithm, CongestionControl, Moment};

#[cfg(test)]
mod tests;
