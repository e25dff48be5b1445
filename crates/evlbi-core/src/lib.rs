//! What happens to VLBI data between a source and the network, and between the network and a sink,
//! without either: the time is an argument, random numbers are seeded, and nothing here opens a
//! socket, a file or a thread.
//!
//! Modules along the signal path: [`packetise`], [`shed`], [`pace`], [`path`], [`probe`], [`admission`] with [`pudp`] and
//! [`reorder`], [`account`], [`deframe`].
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod account;
pub mod admission;
pub mod deframe;
pub mod pace;
pub mod packetise;
pub mod path;
pub mod peer;
pub mod pudp;
pub mod rate;
pub mod reorder;
pub mod shed;
pub mod time;
