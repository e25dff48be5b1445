//! The first process of a path's container. A program started for this purpose calls [`run`]: it creates the hosts, relays between
//! them, answers requests, and ends with the command on the first host, or on request.

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::file::{OutputError, Table, TableError, replace_json};
use evlbi_net::netns::Unavailable;
use evlbi_net::path::container;
use evlbi_net::run::Run;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::control::{self, RequestError, SOCKET, string};
use super::file::{self, CellSpec, PlanFileError};
use super::hosts::Hosts;
use super::relay::{Relay, Snapshot};
use super::report::{HostState, State};
use super::{Direction, Plan};

/// Options of a path to serve in its own container.
#[derive(Clone, Debug, Default)]
pub struct RelayOptions {
    /// Plan of the hosts and links.
    pub plan: PathBuf,
    /// Socket for requests.
    pub socket: PathBuf,
    /// File for the state of the path, as JSON.
    pub json: Option<PathBuf>,
    /// CSV file for the log of packets.
    pub log: Option<PathBuf>,
    /// Command to run on the first host; the path ends with it. Empty for a path that stays.
    pub command: Vec<String>,
}

/// Reason why a path is not served, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// This is not the first process of a container.
    #[error("not the first process of a container")]
    NotContained,
    /// The plan is invalid.
    #[error("{0}")]
    Plan(#[from] PlanFileError),
    /// The hosts cannot be created.
    #[error("{0}")]
    Hosts(#[from] Unavailable),
    /// The hosts' names cannot be published.
    #[error("cannot write the hosts' names to /etc/hosts")]
    Names(#[source] io::Error),
    /// The socket for requests cannot be created.
    #[error("cannot listen at {}", socket.display())]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The command is missing.
    #[error("missing command")]
    NoCommand,
    /// The command cannot be run.
    #[error("cannot run {program}")]
    Command {
        /// Its program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The log cannot be written.
    #[error("{0}")]
    Log(#[from] TableError),
    /// The thread that writes the log panicked.
    #[error("the log's thread panicked")]
    LogEnded,
    /// The state cannot be written.
    #[error("{0}")]
    State(#[from] OutputError),
    /// Another error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

type Result<T, E = RelayError> = std::result::Result<T, E>;

/// Result of a path that has ended.
pub struct Relayed {
    /// Its last state.
    pub state: State,
    /// Exit status of the command, if there was one.
    pub status: Option<i32>,
    /// Error that ended the relay.
    pub error: Option<String>,
}

/// Interval at which the log is written.
const LOG_EVERY: Duration = Duration::from_millis(200);

/// Interval at which the state is written: a command may take days.
const KEEP_EVERY: Nanos = Nanos::SECOND;

/// A running path.
struct Served {
    plan: Arc<Plan>,
    /// Present values of the cells, as in a plan: by direction and number.
    specs: Mutex<Vec<(Direction, usize, CellSpec)>>,
    hosts: Hosts,
    relay: Relay,
    begun: Nanos,
    socket: PathBuf,
    run: Run,
    is_over: AtomicBool,
}

/// Serves a path until its command ends, or a request ends it. `run` explains the errors in answers to requests.
///
/// It takes over the process: it mounts the hosts' names over `/etc/hosts`, and ends with its parent. Without a command it writes
/// `ready` to standard output once the path is up, and then closes standard output and standard error.
///
/// # Errors
/// Returns an error if this is not the first process of a container, or the path cannot be created.
pub fn run(options: &RelayOptions, run: &Run) -> Result<Relayed> {
    if std::process::id() != 1 {
        return Err(RelayError::NotContained);
    }
    let is_unwanted = Arc::new(AtomicBool::new(false));
    if !options.command.is_empty() {
        let told = Arc::clone(&is_unwanted);
        container::end_with_parent(move || told.store(true, Ordering::Relaxed))?;
    }
    let (plan, specs) = file::read(&options.plan)?;
    let plan = Arc::new(plan);
    container::leave_interrupts_to_others();
    let beside = options.socket.with_extension("hosts");
    std::fs::write(&beside, Hosts::file(&plan))?;
    let bound = container::bind(&beside, "/etc/hosts");
    // The mount keeps the file.
    let _ = std::fs::remove_file(&beside);
    bound.map_err(RelayError::Names)?;
    let (hosts, taps) = Hosts::new(&plan)?;
    let relay = Relay::start(Arc::clone(&plan), taps, options.log.is_some())?;
    let served = Arc::new(Served {
        plan,
        specs: Mutex::new(specs),
        hosts,
        relay,
        begun: Clock::real().now(),
        socket: options.socket.clone(),
        run: run.clone(),
        is_over: AtomicBool::new(false),
    });
    // A socket without a listener looks like a leftover: so this one gets its name only once it is listening.
    let unnamed = options
        .socket
        .with_extension(format!("{:08x}", rand::random::<u32>()));
    let listener = UnixListener::bind(&unnamed)
        .and_then(|listener| std::fs::hard_link(&unnamed, &options.socket).map(|()| listener));
    let _ = std::fs::remove_file(&unnamed);
    let listener = listener.map_err(|source| RelayError::Listen {
        socket: options.socket.clone(),
        source,
    })?;
    let log = options.log.as_deref();
    let log = log.map(|path| start_log(&served, path)).transpose()?;
    let answering = Arc::clone(&served);
    let is_run = !options.command.is_empty();
    std::thread::spawn(move || answer_all(&answering, &listener, is_run));
    let status = if is_run {
        Some(run_command(&served, options, &is_unwanted)?)
    } else {
        let mut out = io::stdout();
        writeln!(out, "ready")?;
        out.flush()?;
        container::fall_silent()?;
        while !served.is_over.load(Ordering::Acquire) && served.relay.error().is_none() {
            Clock::real().sleep(Duration::from_millis(50));
        }
        None
    };
    served.is_over.store(true, Ordering::Release);
    // While the devices still exist.
    let overflown = served.overflown();
    let snapshot = served.relay.stop();
    if let Some(log) = log {
        log.join().map_err(|_| RelayError::LogEnded)??;
    }
    let state = State {
        finished: true,
        ..served.state(snapshot, &overflown?)
    };
    if let Some(path) = &options.json {
        replace_json(path, &state)?;
    }
    let _ = std::fs::remove_file(&options.socket);
    Ok(Relayed {
        state,
        status,
        error: served.relay.error().map(|error| error.to_string()),
    })
}

fn run_command(
    served: &Arc<Served>,
    options: &RelayOptions,
    is_unwanted: &AtomicBool,
) -> Result<i32> {
    let command = options.command.split_first();
    let (program, arguments) = command.ok_or(RelayError::NoCommand)?;
    // A child starts in the namespace of the thread that starts it, and must not end with that thread.
    let child = served.hosts.namespace(0).run(|| {
        Command::new(program)
            .args(arguments)
            .env(SOCKET, &options.socket)
            .spawn()
    })?;
    let mut child = child.map_err(|source| RelayError::Command {
        program: program.clone(),
        source,
    })?;
    let clock = Clock::real();
    let mut next = clock.now();
    let mut keep = || {
        let now = clock.now();
        let Some(path) = options.json.as_ref().filter(|_| now >= next) else {
            return;
        };
        next = now.plus(KEEP_EVERY);
        // A failure here is repeated at the end.
        let _ = served.now().map(|state| replace_json(path, &state));
    };
    let is_unwanted = || is_unwanted.load(Ordering::Relaxed);
    let status = super::wait(&mut child, is_unwanted, super::terminate, &mut keep)?;
    Ok(super::exit_code(status))
}

impl Served {
    fn overflown(&self) -> Result<Vec<u64>, Unavailable> {
        let hosts = 0..self.plan.hosts().count();
        hosts.map(|host| self.hosts.overflown(host)).collect()
    }

    fn now(&self) -> Result<State, Unavailable> {
        Ok(self.state(self.relay.snapshot(), &self.overflown()?))
    }

    fn state(&self, snapshot: Snapshot, overflown: &[u64]) -> State {
        let hosts = self.plan.hosts().enumerate().zip(snapshot.hosts);
        State {
            schema: "evlbi.path/1".into(),
            name: self.plan.name.clone(),
            seconds: Clock::real().now().since(self.begun).as_secs_f64(),
            hosts: hosts
                .map(|((host, node), counts)| {
                    let [v4, v6] = Hosts::addresses(host);
                    HostState {
                        name: self.plan.nodes[node].name.clone(),
                        v4,
                        v6,
                        counts,
                        overflown: overflown[host],
                    }
                })
                .collect(),
            cells: snapshot.cells,
            lateness: snapshot.lateness,
            finished: false,
        }
    }

    /// Changes the values of a cell.
    fn set(&self, request: &Value) -> Result<(), RequestError> {
        let name = string(request, "cell").map_err(RequestError::Refused)?;
        let values: toml::Table = serde_json::from_value(request["values"].clone())?;
        let mut specs = self.specs.lock();
        let all: Vec<String> = specs
            .iter()
            .map(|(direction, number, _)| {
                let cell = &self.plan.cells(*direction)[*number].name;
                format!("{}/{cell}", self.plan.show(*direction))
            })
            .collect();
        let is_meant =
            |place: &usize| all[*place] == name || all[*place].ends_with(&format!("/{name}"));
        let meant: Vec<usize> = (0..all.len()).filter(is_meant).collect();
        if meant.is_empty() {
            let all = all.join(", ");
            let why = format!("no cell {name}; available: {all}");
            return Err(RequestError::Refused(why));
        }
        // All of them or none.
        let changed = meant.iter().map(|place| {
            let (direction, number, spec) = &specs[*place];
            let spec = spec.changed(&values)?;
            let law = spec.law()?.1;
            let before = &self.plan.cells(*direction)[*number].law;
            if law.disorders() && !before.disorders() {
                let name = &all[*place];
                return Err(RequestError::Refused(format!(
                    "{name}: overtakes must be set in the plan from the start"
                )));
            }
            Ok((*place, spec, law))
        });
        for (place, spec, law) in changed.collect::<Result<Vec<_>, RequestError>>()? {
            let (direction, number, of) = &mut specs[place];
            self.relay.change(*direction, *number, &law);
            *of = spec;
        }
        Ok(())
    }
}

/// Answers requests until the path has ended.
fn answer_all(served: &Arc<Served>, listener: &UnixListener, is_run: bool) {
    for stream in listener.incoming().flatten() {
        let served = Arc::clone(served);
        // A slow client does not delay the others.
        std::thread::spawn(move || {
            let answered = control::request(&stream)
                .and_then(|request| answer(&served, &stream, &request, is_run));
            if let Err(error) = answered {
                let error = json!({ "error": served.run.explain(&error) });
                let _ = control::answer(&stream, &error, &[]);
            }
            // Clients that wait for the end are notified.
            while served.is_over.load(Ordering::Acquire) {
                std::thread::park();
            }
        });
    }
}

fn answer(
    served: &Served,
    stream: &UnixStream,
    request: &Value,
    is_run: bool,
) -> Result<(), RequestError> {
    match string(request, "do").map_err(RequestError::Refused)? {
        "show" => control::answer(stream, &serde_json::to_value(served.now()?)?, &[]),
        "set" => {
            served.set(request)?;
            control::answer(stream, &json!({}), &[])
        }
        "enter" => {
            let name = string(request, "host").map_err(RequestError::Refused)?;
            let hosts = served.plan.hosts();
            let names: Vec<&str> = hosts
                .map(|node| served.plan.nodes[node].name.as_str())
                .collect();
            let host = names.iter().position(|other| *other == name);
            let host = host.ok_or_else(|| {
                let names = names.join(", ");
                RequestError::Refused(format!("no host {name}; available: {names}"))
            })?;
            let namespaces = container::namespaces(served.hosts.namespace(host).file())?;
            control::answer(stream, &json!({ "socket": served.socket }), &namespaces)
        }
        "down" if is_run => Err(RequestError::Refused(
            "this path ends with the command that runs on it".into(),
        )),
        "down" => {
            control::answer(stream, &serde_json::to_value(served.now()?)?, &[])?;
            served.is_over.store(true, Ordering::Release);
            Ok(())
        }
        other => Err(RequestError::Refused(format!("unknown request `{other}`"))),
    }
}

/// Logs what happens to which packet, until the path has ended.
fn start_log(
    served: &Arc<Served>,
    path: &Path,
) -> Result<std::thread::JoinHandle<Result<(), TableError>>, TableError> {
    let columns = "seconds,link,direction,cell,packet,fate,identity";
    let mut table = Table::create(path, columns)?;
    let served = Arc::clone(served);
    Ok(std::thread::spawn(move || {
        loop {
            let is_last = served.is_over.load(Ordering::Acquire);
            if is_last {
                // The relay's threads have written their last entries.
                served.relay.wait();
            } else {
                served.relay.snapshot();
            }
            for line in served.relay.take_log() {
                let seconds = format!("{:.9}", line.logged.at.as_secs_f64());
                let place = line.place;
                table.row((
                    (seconds, place.link, place.direction, place.cell),
                    (line.logged.packet, line.logged.fate, line.logged.identity),
                ))?;
            }
            // A reader that follows the file sees whole lines.
            table.flush()?;
            if is_last {
                return Ok(());
            }
            Clock::real().sleep(LOG_EVERY);
        }
    }))
}
