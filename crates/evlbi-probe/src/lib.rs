//! Tests of a network path: throughput, loss, and where packets are lost.
//!
//! Everything that measures a path or predicts its behaviour belongs here:
//!
//! - tests between two hosts, one of which runs a responder ([`respond`](mod@respond)): loss and throughput of UDP ([`udp`]), round
//!   trips ([`latency`]), the highest rate without loss ([`capacity`]), connections of TCP ([`tcp`]), and campaigns of days
//!   ([`watch`](mod@watch)) with their reports ([`report`]), or all of them once, with a verdict ([`fitness`]);
//! - analysis of captures of other programs' traffic ([`analyse`](mod@analyse));
//! - calculations before anything is sent ([`plan`]).
//!
//! Both endpoints of a test are in [`endpoint`], and their measurements in [`measure`]. Results serialize as JSON; their modules also
//! format them as text and plots. Everything runs in real time, or in virtual time between simulated hosts:
//!
//! ```
//! use evlbi_core::path::{Law, Loss};
//! use evlbi_net::clock::Clock;
//! use evlbi_net::run::Run;
//! use evlbi_net::sim::Network;
//! use evlbi_probe::Target;
//! use evlbi_probe::measure::Token;
//! use evlbi_probe::respond::{RespondOptions, respond};
//! use evlbi_probe::udp::{self, ProbeUdpOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // A path that loses one datagram of ten. `Run::silent()` alone would use the path between real hosts.
//! let clock = Clock::simulated(0);
//! let laws = [Law::Loss(Loss::Random { fraction: 0.1 })];
//! let network = Network::between(&clock, [&laws, &[]], 1500, 1);
//! let near = Run::silent().on(&network.near(1));
//! let far = Run::silent().on(&network.far(1));
//!
//! let measured = clock.simulate(|| {
//!     let token = Token::from("secret");
//!     let responder = respond(&RespondOptions { token: token.clone(), ..RespondOptions::default() }, &far)?;
//!     let address = responder.addresses()[0].to_string();
//!     let options = ProbeUdpOptions {
//!         target: Target { address, token, ..Target::default() },
//!         rate: Some("100M".parse()?),
//!         count: Some(1000),
//!         ..ProbeUdpOptions::default()
//!     };
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(udp::probe(&options, &near)?)
//! })?;
//! let point = &measured.result.points[0];
//! assert_eq!(point.sent, 1000);
//! assert!(point.lost > 0 && point.lost == point.network_lost);
//! println!("{}", point.finding);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod analyse;
#[cfg(test)]
mod bottleneck;
pub mod capacity;
mod control;
mod csv;
mod direction;
pub mod endpoint;
mod finding;
pub mod fitness;
pub mod latency;
pub mod measure;
mod one_way;
mod parts;
pub mod picture;
pub mod plan;
mod point;
mod region;
#[cfg(feature = "campaigns")]
pub mod report;
pub mod respond;
#[cfg_attr(
    not(feature = "campaigns"),
    allow(dead_code, reason = "campaigns alone look at windows")
)]
mod session;
pub mod show;
#[cfg(feature = "campaigns")]
pub mod sqlite;
pub mod sweep;
pub mod tcp;
pub mod udp;
#[cfg(feature = "campaigns")]
pub mod watch;

use std::time::Duration;

use evlbi_net::run::Run;
use evlbi_wire::units;

pub use self::control::ControlError;
pub use self::direction::Direction;
pub use self::one_way::OneWayError;
pub use self::parts::{Measured, PartsHead, WriteError};
pub use self::point::{Delay, Point, ReceiverSide, Region, SenderSide, Shares};
pub use self::session::{ConnectError, Gone, SessionError, Target};

fn now(run: &Run) -> String {
    units::utc(seconds(run))
}

/// Returns the UTC of a run's host, in seconds since 1970.
fn seconds(run: &Run) -> f64 {
    run.clock().utc() as f64 * 1e-9
}

/// Waits for `time`, or until the run is stopped.
fn pause(time: Duration, run: &Run) {
    let clock = run.clock();
    clock.wait_for(
        clock.now().plus(time.into()),
        session::POLL_INTERVAL,
        || run.is_stopped(),
    );
}

#[cfg(test)]
mod in_virtual_time;
#[cfg(test)]
mod tests;
