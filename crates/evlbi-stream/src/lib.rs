//! Sends, receives and records streams of VLBI data, and reports exactly what was lost.
//!
//! Put here what happens to a stream between its source and its recording, and to the recording afterwards. `evlbi-net` moves datagrams
//! over the network; the crates above combine several streams.
//!
//! In the order of the data: [`source`] → [`send`] ~~~ [`recv`] → [`drain`] → [`sink`]. [`recording`] finds out the format of a file,
//! [`selection`] reads the settings of one input, [`samples`] describes its samples, [`channel_table`] gives their frequencies. [`inspect`] reports the
//! content of a recording, [`mod@drop`] removes frames or packets from it as a loss would, [`split`] and [`join`] rearrange
//! its channels, threads and stations. [`counters`] defines all counters; [`control_socket`] shows and changes a running stream.
//!
//! # Example
//! A sender and a receiver of the test pattern, on two simulated hosts in virtual time. On real hosts, a run is
//! [`Run::silent`](evlbi_net::run::Run::silent) or the program's own, and a URL is `udp://HOST:2630`:
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

pub mod channel_table;
pub mod control_socket;
pub mod counters;
pub mod drain;
pub mod drop;
pub mod gaps;
pub mod inspect;
pub mod join;
pub mod lane;
mod numbering;
pub mod recording;
pub mod recv;
pub mod running;
pub mod safe;
pub mod samples;
pub mod selection;
pub mod send;
pub mod sink;
pub mod sky;
pub mod source;
pub mod split;
pub mod template;
