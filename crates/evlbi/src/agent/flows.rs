//! The flows of a host: started, followed to their ends, found again by an agent that is started anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use evlbi_core::rate::BitRate;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::process::Child;
use tokio::time::{Instant, sleep};

use super::config::Config;
use super::guard::{self, Allowed};
use super::process::{Room, kill, rooms};
use crate::control::api::off_thread;
use crate::control::commands::{Care, Command};
use crate::control::fleet::{About, Checked, Storage};
use crate::control::flow::{End, Flow, FlowId, NewFlow, Outcome, State};
use crate::control::history::History;
use crate::control::identity::{private_folder, write_private};
use crate::control::{Fleet, Later, Problem};
use crate::output;
use crate::steer::{Answer, Change, Request, Status};
use crate::units::now;

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
    started: f64,
    flows: Mutex<BTreeMap<FlowId, Entry>>,
}

/// A flow, and what is needed to keep it.
#[derive(Clone)]
struct Entry {
    kept: Kept,
    process: Option<u32>,
    /// Held by whoever changes the flow.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// What of a flow outlives its agent.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    flow: Flow,
    /// Bits a second that it was asked to send.
    rate: Option<u64>,
}

impl Agent {
    /// With the flows that an agent before this one started, of which some may still run.
    pub fn open(config: Config, history: Arc<History>) -> Result<Arc<Agent>> {
        private_folder(rooms())?;
        let agent = Arc::new(Agent {
            config,
            history,
            started: now(),
            flows: Mutex::default(),
        });
        for folder in fs::read_dir(rooms())? {
            let folder = folder?.path();
            if let Err(error) = agent.find(&folder) {
                tracing::warn!("{}: {}", folder.display(), output::explain(&error));
            }
        }
        Ok(agent)
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
            turn: Arc::default(),
        };
        self.lock().insert(id.clone(), entry);
        if !has_ended {
            let agent = Arc::clone(self);
            tokio::spawn(async move { agent.follow(id, None).await });
        }
        Ok(())
    }

    /// How many flows have not ended.
    pub fn running(&self) -> usize {
        let flows = self.lock();
        let running = flows
            .values()
            .filter(|entry| entry.kept.flow.state != State::Ended);
        running.count()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FlowId, Entry>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flow(&self, id: &FlowId) -> Result<Flow, Problem> {
        let flows = self.lock();
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
            let allowed =
                guard::allow(&new, &agent.config, true).map_err(|error| output::explain(&error));
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
        };
        self.take_place(&kept)?;
        let child = match make(&room, &kept, &allowed) {
            Ok(child) => child,
            Err(problem) => {
                self.lock().remove(&id);
                return Err(problem);
            }
        };
        if let Some(entry) = self.lock().get_mut(&id) {
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
        let mut together = 0;
        let mut taken = BTreeSet::new();
        let found = new.iter().map(|new| {
            let mut problems = Vec::new();
            if self.lock().contains_key(&new.id) || room(&new.id).0.exists() {
                problems.push(format!("the name {} was used before", new.id));
            }
            let allowed = guard::allow(new, &self.config, false).and_then(|allowed| {
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
                    together += allowed.rate.unwrap_or(0);
                    allowed
                        .rate
                        .or_else(|| guard::rate_of_source(new, &self.config))
                }
                Err(error) => {
                    problems.push(output::explain(&error));
                    None
                }
            };
            if let Err(problem) = self.check_rate(&self.lock(), &new.id, Some(together)) {
                problems.push(problem.error);
            }
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
        let mut flows = self.lock();
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
        self.check_rate(&flows, id, kept.rate)?;
        let entry = Entry {
            kept: kept.clone(),
            process: None,
            turn: Arc::default(),
        };
        flows.insert(id.clone(), entry);
        Ok(())
    }

    /// Whether a flow may send at a rate beside all others.
    fn check_rate(
        &self,
        flows: &BTreeMap<FlowId, Entry>,
        id: &FlowId,
        rate: Option<u64>,
    ) -> Result<(), Problem> {
        let (Some(most), Some(rate)) = (self.config.max_rate, rate) else {
            return Ok(());
        };
        let others = flows
            .iter()
            .filter(|(other, entry)| *other != id && entry.kept.flow.state != State::Ended);
        let taken: u64 = others.filter_map(|(_, entry)| entry.kept.rate).sum();
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

    /// Asks a flow how it is until it is gone. A new one has no socket yet: its process is watched by who calls.
    async fn listen_to(&self, id: &FlowId, room: &Room, is_new: bool) {
        let begun = Instant::now();
        let mut line = loop {
            match room.connect().await {
                Ok(line) => break line,
                Err(_) if is_new => sleep(LOOK_EARLY).await,
                Err(_) => return,
            }
        };
        if let Some(entry) = self.lock().get_mut(id) {
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
        if let Some(entry) = self.lock().get_mut(id) {
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
            let mut flows = self.lock();
            let Some(entry) = flows.get_mut(id) else {
                return;
            };
            let flow = &mut entry.kept.flow;
            let (outcome, message) = room.outcome(status, flow.state == State::Stopping);
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
            };
            let why = message
                .as_ref()
                .map_or_else(String::new, |message| format!(": {message}"));
            self.tell(id, &format!("{how}{why}"));
        }
    }

    /// Writes down what has to outlive this agent.
    fn keep(&self, room: &Room, kept: &Kept) {
        if let Err(error) = write(room, kept) {
            let error = output::explain(&error);
            tracing::warn!(
                "an agent that is started anew will know flow {} by what it was: {error}",
                kept.flow.id
            );
        }
    }

    /// The flow's turn, and the flow when that has come.
    async fn turn(&self, id: &FlowId) -> Result<(tokio::sync::OwnedMutexGuard<()>, Flow), Problem> {
        let turn = {
            let flows = self.lock();
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
            if let Some(entry) = self.lock().get_mut(&id) {
                entry.kept.rate = before;
            }
            return Err(problem);
        }
        let kept = {
            let mut flows = self.lock();
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
        let mut flows = self.lock();
        self.check_rate(&flows, id, rate)?;
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
            let mut flows = self.lock();
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
            let process =
                process.ok_or_else(|| Problem::conflict("the flow's process is not known"))?;
            kill(process).map_err(|error| Problem::conflict(output::explain(&error)))?;
        } else if let Err(error) = room(&id).ask(&Request::Stop).await {
            let has_ended = self.flow(&id)?.state == State::Ended;
            if !has_ended {
                if let Some(entry) = self.lock().get_mut(&id) {
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
        self.lock().remove(&id);
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
        self.lock()
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

    fn result(&self, id: FlowId) -> Later<'_, Value> {
        Box::pin(async move {
            self.flow(&id)?;
            let room = room(&id);
            let result = off_thread(move || Ok(room.result())).await?;
            result.ok_or_else(|| {
                Problem::new(
                    axum::http::StatusCode::NOT_FOUND,
                    format!("flow {id} has no result yet"),
                )
            })
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
        private_folder(&room.0)?;
        write(room, kept)?;
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
