//! What paths between hosts on one machine are made of: containers, and tap devices whose packets a relay passes on.
//!
//! Here belongs a call that such a path needs. What paths are like is in `evlbi-path`, and simulated ones are those of [`sim`](crate::sim).

pub mod container;
mod tap;

pub use tap::Tap;
