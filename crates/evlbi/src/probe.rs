//! Probes of a path: what it carries and loses, and where, between this program and an `evlbi respond`.

#[cfg(test)]
mod bottleneck;
pub mod capacity;
pub mod control;
mod csv;
pub mod finding;
pub mod latency;
mod one_way;
mod parts;
pub mod picture;
pub mod point;
mod region;
pub mod session;
pub mod show;
pub mod sweep;
pub mod tcp;
pub mod udp;

use std::time::{Duration, Instant};

use evlbi_net::run::Run;

pub use self::parts::Measured;
use crate::units;

fn now() -> String {
    units::utc(units::now())
}

/// Waits for `time`, or until the run is stopped.
pub fn pause(time: Duration, run: &Run) {
    let end = Instant::now() + time;
    while Instant::now() < end && !run.is_stopped() {
        std::thread::sleep(session::LOOK);
    }
}

#[cfg(test)]
mod tests;
