//! The hosts of a session: polls their agents for all flows, and sends them requests.

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

/// Interval between polls of an agent.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum length of a flow's result that is read as a whole, in bytes.
const MAX_RESULT: usize = 64 << 20;

/// Error: the result of a flow cannot be read as a whole.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResultError {
    /// The agent does not return it.
    #[error("{0}")]
    Refused(#[from] Problem),
    /// It is incomplete or too long.
    #[error(
        "the result of flow {id} is incomplete, or longer than {MAX_RESULT} bytes: read it from its agent"
    )]
    Cut {
        /// Name of the flow.
        id: FlowId,
        /// Error while reading.
        source: axum::Error,
    },
    /// It is not valid JSON.
    #[error("invalid result of flow {id}")]
    Odd {
        /// Name of the flow.
        id: FlowId,
        /// Error of the parser.
        source: serde_json::Error,
    },
}

/// Hosts of a session, with their flows.
pub(crate) struct Hosts {
    name: String,
    started: f64,
    pub hosts: Vec<Connected>,
    pub history: Arc<History>,
    /// Prefix of the names of this run's flows; others are ignored.
    only: Option<String>,
    known: Mutex<Known>,
    plan: Mutex<Option<SessionPlan>>,
}

/// Host with a client of its agent.
pub(crate) struct Connected {
    pub plan: Host,
    pub agent: Box<dyn Remote>,
}

#[derive(Default)]
struct Known {
    /// Flows by name and host: agents do not know the names used on other hosts.
    flows: BTreeMap<(FlowId, String), Flow>,
    /// Number of flows that were updated from answers other than polls.
    kept: u64,
    /// Hosts that have answered at least once, and hosts that do not answer now, with the reason.
    heard: BTreeSet<String>,
    silent: BTreeMap<String, String>,
}

impl Known {
    /// Returns the flows of this name.
    fn called(&self, id: &FlowId) -> impl Iterator<Item = &Flow> {
        self.flows.values().filter(move |flow| flow.id == *id)
    }

    /// Stores the state of a flow, with the name that the session has for its host.
    fn insert(&mut self, host: &Host, flow: Flow) -> Flow {
        let flow = Flow {
            host: host.name.clone(),
            ..flow
        };
        let key = (flow.id.clone(), flow.host.clone());
        self.flows.insert(key, flow.clone());
        flow
    }

    /// Returns the flow of this name. If several hosts have one, returns the only one that has not ended.
    fn only(&self, id: &FlowId) -> Reply<&Flow> {
        let (ended, running): (Vec<&Flow>, Vec<&Flow>) =
            self.called(id).partition(|flow| flow.has_ended());
        match (running.as_slice(), ended.as_slice()) {
            ([flow], _) | ([], [flow]) => Ok(flow),
            ([], []) => Err(Problem::unknown(id)),
            ([one, other, ..], _) | ([], [one, other, ..]) => Err(Problem::conflict(format!(
                "both {} and {} have a flow {id}: use their agents directly, and give each flow its own name",
                one.host, other.host
            ))),
        }
    }
}

impl Hosts {
    /// Starts polling the hosts' agents. `only` limits the known flows to names that start with it and a dot.
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

    /// Waits until every agent has answered or failed to answer.
    pub async fn wait_for_answers(&self) {
        let is_known = |host: &Connected| {
            let known = self.known.lock();
            known.heard.contains(&host.plan.name) || known.silent.contains_key(&host.plan.name)
        };
        while !self.hosts.iter().all(is_known) {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the hosts that do not answer, with the reason.
    pub fn silent(&self) -> BTreeMap<String, String> {
        self.known.lock().silent.clone()
    }

    /// Publishes the plan of the session.
    pub fn show(&self, plan: SessionPlan) {
        *self.plan.lock() = Some(plan);
    }

    /// Returns the state of the session, if there is one.
    pub fn session_state(&self) -> Option<SessionState> {
        self.plan.lock().as_ref().map(|plan| plan.state)
    }

    async fn follow(self: Arc<Hosts>, number: usize) {
        let host = &self.hosts[number];
        let mut last_event = None;
        loop {
            let polled = self.poll(host, &mut last_event).await;
            self.note(&host.plan, polled.err());
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn poll(&self, host: &Connected, last_event: &mut Option<i64>) -> Reply<()> {
        let Connected { plan, agent } = host;
        let begun = self.known.lock().kept;
        let (flows, events) = tokio::join!(agent.flows(), agent.events(last_event.unwrap_or(0)));
        let (flows, events) = (flows?, events?);
        for event in &events {
            // Events from before this controller started stay in the agent's history.
            if last_event.is_some() && event.flow.as_deref().is_none_or(|flow| self.is_ours(flow)) {
                let flow = event.flow.as_ref().and_then(|flow| flow.parse().ok());
                self.history.tell(&plan.name, flow.as_ref(), &event.text);
            }
        }
        let last = events.last().map(|event| event.id);
        *last_event = last.or(*last_event).or(Some(0));
        let mut known = self.known.lock();
        if known.kept != begun {
            // An answer that arrived during this poll is newer; the next poll includes it.
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
                let news = format!("{error}; flows there keep running");
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

    /// Returns the host of a flow.
    fn of(&self, id: &FlowId) -> Reply<&Connected> {
        let host = self.known.lock().only(id)?.host.clone();
        self.named(&host)
    }

    pub fn named(&self, name: &str) -> Reply<&Connected> {
        let found = self.hosts.iter().find(|host| host.plan.name == name);
        let missing = || format!("there is no host {}", name.escape_debug());
        found.ok_or_else(|| Problem::unprocessable(missing()))
    }

    /// Finds a flow by its name, or by the end of its name after a dot. Prefers a flow that has not ended, then the one that started last.
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
                "`{name}` can be {} or {}: give more of the name",
                one.id, other.id
            ))),
        }
    }

    /// Reads the result of a flow as a whole, up to `MAX_RESULT` bytes.
    pub async fn whole_result(&self, id: &FlowId) -> Result<Value, ResultError> {
        let result = self.of(id)?.agent.result(id.clone()).await?;
        let bytes = to_bytes(result, MAX_RESULT).await;
        let id = || id.clone();
        let bytes = bytes.map_err(|source| ResultError::Cut { id: id(), source })?;
        serde_json::from_slice(&bytes).map_err(|source| ResultError::Odd { id: id(), source })
    }

    /// Stores the state of a flow from an agent's answer, without waiting for the next poll.
    fn keep(&self, host: &Connected, flow: Flow) -> Flow {
        let mut known = self.known.lock();
        known.kept += 1;
        known.insert(&host.plan, flow)
    }

    /// Returns the flows that have not ended and that receive data from other flows, or those that do not.
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
        // A flow may be running even if its agent did not answer the start.
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
            (Drive::End, SessionState::Running) => Ok((SessionState::Ending, "the session ends")),
            (Drive::Begin, _) => Err("the session has already begun"),
            (Drive::End, SessionState::Held) => Err("the session has not begun"),
            (Drive::End, _) => Err("the session is already ending"),
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
            let unnamed = || Problem::unprocessable("no host: give the `host` to run the flow on");
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
                let unnamed = || Problem::unprocessable("no host: give the `host` of each flow");
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

/// Returns whether senders need not wait for a receiver any longer. Data sent to a receiver that does not listen yet is lost.
pub fn listens_or_has_ended(flow: &Flow) -> bool {
    let status = flow.status.as_ref();
    flow.has_ended() || status.is_some_and(|status| !status.listening.is_empty())
}
