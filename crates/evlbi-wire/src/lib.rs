//! Bytes and their meaning: the formats in which VLBI data lies on disk and travels on the wire.
//!
//! Nothing here reads a file, a socket or a clock, and no accessor panics, whatever bytes it is given.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod fill;
pub mod mark5b;
pub mod packet;
pub mod pattern;
pub mod probe;
pub mod time;
pub mod units;
pub mod validity;
pub mod vdif;
pub mod vtp;
