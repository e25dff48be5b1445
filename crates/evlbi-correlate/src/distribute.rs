//! Distributes the parts of a plan: an engine runs them on this host or on many, and what counts as done are their completion marks.
//!
//! Engines start the same command as a person would, for each part. They try again what may succeed, and outlive this program: a
//! second run follows what still runs, and does not repeat what is there.

mod dask;
mod local;
mod slurm;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::run::Run;
use serde::Serialize;

use super::chunks::{ChunkError, ChunkPlan, PartDone, put_plan, read_marks};

pub use self::dask::{Dask, Tls};
pub use self::local::Local;
pub use self::slurm::Slurm;
pub use self::task::Task;

/// Name and version of the format of progress.
const SCHEMA: &str = "evlbi.distribute/1";
/// Interval between looks at the engine, and at the directory if no part has begun or ended: many hosts may share that.
const INTERVAL: Duration = Duration::from_millis(20);
const AT_REST: Nanos = Nanos(500_000_000);
/// Time in which the mark of a part that ended well appears on all hosts: file systems of clusters are slow to show files of others.
const APPEARS: Nanos = Nanos(60_000_000_000);
/// A part that runs for this many times as long as half of the others, and this much longer, gets a copy on another host.
const STRAGGLES: u32 = 3;
const AT_LEAST: Nanos = Nanos(30_000_000_000);

/// Engine that runs parts.
pub trait Engine {
    /// Starts to run parts, or to follow those that it runs since before. `copy` is 1, or 2 for a second copy.
    ///
    /// # Errors
    /// Returns an error if it cannot be asked.
    fn begin(&mut self, parts: &[usize], copy: u32, run: &Run) -> Result<(), DistributeError>;

    /// Returns the states of the parts that it was given, as far as they are known; those that are absent wait.
    ///
    /// # Errors
    /// Returns an error if the engine has ended.
    fn states(&mut self, run: &Run) -> Result<BTreeMap<usize, PartState>, DistributeError>;

    /// Ends what still runs of a part that is done.
    fn end(&mut self, part: usize);

    /// Returns why parts wait or are not followed, if it says so.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Ends what ends with this program.
    fn stop(&mut self);
}

/// State of a part with an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum PartState {
    /// It runs on a host.
    Runs(String),
    /// It ended.
    Ended(PartEnd),
}

/// End of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartEnd {
    /// Number of the part.
    pub part: usize,
    /// Host that correlated it; empty if it is not known.
    pub host: String,
    /// Exit status; `None` if it had none.
    pub status: Option<i32>,
    /// Last line that its program printed, or the reason that the engine gives.
    pub why: String,
}

/// Progress of a distributed correlation.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Distribution {
    schema: &'static str,
    /// SHA-256 of the plan.
    pub plan_id: String,
    /// Number of parts.
    pub parts: usize,
    /// Complete parts.
    pub done: usize,
    /// Those of them that were there before.
    pub were_there: usize,
    /// Parts that run.
    pub running: usize,
    /// Parts that failed, and are not tried again.
    pub failed: Vec<PartEnd>,
    /// Parts of which a second copy was started.
    pub copied: Vec<usize>,
    /// Hosts, and their parts.
    pub hosts: BTreeMap<String, HostParts>,
    /// Time since the start, in seconds.
    pub elapsed_s: f64,
    /// Seconds of data that are correlated per second; `None` before the first part is done.
    pub rate: Option<f64>,
    /// Time until all parts are done at this rate, in seconds.
    pub left_s: Option<f64>,
    /// Why parts wait, or cannot be followed.
    pub trouble: Option<String>,
    /// Whether the run was stopped before the end.
    pub interrupted: bool,
}

/// Parts of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostParts {
    /// Complete parts.
    pub done: usize,
    /// Parts that run.
    pub running: usize,
}

/// Reasons why parts cannot be distributed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DistributeError {
    /// The plan or the directory of the parts cannot be used.
    #[error("{0}")]
    Chunks(#[from] ChunkError),
    /// A program of the engine failed.
    #[error("`{command}` {why}")]
    Engine {
        /// The command.
        command: String,
        /// How it ended.
        why: String,
        /// Whether the same may succeed later.
        may_succeed: bool,
    },
}

impl DistributeError {
    /// Returns whether the same may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            DistributeError::Chunks(error) => error.is_temporary(),
            DistributeError::Engine { may_succeed, .. } => *may_succeed,
        }
    }
}

/// Runs all parts of a plan that a directory lacks; `show` gets the progress once a second and at the end.
///
/// # Errors
/// Returns an error if the plan or the directory cannot be used, or the engine cannot be asked. Parts that fail are in the result.
pub fn distribute(
    plan: &ChunkPlan,
    directory: &Path,
    engine: &mut dyn Engine,
    run: &Run,
    show: &mut dyn FnMut(&Distribution),
) -> Result<Distribution, DistributeError> {
    put_plan(plan, directory)?;
    let mut followed = Followed::new(plan, directory, run);
    followed.look()?;
    followed.state.were_there = followed.done.len();
    let missing: Vec<usize> = followed.missing().collect();
    if missing.is_empty() {
        followed.count(&[], None);
        show(&followed.state);
        return Ok(followed.state);
    }
    engine.begin(&missing, 1, run)?;
    let mut progress = run.progress(Some(plan.parts.len() as u64));
    let ended = loop {
        match followed.step(engine) {
            Ok(false) if !run.is_stopped() => {}
            ended => break ended,
        }
        if progress.is_due() {
            show(&followed.state);
            progress.show(followed.done.len() as u64, &followed.state.text());
        }
        run.clock().sleep(INTERVAL);
    };
    drop(progress);
    engine.stop();
    // An engine that is stopped, too, may fail.
    followed.state.interrupted = run.is_stopped() || !ended?;
    show(&followed.state);
    Ok(followed.state)
}

/// Parts that are followed.
struct Followed<'a> {
    plan: &'a ChunkPlan,
    directory: &'a Path,
    run: &'a Run,
    begun: Nanos,
    /// Marks that were read.
    known: BTreeSet<PathBuf>,
    /// When the directory was last read, and the states of the parts then.
    looked: Nanos,
    states: BTreeMap<usize, PartState>,
    done: BTreeMap<usize, PartDone>,
    /// When parts were first seen to run, or to have ended.
    runs_since: BTreeMap<usize, Nanos>,
    ended_since: BTreeMap<usize, Nanos>,
    state: Distribution,
}

impl<'a> Followed<'a> {
    fn new(plan: &'a ChunkPlan, directory: &'a Path, run: &'a Run) -> Followed<'a> {
        Followed {
            plan,
            directory,
            run,
            begun: run.clock().now(),
            known: BTreeSet::new(),
            looked: Nanos::default(),
            states: BTreeMap::new(),
            done: BTreeMap::new(),
            runs_since: BTreeMap::new(),
            ended_since: BTreeMap::new(),
            state: Distribution {
                schema: SCHEMA,
                plan_id: plan.plan_id.clone(),
                parts: plan.parts.len(),
                ..Distribution::default()
            },
        }
    }

    /// Reads new completion marks; returns the parts that they complete.
    fn look(&mut self) -> Result<Vec<usize>, ChunkError> {
        let mut new = Vec::new();
        for done in read_marks(self.directory, self.plan, &self.known)? {
            // A damaged part is correlated again, and then has the same mark.
            if !done.has_sums(self.directory) {
                continue;
            }
            self.known.insert(done.mark_in(self.directory));
            if done.simd == self.plan.simd && !self.done.contains_key(&done.part) {
                self.state.failed.retain(|it| it.part != done.part);
                new.push(done.part);
                self.done.insert(done.part, done);
            }
        }
        Ok(new)
    }

    /// Returns the parts that are neither complete nor have failed.
    fn missing(&self) -> impl Iterator<Item = usize> {
        let failed = |part: &usize| self.state.failed.iter().any(|it| it.part == *part);
        (1..=self.state.parts).filter(move |part| !self.done.contains_key(part) && !failed(part))
    }

    /// Looks at all parts; returns whether none is missing any more.
    fn step(&mut self, engine: &mut dyn Engine) -> Result<bool, DistributeError> {
        // States first: the mark of a part that has ended is there then.
        let states = engine.states(self.run)?;
        let now = self.run.clock().now();
        if states == self.states && now.since(self.looked) < AT_REST {
            return Ok(false);
        }
        self.looked = now;
        self.states.clone_from(&states);
        for part in self.look()? {
            engine.end(part);
        }
        let mut running = Vec::new();
        for (part, state) in &states {
            if self.done.contains_key(part) {
                continue;
            }
            match state {
                PartState::Runs(host) => {
                    self.runs_since.entry(*part).or_insert(now);
                    self.ended_since.remove(part);
                    running.push((*part, host.clone()));
                }
                PartState::Ended(end) => {
                    let since = *self.ended_since.entry(*part).or_insert(now);
                    let may_appear = end.status == Some(0) && now.since(since) < APPEARS;
                    if !may_appear && self.state.failed.iter().all(|it| it.part != *part) {
                        self.run.warn(format_args!("{}", end.text()));
                        self.state.failed.push(end.clone());
                    }
                }
            }
        }
        // A part that is tried again begins again.
        self.runs_since
            .retain(|part, _| running.iter().any(|(it, _)| it == part));
        self.count(&running, engine.trouble());
        let missing: Vec<usize> = self.missing().collect();
        if missing.iter().all(|part| states.contains_key(part)) {
            self.copy(&running, engine);
        }
        Ok(missing.is_empty())
    }

    /// Starts a second copy of parts that run far longer than the others.
    fn copy(&mut self, running: &[(usize, String)], engine: &mut dyn Engine) {
        let mut times: Vec<f64> = self.done.values().map(|done| done.elapsed_s).collect();
        times.sort_by(f64::total_cmp);
        let Some(half) = times.get(times.len() / 2) else {
            return;
        };
        let limit = (half * f64::from(STRAGGLES)).max(half + AT_LEAST.0 as f64 / 1e9);
        for (part, host) in running {
            let took = self.seconds_since(self.runs_since[part]);
            if took > limit && !self.state.copied.contains(part) {
                self.run.warn(format_args!(
                    "part {part} has run on {host} for {took:.0} s, far longer than the others: a second copy of it is started"
                ));
                self.state.copied.push(*part);
                // The first copy still runs.
                if let Err(error) = engine.begin(&[*part], 2, self.run) {
                    self.run.warn(format_args!("{}", self.run.explain(&error)));
                }
            }
        }
    }

    fn seconds_since(&self, time: Nanos) -> f64 {
        self.run.clock().now().since(time).0 as f64 / 1e9
    }

    fn count(&mut self, running: &[(usize, String)], trouble: Option<String>) {
        let mut hosts: BTreeMap<String, HostParts> = BTreeMap::new();
        for done in self.done.values() {
            hosts.entry(done.host.clone()).or_default().done += 1;
        }
        for (_, host) in running {
            hosts.entry(host.clone()).or_default().running += 1;
        }
        // Parts with different bands share their time.
        let seconds = |parts: &mut dyn Iterator<Item = usize>| -> f64 {
            parts.map(|part| self.plan.parts[part - 1].seconds).sum()
        };
        let all = seconds(&mut (1..=self.state.parts));
        let left = seconds(&mut self.missing()).max(0.0);
        let all_done = seconds(&mut self.done.keys().copied());
        let elapsed = self.seconds_since(self.begun);
        let before = self.state.were_there;
        let share = match self.done.len() {
            0 => 0.0,
            done => all_done * (done - before.min(done)) as f64 / done as f64,
        };
        let rate = (share > 0.0 && elapsed > 0.0).then(|| share / elapsed);
        self.state.done = self.done.len();
        self.state.running = running.len();
        self.state.hosts = hosts;
        self.state.elapsed_s = elapsed;
        self.state.rate = rate.map(|rate| rate * self.plan.seconds / all);
        self.state.left_s = rate.map(|rate| left / rate);
        self.state.trouble = trouble;
    }
}

impl Distribution {
    /// Returns whether all parts that failed may succeed later.
    pub fn may_succeed(&self) -> bool {
        let may = |end: &PartEnd| end.status == Some(task::TRY_AGAIN);
        self.failed.iter().all(may)
    }

    /// Describes the progress in a line.
    pub fn text(&self) -> String {
        let mut parts = vec![format!("{} of {} parts", self.done, self.parts)];
        let hosts = self.hosts.values().filter(|host| host.running > 0).count();
        match (self.running, hosts) {
            (0, _) => {}
            (running, 1) => parts.push(format!("{running} on 1 host")),
            (running, hosts) => parts.push(format!("{running} on {hosts} hosts")),
        }
        if !self.failed.is_empty() {
            parts.push(format!("{} failed", self.failed.len()));
        }
        parts.extend((self.rate).map(|rate| format!("{rate:.3} s of data per second")));
        parts.extend((self.left_s).map(|left| format!("{left:.0} s left")));
        parts.extend(self.trouble.clone());
        parts.join(", ")
    }
}

impl PartEnd {
    /// Describes the end in a line.
    pub fn text(&self) -> String {
        let host = match self.host.as_str() {
            "" => String::new(),
            host => format!(" on {host}"),
        };
        let how = match self.status {
            Some(0) => "ended well, but its completion mark is not in the directory".to_owned(),
            Some(status) => format!("failed with status {status}"),
            None => "did not end by itself".to_owned(),
        };
        match self.why.as_str() {
            "" => format!("part {}{host} {how}", self.part),
            why => format!("part {}{host} {how}: {why}", self.part),
        }
    }
}
