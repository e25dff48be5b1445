//! Control: agents and their flows over real sockets, their access rules, and what remains when something is killed.
//!
//! Put tests of agents with real flows here; sessions with agents in memory are tested in evlbi-control.

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
mod safe;
mod session;
pub mod support;
