//! The flows of a host: an agent starts them, polls them until they end, and finds them again after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use evlbi_core::rate::BitRate;
use evlbi_host::doctor::free_bytes;
use evlbi_net::run::explain;
use evlbi_stream::control_socket::{Answer, Change, Request, Status};
use evlbi_wire::units::show_bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::process::Child;
use tokio::time::{Instant, sleep};

use super::AgentError;
use super::config::Config;
use super::guard::{self, Allowed, Load};
use super::notices::news;
use super::process::{self, FLOW_DIRS, FLOW_FILES, FlowDir, FlowDirError, Line};
use crate::api::off_thread;
use crate::body::file_body;
use crate::commands::{Command, Known, Language};
use crate::fleet::{About, Checked, Storage};
use crate::flow::{End, Flow, FlowId, NewFlow, Outcome, State};
use crate::history::History;
use crate::identity::{private_dir, write_private};
use crate::time::now;
use crate::{Control, Fleet, Later, Problem, Reply};

/// Interval between status requests to a flow.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between status requests while a flow starts.
const EARLY_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout for the first status of a new flow, which the answer to its start contains.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Reason why two flows under SafeUDP may need the same port.
const SAFE_PORTS: &str = " (under SafeUDP, messages take the UDP port after that of the data)";

/// Agent of a host.
pub(crate) struct Agent {
    pub config: Config,
    pub history: Arc<History>,
    language: Language,
    started: f64,
    flows: Mutex<Flows>,
}

/// All flows of the host.
type Flows = BTreeMap<FlowId, Entry>;

/// Flow with the agent's own data about it.
#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    flow: Flow,
    #[serde(flatten)]
    load: Load,
    /// The flow writes a recording.
    #[serde(default)]
    records: bool,
    /// Reason for which this agent stopped it.
    ended_for: Option<String>,
    // The following fields are not saved.
    /// ID of the flow's process.
    #[serde(skip)]
    process: Option<u32>,
    /// Its end could not be saved yet.
    #[serde(skip)]
    is_unwritten: bool,
    /// Lock that is held while the flow is changed.
    #[serde(skip)]
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    fn tell_to_stop(&mut self) {
        if !self.flow.has_ended() {
            self.flow.state = State::Stopping;
        }
    }

    /// Returns the load of a flow that has not ended. A flow past its end time counts until it ends.
    fn load_from(&self, now: f64) -> Load {
        Load {
            until: self.load.until.filter(|until| *until > now),
            ..self.load
        }
    }
}

impl Agent {
    /// Opens the agent with the flows of an earlier agent, some of which may still be running.
    pub fn open(
        config: Config,
        history: Arc<History>,
        language: Language,
    ) -> Result<Arc<Agent>, AgentError> {
        private_dir(FLOW_DIRS.as_ref())?;
        let agent = Arc::new(Agent {
            config,
            history,
            language,
            started: now(),
            flows: Mutex::default(),
        });
        for folder in fs::read_dir(FLOW_DIRS)? {
            let folder = folder?;
            // An agent was killed before it had started this flow.
            if folder.file_name().as_encoded_bytes().starts_with(b".") {
                let _ = fs::remove_dir_all(folder.path());
                continue;
            }
            let folder = folder.path();
            if let Err(error) = agent.find(&folder) {
                let folder = folder.display();
                tracing::warn!("{folder}: flow.json: {}", explain(&error));
            }
        }
        tokio::spawn(Arc::clone(&agent).watch_disk());
        Ok(agent)
    }

    /// Stops recordings while there is still space for their last data, and saves flows that could not be saved before.
    async fn watch_disk(self: Arc<Agent>) {
        loop {
            sleep(POLL_INTERVAL).await;
            for kept in self.those(|entry| entry.is_unwritten) {
                self.keep(&kept);
            }
            let Ok(free) = free_bytes(&self.config.recordings) else {
                continue;
            };
            if free >= self.config.min_free {
                continue;
            }
            let why = format!(
                "the disk is full: {} are free for recordings, and this agent stops recordings below {} (min-free): free some space, or lower min-free",
                show_bytes(free as f64),
                show_bytes(self.config.min_free as f64)
            );
            let recording = self
                .those(|kept| kept.records && kept.ended_for.is_none() && !kept.flow.has_ended());
            for kept in recording {
                self.end_for(&kept.flow.id, &why).await;
            }
        }
    }

    /// Stops a flow for a reason of the agent's. If the flow does not answer, the caller tries again later.
    async fn end_for(&self, id: &FlowId, why: &str) {
        if flow_dir(id).ask(&Request::Stop).await.is_err() {
            return;
        }
        let noted = self.with(id, |entry| {
            entry.tell_to_stop();
            entry.ended_for = Some(why.to_owned());
            entry.clone()
        });
        if let Ok(kept) = noted {
            self.keep(&kept);
            self.tell(id, &format!("stopping: {why}"));
        }
    }

    /// Resumes a flow of an earlier agent.
    fn find(self: &Arc<Agent>, folder: &Path) -> serde_json::Result<()> {
        let Ok(text) = fs::read_to_string(folder.join("flow.json")) else {
            // The flow was forgotten or never started; its name stays used.
            return Ok(());
        };
        let kept: Entry = serde_json::from_str(&text)?;
        let id = kept.flow.id.clone();
        let has_ended = kept.flow.has_ended();
        self.flows.lock().insert(id.clone(), kept);
        if !has_ended {
            tokio::spawn(Arc::clone(self).follow(id, None));
        }
        Ok(())
    }

    /// Counts the flows that have not ended.
    pub fn running(&self) -> usize {
        running(&self.flows.lock()).count()
    }

    /// Calls `work` with a flow.
    fn with<T>(&self, id: &FlowId, work: impl FnOnce(&mut Entry) -> T) -> Reply<T> {
        let mut flows = self.flows.lock();
        let entry = flows.get_mut(id).ok_or_else(|| Problem::unknown(id))?;
        Ok(work(entry))
    }

    /// Returns the flows that satisfy a condition.
    fn those(&self, is_so: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let flows = self.flows.lock();
        let those = flows.values().filter(|entry| is_so(entry));
        those.cloned().collect()
    }

    fn flow(&self, id: &FlowId) -> Reply<Flow> {
        self.with(id, |entry| entry.flow.clone())
    }

    fn tell(&self, id: &FlowId, text: &str) {
        self.history.tell(&self.config.name, Some(id), text);
    }

    /// Starts an allowed flow, and waits for its first status.
    async fn begin(self: Arc<Agent>, new: NewFlow) -> Reply<Flow> {
        let agent = Arc::clone(&self);
        let allowing = move || {
            let allowed = guard::allow(&new, &agent.config, agent.language, true);
            (new, allowed)
        };
        let (new, allowed) = off_thread(allowing).await?;
        let allowed = allowed.map_err(|error| Problem::unprocessable(explain(&error)))?;
        let command = Command::named(&new.command).map_err(Problem::unprocessable)?;
        let id = new.id;
        let mut options = new.options;
        options.retain(|name, _| !command.hides(name));
        let recording = Known::of(&new.command, &options).recording();
        let kept = Entry {
            flow: Flow {
                id: id.clone(),
                host: self.config.name.clone(),
                recording: recording.map(str::to_owned),
                command: new.command,
                options,
                revision: 1,
                state: State::Starting,
                started: now(),
                end: None,
                status: None,
            },
            load: allowed.load,
            records: allowed.records,
            ended_for: None,
            process: None,
            is_unwritten: false,
            turn: Arc::default(),
        };
        self.take_place(&kept)?;
        let child = make(&self.language.program(), &kept, &allowed).inspect_err(|_| {
            self.flows.lock().remove(&id);
        })?;
        let _ = self.with(&id, |entry| entry.process = child.id());
        self.tell(&id, &format!("starts: evlbi {}", allowed.words.join(" ")));
        tokio::spawn(Arc::clone(&self).follow(id.clone(), Some(child)));
        let begun = Instant::now();
        loop {
            let flow = self.flow(&id)?;
            let says = |status: &Status| !status.line.is_empty() || !status.listening.is_empty();
            let has_said = flow.status.as_ref().is_some_and(says);
            if has_said || flow.has_ended() || begun.elapsed() >= START_TIMEOUT {
                return Ok(flow);
            }
            sleep(EARLY_POLL_INTERVAL).await;
        }
    }

    /// Checks flows that shall be started together.
    fn check_flows(&self, new: &[NewFlow]) -> Vec<Checked> {
        // Loads of the preceding flows, which may send at the same time.
        let mut before: Vec<Load> = Vec::new();
        // Ports, with whether their flows are under SafeUDP, and files.
        let mut ports = BTreeMap::new();
        let mut files = BTreeSet::new();
        let found = new.iter().map(|new| {
            let mut problems = Vec::new();
            if self.flows.lock().contains_key(&new.id) || flow_dir(&new.id).0.exists() {
                problems.push(format!("the name {} was used before", new.id));
            }
            let allowed = guard::allow(new, &self.config, self.language, false);
            let allowed = allowed.and_then(guard::free);
            let safe = new.options.get("safe");
            let is_safe = safe.is_some_and(|safe| *safe != "off" && *safe != false);
            for port in allowed.iter().flat_map(Allowed::ports) {
                let hint = match ports.insert(port.clone(), is_safe) {
                    None => continue,
                    Some(true) => SAFE_PORTS,
                    Some(false) if is_safe => SAFE_PORTS,
                    Some(false) => "",
                };
                problems.push(format!(
                    "{port} is in use by another flow or stream, too{hint}"
                ));
            }
            for path in allowed.iter().flat_map(|allowed| &allowed.writes) {
                if !files.insert(path.clone()) {
                    let path = path.display();
                    problems.push(format!("{path} is in use by another flow, too"));
                }
            }
            let mut safe = None;
            let rate_bps = match allowed {
                Ok(allowed) => {
                    safe = self.language.limits(allowed.words.clone());
                    let load = allowed.load;
                    let fits = self.check_rate(&self.flows.lock(), &new.id, load, &before);
                    problems.extend(fits.err().map(|problem| problem.error));
                    before.push(load);
                    let of_source = || guard::rate_of_source(new, &self.config);
                    load.rate.or_else(of_source)
                }
                Err(error) => {
                    problems.push(explain(&error));
                    None
                }
            };
            Checked {
                id: new.id.clone(),
                problems,
                rate_bps,
                safe,
            }
        });
        found.collect()
    }

    /// Adds a flow if the name is new and the limits allow it.
    fn take_place(&self, kept: &Entry) -> Reply<()> {
        let id = &kept.flow.id;
        let mut flows = self.flows.lock();
        if flows.contains_key(id) || flow_dir(id).0.exists() {
            return Err(Problem::used(id));
        }
        if running(&flows).count() >= self.config.max_flows {
            return Err(Problem::conflict(format!(
                "{} flows are running, the maximum of this agent (max-flows): stop one first",
                self.config.max_flows
            )));
        }
        self.check_rate(&flows, id, kept.load_from(now()), &[])?;
        flows.insert(id.clone(), kept.clone());
        Ok(())
    }

    /// Checks the maximum rate for a flow, all others that send at the same time, and `more`.
    fn check_rate(&self, flows: &Flows, id: &FlowId, load: Load, more: &[Load]) -> Reply<()> {
        let (Some(max), Some(rate)) = (self.config.max_rate, load.rate) else {
            return Ok(());
        };
        let others = running(flows).filter(|kept| kept.flow.id != *id);
        let others = others.map(|kept| kept.load_from(now()));
        let others: Vec<Load> = others.chain(more.iter().copied()).collect();
        let free = max.get().saturating_sub(load.beside(&others));
        if rate > free {
            let free = BitRate::new(free);
            let free = free.map_or("nothing".to_owned(), |free| format!("{free}bit/s"));
            let why = format!(
                "the maximum rate of this agent is {max}bit/s (max-rate), of which {free} is left"
            );
            return Err(Problem::conflict(why));
        }
        Ok(())
    }

    /// Polls a flow until it ends.
    async fn follow(self: Arc<Agent>, id: FlowId, child: Option<Child>) {
        let flow_dir = flow_dir(&id);
        let status = match child {
            Some(mut child) => tokio::select! {
                status = child.wait() => status.ok(),
                () = self.listen_to(&id, &flow_dir, true) => child.wait().await.ok(),
            },
            None => {
                self.listen_to(&id, &flow_dir, false).await;
                None
            }
        };
        self.ended(&id, &flow_dir, status);
    }

    /// Requests the status of a flow until its process ends. For a new flow the caller waits for the process. A flow of an earlier agent
    /// may not listen yet.
    async fn listen_to(&self, id: &FlowId, flow_dir: &FlowDir, is_new: bool) {
        loop {
            if let Ok(line) = flow_dir.connect().await {
                self.hear(id, line).await;
            }
            if !is_new && !flow_dir.is_alive() {
                return;
            }
            sleep(EARLY_POLL_INTERVAL).await;
        }
    }

    /// Requests the status over one connection until the connection ends.
    async fn hear(&self, id: &FlowId, mut line: Line) {
        let begun = Instant::now();
        let _ = self.with(id, |entry| {
            entry.process = line.process().or(entry.process);
        });
        loop {
            match line.ask(&Request::Status).await {
                Ok(Answer::Status(status)) => self.note(id, *status),
                Ok(_) => {}
                Err(_) => return,
            }
            let is_early = begun.elapsed() < START_TIMEOUT;
            sleep(if is_early {
                EARLY_POLL_INTERVAL
            } else {
                POLL_INTERVAL
            })
            .await;
        }
    }

    fn note(&self, id: &FlowId, status: Status) {
        let news = self.with(id, |entry| {
            let flow = &mut entry.flow;
            let news = news(flow, &status);
            if flow.state == State::Starting {
                flow.state = State::Running;
            }
            flow.status = Some(status);
            news
        });
        for notice in news.into_iter().flatten() {
            self.tell(id, &notice.text);
        }
    }

    fn ended(&self, id: &FlowId, flow_dir: &FlowDir, status: Option<ExitStatus>) {
        if let Some(last) = flow_dir.last_words() {
            self.note(id, last);
        }
        let end = self.with(id, |entry| {
            let is_stopping = entry.flow.state == State::Stopping;
            let (mut outcome, mut message) = flow_dir.outcome(status, is_stopping);
            if outcome != Outcome::Killed && entry.ended_for.is_some() {
                (outcome, message) = (Outcome::Full, entry.ended_for.clone());
            }
            End {
                time: now(),
                outcome,
                message,
            }
        });
        let Ok(end) = end else { return };
        let how = match end.outcome {
            Outcome::Finished => "finished",
            Outcome::Stopped => "stopped",
            Outcome::Failed => "failed",
            Outcome::Killed => "was killed",
            Outcome::Full => "was stopped",
        };
        // Who sees that the flow has ended also sees the event.
        self.tell(id, &format!("{how}{}", end.why()));
        let ended = self.with(id, |entry| {
            entry.flow.state = State::Ended;
            entry.flow.end = Some(end);
            entry.process = None;
            entry.clone()
        });
        if let Ok(kept) = ended {
            self.keep(&kept);
        }
    }

    /// Saves a flow for the next agent.
    fn keep(&self, kept: &Entry) {
        let id = &kept.flow.id;
        let written = write(&flow_dir(id), kept);
        let _ = self.with(id, |entry| {
            if let Err(error) = &written
                && !entry.is_unwritten
            {
                let error = explain(error);
                tracing::warn!("cannot save flow {id}, trying again: {error}");
            }
            entry.is_unwritten = written.is_err();
        });
    }

    /// Locks a flow for a change, and returns the lock and the flow.
    async fn turn(&self, id: &FlowId) -> Reply<(tokio::sync::OwnedMutexGuard<()>, Flow)> {
        let turn = self.with(id, |entry| Arc::clone(&entry.turn))?;
        let turn = turn.lock_owned().await;
        Ok((turn, self.flow(id)?))
    }

    /// Reserves another rate for a flow, and returns its previous rate.
    fn book(&self, id: &FlowId, rate: Option<u64>) -> Reply<Option<u64>> {
        let mut flows = self.flows.lock();
        let known = flows.get(id).ok_or_else(|| Problem::unknown(id))?;
        let before = known.load_from(now());
        self.check_rate(&flows, id, Load { rate, ..before }, &[])?;
        if let Some(entry) = flows.get_mut(id) {
            entry.load.rate = rate.or(before.rate);
        }
        Ok(before.rate)
    }
}

impl Fleet for Arc<Agent> {
    fn about(&self) -> About {
        let folder = &self.config.recordings;
        About {
            role: "agent".to_owned(),
            name: self.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: now(),
            started: self.started,
            storage: free_bytes(folder).ok().map(|free_bytes| Storage {
                folder: folder.display().to_string(),
                free_bytes,
            }),
        }
    }

    fn flows(&self) -> Vec<Flow> {
        let all = self.those(|_| true).into_iter();
        all.map(|kept| kept.flow).collect()
    }
}

impl Control for Arc<Agent> {
    fn start(&self, flow: NewFlow) -> Later<'_, Flow> {
        // A client that disconnects must not leave a half-started flow.
        let done = tokio::spawn(Arc::clone(self).begin(flow));
        Box::pin(async move { done.await.map_err(Problem::internal)? })
    }

    fn change(&self, id: FlowId, revision: u64, change: Change) -> Later<'_, Flow> {
        Box::pin(async move {
            let (_turn, flow) = self.turn(&id).await?;
            if flow.revision != revision {
                return Err(Problem::conflict(format!(
                    "flow {id} has revision {}, not {revision}: read it again",
                    flow.revision
                )));
            }
            if flow.state != State::Running {
                let why = format!("flow {id} is not running, so it cannot be changed");
                return Err(Problem::conflict(why));
            }
            let rate = change.rate.as_deref().map(str::parse::<BitRate>);
            let rate = rate.transpose();
            let rate = rate.map_err(|error| Problem::unprocessable(error.to_string()))?;
            let before = self.book(&id, rate.map(BitRate::get))?;
            let asked = flow_dir(&id).ask(&Request::Change(change.clone())).await;
            let answered = match asked {
                Ok(Answer::Done) => Ok(()),
                Ok(Answer::Refused(why)) => Err(Problem::unprocessable(why)),
                Ok(Answer::Status(_)) => Err(Problem::conflict("unexpected answer of the flow")),
                Err(error) => Err(Problem::conflict(explain(&error))),
            };
            answered.inspect_err(|_| {
                let _ = self.with(&id, |entry| entry.load.rate = before);
            })?;
            let mut said = Vec::new();
            let kept = self.with(&id, |entry| {
                let flow = &mut entry.flow;
                flow.revision += 1;
                for (name, value) in [("rate", change.rate), ("shed", change.shed)] {
                    if let Some(value) = value {
                        said.push(format!("{name} {value}"));
                        flow.options.insert(name.to_owned(), value.into());
                    }
                }
                said.extend(change.rearm.then(|| "rearm".to_owned()));
                entry.clone()
            })?;
            self.keep(&kept);
            self.tell(&id, &format!("changed: {}", said.join(", ")));
            Ok(kept.flow)
        })
    }

    fn stop(&self, id: FlowId, kill: bool) -> Later<'_, Flow> {
        Box::pin(async move {
            let (_turn, flow) = self.turn(&id).await?;
            if flow.has_ended() {
                return Ok(flow);
            }
            let process = self.with(&id, |entry| {
                entry.tell_to_stop();
                entry.process
            })?;
            let said = match kill {
                true => "killing",
                false => "stopping",
            };
            self.tell(&id, said);
            if kill {
                // A flow of an earlier agent that does not listen yet is found by its directory.
                let unknown = || Problem::conflict("cannot find the flow's process");
                let process = process.or_else(|| flow_dir(&id).process());
                let killed = process::kill(process.ok_or_else(unknown)?);
                killed.map_err(|error| Problem::conflict(explain(&error)))?;
            } else if let Err(error) = flow_dir(&id).ask(&Request::Stop).await
                && !self.flow(&id)?.has_ended()
            {
                let _ = self.with(&id, |entry| entry.flow.state = flow.state);
                let error = explain(&error);
                return Err(Problem::conflict(format!("{error}: kill it instead")));
            }
            self.flow(&id)
        })
    }

    fn forget(&self, id: FlowId) -> Later<'_, ()> {
        Box::pin(async move {
            let (_turn, flow) = self.turn(&id).await?;
            if !flow.has_ended() {
                let why = format!("flow {id} has not ended: stop it first");
                return Err(Problem::conflict(why));
            }
            let flow_dir = flow_dir(&id);
            let removing = move || {
                // The directory stays to mark the name as used.
                for file in FLOW_FILES {
                    let _ = fs::remove_file(flow_dir.file(file));
                }
            };
            off_thread(removing).await?;
            self.flows.lock().remove(&id);
            self.tell(&id, "forgotten");
            Ok(())
        })
    }

    fn check(&self, flows: Vec<NewFlow>) -> Later<'_, Vec<Checked>> {
        let agent = Arc::clone(self);
        Box::pin(off_thread(move || agent.check_flows(&flows)))
    }

    fn result(&self, id: FlowId) -> Later<'_, Body> {
        Box::pin(async move {
            self.flow(&id)?;
            let flow_dir = flow_dir(&id);
            let result = off_thread(move || flow_dir.result()).await?;
            let missing = || Problem::missing(format!("flow {id} has no result yet"));
            let (file, length) = result.ok_or_else(missing)?;
            Ok(file_body(file, length))
        })
    }

    fn log(&self, id: FlowId) -> Later<'_, String> {
        Box::pin(async move {
            self.flow(&id)?;
            let flow_dir = flow_dir(&id);
            off_thread(move || flow_dir.log().unwrap_or_default()).await
        })
    }
}

/// Returns the flows that have not ended.
fn running(flows: &Flows) -> impl Iterator<Item = &Entry> {
    flows.values().filter(|entry| !entry.flow.has_ended())
}

fn flow_dir(id: &FlowId) -> FlowDir {
    FlowDir(Path::new(FLOW_DIRS).join(id.as_str()))
}

/// Creates a flow's directory, and starts a process of `program` there.
fn make(program: &Path, kept: &Entry, allowed: &Allowed) -> Reply<Child> {
    let flow_dir = flow_dir(&kept.flow.id);
    let made = || -> Result<Child, FlowDirError> {
        // If the agent is killed, either the complete directory or nothing of this name exists.
        let draft = FlowDir(Path::new(FLOW_DIRS).join(format!(".new-{}", kept.flow.id)));
        let _ = fs::remove_dir_all(&draft.0);
        private_dir(&draft.0)?;
        write(&draft, kept)?;
        for (name, bytes) in &allowed.files {
            write_private(&draft.file(name), bytes)?;
        }
        fs::rename(&draft.0, &flow_dir.0)?;
        flow_dir.start(program, allowed)
    };
    made().map_err(|error| {
        // The flow never started: its name stays free.
        let _ = fs::remove_dir_all(&flow_dir.0);
        Problem::internal(error)
    })
}

fn write(flow_dir: &FlowDir, kept: &Entry) -> Result<(), FlowDirError> {
    let text = serde_json::to_string_pretty(kept)?;
    Ok(write_private(&flow_dir.file("flow.json"), &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates count together only while they are sent together.
    #[test]
    fn rates_are_summed_in_time() {
        let sends = |rate, from, until| Load {
            rate: Some(rate),
            from: Some(from),
            until,
        };
        let first = sends(60, 0.0, Some(10.0));
        let second = sends(60, 10.0, Some(20.0));
        let third = sends(30, 5.0, Some(15.0));
        assert_eq!(second.beside(&[first]), 0);
        assert_eq!(third.beside(&[first, second]), 60);
        assert_eq!(sends(1, 0.0, None).beside(&[first, second, third]), 90);
        assert_eq!(first.beside(&[third, sends(5, 9.0, None)]), 35);
        let nothing = Load {
            rate: None,
            ..first
        };
        assert_eq!(first.beside(&[nothing]), 0);
    }

    /// A flow that keeps running after its end time keeps its rate until it ends.
    #[test]
    fn a_flow_past_its_time_still_sends() {
        let flow = serde_json::json!({"id": "a", "host": "ef", "command": "send", "options": {}, "revision": 1,
            "state": "running", "started": 0.0});
        let kept = serde_json::json!({"flow": flow, "rate": 60, "from": 0.0, "until": 10.0});
        let kept: Entry = serde_json::from_value(kept).unwrap();
        let new = Load {
            rate: Some(1),
            from: Some(12.0),
            until: Some(20.0),
        };
        assert_eq!(new.beside(&[kept.load_from(5.0)]), 0);
        assert_eq!(new.beside(&[kept.load_from(12.0)]), 60);
    }
}
