//! Creates hosts on this machine, joined by a path that delays, limits and loses packets according to a plan.
//!
//! The hosts are network namespaces with a tap device each. A relay treats their packets like an [`evlbi_core::path::Network`]. This
//! crate contains plan files, the hosts, the relay, and the requests to a running path. The effects of cells on packets are in
//! [`evlbi_core::path`], which needs no host.
//!
//! [`run_command`] creates a path for a command, and [`up`] one that stays. The relay is a process of its own: the caller passes a
//! function that starts this program as the relay (see [`process`]). A plan can be examined without privileges:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("evlbi-path-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let file = folder.join("near-far.toml");
//! let text = r#"
//!     [[host]]
//!     name = "near"
//!     [[host]]
//!     name = "far"
//!     [[link]]
//!     between = ["near", "far"]
//!     rtt = "15ms"
//!     forward = [{ loss = "1%" }]
//! "#;
//! std::fs::write(&file, text)?;
//!
//! let plan = evlbi_path::read_plan(&file)?;
//! assert_eq!(plan.name, "near-far");
//! let cells = |direction| plan.cells(direction).iter().map(|cell| cell.name.as_str());
//! let [there, back] = [0, 1].map(|at| plan.directions().nth(at).unwrap());
//! assert_eq!(plan.show(there), "near>far");
//! assert_eq!(cells(there).collect::<Vec<_>>(), ["delay", "loss"]);
//! assert_eq!(cells(back).collect::<Vec<_>>(), ["delay"]);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod control;
mod file;
mod frame;
mod hosts;
mod plan;
pub mod process;
mod relay;
pub mod report;

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use evlbi_net::clock::Clock;
use evlbi_net::file::{OutputError, check_new};
use evlbi_net::netns::Unavailable;
use evlbi_net::path::container;
use evlbi_wire::units::{self, UnitMissing};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

pub use self::control::ControlError;
pub use self::file::{PlanFileError, SpecError};
pub use self::plan::{CellPlan, Direction, Host, Link, Node, Plan, PlanError};
pub use self::relay::{CellPlace, CellSnapshot, HostSnapshot, Lateness};

use self::control::{SOCKET, string};
use self::file::TIMES;
use self::process::RelayOptions;
use self::report::{State, VersionError};

/// Reason why a path cannot be created, asked or changed, or a command cannot run on it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The plan is invalid.
    #[error("{0}")]
    Plan(#[from] PlanFileError),
    /// The path cannot be asked, or refuses.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// This process may not create containers.
    #[error("{0}")]
    Container(#[from] Unavailable),
    /// An output file exists.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The relay cannot be started.
    #[error("cannot start the relay")]
    Start(#[source] io::Error),
    /// The path's state has an unknown form.
    #[error("{0}")]
    Version(#[from] VersionError),
    /// A change of a cell is not a key and a value.
    #[error("invalid change `{0}`: give KEY=VALUE, e.g. loss=5%")]
    NoPair(String),
    /// A time of a cell has no unit.
    #[error("{0}")]
    Unit(#[from] UnitMissing),
    /// The command is missing.
    #[error("missing command")]
    NoCommand,
    /// The current directory no longer exists.
    #[error("the current directory no longer exists")]
    NoFolder(#[source] io::Error),
    /// A host cannot be entered.
    #[error("cannot enter {host}")]
    Enter {
        /// Name of the host.
        host: String,
        /// The system's error.
        source: io::Error,
    },
    /// A command cannot be run on a host.
    #[error("cannot run {program} on {host}")]
    Command {
        /// Program of the command.
        program: String,
        /// Name of the host.
        host: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

type Result<T, E = PathError> = std::result::Result<T, E>;

/// Reads a plan. It is named after the file.
///
/// # Errors
/// Returns an error if the file cannot be read, or its content is invalid.
pub fn read_plan(path: &Path) -> Result<Plan, PlanFileError> {
    file::read(path).map(|(plan, _)| plan)
}

/// Options of a path for a command.
#[derive(Clone, Debug, Default)]
pub struct PathRunOptions {
    /// Plan of the hosts and links.
    pub plan: PathBuf,
    /// File for the state of the path, as JSON.
    pub json: Option<PathBuf>,
    /// CSV file for the log of packets.
    pub log: Option<PathBuf>,
    /// Whether to overwrite files.
    pub force: bool,
    /// Command to run on the first host.
    pub command: Vec<String>,
}

/// Interval at which a process is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Makes the next child process the first one of a container.
fn contain(plan: &Path) -> Result<()> {
    // Errors of the plan are reported before anything is created.
    file::read(plan)?;
    Ok(container::contain()?)
}

/// Creates a path, runs a command on its first host, and removes the path. Returns the exit status of the command, like a shell.
/// `relay` starts this program so that it calls [`process::run`] with these options.
///
/// # Errors
/// Returns an error if the plan is invalid, a file exists, or the path cannot be created.
pub fn run_command(
    options: &PathRunOptions,
    relay: impl FnOnce(&RelayOptions) -> Command,
) -> Result<i32> {
    let socket = control::new_socket(&options.plan, true)?;
    contain(&options.plan)?;
    let files = [&options.json, &options.log].into_iter().flatten();
    for file in files {
        check_new([file.as_path()], options.force)?;
    }
    let mut relay = relay(&RelayOptions {
        plan: options.plan.clone(),
        socket: socket.clone(),
        json: options.json.clone(),
        log: options.log.clone(),
        command: options.command.clone(),
    });
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
        .map_err(PathError::Start)?;
    // A killed relay has not removed it.
    let _ = std::fs::remove_file(&socket);
    Ok(exit_code(status))
}

/// Returns a shell's exit code for a status.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Creates a path that stays. Returns its name; `None` if its relay has failed and printed the reason. `relay` starts this program so
/// that it calls [`process::run`] with these options.
///
/// # Errors
/// Returns an error if the plan is invalid, or this path is running.
pub fn up(plan: &Path, relay: impl FnOnce(&RelayOptions) -> Command) -> Result<Option<String>> {
    let socket = control::new_socket(plan, false)?;
    contain(plan)?;
    let mut relay = relay(&RelayOptions {
        plan: plan.to_owned(),
        socket: socket.clone(),
        ..RelayOptions::default()
    });
    container::outlive_terminal(&mut relay);
    let mut relay = relay
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(PathError::Start)?;
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

/// Removes a path. Returns its last state.
///
/// # Errors
/// Returns an error if there is no such path, or several and no name.
pub fn down(name: Option<&str>) -> Result<State> {
    let answer = control::ask_to_end(name, &json!({ "do": "down" }))?;
    Ok(State::read(&answer)?)
}

/// Returns the state of a path.
///
/// # Errors
/// Returns an error if there is no such path, or several and no name.
pub fn state(name: Option<&str>) -> Result<State> {
    let (answer, _) = control::ask(name, &json!({ "do": "show" }))?;
    Ok(State::read(&answer)?)
}

/// Changes cells, each value given as KEY=VALUE.
///
/// # Errors
/// Returns an error if there is no such path or cell, or a value is invalid.
pub fn set(name: Option<&str>, cell: &str, pairs: &[String]) -> Result<()> {
    let mut values = toml::Table::new();
    for pair in pairs {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| PathError::NoPair(pair.clone()))?;
        if TIMES.contains(&key) {
            for time in value.split(',') {
                units::with_unit(time, "duration", ["ms", "s"])?;
            }
        }
        values.insert(key.to_owned(), value.into());
    }
    control::ask(
        name,
        &json!({ "do": "set", "cell": cell, "values": values }),
    )?;
    Ok(())
}

/// Runs a command on a host of a path. Returns its exit status, like a shell.
///
/// # Errors
/// Returns an error if there is no such path or host, or the command cannot be run.
pub fn exec(name: Option<&str>, host: &str, command: &[String]) -> Result<i32> {
    let (answer, namespaces) = control::ask(name, &json!({ "do": "enter", "host": host }))?;
    let here = std::env::current_dir().map_err(PathError::NoFolder)?;
    let (program, arguments) = command.split_first().ok_or(PathError::NoCommand)?;
    container::enter(namespaces).map_err(|source| PathError::Enter {
        host: host.to_owned(),
        source,
    })?;
    let socket = string(&answer, "socket").map_err(ControlError::Refused)?;
    container::leave_interrupts_to_others();
    container::notice_termination();
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(here)
        .env(SOCKET, socket)
        .spawn()
        .map_err(|source| PathError::Command {
            program: program.clone(),
            host: host.to_owned(),
            source,
        })?;
    let status = wait(&mut child, container::is_terminated, terminate, || ())?;
    Ok(exit_code(status))
}

/// Waits for the end of a process. Calls `terminate` once if it must end early, and `look` at each poll.
fn wait(
    child: &mut Child,
    is_unwanted: impl Fn() -> bool,
    terminate: impl FnOnce(&Child),
    mut look: impl FnMut(),
) -> io::Result<ExitStatus> {
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
        Clock::real().sleep(POLL_INTERVAL);
    }
}

/// Sends SIGTERM to a process. Its number is not reused before [`wait`] has returned.
fn terminate(child: &Child) {
    let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
}
