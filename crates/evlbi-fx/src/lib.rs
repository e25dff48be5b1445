//! From samples to visibilities: how samples lie in payloads, what their statistics say, simulated stations, and
//! the correlator with its delay model.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod codec;
pub mod correlator;
pub mod delay;
pub mod difx;
pub mod fringe;
pub mod loss;
pub mod quantise;
pub mod sky;
pub mod statistics;
pub mod track;
