//! A run of a session by its schedule.

use std::io;
use std::net::SocketAddr;
use std::num::ParseFloatError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evlbi_net::run::{Run, explain};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::check::{self, Findings};
use super::hosts::Hosts;
use super::plan::Session;
use super::result::RunResult;
use super::schedule::{POLL_INTERVAL, Schedule, ScheduleError};
use super::{ControllerError, RunOptions};
use crate::api::Api;
use crate::commands::Language;
use crate::fleet::SessionState;
use crate::identity::{FileError, Identity, IdentityError, link, private_dir, write_private};
use crate::serve::IDLE;
use crate::threads::stopped;
use crate::time::now;

/// Seconds from the moment at which a session may begin to its begin.
const AHEAD: f64 = 0.5;

/// Error: a session cannot be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The session, its hosts or the controller's state directory cannot be used.
    #[error("{0}")]
    Controller(#[from] ControllerError),
    /// The session's times are invalid.
    #[error("{0}")]
    Times(#[from] ScheduleError),
    /// A file or directory of the controller cannot be used.
    #[error("{0}")]
    File(#[from] FileError),
    /// The certificate or the tokens of the web UI cannot be used.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// The session does not have a host that shall be skipped.
    #[error("{0}: the session has no such host")]
    NoHost(String),
    /// This controller never began the run that shall be resumed.
    #[error(
        "{run}: no such run in {}; the last runs are: {last}",
        folder.display()
    )]
    NoRun {
        /// Name of the run.
        run: String,
        /// Directory of the runs that were begun.
        folder: PathBuf,
        /// Names of the last runs.
        last: String,
    },
    /// The stored begin of a run is invalid.
    #[error("invalid time in {}", path.display())]
    NoTime {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: ParseFloatError,
    },
    /// The web UI cannot listen on its address.
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
    /// The check found this number of problems.
    #[error("{}, nothing was started", problems_found(*.0))]
    Problems(usize),
    /// The held session was ended before it began.
    #[error("the session was ended before it began")]
    NotBegun,
}

/// Run of a session. Its hosts are polled and its web UI is served until the threads that it runs on are dropped.
pub struct Running {
    session: Session,
    name: String,
    options: RunOptions,
    /// File that stores when the run began, and its key.
    book: PathBuf,
    schedule: Schedule,
    /// Result of the check.
    pub checked: Findings,
    /// Address of its web UI with the token for the role operate (a secret), if it has a web UI.
    pub link: Option<String>,
}

/// Prepares a run: checks everything and starts nothing.
///
/// # Errors
/// Returns [`RunError`] if the session is invalid, or the controller's state directory, an agent's token or the address of the web UI
/// cannot be used.
pub async fn prepare(
    options: &RunOptions,
    language: Language,
    run: &Run,
) -> Result<Running, RunError> {
    let controller = &options.controller;
    let mut session = controller.open(language).map_err(ControllerError::from)?;
    let is_known = |name: &&String| session.hosts.iter().any(|host| host.name == **name);
    if let Some(name) = options.without.iter().find(|name| !is_known(name)) {
        return Err(RunError::NoHost(name.clone()));
    }
    let name = match &options.resume {
        Some(name) => name.to_string(),
        None => super::name_of_run(&session.name),
    };
    let folder = controller.folder()?;
    private_dir(&folder.join("runs"))?;
    let book = folder.join("runs").join(&name);
    let resumed = options.resume.as_ref();
    let noted = resumed.map(|_| begin_of(&book)).transpose()?;
    let begin = noted.as_ref().map(|(begin, _)| *begin);
    if let Some((_, key)) = noted {
        session.key = key.or(session.key);
    }
    let hosts = controller.hosts(&session, &options.without, Some(&name))?;
    let link = match options.bind {
        Some(address) => Some(serve_ui(address, &folder, &hosts, language, run).await?),
        None => None,
    };
    let running = Running::new(session, name, options.clone(), book, begin, hosts).await?;
    Ok(Running { link, ..running })
}

impl Running {
    /// Checks the hosts and the flows of a session. Its relative times count from `begin`, in seconds since 1970. `None`: they count from
    /// the end of the check.
    ///
    /// # Errors
    /// Returns [`ScheduleError`] if a scan begins too early, or too close to another.
    pub(crate) async fn new(
        session: Session,
        name: String,
        options: RunOptions,
        book: PathBuf,
        begin: Option<f64>,
        hosts: Arc<Hosts>,
    ) -> Result<Running, ScheduleError> {
        let schedule = |begin: Option<f64>| {
            let begin = begin.unwrap_or_else(|| now() + AHEAD);
            Schedule::new(&session, &name, &options, begin, Arc::clone(&hosts))
        };
        // Report invalid times at once, and show the plan in the web UI.
        schedule(begin)?;
        hosts.wait_for_answers().await;
        let checked = check::check(&session, &name, &hosts).await;
        let schedule = schedule(begin)?;
        Ok(Running {
            session,
            name,
            options,
            book,
            schedule,
            checked,
            link: None,
        })
    }

    /// Counts the flows of the session.
    pub fn flows(&self) -> usize {
        self.session.flows.len()
    }

    /// Starts and stops the flows at their times, until all have ended, the run is stopped, or a user ends the session in the web UI.
    ///
    /// # Errors
    /// Returns [`RunError`] if the check found problems, or the session is ended before it began.
    pub async fn follow(&mut self, run: &Run) -> Result<RunResult, RunError> {
        let is_new = self.options.resume.is_none();
        if is_new && !self.checked.problems.is_empty() {
            self.refuse(run);
            return Err(RunError::Problems(self.checked.problems.len()));
        }
        self.warn(run);
        run.line(format_args!("run {}", self.name));
        if self.options.hold {
            self.schedule = self.held(run).await?;
        }
        if is_new {
            let key = self.session.key.as_deref().unwrap_or_default();
            write_private(&self.book, format!("{}\n{key}", self.schedule.begin))?;
        }
        let paths = self.session.paths();
        for path in &paths {
            if let Some(reservation) = path.reservation() {
                run.line(format_args!("{}: {}: {reservation}", path.host, path.flow));
                let history = &self.schedule.hosts.history;
                history.tell(&path.host, None, &format!("{}: {reservation}", path.flow));
            }
        }
        let started = now();
        self.schedule.follow(run).await;
        Ok(RunResult {
            schema: "evlbi.run/1",
            session: self.session.name.clone(),
            run: self.name.clone(),
            started,
            ended: now(),
            interrupted: run.is_stopped(),
            checked: self.checked.clone(),
            paths,
            flows: self.schedule.results().await,
        })
    }

    /// Reports what the session should state, and does not.
    pub fn warn(&self, run: &Run) {
        for found in &self.checked.warnings {
            run.say(format_args!("{found}"));
        }
    }

    /// Reports the problems, and returns a text with their number.
    pub fn refuse(&self, run: &Run) -> String {
        for found in &self.checked.problems {
            run.say(format_args!("{found}"));
        }
        problems_found(self.checked.problems.len())
    }

    /// Serves the web UI until the run is stopped.
    pub async fn stay(&self, run: &Run) {
        run.line(format_args!("the web UI stays until Ctrl-C"));
        stopped(run).await;
    }

    /// Waits until a user begins the session in the web UI. Its relative times count from then on.
    async fn held(&self, run: &Run) -> Result<Schedule, RunError> {
        let hosts = &self.schedule.hosts;
        run.line(format_args!("waiting for Begin in the web UI"));
        loop {
            self.schedule.publish(SessionState::Held);
            while hosts.session_state() == Some(SessionState::Held) {
                if run.is_stopped() {
                    return Err(RunError::NotBegun);
                }
                sleep(POLL_INTERVAL).await;
            }
            let (begin, same) = (now() + AHEAD, Arc::clone(hosts));
            match Schedule::new(&self.session, &self.name, &self.options, begin, same) {
                Ok(schedule) => return Ok(schedule),
                Err(error) => {
                    let error = explain(&error);
                    run.say(format_args!("{error}"));
                    hosts.history.tell("", None, &error);
                }
            }
        }
    }
}

fn problems_found(count: usize) -> String {
    match count {
        1 => "1 problem found".to_owned(),
        _ => format!("{count} problems found"),
    }
}

/// Reads when a run began whose controller has ended, and its key.
fn begin_of(book: &Path) -> Result<(f64, Option<String>), RunError> {
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let folder = book.parent().unwrap_or(book);
    let text = std::fs::read_to_string(book).map_err(|_| {
        let runs = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut runs: Vec<String> = runs.filter_map(|run| name(&run.path())).collect();
        runs.sort_by(|a, b| b.cmp(a));
        runs.truncate(5);
        if runs.is_empty() {
            runs.push("none".to_owned());
        }
        RunError::NoRun {
            run: name(book).unwrap_or_default(),
            folder: folder.to_owned(),
            last: runs.join(", "),
        }
    })?;
    let (begin, key) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
    let begin = begin.parse().map_err(|source| RunError::NoTime {
        path: book.to_owned(),
        source,
    })?;
    Ok((begin, (!key.is_empty()).then(|| key.to_owned())))
}

/// Starts serving the web UI of the session. Returns its address with the token for the role operate.
async fn serve_ui(
    address: SocketAddr,
    folder: &Path,
    hosts: &Arc<Hosts>,
    language: Language,
    run: &Run,
) -> Result<String, RunError> {
    let identity = Arc::new(Identity::open(folder, "session", address.ip())?);
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| RunError::Listen { address, source })?;
    let url = format!("https://{}", listener.local_addr()?);
    let link = link(&url, &identity.tokens)?;
    run.line(format_args!(
        "web UI {url}, fingerprint {}, tokens in {}",
        identity.fingerprint(),
        identity.tokens.display()
    ));
    let api = Api {
        fleet: Arc::new(Arc::clone(hosts)),
        identity,
        history: Arc::clone(&hosts.history),
        language,
    };
    tokio::spawn(api.serve(listener, IDLE)?);
    Ok(link)
}
