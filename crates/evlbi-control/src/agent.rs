//! `evlbi agent`: runs the flows of this host.
//!
//! Each flow is a process with its own directory below the agent's. The directory holds the flow's description, its control socket,
//! its result and its log. Flows keep running when the agent stops or is killed, a restarted agent finds them again, and nothing that
//! an agent does can delay data.
//!
//! This module contains the work of an agent on its own host: its settings (`config`), its access rules (`guard`) and the flows'
//! processes.

mod config;
mod flows;
mod guard;
mod notices;
mod process;

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evlbi_net::run::{Run, explain};
use evlbi_plot::lines;
use serde::Serialize;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use self::config::{Config, ConfigError, SettingError};
pub(crate) use self::guard::KEY;
pub use self::guard::{Allowed, Load, Refusal, allow};

use self::flows::Agent;
use crate::api::Api;
use crate::commands::Language;
use crate::history::{History, HistoryError};
use crate::identity::{FileError, Identity, IdentityError, private_dir, write_private};
use crate::threads::{Threads, ThreadsError, stopped};

/// Error: no state directory is given, and there is no default because the user has no home directory.
#[derive(Debug, Error)]
#[error("no state directory, because HOME is not set")]
pub struct NoStateDir;

/// Error: an agent cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The state directory is unknown.
    #[error("{0}")]
    NoStateDir(#[from] NoStateDir),
    /// Another agent uses the state directory.
    #[error("another agent uses {}", .0.display())]
    InUse(PathBuf),
    /// A file or directory of the agent cannot be used.
    #[error("{0}")]
    File(#[from] FileError),
    /// Its settings cannot be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Its certificate or its tokens cannot be used.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// Its history cannot be used.
    #[error("{0}")]
    History(#[from] HistoryError),
    /// Its threads cannot be started.
    #[error("{0}")]
    Threads(#[from] ThreadsError),
    /// The directory for recordings cannot be created.
    #[error("cannot create the directory for recordings {}", path.display())]
    Recordings {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The agent cannot listen on its address.
    #[error("cannot listen on {address}")]
    Listen {
        /// Address to listen on.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// Another system call failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Options of an agent.
#[derive(Clone, Debug, Default)]
pub struct AgentOptions {
    /// State directory: settings, certificate, tokens, flows and history. `None`: `evlbi` in the user's state directory.
    pub dir: Option<PathBuf>,
    /// Address to listen on; replaces the one in the settings.
    pub bind: Option<SocketAddr>,
    /// Settings file. `None`: `agent.toml` in the state directory.
    pub config: Option<PathBuf>,
}

/// Report of a started agent.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Ready {
    schema: &'static str,
    /// Name of the host.
    pub host: String,
    /// `https://ADDRESS:PORT` of the web UI and the HTTP API.
    pub url: String,
    /// SHA-256 of the certificate: 32 two-digit hexadecimal numbers, separated by colons.
    pub fingerprint: String,
    /// Directory of the files `operate` and `watch`, which hold the tokens of these roles.
    pub tokens: PathBuf,
    /// Settings file.
    pub config: PathBuf,
    /// Directory for recordings.
    pub recordings: PathBuf,
    /// Number of flows that were running when the agent started.
    pub running: usize,
}

/// Running agent. Dropping it stops the agent; its flows keep running.
pub struct Serving {
    /// Its report.
    pub ready: Ready,
    agent: Arc<Agent>,
    run: Run,
    serving: JoinHandle<()>,
    threads: Threads,
    _lock: File,
}

/// Starts an agent. Its flows are processes of the program that `language` names. The agent's state directory becomes the working
/// directory of this process, so a process can run only one agent.
///
/// # Errors
/// Returns [`AgentError`] if another agent uses the state directory, a file in it cannot be used, the settings are invalid, or the agent
/// cannot listen.
pub fn start(options: &AgentOptions, language: Language, run: &Run) -> Result<Serving, AgentError> {
    let folder = options.dir.clone().map_or_else(default_dir, Ok)?;
    private_dir(&folder)?;
    let folder = folder.canonicalize()?;
    let lock = lock(&folder)?;
    let settings = options.config.clone();
    let settings = settings.unwrap_or_else(|| folder.join("agent.toml"));
    let settings = std::path::absolute(settings)?;
    let mut config = Config::open(&settings)?;
    config.bind = options.bind.unwrap_or(config.bind);
    let made = std::fs::create_dir_all(&config.recordings);
    made.map_err(|source| AgentError::Recordings {
        path: config.recordings.clone(),
        source,
    })?;
    // Unix socket paths must be short, so the flows' sockets are relative to the working directory.
    std::env::set_current_dir(&folder)?;
    let identity = Arc::new(Identity::open(&folder, &config.name, config.bind.ip())?);
    let history = Arc::new(History::open(&folder.join("history.sqlite"))?);
    let threads = Threads::start()?;
    threads
        .finish(async {
            let listener = TcpListener::bind(config.bind).await;
            let listener = listener.map_err(|source| AgentError::Listen {
                address: config.bind,
                source,
            })?;
            let agent = Agent::open(config, history, language)?;
            let ready = Ready {
                schema: "evlbi.agent/1",
                host: agent.config.name.clone(),
                url: format!("https://{}", listener.local_addr()?),
                fingerprint: identity.fingerprint().to_string(),
                tokens: identity.tokens.clone(),
                config: settings,
                recordings: agent.config.recordings.clone(),
                running: agent.running(),
            };
            let begins = format!("the agent starts, {} flows running", ready.running);
            agent.history.tell(&agent.config.name, None, &begins);
            let api = Api {
                fleet: Arc::new(Arc::clone(&agent)),
                identity,
                history: Arc::clone(&agent.history),
                language,
            };
            let serving = tokio::spawn(api.serve(listener, agent.config.idle)?);
            let address = format!("{}\n", ready.url);
            let is_written = std::fs::read_to_string("address").is_ok_and(|known| known == address);
            if !is_written && let Err(error) = write_private(Path::new("address"), &address) {
                // An agent must start even if the disk is full.
                tracing::warn!("{}", explain(&error));
            }
            Ok((ready, agent, serving))
        })
        .map(|(ready, agent, serving)| Serving {
            ready,
            agent,
            run: run.clone(),
            serving,
            threads,
            _lock: lock,
        })
}

impl Serving {
    /// Waits until the run is stopped, then stops the agent. Its flows keep running.
    pub fn join(mut self) {
        self.threads.finish(async {
            tokio::select! {
                _ = &mut self.serving => {}
                () = stopped(&self.run) => {}
            }
        });
        let name = &self.agent.config.name;
        self.agent.history.tell(name, None, "the agent stops");
        let running = self.agent.running();
        if running > 0 {
            self.run.line(format_args!(
                "{running} flows keep running; restart the agent to control them"
            ));
        }
    }
}

/// Locks the state directory, which only one agent may use.
fn lock(folder: &Path) -> Result<File, AgentError> {
    let path = folder.join("lock");
    let mut options = File::options();
    // The content may belong to another agent.
    options.write(true).create(true).truncate(false);
    let file = options.open(&path);
    let mut file = file.map_err(|source| FileError::Write {
        path: path.clone(),
        source,
    })?;
    if file.try_lock().is_err() {
        return Err(AgentError::InUse(folder.to_owned()));
    }
    let emptied = file.set_len(0);
    // An agent must start even if the disk is full.
    if let Err(error) = emptied.and_then(|()| writeln!(file, "{}", std::process::id())) {
        tracing::warn!("cannot write the process ID to {}: {error}", path.display());
    }
    Ok(file)
}

/// Returns the default state directory of agents.
pub(crate) fn default_dir() -> Result<PathBuf, NoStateDir> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let state = state.filter(|path| path.is_absolute()).or(home);
    Ok(state.ok_or(NoStateDir)?.join("evlbi"))
}

/// Formats the report of a started agent as text.
pub fn text(ready: &Ready) -> String {
    let tokens = ready.tokens.display();
    lines(&[
        ("agent of", ready.host.clone()),
        ("address", ready.url.clone()),
        ("fingerprint", ready.fingerprint.clone()),
        ("tokens", format!("{tokens} (operate, watch)")),
        ("settings", ready.config.display().to_string()),
        ("recordings", ready.recordings.display().to_string()),
    ])
}
