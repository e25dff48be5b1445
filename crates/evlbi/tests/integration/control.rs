//! Control: agents and their flows over real sockets, what they allow, and what is left of them when something is killed.

mod browser;
mod demo;
mod flows;
mod fuzz;
mod guard;
mod kills;
mod past;
mod session;
pub mod support;
