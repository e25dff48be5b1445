//! TCP without I/O: congestion control algorithms and connections without sockets ([`tcp`]), and the analysis of connections and
//! streams in a capture ([`capture`]). Nothing here opens a socket or a file, and time is an argument.
//!
//! Knowledge about TCP that needs no kernel belongs here: algorithms, models, the meaning of packets. Capture files, and the
//! advice that follows from results, are in `evlbi-probe`.
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
//! // One lost segment halves Reno's window, which takes half a window of round trips to recover.
//! let needs = flow.needs(Algorithm::Reno);
//! assert!((needs.recovery - flow.window() / 2.0 * 0.015).abs() < 0.1);
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod capture;
pub mod tcp;
