//! Hosts on this machine, joined by a path that delays, limits and loses as a plan says: network namespaces with tap devices, and a
//! relay that does to their packets what an [`evlbi_core::path::Network`] says.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![allow(missing_docs)]

mod control;
mod file;
mod frame;
mod hosts;
mod plan;
pub mod process;
mod relay;
pub mod report;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evlbi_net::clock::Clock;
use evlbi_net::file::check_new;
use evlbi_net::path::container;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

pub use self::control::SOCKET;
pub use self::hosts::Hosts;
pub use self::plan::{CellPlan, Direction, Host, Link, Node, Plan, PlanError};
pub use self::relay::{CellPlace, CellSnapshot, HostSnapshot, Lateness, LogLine, Relay, Snapshot};
use self::report::State;

/// Path to make for a command.
#[derive(Clone, Debug, Default)]
pub struct PathRunOptions {
    /// Plan of the hosts and links.
    pub plan: PathBuf,
    /// File for the state of the path, as JSON.
    pub json: Option<PathBuf>,
    /// CSV file of what happens to which packet.
    pub log: Option<PathBuf>,
    /// Whether to overwrite files.
    pub force: bool,
    /// Command to run on the first host.
    pub command: Vec<String>,
}

/// How often it is looked whether a command has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The program again, as the first process of a container.
fn relay(plan: &Path, socket: &Path) -> Result<Command> {
    // What is wrong with the plan is said before anything is made.
    file::read(plan)?;
    container::contain()?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command
        .args(["path", "relay"])
        .arg(plan)
        .arg("--socket")
        .arg(socket);
    Ok(command)
}

/// Makes a path, runs a command on its first host, and takes the path down. Returns the exit status of the command, as a shell
/// does.
///
/// # Errors
/// If the plan is invalid, a file exists, or the path cannot be made.
pub fn run_command(options: &PathRunOptions) -> Result<i32> {
    let socket = control::new_socket(&options.plan, true)?;
    let mut relay = relay(&options.plan, &socket)?;
    for (option, file) in [("--json", &options.json), ("--log", &options.log)] {
        if let Some(file) = file {
            check_new([file.as_path()], options.force)?;
            relay.arg(option).arg(file);
        }
    }
    relay.arg("--").args(&options.command);
    container::leave_interrupts_to_others();
    let mut tie = container::end_with_us(&mut relay)?;
    container::notice_termination();
    let status = relay
        .spawn()
        .and_then(|mut relay| {
            let terminate = |_: &Child| {
                // It ends the command, and then itself.
                let _ = tie.write_all(&[0]);
            };
            wait(&mut relay, container::is_terminated, terminate, || ())
        })
        .context("cannot start the relay")?;
    // A relay that was killed could not.
    let _ = std::fs::remove_file(&socket);
    Ok(exit_code(status))
}

/// What a shell says of it.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Makes a path that stays. Returns its name; `None` if its relay has failed and said why.
///
/// # Errors
/// If the plan is invalid, or such a path is up.
pub fn up(plan: &Path) -> Result<Option<String>> {
    let socket = control::new_socket(plan, false)?;
    let mut relay = relay(plan, &socket)?;
    container::outlive_terminal(&mut relay);
    let mut relay = relay
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start the relay")?;
    let mut ready = String::new();
    if let Some(stdout) = relay.stdout.take() {
        BufReader::new(stdout).read_line(&mut ready)?;
    }
    if ready.trim() != "ready" {
        let _ = relay.wait();
        return Ok(None);
    }
    let name = socket.file_stem().unwrap_or_default().to_string_lossy();
    Ok(Some(name.into_owned()))
}

/// Takes a path down. Returns its last state.
///
/// # Errors
/// If there is no such path, or several and no name.
pub fn down(name: Option<&str>) -> Result<State> {
    State::read(&control::ask_to_end(name, &json!({ "do": "down" }))?)
}

/// Returns the state of a path as JSON.
///
/// # Errors
/// If there is no such path, or several and no name.
pub fn state(name: Option<&str>) -> Result<Value> {
    Ok(control::ask(name, &json!({ "do": "show" }))?.0)
}

/// Changes cells, each value given as KEY=VALUE.
///
/// # Errors
/// If there is no such path or cell, or a value is invalid.
pub fn set(name: Option<&str>, cell: &str, pairs: &[String]) -> Result<()> {
    let mut values = toml::Table::new();
    for pair in pairs {
        let (key, value) = pair
            .split_once('=')
            .with_context(|| format!("`{pair}` changes nothing; write KEY=VALUE, as loss=5%"))?;
        values.insert(key.to_owned(), value.into());
    }
    control::ask(
        name,
        &json!({ "do": "set", "cell": cell, "values": values }),
    )?;
    Ok(())
}

/// Runs a command on a host of a path. Returns its exit status, as a shell does.
///
/// # Errors
/// If there is no such path or host, or the command cannot be run.
pub fn exec(name: Option<&str>, host: &str, command: &[String]) -> Result<i32> {
    let (answer, namespaces) = control::ask(name, &json!({ "do": "enter", "host": host }))?;
    let here = std::env::current_dir().context("this folder is gone")?;
    let Some((program, arguments)) = command.split_first() else {
        bail!("there is no command");
    };
    container::enter(namespaces).with_context(|| format!("cannot enter {host}"))?;
    container::leave_interrupts_to_others();
    container::notice_termination();
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(here)
        .env(SOCKET, string(&answer, "socket")?)
        .spawn()
        .with_context(|| format!("cannot run {program} on {host}"))?;
    let status = wait(&mut child, container::is_terminated, terminate, || ())?;
    Ok(exit_code(status))
}

/// Waits for the end of a process. `terminate` is called once if it is to end before, and `look` all the time.
fn wait(
    child: &mut Child,
    is_unwanted: impl Fn() -> bool,
    terminate: impl FnOnce(&Child),
    mut look: impl FnMut(),
) -> std::io::Result<ExitStatus> {
    let mut terminate = Some(terminate);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if is_unwanted()
            && let Some(terminate) = terminate.take()
        {
            terminate(child);
        }
        look();
        Clock::real().sleep(LOOK);
    }
}

/// Sends a process SIGTERM. Its number is nobody else's before it is waited for.
fn terminate(child: &Child) {
    let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
}

/// The folder of the sockets of this user's paths.
fn room() -> Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let user = std::fs::metadata("/proc/self")?.uid();
    let make = |base: PathBuf| -> Result<PathBuf> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&base)
            .with_context(|| format!("cannot make {}", base.display()))?;
        let owner = std::fs::metadata(&base)?.uid();
        if owner != user {
            bail!("{} belongs to somebody else", base.display());
        }
        Ok(base)
    };
    if let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR") {
        return make(PathBuf::from(folder).join("evlbi"));
    }
    // Root of a user namespace may not write everywhere.
    let of_root = (user == 0).then(|| make(PathBuf::from("/run/evlbi")));
    match of_root {
        Some(Ok(base)) => Ok(base),
        _ => make(std::env::temp_dir().join(format!("evlbi-{user}"))),
    }
}

/// A text of a JSON value.
fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("the request has no {key}"))
}
