//! Agents in memory, on tokio's clock: their behaviour depends only on requests, the time and the faults of a test. Flows keep running
//! without their agents, as processes do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use evlbi_core::rate::BitRate;
use evlbi_net::transport::Url;
use evlbi_stream::control_socket::{Change, Receiving, Sending, Status};
use evlbi_stream::counters::{Counts, number};
use evlbi_wire::units;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::agent::Load;
use crate::commands::Known;
use crate::fleet::{About, AboutYou, Checked, Storage};
use crate::flow::{End, Flow, FlowId, NewFlow, Outcome, State};
use crate::history::Event;
use crate::identity::Role;
use crate::session::hosts::Connected;
use crate::session::plan::Host;
use crate::time::now;
use crate::{Control, Later, Problem, Remote, Reply};

/// Time until a flow has a status and listens.
pub const READY: Duration = Duration::from_millis(20);
/// Time until an agent answers the start of a flow that has no status.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a flow needs to stop.
pub const ENDING: Duration = Duration::from_millis(10);
/// Timeout for an answer of an agent, as in the HTTP client.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Bits of a datagram.
const DATAGRAM: f64 = 8000.0;

/// All agents of a session; clones share their state.
#[derive(Clone, Default)]
pub struct Fleet(Arc<Mutex<World>>);

/// True state of all hosts, whether or not a controller knows it.
#[derive(Default)]
pub struct World {
    pub agents: BTreeMap<String, Agent>,
    /// All flows that ever ran, sorted by start.
    pub flows: Vec<Process>,
}

/// An agent, and its host.
pub struct Agent {
    is_alive: bool,
    /// Number of its starts.
    life: u32,
    /// Intervals in which it was not running.
    away: Vec<(f64, f64)>,
    events: Vec<Event>,
    /// Time from a request to its answer.
    pub late: Duration,
    /// Seconds that its clock is ahead of the true UTC.
    pub ahead: f64,
    pub free_bytes: u64,
    /// Role of the controller's token.
    pub role: Role,
    /// Reason why it refuses to start flows.
    pub refuses: Option<String>,
    /// Ports that other programs of its host use.
    pub taken: Vec<u16>,
    pub max_rate: Option<BitRate>,
    /// Its receivers never listen.
    pub is_deaf: bool,
    /// Length of the source of its senders, in seconds.
    pub source_s: f64,
}

/// State that an agent loses when it stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Only its process: its flows keep running, and it finds them again.
    Agent,
    /// All processes of its host: it reports its flows as killed.
    Host,
    /// Its files as well: it knows no flows.
    Disk,
}

/// A flow of a host. Times are true UTC in seconds.
pub struct Process {
    pub host: String,
    pub id: FlowId,
    command: String,
    options: BTreeMap<String, Value>,
    revision: u64,
    /// Its agent knows it.
    is_known: bool,
    /// Time of the request to start it.
    pub asked: f64,
    /// Time from which it listens or sends.
    pub begins: f64,
    /// Time at which it ends on its own.
    until: f64,
    told: Option<f64>,
    killed: Option<f64>,
    fails: Option<String>,
    /// Bit rate from each of these times on, in bit/s.
    rates: Vec<(f64, f64)>,
}

impl Default for Agent {
    fn default() -> Agent {
        Agent {
            is_alive: true,
            life: 0,
            away: Vec::new(),
            events: Vec::new(),
            late: Duration::ZERO,
            ahead: 0.0,
            free_bytes: 1 << 40,
            role: Role::Operate,
            refuses: None,
            taken: Vec::new(),
            max_rate: None,
            is_deaf: false,
            source_s: f64::INFINITY,
        }
    }
}

impl Agent {
    /// Returns when the agent notices an event at `time`; infinity if it does not run from then on.
    pub fn sees(&self, time: f64) -> f64 {
        let mut away = self.away.iter();
        let away = away.find(|(from, to)| (*from..*to).contains(&time));
        away.map_or(time, |(_, to)| *to)
    }
}

impl Process {
    fn known(&self) -> Known<'_> {
        Known::of(&self.command, &self.options)
    }

    /// Returns whether its agent knows it.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    pub fn listens(&self) -> bool {
        self.known().listens()
    }

    fn text(&self, option: &str) -> Option<&str> {
        self.options.get(option)?.as_str()
    }

    /// Returns when it ends; infinity while that is open.
    pub fn ends(&self) -> f64 {
        let told = self.told.map(|told| told + ENDING.as_secs_f64());
        let all = [told, self.killed].into_iter().flatten();
        all.fold(self.until, f64::min)
    }

    /// Returns its outcome and the reason.
    pub fn outcome(&self) -> (Outcome, Option<String>) {
        let ends = self.ends();
        if self.killed.is_some_and(|killed| killed <= ends) {
            let why = "ended without a result while no agent was running: it was killed, or its host went down";
            return (Outcome::Killed, Some(why.to_owned()));
        }
        match &self.fails {
            Some(why) => (Outcome::Failed, Some(why.clone())),
            None if ends < self.until => (Outcome::Stopped, None),
            None => (Outcome::Finished, None),
        }
    }

    /// Returns the number of datagrams that it has sent by a time.
    fn sent(&self, time: f64) -> u64 {
        let end = time.min(self.ends());
        let ends = self.rates.iter().skip(1).map(|(from, _)| *from);
        let ends = ends.chain([f64::INFINITY]);
        let bits = self.rates.iter().zip(ends).map(|((from, rate), to)| {
            let seconds = (to.min(end) - from.max(self.begins)).max(0.0);
            seconds * rate
        });
        (bits.sum::<f64>() / DATAGRAM + 1e-3) as u64
    }
}

impl World {
    /// Returns the number of datagrams that a receiver has received by a time; the network loses none.
    fn received(&self, receiver: &Process, time: f64) -> u64 {
        let end = time.min(receiver.ends());
        let own = receiver.known().streams();
        let takes = |to: &Url| own.iter().flatten().any(|own| own.takes(to));
        let senders = self.flows.iter().filter(|flow| !flow.listens());
        let here = senders.filter(|flow| flow.known().destination().is_some_and(|to| takes(&to)));
        here.map(|sender| {
            sender
                .sent(end)
                .saturating_sub(sender.sent(receiver.begins))
        })
        .sum()
    }

    /// Finds the flow of this name that the agent of a host knows.
    fn place(&self, host: &str, id: &FlowId) -> Reply<usize> {
        let is_it = |flow: &Process| flow.host == host && flow.id == *id && flow.is_known;
        let found = self.flows.iter().position(is_it);
        found.ok_or_else(|| Problem::unknown(id))
    }

    fn known(&mut self, host: &str, id: &FlowId) -> Reply<&mut Process> {
        let place = self.place(host, id)?;
        Ok(&mut self.flows[place])
    }

    fn reported(&self, host: &str, id: &FlowId) -> Reply<Flow> {
        Ok(self.report(&self.flows[self.place(host, id)?]))
    }

    /// Returns a flow as its agent reports it now, by its own clock.
    fn report(&self, flow: &Process) -> Flow {
        let agent = &self.agents[&flow.host];
        let now = now();
        let ready = flow.asked + READY.as_secs_f64();
        let seen = agent.sees(flow.ends());
        let has_ended = seen <= now;
        let counted = now.min(flow.ends());
        let (outcome, message) = flow.outcome();
        let rate = flow.rates.iter().rev().find(|(from, _)| *from <= now);
        let rate = rate.map_or(0.0, |(_, rate)| *rate);
        let listening = flow.listens() && flow.begins <= now;
        let status = Status {
            time: counted + agent.ahead,
            line: "at work".to_owned(),
            listening: listening
                .then(|| flow.text("from").unwrap_or_default().to_owned())
                .into_iter()
                .collect(),
            sending: (!flow.listens()).then(|| Sending {
                counts: Counts::from([
                    (
                        "rate_bps",
                        number(if flow.begins <= now && !has_ended {
                            rate
                        } else {
                            0.0
                        }),
                    ),
                    ("offered", flow.sent(counted).into()),
                    ("sent", flow.sent(counted).into()),
                    ("shed", 0.into()),
                ]),
                shed_policy: flow.text("shed").unwrap_or("none").to_owned(),
                ..Sending::default()
            }),
            receiving: (flow.listens().then(|| Receiving {
                counts: Counts::from([
                    ("unique", self.received(flow, counted).into()),
                    ("lost", 0.into()),
                ]),
                ..Receiving::default()
            }))
            .into_iter()
            .collect(),
            ..Status::default()
        };
        Flow {
            id: flow.id.clone(),
            host: flow.host.clone(),
            command: flow.command.clone(),
            options: flow.options.clone(),
            recording: flow.known().recording().map(str::to_owned),
            revision: flow.revision,
            state: match () {
                () if has_ended => State::Ended,
                () if flow.told.is_some() => State::Stopping,
                () if ready <= now => State::Running,
                () => State::Starting,
            },
            started: flow.asked + agent.ahead,
            end: has_ended.then_some(End {
                time: seen + agent.ahead,
                outcome,
                message,
            }),
            status: (ready <= now).then_some(status),
        }
    }

    /// Returns the result of a flow.
    pub fn result(&self, flow: &Process) -> Option<Value> {
        let has_printed = flow.ends() <= now() && flow.outcome().0 != Outcome::Killed;
        let seconds = (flow.ends() - flow.begins).max(0.0);
        has_printed.then(|| match flow.listens() {
            true => {
                json!({"unique": self.received(flow, flow.ends()), "lost": 0, "seconds": seconds})
            }
            false => {
                let sent = flow.sent(flow.ends());
                json!({"offered": sent, "sent": sent, "shed": 0, "not_sent": 0, "seconds": seconds})
            }
        })
    }

    /// Returns the ports of a host that are in use.
    fn taken(&self, host: &str) -> Vec<u16> {
        let now = now();
        let flows = self
            .flows
            .iter()
            .filter(|flow| flow.host == host && now < flow.ends());
        let own = flows.flat_map(|flow| flow.known().streams());
        let own = own.flatten().filter_map(|url| Some(url.host()?.port));
        own.chain(self.agents[host].taken.iter().copied()).collect()
    }

    /// Returns the reason why a flow cannot listen, if there is one.
    fn in_use(&self, host: &str, flow: &NewFlow) -> Option<String> {
        let taken = self.taken(host);
        let wanted = Known::of(&flow.command, &flow.options).streams();
        let mut ports = wanted
            .into_iter()
            .flatten()
            .filter_map(|url| Some(url.host()?.port));
        let port = ports.find(|port| taken.contains(port))?;
        Some(format!(
            "cannot listen on port {port}: Address already in use"
        ))
    }

    /// Returns the load of a flow, by the clock of its host.
    fn load(&self, host: &str, flow: &NewFlow) -> Load {
        let text = |name: &str| flow.options.get(name).and_then(Value::as_str);
        let ahead = self.agents[host].ahead;
        let start = text("start").and_then(|start| start.parse::<jiff::Timestamp>().ok());
        let start = start.map_or(0.0, |start| start.as_nanosecond() as f64 * 1e-9);
        let from = start.max(now() + ahead);
        let lasts = text("duration").and_then(|text| units::duration(text).ok());
        let rate = text("rate").and_then(|rate| rate.parse::<BitRate>().ok());
        Load {
            rate: rate.map(BitRate::get),
            from: Some(from),
            until: lasts.map(|lasts| from + lasts.as_secs_f64()),
        }
    }

    /// Checks the maximum rate for a flow, all others and `more`.
    fn fits(&self, host: &str, load: Load, more: &[Load]) -> Reply<()> {
        let (Some(most), Some(rate)) = (self.agents[host].max_rate, load.rate) else {
            return Ok(());
        };
        let ahead = self.agents[host].ahead;
        let running = self
            .flows
            .iter()
            .filter(|flow| flow.host == host && now() < flow.ends());
        let others = running.filter_map(|flow| {
            Some(Load {
                rate: Some(flow.rates.last()?.1 as u64),
                from: Some(flow.begins + ahead),
                until: Some(flow.ends() + ahead),
            })
        });
        let others: Vec<Load> = others.chain(more.iter().copied()).collect();
        match most.get().saturating_sub(load.beside(&others)) {
            free if rate <= free => Ok(()),
            free => Err(Problem::conflict(format!(
                "max-rate {most}: {free} is left"
            ))),
        }
    }

    fn tell(&mut self, host: &str, id: &FlowId, text: &str) {
        let time = now();
        let Some(agent) = self.agents.get_mut(host) else {
            return;
        };
        agent.events.push(Event {
            id: agent.events.len() as i64 + 1,
            time,
            host: host.to_owned(),
            flow: Some(id.to_string()),
            text: text.to_owned(),
        });
    }

    /// Starts a flow, and returns the time until the agent answers.
    fn begin(&mut self, host: &str, new: NewFlow) -> Reply<Duration> {
        let agent = &self.agents[host];
        if let Some(why) = &agent.refuses {
            return Err(Problem::unprocessable(why));
        }
        if self.known(host, &new.id).is_ok() {
            return Err(Problem::used(&new.id));
        }
        let load = self.load(host, &new);
        self.fits(host, load, &[])?;
        let agent = &self.agents[host];
        let listens = Known::of(&new.command, &new.options).listens();
        let is_deaf = agent.is_deaf && listens;
        let asked = now();
        let ready = asked + READY.as_secs_f64();
        let fails = self.in_use(host, &new);
        let begins = match listens {
            true if is_deaf => f64::INFINITY,
            true => ready,
            false => (load.from.unwrap_or(0.0) - agent.ahead).max(ready),
        };
        let lasts = load.until.zip(load.from).map(|(until, from)| until - from);
        let lasts = lasts.unwrap_or(f64::INFINITY);
        let until = match fails {
            Some(_) => ready,
            None if listens => begins + lasts,
            None => begins + lasts.min(agent.source_s),
        };
        self.tell(host, &new.id, "starts");
        self.flows.push(Process {
            host: host.to_owned(),
            id: new.id,
            command: new.command,
            options: new.options,
            revision: 1,
            is_known: true,
            asked,
            begins,
            until,
            told: None,
            killed: None,
            fails,
            rates: load
                .rate
                .map(|rate| (begins, rate as f64))
                .into_iter()
                .collect(),
        });
        Ok(if is_deaf { START_TIMEOUT } else { READY })
    }

    /// Stops an agent, with the requests and answers in flight.
    pub fn die(&mut self, host: &str, loss: Loss) {
        let now = now();
        let Some(agent) = self.agents.get_mut(host).filter(|agent| agent.is_alive) else {
            return;
        };
        agent.is_alive = false;
        agent.life += 1;
        agent.away.push((now, f64::INFINITY));
        if loss == Loss::Disk {
            agent.events.clear();
        }
        for flow in self.flows.iter_mut().filter(|flow| flow.host == host) {
            if loss != Loss::Agent && now < flow.ends() {
                flow.killed = Some(now);
            }
            flow.is_known &= loss != Loss::Disk;
        }
    }

    /// Restarts an agent.
    pub fn come_back(&mut self, host: &str) {
        let agent = self.agents.get_mut(host);
        if let Some(agent) = agent.filter(|agent| !agent.is_alive) {
            agent.is_alive = true;
            if let Some((_, back)) = agent.away.last_mut() {
                *back = now();
            }
        }
    }
}

impl Fleet {
    /// Creates agents of these hosts, which answer promptly.
    pub fn new(hosts: &[&str]) -> Fleet {
        let fleet = Fleet::default();
        let agents = hosts
            .iter()
            .map(|host| ((*host).to_owned(), Agent::default()));
        fleet.0.lock().agents.extend(agents);
        fleet
    }

    /// Reads or changes the true state.
    pub fn with<T>(&self, work: impl FnOnce(&mut World) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Changes an agent.
    pub fn at(&self, host: &str, work: impl FnOnce(&mut Agent)) {
        self.with(|world| work(world.agents.get_mut(host).unwrap()));
    }

    /// Returns a client of the agent of a host.
    pub fn connect(&self, plan: &Host) -> Connected {
        Connected {
            plan: plan.clone(),
            agent: Box::new(Way {
                fleet: self.clone(),
                host: plan.name.clone(),
            }),
        }
    }
}

/// Client of an agent.
struct Way {
    fleet: Fleet,
    host: String,
}

impl Way {
    /// Carries a request to the agent or its answer back, and returns which life of the agent that was: the connection breaks when the
    /// agent stops.
    async fn travel(&self, to: Option<u32>) -> Reply<u32> {
        let late = self.fleet.with(|world| world.agents[&self.host].late);
        if !late.is_zero() {
            sleep(late / 2).await;
        }
        self.fleet.with(|world| {
            let agent = &world.agents[&self.host];
            let is_there = agent.is_alive && to.is_none_or(|life| life == agent.life);
            is_there
                .then_some(agent.life)
                .ok_or_else(|| self.silent("Connection refused"))
        })
    }

    fn silent(&self, why: &str) -> Problem {
        let error = format!("https://{}:3650 does not answer: {why}", self.host);
        Problem::new(reqwest::StatusCode::BAD_GATEWAY, error)
    }

    /// Sends a request and waits for the answer.
    async fn ask<T>(&self, work: impl FnOnce(&mut World, &str) -> Reply<T>) -> Reply<T> {
        self.patiently(async {
            let life = self.travel(None).await?;
            let answer = self.fleet.with(|world| work(world, &self.host));
            self.travel(Some(life)).await?;
            answer
        })
        .await
    }

    async fn patiently<T>(&self, asking: impl Future<Output = Reply<T>>) -> Reply<T> {
        let answer = timeout(TIMEOUT, asking).await;
        answer.unwrap_or_else(|_| Err(self.silent("operation timed out")))
    }
}

impl Control for Way {
    fn start(&self, flow: NewFlow) -> Later<'_, Flow> {
        Box::pin(self.patiently(async {
            let life = self.travel(None).await?;
            let id = flow.id.clone();
            let says = self.fleet.with(|world| world.begin(&self.host, flow));
            let Ok(says) = says else {
                self.travel(Some(life)).await?;
                return Err(says.unwrap_err());
            };
            sleep(says).await;
            let begun = self.fleet.with(|world| world.reported(&self.host, &id));
            self.travel(Some(life)).await?;
            begun
        }))
    }

    fn change(&self, id: FlowId, revision: u64, change: Change) -> Later<'_, Flow> {
        Box::pin(self.ask(move |world, host| {
            let flow = world.known(host, &id)?;
            if flow.revision != revision {
                return Err(Problem::conflict("another revision"));
            }
            flow.revision += 1;
            if let Some(rate) = change.rate {
                let rate = rate.parse::<BitRate>().unwrap().get();
                flow.rates.push((now(), rate as f64));
                flow.options.insert("rate".to_owned(), rate.into());
            }
            if let Some(shed) = change.shed {
                flow.options.insert("shed".to_owned(), shed.into());
            }
            world.reported(host, &id)
        }))
    }

    fn stop(&self, id: FlowId, kill: bool) -> Later<'_, Flow> {
        Box::pin(self.ask(move |world, host| {
            let flow = world.known(host, &id)?;
            if now() < flow.ends() {
                match kill {
                    true => flow.killed = Some(now()),
                    false => flow.told = flow.told.or(Some(now())),
                }
                world.tell(host, &id, "stopping");
            }
            world.reported(host, &id)
        }))
    }

    fn forget(&self, id: FlowId) -> Later<'_, ()> {
        Box::pin(self.ask(move |world, host| {
            let flow = world.known(host, &id)?;
            if now() < flow.ends() {
                return Err(Problem::conflict("it has not ended"));
            }
            flow.is_known = false;
            Ok(())
        }))
    }

    fn check(&self, flows: Vec<NewFlow>) -> Later<'_, Vec<Checked>> {
        Box::pin(self.ask(move |world, host| {
            let mut before = Vec::new();
            let checked = flows.into_iter().map(|flow| {
                let load = world.load(host, &flow);
                let fits = world.fits(host, load, &before).err();
                before.push(load);
                let used = world.known(host, &flow.id).is_ok();
                let used = used.then(|| format!("the name {} was used before", flow.id));
                let problems = [
                    used,
                    world.in_use(host, &flow),
                    fits.map(|problem| problem.error),
                ];
                Checked {
                    problems: problems.into_iter().flatten().collect(),
                    id: flow.id,
                    rate_bps: load.rate,
                    safe: None,
                }
            });
            Ok(checked.collect())
        }))
    }

    fn result(&self, id: FlowId) -> Later<'_, Body> {
        Box::pin(self.ask(move |world, host| {
            let result = world.result(&world.flows[world.place(host, &id)?]);
            let missing = || Problem::missing(format!("flow {id} has no result yet"));
            Ok(Body::from(result.ok_or_else(missing)?.to_string()))
        }))
    }

    fn log(&self, id: FlowId) -> Later<'_, String> {
        Box::pin(
            self.ask(move |world, host| Ok(format!("log of {}\n", world.known(host, &id)?.id))),
        )
    }
}

impl Remote for Way {
    fn about(&self) -> Later<'_, AboutYou> {
        Box::pin(self.ask(|world, host| {
            let agent = &world.agents[host];
            Ok(AboutYou {
                about: About {
                    role: "agent".to_owned(),
                    name: host.to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    time: now() + agent.ahead,
                    started: 0.0,
                    storage: Some(Storage {
                        folder: "recordings".to_owned(),
                        free_bytes: agent.free_bytes,
                    }),
                },
                your_role: agent.role,
            })
        }))
    }

    fn flows(&self) -> Later<'_, Vec<Flow>> {
        Box::pin(self.ask(|world, host| {
            let here = world
                .flows
                .iter()
                .filter(|flow| flow.host == host && flow.is_known);
            let mut flows: Vec<Flow> = here.map(|flow| world.report(flow)).collect();
            flows.sort_by(|a, b| a.id.cmp(&b.id));
            Ok(flows)
        }))
    }

    fn events(&self, after: i64) -> Later<'_, Vec<Event>> {
        Box::pin(self.ask(move |world, host| {
            let events = world.agents[host].events.iter();
            Ok(events.filter(|event| event.id > after).cloned().collect())
        }))
    }
}
