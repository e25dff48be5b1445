//! Control: flows that run on hosts, and the interface by which they are listed, started, changed and stopped.
//!
//! A flow is a command of this program in a process of its own ([`evlbi_stream::steer`]). An agent runs those of its host, a
//! session those of many; both are a [`Fleet`], which [`api`] makes an HTTP interface and a page of.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![allow(missing_docs)]

pub mod agent;
pub mod api;
pub mod body;
pub mod client;
pub mod commands;
pub mod fleet;
pub mod flow;
pub mod history;
pub mod identity;
pub mod metrics;
mod page;
mod schema;
pub mod serve;
pub mod session;
pub mod threads;
pub mod time;

pub use self::fleet::{Control, Fleet, Later, Problem, Remote, Reply};
