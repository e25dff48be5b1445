//! Commands of the console and of scripts.

use std::time::Duration;

use evlbi_net::run::explain;

use super::fleet::Loss;
use super::*;
use crate::commands::{CommandOption, Grammar, Meaning, Sends};
use crate::session::console::{Console, Said};

/// Options that these tests use.
pub(super) struct Few;

impl Grammar for Few {
    fn options(&self, command: &str) -> Vec<CommandOption> {
        let names: &[&str] = match command {
            "send" => &["source", "to", "rate", "duration"],
            "recv" => &["from", "to", "duration"],
            _ => &[],
        };
        let option = |name: &&str| CommandOption {
            name: (*name).to_owned(),
            is_positional: false,
            is_flag: false,
            is_list: false,
            is_required: false,
            help: None,
            choices: Vec::new(),
            complete: str::to_owned,
        };
        names.iter().map(option).collect()
    }

    fn check(&self, _words: Vec<String>) -> Result<Meaning, String> {
        Ok(Meaning {
            sends: Sends::Nothing,
            start: None,
            duration: None,
            responds: None,
        })
    }
}

/// A console of a site.
struct Desk(Console);

impl Desk {
    async fn new(site: &Site, scans: &str) -> Desk {
        let session = session(scans);
        let hosts = site.hosts(&session, &[], None);
        Desk(Console::new(session, hosts, &Few).await)
    }

    /// Executes a line and returns its text.
    async fn take(&mut self, line: &str) -> Result<String, String> {
        match self.0.take(line).await {
            Ok(Said::Text(text)) => Ok(text),
            Ok(Said::Quit) => Ok("quit".to_owned()),
            Err(error) => Err(explain(&error)),
        }
    }

    async fn well(&mut self, line: &str) -> String {
        self.take(line)
            .await
            .unwrap_or_else(|error| panic!("{line}: {error}"))
    }
}

const REC: &str = "start jive rec recv from=udp://:2630 to=rec.vdif";
const SEND: &str = "start ef ef send source=a to=udp://10.77.0.1:2630 rate=8M duration=10s";

/// Returns the cells of a table.
fn cells(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().map(|row| {
        row.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect()
    });
    rows.collect()
}

#[tokio::test(start_paused = true)]
async fn flows_are_started_and_stopped_by_hand() {
    let site = Site::new();
    let mut desk = Desk::new(&site, "").await;
    assert_eq!(desk.well("list").await, "no flows");
    assert_eq!(
        cells(&desk.well(REC).await),
        [["rec", "jive", "recv", "running", "at work"]]
    );
    desk.well(SEND).await;
    assert_eq!(clock(), 0.06);
    assert_eq!(
        desk.take(SEND).await.unwrap_err(),
        "the name ef was used before: give each flow its own name"
    );
    let known = desk.take("start ef x send sauce=a").await.unwrap_err();
    assert_eq!(known, "send has no option `sauce`");
    assert_eq!(
        desk.take("start ys x send source=a").await.unwrap_err(),
        "there is no host ys"
    );
    let list = desk.well("list").await;
    assert_eq!(
        cells(&list),
        [
            ["ef", "ef", "send", "running", "at work"],
            ["rec", "jive", "recv", "running", "at work"]
        ]
    );
    // `wait` takes the given time.
    desk.well("wait 4s").await;
    assert_eq!(clock(), 4.06);
    let changed = desk.well("set ef rate=16M shed=every:5").await;
    assert!(changed.contains("running"), "{changed}");
    assert!(desk.well("show ef").await.contains("revision 2"));
    assert_eq!(
        desk.take("set ef").await.unwrap_err(),
        "nothing to set: give rate=RATE, shed=POLICY or both"
    );
    // The flow ends at its duration.
    let ended = desk.well("wait ef ended").await;
    assert_eq!(
        cells(&ended),
        [["ef", "ef", "send", "finished", "sent 16,000, shed 0"]]
    );
    let [asked, begins, ends] = site
        .fleet
        .with(|world| {
            let flow = &world.flows[1];
            [flow.asked, flow.begins, flow.ends()]
        })
        .map(seconds);
    assert_eq!([asked, begins, ends], [0.04, 0.06, 10.06]);
    // The console sees the end at the next poll of the agent.
    assert_eq!(clock(), 10.51);
    assert_eq!(cells(&desk.well("stop rec").await)[0][3], "stopping");
    desk.well("wait rec ended").await;
    assert!(desk.well("result rec").await.contains("\"unique\": 16000"));
    assert_eq!(desk.well("log rec").await, "log of rec");
    desk.well("forget rec").await;
    assert_eq!(
        desk.take("show rec").await.unwrap_err(),
        "there is no flow rec"
    );
    let events = desk.well("events").await;
    assert!(
        events.contains("ef: starts") && events.contains("rec: stopping"),
        "{events}"
    );
}

/// A wait ends when its condition holds, after its time, or after a minute by default.
#[tokio::test(start_paused = true)]
async fn a_wait_has_an_end() {
    let site = Site::new();
    let mut desk = Desk::new(&site, "").await;
    desk.well(REC).await;
    let begun = clock();
    assert_eq!(
        desk.take("wait rec ended").await.unwrap_err(),
        "rec is not ended after 60.0000 s"
    );
    assert_eq!(seconds(now()) - begun, 60.0);
    assert_eq!(
        desk.take("wait rec ended 90s").await.unwrap_err(),
        "rec is not ended after 90.0000 s"
    );
    assert_eq!(clock(), begun + 150.0);
    desk.well("wait rec running").await;
    assert_eq!(clock(), begun + 150.0);
    desk.well(SEND).await;
    // 1000 datagrams per second from now on. The agent is polled at every half second of the test. The console checks every 50 ms, and
    // sees the first polls after 2 s, 3 s and 10 s.
    let begun = clock();
    assert_eq!(begun, 150.06);
    desk.well("wait ef sent 2000").await;
    assert_eq!(clock(), 152.51);
    desk.well("wait rec unique 3000 1h").await;
    assert_eq!(clock(), 153.51);
    // At its end it is known that a counter will not reach a number.
    assert_eq!(
        desk.take("wait ef sent 10001").await.unwrap_err(),
        "ef: sent is not 10001 at its end, but 10,000"
    );
    assert_eq!(clock(), 160.51);
    let unknown = desk.take("wait ef speed 3").await.unwrap_err();
    assert!(
        unknown.starts_with("unknown counter `speed`: give one of "),
        "{unknown}"
    );
    let odd = desk.take("wait ef idle").await.unwrap_err();
    assert_eq!(
        odd,
        "cannot wait for `idle`: give running, ended, or a counter with a number"
    );
}

/// Senders are started when receivers listen, and `stop all` stops the senders first and the receivers `around` later.
#[tokio::test(start_paused = true)]
async fn a_session_is_started_and_stopped_by_hand() {
    let site = Site::new();
    let mut desk = Desk::new(&site, &scan("s1", "+0s", "1h")).await;
    assert_eq!(desk.well("check").await, "no problems found");
    let begun = desk.well("begin").await;
    assert_eq!(cells(&begun).len(), 6, "{begun}");
    let asked = |listens: bool| -> Vec<f64> {
        site.fleet.with(|world| {
            let flows = world.flows.iter().filter(|flow| flow.listens() == listens);
            flows.map(|flow| seconds(flow.asked)).collect()
        })
    };
    // Flows start one after the other, each after the first status of the previous one.
    assert_eq!(asked(true), [0.02, 0.04, 0.06]);
    assert_eq!(asked(false), [0.08, 0.1, 0.12]);
    desk.well("wait 5s").await;
    assert_eq!(clock(), 5.14);
    desk.well("stop all").await;
    let ends = |listens: bool| -> Vec<f64> {
        site.fleet.with(|world| {
            let flows = world.flows.iter().filter(|flow| flow.listens() == listens);
            flows.map(|flow| seconds(flow.ends())).collect()
        })
    };
    assert_eq!(ends(false), [5.15; 3]);
    // The console sees the senders' ends at 5.54 s.
    assert_eq!(ends(true), [7.55; 3]);
    assert_eq!(
        desk.take("begin s2").await.unwrap_err(),
        "the session has no scan s2"
    );
    // Another `begin` is another run.
    desk.well("begin s1").await;
    assert_eq!(site.fleet.with(|world| world.flows.len()), 12);
}

/// `stop all` stops only flows that this console started.
#[tokio::test(start_paused = true)]
async fn others_flows_stay() {
    let site = Site::new();
    let mut first = Desk::new(&site, "").await;
    let mut second = Desk::new(&site, "").await;
    first.well(REC).await;
    second.well(SEND).await;
    second.well("stop all").await;
    assert_eq!(cells(&first.well("list").await)[1][3], "running");
    assert_eq!(cells(&second.well("list").await)[0][3], "stopped");
}

/// A script stops at the first line that fails, and the error names that line.
#[tokio::test(start_paused = true)]
async fn a_script_ends_at_the_first_line_that_fails() {
    let site = Site::new();
    let mut shown = Vec::new();
    let mut desk = Desk::new(&site, "").await;
    let text = format!(
        "# a recorder and a station\n{REC}\n\n{SEND}\nwait 1s\nwait ef sent 10001 3s\nstop rec\n"
    );
    let run = site.run();
    let done = desk
        .0
        .follow("a.script", &text, &run, |text| shown.push(text.to_owned()))
        .await;
    assert_eq!(
        explain(&done.unwrap_err()),
        "a.script, line 6: wait ef sent 10001 3s: ef: sent is not 10001 after 3.0000 s, but 3,940"
    );
    assert_eq!(clock(), 4.06);
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert_eq!(cells(&desk.well("list").await)[1][3], "running");
    // Lines after `quit` are not executed, nor is any line once the run is stopped.
    let done = desk
        .0
        .follow("b.script", "quit\nstop rec\n", &run, |_| {
            panic!("nothing is shown")
        })
        .await;
    done.unwrap();
    run.stop();
    let done = desk
        .0
        .follow("b.script", "stop rec\n", &run, |_| {
            panic!("nothing is shown")
        })
        .await;
    assert_eq!(
        done.unwrap_err().to_string(),
        "interrupted before line 1; flows keep running"
    );
    assert_eq!(cells(&desk.well("list").await)[1][3], "running");
}

/// `hosts` lists all hosts, including those that do not answer.
#[tokio::test(start_paused = true)]
async fn hosts_are_listed() {
    let site = Site::new();
    site.fleet.with(|world| world.die("on", Loss::Agent));
    site.fleet.at("jb", |agent| {
        (agent.ahead, agent.late) = (0.25, Duration::from_secs(1));
    });
    let mut desk = Desk::new(&site, "").await;
    let silent: Vec<String> = desk.0.silent().collect();
    assert_eq!(
        silent,
        ["https://on:3650 does not answer: Connection refused"]
    );
    assert!(!desk.0.is_alone());
    let hosts = desk.well("hosts").await;
    let rows = cells(&hosts);
    let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(names, HOSTS);
    assert_eq!(rows[2][3], "clock ahead 250.0000 ms");
    assert_eq!(rows[3][1], silent[0]);
    for name in HOSTS {
        site.fleet.with(|world| world.die(name, Loss::Agent));
    }
    assert!(Desk::new(&site, "").await.0.is_alone());
}
