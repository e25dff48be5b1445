//! Commands of the console and of scripts, which list, start, change and stop flows.

use std::sync::Arc;
use std::time::Duration;

use evlbi_net::run::Run;
use evlbi_plot::{columns, lines};
use evlbi_stream::control_socket::Change;
use evlbi_stream::counters::{self, Kind, real};
use evlbi_wire::units::{self, show_seconds, utc};
use serde_json::Value;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::check::{self, Finding, Limits};
use super::hosts::{Hosts, ResultError, listens_or_has_ended};
use super::plan::{Scan, Session, SessionError};
use super::schedule::TIMEOUT;
use super::{ControllerError, ControllerOptions, name_of_run};
use crate::commands::{COMMANDS, Command, Language};
use crate::fleet::AboutYou;
use crate::flow::{Flow, FlowId, NewFlow, Options, State};
use crate::history::HistoryError;
use crate::time::now;
use crate::{Control, Fleet, Problem};

const HELP: &str = "\
list                            list all flows
show FLOW                       show status and counters of a flow
hosts                           list the hosts, their clocks and disks
check                           check the session and list problems
begin [SCAN]                    start the session's flows, or those of a scan; senders start when receivers listen
start HOST NAME COMMAND [OPTION=VALUE ...]
                                start a flow: start jive rec1 recv from=udp://:2630 to=rec1.vdif
set FLOW rate=RATE shed=POLICY  change a running sender
rearm FLOW                      let a sender under SafeUDP try again that has stopped
stop FLOW|all                   stop with everything written; all: the flows started here, senders first
kill FLOW                       kill a flow at once
forget FLOW                     remove an ended flow from the list
wait TIME                       wait this long: wait 10s
wait FLOW running|ended [TIME]  wait until a flow is running or ended, for at most TIME [default: 1min]
wait FLOW COUNTER NUMBER [TIME] wait until a counter reaches NUMBER: wait jb sent 2000, wait rec-jb unique 2000
result FLOW, log FLOW           show the result or the log of a flow
events                          list the events since the last time
help, quit

A flow can be named by the end of its name after a dot.";
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const WORDS: [&str; 17] = [
    "list", "show", "hosts", "check", "begin", "start", "set", "rearm", "stop", "kill", "forget",
    "wait", "result", "log", "events", "help", "quit",
];

/// Error: a line of a console or a script failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConsoleError {
    /// The line is invalid, or its condition was not met.
    #[error("{0}")]
    Because(String),
    /// An agent refused it.
    #[error("{0}")]
    Refused(#[from] Problem),
    /// A flow of the session gets an invalid name.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// The result of a flow cannot be read.
    #[error("{0}")]
    Result(#[from] ResultError),
    /// The result of a flow cannot be formatted.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The controller's history cannot be read.
    #[error("{0}")]
    History(#[from] HistoryError),
    /// A line of a script failed.
    #[error("{script}, line {number}: {line}")]
    Line {
        /// Name of the script.
        script: String,
        /// Number of the line, from 1.
        number: u32,
        /// Text of the line.
        line: String,
        /// Reason.
        source: Box<ConsoleError>,
    },
    /// The script was interrupted.
    #[error("interrupted before line {0}; flows keep running")]
    Interrupted(u32),
}

impl From<String> for ConsoleError {
    fn from(why: String) -> ConsoleError {
        ConsoleError::Because(why)
    }
}

type Result<T> = std::result::Result<T, ConsoleError>;

fn no<T>(why: String) -> Result<T> {
    Err(ConsoleError::Because(why))
}

/// Completion of typed lines.
pub struct Words {
    hosts: Arc<Hosts>,
    language: Language,
}

impl Words {
    /// Lists the possible next words after these words of a line.
    pub fn candidates(&self, words: &[&str]) -> Vec<String> {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let flows = self.hosts.flows().into_iter();
        let flows = flows.map(|flow| flow.id.to_string());
        let hosts = self.hosts.hosts.iter();
        match words {
            [] => owned(&WORDS),
            ["show" | "set" | "rearm" | "kill" | "forget" | "wait" | "result" | "log"] => {
                flows.collect()
            }
            ["stop"] => flows.chain(["all".to_owned()]).collect(),
            ["set", _, ..] => owned(&["rate=", "shed="]),
            ["wait", _] => owned(&[&["running", "ended"], counted().as_slice()].concat()),
            ["start"] => hosts.map(|host| host.plan.name.clone()).collect(),
            ["start", _, _] => {
                let names = COMMANDS.iter().map(|command| command.name);
                names.map(|name| name.replace(' ', "-")).collect()
            }
            ["start", _, _, command, ..] => {
                let known = Command::named(&command.replace('-', " ")).into_iter();
                let options = known.flat_map(|command| command.options(self.language));
                options.map(|option| format!("{}=", option.name)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Result of a line.
pub enum Said {
    /// Text to show; may be empty.
    Text(String),
    /// The user quits.
    Quit,
}

/// Console for the hosts of a session. Flows that it started keep running when it is dropped.
pub struct Console {
    session: Session,
    run: String,
    hosts: Arc<Hosts>,
    language: Language,
    /// Flows that this console started.
    started: Vec<FlowId>,
    /// Number of the last event that was shown.
    shown: i64,
}

impl Console {
    /// Opens a console.
    ///
    /// # Errors
    /// Returns [`ControllerError`] if the session is invalid, or the controller's state directory or an agent's token cannot be used.
    pub async fn open(
        options: &ControllerOptions,
        language: Language,
    ) -> std::result::Result<Console, ControllerError> {
        let session = options.open(language)?;
        let hosts = options.hosts(&session, &[], None)?;
        Ok(Console::new(session, hosts, language).await)
    }

    /// Opens a console for hosts, and waits until each has answered or failed to answer.
    pub(crate) async fn new(session: Session, hosts: Arc<Hosts>, language: Language) -> Console {
        hosts.wait_for_answers().await;
        // Earlier events are not shown.
        let events = hosts.history.events(0).unwrap_or_default();
        Console {
            run: name_of_run(&session.name),
            session,
            language,
            started: Vec::new(),
            shown: events.last().map_or(0, |event| event.id),
            hosts,
        }
    }

    /// Returns what the session should state, and does not.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let warnings = self.session.warnings().into_iter();
        warnings.map(|found| found.to_string())
    }

    /// Returns the reasons of the hosts that do not answer.
    pub fn silent(&self) -> impl Iterator<Item = String> {
        self.hosts.silent().into_values()
    }

    /// Returns whether no host answers.
    pub fn is_alone(&self) -> bool {
        self.silent().count() == self.hosts.hosts.len()
    }

    /// Returns the completion of typed lines.
    pub fn words(&self) -> Words {
        Words {
            hosts: Arc::clone(&self.hosts),
            language: self.language,
        }
    }

    /// Executes a line.
    ///
    /// # Errors
    /// Returns [`ConsoleError`] if the line is invalid or fails.
    pub async fn take(&mut self, line: &str) -> Result<Said> {
        let words = words(line)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = match words.as_slice() {
            [] => String::new(),
            ["quit" | "exit"] => return Ok(Said::Quit),
            ["help"] => HELP.to_owned(),
            ["list"] => list(&self.hosts.flows()),
            ["show", flow] => show(&self.hosts.find(flow)?),
            ["hosts"] => self.hosts_text().await,
            ["check"] => self.check().await?,
            ["begin"] => self.begin(None).await?,
            ["begin", scan] => self.begin(Some(scan)).await?,
            ["start", host, name, command, options @ ..] => {
                self.start(host, name, command, options).await?
            }
            ["set", flow, changes @ ..] => self.set(flow, changes).await?,
            ["rearm", flow] => {
                let change = Change {
                    rearm: true,
                    ..Change::default()
                };
                self.change(flow, change).await?
            }
            ["stop", "all"] => self.stop_all().await?,
            ["stop", flow] => self.stop(flow, false).await?,
            ["kill", flow] => self.stop(flow, true).await?,
            ["forget", flow] => {
                self.hosts.forget(self.hosts.find(flow)?.id).await?;
                String::new()
            }
            ["wait", flow, state] => self.wait(flow, state, TIMEOUT).await?,
            ["wait", flow, state @ ("running" | "ended"), time] => {
                self.wait(flow, state, duration(time)?).await?
            }
            ["wait", flow, counter, number] => {
                self.wait_for_count(flow, counter, number, TIMEOUT).await?
            }
            ["wait", flow, counter, number, time] => {
                let time = duration(time)?;
                self.wait_for_count(flow, counter, number, time).await?
            }
            ["wait", time] => {
                sleep(duration(time)?).await;
                String::new()
            }
            ["result", flow] => {
                let flow = self.hosts.find(flow)?;
                serde_json::to_string_pretty(&self.hosts.whole_result(&flow.id).await?)?
            }
            ["log", flow] => self.hosts.log(self.hosts.find(flow)?.id).await?,
            ["events"] => self.events()?,
            [word, ..] if WORDS.contains(word) => {
                return no(format!("invalid arguments of `{word}`: see help"));
            }
            [word, ..] => return no(format!("unknown command `{word}`: see help")),
        };
        Ok(Said::Text(text.trim_end().to_owned()))
    }

    /// Executes the lines of a script until one fails or quits, and shows the result of each.
    ///
    /// # Errors
    /// Returns [`ConsoleError::Line`] for the first line that fails, and [`ConsoleError::Interrupted`] if the run is stopped.
    pub async fn follow(
        &mut self,
        script: &str,
        text: &str,
        run: &Run,
        mut show: impl FnMut(&str),
    ) -> Result<()> {
        for (number, line) in (1..).zip(text.lines()) {
            if run.is_stopped() {
                return Err(ConsoleError::Interrupted(number));
            }
            let said = self.take(line).await;
            let said = said.map_err(|why| ConsoleError::Line {
                script: script.to_owned(),
                number,
                line: line.to_owned(),
                source: Box::new(why),
            });
            match said? {
                Said::Text(text) if text.is_empty() => {}
                Said::Text(text) => show(&text),
                Said::Quit => break,
            }
        }
        Ok(())
    }

    async fn hosts_text(&self) -> String {
        let mut rows = Vec::new();
        for host in &self.hosts.hosts {
            let sent = now();
            let mut row = vec![host.plan.name.clone()];
            match host.agent.about().await {
                Ok(AboutYou { about, your_role }) => {
                    let middle = (sent + now()) / 2.0;
                    let free = about.storage.map_or(0, |storage| storage.free_bytes);
                    row.extend([
                        format!("evlbi {}", about.version),
                        evlbi_plot::name(&your_role),
                        format!("clock ahead {}", show_seconds(about.time - middle)),
                        format!("{} free", units::show_bytes(free as f64)),
                    ]);
                }
                Err(problem) => row.push(problem.error),
            }
            row.resize_with(5, String::new);
            rows.push(row);
        }
        columns(&rows, |_| true)
    }

    async fn check(&self) -> Result<String> {
        let found = check::check(&self.session, &self.run, &self.hosts).await;
        if found.problems.is_empty() {
            let limits = found.limits.iter().map(Limits::to_string);
            let lines = limits.chain(["no problems found".to_owned()]);
            return Ok(lines.collect::<Vec<String>>().join("\n"));
        }
        let lines: Vec<String> = found.problems.iter().map(Finding::to_string).collect();
        no(lines.join("\n"))
    }

    async fn begin(&mut self, scan: Option<&str>) -> Result<String> {
        let scans = &self.session.scans;
        let scan: Option<&Scan> = match (scan, scans.as_slice()) {
            (Some(name), _) => {
                let found = scans.iter().find(|scan| scan.name.as_str() == name);
                Some(found.ok_or_else(|| format!("the session has no scan {name}"))?)
            }
            (None, []) => None,
            (None, [only]) => Some(only),
            (None, _) => return no("the session has several scans: name one".to_owned()),
        };
        // Each `begin` starts a new run.
        let known = self.hosts.flows();
        let is_used = |run: &str| {
            let begins = format!("{run}.");
            let mut names = known.iter().map(|flow| flow.id.as_str());
            names.any(|name| name.starts_with(&begins))
        };
        if is_used(&self.run) {
            let name = name_of_run(&self.session.name);
            self.run.clone_from(&name);
            let mut number = 2;
            while is_used(&self.run) {
                self.run = format!("{name}-{number}");
                number += 1;
            }
        }
        let mut begun: Vec<Flow> = Vec::new();
        for listens in [true, false] {
            let flows = self.session.flows_of(&self.run, scan)?.into_iter();
            let those = flows.filter(|(plan, _)| plan.known().listens() == listens);
            for (_, flow) in those {
                let flow = self.hosts.start(flow).await?;
                self.started.push(flow.id.clone());
                begun.push(flow);
            }
            for flow in begun.iter_mut().filter(|_| listens) {
                let seen = self.seen(flow.id.as_str(), TIMEOUT, listens_or_has_ended);
                let (seen, is_in_time) = seen.await?;
                if !is_in_time {
                    return no(format!(
                        "{} does not listen after {} s, so no sender was started; flows that were started keep running",
                        seen.id,
                        TIMEOUT.as_secs()
                    ));
                }
                *flow = seen;
            }
        }
        let failed = begun.iter().find_map(|flow| {
            let message = flow.end.as_ref()?.message.as_ref()?;
            Some(format!("{}: {message}", flow.id))
        });
        match failed {
            Some(failed) => no(format!(
                "{failed}; the other flows of this run keep running"
            )),
            None => Ok(list(&begun)),
        }
    }

    async fn start(
        &mut self,
        host: &str,
        id: &str,
        command: &str,
        options: &[&str],
    ) -> Result<String> {
        let known = Command::named(&command.replace('-', " "))?;
        let mut asked = Options::new();
        for option in options {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let mut all = known.options(self.language).into_iter();
            let option = all.find(|option| option.name == key);
            let option = option.ok_or_else(|| format!("{} has no option `{key}`", known.name))?;
            let value = match value {
                "" | "true" if option.is_flag => Value::Bool(true),
                "false" if option.is_flag => Value::Bool(false),
                value if option.is_list => value.split_whitespace().map(Value::from).collect(),
                value => Value::from(value),
            };
            asked.insert(key.to_owned(), value);
        }
        let flow = NewFlow {
            id: id.parse()?,
            host: Some(host.to_owned()),
            command: known.name.to_owned(),
            options: asked,
        };
        let begun = self.hosts.start(flow).await?;
        self.started.push(begun.id.clone());
        match begun.end.as_ref().and_then(|end| end.message.clone()) {
            Some(message) => no(format!("{}: {message}", begun.id)),
            None => Ok(list(&[begun])),
        }
    }

    async fn set(&self, flow: &str, changes: &[&str]) -> Result<String> {
        let mut change = Change::default();
        for part in changes {
            match part.split_once('=') {
                Some(("rate", rate)) => change.rate = Some(rate.to_owned()),
                Some(("shed", shed)) => change.shed = Some(shed.to_owned()),
                _ => {
                    return no(format!(
                        "cannot set `{part}`: give rate=RATE or shed=POLICY"
                    ));
                }
            }
        }
        if change == Change::default() {
            return no("nothing to set: give rate=RATE, shed=POLICY or both".to_owned());
        }
        self.change(flow, change).await
    }

    async fn change(&self, flow: &str, change: Change) -> Result<String> {
        let flow = self.hosts.find(flow)?;
        let changed = self.hosts.change(flow.id, flow.revision, change).await?;
        Ok(list(&[changed]))
    }

    async fn stop(&self, flow: &str, kill: bool) -> Result<String> {
        let id = self.hosts.find(flow)?.id;
        Ok(list(&[self.hosts.stop(id, kill).await?]))
    }

    /// Stops the senders first, so that the receivers get all data.
    async fn stop_all(&self) -> Result<String> {
        let mut problems = Vec::new();
        for listens in [false, true] {
            let running = || -> Vec<FlowId> {
                let running = self.hosts.running(listens).into_iter();
                running.filter(|id| self.started.contains(id)).collect()
            };
            let mut asked = JoinSet::new();
            for id in running() {
                let hosts = Arc::clone(&self.hosts);
                asked.spawn(async move {
                    let done = hosts.stop(id.clone(), false).await;
                    done.err().map(|problem| (id, problem.error))
                });
            }
            let refused: Vec<(FlowId, String)> =
                asked.join_all().await.into_iter().flatten().collect();
            let is_asked = |id: &FlowId| !refused.iter().any(|(refused, _)| refused == id);
            let begun = Instant::now();
            while running().iter().any(is_asked) && begun.elapsed() <= TIMEOUT {
                sleep(POLL_INTERVAL).await;
            }
            let silent = running().into_iter().filter(is_asked);
            problems.extend(silent.map(|id| format!("{id} does not end: kill it with `kill`")));
            let refused = refused.iter();
            problems.extend(refused.map(|(id, problem)| format!("{id}: {problem}")));
            if !listens {
                sleep(self.session.around).await;
            }
        }
        match problems.is_empty() {
            true => Ok(list(&self.begun())),
            false => no(problems.join("\n")),
        }
    }

    /// Returns the flows that this console started.
    fn begun(&self) -> Vec<Flow> {
        let mut flows = self.hosts.flows();
        flows.retain(|flow| self.started.contains(&flow.id));
        flows
    }

    async fn wait(&self, name: &str, state: &str, time: Duration) -> Result<String> {
        let is_so: fn(&Flow) -> bool = match state {
            "running" => |flow| flow.state == State::Running,
            "ended" => Flow::has_ended,
            _ => {
                return no(format!(
                    "cannot wait for `{state}`: give running, ended, or a counter with a number"
                ));
            }
        };
        let (flow, is_in_time) = self.seen(name, time, is_so).await?;
        if !is_in_time {
            let time = show_seconds(time.as_secs_f64());
            return no(format!("{} is not {state} after {time}", flow.id));
        }
        Ok(list(&[flow]))
    }

    async fn wait_for_count(
        &self,
        name: &str,
        counter: &str,
        number: &str,
        time: Duration,
    ) -> Result<String> {
        let Some(counter) = counters::named(counter).filter(|it| it.kind == Kind::Counter) else {
            let known = counted().join(", ");
            return no(format!("unknown counter `{counter}`: give one of {known}"));
        };
        let bad = || format!("wait: `{number}` is not a whole number; give a count such as 100");
        let wanted: u64 = number.parse().map_err(|_| bad())?;
        let value = |flow: &Flow| flow.status.as_ref()?.total(counter);
        let is_reached = |flow: &Flow| value(flow).is_some_and(|it| real(&it) >= wanted as f64);
        let is_over = |flow: &Flow| is_reached(flow) || flow.has_ended();
        let (flow, is_in_time) = self.seen(name, time, is_over).await?;
        if !is_reached(&flow) {
            let found = value(&flow).map_or("no such counter".to_owned(), |it| counter.show(&it));
            let when = match is_in_time {
                true => "at its end".to_owned(),
                false => format!("after {}", show_seconds(time.as_secs_f64())),
            };
            let name = counter.name;
            return no(format!(
                "{}: {name} is not {wanted} {when}, but {found}",
                flow.id
            ));
        }
        Ok(list(&[flow]))
    }

    /// Polls a flow until a condition holds, and returns whether it held before the timeout.
    async fn seen(
        &self,
        name: &str,
        time: Duration,
        is_so: impl Fn(&Flow) -> bool,
    ) -> Result<(Flow, bool)> {
        let begun = Instant::now();
        loop {
            let flow = self.hosts.find(name)?;
            let is_in_time = is_so(&flow);
            if is_in_time || begun.elapsed() >= time {
                return Ok((flow, is_in_time));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    fn events(&mut self) -> Result<String> {
        let events = self.hosts.history.events(self.shown)?;
        self.shown = events.last().map_or(self.shown, |event| event.id);
        let lines = events.iter().map(|event| {
            let flow: String = event.flow.iter().map(|flow| format!(" {flow}")).collect();
            format!("{}  {}{flow}: {}", utc(event.time), event.host, event.text)
        });
        Ok(lines.collect::<Vec<String>>().join("\n"))
    }
}

/// Lists the counters that `wait` accepts.
pub(super) fn counted() -> Vec<&'static str> {
    let counters = counters::shown().filter(|counter| counter.kind == Kind::Counter);
    counters.map(|counter| counter.name).collect()
}

fn duration(text: &str) -> Result<Duration> {
    units::duration(text).or_else(|error| no(error.to_string()))
}

fn list(flows: &[Flow]) -> String {
    let rows = flows.iter().map(|flow| {
        let about = [flow.id.as_str(), &flow.host, &flow.command];
        // The last line of an ended flow is older than its last counts.
        super::row(about, flow.state, flow.end.as_ref(), || {
            match &flow.status {
                Some(status) if flow.has_ended() => {
                    counters::brief(|counter| status.total(counter)).join(", ")
                }
                Some(status) => status.line.clone(),
                None => String::new(),
            }
        })
    });
    super::table(&rows.collect::<Vec<_>>())
}

/// Splits a line into words. A `#` at the start of a word begins a comment.
fn words(line: &str) -> Result<Vec<String>> {
    let open = || "missing closing quotation mark".to_owned();
    Ok(shlex::split(line).ok_or_else(open)?)
}

/// Formats the status and the counters of a flow as text.
pub(super) fn show(flow: &Flow) -> String {
    let mut pairs = vec![
        ("flow", format!("{} on {}", flow.id, flow.host)),
        ("command", flow.command.clone()),
    ];
    let options = flow.options.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name}={text}"),
        other => format!("{name}={other}"),
    });
    pairs.push(("options", options.collect::<Vec<String>>().join(" ")));
    let state = evlbi_plot::name(&flow.state);
    pairs.push(("state", format!("{state}, revision {}", flow.revision)));
    if let Some(end) = &flow.end {
        let end = format!("{:?}{}", end.outcome, end.why());
        pairs.push(("end", end.to_lowercase()));
    }
    let Some(status) = &flow.status else {
        return lines(&pairs);
    };
    if !status.listening.is_empty() {
        pairs.push(("listens", status.listening.join(", ")));
    }
    if let Some(sending) = &status.sending {
        pairs.push(("sheds", sending.shed_policy.clone()));
        pairs.push(("sends", sending.counts.text()));
        if let Some(safe) = &sending.safe {
            let text = format!("{}, {}, {}", safe.mode, safe.state, safe.counts.text());
            pairs.push(("safe", text));
            let notices = safe.notices.iter();
            let notices = notices.map(|it| format!("after {:.1} s: {}", it.at_s, it.text));
            pairs.extend(notices.map(|text| ("notice", text)));
        }
    }
    for stream in &status.receiving {
        let station = stream.station.iter();
        let station: String = station.map(|station| format!("{station}: ")).collect();
        pairs.push(("receives", station + &stream.counts.text()));
        if let Some(safe) = &stream.safe {
            let state = safe.state.as_deref().unwrap_or("no sender");
            pairs.push(("safe", format!("{state}, {}", safe.counts.text())));
        }
    }
    for baseline in &status.baselines {
        let shown = format!(
            "{}  amplitude {:.5}  SNR {:.1}  delay {}  weight {:.4}",
            baseline.stations.join("-"),
            baseline.amplitude,
            baseline.snr,
            show_seconds(baseline.delay_s),
            baseline.weight
        );
        pairs.push(("baseline", shown));
    }
    lines(&pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_starts_with_a_word() {
        let found = words("start jive a recv to=a#b.vdif # to=c.vdif").unwrap();
        assert_eq!(found, ["start", "jive", "a", "recv", "to=a#b.vdif"]);
        assert_eq!(words("# nothing").unwrap(), [""; 0]);
        assert!(words("log \"a").is_err());
    }

    /// The last line that a flow printed is older than its last counts.
    #[test]
    fn an_ended_flow_is_listed_with_its_last_counts() {
        let flow = |state: &str| -> Flow {
            let flow = serde_json::json!({
                "id": "a", "host": "ef", "command": "send", "options": {}, "revision": 1, "state": state, "started": 1.0,
                "status": {"time": 2.0, "line": "said before", "sending": {
                    "rate_asked_bps": null, "rate_bps": 0.0, "shed_policy": "none", "offered": 12, "sent": 10, "shed": 2,
                    "not_sent": 0, "bytes": 100}}
            });
            serde_json::from_value(flow).unwrap()
        };
        assert!(list(&[flow("running")]).ends_with("said before"));
        let ended = list(&[flow("ended")]);
        assert!(ended.ends_with("sent 10, shed 2, not sent 0"), "{ended}");
    }
}
