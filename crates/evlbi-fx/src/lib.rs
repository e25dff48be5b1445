//! From samples to visibilities: sample codes, statistics, simulated stations, and the correlator with its delay model.
//!
//! Calculations on samples, and the files of other correlators about them, belong here. `evlbi-correlate` decides which
//! recordings, stations and times are correlated.
//!
//! ```
//! use evlbi_fx::codec::Codec;
//! use evlbi_fx::loss::Lost;
//!
//! // VDIF samples of two bits; the lowest two bits of each byte are first.
//! let codec = Codec::vdif(2)?;
//! let mut values = [0.0; 4];
//! codec.decode(&[0b11_10_01_00], &mut values);
//! assert!(values.is_sorted());
//!
//! // Two stations that each lose a tenth independently keep 81 % for their baseline.
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
pub mod layout;
pub mod loss;
pub mod quantise;
pub mod simd;
pub mod sky;
pub mod statistics;
pub mod track;
pub mod unpack;
