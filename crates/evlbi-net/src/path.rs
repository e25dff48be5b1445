//! Building blocks of paths between hosts on one machine: containers, and tap devices whose packets a relay forwards.
//!
//! This module contains the system calls that such paths need. Their behaviour is in `evlbi-path`; simulated paths are in
//! [`sim`](crate::sim).

pub mod container;
mod tap;

pub use tap::Tap;
