//! Sends, receives and records streams of VLBI data, and says exactly what was lost.
//!
//! On the way of the data: [`source`] → [`send`] ~~~ [`recv`] → [`drain`] → [`sink`]. [`recording`] reads what is on disk, [`inspect`]
//! says what it contains, [`mod@drop`] cuts out of it what a loss would take. [`counters`] defines what is counted; [`steer`] shows and
//! changes a stream while it lasts.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![allow(missing_docs)]

pub mod counters;
pub mod drain;
pub mod drop;
pub mod inspect;
pub mod numbering;
pub mod recording;
pub mod recv;
pub mod running;
pub mod send;
pub mod sink;
pub mod sky;
pub mod source;
pub mod steer;
