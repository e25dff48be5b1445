//! The hosts of a session: their agents are asked how all flows are, and told what is wanted of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::body::Body;
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;

use super::plan::Host;
use super::trust::Trusted;
use crate::control::client::Client;
use crate::control::fleet::{About, Checked, Drive, NO_SESSION, SessionPlan, SessionState};
use crate::control::flow::{Flow, FlowId, NewFlow, State};
use crate::control::history::History;
use crate::control::{Fleet, Later, Problem};
use crate::steer::Change;
use crate::units::now;

/// How often each agent is asked.
const LOOK: Duration = Duration::from_millis(500);

/// Hosts with their flows.
pub struct Hosts {
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
pub struct Connected {
    pub plan: Host,
    pub client: Client,
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

    /// The flow of this name: of several, on several hosts, the only one that has not ended.
    fn only(&self, id: &FlowId) -> Result<&Flow, Problem> {
        let (ended, running): (Vec<&Flow>, Vec<&Flow>) =
            self.called(id).partition(|flow| has_ended(flow));
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
        hosts: &[&Host],
        trusted: &Trusted,
        history: Arc<History>,
        only: Option<&str>,
    ) -> Result<Arc<Hosts>> {
        let connect = |host: &&Host| {
            Ok(Connected {
                client: host.client(trusted)?,
                plan: (*host).clone(),
            })
        };
        let hosts = Arc::new(Hosts {
            name: name.to_owned(),
            started: now(),
            hosts: hosts.iter().map(connect).collect::<Result<_>>()?,
            history,
            only: only.map(str::to_owned),
            known: Mutex::default(),
            plan: Mutex::default(),
        });
        for number in 0..hosts.hosts.len() {
            tokio::spawn(Arc::clone(&hosts).follow(number));
        }
        Ok(hosts)
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
        let Connected { plan, client } = &self.hosts[number];
        let mut last_event = None;
        loop {
            let looked = self.look(plan, client, &mut last_event).await;
            self.note(plan, looked.err());
            sleep(LOOK).await;
        }
    }

    async fn look(
        &self,
        plan: &Host,
        client: &Client,
        last_event: &mut Option<i64>,
    ) -> Result<(), Problem> {
        let begun = self.known.lock().kept;
        let (flows, events) = tokio::join!(client.flows(), client.events(last_event.unwrap_or(0)));
        let (flows, events) = (flows?, events?);
        for event in &events {
            // What happened before this was here is the agent's to tell.
            if last_event.is_some() && event.flow.as_deref().is_none_or(|flow| self.is_ours(flow)) {
                let flow = event.flow.as_ref().and_then(|flow| flow.parse().ok());
                self.history.tell(&plan.name, flow.as_ref(), &event.text);
            }
        }
        *last_event = Some(
            events
                .last()
                .map_or(last_event.unwrap_or(0), |event| event.id),
        );
        let mut known = self.known.lock();
        if known.kept != begun {
            // What was answered meanwhile is newer: the next look has all of it.
            return Ok(());
        }
        known.flows.retain(|_, flow| flow.host != plan.name);
        for flow in flows
            .into_iter()
            .filter(|flow| self.is_ours(flow.id.as_str()))
        {
            let flow = Flow {
                host: plan.name.clone(),
                ..flow
            };
            known
                .flows
                .insert((flow.id.clone(), flow.host.clone()), flow);
        }
        Ok(())
    }

    fn note(&self, plan: &Host, problem: Option<Problem>) {
        let news = {
            let mut known = self.known.lock();
            match problem {
                None => {
                    known.heard.insert(plan.name.clone());
                    let was_silent = known.silent.remove(&plan.name).is_some();
                    was_silent.then(|| "the agent answers again".to_owned())
                }
                Some(problem) => {
                    let is_news = known
                        .silent
                        .insert(plan.name.clone(), problem.error.clone())
                        .is_none();
                    is_news.then(|| format!("{}; flows there go on without it", problem.error))
                }
            }
        };
        if let Some(news) = news {
            self.history.tell(&plan.name, None, &news);
        }
    }

    fn is_ours(&self, flow: &str) -> bool {
        self.only.as_ref().is_none_or(|only| {
            flow.strip_prefix(only.as_str())
                .is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// The host of a flow that is known.
    fn of(&self, id: &FlowId) -> Result<&Connected, Problem> {
        let host = self.known.lock().only(id)?.host.clone();
        self.named(&host)
    }

    pub fn named(&self, name: &str) -> Result<&Connected, Problem> {
        let found = self.hosts.iter().find(|host| host.plan.name == name);
        found.ok_or_else(|| {
            Problem::unprocessable(format!("there is no host {}", name.escape_debug()))
        })
    }

    /// The flow that is meant by a name, or by the end of one after a dot: one that has not ended before others, and of
    /// those that have the last.
    pub fn find(&self, name: &str) -> Result<Flow, Problem> {
        let known = self.known.lock();
        if let Ok(id) = name.parse::<FlowId>()
            && known.called(&id).next().is_some()
        {
            return known.only(&id).cloned();
        }
        let ending = format!(".{name}");
        let called = known
            .flows
            .values()
            .filter(|flow| flow.id.as_str().ends_with(&ending));
        let (ended, running): (Vec<&Flow>, Vec<&Flow>) = called.partition(|flow| has_ended(flow));
        let last = ended
            .into_iter()
            .max_by(|a, b| a.started.total_cmp(&b.started));
        match running.as_slice() {
            [only] => Ok((*only).clone()),
            [] => last.cloned().ok_or_else(|| {
                let error = format!("there is no flow {}", name.escape_debug());
                Problem::new(StatusCode::NOT_FOUND, error)
            }),
            [one, other, ..] => Err(Problem::conflict(format!(
                "`{name}` may be {} or {}; write more of it",
                one.id, other.id
            ))),
        }
    }

    /// What a flow printed as its result.
    pub async fn whole_result(&self, id: &FlowId) -> Result<Value, Problem> {
        self.of(id)?.client.whole_result(id).await
    }

    /// What an agent answered of a flow is known at once.
    fn keep(&self, host: &Connected, flow: Flow) -> Flow {
        let flow = Flow {
            host: host.plan.name.clone(),
            ..flow
        };
        let mut known = self.known.lock();
        known.kept += 1;
        known
            .flows
            .insert((flow.id.clone(), flow.host.clone()), flow.clone());
        flow
    }

    /// Starts a flow on a host.
    pub async fn begin(&self, mut flow: NewFlow) -> Result<Flow, Problem> {
        let host = match (flow.host.take(), self.hosts.as_slice()) {
            (Some(name), _) => self.named(&name)?,
            (None, [only]) => only,
            (None, _) => {
                return Err(Problem::unprocessable(
                    "name the `host` that the flow is to run on",
                ));
            }
        };
        if let Some(only) = self
            .only
            .as_ref()
            .filter(|_| !self.is_ours(flow.id.as_str()))
        {
            let id = format!("{only}.{}", flow.id);
            flow.id = id.parse().map_err(Problem::unprocessable)?;
        }
        if self.known.lock().called(&flow.id).next().is_some() {
            return Err(Problem::conflict(format!(
                "the name {} was used before; a flow has a name of its own",
                flow.id
            )));
        }
        let begun = host.client.start(&flow).await?;
        Ok(self.keep(host, begun))
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
        let plan = self.plan.lock().clone()?;
        Some(SessionPlan {
            silent: self.silent(),
            ..plan
        })
    }

    fn drive(&self, drive: Drive) -> Result<SessionPlan, Problem> {
        let mut plan = self.plan.lock();
        let missing = || Problem::new(StatusCode::NOT_FOUND, NO_SESSION);
        let plan = plan.as_mut().ok_or_else(missing)?;
        let (state, said) = match (drive, plan.state) {
            (Drive::Begin, SessionState::Held) => (SessionState::Running, "the session begins"),
            (Drive::End, SessionState::Running) => (SessionState::Ending, "the session is ended"),
            (Drive::Begin, _) => return Err(Problem::conflict("the session has begun already")),
            (Drive::End, SessionState::Held) => {
                return Err(Problem::conflict("the session has not begun"));
            }
            (Drive::End, _) => return Err(Problem::conflict("the session ends already")),
        };
        plan.state = state;
        self.history.tell(&self.name, None, said);
        Ok(SessionPlan {
            silent: self.silent(),
            ..plan.clone()
        })
    }

    fn start(&self, flow: NewFlow) -> Later<'_, Flow> {
        Box::pin(self.begin(flow))
    }

    fn change(&self, id: FlowId, revision: u64, change: Change) -> Later<'_, Flow> {
        Box::pin(async move {
            let host = self.of(&id)?;
            Ok(self.keep(host, host.client.change(&id, revision, &change).await?))
        })
    }

    fn stop(&self, id: FlowId, kill: bool) -> Later<'_, Flow> {
        Box::pin(async move {
            let host = self.of(&id)?;
            Ok(self.keep(host, host.client.stop(&id, kill).await?))
        })
    }

    fn forget(&self, id: FlowId) -> Later<'_, ()> {
        Box::pin(async move {
            let host = self.of(&id)?;
            host.client.forget(&id).await?;
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
                let name = flow.host.take();
                let name =
                    name.ok_or_else(|| Problem::unprocessable("name the `host` of each flow"))?;
                checked.extend(self.named(&name)?.client.check(&[flow]).await?);
            }
            Ok(checked)
        })
    }

    fn result(&self, id: FlowId) -> Later<'_, Body> {
        Box::pin(async move {
            let response = self.of(&id)?.client.result(&id).await?;
            Ok(Body::new(reqwest::Body::from(response)))
        })
    }

    fn log(&self, id: FlowId) -> Later<'_, String> {
        Box::pin(async move { self.of(&id)?.client.log(&id).await })
    }
}

/// Whether a flow is over.
pub fn has_ended(flow: &Flow) -> bool {
    flow.state == State::Ended
}

/// Whether nobody waits any longer for a receiver to listen. What is sent to one that does not listen yet is lost.
pub fn listens_or_has_ended(flow: &Flow) -> bool {
    let status = flow.status.as_ref();
    has_ended(flow) || status.is_some_and(|status| !status.listening.is_empty())
}
