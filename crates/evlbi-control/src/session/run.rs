//! A session by its timetable.

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
use crate::identity::{FileError, Identity, IdentityError, link, private_folder, write_private};
use crate::serve::IDLE;
use crate::threads::stopped;
use crate::time::now;

/// Seconds from the moment at which a session may begin to its beginning.
const AHEAD: f64 = 0.5;

/// Why a session is not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The session, its hosts, or the controller's folder.
    #[error("{0}")]
    Controller(#[from] ControllerError),
    /// The session's times.
    #[error("{0}")]
    Times(#[from] ScheduleError),
    /// A file or folder of the controller.
    #[error("{0}")]
    File(#[from] FileError),
    /// The certificate or the tokens of the page.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// A host is to be left out that the session does not have.
    #[error("{0}: the session has no such host")]
    NoHost(String),
    /// A run is to be continued that this controller never began.
    #[error(
        "{run}: no run of this name was begun by the controller in {}; the last ones are: {last}",
        folder.display()
    )]
    NoRun {
        /// The run.
        run: String,
        /// The folder with the runs that were begun.
        folder: PathBuf,
        /// The names of the last ones.
        last: String,
    },
    /// When a run began cannot be understood.
    #[error("{} is no time", path.display())]
    NoTime {
        /// Where it is written down.
        path: PathBuf,
        /// What is wrong with it.
        source: ParseFloatError,
    },
    /// The page's address cannot be used.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Something else that the system refuses.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The check found problems: how many.
    #[error("{}, so nothing was started", against(*.0))]
    Against(usize),
    /// It was held until it was ended.
    #[error("the session was ended before it began")]
    NotBegun,
}

/// A run of a session. The threads that it works on ask its hosts, and serve its page, until they are dropped.
pub struct Running {
    session: Session,
    name: String,
    options: RunOptions,
    /// Where it is written down when it began.
    book: PathBuf,
    schedule: Schedule,
    /// What was found of the hosts and the flows.
    pub checked: Findings,
    /// Address of its page with the token to operate, if it has a page: a secret.
    pub link: Option<String>,
}

/// Prepares a run: looks at everything, and starts nothing.
///
/// # Errors
/// When the session cannot be understood, or the controller's folder, an agent's secret or the page's address cannot be used.
pub async fn prepare(
    options: &RunOptions,
    language: Language,
    run: &Run,
) -> Result<Running, RunError> {
    let controller = &options.controller;
    let session = controller.open(language).map_err(ControllerError::from)?;
    let is_known = |name: &&String| session.hosts.iter().any(|host| host.name == **name);
    if let Some(name) = options.without.iter().find(|name| !is_known(name)) {
        return Err(RunError::NoHost(name.clone()));
    }
    let name = match &options.resume {
        Some(name) => name.to_string(),
        None => super::name_of_run(&session.name),
    };
    let folder = controller.folder()?;
    private_folder(&folder.join("runs"))?;
    let book = folder.join("runs").join(&name);
    let resumed = options.resume.as_ref();
    let begin = resumed.map(|_| begin_of(&book)).transpose()?;
    let hosts = controller.hosts(&session, &options.without, Some(&name))?;
    let link = match options.bind {
        Some(address) => Some(show_page(address, &folder, &hosts, language, run).await?),
        None => None,
    };
    let running = Running::new(session, name, options.clone(), book, begin, hosts).await?;
    Ok(Running { link, ..running })
}

impl Running {
    /// Looks at the hosts and at the flows of a session. Its times count from `begin`, in seconds since 1970; without one, from now
    /// on, once all has been looked at.
    ///
    /// # Errors
    /// When a scan begins too early, or too close to another.
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
        // Times that cannot be are told at once, and the page has the plan from here on.
        schedule(begin)?;
        hosts.look_around().await;
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

    /// Starts the flows by their times, and ends them: until all have ended, the run is stopped, or somebody ends it on the page.
    ///
    /// # Errors
    /// When something stands against the session, or it is ended before it began.
    pub async fn follow(&mut self, run: &Run) -> Result<RunResult, RunError> {
        let is_new = self.options.resume.is_none();
        if is_new && !self.checked.problems.is_empty() {
            self.refuse(run);
            return Err(RunError::Against(self.checked.problems.len()));
        }
        run.line(format_args!("run {}", self.name));
        if self.options.hold {
            self.schedule = self.held(run).await?;
        }
        if is_new {
            write_private(&self.book, &self.schedule.begin.to_string())?;
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
            flows: self.schedule.results().await,
        })
    }

    /// Says what stands against the session, and gives how much that is.
    pub fn refuse(&self, run: &Run) -> String {
        for found in &self.checked.problems {
            run.say(format_args!("{found}"));
        }
        against(self.checked.problems.len())
    }

    /// Keeps the page until the run is stopped.
    pub async fn stay(&self, run: &Run) {
        run.line(format_args!("the page stays until Ctrl-C"));
        stopped(run).await;
    }

    /// Waits until somebody begins the session on its page: its times count from then on.
    async fn held(&self, run: &Run) -> Result<Schedule, RunError> {
        let hosts = &self.schedule.hosts;
        run.line(format_args!(
            "nothing is started until the page is told to begin"
        ));
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

fn against(count: usize) -> String {
    format!("{count} things stand against the session")
}

/// When a run began whose controller was ended.
fn begin_of(book: &Path) -> Result<f64, RunError> {
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
    text.trim().parse().map_err(|source| RunError::NoTime {
        path: book.to_owned(),
        source,
    })
}

/// Serves the page of the session from now on; returns its address with the token to operate.
async fn show_page(
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
        "page {url}, fingerprint {}, tokens in {}",
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
