//! Runs parts on this host, a few at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use evlbi_core::time::Nanos;
use evlbi_net::host;
use evlbi_net::run::Run;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::task::{TRY_AGAIN, Task};
use super::{DistributeError, Engine, PartEnd, PartState};
use crate::files::last_line_of;

/// Time before a part is tried again; the next times it is longer by that.
const WAIT: Nanos = Nanos(2_000_000_000);

/// Engine that runs parts on this host.
pub struct Local {
    task: Task,
    jobs: usize,
    copies: usize,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    ended: BTreeMap<usize, PartEnd>,
    done: BTreeSet<usize>,
}

/// A part that waits.
struct Waiting {
    part: usize,
    tries: u32,
    since: Nanos,
}

/// A part that runs.
struct Running {
    part: usize,
    tries: u32,
    child: Child,
    printed: File,
    is_stopped: bool,
}

impl Running {
    /// Asks it once to end, even if it was paused: a second signal would end it at once.
    fn stop(&mut self) {
        if self.is_stopped {
            return;
        }
        self.is_stopped = true;
        let process = Pid::from_raw(self.child.id().cast_signed());
        for signal in [Signal::SIGTERM, Signal::SIGCONT] {
            let _ = kill(process, signal);
        }
    }
}

impl Local {
    /// Creates an engine that runs `jobs` parts at once.
    pub fn new(task: Task, jobs: usize) -> Local {
        Local {
            task,
            jobs,
            copies: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            ended: BTreeMap::new(),
            done: BTreeSet::new(),
        }
    }

    fn start(&mut self, Waiting { part, tries, .. }: Waiting) -> std::io::Result<()> {
        let printed = tempfile::tempfile()?;
        let number = part.to_string();
        let child = Command::new(&self.task.program)
            .args(self.task.arguments_for(OsStr::new(&number)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(printed.try_clone()?)
            // Ctrl-C ends this program, which then ends them.
            .process_group(0)
            .spawn()?;
        self.running.push(Running {
            part,
            tries,
            child,
            printed,
            is_stopped: false,
        });
        Ok(())
    }
}

impl Engine for Local {
    fn begin(&mut self, parts: &[usize], copy: u32, run: &Run) -> Result<(), DistributeError> {
        self.copies += if copy > 1 { parts.len() } else { 0 };
        let since = run.clock().now();
        self.waiting.extend(parts.iter().map(|part| Waiting {
            part: *part,
            tries: 0,
            since,
        }));
        Ok(())
    }

    fn states(&mut self, run: &Run) -> Result<BTreeMap<usize, PartState>, DistributeError> {
        let failed = |why: String| DistributeError::Engine {
            command: self.task.program.display().to_string(),
            why,
            may_succeed: false,
        };
        let now = run.clock().now();
        let mut place = 0;
        while place < self.running.len() {
            let ended = self.running[place].child.try_wait();
            let Some(status) =
                ended.map_err(|error| failed(format!("cannot be followed: {error}")))?
            else {
                place += 1;
                continue;
            };
            let Running {
                part,
                tries,
                printed,
                ..
            } = self.running.swap_remove(place);
            let why = match (last_line_of(printed), status.signal()) {
                (line, Some(_)) if line.is_empty() => status.to_string(),
                (line, _) => line,
            };
            // What was killed may have had too little memory.
            let again = status.code().is_none_or(|code| code == TRY_AGAIN);
            if self.done.contains(&part) {
                continue;
            }
            if again && tries < self.task.retries {
                run.warn(format_args!("part {part} is tried again: {why}"));
                self.waiting.push_back(Waiting {
                    part,
                    tries: tries + 1,
                    since: Nanos(now.0 + WAIT.0 * u64::from(tries + 1)),
                });
                continue;
            }
            let end = PartEnd {
                part,
                host: host::name(),
                status: status.code(),
                why,
            };
            self.ended.insert(part, end);
        }
        // A copy of a part that is stuck takes no turn.
        while self.running.len() < self.jobs + self.copies {
            let due = self.waiting.iter().position(|it| it.since <= now);
            let Some(next) = due.and_then(|place| self.waiting.remove(place)) else {
                break;
            };
            let started = self.start(next);
            started.map_err(|error| DistributeError::Engine {
                command: self.task.program.display().to_string(),
                why: format!("cannot be started: {error}"),
                may_succeed: false,
            })?;
        }
        let running = self.running.iter();
        let running = running.map(|it| (it.part, PartState::Runs(host::name())));
        let ended = self.ended.iter();
        let ended = ended.map(|(part, end)| (*part, PartState::Ended(end.clone())));
        // Of two copies, the one that runs counts.
        Ok(ended.chain(running).collect())
    }

    fn end(&mut self, part: usize) {
        self.waiting.retain(|waiting| waiting.part != part);
        self.done.insert(part);
        let copies = self.running.iter_mut().filter(|it| it.part == part);
        let copies: Vec<&mut Running> = copies.collect();
        // A single one ends by itself.
        if copies.len() > 1 {
            copies.into_iter().for_each(Running::stop);
        }
    }

    fn stop(&mut self) {
        self.running.iter_mut().for_each(Running::stop);
        for mut running in self.running.drain(..) {
            let _ = running.child.wait();
        }
    }
}
