//! The hosts of a session: their agents are asked how all flows are, and told what is wanted of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use evlbi_stream::control_socket::Change;
use parking_lot::Mutex;
use serde_json::Value;
use thiserror::Error;
use tokio::time::sleep;

use super::plan::Host;
use crate::fleet::{About, Checked, Drive, NO_SESSION, SessionPlan, SessionState};
use crate::flow::{Flow, FlowId, NewFlow};
use crate::history::History;
use crate::time::now;
use crate::{Control, Fleet, Later, Problem, Remote, Reply, commands};

/// How often each agent is asked.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Longest result of a flow that is read as a whole, in bytes.
const MAX_RESULT: usize = 64 << 20;

/// Why the result of a flow cannot be had as a whole.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResultError {
    /// Its agent does not give it.
    #[error("{0}")]
    Refused(#[from] Problem),
    /// It did not come to its end.
    #[error(
        "the result of flow {id} broke off, or is longer than {MAX_RESULT} bytes: read it from its agent"
    )]
    Cut {
        /// The flow.
        id: FlowId,
        /// What ended it.
        source: axum::Error,
    },
    /// It is no JSON.
    #[error("the result of flow {id}")]
    Odd {
        /// The flow.
        id: FlowId,
        /// Where it is none.
        source: serde_json::Error,
    },
}

/// Hosts with their flows.
pub(crate) struct Hosts {
    name: String,
    started: f64,
    pub hosts: Vec<Connected>,
    pub history: Arc<History>,
    /// Flows whose names do not begin with this are others' matter.
    only: Option<String>,
    known: Mutex<Known>,
    plan: Mutex<Option<SessionPlan>>,
}

/// A host, and the way to its agent.
pub(crate) struct Connected {
    pub plan: Host,
    pub agent: Box<dyn Remote>,
}

#[derive(Default)]
struct Known {
    /// By name and host: agents do not know of each other's names.
    flows: BTreeMap<(FlowId, String), Flow>,
    /// How often one was answered of by itself.
    kept: u64,
    /// Hosts that were heard at least once, and those that do not answer now.
    heard: BTreeSet<String>,
    silent: BTreeMap<String, String>,
}

impl Known {
    /// The flows of this very name.
    fn called(&self, id: &FlowId) -> impl Iterator<Item = &Flow> {
        self.flows.values().filter(move |flow| flow.id == *id)
    }

    /// Takes down how a flow is that an agent runs, by the host's name that is known here.
    fn insert(&mut self, host: &Host, flow: Flow) -> Flow {
        let flow = Flow {
            host: host.name.clone(),
            ..flow
        };
        let key = (flow.id.clone(), flow.host.clone());
        self.flows.insert(key, flow.clone());
        flow
    }

    /// The flow of this name: of several, on several hosts, the only one that has not ended.
    fn only(&self, id: &FlowId) -> Reply<&Flow> {
        let (ended, running): (Vec<&Flow>, Vec<&Flow>) =
            self.called(id).partition(|flow| flow.has_ended());
        match (running.as_slice(), ended.as_slice()) {
            ([flow], _) | ([], [flow]) => Ok(flow),
            ([], []) => Err(Problem::unknown(id)),
            ([one, other, ..], _) | ([], [one, other, ..]) => Err(Problem::conflict(format!(
                "there is a flow {id} on {} and one on {}: see to them on their own agents, and give each flow a name of its own",
                one.host, other.host
            ))),
        }
    }
}

impl Hosts {
    /// Begins to ask the hosts' agents. `only`: what the names of flows begin with.
    pub fn open(
        name: &str,
        hosts: Vec<Connected>,
        history: Arc<History>,
        only: Option<&str>,
    ) -> Arc<Hosts> {
        let hosts = Arc::new(Hosts {
            name: name.to_owned(),
            started: now(),
            hosts,
            history,
            only: only.map(str::to_owned),
            known: Mutex::default(),
            plan: Mutex::default(),
        });
        for number in 0..hosts.hosts.len() {
            tokio::spawn(Arc::clone(&hosts).follow(number));
        }
        hosts
    }

    /// Waits until every agent has answered, or is known not to.
    pub async fn look_around(&self) {
        let is_known = |host: &Connected| {
            let known = self.known.lock();
            known.heard.contains(&host.plan.name) || known.silent.contains_key(&host.plan.name)
        };
        while !self.hosts.iter().all(is_known) {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Why hosts do not answer that do not.
    pub fn silent(&self) -> BTreeMap<String, String> {
        self.known.lock().silent.clone()
    }

    /// What is to come is now this.
    pub fn show(&self, plan: SessionPlan) {
        *self.plan.lock() = Some(plan);
    }

    /// How far the session is, where there is one.
    pub fn session_state(&self) -> Option<SessionState> {
        self.plan.lock().as_ref().map(|plan| plan.state)
    }

    async fn follow(self: Arc<Hosts>, number: usize) {
        let host = &self.hosts[number];
        let mut last_event = None;
        loop {
            let looked = self.look(host, &mut last_event).await;
            self.note(&host.plan, looked.err());
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn look(&self, host: &Connected, last_event: &mut Option<i64>) -> Reply<()> {
        let Connected { plan, agent } = host;
        let begun = self.known.lock().kept;
        let (flows, events) = tokio::join!(agent.flows(), agent.events(last_event.unwrap_or(0)));
        let (flows, events) = (flows?, events?);
        for event in &events {
            // What happened before this was here is the agent's to tell.
            if last_event.is_some() && event.flow.as_deref().is_none_or(|flow| self.is_ours(flow)) {
                let flow = event.flow.as_ref().and_then(|flow| flow.parse().ok());
                self.history.tell(&plan.name, flow.as_ref(), &event.text);
            }
        }
        let last = events.last().map(|event| event.id);
        *last_event = last.or(*last_event).or(Some(0));
        let mut known = self.known.lock();
        if known.kept != begun {
            // What was answered meanwhile is newer: the next look has all of it.
            return Ok(());
        }
        known.flows.retain(|_, flow| flow.host != plan.name);
        for flow in flows {
            if self.is_ours(flow.id.as_str()) {
                known.insert(plan, flow);
            }
        }
        Ok(())
    }

    fn note(&self, plan: &Host, problem: Option<Problem>) {
        let name = plan.name.clone();
        let mut known = self.known.lock();
        let news = match problem {
            None => {
                let was_silent = known.silent.remove(&name).is_some();
                known.heard.insert(name);
                was_silent.then(|| "the agent answers again".to_owned())
            }
            Some(Problem { error, .. }) => {
                let news = format!("{error}; flows there go on without it");
                let before = known.silent.insert(name, error);
                before.is_none().then_some(news)
            }
        };
        drop(known);
        if let Some(news) = news {
            self.history.tell(&plan.name, None, &news);
        }
    }

    fn is_ours(&self, flow: &str) -> bool {
        let is_below = |only: &String| {
            let rest = flow.strip_prefix(only.as_str());
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        self.only.as_ref().is_none_or(is_below)
    }

    /// The host of a flow that is known.
    fn of(&self, id: &FlowId) -> Reply<&Connected> {
        let host = self.known.lock().only(id)?.host.clone();
        self.named(&host)
    }

    pub fn named(&self, name: &str) -> Reply<&Connected> {
        let found = self.hosts.iter().find(|host| host.plan.name == name);
        let missing = || format!("there is no host {}", name.escape_debug());
        found.ok_or_else(|| Problem::unprocessable(missing()))
    }

    /// The flow that is meant by a name, or by the end of one after a dot: one that has not ended before others, and of
    /// those that have the last.
    pub fn find(&self, name: &str) -> Reply<Flow> {
        let known = self.known.lock();
        if let Ok(id) = name.parse::<FlowId>()
            && known.called(&id).next().is_some()
        {
            return known.only(&id).cloned();
        }
        let ending = format!(".{name}");
        let called = known.flows.values();
        let called = called.filter(|flow| flow.id.as_str().ends_with(&ending));
        let (ended, running): (Vec<&Flow>, Vec<&Flow>) = called.partition(|flow| flow.has_ended());
        let ended = ended.into_iter();
        let last = ended.max_by(|a, b| a.started.total_cmp(&b.started));
        let missing = || Problem::missing(format!("there is no flow {}", name.escape_debug()));
        match running.as_slice() {
            [only] => Ok((*only).clone()),
            [] => last.cloned().ok_or_else(missing),
            [one, other, ..] => Err(Problem::conflict(format!(
                "`{name}` may be {} or {}; write more of it",
                one.id, other.id
            ))),
        }
    }

    /// What a flow printed as its result, if it is not too long to be read as a whole.
    pub async fn whole_result(&self, id: &FlowId) -> Result<Value, ResultError> {
        let result = self.of(id)?.agent.result(id.clone()).await?;
        let bytes = to_bytes(result, MAX_RESULT).await;
        let id = || id.clone();
        let bytes = bytes.map_err(|source| ResultError::Cut { id: id(), source })?;
        serde_json::from_slice(&bytes).map_err(|source| ResultError::Odd { id: id(), source })
    }

    /// What an agent answered of a flow is known at once.
    fn keep(&self, host: &Connected, flow: Flow) -> Flow {
        let mut known = self.known.lock();
        known.kept += 1;
        known.insert(&host.plan, flow)
    }

    /// Those that have not ended, and wait for data of others or do not.
    pub fn running(&self, listens: bool) -> Vec<FlowId> {
        let known = self.known.lock();
        let all = known.flows.values();
        let running = all.filter(|flow| {
            let known = commands::Known::of(&flow.command, &flow.options);
            !flow.has_ended() && known.listens() == listens
        });
        running.map(|flow| flow.id.clone()).collect()
    }
}

impl Fleet for Arc<Hosts> {
    fn about(&self) -> About {
        About {
            role: "session".to_owned(),
            name: self.only.clone().unwrap_or_else(|| self.name.clone()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: now(),
            started: self.started,
            storage: None,
        }
    }

    fn flows(&self) -> Vec<Flow> {
        self.known.lock().flows.values().cloned().collect()
    }

    fn session(&self) -> Option<SessionPlan> {
        let mut plan = self.plan.lock().clone()?;
        let known = self.known.lock();
        // One whose start was not answered may run all the same.
        (plan.flows).retain(|flow| known.called(&flow.id).next().is_none());
        plan.silent.clone_from(&known.silent);
        Some(plan)
    }

    fn drive(&self, drive: Drive) -> Reply<SessionPlan> {
        let mut plan = self.plan.lock();
        let missing = || Problem::missing(NO_SESSION);
        let plan = plan.as_mut().ok_or_else(missing)?;
        let driven = match (drive, plan.state) {
            (Drive::Begin, SessionState::Held) => Ok((SessionState::Running, "the session begins")),
            (Drive::End, SessionState::Running) => {
                Ok((SessionState::Ending, "the session is ended"))
            }
            (Drive::Begin, _) => Err("the session has begun already"),
            (Drive::End, SessionState::Held) => Err("the session has not begun"),
            (Drive::End, _) => Err("the session ends already"),
        };
        let (state, said) = driven.map_err(Problem::conflict)?;
        plan.state = state;
        self.history.tell(&self.name, None, said);
        Ok(SessionPlan {
            silent: self.silent(),
            ..plan.clone()
        })
    }
}

impl Control for Arc<Hosts> {
    fn start(&self, mut flow: NewFlow) -> Later<'_, Flow> {
        Box::pin(async move {
            let unnamed = || Problem::unprocessable("name the `host` that the flow is to run on");
            let host = match (flow.host.take(), self.hosts.as_slice()) {
                (Some(name), _) => self.named(&name)?,
                (None, [only]) => only,
                (None, _) => return Err(unnamed()),
            };
            if let Some(only) = &self.only
                && !self.is_ours(flow.id.as_str())
            {
                let id = format!("{only}.{}", flow.id);
                flow.id = id.parse().map_err(Problem::unprocessable)?;
            }
            if self.known.lock().called(&flow.id).next().is_some() {
                return Err(Problem::used(&flow.id));
            }
            Ok(self.keep(host, host.agent.start(flow).await?))
        })
    }

    fn change(&self, id: FlowId, revision: u64, change: Change) -> Later<'_, Flow> {
        Box::pin(async move {
            let host = self.of(&id)?;
            Ok(self.keep(host, host.agent.change(id, revision, change).await?))
        })
    }

    fn stop(&self, id: FlowId, kill: bool) -> Later<'_, Flow> {
        Box::pin(async move {
            let host = self.of(&id)?;
            Ok(self.keep(host, host.agent.stop(id, kill).await?))
        })
    }

    fn forget(&self, id: FlowId) -> Later<'_, ()> {
        Box::pin(async move {
            let host = self.of(&id)?;
            host.agent.forget(id.clone()).await?;
            let mut known = self.known.lock();
            known.kept += 1;
            known.flows.remove(&(id, host.plan.name.clone()));
            Ok(())
        })
    }

    fn check(&self, flows: Vec<NewFlow>) -> Later<'_, Vec<Checked>> {
        Box::pin(async move {
            let mut checked = Vec::new();
            for mut flow in flows {
                let unnamed = || Problem::unprocessable("name the `host` of each flow");
                let name = flow.host.take().ok_or_else(unnamed)?;
                checked.extend(self.named(&name)?.agent.check(vec![flow]).await?);
            }
            Ok(checked)
        })
    }

    fn result(&self, id: FlowId) -> Later<'_, Body> {
        Box::pin(async move { self.of(&id)?.agent.result(id).await })
    }

    fn log(&self, id: FlowId) -> Later<'_, String> {
        Box::pin(async move { self.of(&id)?.agent.log(id).await })
    }
}

/// Whether nobody waits any longer for a receiver to listen. What is sent to one that does not listen yet is lost.
pub fn listens_or_has_ended(flow: &Flow) -> bool {
    let status = flow.status.as_ref();
    flow.has_ended() || status.is_some_and(|status| !status.listening.is_empty())
}
