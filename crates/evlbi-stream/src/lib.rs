//! Sends, receives and records streams of VLBI data, and says exactly what was lost.
//!
//! Here belongs what is done with a stream from its source to its recording, and with the recording afterwards. How datagrams pass
//! the network is `evlbi-net`'s; what is made of several streams is that of the crates above.
//!
//! On the way of the data: [`source`] → [`send`] ~~~ [`recv`] → [`drain`] → [`sink`]. [`recording`] reads what is on disk, [`inspect`]
//! says what it contains, [`mod@drop`] cuts out of it what a loss would take. [`counters`] defines what is counted; [`control_socket`] shows and
//! changes a stream while it lasts.
//!
//! # Example
//! A sender and a receiver of the test pattern, on two simulated hosts in virtual time. On hosts that are real, their runs are
//! [`Run::silent`](evlbi_net::run::Run::silent) or those of a program, and their URLs `udp://HOST:2630`:
//!
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! # use evlbi_core::time::Nanos;
//! use evlbi_net::clock::Clock;
//! use evlbi_net::run::Run;
//! use evlbi_net::sim::Network;
//! use evlbi_stream::recv::{RecvOptions, receive};
//! use evlbi_stream::send::{Pace, SendOptions, send};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = Clock::simulated(1_800_000_000 * Nanos::SECOND.0);
//! let network = Network::between(&clock, [&[], &[]], 1500, 1);
//! let at = SocketAddr::from(([10, 0, 0, 1], 2630));
//! let recv_options = RecvOptions {
//!     from: network.to(at),
//!     to: "check".into(),
//!     idle: Some(Duration::from_secs(2)),
//!     ..RecvOptions::default()
//! };
//! let send_options = SendOptions {
//!     source: "pattern:1032".into(),
//!     to: network.to(at),
//!     pace: Pace::Rate("8M".parse()?),
//!     duration: Some(Duration::from_secs(1)),
//!     ..SendOptions::default()
//! };
//! let (sent, received) = clock.simulate(|| {
//!     let receiving = receive(&recv_options, &Run::silent().on(&network.far(1)))?;
//!     let sending = send(&send_options, &Run::silent().on(&network.near(1)))?;
//!     Ok::<_, Box<dyn std::error::Error>>((sending.join()?, receiving.join()))
//! })?;
//! assert_eq!(received.live.counters.unique, sent.report.live.sent);
//! assert_eq!(received.live.counters.lost, 0);
//! assert_eq!(received.sink.check.map(|check| check.corrupted), Some(0));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod control_socket;
pub mod counters;
pub mod drain;
pub mod drop;
pub mod inspect;
mod numbering;
pub mod recording;
pub mod recv;
pub mod running;
pub mod send;
pub mod sink;
pub mod sky;
pub mod source;
