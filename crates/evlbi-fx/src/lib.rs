//! From samples to visibilities: how samples lie in payloads, what their statistics say, and simulated stations.
#![forbid(unsafe_code)]

pub mod codec;
pub mod sky;
pub mod statistics;
