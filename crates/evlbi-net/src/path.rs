//! A path between hosts on one machine: network namespaces joined by tap devices and a relay that does to their
//! packets what a [`evlbi_core::path::Network`] says.

pub mod container;
mod frame;
mod hosts;
mod plan;
mod relay;
mod tap;

pub use hosts::Hosts;
pub use plan::{CellPlan, Direction, Host, Link, Node, Plan, PlanError};
pub use relay::{CellPlace, CellSnapshot, HostSnapshot, Lateness, LogLine, Relay, Snapshot};
