//! This host: whether it is fit for a data rate ([`doctor`]), and what a thread that moves data asks of it ([`host`]).
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![allow(missing_docs)]

pub mod doctor;
pub mod host;
