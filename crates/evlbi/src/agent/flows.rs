//! The flows of a host: started, followed to their ends, found again by an agent that is started anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Body;
use evlbi_core::rate::BitRate;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::process::Child;
use tokio::time::{Instant, sleep};

use super::config::Config;
use super::guard::{self, Allowed};
use super::process::{Line, Room, kill, rooms};
use crate::control::api::off_thread;
use crate::control::body::file_body;
use crate::control::commands::{Care, Command, Language};
use crate::control::fleet::{About, Checked, Storage};
use crate::control::flow::{End, Flow, FlowId, NewFlow, Outcome, State};
use crate::control::history::History;
use crate::control::identity::{private_folder, write_private};
use crate::control::{Fleet, Later, Problem};
use crate::output;
use crate::steer::{Answer, Change, Request, Status};
use crate::units::{now, show_bytes};

/// How often a flow is asked how it is.
const LOOK: Duration = Duration::from_millis(500);
/// And while it begins.
const LOOK_EARLY: Duration = Duration::from_millis(20);
/// Who starts a flow is told how it is when it has said something, or after this time.
const ANSWERING: Duration = Duration::from_secs(2);

/// The agent of a host.
pub struct Agent {
    pub config: Config,
    history: Arc<History>,
    language: Language,
    started: f64,
    flows: Mutex<BTreeMap<FlowId, Entry>>,
}

/// A flow, and what is needed to keep it.
#[derive(Clone)]
struct Entry {
    kept: Kept,
    process: Option<u32>,
    /// Its end could not be written down yet.
    is_unwritten: bool,
    /// Held by whoever changes the flow.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// What of a flow outlives its agent.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    flow: Flow,
    /// Bits a second that it was asked to send.
    rate: Option<u64>,
    /// When it sends, in seconds since 1970: not before, and not after.
    #[serde(default)]
    from: Option<f64>,
    #[serde(default)]
    until: Option<f64>,
    /// It writes a recording.
    #[serde(default)]
    records: bool,
    /// Why this agent had it end.
    #[serde(default)]
    ended_for: Option<String>,
}

/// How much a flow sends, and when.
#[derive(Clone, Copy)]
struct Sends {
    /// Bits a second.
    rate: Option<u64>,
    /// Seconds since 1970.
    from: f64,
    until: f64,
}

impl Sends {
    fn of(allowed: &Allowed) -> Sends {
        Sends {
            rate: allowed.rate,
            from: allowed.from.unwrap_or(0.0),
            until: allowed.until.unwrap_or(f64::INFINITY),
        }
    }

    /// A flow that has not ended. One that is past its time sends until it does.
    fn kept(kept: &Kept, now: f64) -> Sends {
        let until = kept.until.filter(|until| *until > now);
        Sends {
            rate: kept.rate,
            from: kept.from.unwrap_or(0.0),
            until: until.unwrap_or(f64::INFINITY),
        }
    }

    /// Highest sum of the others' bit rates while this sends. Sums grow only where a flow begins.
    fn beside(&self, others: &[Sends]) -> u64 {
        let begins = others.iter().map(|other| other.from.max(self.from));
        let sums = begins.filter(|time| *time < self.until).map(|time| {
            let at = others.iter();
            let at = at.filter(|other| other.from <= time && time < other.until);
            at.filter_map(|other| other.rate).sum()
        });
        sums.max().unwrap_or(0)
    }
}

impl Agent {
    /// With the flows that an agent before this one started, of which some may still run.
    pub fn open(config: Config, history: Arc<History>, language: Language) -> Result<Arc<Agent>> {
        private_folder(rooms())?;
        let agent = Arc::new(Agent {
            config,
            history,
            language,
            started: now(),
            flows: Mutex::default(),
        });
        for folder in fs::read_dir(rooms())? {
            let folder = folder?;
            // Of a flow that an agent had no time to begin.
            if folder.file_name().as_encoded_bytes().starts_with(b".") {
                let _ = fs::remove_dir_all(folder.path());
                continue;
            }
            let folder = folder.path();
            if let Err(error) = agent.find(&folder) {
                tracing::warn!("{}: {}", folder.display(), output::explain(&error));
            }
        }
        tokio::spawn(Arc::clone(&agent).watch_disk());
        Ok(agent)
    }

    /// Ends recordings while there is still room for what they leave behind, and writes down what found no room before.
    async fn watch_disk(self: Arc<Agent>) {
        loop {
            sleep(LOOK).await;
            let unwritten: Vec<Kept> = {
                let flows = self.flows.lock();
                let unwritten = flows.values().filter(|entry| entry.is_unwritten);
                unwritten.map(|entry| entry.kept.clone()).collect()
            };
            for kept in unwritten {
                self.keep(&room(&kept.flow.id), &kept);
            }
            let Ok(free) = super::free_bytes(&self.config.recordings) else {
                continue;
            };
            if free >= self.config.min_free {
                continue;
            }
            let why = format!(
                "the disk is full: {} are free for recordings, and this agent ends recordings below {} (min-free): make room, or lower min-free",
                show_bytes(free as f64),
                show_bytes(self.config.min_free as f64)
            );
            let recording: Vec<FlowId> = {
                let flows = self.flows.lock();
                let recording = flows.iter().filter(|(_, entry)| {
                    let kept = &entry.kept;
                    kept.records && kept.ended_for.is_none() && kept.flow.state != State::Ended
                });
                recording.map(|(id, _)| id.clone()).collect()
            };
            for id in recording {
                self.end_for(&id, &why).await;
            }
        }
    }

    /// Has a flow end for a reason of the agent's. One that does not answer is asked again later.
    async fn end_for(&self, id: &FlowId, why: &str) {
        if room(id).ask(&Request::Stop).await.is_err() {
            return;
        }
        let kept = {
            let mut flows = self.flows.lock();
            let Some(entry) = flows.get_mut(id) else {
                return;
            };
            if entry.kept.flow.state != State::Ended {
                entry.kept.flow.state = State::Stopping;
            }
            entry.kept.ended_for = Some(why.to_owned());
            entry.kept.clone()
        };
        self.keep(&room(id), &kept);
        self.tell(id, &format!("is told to stop: {why}"));
    }

    /// Takes up a flow of an agent before this one.
    fn find(self: &Arc<Agent>, folder: &Path) -> Result<()> {
        let Ok(text) = fs::read_to_string(folder.join("flow.json")) else {
            // Forgotten, or never begun: only its name is used.
            return Ok(());
        };
        let kept: Kept = serde_json::from_str(&text).context("flow.json")?;
        let id = kept.flow.id.clone();
        let has_ended = kept.flow.state == State::Ended;
        let entry = Entry {
            kept,
            process: None,
            is_unwritten: false,
            turn: Arc::default(),
        };
        self.flows.lock().insert(id.clone(), entry);
        if !has_ended {
            let agent = Arc::clone(self);
            tokio::spawn(async move { agent.follow(id, None).await });
        }
        Ok(())
    }

    /// How many flows have not ended.
    pub fn running(&self) -> usize {
        let flows = self.flows.lock();
        let running = flows
            .values()
            .filter(|entry| entry.kept.flow.state != State::Ended);
        running.count()
    }

    fn flow(&self, id: &FlowId) -> Result<Flow, Problem> {
        let flows = self.flows.lock();
        let entry = flows.get(id).ok_or_else(|| Problem::unknown(id))?;
        Ok(entry.kept.flow.clone())
    }

    fn tell(&self, id: &FlowId, text: &str) {
        self.history.tell(&self.config.name, Some(id), text);
    }

    /// Starts a flow that may run, and waits for its first words.
    async fn begin(self: Arc<Agent>, new: NewFlow) -> Result<Flow, Problem> {
        let agent = Arc::clone(&self);
        let (id, allowed, secret) = off_thread(move || {
            let allowed = guard::allow(&new, &agent.config, agent.language, true)
                .map_err(|error| output::explain(&error));
            let secret = Command::of(&new).map(|command| shown(command, &new));
            Ok((new, allowed, secret))
        })
        .await
        .map(|(new, allowed, shown)| {
            (new.id.clone(), allowed.map(|allowed| (new, allowed)), shown)
        })?;
        let (new, allowed) = allowed.map_err(Problem::unprocessable)?;
        let flow = Flow {
            id: id.clone(),
            host: self.config.name.clone(),
            command: new.command,
            options: secret.map_err(Problem::unprocessable)?,
            revision: 1,
            state: State::Starting,
            started: now(),
            end: None,
            status: None,
        };
        let room = room(&id);
        let kept = Kept {
            flow,
            rate: allowed.rate,
            from: allowed.from,
            until: allowed.until,
            records: allowed.records,
            ended_for: None,
        };
        self.take_place(&kept)?;
        let child = match make(&room, &kept, &allowed) {
            Ok(child) => child,
            Err(problem) => {
                self.flows.lock().remove(&id);
                return Err(problem);
            }
        };
        if let Some(entry) = self.flows.lock().get_mut(&id) {
            entry.process = child.id();
        }
        self.tell(&id, &format!("starts: evlbi {}", allowed.words.join(" ")));
        tokio::spawn(Arc::clone(&self).follow(id.clone(), Some(child)));
        let begun = Instant::now();
        loop {
            let flow = self.flow(&id)?;
            let says = |status: &Status| !status.line.is_empty() || !status.listening.is_empty();
            let has_said = flow.status.as_ref().is_some_and(says);
            if has_said || flow.state == State::Ended || begun.elapsed() >= ANSWERING {
                return Ok(flow);
            }
            sleep(LOOK_EARLY).await;
        }
    }

    /// What stands against flows that are to be started together.
    fn check_flows(&self, new: &[NewFlow]) -> Vec<Checked> {
        // What was found of those before, which may send at the same time.
        let mut before: Vec<Sends> = Vec::new();
        let mut taken = BTreeSet::new();
        let found = new.iter().map(|new| {
            let mut problems = Vec::new();
            if self.flows.lock().contains_key(&new.id) || room(&new.id).0.exists() {
                problems.push(format!("the name {} was used before", new.id));
            }
            let allowed =
                guard::allow(new, &self.config, self.language, false).and_then(|allowed| {
                    guard::is_free(&allowed)?;
                    Ok(allowed)
                });
            for shared in allowed.iter().flat_map(Allowed::owns) {
                if !taken.insert(shared.clone()) {
                    problems.push(format!("{shared} is another flow's as well"));
                }
            }
            let rate_bps = match allowed {
                Ok(allowed) => {
                    let sends = Sends::of(&allowed);
                    if let Err(problem) =
                        self.check_rate(&self.flows.lock(), &new.id, &sends, &before)
                    {
                        problems.push(problem.error);
                    }
                    before.push(sends);
                    allowed
                        .rate
                        .or_else(|| guard::rate_of_source(new, &self.config))
                }
                Err(error) => {
                    problems.push(output::explain(&error));
                    None
                }
            };
            Checked {
                id: new.id.clone(),
                problems,
                rate_bps,
            }
        });
        found.collect()
    }

    /// A place among the flows, if there is one.
    fn take_place(&self, kept: &Kept) -> Result<(), Problem> {
        let id = &kept.flow.id;
        let mut flows = self.flows.lock();
        if flows.contains_key(id) || room(id).0.exists() {
            return Err(Problem::conflict(format!(
                "the name {id} was used before; a flow has a name of its own"
            )));
        }
        let running = flows
            .values()
            .filter(|entry| entry.kept.flow.state != State::Ended);
        if running.count() >= self.config.max_flows {
            return Err(Problem::conflict(format!(
                "{} flows run already, which are the most that this agent allows (max-flows)",
                self.config.max_flows
            )));
        }
        self.check_rate(&flows, id, &Sends::kept(kept, now()), &[])?;
        let entry = Entry {
            kept: kept.clone(),
            process: None,
            is_unwritten: false,
            turn: Arc::default(),
        };
        flows.insert(id.clone(), entry);
        Ok(())
    }

    /// Whether a flow may send beside all others that send at the same time, and beside `more`.
    fn check_rate(
        &self,
        flows: &BTreeMap<FlowId, Entry>,
        id: &FlowId,
        sends: &Sends,
        more: &[Sends],
    ) -> Result<(), Problem> {
        let (Some(most), Some(rate)) = (self.config.max_rate, sends.rate) else {
            return Ok(());
        };
        let others = flows
            .iter()
            .filter(|(other, entry)| *other != id && entry.kept.flow.state != State::Ended);
        let others = others.map(|(_, entry)| Sends::kept(&entry.kept, now()));
        let others: Vec<Sends> = others.chain(more.iter().copied()).collect();
        let taken = sends.beside(&others);
        if rate > most.get().saturating_sub(taken) {
            let free = BitRate::new(most.get().saturating_sub(taken));
            let free = free.map_or("nothing".to_owned(), |free| format!("{free}bit/s"));
            return Err(Problem::conflict(format!(
                "this agent sends {most}bit/s at most (max-rate), of which {free} is left"
            )));
        }
        Ok(())
    }

    /// Follows a flow to its end.
    async fn follow(self: Arc<Agent>, id: FlowId, child: Option<Child>) {
        let room = room(&id);
        let status = match child {
            Some(mut child) => {
                tokio::select! {
                    status = child.wait() => status.ok(),
                    () = self.listen_to(&id, &room, true) => child.wait().await.ok(),
                }
            }
            None => {
                self.listen_to(&id, &room, false).await;
                None
            }
        };
        self.ended(&id, &room, status);
    }

    /// Asks a flow how it is until it is gone. The process of a new one is watched by who calls; one that an agent before this one
    /// started may not listen yet.
    async fn listen_to(&self, id: &FlowId, room: &Room, is_new: bool) {
        loop {
            if let Ok(line) = room.connect().await {
                self.hear(id, line).await;
            }
            if !is_new && !room.is_alive() {
                return;
            }
            sleep(LOOK_EARLY).await;
        }
    }

    /// Asks over one connection until that ends.
    async fn hear(&self, id: &FlowId, mut line: Line) {
        let begun = Instant::now();
        if let Some(entry) = self.flows.lock().get_mut(id) {
            entry.process = line.process().or(entry.process);
        }
        loop {
            match line.ask(&Request::Status).await {
                Ok(Answer::Status(status)) => self.note(id, *status),
                Ok(_) => {}
                Err(_) => return,
            }
            sleep(if begun.elapsed() < ANSWERING {
                LOOK_EARLY
            } else {
                LOOK
            })
            .await;
        }
    }

    fn note(&self, id: &FlowId, status: Status) {
        if let Some(entry) = self.flows.lock().get_mut(id) {
            let flow = &mut entry.kept.flow;
            if flow.state == State::Starting {
                flow.state = State::Running;
            }
            flow.status = Some(status);
        }
    }

    fn ended(&self, id: &FlowId, room: &Room, status: Option<ExitStatus>) {
        if let Some(last) = room.last_words() {
            self.note(id, last);
        }
        let kept = {
            let mut flows = self.flows.lock();
            let Some(entry) = flows.get_mut(id) else {
                return;
            };
            let flow = &mut entry.kept.flow;
            let (outcome, message) = room.outcome(status, flow.state == State::Stopping);
            let (outcome, message) = match &entry.kept.ended_for {
                Some(why) if outcome != Outcome::Killed => (Outcome::Full, Some(why.clone())),
                _ => (outcome, message),
            };
            flow.state = State::Ended;
            flow.end = Some(End {
                time: now(),
                outcome,
                message,
            });
            entry.process = None;
            entry.kept.clone()
        };
        self.keep(room, &kept);
        if let Some(End {
            outcome, message, ..
        }) = &kept.flow.end
        {
            let how = match outcome {
                Outcome::Finished => "finished",
                Outcome::Stopped => "stopped",
                Outcome::Failed => "failed",
                Outcome::Killed => "was killed",
                Outcome::Full => "was stopped",
            };
            let why = message
                .as_ref()
                .map_or_else(String::new, |message| format!(": {message}"));
            self.tell(id, &format!("{how}{why}"));
        }
    }

    /// Writes down what has to outlive this agent.
    fn keep(&self, room: &Room, kept: &Kept) {
        let written = write(room, kept);
        if let Some(entry) = self.flows.lock().get_mut(&kept.flow.id) {
            if let Err(error) = &written
                && !entry.is_unwritten
            {
                let error = output::explain(error);
                tracing::warn!(
                    "flow {} cannot be written down, which is tried again: {error}",
                    kept.flow.id
                );
            }
            entry.is_unwritten = written.is_err();
        }
    }

    /// The flow's turn, and the flow when that has come.
    async fn turn(&self, id: &FlowId) -> Result<(tokio::sync::OwnedMutexGuard<()>, Flow), Problem> {
        let turn = {
            let flows = self.flows.lock();
            let entry = flows.get(id).ok_or_else(|| Problem::unknown(id))?;
            Arc::clone(&entry.turn)
        };
        let turn = turn.lock_owned().await;
        Ok((turn, self.flow(id)?))
    }

    async fn change_flow(
        &self,
        id: FlowId,
        revision: u64,
        change: Change,
    ) -> Result<Flow, Problem> {
        let (_turn, flow) = self.turn(&id).await?;
        if flow.revision != revision {
            return Err(Problem::conflict(format!(
                "flow {id} is at revision {}, and this was meant for {revision}: look at it again",
                flow.revision
            )));
        }
        if flow.state != State::Running {
            return Err(Problem::conflict(format!(
                "flow {id} does not run, so nothing of it can be changed"
            )));
        }
        let rate = change
            .rate
            .as_deref()
            .map(str::parse::<BitRate>)
            .transpose();
        let rate = rate.map_err(|error| Problem::unprocessable(error.to_string()))?;
        let before = self.book(&id, rate.map(BitRate::get))?;
        let asked = room(&id).ask(&Request::Change(change.clone())).await;
        let refused = match asked {
            Ok(Answer::Done) => None,
            Ok(Answer::Refused(why)) => Some(Problem::unprocessable(why)),
            Ok(Answer::Status(_)) => Some(Problem::conflict("the flow answered something else")),
            Err(error) => Some(Problem::conflict(output::explain(&error))),
        };
        if let Some(problem) = refused {
            if let Some(entry) = self.flows.lock().get_mut(&id) {
                entry.kept.rate = before;
            }
            return Err(problem);
        }
        let kept = {
            let mut flows = self.flows.lock();
            let entry = flows.get_mut(&id).ok_or_else(|| Problem::unknown(&id))?;
            let flow = &mut entry.kept.flow;
            flow.revision += 1;
            for (name, value) in [("rate", &change.rate), ("shed", &change.shed)] {
                if let Some(value) = value {
                    flow.options
                        .insert(name.to_owned(), Value::from(value.clone()));
                }
            }
            entry.kept.clone()
        };
        self.keep(&room(&id), &kept);
        let parts = [("rate", change.rate), ("shed", change.shed)];
        let parts = parts
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name} {}", value?)));
        self.tell(
            &id,
            &format!("changed: {}", parts.collect::<Vec<String>>().join(", ")),
        );
        Ok(kept.flow)
    }

    /// A flow is to send at another rate, which no other has from now on. Gives the rate before.
    fn book(&self, id: &FlowId, rate: Option<u64>) -> Result<Option<u64>, Problem> {
        let mut flows = self.flows.lock();
        let known = flows.get(id).ok_or_else(|| Problem::unknown(id))?;
        let sends = Sends {
            rate,
            ..Sends::kept(&known.kept, now())
        };
        self.check_rate(&flows, id, &sends, &[])?;
        let entry = flows.get_mut(id).ok_or_else(|| Problem::unknown(id))?;
        let before = entry.kept.rate;
        entry.kept.rate = rate.or(before);
        Ok(before)
    }

    async fn stop_flow(&self, id: FlowId, at_once: bool) -> Result<Flow, Problem> {
        let (_turn, flow) = self.turn(&id).await?;
        if flow.state == State::Ended {
            return Ok(flow);
        }
        let process = {
            let mut flows = self.flows.lock();
            let entry = flows.get_mut(&id).ok_or_else(|| Problem::unknown(&id))?;
            if entry.kept.flow.state != State::Ended {
                entry.kept.flow.state = State::Stopping;
            }
            entry.process
        };
        self.tell(
            &id,
            if at_once {
                "is killed"
            } else {
                "is told to stop"
            },
        );
        if at_once {
            // One that does not listen yet, of an agent before this one, is found by its folder.
            let process = process
                .or_else(|| room(&id).process())
                .ok_or_else(|| Problem::conflict("the flow's process is not known"))?;
            kill(process).map_err(|error| Problem::conflict(output::explain(&error)))?;
        } else if let Err(error) = room(&id).ask(&Request::Stop).await {
            let has_ended = self.flow(&id)?.state == State::Ended;
            if !has_ended {
                if let Some(entry) = self.flows.lock().get_mut(&id) {
                    entry.kept.flow.state = flow.state;
                }
                let error = output::explain(&error);
                return Err(Problem::conflict(format!("{error}; it can be killed")));
            }
        }
        self.flow(&id)
    }

    async fn forget_flow(&self, id: FlowId) -> Result<(), Problem> {
        let (_turn, flow) = self.turn(&id).await?;
        if flow.state != State::Ended {
            return Err(Problem::conflict(format!(
                "flow {id} has not ended; stop it first"
            )));
        }
        let room = room(&id);
        off_thread(move || {
            // The folder stays: its name is used.
            for file in ["flow.json", "result.json", "log", "control", "control.last"] {
                let _ = fs::remove_file(room.file(file));
            }
            Ok(())
        })
        .await?;
        self.flows.lock().remove(&id);
        self.tell(&id, "is forgotten");
        Ok(())
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
            storage: super::free_bytes(folder).ok().map(|free_bytes| Storage {
                folder: folder.display().to_string(),
                free_bytes,
            }),
        }
    }

    fn flows(&self) -> Vec<Flow> {
        self.flows
            .lock()
            .values()
            .map(|entry| entry.kept.flow.clone())
            .collect()
    }

    fn start(&self, flow: NewFlow) -> Later<'_, Flow> {
        let agent = Arc::clone(self);
        // Whoever goes away meanwhile leaves no half of a flow behind.
        let done = tokio::spawn(agent.begin(flow));
        Box::pin(async {
            done.await
                .unwrap_or_else(|error| Err(Problem::internal(&error.into())))
        })
    }

    fn change(&self, id: FlowId, revision: u64, change: Change) -> Later<'_, Flow> {
        Box::pin(self.change_flow(id, revision, change))
    }

    fn stop(&self, id: FlowId, kill: bool) -> Later<'_, Flow> {
        Box::pin(self.stop_flow(id, kill))
    }

    fn forget(&self, id: FlowId) -> Later<'_, ()> {
        Box::pin(self.forget_flow(id))
    }

    fn check(&self, flows: Vec<NewFlow>) -> Later<'_, Vec<Checked>> {
        let agent = Arc::clone(self);
        Box::pin(off_thread(move || Ok(agent.check_flows(&flows))))
    }

    fn result(&self, id: FlowId) -> Later<'_, Body> {
        Box::pin(async move {
            self.flow(&id)?;
            let room = room(&id);
            let result = off_thread(move || Ok(room.result())).await?;
            let (file, length) = result.ok_or_else(|| {
                Problem::new(
                    axum::http::StatusCode::NOT_FOUND,
                    format!("flow {id} has no result yet"),
                )
            })?;
            Ok(file_body(file, length))
        })
    }

    fn log(&self, id: FlowId) -> Later<'_, String> {
        Box::pin(async move {
            self.flow(&id)?;
            let room = room(&id);
            off_thread(move || Ok(room.log().unwrap_or_default())).await
        })
    }
}

/// The options of a flow that may be shown.
fn shown(command: &Command, new: &NewFlow) -> crate::control::flow::Options {
    let options = new.options.iter();
    let open = options.filter(|(name, _)| command.care(name) != Care::Secret);
    open.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn room(id: &FlowId) -> Room {
    Room(rooms().join(id.as_str()))
}

fn make(room: &Room, kept: &Kept, allowed: &Allowed) -> Result<Child, Problem> {
    let made = || -> Result<Child> {
        // An agent that is killed leaves either all of it or nothing that has its name.
        let draft = Room(rooms().join(format!(".new-{}", kept.flow.id)));
        let _ = fs::remove_dir_all(&draft.0);
        private_folder(&draft.0)?;
        write(&draft, kept)?;
        fs::rename(&draft.0, &room.0)?;
        room.start(allowed)
    };
    made().map_err(|error| {
        // It never was: its name can be used.
        let _ = fs::remove_dir_all(&room.0);
        Problem::internal(&error)
    })
}

fn write(room: &Room, kept: &Kept) -> Result<()> {
    write_private(
        &room.file("flow.json"),
        &serde_json::to_string_pretty(kept)?,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates count together only while they are sent together.
    #[test]
    fn rates_are_summed_in_time() {
        let sends = |rate, from, until| Sends {
            rate: Some(rate),
            from,
            until,
        };
        let first = sends(60, 0.0, 10.0);
        let second = sends(60, 10.0, 20.0);
        let third = sends(30, 5.0, 15.0);
        assert_eq!(second.beside(&[first]), 0);
        assert_eq!(third.beside(&[first, second]), 60);
        assert_eq!(
            sends(1, 0.0, f64::INFINITY).beside(&[first, second, third]),
            90
        );
        assert_eq!(first.beside(&[third, sends(5, 9.0, f64::INFINITY)]), 35);
        let nothing = Sends {
            rate: None,
            ..first
        };
        assert_eq!(first.beside(&[nothing]), 0);
    }

    /// A flow that runs on after its time takes up its rate until it has ended.
    #[test]
    fn a_flow_past_its_time_still_sends() {
        let flow = serde_json::json!({"id": "a", "host": "ef", "command": "send", "options": {}, "revision": 1,
            "state": "running", "started": 0.0});
        let kept = serde_json::json!({"flow": flow, "rate": 60, "from": 0.0, "until": 10.0});
        let kept: Kept = serde_json::from_value(kept).unwrap();
        let new = Sends {
            rate: Some(1),
            from: 12.0,
            until: 20.0,
        };
        assert_eq!(new.beside(&[Sends::kept(&kept, 5.0)]), 0);
        assert_eq!(new.beside(&[Sends::kept(&kept, 12.0)]), 60);
    }
}
