//! The first process of a path's container, which a program that is started for that becomes by [`run`]: it makes the hosts, relays
//! between them, answers requests, and ends with the command that runs on the first host, or when it is told to.

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

/// Path to serve, in a container of its own.
#[derive(Clone, Debug, Default)]
pub struct RelayOptions {
    /// Plan of the hosts and links.
    pub plan: PathBuf,
    /// Socket for requests.
    pub socket: PathBuf,
    /// File for the state of the path, as JSON.
    pub json: Option<PathBuf>,
    /// CSV file of what happens to which packet.
    pub log: Option<PathBuf>,
    /// Command to run on the first host, with which the path ends; empty for a path that stays.
    pub command: Vec<String>,
}

/// Why a path is not served, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// This is not the first process of a container.
    #[error("this is for the first process of a container")]
    NotContained,
    /// The plan is none.
    #[error("{0}")]
    Plan(#[from] PlanFileError),
    /// The hosts cannot be made.
    #[error("{0}")]
    Hosts(#[from] Unavailable),
    /// The hosts' names cannot be made known.
    #[error("cannot give the hosts their names in /etc/hosts")]
    Names(#[source] io::Error),
    /// The socket for requests cannot be made.
    #[error("cannot listen at {}", socket.display())]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no command to run.
    #[error("there is no command")]
    NoCommand,
    /// The command cannot be run.
    #[error("cannot run {program}")]
    Command {
        /// Its program.
        program: String,
        /// What the system says.
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
    /// The system refuses something else.
    #[error("{0}")]
    System(#[from] io::Error),
}

type Result<T, E = RelayError> = std::result::Result<T, E>;

/// A path that is over.
pub struct Relayed {
    /// Its last state.
    pub state: State,
    /// Exit status of the command, where there was one.
    pub status: Option<i32>,
    /// Error that ended the relay.
    pub error: Option<String>,
}

/// How often the log is written.
const LOG_EVERY: Duration = Duration::from_millis(200);

/// How often what the path has done so far is written: a command may take days.
const KEEP_EVERY: Nanos = Nanos::SECOND;

/// A path that is up.
struct Served {
    plan: Arc<Plan>,
    /// What the cells say now, as they could be written: by direction and number.
    specs: Mutex<Vec<(Direction, usize, CellSpec)>>,
    hosts: Hosts,
    relay: Relay,
    begun: Nanos,
    socket: PathBuf,
    run: Run,
    is_over: AtomicBool,
}

/// Serves a path until its command ends, or a request ends it. `run` explains the errors that it answers requests with.
///
/// It takes over the process: it mounts the hosts' names over `/etc/hosts`, and ends with its parent. Without a command it writes `ready` to
/// standard output once the path is up, and then closes standard output and standard error.
///
/// # Errors
/// If this is not the first process of a container, or the path cannot be made.
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
    // The mount keeps it.
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
    // A socket that nobody listens at is taken for one that was left behind: this one gets its name once it is listened at.
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
    // As long as there are devices.
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
    // A child begins in the namespace of the thread that starts it, and must not end with that thread.
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
        // What fails here fails at the end, too.
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

    /// Gives a cell other values.
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
            let why = format!("there is no cell {name}; there are {all}");
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
                    "{name}: packets may overtake only where the plan says so from the beginning"
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

/// Answers commands until the path is over.
fn answer_all(served: &Arc<Served>, listener: &UnixListener, is_run: bool) {
    for stream in listener.incoming().flatten() {
        let served = Arc::clone(served);
        // Nobody waits for who is slow to ask.
        std::thread::spawn(move || {
            let answered = control::request(&stream)
                .and_then(|request| answer(&served, &stream, &request, is_run));
            if let Err(error) = answered {
                let error = json!({ "error": served.run.explain(&error) });
                let _ = control::answer(&stream, &error, &[]);
            }
            // Who waits for the end hears it.
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
                RequestError::Refused(format!("there is no host {name}; there are {names}"))
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
        other => Err(RequestError::Refused(format!("a path knows no `{other}`"))),
    }
}

/// Writes what happens to which packet, until the path is over.
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
                // The relay's threads have written their last.
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
            // Whoever follows the file sees whole lines.
            table.flush()?;
            if is_last {
                return Ok(());
            }
            Clock::real().sleep(LOG_EVERY);
        }
    }))
}
