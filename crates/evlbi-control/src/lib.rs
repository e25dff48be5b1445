//! Runs flows of VLBI data on hosts under remote control: lists, starts, changes and stops them.
//!
//! A flow is a command of the program `evlbi` in its own process ([`evlbi_stream::control_socket`]), which keeps running when the process
//! that started it ends. An [`agent`] runs the flows of its host. A controller ([`session`]) runs those of many hosts through their
//! agents, from a schedule, a script or a console. Both keep a history and serve a web UI and an HTTP API over HTTPS; [`Client`] is the
//! client of that API. The crates below define what flows do with data. The program defines the command line: a
//! [`Grammar`](commands::Grammar) describes it and names the program that runs as a flow's process, also for an agent within another
//! program.
//!
//! This crate contains what starts, shows, changes or stops flows from outside their processes, and the access rules for that.
//!
//! ```
//! use std::net::Ipv4Addr;
//! use std::path::PathBuf;
//! use evlbi_control::agent::{self, AgentOptions};
//! use evlbi_control::commands::{CommandOption, Grammar, Meaning, Sends};
//! use evlbi_control::threads::Threads;
//! use evlbi_control::{Client, Identity, Remote, Role};
//! use evlbi_net::run::Run;
//!
//! /// Command line of the program that flows run; this one has no options.
//! struct Bare;
//!
//! impl Grammar for Bare {
//!     fn options(&self, _command: &str) -> Vec<CommandOption> {
//!         Vec::new()
//!     }
//!
//!     fn check(&self, _words: Vec<String>) -> Result<Meaning, String> {
//!         Ok(Meaning { sends: Sends::Nothing, start: None, duration: None, responds: None })
//!     }
//!
//!     fn program(&self) -> PathBuf {
//!         "/usr/bin/evlbi".into()
//!     }
//! }
//!
//! # let folder = std::env::temp_dir().join(format!("evlbi-control-{}", std::process::id()));
//! let options = AgentOptions {
//!     dir: Some(folder.clone()),
//!     bind: Some((Ipv4Addr::LOCALHOST, 0).into()),
//!     ..AgentOptions::default()
//! };
//! let run = Run::silent();
//! let agent = agent::start(&options, &Bare, &run)?;
//!
//! // A user who may read the agent's state directory finds its fingerprint and a token there.
//! let (fingerprint, token) = Identity::read(&folder)?;
//! let client = Client::new(&agent.ready.url, fingerprint, &token)?;
//! let threads = Threads::start()?;
//! let answer = threads.finish(client.about())?;
//! assert_eq!((answer.about.role.as_str(), answer.your_role), ("agent", Role::Operate));
//! assert!(threads.finish(client.flows())?.is_empty());
//!
//! run.stop();
//! agent.join();
//! # std::env::set_current_dir("/")?;
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod agent;
mod api;
mod body;
mod client;
pub mod commands;
mod fleet;
pub mod flow;
mod history;
mod identity;
mod metrics;
mod page;
mod schema;
mod serve;
pub mod session;
pub mod threads;
mod time;

pub use self::client::{Client, ClientError};
pub(crate) use self::fleet::Fleet;
pub use self::fleet::{About, AboutYou, Checked, Control, Later, Problem, Remote, Reply, Storage};
pub use self::history::{Event, HistoryError};
pub use self::identity::{FileError, Fingerprint, Identity, IdentityError, Role, link};
