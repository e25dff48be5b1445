//! `evlbi agent`: runs the flows of this host, whoever is connected.
//!
//! Each flow is a process of its own, with a folder of its own below the agent's: what it is, the socket by which it is
//! asked and told, its result and what it had to say. So a flow goes on when the agent ends or is killed, an agent
//! that is started again finds its flows, and nothing that an agent does can hold up data.

mod config;
mod flows;
mod guard;
mod process;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::net::TcpListener;

use self::config::Config;
use self::flows::Agent;
use crate::cli::AgentArgs;
use crate::control::Fleet;
use crate::control::api::Api;
use crate::control::history::History;
use crate::control::identity::{Identity, private_folder, write_private};
use crate::output;

/// What an agent says when it is there.
#[derive(Serialize)]
struct Ready {
    schema: &'static str,
    host: String,
    /// Of the page and the interface.
    url: String,
    /// SHA-256 of the certificate.
    fingerprint: String,
    /// The folder with the files `operate` and `watch`.
    tokens: PathBuf,
    config: PathBuf,
    recordings: PathBuf,
    /// Flows that ran already.
    running: usize,
}

/// Runs until Ctrl-C; flows go on.
pub fn run(args: &AgentArgs) -> Result<()> {
    let folder = match &args.dir {
        Some(folder) => folder.clone(),
        None => usual_folder()?,
    };
    private_folder(&folder)?;
    let folder = folder.canonicalize()?;
    let _lock = lock(&folder)?;
    let settings = args
        .config
        .clone()
        .unwrap_or_else(|| folder.join("agent.toml"));
    let settings = std::path::absolute(settings)?;
    let mut config = Config::open(&settings)?;
    config.bind = args.bind.unwrap_or(config.bind);
    std::fs::create_dir_all(&config.recordings)
        .with_context(|| format!("the folder for recordings, {}", config.recordings.display()))?;
    // Names of sockets must be short: those of flows are relative to here.
    std::env::set_current_dir(&folder)?;
    let identity = Arc::new(Identity::open(&folder, &config.name, config.bind.ip())?);
    let history = Arc::new(History::open(&folder.join("history.sqlite"))?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let done = runtime.block_on(serve_until_told(args, settings, config, identity, history));
    // Whatever still waits for a disk is not waited for.
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

async fn serve_until_told(
    args: &AgentArgs,
    settings: PathBuf,
    config: Config,
    identity: Arc<Identity>,
    history: Arc<History>,
) -> Result<()> {
    let listener = TcpListener::bind(config.bind)
        .await
        .with_context(|| format!("cannot listen on {}", config.bind))?;
    let agent = Agent::open(config, Arc::clone(&history))?;
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
    // Whoever knows the address may end the agent.
    let told_to_end = told_to_end()?;
    let address = format!("{}\n", ready.url);
    let is_written = std::fs::read_to_string("address").is_ok_and(|known| known == address);
    if !is_written && let Err(error) = write_private(Path::new("address"), &address) {
        // A full disk keeps no agent from its flows.
        tracing::warn!("{}", output::explain(&error));
    }
    // The file `address` says it too.
    if let Err(error) = output::print(args.json, &ready, text) {
        say!("evlbi: {}", output::explain(&error));
    }
    history.tell(
        &agent.config.name,
        None,
        &format!("the agent begins, {} flows run", ready.running),
    );
    let fleet: Arc<dyn Fleet> = Arc::new(Arc::clone(&agent));
    let api = Api {
        fleet,
        identity,
        history: Arc::clone(&history),
    };
    tokio::select! {
        () = api.serve(listener, agent.config.idle)? => {}
        () = told_to_end => {}
    }
    history.tell(&agent.config.name, None, "the agent ends");
    let running = agent.running();
    if running > 0 {
        say!("evlbi: {running} flows go on; start the agent again to reach them");
    }
    Ok(())
}

/// Ctrl-C or SIGTERM, of which none is missed from now on.
fn told_to_end() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// One agent a folder.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let mut options = File::options();
    // What stands there is the other agent's, if there is one.
    options.write(true).create(true).truncate(false);
    let mut file = options
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {
            let written = file
                .set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            // A full disk keeps no agent from its flows.
            if let Err(error) = written {
                tracing::warn!("cannot write the process into {}: {error}", path.display());
            }
            Ok(file)
        }
        Err(_) => bail!(
            "another agent uses {}; give this one a --dir of its own",
            folder.display()
        ),
    }
}

/// Where agents keep their things when nothing else is said.
pub fn usual_folder() -> Result<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let state = state.filter(|path| path.is_absolute()).or(home);
    Ok(state
        .context("where should the agent keep its things? Give a --dir")?
        .join("evlbi"))
}

/// Bytes that are free where `folder` is.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let found = nix::sys::statvfs::statvfs(folder)
        .with_context(|| format!("cannot see what is free in {}", folder.display()))?;
    Ok(found.blocks_available() * found.fragment_size())
}

fn text(ready: &Ready) -> String {
    output::lines(&[
        ("agent of", ready.host.clone()),
        ("address", ready.url.clone()),
        ("fingerprint", ready.fingerprint.clone()),
        (
            "tokens",
            format!("{} (operate, watch)", ready.tokens.display()),
        ),
        ("allows", format!("what {} says", ready.config.display())),
        ("recordings", ready.recordings.display().to_string()),
    ])
}
