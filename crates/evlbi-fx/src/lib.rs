//! From samples to visibilities: how samples lie in payloads, what their statistics say, simulated stations, and
//! the correlator with its delay model.
//!
//! Here belongs what is calculated from samples, and the files that other correlators write or read of it. Which recordings, stations and
//! times are correlated is known in `evlbi-correlate`.
//!
//! ```
//! use evlbi_fx::codec::Codec;
//! use evlbi_fx::loss::Lost;
//!
//! // VDIF's samples of two bits, first the lowest two of each byte.
//! let codec = Codec::vdif(2)?;
//! let mut values = [0.0; 4];
//! codec.decode(&[0b11_10_01_00], &mut values);
//! assert!(values.is_sorted());
//!
//! // Two stations that lose a tenth each, at times of their own, keep 81 % for their baseline.
//! assert!((Lost::independent(0.1, 0.1).overlap() - 0.81).abs() < 1e-12);
//! # Ok::<(), evlbi_fx::codec::CodecError>(())
//! ```
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
