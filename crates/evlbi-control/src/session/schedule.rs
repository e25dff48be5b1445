//! The schedule of a session: starts and stops flows at their times, and reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evlbi_net::run::Run;
use evlbi_net::transport::Url;
use evlbi_wire::units::{show_count, show_rate, show_seconds};
use thiserror::Error;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep};

use super::RunOptions;
use super::hosts::{Hosts, listens_or_has_ended};
use super::plan::{FlowPlan, Session, SessionError, Start, made_ready};
use super::result::FlowResult;
use crate::fleet::{PlannedFlow, ScanPlan, SessionPlan, SessionState};
use crate::flow::{Flow, FlowId, NewFlow, Outcome};
use crate::time::now;
use crate::{Control, Fleet};

/// Interval between checks whether a step is due.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Seconds after its end time at which a flow that has not ended is stopped.
const GRACE: f64 = 10.0;
/// Timeout for flows to end after they were stopped.
const ENDING: Duration = Duration::from_secs(30);
/// Seconds until ports are free after the end of the flow that listened on them.
const FREE_AGAIN: f64 = 0.5;
/// Seconds before the end of its scan from which on the end of a flow is reported as early; clocks of hosts may differ by less.
const EARLY: f64 = 1.0;
/// Default timeout of waiting for a flow.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Error: a session cannot run at its times.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A flow gets an invalid name.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// The scan begins before its flows can be started.
    #[error(
        "scan {scan} begins in the past, or too soon to start its flows (`around` is {around:?}): give it a later start"
    )]
    Late {
        /// Name of the scan.
        scan: String,
        /// Time before a scan at which its receivers start.
        around: Duration,
    },
    /// Two scans are too close to each other for a flow of both.
    #[error(
        "scans {first} and {second} are {} apart, and flow {flow}, which is in both, needs {} to restart: move them apart, or shorten `around`",
        show_seconds(*gap_s),
        show_seconds(*needed_s)
    )]
    Close {
        /// Name of the earlier scan.
        first: String,
        /// Name of the later scan.
        second: String,
        /// Name of the flow.
        flow: FlowId,
        /// Seconds from the end of one scan to the start of the other.
        gap_s: f64,
        /// Seconds that the flow needs.
        needed_s: f64,
    },
}

/// Checks that scans with the same flows leave them enough time to end and to restart.
fn apart(session: &Session, scans: &[ScanPlan], around: f64) -> Result<(), ScheduleError> {
    let mut in_time: Vec<&ScanPlan> = scans.iter().collect();
    in_time.sort_by(|a, b| a.starts.unwrap_or(0.0).total_cmp(&b.starts.unwrap_or(0.0)));
    for (place, first) in in_time.iter().enumerate() {
        for second in &in_time[place + 1..] {
            let gap = second.starts.unwrap_or(0.0) - first.starts.unwrap_or(0.0) - first.lasts_s;
            let runs = |plan: &&FlowPlan| plan.runs_in(&first.name) && plan.runs_in(&second.name);
            let mut shared = session.flows.iter().filter(runs);
            let needed = |plan: &FlowPlan| match plan.known().listens() {
                true => 2.0 * around + FREE_AGAIN,
                false => 0.0,
            };
            if let Some(plan) = shared.find(|plan| gap < needed(plan)) {
                return Err(ScheduleError::Close {
                    first: first.name.clone(),
                    second: second.name.clone(),
                    flow: plan.name.clone(),
                    gap_s: gap,
                    needed_s: needed(plan),
                });
            }
        }
    }
    Ok(())
}

/// Step of a schedule.
enum Step {
    Start(NewFlow),
    Stop(FlowId),
}

/// Schedule of a run, with the state of its flows.
pub struct Schedule {
    pub hosts: Arc<Hosts>,
    /// Steps with their times, in seconds since 1970, latest first.
    steps: Vec<(f64, Step)>,
    /// All flows of the run.
    flows: BTreeMap<FlowId, Planned>,
    is_endless: bool,
    around: Duration,
    /// The run is resumed, so some flows may be running already.
    is_resumed: bool,
    /// Time at which the last flow should have ended, in seconds since 1970.
    end: f64,
    /// Begin of the run, in seconds since 1970.
    pub begin: f64,
    run: String,
    scans: Vec<ScanPlan>,
    /// Pending requests to agents, which run concurrently.
    asked: JoinSet<Option<Refused>>,
}

/// Flow that an agent did not start, and the reason.
type Refused = (FlowId, String);

struct Planned {
    /// Its entry in the plan, with the reason if it could not be started. The steps contain its start.
    entry: PlannedFlow,
    /// Index of its scan in the session.
    scan: usize,
    listens: bool,
    /// End of its scan, in seconds since 1970, if the flow should last until then.
    until: Option<f64>,
    /// Time of the request to start it, in seconds since 1970.
    asked: Option<f64>,
    /// Its end was reported.
    is_reported: bool,
}

impl Schedule {
    pub fn new(
        session: &Session,
        run: &str,
        options: &RunOptions,
        begin: f64,
        hosts: Arc<Hosts>,
    ) -> Result<Schedule, ScheduleError> {
        let around = session.around.as_secs_f64();
        let mut table = Schedule {
            hosts,
            steps: Vec::new(),
            flows: BTreeMap::new(),
            is_endless: session.scans.is_empty(),
            around: session.around,
            is_resumed: options.resume.is_some(),
            end: begin,
            begin,
            run: run.to_owned(),
            scans: Vec::new(),
            asked: JoinSet::new(),
        };
        let now = now();
        for (place, scan) in session.parts().into_iter().enumerate() {
            let start = match scan.map(|scan| scan.start) {
                Some(Start::At(time)) if time - around < begin && !table.is_resumed => {
                    return Err(ScheduleError::Late {
                        scan: scan.map_or_else(String::new, |scan| scan.name.to_string()),
                        around: session.around,
                    });
                }
                _ => scan.map_or(begin + around, |scan| scan.starts(begin, session.around)),
            };
            let end = scan.map_or(f64::INFINITY, |scan| start + scan.duration.as_secs_f64());
            table.scans.extend(scan.map(|scan| ScanPlan {
                name: scan.name.to_string(),
                starts: Some(start),
                after_s: match scan.start {
                    Start::At(_) => None,
                    Start::After(delay) => Some(delay.as_secs_f64()),
                },
                lasts_s: scan.duration.as_secs_f64(),
            }));
            for (plan, flow) in session.flows_of(run, scan)? {
                if options.without.contains(&plan.host) {
                    continue;
                }
                let listens = plan.known().listens();
                // A flow without a duration of its own has that of its scan.
                let lasts =
                    flow.options.contains_key("duration") && !plan.options.contains_key("duration");
                let is_missed = end < now && table.hosts.find(flow.id.as_str()).is_err();
                let why_not = "its scan was over when the run was resumed";
                let planned = Planned {
                    entry: PlannedFlow {
                        id: flow.id.clone(),
                        host: plan.host.clone(),
                        command: plan.command.clone(),
                        starts: None,
                        why_not: is_missed.then(|| why_not.to_owned()),
                    },
                    scan: place,
                    listens,
                    until: (lasts && !listens).then_some(end),
                    asked: None,
                    is_reported: false,
                };
                table.flows.insert(flow.id.clone(), planned);
                if is_missed {
                    continue;
                }
                if end.is_finite() {
                    // Flows with a duration have ended by then.
                    let end = end + if listens { around } else { 0.0 };
                    let stop = Step::Stop(flow.id.clone());
                    table.steps.push((end + GRACE, stop));
                    table.end = table.end.max(end);
                }
                let (due, flow) = made_ready(flow, start, around, listens);
                table.steps.push((due, Step::Start(flow)));
            }
        }
        // The next step is the last one. At the same time receivers come after senders, so they are taken first.
        let listens = |step: &Step| match step {
            Step::Start(flow) => table.flows.get(&flow.id).is_some_and(|flow| flow.listens),
            Step::Stop(_) => false,
        };
        (table.steps).sort_by(|a, b| {
            let in_time = b.0.total_cmp(&a.0);
            in_time.then_with(|| listens(&a.1).cmp(&listens(&b.1)))
        });
        apart(session, &table.scans, around)?;
        Ok(table)
    }

    /// Publishes the plan. Relative times of a held session are unknown.
    pub fn publish(&self, state: SessionState) {
        let is_held = state == SessionState::Held;
        let scans = self.scans.iter().map(|scan| ScanPlan {
            starts: scan.starts.filter(|_| !is_held || scan.after_s.is_none()),
            ..scan.clone()
        });
        let steps = self.steps.iter().rev();
        let planned = steps.filter_map(|(due, step)| match step {
            Step::Start(flow) => Some(PlannedFlow {
                starts: Some(*due).filter(|_| !is_held),
                ..self.flows.get(&flow.id)?.entry.clone()
            }),
            Step::Stop(_) => None,
        });
        let all = self.flows.values().map(|planned| &planned.entry);
        let refused = all.filter(|flow| flow.why_not.is_some()).cloned();
        self.hosts.show(SessionPlan {
            run: self.run.clone(),
            state,
            scans: scans.collect(),
            flows: planned.chain(refused).collect(),
            silent: BTreeMap::new(),
        });
    }

    /// Executes the steps until all flows have ended, the run is stopped (Ctrl-C), or a user ends the session in the web UI.
    pub async fn follow(&mut self, run: &Run) {
        let begun = now();
        let total = ((self.end - begun) * 1e3) as u64;
        let mut progress = run.progress((!self.is_endless).then_some(total));
        self.publish(SessionState::Running);
        loop {
            if self.execute_due_steps(run)
                && self.hosts.session_state() == Some(SessionState::Running)
            {
                self.publish(SessionState::Running);
            }
            self.report_ends(run);
            let is_ended = self.hosts.session_state() == Some(SessionState::Ending);
            if run.is_stopped() || is_ended || self.is_over() {
                break;
            }
            if progress.is_due() {
                let line = self.line();
                progress.show(((now() - begun) * 1e3) as u64, &line);
            }
            sleep(POLL_INTERVAL).await;
        }
        self.publish(SessionState::Ending);
        let is_through = self.is_over();
        self.end_all(run).await;
        if is_through && !self.is_endless {
            let line = self.line();
            progress.show(total, &line);
        }
        self.steps.clear();
        self.publish(SessionState::Over);
    }

    /// Executes the steps that are due, and reads answers. Returns whether the plan has changed.
    fn execute_due_steps(&mut self, run: &Run) -> bool {
        let mut has_news = false;
        let mut held = Vec::new();
        while let Some((due, step)) = self.steps.pop_if(|(due, _)| *due <= now()) {
            match step {
                Step::Stop(id) => self.stop(id, run),
                Step::Start(flow) => {
                    let is_there = self.is_resumed && self.hosts.find(flow.id.as_str()).is_ok();
                    if !is_there && self.must_wait(&flow.id, run) {
                        held.push((due, Step::Start(flow)));
                        continue;
                    }
                    if let Some(planned) = self.flows.get_mut(&flow.id) {
                        planned.asked = Some(now());
                    }
                    if !is_there {
                        self.start(flow, run);
                    }
                }
            }
            has_news = true;
        }
        held.reverse();
        self.steps.extend(held);
        while let Some(answered) = self.asked.try_join_next() {
            has_news = true;
            self.hear(answered);
        }
        has_news
    }

    /// Returns whether a due sender must wait because receivers of its scan were started and do not listen yet: it could not connect, or
    /// its data would be lost. The wait is bounded, so a scan begins at its time even if no receiver listens.
    fn must_wait(&self, id: &FlowId, run: &Run) -> bool {
        let Some(sender) = self.flows.get(id).filter(|planned| !planned.listens) else {
            return false;
        };
        let awaited = self.flows.iter().filter_map(|(id, planned)| {
            let is_of_scan = planned.listens && planned.scan == sender.scan;
            let is_awaited = is_of_scan && planned.entry.why_not.is_none();
            let asked = planned.asked.filter(|_| is_awaited)?;
            let flow = self.hosts.find(id.as_str());
            let is_ready = flow.is_ok_and(|flow| listens_or_has_ended(&flow));
            (!is_ready).then_some((id, asked))
        });
        let Some((receiver, asked)) = awaited.max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return false;
        };
        // A sender needs time to prepare, too.
        let timeout = match self.is_endless {
            true => TIMEOUT,
            false => self.around / 2,
        };
        let waits = now() - asked < timeout.as_secs_f64();
        if !waits {
            run.say(format_args!(
                "{id} starts although {receiver} does not listen after {timeout:?}"
            ));
        }
        waits
    }

    fn start(&mut self, flow: NewFlow, run: &Run) {
        let (hosts, run) = (Arc::clone(&self.hosts), run.clone());
        self.asked.spawn(async move {
            let (id, host) = (flow.id.clone(), flow.host.clone().unwrap_or_default());
            match hosts.start(flow).await {
                Ok(_) => {
                    run.line(format_args!("{host}: {id} starts"));
                    None
                }
                Err(problem) => {
                    run.say(format_args!("{host}: {id} is not started: {problem}"));
                    Some((id, problem.error))
                }
            }
        });
    }

    fn stop(&mut self, id: FlowId, run: &Run) {
        let flow = self.hosts.find(id.as_str());
        let Some(Flow { host, .. }) = flow.ok().filter(|flow| !flow.has_ended()) else {
            return;
        };
        let (hosts, run) = (Arc::clone(&self.hosts), run.clone());
        self.asked.spawn(async move {
            if let Err(problem) = hosts.stop(id.clone(), false).await {
                run.say(format_args!("{host}: {id} cannot be stopped: {problem}"));
            }
            None
        });
    }

    /// Stores the answer of an agent.
    fn hear(&mut self, answered: Result<Option<Refused>, JoinError>) {
        if let Ok(Some((id, why))) = answered
            && let Some(planned) = self.flows.get_mut(&id)
        {
            planned.entry.why_not = Some(why);
        }
    }

    /// Reports once for each flow how it ended.
    fn report_ends(&mut self, run: &Run) {
        let unreported = self.flows.iter_mut().filter(|(_, it)| !it.is_reported);
        for (id, planned) in unreported {
            let flow = self.hosts.find(id.as_str()).ok();
            let Some(end) = flow.and_then(|flow| flow.end) else {
                continue;
            };
            planned.is_reported = true;
            let how = match end.outcome {
                Outcome::Finished => "has finished",
                Outcome::Stopped => "has stopped",
                Outcome::Failed => "FAILED; other flows keep running",
                Outcome::Killed => "WAS KILLED; other flows keep running",
                Outcome::Full => "WAS STOPPED; other flows keep running",
            };
            let early = planned.until.map_or(0.0, |until| until - end.time);
            let scan = self.scans.get(planned.scan);
            let when = scan.filter(|_| end.outcome == Outcome::Finished && early >= EARLY);
            let when = when.map_or_else(String::new, |scan| {
                format!(" {early:.0} s before the end of scan {}", scan.name)
            });
            let host = &planned.entry.host;
            let line = format!("{host}: {id} {how}{when}{}", end.why());
            match end.outcome {
                Outcome::Finished | Outcome::Stopped => run.line(format_args!("{line}")),
                Outcome::Failed | Outcome::Killed | Outcome::Full => {
                    run.say(format_args!("{line}"));
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        // A flow may be running even if its agent did not answer the start.
        let is_over = |planned: &Planned| match self.hosts.find(planned.entry.id.as_str()) {
            Ok(flow) => flow.has_ended(),
            Err(_) => planned.entry.why_not.is_some(),
        };
        let ends_run = |planned: &&Planned| !(self.is_endless && planned.listens);
        let mut awaited = self.flows.values().filter(ends_run).peekable();
        let has_any = awaited.peek().is_some();
        let is_start = |(_, step): &(f64, Step)| matches!(step, Step::Start(_));
        let starts = self.steps.iter().any(is_start);
        let late = !self.is_endless && now() > self.end + GRACE + ENDING.as_secs_f64();
        !starts && self.asked.is_empty() && (late || has_any && awaited.all(is_over))
    }

    /// Stops the flows that are still running: senders first, and receivers when all data has arrived.
    async fn end_all(&mut self, run: &Run) {
        self.hear_all().await;
        let hosts = Arc::clone(&self.hosts);
        let flows = hosts.flows().into_iter();
        let ends = flows.filter(|flow| !self.is_endless && self.flows.contains_key(&flow.id));
        let stuck = stuck(ends, self.end, now());
        for id in &stuck {
            run.say(format_args!(
                "{id} does not end and is left running: kill it in the console"
            ));
        }
        for listens in [false, true] {
            let running = || -> Vec<FlowId> {
                let running = hosts.running(listens).into_iter();
                running.filter(|id| !stuck.contains(id)).collect()
            };
            if listens && !running().is_empty() {
                sleep(self.around).await;
            }
            for id in running() {
                self.stop(id, run);
            }
            self.hear_all().await;
            let begun = Instant::now();
            while !running().is_empty() && begun.elapsed() < ENDING {
                sleep(POLL_INTERVAL).await;
            }
        }
        self.report_ends(run);
    }

    /// Waits for the answers to all pending requests.
    async fn hear_all(&mut self) {
        while let Some(answered) = self.asked.join_next().await {
            self.hear(answered);
        }
    }

    fn line(&self) -> String {
        let flows = self.hosts.flows();
        let running = || flows.iter().filter(|flow| !flow.has_ended());
        let statuses = || running().filter_map(|flow| flow.status.as_ref());
        let sending = || statuses().filter_map(|status| status.sending.as_ref());
        let receiving = || statuses().flat_map(|status| &status.receiving);
        let sent: f64 = sending().map(|it| it.counts.real("rate_bps")).sum();
        let received: f64 = receiving().map(|it| it.counts.real("rate_bps")).sum();
        let lost: u64 = receiving().map(|it| it.counts.count("lost")).sum();
        let shed: u64 = sending().map(|it| it.counts.count("shed")).sum();
        let mut line = format!(
            "{} of {} flows running  {} sent  {} received  lost {}",
            running().count(),
            self.flows.len().max(flows.len()),
            show_rate(sent),
            show_rate(received),
            show_count(lost)
        );
        if shed > 0 {
            line = format!("{line}  shed {}", show_count(shed));
        }
        for host in self.hosts.silent().keys() {
            line = format!("{line}  {host} does not answer");
        }
        line
    }

    /// Returns the results of all flows.
    pub async fn results(&self) -> Vec<FlowResult> {
        let mut results = Vec::new();
        for (id, planned) in &self.flows {
            results.push(match self.hosts.find(id.as_str()) {
                Ok(flow) => FlowResult::of(flow, &self.hosts).await,
                Err(problem) => FlowResult::missing(&planned.entry, problem, now()),
            });
        }
        // Users of the web UI may have started other flows.
        for flow in self.hosts.flows() {
            if !self.flows.contains_key(&flow.id) {
                results.push(FlowResult::of(flow, &self.hosts).await);
            }
        }
        self.join_ends(&mut results);
        results
    }

    /// Adds the counters of senders to the receivers of the same scan that they send to.
    fn join_ends(&self, results: &mut [FlowResult]) {
        let scan = |id: &FlowId| self.flows.get(id).map(|planned| planned.scan);
        for at in 0..results.len() {
            let receiver = &results[at];
            let host = self.hosts.named(&receiver.host).ok();
            let mut senders = Vec::new();
            for (own, unique) in receiver.receives() {
                let name = own.host().map(|own| &own.name);
                let is_there = |to: &Url| {
                    let is_host = |to| host.is_some_and(|host| host.plan.has_address(to));
                    let to_name = to.host().map(|to| &to.name);
                    (to_name == name || to_name.is_some_and(|to| is_host(to))) && own.takes(to)
                };
                let same = results.iter();
                let same = same.filter(|other| scan(&other.id) == scan(&receiver.id));
                senders.extend(same.filter_map(|other| other.sent_to(is_there, unique)));
            }
            results[at].senders = senders;
        }
    }
}

/// Returns the flows that were stopped at the `end` of a session and have not ended before the timeout.
fn stuck(flows: impl Iterator<Item = Flow>, end: f64, now: f64) -> BTreeSet<FlowId> {
    let is_late = now > end + GRACE + ENDING.as_secs_f64();
    let left = flows.filter(|flow| is_late && !flow.has_ended());
    left.map(|flow| flow.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver that does not end before the timeout is reported.
    #[test]
    fn a_stuck_receiver_is_named() {
        let flow = |id: &str, state: &str| -> Flow {
            let flow = serde_json::json!({
                "id": id, "host": "ef", "command": "recv", "options": {}, "revision": 1, "state": state, "started": 0.0,
            });
            serde_json::from_value(flow).unwrap()
        };
        let flows = || [flow("rec", "stopping"), flow("well", "ended")].into_iter();
        assert!(stuck(flows(), 100.0, 139.0).is_empty());
        assert_eq!(
            stuck(flows(), 100.0, 141.0),
            ["rec".parse().unwrap()].into()
        );
    }

    #[test]
    fn scans_leave_their_flows_time() {
        let flow = |name: &str, rest: &str| {
            format!("[[flow]]\nname = \"{name}\"\nhost = \"ef\"\n{rest}\n")
        };
        let text = format!(
            "name = \"n\"\n[[host]]\nname = \"ef\"\nagent = \"https://10.77.0.1:3650\"
             [[scan]]\nname = \"s1\"\nduration = \"10s\"\n[[scan]]\nname = \"s2\"\nduration = \"10s\"\n{}{}",
            flow("rec", "command = \"recv\"\nfrom = \"udp://:2630\"\nto = \"{scan}.vdif\""),
            flow("send", "command = \"send\"\nsource = \"a\"\nto = \"udp://x:1\"\nscans = [\"s2\"]"),
        );
        let session: Session = toml::from_str(&text).unwrap();
        let at = |name: &str, starts| ScanPlan {
            name: name.to_owned(),
            starts: Some(starts),
            after_s: None,
            lasts_s: 10.0,
        };
        for (second, is_apart) in [(0.0, false), (10.0, false), (14.4, false), (14.6, true)] {
            // The order in the file does not matter.
            for scans in [
                [at("s1", 100.0), at("s2", 100.0 + second)],
                [at("s1", 100.0 + second), at("s2", 100.0)],
            ] {
                let found = apart(&session, &scans, 2.0);
                assert_eq!(found.is_ok(), is_apart, "{second}: {found:?}");
            }
        }
    }
}
