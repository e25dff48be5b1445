//! The first process of a path's container: it makes the hosts, relays between them, answers commands, and ends with
//! the command that runs on the first host, or when it is told to.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::file::{Table, replace_json};
use evlbi_net::path::container;
use evlbi_net::run::explain;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::file::{self, CellSpec};
use super::report::{HostState, State};
use super::{Direction, Hosts, Plan, Relay, SOCKET, Snapshot, control, string};

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
    is_over: AtomicBool,
}

/// Serves a path until its command ends, or a request ends it.
///
/// # Errors
/// If this is not the first process of a container, or the path cannot be made.
pub fn run(options: &RelayOptions) -> Result<Relayed> {
    if std::process::id() != 1 {
        bail!("this is for `evlbi path run` and `evlbi path up`, which start it in a container");
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
    bound.context("cannot give the hosts their names in /etc/hosts")?;
    let (hosts, taps) = Hosts::new(&plan)?;
    let relay = Relay::start(Arc::clone(&plan), taps, options.log.is_some())?;
    let served = Arc::new(Served {
        plan,
        specs: Mutex::new(specs),
        hosts,
        relay,
        begun: Clock::real().now(),
        socket: options.socket.clone(),
        is_over: AtomicBool::new(false),
    });
    // A socket that nobody listens at is taken for one that was left behind: this one gets its name once it is listened at.
    let unnamed = options
        .socket
        .with_extension(format!("{:08x}", rand::random::<u32>()));
    let listener = UnixListener::bind(&unnamed)
        .and_then(|listener| std::fs::hard_link(&unnamed, &options.socket).map(|()| listener));
    let _ = std::fs::remove_file(&unnamed);
    let listener =
        listener.with_context(|| format!("cannot listen at {}", options.socket.display()))?;
    let log = options.log.as_deref();
    let log = log.map(|path| start_log(&served, path)).transpose()?;
    let answering = Arc::clone(&served);
    let is_run = !options.command.is_empty();
    std::thread::spawn(move || answer_all(&answering, &listener, is_run));
    let status = if is_run {
        Some(run_command(&served, options, &is_unwanted)?)
    } else {
        let mut out = std::io::stdout();
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
        log.join()
            .map_err(|_| anyhow!("the log's thread panicked"))??;
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
    let (program, arguments) = command.context("there is no command")?;
    // A child begins in the namespace of the thread that starts it, and must not end with that thread.
    let child = served.hosts.namespace(0).run(|| {
        Command::new(program)
            .args(arguments)
            .env(SOCKET, &options.socket)
            .spawn()
    })?;
    let mut child = child.with_context(|| format!("cannot run {program}"))?;
    let clock = Clock::real();
    let mut next = clock.now();
    let mut keep = || {
        let now = clock.now();
        let Some(path) = options.json.as_ref().filter(|_| now >= next) else {
            return;
        };
        next = now.plus(KEEP_EVERY);
        // What fails here fails at the end, too.
        let _ = served
            .now()
            .and_then(|state| Ok(replace_json(path, &state)?));
    };
    let is_unwanted = || is_unwanted.load(Ordering::Relaxed);
    let status = super::wait(&mut child, is_unwanted, super::terminate, &mut keep)?;
    Ok(super::exit_code(status))
}

impl Served {
    fn overflown(&self) -> Result<Vec<u64>> {
        let hosts = 0..self.plan.hosts().count();
        hosts.map(|host| Ok(self.hosts.overflown(host)?)).collect()
    }

    fn now(&self) -> Result<State> {
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
    fn set(&self, request: &Value) -> Result<()> {
        let name = string(request, "cell")?;
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
            bail!("there is no cell {name}; there are {}", all.join(", "));
        }
        // All of them or none.
        let changed = meant.iter().map(|place| {
            let (direction, number, spec) = &specs[*place];
            let spec = spec.changed(&values)?;
            let law = spec.law()?.1;
            let before = &self.plan.cells(*direction)[*number].law;
            if law.disorders() && !before.disorders() {
                let name = &all[*place];
                bail!(
                    "{name}: packets may overtake only where the plan says so from the beginning"
                );
            }
            Ok((*place, spec, law))
        });
        for (place, spec, law) in changed.collect::<Result<Vec<_>>>()? {
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
                let error = json!({ "error": explain(error.as_ref()) });
                let _ = control::answer(&stream, &error, &[]);
            }
            // Who waits for the end hears it.
            while served.is_over.load(Ordering::Acquire) {
                std::thread::park();
            }
        });
    }
}

fn answer(served: &Served, stream: &UnixStream, request: &Value, is_run: bool) -> Result<()> {
    match string(request, "do")? {
        "show" => control::answer(stream, &serde_json::to_value(served.now()?)?, &[]),
        "set" => {
            served.set(request)?;
            control::answer(stream, &json!({}), &[])
        }
        "enter" => {
            let name = string(request, "host")?;
            let hosts = served.plan.hosts();
            let names: Vec<&str> = hosts
                .map(|node| served.plan.nodes[node].name.as_str())
                .collect();
            let host = names.iter().position(|other| *other == name);
            let host = host.with_context(|| {
                format!("there is no host {name}; there are {}", names.join(", "))
            })?;
            let namespaces = container::namespaces(served.hosts.namespace(host).file())?;
            control::answer(stream, &json!({ "socket": served.socket }), &namespaces)
        }
        "down" if is_run => bail!("this path ends with the command that runs on it"),
        "down" => {
            control::answer(stream, &serde_json::to_value(served.now()?)?, &[])?;
            served.is_over.store(true, Ordering::Release);
            Ok(())
        }
        other => bail!("a path knows no `{other}`"),
    }
}

/// Writes what happens to which packet, until the path is over.
fn start_log(served: &Arc<Served>, path: &Path) -> Result<std::thread::JoinHandle<Result<()>>> {
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
