//! TCP as it is and as it was seen: algorithms of congestion control and connections without sockets ([`tcp`]), and what a capture
//! tells of connections and streams ([`capture`]). Nothing here opens a socket or a file, and the time is an argument.
//!
//! Here belongs what is known of TCP without a kernel: an algorithm, a model, what packets say. Files of captures, and what a finding
//! advises, are in `evlbi-probe`.
//!
//! ```
//! use evlbi_trace::tcp::{Algorithm, Cbr};
//!
//! // 512 Mbit/s over 15 ms of light path.
//! let flow = Cbr {
//!     rate: 512e6,
//!     round_trip: 0.015,
//!     segment: 1448.0,
//!     per_step: 1.0,
//!     link: 1e9,
//! };
//! // One lost segment halves Reno's window: it takes half a window of round trips until it is as before.
//! let needs = flow.needs(Algorithm::Reno);
//! assert!((needs.recovery - flow.window() / 2.0 * 0.015).abs() < 0.1);
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod capture;
pub mod tcp;
