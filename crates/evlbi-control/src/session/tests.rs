//! Whole sessions on tokio's paused clock, with agents in memory: the time of each step is known.

mod check;
mod console;
mod counters;
mod faults;
mod fleet;
mod resume;
mod schedule;

use std::path::Path;
use std::sync::Arc;

use evlbi_net::run::{Note, Notes, Run};
use evlbi_testkit::Room;
use parking_lot::Mutex;

use self::fleet::{Fleet, Process};
use super::hosts::Hosts;
use super::result::{FlowResult, RunResult};
use super::run::Running;
use super::schedule::ScheduleError;
use super::{RunOptions, Session};
use crate::flow::{FlowId, Outcome};
use crate::history::History;
use crate::time::{anchor, now};

/// Host of the recorder, and hosts of the stations.
const HOSTS: [&str; 4] = ["jive", "ef", "jb", "on"];
const STATIONS: [&str; 3] = ["ef", "jb", "on"];
/// Name of each run.
const RUN: &str = "three-1";

/// Returns the seconds since the start of the test.
fn clock() -> f64 {
    seconds(now())
}

/// Returns the seconds from the start of the test to a time, rounded to a microsecond.
fn seconds(time: f64) -> f64 {
    ((time - anchor::START) * 1e6).round() / 1e6
}

/// Returns a session with these scans of three stations that send 8 Mbit/s each to a recording host.
fn session(scans: &str) -> Session {
    toml::from_str(&text(scans)).unwrap()
}

/// Returns the text of that session.
fn text(scans: &str) -> String {
    let host = |(number, name): (usize, &&str)| {
        format!(
            "[[host]]\nname = \"{name}\"\nagent = \"https://{name}:3650\"\naddresses = [\"10.77.0.{}\"]\n",
            number + 1
        )
    };
    let flows = |(number, name): (usize, &&str)| {
        let port = 2630 + number;
        format!(
            "[[flow]]\nname = \"{name}\"\nhost = \"{name}\"\ncommand = \"send\"\nsource = \"a.vdif\"\nto = \"udp://10.77.0.1:{port}\"\nrate = \"8M\"
             [[flow]]\nname = \"rec-{name}\"\nhost = \"jive\"\ncommand = \"recv\"\nfrom = \"udp://:{port}\"\nto = \"{{session}}-{{scan}}-{name}.vdif\"\n"
        )
    };
    let hosts: String = HOSTS.iter().enumerate().map(host).collect();
    let flows: String = STATIONS.iter().enumerate().map(flows).collect();
    format!("name = \"three\"\n{hosts}{scans}{flows}")
}

/// Returns the text of a scan.
fn scan(name: &str, start: &str, duration: &str) -> String {
    format!("[[scan]]\nname = \"{name}\"\nstart = \"{start}\"\nduration = \"{duration}\"\n")
}

/// Site: hosts with their agents, and the state directory of a controller, on a paused clock.
struct Site {
    fleet: Fleet,
    room: Room,
    lines: Arc<Lines>,
}

/// Output lines of runs, each with the seconds since the start of the test.
#[derive(Default)]
struct Lines(Mutex<Vec<(f64, String)>>);

impl Notes for Lines {
    fn take(&self, note: &Note<'_>) {
        if let Note::Line(text) | Note::Said(text) = note {
            self.0.lock().push((clock(), text.to_string()));
        }
    }
}

impl Site {
    fn new() -> Site {
        anchor::set();
        Site {
            fleet: Fleet::new(&HOSTS),
            room: Room::new(),
            lines: Arc::default(),
        }
    }

    /// Returns the hosts of a session with clients of their agents.
    fn hosts(&self, session: &Session, without: &[String], only: Option<&str>) -> Arc<Hosts> {
        let plans = session.hosts.iter();
        let plans = plans.filter(|host| !without.contains(&host.name));
        let hosts = plans.map(|plan| self.fleet.connect(plan)).collect();
        let history = History::open(Path::new(":memory:")).unwrap();
        Hosts::open(session.name.as_str(), hosts, Arc::new(history), only)
    }

    fn run(&self) -> Run {
        Run::new(Arc::<Lines>::clone(&self.lines))
    }

    /// Prepares and checks a run of a session.
    async fn prepared(
        &self,
        session: &Session,
        options: RunOptions,
    ) -> Result<Running, ScheduleError> {
        let hosts = self.hosts(session, &options.without, Some(RUN));
        self.prepared_on(session, options, hosts).await
    }

    async fn prepared_on(
        &self,
        session: &Session,
        options: RunOptions,
        hosts: Arc<Hosts>,
    ) -> Result<Running, ScheduleError> {
        let book = self.room.folder().join("book");
        let begin = options.resume.as_ref();
        let begin = begin.map(|_| first_line(&self.room.text("book")));
        Running::new(session.clone(), RUN.to_owned(), options, book, begin, hosts).await
    }

    /// Runs a session to its end.
    async fn follow(&self, session: &Session) -> RunResult {
        let mut running = self.prepared(session, RunOptions::default()).await.unwrap();
        running.follow(&self.run()).await.unwrap()
    }

    /// Returns the output lines that contain a text, with their times.
    fn said(&self, what: &str) -> Vec<(f64, String)> {
        let lines = self.lines.0.lock();
        let found = lines.iter().filter(|(_, text)| text.contains(what));
        found.cloned().collect()
    }

    /// Returns when the only flow whose name ends so was requested, started and ended, in seconds since the start of the test.
    #[track_caller]
    fn ran(&self, name: &str) -> [f64; 3] {
        self.process(name, |flow| [flow.asked, flow.begins, flow.ends()])
            .map(seconds)
    }

    #[track_caller]
    fn process<T>(&self, name: &str, look: impl FnOnce(&Process) -> T) -> T {
        self.fleet.with(|world| {
            let ending = format!(".{name}");
            let mut found = world
                .flows
                .iter()
                .filter(|flow| flow.id.as_str().ends_with(&ending));
            let flow = found.next().unwrap_or_else(|| panic!("no {name} ran"));
            assert!(found.next().is_none(), "{name} ran twice");
            look(flow)
        })
    }

    /// Returns the names of all flows that ran, without the name of the run.
    fn all(&self) -> Vec<String> {
        self.fleet.with(|world| {
            let names = world.flows.iter().map(|flow| short(&flow.id));
            names.collect()
        })
    }
}

/// Returns when a run began: the first line of its book.
fn first_line(book: &str) -> f64 {
    book.lines().next().unwrap().parse().unwrap()
}

/// Returns a flow's name without the name of its run.
fn short(id: &FlowId) -> String {
    id.as_str().strip_prefix(RUN).unwrap()[1..].to_owned()
}

/// Returns the flow of this name in a result.
#[track_caller]
fn named<'r>(result: &'r RunResult, name: &str) -> &'r FlowResult {
    let mut found = result.flows.iter().filter(|flow| short(&flow.id) == name);
    let flow = found
        .next()
        .unwrap_or_else(|| panic!("no {name} in the result"));
    assert!(found.next().is_none(), "{name} twice in the result");
    flow
}

/// Returns the outcome of a flow in a result, and its time in seconds since the start of the test.
#[track_caller]
fn end(result: &RunResult, name: &str) -> (Outcome, f64) {
    let end = named(result, name).end.as_ref();
    let end = end.unwrap_or_else(|| panic!("{name} has no end"));
    (end.outcome, seconds(end.time))
}

/// Returns a counter of a flow's result.
#[track_caller]
fn count(result: &RunResult, name: &str, counter: &str) -> u64 {
    let found = named(result, name).result.as_ref();
    found
        .and_then(|found| found[counter].as_u64())
        .unwrap_or_else(|| panic!("{name} has no {counter}"))
}
