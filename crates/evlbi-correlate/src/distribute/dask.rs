//! Runs parts by a Dask scheduler, with the Python package `evlbi_dask`, whose lines of JSON it reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use evlbi_net::run::Run;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use super::task::{TRY_AGAIN, Task};
use super::{DistributeError, Engine, PartEnd, PartState};
use crate::chunks::listed;
use crate::files::last_line_of;

/// Name of the Python package.
const PACKAGE: &str = "evlbi_dask";

/// Engine that runs parts by Dask.
pub struct Dask {
    task: Task,
    python: PathBuf,
    scheduler: String,
    tls: Option<Tls>,
    clients: Vec<Client>,
    states: BTreeMap<usize, PartState>,
    trouble: Option<String>,
}

/// Files for an encrypted connection to a scheduler that knows its clients.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Certificates of authorities.
    pub ca: PathBuf,
    /// Certificate of this client.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A client of the scheduler, which follows parts.
struct Client {
    /// Parts that have not ended.
    parts: BTreeSet<usize>,
    child: Child,
    lines: Receiver<String>,
    printed: File,
    has_ended: bool,
}

/// A line of a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line {
    Begun {},
    Workers { workers: usize },
    Part(PartLine),
    End {},
}

#[derive(Debug, Deserialize)]
struct PartLine {
    part: usize,
    state: StateName,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    status: Option<i32>,
    #[serde(default)]
    why: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StateName {
    Running,
    Done,
    Failed,
}

impl Dask {
    /// Creates an engine with a scheduler at this address, e.g. `tcp://127.0.0.1:8786`, and this Python.
    pub fn new(task: Task, python: PathBuf, scheduler: String, tls: Option<Tls>) -> Dask {
        Dask {
            task,
            python,
            scheduler,
            tls,
            clients: Vec::new(),
            states: BTreeMap::new(),
            trouble: None,
        }
    }

    fn failed(&self, why: String, may_succeed: bool) -> DistributeError {
        DistributeError::Engine {
            command: format!("{} -m {PACKAGE}", self.python.display()),
            why,
            may_succeed,
        }
    }

    /// Starts a client.
    fn start(&self, parts: &[usize], copy: u32) -> std::io::Result<Client> {
        let printed = tempfile::tempfile()?;
        let mut command = Command::new(&self.python);
        command.args(["-m", PACKAGE, "--scheduler", &self.scheduler]);
        let Task {
            program,
            plan,
            directory,
            arguments,
            retries,
        } = &self.task;
        command
            .arg("--program")
            .arg(program)
            .arg("--plan")
            .arg(plan);
        command.arg("--out").arg(directory);
        if let Some(Tls {
            ca,
            certificate,
            key,
        }) = &self.tls
        {
            command
                .arg("--tls-ca")
                .arg(ca)
                .arg("--tls-cert")
                .arg(certificate);
            command.arg("--tls-key").arg(key);
        }
        command.args([format!("--retries={retries}"), format!("--copy={copy}")]);
        command.args(
            arguments
                .iter()
                .map(|argument| format!("--extra={argument}")),
        );
        command.args(listed(parts).replace(" to ", "-").split(", "));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(printed.try_clone()?)
            .process_group(0)
            .spawn()?;
        let (to_us, lines) = channel();
        if let Some(out) = child.stdout.take() {
            thread::Builder::new()
                .name("dask".to_owned())
                .spawn(move || {
                    for line in BufReader::new(out).lines().map_while(Result::ok) {
                        if to_us.send(line).is_err() {
                            break;
                        }
                    }
                })?;
        }
        Ok(Client {
            parts: parts.iter().copied().collect(),
            child,
            lines,
            printed,
            has_ended: false,
        })
    }

    /// Takes a line of the client at this place.
    fn take(&mut self, place: usize, line: &str, run: &Run) {
        match serde_json::from_str(line) {
            Ok(Line::Begun {} | Line::End {}) => {}
            Ok(Line::Workers { workers }) => {
                self.trouble = (workers == 0).then(|| "Dask has no workers".to_owned());
            }
            Ok(Line::Part(line)) => {
                let host = line.host.unwrap_or_default();
                let (status, why) = match line.state {
                    StateName::Running => {
                        self.states.insert(line.part, PartState::Runs(host));
                        return;
                    }
                    StateName::Done => (Some(0), String::new()),
                    StateName::Failed => (line.status, line.why.unwrap_or_default()),
                };
                let end = PartEnd {
                    part: line.part,
                    host,
                    status,
                    why,
                };
                self.ended(place, end);
            }
            Err(_) => run.warn(format_args!("{PACKAGE} printed `{line}`")),
        }
    }

    /// Notes the end of a part with the client at this place: it failed only if no other copy runs.
    fn ended(&mut self, place: usize, end: PartEnd) {
        self.clients[place].parts.remove(&end.part);
        let has_copy = self
            .clients
            .iter()
            .any(|client| client.parts.contains(&end.part));
        if end.status == Some(0) || !has_copy {
            self.states.insert(end.part, PartState::Ended(end));
        }
    }
}

impl Engine for Dask {
    fn begin(&mut self, parts: &[usize], copy: u32, _run: &Run) -> Result<(), DistributeError> {
        let client = self.start(parts, copy);
        let client =
            client.map_err(|error| self.failed(format!("cannot be started: {error}"), false))?;
        self.clients.push(client);
        Ok(())
    }

    fn states(&mut self, run: &Run) -> Result<BTreeMap<usize, PartState>, DistributeError> {
        for place in 0..self.clients.len() {
            if self.clients[place].has_ended {
                continue;
            }
            let ended = loop {
                match self.clients[place].lines.try_recv() {
                    Ok(line) => self.take(place, &line, run),
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
            };
            if !ended {
                continue;
            }
            let client = &mut self.clients[place];
            client.has_ended = true;
            let (ended, printed) = (client.child.wait(), client.printed.try_clone());
            let code = ended.ok().and_then(|status| status.code());
            let parts: Vec<usize> = client.parts.iter().copied().collect();
            // Parts that failed are in its lines.
            if !matches!(code, Some(0 | 1)) || !parts.is_empty() {
                let said = printed.map(last_line_of).unwrap_or_default();
                let error = self.failed(format!("ended: {said}"), code == Some(TRY_AGAIN));
                // The first client follows the parts of the others, too.
                if place == 0 {
                    return Err(error);
                }
                run.warn(format_args!("{error}"));
                self.clients[place].parts.clear();
            }
        }
        Ok(self.states.clone())
    }

    fn end(&mut self, part: usize) {
        self.states.remove(&part);
        let copies = self
            .clients
            .iter_mut()
            .filter(|client| client.parts.contains(&part));
        let mut copies: Vec<&mut Client> = copies.collect();
        // A single one ends by itself.
        if copies.len() > 1 {
            for client in &mut copies {
                client.parts.remove(&part);
                if client.parts.is_empty() {
                    client.stop();
                }
            }
        }
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }

    fn stop(&mut self) {
        for client in &mut self.clients {
            client.stop();
        }
    }
}

impl Client {
    fn stop(&mut self) {
        if !self.has_ended {
            let _ = kill(
                Pid::from_raw(self.child.id().cast_signed()),
                Signal::SIGTERM,
            );
            let _ = self.child.wait();
            self.has_ended = true;
        }
    }
}
