//! Runs flows of VLBI data on hosts and has them controlled from afar: listed, started, changed and stopped.
//!
//! A flow is a command of the program `evlbi` in a process of its own ([`evlbi_stream::control_socket`]), which outlives whoever started it. Here
//! are the two that see to flows, and what they need: [`agent`] runs those of its host, and [`session`] drives those of many hosts through
//! their agents, by a schedule, a script or a console. Both keep a history, and serve a page and an interface over HTTPS, whose other end
//! is [`Client`]. What the flows do with data is in the crates below. What is written on a command line is the program's alone: a
//! [`Grammar`](commands::Grammar) says what it can be, and whose process a flow is: that of `evlbi`, for an agent within another program.
//!
//! Here belongs what starts, shows, changes or ends flows from outside of their processes, and what others may do by it.
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
//! /// The command line of the program that carries flows out; this one knows no options.
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
//! // Whoever may look into the agent's folder finds there how it is known, and a token for it.
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
