//! `evlbi run`: a session by its timetable, or by a script.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::check::{self, Findings};
use super::hosts::Hosts;
use super::plan::Session;
use super::result::{RunResult, text};
use super::timetable::{LOOK, Timetable};
use crate::cli::RunArgs;
use crate::control::api::Api;
use crate::control::fleet::SessionState;
use crate::control::flow::FlowId;
use crate::control::history::History;
use crate::control::identity::{Identity, private_folder, write_private};
use crate::control::serve::IDLE;
use crate::output;
use crate::progress::interrupt;
use crate::units::now;

/// Runs a session, a script on its hosts, or looks at it only.
pub fn run(args: &RunArgs) -> Result<()> {
    let session = super::open(&args.session)?;
    let unknown = args
        .without
        .iter()
        .find(|name| !session.hosts.iter().any(|host| host.name == **name));
    if let Some(name) = unknown {
        bail!("--without {name}: the session has no such host");
    }
    let run = args
        .resume
        .as_ref()
        .map(FlowId::to_string)
        .unwrap_or_else(|| super::name_of_run(&session.name));
    let folder = super::folder(args.dir.as_ref())?;
    private_folder(&folder.join("runs"))?;
    let book = folder.join("runs").join(&run);
    let begin = match &args.resume {
        Some(_) => begin_of(&book)?,
        None => now() + 0.5,
    };
    let history = Arc::new(History::open(&folder.join("history.sqlite"))?);
    let trusted = super::trusted(&session, &folder, &args.trust)?;
    if let Some(script) = &args.script {
        return super::console::run_script(&session, &trusted, &run, script, history);
    }
    let interrupted = interrupt();
    super::with_hosts(
        &session,
        &args.without,
        &trusted,
        history,
        Some(&run),
        async |hosts| {
            let _serving = match args.bind {
                Some(address) => Some(show_page(address, &folder, &hosts).await?),
                None => None,
            };
            let mut timetable = Timetable::new(&session, &run, args, begin, Arc::clone(&hosts))?;
            hosts.look_around().await;
            let checked = check::check(&session, &run, &hosts).await;
            if args.resume.is_none() || args.check {
                refuse(&checked, args.check)?;
            }
            if args.check {
                return output::print(args.json, &checked, |checked| {
                    format!(
                        "{} hosts, {} flows: nothing stands against it",
                        checked.hosts.len(),
                        session.flows.len()
                    )
                });
            }
            say!("run {run}");
            if args.hold {
                timetable = hold(timetable, &session, &run, args, &interrupted).await?;
            }
            if args.resume.is_none() {
                write_private(&book, &timetable.begin.to_string())?;
            }
            let started = now();
            timetable.follow(&interrupted).await;
            let result = RunResult {
                schema: "evlbi.run/1",
                session: session.name.clone(),
                run: run.clone(),
                started,
                ended: now(),
                interrupted: interrupted.load(Ordering::Relaxed),
                checked,
                flows: timetable.results().await,
            };
            let printed = output::print(args.json, &result, text);
            if args.keep && !result.interrupted {
                say!("evlbi: the page stays until Ctrl-C");
                while !interrupted.load(Ordering::Relaxed) {
                    sleep(LOOK).await;
                }
            }
            match result.failed() {
                0 => printed,
                failed => bail!(
                    "{failed} of {} flows did not do what they were to do",
                    result.flows.len()
                ),
            }
        },
    )
}

/// When a run began whose controller was ended.
fn begin_of(book: &Path) -> Result<f64> {
    let name = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let folder = book.parent().unwrap_or(book);
    let text = std::fs::read_to_string(book).map_err(|_| {
        let runs = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut runs: Vec<String> = runs.filter_map(|run| name(&run.path())).collect();
        runs.sort();
        let last: Vec<String> = runs.iter().rev().take(5).cloned().collect();
        anyhow!(
            "--resume {}: no run of this name was begun by the controller in {}; the last ones are: {}",
            name(book).unwrap_or_default(),
            folder.display(),
            match last.is_empty() {
                true => "none".to_owned(),
                false => last.join(", "),
            }
        )
    })?;
    text.trim()
        .parse()
        .with_context(|| format!("{} is no time", book.display()))
}

/// Waits until somebody begins the session on its page: its times count from then on.
async fn hold(
    timetable: Timetable,
    session: &Session,
    run: &str,
    args: &RunArgs,
    interrupted: &AtomicBool,
) -> Result<Timetable> {
    let hosts = Arc::clone(timetable.hosts());
    say!("evlbi: nothing is started until the page is told to begin");
    loop {
        timetable.publish(SessionState::Held);
        while hosts.session_state() == Some(SessionState::Held) {
            if interrupted.load(Ordering::Relaxed) {
                bail!("the session was ended before it began");
            }
            sleep(LOOK).await;
        }
        match Timetable::new(session, run, args, now() + 0.5, Arc::clone(&hosts)) {
            Ok(timetable) => return Ok(timetable),
            Err(error) => {
                let error = output::explain(&error);
                say!("evlbi: {error}");
                hosts.history.tell("", None, &error);
            }
        }
    }
}

/// What stands against a session keeps it from starting.
fn refuse(checked: &Findings, is_all: bool) -> Result<()> {
    for found in &checked.problems {
        let flow = found
            .flow
            .as_ref()
            .map_or_else(String::new, |flow| format!(" {flow}"));
        say!("evlbi: {}{flow}: {}", found.host, found.problem);
    }
    match (checked.problems.len(), is_all) {
        (0, _) => Ok(()),
        (count, true) => bail!("{count} things stand against the session"),
        (count, false) => bail!(
            "{count} things stand against the session, so nothing was started; a host can be left out with --without NAME"
        ),
    }
}

/// Serves the page of the session.
async fn show_page(
    address: std::net::SocketAddr,
    folder: &Path,
    hosts: &Arc<Hosts>,
) -> Result<tokio::task::JoinHandle<()>> {
    let identity = Arc::new(Identity::open(folder, "session", address.ip())?);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    say!(
        "page https://{}, fingerprint {}, tokens in {}",
        listener.local_addr()?,
        identity.fingerprint(),
        identity.tokens.display()
    );
    let api = Api {
        fleet: Arc::new(Arc::clone(hosts)),
        identity,
        history: Arc::clone(&hosts.history),
    };
    Ok(tokio::spawn(api.serve(listener, IDLE)?))
}
