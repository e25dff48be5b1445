//! A session by its timetable.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use evlbi_net::run::{Run, explain};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::RunOptions;
use super::check::{self, Findings};
use super::hosts::Hosts;
use super::plan::Session;
use super::result::RunResult;
use super::timetable::{LOOK, Timetable};
use crate::api::Api;
use crate::commands::Language;
use crate::fleet::SessionState;
use crate::identity::{Identity, private_folder, write_private};
use crate::serve::IDLE;
use crate::threads::stopped;
use crate::time::now;

/// Seconds from the moment at which a session may begin to its beginning.
const AHEAD: f64 = 0.5;

/// A run of a session. The threads that it works on ask its hosts, and serve its page, until they are dropped.
pub struct Running {
    session: Session,
    name: String,
    options: RunOptions,
    /// Where it is written down when it began.
    book: PathBuf,
    timetable: Timetable,
    /// What was found of the hosts and the flows.
    pub checked: Findings,
}

/// Prepares a run: looks at everything, and starts nothing.
///
/// # Errors
/// When the session cannot be understood, or the controller's folder, an agent's secret or the page's address cannot be used.
pub async fn prepare(options: &RunOptions, language: Language, run: &Run) -> Result<Running> {
    let controller = &options.controller;
    let session = controller.open(language)?;
    let is_known = |name: &&String| session.hosts.iter().any(|host| host.name == **name);
    if let Some(name) = options.without.iter().find(|name| !is_known(name)) {
        bail!("--without {name}: the session has no such host");
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
    if let Some(address) = options.bind {
        show_page(address, &folder, &hosts, language, run).await?;
    }
    Running::new(session, name, options.clone(), book, begin, hosts).await
}

impl Running {
    /// Looks at the hosts and at the flows of a session. Its times count from `begin`, in seconds since 1970; without one, from now
    /// on, once all has been looked at.
    ///
    /// # Errors
    /// When a scan begins too early, or too close to another.
    pub async fn new(
        session: Session,
        name: String,
        options: RunOptions,
        book: PathBuf,
        begin: Option<f64>,
        hosts: Arc<Hosts>,
    ) -> Result<Running> {
        let timetable = |begin: Option<f64>| {
            let begin = begin.unwrap_or_else(|| now() + AHEAD);
            Timetable::new(&session, &name, &options, begin, Arc::clone(&hosts))
        };
        // Times that cannot be are told at once, and the page has the plan from here on.
        timetable(begin)?;
        hosts.look_around().await;
        let checked = check::check(&session, &name, &hosts).await;
        let timetable = timetable(begin)?;
        Ok(Running {
            session,
            name,
            options,
            book,
            timetable,
            checked,
        })
    }

    /// How many flows the session has.
    pub fn flows(&self) -> usize {
        self.session.flows.len()
    }

    /// Starts the flows by their times, and ends them: until all have ended, the run is stopped, or somebody ends it on the page.
    ///
    /// # Errors
    /// When something stands against the session, or it is ended before it began.
    pub async fn follow(&mut self, run: &Run) -> Result<RunResult> {
        let is_new = self.options.resume.is_none();
        if is_new && !self.checked.problems.is_empty() {
            bail!(
                "{}, so nothing was started; a host can be left out with --without NAME",
                self.refuse(run)
            );
        }
        run.line(format_args!("run {}", self.name));
        if self.options.hold {
            self.timetable = self.held(run).await?;
        }
        if is_new {
            write_private(&self.book, &self.timetable.begin.to_string())?;
        }
        let started = now();
        self.timetable.follow(run).await;
        Ok(RunResult {
            schema: "evlbi.run/1",
            session: self.session.name.clone(),
            run: self.name.clone(),
            started,
            ended: now(),
            interrupted: run.is_stopped(),
            checked: self.checked.clone(),
            flows: self.timetable.results().await,
        })
    }

    /// Says what stands against the session, and gives how much that is.
    pub fn refuse(&self, run: &Run) -> String {
        for found in &self.checked.problems {
            run.say(format_args!("{found}"));
        }
        let count = self.checked.problems.len();
        format!("{count} things stand against the session")
    }

    /// Keeps the page until the run is stopped.
    pub async fn stay(&self, run: &Run) {
        run.say(format_args!("the page stays until Ctrl-C"));
        stopped(run).await;
    }

    /// Waits until somebody begins the session on its page: its times count from then on.
    async fn held(&self, run: &Run) -> Result<Timetable> {
        let hosts = &self.timetable.hosts;
        run.say(format_args!(
            "nothing is started until the page is told to begin"
        ));
        loop {
            self.timetable.publish(SessionState::Held);
            while hosts.session_state() == Some(SessionState::Held) {
                if run.is_stopped() {
                    bail!("the session was ended before it began");
                }
                sleep(LOOK).await;
            }
            let (begin, same) = (now() + AHEAD, Arc::clone(hosts));
            match Timetable::new(&self.session, &self.name, &self.options, begin, same) {
                Ok(timetable) => return Ok(timetable),
                Err(error) => {
                    let error = explain(error.as_ref());
                    run.say(format_args!("{error}"));
                    hosts.history.tell("", None, &error);
                }
            }
        }
    }
}

/// When a run began whose controller was ended.
fn begin_of(book: &Path) -> Result<f64> {
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
        anyhow!(
            "--resume {}: no run of this name was begun by the controller in {}; the last ones are: {}",
            name(book).unwrap_or_default(),
            folder.display(),
            runs.join(", ")
        )
    })?;
    let begin = text.trim().parse();
    begin.with_context(|| format!("{} is no time", book.display()))
}

/// Serves the page of the session from now on.
async fn show_page(
    address: SocketAddr,
    folder: &Path,
    hosts: &Arc<Hosts>,
    language: Language,
    run: &Run,
) -> Result<()> {
    let identity = Arc::new(Identity::open(folder, "session", address.ip())?);
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    run.line(format_args!(
        "page https://{}, fingerprint {}, tokens in {}",
        listener.local_addr()?,
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
    Ok(())
}
