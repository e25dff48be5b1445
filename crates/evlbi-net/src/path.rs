//! What paths between hosts on one machine are made of: containers, and tap devices whose packets a relay passes on.

pub mod container;
mod tap;

pub use tap::Tap;
