//! The controller: flows on many hosts, driven by a session's schedule, a script, a console or a page, which all do the
//! same to the same hosts.
//!
//! Here belongs what concerns several hosts at once: the session's file (`plan`), what prevents it (`check`), who does what when
//! (`schedule`), and the ways to drive it (`run`, `console`).

mod check;
pub mod console;
mod hosts;
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

pub use self::check::{Finding, Findings, HostChecked};
pub use self::hosts::ResultError;
pub use self::plan::{AccessError, Session, SessionError};
pub use self::schedule::ScheduleError;

use self::hosts::{Connected, Hosts};
use self::plan::Host;
use self::trust::Trusted;
use crate::agent::NoFolder;
use crate::commands::Language;
use crate::flow::{End, FlowId, State};
use crate::history::{History, HistoryError};
use crate::identity::{FileError, private_folder};
use crate::time::now;

/// Why a controller cannot begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// The session cannot be understood.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// Where the controller keeps its things is not known.
    #[error("{0}")]
    NoFolder(#[from] NoFolder),
    /// A file or folder of the controller.
    #[error("{0}")]
    File(#[from] FileError),
    /// The controller's history.
    #[error("{0}")]
    History(#[from] HistoryError),
    /// The list of trusted agents cannot be understood.
    #[error("{}: {why}", path.display())]
    Trusted {
        /// The file.
        path: PathBuf,
        /// What of it.
        why: String,
    },
    /// The agent of a host is to be trusted of which the session does not say enough.
    #[error("{host}: the session {why}")]
    Untold {
        /// The host.
        host: String,
        /// What the session does not have.
        why: &'static str,
    },
    /// The agent of a host cannot be asked.
    #[error("host {name}")]
    Host {
        /// The host.
        name: String,
        /// Why.
        source: AccessError,
    },
}

/// What a controller is asked for.
#[derive(Clone, Debug, Default)]
pub struct ControllerOptions {
    /// The session file, or the folder of an agent on this machine.
    pub session: PathBuf,
    /// Hosts the fingerprints of whose agents are confirmed from now on.
    pub trust: Vec<String>,
    /// Folder for what the controller keeps; `controller` in that of agents where none is given.
    pub dir: Option<PathBuf>,
}

/// How a session is run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The session, and where the controller keeps its things.
    pub controller: ControllerOptions,
    /// The run that is continued, whose controller was ended; a new one where none is given.
    pub resume: Option<FlowId>,
    /// Hosts that are left out with all their flows.
    pub without: Vec<String>,
    /// Where the session's page is served.
    pub bind: Option<SocketAddr>,
    /// Nothing starts until somebody begins the session on its page.
    pub hold: bool,
}

impl ControllerOptions {
    /// The session of the hosts in the file, or of the one agent whose folder on this machine it is.
    fn open(&self, language: Language) -> Result<Session, SessionError> {
        match self.session.is_dir() {
            true => Session::of_agent(&self.session, language),
            false => Session::read(&self.session, language),
        }
    }

    /// Makes the folder of the controller if it is not there, and returns its path.
    ///
    /// # Errors
    /// When nothing says where it is, it cannot be made, or somebody else can write there.
    pub fn folder(&self) -> Result<PathBuf, ControllerError> {
        let folder = match &self.dir {
            Some(folder) => folder.clone(),
            None => crate::agent::usual_folder()?.join("controller"),
        };
        private_folder(&folder)?;
        Ok(folder)
    }

    /// Begins to ask the hosts of a session but for those that are left out. Their agents are trusted by the user of the controller,
    /// from now on also those that the options name. `only`: what the names of flows begin with.
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

/// The name of a run: the session's, and when it is.
fn name_of_run(session: &FlowId) -> String {
    let now = jiff::Timestamp::from_second(now() as i64).unwrap_or_default();
    format!("{session}-{}", now.strftime("%Y%m%dT%H%M%S"))
}

/// A flow in a list of many: what it is, how it is or how it ended, and why, or else what it counted.
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

/// A list of flows.
fn table(rows: &[Vec<String>]) -> String {
    match rows.is_empty() {
        true => "no flows".to_owned(),
        false => columns(rows, |_| true),
    }
}

#[cfg(test)]
mod tests;
