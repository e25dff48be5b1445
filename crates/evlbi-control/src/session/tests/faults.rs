//! Agents that stop, answer late and return at any moment of a session: the session ends, and its result is true.
//!
//! [`evlbi_testkit::faults`] describes how to replay a case that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evlbi_testkit::faults::{self, Faults, config, faults};
use proptest::prelude::*;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::fleet::Loss;
use super::*;

/// Default number of cases.
const CASES: u32 = 100;
/// Maximum time of a session after its last scan: each agent may delay the controller for every flow.
const MAX: Duration = Duration::from_mins(10);

/// Name that stands for the controller among the hosts. It stops and returns as agents do, and then resumes the run.
const CONTROLLER: &str = "controller";
/// Time by which a stopped controller has returned.
const BACK: Duration = Duration::from_secs(30);

/// Fault of the agent of a host or of the controller, and its time.
#[derive(Clone, Debug, PartialEq)]
struct Fault {
    at: Duration,
    host: &'static str,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Dies(Loss),
    Returns,
    /// From now on its answers take this time.
    IsLate(Duration),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} ", self.at, self.host)?;
        match self.what {
            What::Dies(Loss::Agent) => f.write_str("dies"),
            What::Dies(Loss::Host) => f.write_str("goes down"),
            What::Dies(Loss::Disk) => f.write_str("is lost"),
            What::Returns => f.write_str("returns"),
            What::IsLate(late) => write!(f, "late {late:?}"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let odd = || format!("`{text}` is not a fault");
        let (at, rest) = text.trim().split_once(' ').ok_or_else(odd)?;
        let (name, what) = rest.split_once(' ').ok_or_else(odd)?;
        let mut hosts = HOSTS.into_iter().chain([CONTROLLER]);
        let host = hosts.find(|host| *host == name);
        Ok(Fault {
            at: evlbi_wire::units::duration(at)?,
            host: host.ok_or_else(odd)?,
            what: match what {
                "dies" => What::Dies(Loss::Agent),
                "goes down" => What::Dies(Loss::Host),
                "is lost" => What::Dies(Loss::Disk),
                "returns" => What::Returns,
                _ => {
                    let late = what.strip_prefix("late ").ok_or_else(odd)?;
                    What::IsLate(evlbi_wire::units::duration(late)?)
                }
            },
        })
    }
}

impl faults::Fault for Fault {
    fn at(&self) -> Duration {
        self.at
    }
}

/// Generates faults for a session of twenty seconds.
fn any() -> BoxedStrategy<Faults<Fault>> {
    let late = prop_oneof![
        2 => Just(0),
        2 => 1..3_000u64,
        // Longer than a request's timeout, in one direction.
        1 => 10_000..25_000u64,
    ];
    let what = prop_oneof![
        2 => Just(What::Dies(Loss::Agent)),
        1 => Just(What::Dies(Loss::Host)),
        1 => Just(What::Dies(Loss::Disk)),
        4 => Just(What::Returns),
        3 => late.prop_map(|late| What::IsLate(Duration::from_millis(late))),
    ];
    // Nine in ten happen once the session has started.
    let at = prop_oneof![1 => 0..500u64, 9 => 500..25_000u64];
    let host = prop_oneof![5 => prop::sample::select(&HOSTS[..]), 1 => Just(CONTROLLER)];
    let fault = (at, host, what).prop_map(|(at, host, what)| Fault {
        at: Duration::from_millis(at),
        host,
        what,
    });
    faults(fault, 12)
}

/// Applies the faults at their times.
async fn strike(site: Fleet, faults: Faults<Fault>) {
    let begun = Instant::now();
    for fault in faults
        .0
        .into_iter()
        .filter(|fault| fault.host != CONTROLLER)
    {
        sleep_until(begun + fault.at).await;
        match fault.what {
            What::Dies(loss) => site.with(|world| world.die(fault.host, loss)),
            What::Returns => site.with(|world| world.come_back(fault.host)),
            What::IsLate(late) => site.at(fault.host, |agent| agent.late = late),
        }
    }
}

/// Returns since when, at a given time, the agent of a host has answered at once (`Ok`) or not at all (`Err`).
fn since(faults: &Faults<Fault>, host: &str, time: f64) -> Option<Result<f64, f64>> {
    let (mut since, mut is_alive, mut late) = (f64::NEG_INFINITY, true, Duration::ZERO);
    for fault in faults.0.iter().filter(|fault| fault.host == host) {
        let at = anchor::START + fault.at.as_secs_f64();
        if at > time {
            break;
        }
        match fault.what {
            What::Dies(_) => is_alive = false,
            What::Returns => is_alive = true,
            What::IsLate(new) => late = new,
        }
        since = at;
    }
    match (is_alive, late.is_zero()) {
        (true, true) => Some(Ok(since)),
        (true, false) => None,
        (false, _) => Some(Err(since)),
    }
}

/// Returns when the controller is killed, and when the next one starts.
fn kills(faults: &Faults<Fault>) -> Vec<(Duration, Duration)> {
    let mut kills: Vec<(Duration, Duration)> = Vec::new();
    for fault in faults.0.iter().filter(|fault| fault.host == CONTROLLER) {
        let is_away = kills.last().is_some_and(|(_, back)| *back == BACK);
        match (fault.what, kills.last_mut()) {
            (What::Dies(_), _) if !is_away => kills.push((fault.at, BACK)),
            (What::Returns, Some((_, back))) if is_away => *back = fault.at,
            _ => {}
        }
    }
    kills
}

/// Runs a session of two scans with these faults, and returns a log of everything.
fn play(faults: &Faults<Fault>) -> String {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let site = Site::new();
        let session = session(&(scan("s1", "+0s", "5s") + &scan("s2", "+10s", "5s")));
        let troubled: BTreeSet<&str> = faults.0.iter().map(|fault| fault.host).collect();
        tokio::spawn(strike(site.fleet.clone(), faults.clone()));
        let begun = Instant::now();
        let mut kills = kills(faults).into_iter();
        let (hosts, checked, followed) = loop {
            let hosts = site.hosts(&session, &[], Some(RUN));
            let is_begun = site.room.folder().join("book").exists();
            let options = RunOptions {
                resume: is_begun.then(|| RUN.parse().unwrap()),
                ..RunOptions::default()
            };
            let run = site.run();
            let following = async {
                let running = site
                    .prepared_on(&session, options, Arc::clone(&hosts))
                    .await;
                let mut running = running.unwrap();
                let followed = running.follow(&run).await;
                (running.checked.problems, followed)
            };
            let Some((killed, back)) = kills.next() else {
                let followed = timeout(MAX, following).await;
                let (checked, followed) = followed.expect("the session ends");
                break (hosts, checked, followed);
            };
            // Steps that are due when the controller is killed are executed first; otherwise the order would be random.
            tokio::select! {
                biased;
                (checked, followed) = following => break (hosts, checked, followed),
                () = sleep_until(begun + killed) => sleep_until(begun + back).await,
            }
        };
        // The check of a resumed run finds its own flows.
        for found in checked.iter().filter(|_| !troubled.contains(CONTROLLER)) {
            let is_wrong = troubled.contains(found.host.as_str());
            assert!(is_wrong, "nothing is wrong there: {found}");
        }
        let silent = hosts.silent();
        let ended = now();
        let Ok(result) = followed else {
            assert!(!checked.is_empty());
            assert_eq!(
                site.all(),
                [""; 0],
                "a session that is refused starts nothing"
            );
            return happened(&site);
        };
        for host in HOSTS {
            let is_silent = silent.contains_key(host);
            match since(faults, host, ended) {
                // An answer may have been in flight for as long as the timeout.
                Some(Ok(since)) if since + 11.0 < ended => assert!(!is_silent, "{host} answers"),
                Some(Err(since)) if since + 11.0 < ended => assert!(is_silent, "{host} is away"),
                _ => {}
            }
        }
        for (_, line) in site.said("does not answer") {
            let host = line.split(':').next().unwrap_or_default();
            assert!(troubled.contains(host), "{host} answers: {line}");
        }
        sleep(Duration::from_secs(30)).await;
        let begin: f64 = first_line(&site.room.text("book"));
        accounts(&site, &session, faults, [begin, ended], &result);
        if !troubled.contains(CONTROLLER) {
            in_time(&site, begin, &troubled, &result);
        }
        happened(&site)
    })
}

/// Returns all flows that ran and all output lines, with their times.
fn happened(site: &Site) -> String {
    let ran = site.fleet.with(|world| {
        let flow = |it: &Process| format!("{} {:?}", it.id, [it.asked, it.begins, it.ends()]);
        world.flows.iter().map(flow).collect::<Vec<String>>()
    });
    format!("{ran:?} {:?}", site.said(""))
}

/// Checks that the result has each flow once, with its true state as far as its agent could report it.
fn accounts(
    site: &Site,
    session: &Session,
    faults: &Faults<Fault>,
    [begin, ended]: [f64; 2],
    result: &RunResult,
) {
    let planned = session.scans.iter().flat_map(|scan| {
        let flows = session.flows_of(RUN, Some(scan)).unwrap();
        flows
            .into_iter()
            .map(|(plan, flow)| (flow.id, plan.host.clone()))
    });
    let planned: BTreeMap<FlowId, String> = planned.collect();
    let listed: Vec<&FlowId> = result.flows.iter().map(|flow| &flow.id).collect();
    assert_eq!(listed, planned.keys().collect::<Vec<_>>());
    site.fleet.with(|world| {
        for (id, host) in &planned {
            let ran: Vec<&Process> = world.flows.iter().filter(|flow| flow.id == *id).collect();
            // A flow runs twice only if its agent lost its files, and never at the same time.
            for both in ran.windows(2) {
                let is_lost = !both[0].is_known() && both[0].ends() <= both[1].asked;
                assert!(is_lost, "{id} runs twice");
            }
            let reported = result.flows.iter().find(|flow| flow.id == *id).unwrap();
            let end = reported.end.as_ref();
            assert_eq!(reported.host, *host);
            let Some(process) = ran.last() else {
                let why = end.and_then(|end| end.message.as_ref());
                assert!(why.is_some() && reported.result.is_none(), "{id} never ran");
                assert_eq!(end.unwrap().outcome, Outcome::Failed, "{id} never ran");
                continue;
            };
            let seen = world.agents[host].sees(process.ends());
            let (outcome, _) = process.outcome();
            assert_eq!(process.host, *host);
            assert!(
                process.asked <= result.ended,
                "{id} is started after the end"
            );
            assert!(process.ends() < now(), "{id} does not end");
            // The controller stops only flows that are well past their end time.
            let late = [("s1", 17.0), ("s2", 27.0)];
            let late = late
                .iter()
                .find(|(scan, _)| short(id).starts_with(scan))
                .unwrap();
            let is_early = process.ends() < begin + late.1;
            assert!(
                outcome != Outcome::Stopped || !is_early,
                "{id} is stopped early"
            );
            let is_true = end.is_some_and(|end| (end.time, end.outcome) == (seen, outcome));
            let is_unknown = end.is_some_and(|end| end.outcome == Outcome::Failed);
            assert!(
                end.is_none() || is_true || is_unknown,
                "{id} ended otherwise: {end:?}"
            );
            if let Some(found) = &reported.result {
                assert_eq!(Some(found), world.result(process).as_ref(), "{id}");
            }
            // The result has everything that an agent could report in time.
            let tells = since(faults, host, ended);
            let tells = matches!(tells, Some(Ok(since)) if since + 11.0 < result.ended);
            if tells && process.is_known() && seen + 1.0 < result.ended {
                assert!(is_true, "{id} ended at {seen} ({outcome:?}): {end:?}");
                assert_eq!(reported.result, world.result(process), "{id}");
            }
        }
    });
}

/// Checks that flows of hosts without faults run at their times.
fn in_time(site: &Site, begin: f64, troubled: &BTreeSet<&str>, result: &RunResult) {
    for (name, start) in [("s1", begin + 2.0), ("s2", begin + 12.0)] {
        for station in STATIONS
            .iter()
            .filter(|station| !troubled.contains(**station))
        {
            let sender = format!("{name}.{station}");
            let [_, begins, ends] = site.ran(&sender);
            assert_eq!(
                [begins, ends],
                [seconds(start), seconds(start + 5.0)],
                "{sender}"
            );
            assert_eq!(end(result, &sender), (Outcome::Finished, ends), "{sender}");
            assert_eq!(count(result, &sender, "sent"), 5000, "{sender}");
        }
        for station in STATIONS.iter().filter(|_| !troubled.contains("jive")) {
            let recorder = format!("{name}.rec-{station}");
            let [asked, begins, ends] = site.ran(&recorder);
            let due = seconds(start - 2.0);
            assert!(
                (due..due + 0.051).contains(&asked),
                "{recorder} is due at {due}: {asked}"
            );
            assert_eq!(seconds(anchor::START + ends - begins), 9.0, "{recorder}");
            assert_eq!(
                end(result, &recorder),
                (Outcome::Finished, ends),
                "{recorder}"
            );
        }
    }
}

proptest! {
    #![proptest_config(config(CASES))]

    /// The same case twice gives the same log.
    #[test]
    fn sessions_outlive_faults(faults in any()) {
        prop_assert_eq!(play(&faults), play(&faults));
    }
}

/// The text that a failure prints replays the same faults.
#[test]
fn faults_are_read_as_they_are_printed() {
    let text =
        "500ms ef dies; 1.5s jb goes down; 2s on is lost; 4s jb returns; 7.25s jive late 1.2s";
    let faults: Faults<Fault> = text.parse().unwrap();
    assert_eq!(format!("{faults:?}"), format!("EVLBI_FAULTS='{text}'"));
    assert!("5s nowhere dies".parse::<Fault>().is_err());
}
