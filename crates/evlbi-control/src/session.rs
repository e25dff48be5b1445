//! The controller: flows on many hosts, driven by a session's timetable, a script, a console or a page, which all do the
//! same to the same [`hosts::Hosts`].

mod check;
pub mod console;
pub mod hosts;
mod plan;
pub mod result;
pub mod run;
mod timetable;
mod trust;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use evlbi_plot::columns;

pub use self::plan::Session;

use self::hosts::{Connected, Hosts};
use self::plan::Host;
use self::trust::Trusted;
use crate::commands::Language;
use crate::flow::{End, FlowId, State};
use crate::history::History;
use crate::identity::private_folder;
use crate::time::now;

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
    fn open(&self, language: Language) -> Result<Session> {
        match self.session.is_dir() {
            true => Session::of_agent(&self.session, language),
            false => Session::read(&self.session, language),
        }
    }

    /// The folder of the controller.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn folder(&self) -> Result<PathBuf> {
        let usual = || Ok(crate::agent::usual_folder()?.join("controller"));
        let folder = self.dir.clone().map_or_else(usual, anyhow::Ok)?;
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
    ) -> Result<Arc<Hosts>> {
        let folder = self.folder()?;
        let history = Arc::new(History::open(&folder.join("history.sqlite"))?);
        let mut trusted = Trusted::open(&folder)?;
        for name in &self.trust {
            let host = session.hosts.iter().find(|host| host.name == *name);
            let fails = |what| format!("--trust {name}: the session {what}");
            let host = host.with_context(|| fails("has no such host"))?;
            let fingerprint = host.fingerprint;
            let fingerprint =
                fingerprint.with_context(|| fails("gives no `fingerprint` of its agent"))?;
            trusted.add(name, fingerprint)?;
        }
        let hosts = session.hosts.iter();
        let hosts = hosts.filter(|host| !without.contains(&host.name));
        let connect = |host: &Host| {
            Ok(Connected {
                agent: Box::new(host.client(&trusted)?),
                plan: host.clone(),
            })
        };
        let hosts = hosts.map(connect).collect::<Result<_>>()?;
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
