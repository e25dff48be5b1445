//! `evlbi agent`: runs the flows of this host, whoever is connected.
//!
//! Each flow is a process of its own, with a folder of its own below the agent's: what it is, the socket by which it is
//! asked and told, its result and what it had to say. So a flow goes on when the agent ends or is killed, an agent
//! that is started again finds its flows, and nothing that an agent does can hold up data.
//!
//! Here belongs what an agent does for the flows of its own host: its settings (`config`), what it allows (`guard`), and their processes.

mod config;
mod flows;
mod guard;
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
pub use self::guard::{Allowed, Load, Refusal, allow};

use self::flows::Agent;
use crate::api::Api;
use crate::commands::Language;
use crate::history::{History, HistoryError};
use crate::identity::{FileError, Identity, IdentityError, private_folder, write_private};
use crate::threads::{Threads, ThreadsError, stopped};

/// No folder is given, and there is no usual one: the user has no home.
#[derive(Debug, Error)]
#[error("where should the agent keep its things?")]
pub struct NoFolder;

/// Why an agent cannot begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Where it keeps its things is not known.
    #[error("{0}")]
    NoFolder(#[from] NoFolder),
    /// Another agent has the folder.
    #[error("another agent uses {}", .0.display())]
    InUse(PathBuf),
    /// A file or folder of its own.
    #[error("{0}")]
    File(#[from] FileError),
    /// Its settings.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Its certificate or its tokens.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// Its history.
    #[error("{0}")]
    History(#[from] HistoryError),
    /// The threads that it works on.
    #[error("{0}")]
    Threads(#[from] ThreadsError),
    /// The folder for recordings cannot be made.
    #[error("the folder for recordings, {}", path.display())]
    Recordings {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot listen.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Something else that the system refuses.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What an agent is asked for.
#[derive(Clone, Debug, Default)]
pub struct AgentOptions {
    /// Folder for its settings, certificate, tokens, flows and history; `evlbi` in the user's folder for state where none is given.
    pub dir: Option<PathBuf>,
    /// Where it listens, else than its settings say.
    pub bind: Option<SocketAddr>,
    /// Its settings; `agent.toml` in its folder where none is given.
    pub config: Option<PathBuf>,
}

/// What an agent says when it is there.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Ready {
    schema: &'static str,
    /// Name of the host.
    pub host: String,
    /// `https://ADDRESS:PORT` of the page and the interface.
    pub url: String,
    /// SHA-256 of the certificate, as 32 hexadecimal numbers with colons between them.
    pub fingerprint: String,
    /// The folder with the files `operate` and `watch`, each with the token of that role.
    pub tokens: PathBuf,
    /// The file of its settings.
    pub config: PathBuf,
    /// The folder for recordings.
    pub recordings: PathBuf,
    /// Number of flows that ran already.
    pub running: usize,
}

/// An agent at work. It ends when it is dropped; its flows continue.
pub struct Serving {
    /// What is to be said of it.
    pub ready: Ready,
    agent: Arc<Agent>,
    run: Run,
    serving: JoinHandle<()>,
    threads: Threads,
    _lock: File,
}

/// Starts an agent, whose flows are processes of the program of `language`. From now on this process works in the agent's folder, so there
/// is one agent a process.
///
/// # Errors
/// When another agent uses the folder, a file in it cannot be used, the settings cannot be understood, or the agent cannot listen.
pub fn start(options: &AgentOptions, language: Language, run: &Run) -> Result<Serving, AgentError> {
    let folder = options.dir.clone().map_or_else(usual_folder, Ok)?;
    private_folder(&folder)?;
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
    // Names of sockets must be short: those of flows are relative to here.
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
            let begins = format!("the agent begins, {} flows run", ready.running);
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
                // A full disk keeps no agent from its flows.
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
    /// Waits until its run is stopped; its flows continue.
    pub fn join(mut self) {
        self.threads.finish(async {
            tokio::select! {
                _ = &mut self.serving => {}
                () = stopped(&self.run) => {}
            }
        });
        let name = &self.agent.config.name;
        self.agent.history.tell(name, None, "the agent ends");
        let running = self.agent.running();
        if running > 0 {
            self.run.line(format_args!(
                "{running} flows go on; start the agent again to reach them"
            ));
        }
    }
}

/// One agent a folder.
fn lock(folder: &Path) -> Result<File, AgentError> {
    let path = folder.join("lock");
    let mut options = File::options();
    // What stands there is the other agent's, if there is one.
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
    // A full disk keeps no agent from its flows.
    if let Err(error) = emptied.and_then(|()| writeln!(file, "{}", std::process::id())) {
        tracing::warn!("cannot write the process into {}: {error}", path.display());
    }
    Ok(file)
}

/// Where agents keep their things when nothing else is said.
pub(crate) fn usual_folder() -> Result<PathBuf, NoFolder> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let state = state.filter(|path| path.is_absolute()).or(home);
    Ok(state.ok_or(NoFolder)?.join("evlbi"))
}

/// Writes out where an agent is and what it allows, for people.
pub fn text(ready: &Ready) -> String {
    let tokens = ready.tokens.display();
    lines(&[
        ("agent of", ready.host.clone()),
        ("address", ready.url.clone()),
        ("fingerprint", ready.fingerprint.clone()),
        ("tokens", format!("{tokens} (operate, watch)")),
        ("allows", format!("what {} says", ready.config.display())),
        ("recordings", ready.recordings.display().to_string()),
    ])
}
