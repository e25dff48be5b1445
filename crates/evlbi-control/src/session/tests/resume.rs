//! Controllers and agents that stop in the middle of a session: flows keep running, and the next controller reports all.

use std::time::Duration;

use tokio::time::sleep;

use super::fleet::Loss;
use super::*;
use crate::Fleet as _;

/// Two scans of five seconds.
fn two_scans() -> Session {
    session(&(scan("s1", "+0s", "5s") + &scan("s2", "+10s", "5s")))
}

/// Runs a session for a time, like a controller that is killed then.
async fn killed_after(site: &Site, session: &Session, time: Duration) {
    let mut running = site.prepared(session, RunOptions::default()).await.unwrap();
    let run = site.run();
    tokio::select! {
        biased;
        _ = running.follow(&run) => panic!("the session is over"),
        () = sleep(time) => {}
    }
}

/// Continues the run.
async fn resumed(site: &Site, session: &Session) -> RunResult {
    let options = RunOptions {
        resume: Some(RUN.parse().unwrap()),
        ..RunOptions::default()
    };
    let mut running = site.prepared(session, options).await.unwrap();
    running.follow(&site.run()).await.unwrap()
}

/// Checks that all flows of both scans ran once, for exactly their planned time.
#[track_caller]
fn ran_exactly(site: &Site, result: &RunResult) {
    assert_eq!(site.all().len(), 12);
    assert_eq!(result.flows.len(), 12);
    assert_eq!(result.failed(), 0);
    for name in STATIONS {
        for (scan, start) in [("s1", 2.52), ("s2", 12.52)] {
            let sender = format!("{scan}.{name}");
            let [_, begins, ends] = site.ran(&sender);
            assert_eq!([begins, ends], [start, start + 5.0], "{sender}");
            assert_eq!(end(result, &sender).0, Outcome::Finished);
            assert_eq!(count(result, &sender, "sent"), 5000);
            let recorder = format!("{scan}.rec-{name}");
            let [_, begins, ends] = site.ran(&recorder);
            assert_eq!(seconds(ends - begins + anchor::START), 9.0, "{recorder}");
            assert_eq!(end(result, &recorder), (Outcome::Finished, ends));
            assert_eq!(count(result, &recorder, "unique"), 5000);
        }
    }
}

/// A controller is killed in the first scan, between the scans or in the second: the next one reports the whole session.
#[tokio::test(start_paused = true)]
async fn a_session_outlives_its_controller() {
    for killed in [4_000, 10_100, 14_000] {
        let site = Site::new();
        let session = two_scans();
        killed_after(&site, &session, Duration::from_millis(killed)).await;
        sleep(Duration::from_millis(300)).await;
        let begun = clock();
        let result = resumed(&site, &session).await;
        ran_exactly(&site, &result);
        // The agents are polled every 0.5 s. The run starts 20 ms later, when all have answered, and checks every 50 ms.
        let [.., last] = site.ran("s2.rec-on");
        let looks = ((last - begun) / 0.5).ceil();
        let ended = anchor::START + begun + 0.5 * looks + 0.02;
        assert_eq!(seconds(result.ended), seconds(ended), "{killed}");
    }
}

/// A run that is resumed after its scans reports their results, and starts nothing.
#[tokio::test(start_paused = true)]
async fn a_session_is_resumed_after_its_end() {
    let site = Site::new();
    let session = two_scans();
    killed_after(&site, &session, Duration::from_secs(14)).await;
    sleep(Duration::from_secs(120)).await;
    let begun = clock();
    let result = resumed(&site, &session).await;
    ran_exactly(&site, &result);
    // Until all agents have answered.
    assert_eq!(seconds(anchor::START + clock() - begun), 0.02);
    assert_eq!(site.said("is not started"), []);
}

/// A scan that no controller started is reported as such, and is not started late.
#[tokio::test(start_paused = true)]
async fn a_scan_without_a_controller_is_missed() {
    let site = Site::new();
    let session = two_scans();
    killed_after(&site, &session, Duration::from_secs(4)).await;
    sleep(Duration::from_secs(60)).await;
    let result = resumed(&site, &session).await;
    assert_eq!(
        (site.all().len(), result.flows.len(), result.failed()),
        (6, 12, 6)
    );
    for name in STATIONS {
        assert_eq!(count(&result, &format!("s1.{name}"), "sent"), 5000);
        let missed = named(&result, &format!("s2.{name}")).end.as_ref().unwrap();
        assert_eq!(
            missed.message.as_deref(),
            Some("its scan was over when the run was resumed")
        );
    }
}

/// A flow that runs past its end time is stopped by a later controller, as by the original one.
#[tokio::test(start_paused = true)]
async fn what_outlives_its_scan_is_stopped_after_a_resume() {
    let site = Site::new();
    let session = session(&scan("s1", "+0s", "5s"));
    let mut running = site
        .prepared(&session, RunOptions::default())
        .await
        .unwrap();
    site.fleet.at("jive", |agent| agent.is_deaf = true);
    let run = site.run();
    tokio::select! {
        biased;
        _ = running.follow(&run) => panic!("the session is over"),
        () = sleep(Duration::from_secs(12)) => {}
    }
    site.fleet.at("jive", |agent| agent.is_deaf = false);
    // Receivers that never listened do not end on their own.
    let result = resumed(&site, &session).await;
    for name in STATIONS {
        assert_eq!(end(&result, name), (Outcome::Finished, 7.52));
        // `around` after the scan and ten seconds more, at the next poll.
        let stopped = (Outcome::Stopped, 19.55);
        assert_eq!(end(&result, &format!("rec-{name}")), stopped);
    }
}

/// An agent is killed in a scan, and restarted in it or after it: its flow keeps running, and the controller reports when it was away.
#[tokio::test(start_paused = true)]
async fn a_session_outlives_an_agent() {
    for back in [1_200, 6_000] {
        let site = Site::new();
        let session = two_scans();
        let hosts = site.hosts(&session, &[], Some(RUN));
        let options = RunOptions::default();
        let mut running = site
            .prepared_on(&session, options, Arc::clone(&hosts))
            .await
            .unwrap();
        let run = site.run();
        let kills = async {
            sleep(Duration::from_secs(4)).await;
            site.fleet.with(|world| world.die("jb", Loss::Agent));
            sleep(Duration::from_millis(back)).await;
            site.fleet.with(|world| world.come_back("jb"));
        };
        let (result, ()) = tokio::join!(running.follow(&run), kills);
        let result = result.unwrap();
        ran_exactly(&site, &result);
        let back = 4.02 + back as f64 * 1e-3;
        // If the agent did not see the end of a flow, the end has the time of its restart.
        assert_eq!(end(&result, "s1.jb").1, back.max(7.52));
        let events = hosts.history.events(0).unwrap();
        let of_jb = events
            .iter()
            .filter(|event| event.host == "jb" && event.flow.is_none());
        let of_jb: Vec<(f64, &str)> = of_jb
            .map(|event| (seconds(event.time), event.text.as_str()))
            .collect();
        let silent =
            "https://jb:3650 does not answer: Connection refused; flows there keep running";
        let heard = (back / 0.5).ceil() * 0.5;
        assert_eq!(of_jb, [(4.5, silent), (heard, "the agent answers again")]);
    }
}

/// A host goes down in a scan and comes up again: its flow is reported as killed, and its next scan runs on time.
#[tokio::test(start_paused = true)]
async fn a_session_outlives_a_host() {
    let site = Site::new();
    let session = two_scans();
    let mut running = site
        .prepared(&session, RunOptions::default())
        .await
        .unwrap();
    let run = site.run();
    let kills = async {
        sleep(Duration::from_secs(4)).await;
        site.fleet.with(|world| world.die("jb", Loss::Host));
        sleep(Duration::from_secs(3)).await;
        site.fleet.with(|world| world.come_back("jb"));
    };
    let (result, ()) = tokio::join!(running.follow(&run), kills);
    let result = result.unwrap();
    assert_eq!((result.flows.len(), result.failed()), (12, 1));
    assert_eq!(end(&result, "s1.jb"), (Outcome::Killed, 7.02));
    assert!(named(&result, "s1.jb").result.is_none());
    assert_eq!(count(&result, "s1.rec-jb", "unique"), 1500);
    assert_eq!(end(&result, "s2.jb"), (Outcome::Finished, 17.52));
    assert_eq!(count(&result, "s2.jb", "sent"), 5000);
}

/// An agent stops before it answers a start, and returns: the flow runs, so the run waits for it and has its result.
#[tokio::test(start_paused = true)]
async fn a_start_without_an_answer_is_a_start() {
    let site = Site::new();
    let session = session(&scan("s1", "+0s", "30s"));
    let hosts = site.hosts(&session, &[], Some(RUN));
    let options = RunOptions::default();
    let mut running = site
        .prepared_on(&session, options, Arc::clone(&hosts))
        .await
        .unwrap();
    let run = site.run();
    let kills = async {
        // The start is requested at 0.57 s.
        sleep(Duration::from_millis(560)).await;
        site.fleet.with(|world| world.die("on", Loss::Agent));
        let to_come = || hosts.session().unwrap().flows;
        sleep(Duration::from_millis(120)).await;
        let [on] = to_come().try_into().unwrap();
        let why = "https://on:3650 does not answer: Connection refused";
        assert_eq!(
            (short(&on.id), on.why_not.as_deref()),
            ("on".to_owned(), Some(why))
        );
        site.fleet.with(|world| world.come_back("on"));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(to_come(), []);
        // The others are killed, so the run waits only for this one.
        for host in ["jive", "ef", "jb"] {
            site.fleet.with(|world| {
                world.die(host, Loss::Host);
                world.come_back(host);
            });
        }
    };
    let (result, ()) = tokio::join!(running.follow(&run), kills);
    let result = result.unwrap();
    assert_eq!(site.ran("on"), [0.57, 2.52, 32.52]);
    assert_eq!(end(&result, "on"), (Outcome::Finished, 32.52));
    assert_eq!((result.flows.len(), result.failed()), (6, 5));
}
