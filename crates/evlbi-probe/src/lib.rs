//! Probes of a path: what it carries and loses, and where, between this program and an `evlbi respond`; what captures tell of it, and
//! what can be known before anything is sent.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![allow(missing_docs)]

pub mod analyse;
#[cfg(test)]
mod bottleneck;
pub mod capacity;
mod control;
mod csv;
pub mod direction;
pub mod end;
pub mod finding;
pub mod latency;
pub mod measure;
mod one_way;
mod parts;
pub mod picture;
pub mod plan;
pub mod point;
mod region;
pub mod report;
pub mod respond;
pub mod session;
pub mod show;
pub mod sqlite;
pub mod sweep;
pub mod tcp;
pub mod udp;
pub mod watch;

use std::time::Duration;

use evlbi_net::run::Run;

pub use self::control::ControlError;
pub use self::one_way::OneWayError;
pub use self::parts::{Measured, WriteError};
pub use self::session::{ConnectError, Gone, SessionError};
use evlbi_wire::units;

fn now(run: &Run) -> String {
    units::utc(seconds(run))
}

/// UTC by the clock of a run's host, in seconds since 1970.
pub fn seconds(run: &Run) -> f64 {
    run.clock().utc() as f64 * 1e-9
}

/// Waits for `time`, or until the run is stopped.
pub fn pause(time: Duration, run: &Run) {
    let clock = run.clock();
    clock.wait_for(clock.now().plus(time.into()), session::LOOK, || {
        run.is_stopped()
    });
}

#[cfg(test)]
mod in_virtual_time;
#[cfg(test)]
mod tests;
