//! Formats of VLBI data on disk and on the wire.
//!
//! Nothing here reads a file, a socket or a clock, and no accessor panics, whatever its input. Each module is a format, or shared
//! by several formats: [`time`], [`units`].
//!
//! New formats of frames, headers or documents belong here, tested with known bytes. What is done with frames is in `evlbi-core`.
//!
//! ```
//! use evlbi_wire::time::{FrameRate, FrameTime};
//! use evlbi_wire::vdif::{Header, Shape, StationId, StreamKey};
//!
//! // Frames with a payload of 8000 bytes: one channel of 2 bits, thread 3 of Effelsberg.
//! let shape = Shape {
//!     frame_length: 8032,
//!     log2_channels: 0,
//!     bits: 2,
//!     complex: false,
//!     legacy: false,
//! };
//! let station = StationId::from_code(*b"Ef");
//! let mut header = Header::new(shape, StreamKey { station, thread: 3 });
//! header.set_time(FrameTime { second: 1_714_564_800, frame: 17 })?;
//! let mut frame = vec![0; shape.frame_length];
//! header.emit(&mut frame);
//!
//! let read = Header::parse(&frame)?;
//! assert_eq!(read.time(), header.time());
//! assert_eq!(read.key().thread, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod field;
pub mod fill;
pub mod mark4;
pub mod mark5b;
pub mod naming;
pub mod packet;
pub mod pattern;
pub mod probe;
pub mod time;
pub mod units;
pub mod validity;
pub mod vdif;
pub mod vtp;
