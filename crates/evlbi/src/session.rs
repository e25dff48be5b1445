//! The controller: flows on many hosts, driven by a session's timetable, a script, a console or a page, which all do the
//! same to the same [`hosts::Hosts`].

mod check;
pub mod console;
pub mod hosts;
mod plan;
mod result;
mod run;
mod timetable;
mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};

pub use self::plan::Session;
pub use self::run::run;

use self::hosts::Hosts;
use self::plan::Host;
use self::trust::Trusted;
use crate::control::flow::FlowId;
use crate::control::history::History;
use crate::control::identity::private_folder;

/// A session of the hosts in a file, or of the one agent whose folder on this machine it is.
fn open(place: &Path) -> Result<Session> {
    if place.is_dir() {
        return Session::of_agent(place);
    }
    Session::read(place)
}

/// The name of a run: the session's, and when it is.
fn name_of_run(session: &FlowId) -> String {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S");
    format!("{session}-{now}")
}

/// The agents that the user of the controller in `folder` trusts, from now on also those of the hosts named in `more`.
fn trusted(session: &Session, folder: &Path, more: &[String]) -> Result<Trusted> {
    let mut trusted = Trusted::open(folder)?;
    for name in more {
        let host = session.hosts.iter().find(|host| host.name == *name);
        let host = host.with_context(|| format!("--trust {name}: the session has no such host"))?;
        let fingerprint = host.fingerprint.with_context(|| {
            format!("--trust {name}: the session gives no `fingerprint` of its agent")
        })?;
        trusted.add(name, fingerprint)?;
    }
    Ok(trusted)
}

/// Runs `work` with the hosts of a session.
fn with_hosts<T>(
    session: &Session,
    without: &[String],
    trusted: &Trusted,
    history: Arc<History>,
    only: Option<&str>,
    work: impl AsyncFnOnce(Arc<Hosts>) -> Result<T>,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("threads cannot be started")?;
    let hosts: Vec<&Host> = session
        .hosts
        .iter()
        .filter(|host| !without.contains(&host.name))
        .collect();
    let done = runtime.block_on(async {
        let hosts = Hosts::open(session.name.as_str(), &hosts, trusted, history, only)?;
        work(hosts).await
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    done
}

/// The folder of the controller.
fn folder(asked: Option<&PathBuf>) -> Result<PathBuf> {
    let folder = match asked {
        Some(folder) => folder.clone(),
        None => crate::agent::usual_folder()?.join("controller"),
    };
    private_folder(&folder)?;
    Ok(folder)
}
