//! The controller: runs flows on several hosts from a session's schedule, a script, a console or the web UI, which all use the same
//! requests.
//!
//! This module contains what concerns several hosts at once: the session file (`plan`), its check (`check`), its schedule (`schedule`),
//! and the ways to run it (`run`, `console`).

mod check;
pub mod console;
mod hosts;
mod paths;
mod plan;
pub mod result;
pub mod run;
mod schedule;
mod trust;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use evlbi_plot::columns;
use thiserror::Error;

pub use self::check::{Finding, Findings, HostChecked, Limits};
pub use self::hosts::ResultError;
pub use self::paths::PathResult;
pub use self::plan::{AccessError, Session, SessionError};
pub use self::schedule::ScheduleError;

use self::hosts::{Connected, Hosts};
use self::plan::Host;
use self::trust::Trusted;
use crate::agent::NoStateDir;
use crate::commands::Language;
use crate::flow::{End, FlowId, State};
use crate::history::{History, HistoryError};
use crate::identity::{FileError, private_dir};
use crate::time::now;

/// Error: a controller cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// The session is invalid.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// The state directory is unknown.
    #[error("{0}")]
    NoStateDir(#[from] NoStateDir),
    /// A file or directory of the controller cannot be used.
    #[error("{0}")]
    File(#[from] FileError),
    /// The controller's history cannot be used.
    #[error("{0}")]
    History(#[from] HistoryError),
    /// The list of trusted agents is invalid.
    #[error("{}: {why}", path.display())]
    Trusted {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The session lacks what is needed to trust the agent of a host.
    #[error("{host}: the session {why}")]
    Untold {
        /// Name of the host.
        host: String,
        /// Missing part of the session, as a predicate.
        why: &'static str,
    },
    /// The agent of a host cannot be used.
    #[error("host {name}")]
    Host {
        /// Name of the host.
        name: String,
        /// Reason.
        source: AccessError,
    },
}

/// Options of a controller.
#[derive(Clone, Debug, Default)]
pub struct ControllerOptions {
    /// Session file, or state directory of an agent on this host.
    pub session: PathBuf,
    /// Hosts whose agents are trusted from now on: the user confirms their fingerprints.
    pub trust: Vec<String>,
    /// State directory of the controller. `None`: `controller` in the default state directory of agents.
    pub dir: Option<PathBuf>,
}

/// Options of a run of a session.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Options of the controller.
    pub controller: ControllerOptions,
    /// Run to resume, whose controller has ended. `None`: a new run.
    pub resume: Option<FlowId>,
    /// Hosts to skip, with all their flows.
    pub without: Vec<String>,
    /// Address of the session's web UI.
    pub bind: Option<SocketAddr>,
    /// Start nothing until a user begins the session in the web UI.
    pub hold: bool,
}

impl ControllerOptions {
    /// Opens the session file, or creates a session for an agent's state directory. It gets a new key.
    fn open(&self, language: Language) -> Result<Session, SessionError> {
        let mut session = match self.session.is_dir() {
            true => Session::of_agent(&self.session, language),
            false => Session::read(&self.session, language),
        }?;
        session.key = Some(paths::new_key());
        Ok(session)
    }

    /// Creates the controller's state directory if it does not exist, and returns its path.
    ///
    /// # Errors
    /// Returns [`ControllerError`] if its path is unknown, it cannot be created, or another user can write to it.
    pub fn folder(&self) -> Result<PathBuf, ControllerError> {
        let folder = match &self.dir {
            Some(folder) => folder.clone(),
            None => crate::agent::default_dir()?.join("controller"),
        };
        private_dir(&folder)?;
        Ok(folder)
    }

    /// Starts polling the hosts of a session except those in `without`. Their agents must be trusted; the options can add trusted ones.
    /// `only` limits the known flows to names that start with it and a dot.
    fn hosts(
        &self,
        session: &Session,
        without: &[String],
        only: Option<&str>,
    ) -> Result<Arc<Hosts>, ControllerError> {
        let folder = self.folder()?;
        let history = Arc::new(History::open(&folder.join("history.sqlite"))?);
        let mut trusted = Trusted::open(&folder)?;
        for name in &self.trust {
            let host = session.hosts.iter().find(|host| host.name == *name);
            let untold = |why| ControllerError::Untold {
                host: name.clone(),
                why,
            };
            let host = host.ok_or_else(|| untold("has no such host"))?;
            let none = || untold("gives no `fingerprint` of its agent");
            trusted.add(name, host.fingerprint.ok_or_else(none)?)?;
        }
        let hosts = session.hosts.iter();
        let hosts = hosts.filter(|host| !without.contains(&host.name));
        let connect = |host: &Host| {
            let client = host.client(&trusted);
            let client = client.map_err(|source| ControllerError::Host {
                name: host.name.clone(),
                source,
            })?;
            Ok(Connected {
                agent: Box::new(client),
                plan: host.clone(),
            })
        };
        let hosts = hosts.map(connect).collect::<Result<_, ControllerError>>()?;
        Ok(Hosts::open(session.name.as_str(), hosts, history, only))
    }
}

/// Returns the name of a new run: the session's name and the time.
fn name_of_run(session: &FlowId) -> String {
    let now = jiff::Timestamp::from_second(now() as i64).unwrap_or_default();
    format!("{session}-{}", now.strftime("%Y%m%dT%H%M%S"))
}

/// Returns the row of a flow in a list: `about`, its state or outcome, and the reason of its end or its counts.
fn row(
    about: [&str; 3],
    state: State,
    end: Option<&End>,
    counts: impl FnOnce() -> String,
) -> Vec<String> {
    let how = end.map_or_else(
        || evlbi_plot::name(&state),
        |end| evlbi_plot::name(&end.outcome),
    );
    let why = end.and_then(|end| end.message.clone());
    let last = [how, why.unwrap_or_else(counts)];
    about.map(str::to_owned).into_iter().chain(last).collect()
}

/// Formats a list of flows.
fn table(rows: &[Vec<String>]) -> String {
    match rows.is_empty() {
        true => "no flows".to_owned(),
        false => columns(rows, |_| true),
    }
}

#[cfg(test)]
mod tests;
