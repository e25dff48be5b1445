//! What can be known before anything is sent (`evlbi plan`).

pub mod compare;
pub mod link;
pub mod losses;
pub mod multicast;
pub mod tcp;
