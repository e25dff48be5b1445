//! The timetable of a session: what is due when, what was started, and what is said of it.

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
use crate::fleet::{FlowToCome, ScanPlan, SessionPlan, SessionState};
use crate::flow::{Flow, FlowId, NewFlow, Outcome};
use crate::time::now;
use crate::{Control, Fleet};

/// How often is looked whether something is due.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A flow whose time is over ends by itself within so many seconds; else it is told to.
const GRACE: f64 = 10.0;
/// Flows that were told to end are waited for so long.
const ENDING: Duration = Duration::from_secs(30);
/// Ports are free again so long after the flow that listened there, in seconds.
const FREE_AGAIN: f64 = 0.5;
/// Time to wait for a flow by default.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Why the times of a session cannot be kept.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A flow cannot be named.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// Nothing can be made ready before the scan.
    #[error(
        "scan {scan} begins at a time that is over, or too close to make ready for (`around` is {around:?})"
    )]
    Late {
        /// The scan.
        scan: String,
        /// How long before a scan its receivers begin.
        around: Duration,
    },
    /// Two scans are too close to each other for a flow of both.
    #[error(
        "scans {first} and {second} leave {} between them, and flow {flow}, which is in both, needs {} to end and to begin anew; set them apart, or make `around` shorter",
        show_seconds(*gap_s),
        show_seconds(*needed_s)
    )]
    Close {
        /// The earlier scan.
        first: String,
        /// The later scan.
        second: String,
        /// The flow.
        flow: FlowId,
        /// Seconds from the end of one scan to the start of the other.
        gap_s: f64,
        /// Seconds that the flow needs.
        needed_s: f64,
    },
}

/// Whether scans with the same flows leave these the time to end and to begin anew.
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

/// Something that is due.
enum Step {
    Start(NewFlow),
    Stop(FlowId),
}

/// What is due when, and what was started.
pub struct Schedule {
    pub hosts: Arc<Hosts>,
    /// By when it is due, in seconds since 1970.
    steps: Vec<(f64, Step)>,
    /// All flows of the run, with why one could not be started.
    flows: BTreeMap<FlowId, Planned>,
    is_endless: bool,
    around: Duration,
    /// Flows that run already, of a run that is gone on with.
    is_resumed: bool,
    /// When its flows end by themselves.
    end: f64,
    /// When the run began.
    pub begin: f64,
    run: String,
    scans: Vec<ScanPlan>,
    /// What agents were told and did not answer yet: none waits for another's answer.
    asked: JoinSet<Option<Refused>>,
}

/// A flow that an agent does not start, and why.
type Refused = (FlowId, String);

struct Planned {
    /// Why it could not be started is said here; when it starts, in the steps.
    to_come: FlowToCome,
    /// In which of the session's scans it runs.
    scan: usize,
    listens: bool,
    /// When its start was asked for, in seconds since 1970.
    asked: Option<f64>,
    /// Its end was told.
    is_told: bool,
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
                let is_missed = end < now && table.hosts.find(flow.id.as_str()).is_err();
                let why_not = "its scan was over when the run was gone on with";
                let planned = Planned {
                    to_come: FlowToCome {
                        id: flow.id.clone(),
                        host: plan.host.clone(),
                        command: plan.command.clone(),
                        starts: None,
                        why_not: is_missed.then(|| why_not.to_owned()),
                    },
                    scan: place,
                    listens,
                    asked: None,
                    is_told: false,
                };
                table.flows.insert(flow.id.clone(), planned);
                if is_missed {
                    continue;
                }
                if end.is_finite() {
                    // What has a time of its own has ended by then.
                    let end = end + if listens { around } else { 0.0 };
                    let stop = Step::Stop(flow.id.clone());
                    table.steps.push((end + GRACE, stop));
                    table.end = table.end.max(end);
                }
                let (due, flow) = made_ready(flow, start, around, listens);
                table.steps.push((due, Step::Start(flow)));
            }
        }
        // What is due next stands last, receivers after the senders of the same time.
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

    /// Shows whoever looks what is to come. Of a session that is held nobody knows when what counts from its beginning is.
    pub fn publish(&self, state: SessionState) {
        let is_held = state == SessionState::Held;
        let scans = self.scans.iter().map(|scan| ScanPlan {
            starts: scan.starts.filter(|_| !is_held || scan.after_s.is_none()),
            ..scan.clone()
        });
        let steps = self.steps.iter().rev();
        let to_come = steps.filter_map(|(due, step)| match step {
            Step::Start(flow) => Some(FlowToCome {
                starts: Some(*due).filter(|_| !is_held),
                ..self.flows.get(&flow.id)?.to_come.clone()
            }),
            Step::Stop(_) => None,
        });
        let all = self.flows.values().map(|planned| &planned.to_come);
        let refused = all.filter(|flow| flow.why_not.is_some()).cloned();
        self.hosts.show(SessionPlan {
            run: self.run.clone(),
            state,
            scans: scans.collect(),
            flows: to_come.chain(refused).collect(),
            silent: BTreeMap::new(),
        });
    }

    /// Does what is due until everything has ended, Ctrl-C, or somebody ends it on the page.
    pub async fn follow(&mut self, run: &Run) {
        let begun = now();
        let total = ((self.end - begun) * 1e3) as u64;
        let mut progress = run.progress((!self.is_endless).then_some(total));
        self.publish(SessionState::Running);
        loop {
            if self.do_what_is_due(run) && self.hosts.session_state() == Some(SessionState::Running)
            {
                self.publish(SessionState::Running);
            }
            self.tell_ends(run);
            let is_told_to_end = self.hosts.session_state() == Some(SessionState::Ending);
            if run.is_stopped() || is_told_to_end || self.is_over() {
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

    /// Has done what is due, and hears what was done. Says whether anything is otherwise now.
    fn do_what_is_due(&mut self, run: &Run) -> bool {
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

    /// Whether a sender that is due must wait for receivers of its scan that were started and do not listen yet: it could not connect,
    /// or its data would be lost. The wait is bounded: a scan begins at its time even if no receiver listens.
    fn must_wait(&self, id: &FlowId, run: &Run) -> bool {
        let Some(sender) = self.flows.get(id).filter(|planned| !planned.listens) else {
            return false;
        };
        let awaited = self.flows.iter().filter_map(|(id, planned)| {
            let is_of_scan = planned.listens && planned.scan == sender.scan;
            let is_awaited = is_of_scan && planned.to_come.why_not.is_none();
            let asked = planned.asked.filter(|_| is_awaited)?;
            let flow = self.hosts.find(id.as_str());
            let is_ready = flow.is_ok_and(|flow| listens_or_has_ended(&flow));
            (!is_ready).then_some((id, asked))
        });
        let Some((receiver, asked)) = awaited.max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return false;
        };
        // A sender needs time to make ready, too.
        let patience = match self.is_endless {
            true => TIMEOUT,
            false => self.around / 2,
        };
        let is_patient = now() - asked < patience.as_secs_f64();
        if !is_patient {
            run.say(format_args!(
                "{id} starts although {receiver} does not listen after {patience:?}"
            ));
        }
        is_patient
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

    /// Notes what an agent answered.
    fn hear(&mut self, answered: Result<Option<Refused>, JoinError>) {
        if let Ok(Some((id, why))) = answered
            && let Some(planned) = self.flows.get_mut(&id)
        {
            planned.to_come.why_not = Some(why);
        }
    }

    /// Says of each flow once how it ended.
    fn tell_ends(&mut self, run: &Run) {
        let untold = self.flows.iter_mut().filter(|(_, it)| !it.is_told);
        for (id, planned) in untold {
            let flow = self.hosts.find(id.as_str()).ok();
            let Some(end) = flow.and_then(|flow| flow.end) else {
                continue;
            };
            planned.is_told = true;
            let how = match end.outcome {
                Outcome::Finished => "has finished",
                Outcome::Stopped => "has stopped",
                Outcome::Failed => "FAILED; the others go on",
                Outcome::Killed => "WAS KILLED; the others go on",
                Outcome::Full => "WAS STOPPED; the others go on",
            };
            let host = &planned.to_come.host;
            let line = format!("{host}: {id} {how}{}", end.why());
            match end.outcome {
                Outcome::Finished | Outcome::Stopped => run.line(format_args!("{line}")),
                Outcome::Failed | Outcome::Killed | Outcome::Full => {
                    run.say(format_args!("{line}"))
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        // One whose start was not answered may run all the same.
        let is_over = |planned: &Planned| match self.hosts.find(planned.to_come.id.as_str()) {
            Ok(flow) => flow.has_ended(),
            Err(_) => planned.to_come.why_not.is_some(),
        };
        let is_waited_for = |planned: &&Planned| !(self.is_endless && planned.listens);
        let mut waited_for = self.flows.values().filter(is_waited_for).peekable();
        let has_any = waited_for.peek().is_some();
        let is_start = |(_, step): &(f64, Step)| matches!(step, Step::Start(_));
        let starts = self.steps.iter().any(is_start);
        let late = !self.is_endless && now() > self.end + GRACE + ENDING.as_secs_f64();
        !starts && self.asked.is_empty() && (late || has_any && waited_for.all(is_over))
    }

    /// Ends what still runs: senders first, and receivers when all has come.
    async fn end_all(&mut self, run: &Run) {
        self.hear_all().await;
        let hosts = Arc::clone(&self.hosts);
        let flows = hosts.flows().into_iter();
        let ends = flows.filter(|flow| !self.is_endless && self.flows.contains_key(&flow.id));
        let stuck = stuck(ends, self.end, now());
        for id in &stuck {
            run.say(format_args!(
                "{id} does not end, and is left; it can be killed"
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
        self.tell_ends(run);
    }

    /// Waits for all answers.
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
            "{} of {} flows run  {} sent  {} received  lost {}",
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

    /// What came of each flow.
    pub async fn results(&self) -> Vec<FlowResult> {
        let mut results = Vec::new();
        for (id, planned) in &self.flows {
            results.push(match self.hosts.find(id.as_str()) {
                Ok(flow) => FlowResult::of(flow, &self.hosts).await,
                Err(problem) => FlowResult::missing(&planned.to_come, problem, now()),
            });
        }
        // Whoever had the page may have started others.
        for flow in self.hosts.flows() {
            if !self.flows.contains_key(&flow.id) {
                results.push(FlowResult::of(flow, &self.hosts).await);
            }
        }
        self.join_ends(&mut results);
        results
    }

    /// Puts what senders say with the receivers that they send to, of the same scan.
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

/// The flows that were told to end by the `end` of a session, and have not done so in the time that they have for it.
fn stuck(flows: impl Iterator<Item = Flow>, end: f64, now: f64) -> BTreeSet<FlowId> {
    let is_late = now > end + GRACE + ENDING.as_secs_f64();
    let left = flows.filter(|flow| is_late && !flow.has_ended());
    left.map(|flow| flow.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver that does not end is named, once it has had its time.
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
            // In whatever order they are written.
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
