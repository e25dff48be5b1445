//! Control: agents and their flows over real sockets, what they allow, and what is left of them when something is killed.
//!
//! Here belongs what agents do with real flows; sessions with agents in memory are tested in evlbi-control.

mod browser;
mod connections;
mod demo;
mod flows;
mod fuzz;
mod guard;
mod identity;
mod kills;
mod metrics;
mod past;
mod session;
pub mod support;
