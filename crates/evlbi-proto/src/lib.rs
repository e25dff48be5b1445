//! Protocols beside the data of VLBI streams, without I/O: messages and times go in, messages and decisions come out.
//!
//! [`safe`] is SafeUDP, the congestion control of a flow of constant bit rate.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod safe;
