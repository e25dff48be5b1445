//! The schedule of a session: flows start and end at their times, whatever happens to others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::fleet::Loss;
use super::*;
use crate::Fleet as _;
use crate::fleet::{Drive, SessionState};
use crate::flow::State;

/// Scans with UTC and with relative starts run at their times. The controller checks every 50 ms from 20 ms on, and polls agents every
/// 500 ms.
#[tokio::test(start_paused = true)]
async fn a_schedule_drives_three_stations() {
    let site = Site::new();
    let session = session(&scan("s1", "2026-11-22T12:00:10Z", "6s"));
    let result = site.follow(&session).await;
    assert_eq!(result.failed(), 0);
    assert_eq!(result.flows.len(), 6);
    assert!(!result.interrupted);
    for name in STATIONS {
        let rec = format!("rec-{name}");
        // `around` before the scan, at the next check.
        assert_eq!(site.ran(&rec), [8.02, 8.04, 18.04], "{rec}");
        // Started when the receivers listen; it waits for the scan itself.
        assert_eq!(site.ran(name), [8.07, 10.0, 16.0], "{name}");
        assert_eq!(end(&result, name), (Outcome::Finished, 16.0));
        assert_eq!(end(&result, &rec), (Outcome::Finished, 18.04));
        // 6 s of 1000 datagrams each.
        assert_eq!(count(&result, name, "sent"), 6000);
        assert_eq!(count(&result, &rec, "unique"), 6000);
        let senders = &named(&result, &rec).senders;
        let senders: Vec<_> = senders
            .iter()
            .map(|it| (short(&it.flow), it.sent, it.missing))
            .collect();
        assert_eq!(senders, [(name.to_owned(), 6000, 0)]);
    }
    assert_eq!([result.started, result.ended].map(seconds), [0.02, 18.52]);
    let ends = site.said("has finished");
    assert_eq!(ends.len(), 6, "each is reported once: {ends:?}");
}

/// A sender whose source is shorter than its scan is reported, unless the session gives it a duration.
#[tokio::test(start_paused = true)]
async fn a_sender_that_ends_before_its_scan_is_reported() {
    let site = Site::new();
    let mut session = session(&scan("s1", "+0s", "10s"));
    for (name, source_s) in [("ef", 1.0), ("jb", 9.5), ("on", 1.0)] {
        site.fleet.at(name, |agent| agent.source_s = source_s);
    }
    for flow in (session.flows.iter_mut()).filter(|flow| flow.name.as_str() == "on") {
        flow.options.insert("duration".to_owned(), "1s".into());
    }
    let result = site.follow(&session).await;
    assert_eq!(result.failed(), 0);
    let ends = site.said(&format!("{RUN}.ef has finished"));
    let ends: Vec<String> = ends.into_iter().map(|(_, line)| line).collect();
    assert_eq!(
        ends,
        [format!(
            "ef: {RUN}.ef has finished 9 s before the end of scan s1"
        )]
    );
    assert_eq!(site.said("has finished").len(), 6);
    assert_eq!(site.said("before the end").len(), 1);
}

/// The session sets the time before and after a scan.
#[tokio::test(start_paused = true)]
async fn around_is_the_sessions() {
    let site = Site::new();
    let mut session = session(&scan("s1", "+1s", "3s"));
    session.around = Duration::from_secs(5);
    let result = site.follow(&session).await;
    // The run starts 0.5 s after the check; its scan `around` and 1 s later.
    assert_eq!(site.ran("rec-ef"), [1.52, 1.54, 14.54]);
    assert_eq!(site.ran("ef"), [1.57, 6.52, 9.52]);
    assert_eq!(result.failed(), 0);
}

/// Two successive scans with the same ports may have the minimum gap.
#[tokio::test(start_paused = true)]
async fn two_scans_use_the_same_ports() {
    let site = Site::new();
    let scans = scan("s1", "+0s", "3s") + &scan("s2", "+7.5s", "4s");
    let result = site.follow(&session(&scans)).await;
    assert_eq!(result.failed(), 0);
    assert_eq!(result.flows.len(), 12);
    for name in STATIONS {
        let [s1, s2] = ["s1", "s2"].map(|scan| format!("{scan}.{name}"));
        assert_eq!(site.ran(&s1), [0.57, 2.52, 5.52]);
        assert_eq!(site.ran(&s2), [8.07, 10.02, 14.02]);
        let [s1, s2] = ["s1", "s2"].map(|scan| format!("{scan}.rec-{name}"));
        assert_eq!(site.ran(&s1), [0.52, 0.54, 7.54]);
        assert_eq!(site.ran(&s2), [8.02, 8.04, 16.04]);
        assert_eq!(count(&result, &s2, "unique"), 4000);
    }
    assert_eq!(seconds(result.ended), 16.52);
}

/// Scans that are too close for their flows to restart are refused, and so are scans in the past.
#[tokio::test(start_paused = true)]
async fn scans_without_time_are_refused() {
    let site = Site::new();
    let prepared = async |scans: &str| {
        let prepared = site.prepared(&session(scans), RunOptions::default()).await;
        prepared.err().map(|error| error.to_string())
    };
    let close = scan("s1", "+0s", "3s") + &scan("s2", "+7.4s", "3s");
    let said = prepared(&close).await.unwrap();
    assert!(
        said.starts_with(
            "scans s1 and s2 are 4.4000 s apart, and flow rec-ef, which is in both, needs 4.5000 s"
        ),
        "{said}"
    );
    // `around` before the scan is now: there is no time left to start its flows.
    let early = prepared(&scan("s1", "2026-11-22T12:00:02Z", "3s"))
        .await
        .unwrap();
    assert!(
        early.starts_with("scan s1 begins in the past, or too soon"),
        "{early}"
    );
    assert_eq!(
        prepared(&scan("s1", "2026-11-22T12:01:00Z", "3s")).await,
        None
    );
    assert_eq!(site.all(), [""; 0]);
}

/// A session is refused while a station's agent does not answer; without that station the others run on time.
#[tokio::test(start_paused = true)]
async fn a_station_is_excluded() {
    let site = Site::new();
    site.fleet.with(|world| world.die("on", Loss::Agent));
    let session = session(&scan("s1", "+0s", "3s"));
    let mut refused = site
        .prepared(&session, RunOptions::default())
        .await
        .unwrap();
    let why = refused.follow(&site.run()).await.err().unwrap().to_string();
    assert_eq!(why, "1 problem found, nothing was started");
    assert_eq!(
        site.said("on: https://on:3650 does not answer: Connection refused")
            .len(),
        1
    );
    assert_eq!(site.all(), [""; 0]);
    let options = RunOptions {
        without: vec!["on".to_owned()],
        ..RunOptions::default()
    };
    let mut running = site.prepared(&session, options).await.unwrap();
    let begun = clock();
    let result = running.follow(&site.run()).await.unwrap();
    // The recorder of the skipped station receives nothing.
    assert_eq!(result.flows.len(), 5);
    assert_eq!(result.failed(), 0);
    for name in ["ef", "jb"] {
        let [_, begins, ends] = site.ran(name);
        assert_eq!([begins, ends], [begun + 2.5, begun + 5.5], "{name}");
        assert_eq!(count(&result, &format!("rec-{name}"), "unique"), 3000);
    }
    assert_eq!(count(&result, "rec-on", "unique"), 0);
}

/// A station's agent dies or refuses after the check: the others run on time, and the result has the reason.
#[tokio::test(start_paused = true)]
async fn a_station_that_never_starts_is_reported() {
    for (dies, why) in [
        (true, "https://on:3650 does not answer: Connection refused"),
        (false, "not here"),
    ] {
        let site = Site::new();
        let session = session(&scan("s1", "+0s", "3s"));
        let mut running = site
            .prepared(&session, RunOptions::default())
            .await
            .unwrap();
        match dies {
            true => site.fleet.with(|world| world.die("on", Loss::Agent)),
            false => site
                .fleet
                .at("on", |agent| agent.refuses = Some("not here".to_owned())),
        }
        let result = running.follow(&site.run()).await.unwrap();
        assert_eq!(result.flows.len(), 6);
        assert_eq!(result.failed(), 1);
        let on = named(&result, "on");
        let end = on.end.as_ref().unwrap();
        assert_eq!(
            (end.outcome, end.message.as_deref()),
            (Outcome::Failed, Some(why))
        );
        assert!(on.result.is_none());
        let [said] = site.said("on is not started").try_into().unwrap();
        assert_eq!(said, (0.57, format!("on: {RUN}.on is not started: {why}")));
        for name in ["ef", "jb"] {
            assert_eq!(site.ran(name), [0.57, 2.52, 5.52], "{name}");
            assert_eq!(count(&result, &format!("rec-{name}"), "unique"), 3000);
        }
        assert_eq!(count(&result, "rec-on", "unique"), 0);
        assert_eq!(seconds(result.ended), 8.02);
    }
}

/// A scan starts at its time even if a receiver does not listen: senders wait for it for half of `around`.
#[tokio::test(start_paused = true)]
async fn a_scan_starts_without_a_receiver() {
    let site = Site::new();
    let session = session(&scan("s1", "+0s", "3s"));
    let mut running = site
        .prepared(&session, RunOptions::default())
        .await
        .unwrap();
    site.fleet.at("jive", |agent| agent.is_deaf = true);
    let result = running.follow(&site.run()).await.unwrap();
    let [asked, begins, ends] = site.ran("ef");
    assert_eq!([asked, begins, ends], [1.52, 2.52, 5.52]);
    let said = site.said("starts although");
    assert_eq!(said.len(), 3, "{said:?}");
    for (at, line) in said {
        assert_eq!(at, 1.52);
        assert!(line.ends_with("does not listen after 1s"), "{line}");
    }
    // A receiver that never listened does not end on its own: it is stopped some time after its end time.
    assert_eq!(end(&result, "rec-ef").0, Outcome::Stopped);
}

/// Receivers end after the senders if a session is stopped, by Ctrl-C or in the web UI.
#[tokio::test(start_paused = true)]
async fn a_session_is_ended_senders_first() {
    for is_told in [true, false] {
        let site = Site::new();
        let session = session(&scan("s1", "+0s", "1h"));
        let hosts = site.hosts(&session, &[], Some(RUN));
        let options = RunOptions::default();
        let mut running = site
            .prepared_on(&session, options, Arc::clone(&hosts))
            .await
            .unwrap();
        let run = site.run();
        let ending = async {
            sleep(Duration::from_millis(9_980)).await;
            match is_told {
                true => drop(hosts.drive(Drive::End).unwrap()),
                false => run.stop(),
            }
        };
        let (result, ()) = tokio::join!(running.follow(&run), ending);
        let result = result.unwrap();
        assert_eq!(result.interrupted, !is_told);
        assert_eq!(result.failed(), 0);
        for name in STATIONS {
            assert_eq!(site.ran(name), [0.57, 2.52, 10.03], "{name}");
            // The next poll sees it; the receivers are stopped `around` later.
            assert_eq!(
                end(&result, &format!("rec-{name}")),
                (Outcome::Stopped, 12.53)
            );
            assert_eq!(count(&result, &format!("rec-{name}"), "unique"), 7510);
        }
        assert_eq!(hosts.session_state(), Some(SessionState::Over));
    }
}

/// A held session starts nothing until a user starts it; its relative times count from then.
#[tokio::test(start_paused = true)]
async fn a_held_session_starts_on_request() {
    let site = Site::new();
    let session = session(&scan("s1", "+0s", "3s"));
    let hosts = site.hosts(&session, &[], Some(RUN));
    let options = RunOptions {
        hold: true,
        ..RunOptions::default()
    };
    let mut running = site
        .prepared_on(&session, options, Arc::clone(&hosts))
        .await
        .unwrap();
    let run = site.run();
    let begins = async {
        sleep(Duration::from_secs(60)).await;
        let plan = hosts.session().unwrap();
        assert_eq!((plan.state, plan.flows.len()), (SessionState::Held, 6));
        assert!(plan.flows.iter().all(|flow| flow.starts.is_none()));
        assert_eq!(site.all(), [""; 0]);
        hosts.drive(Drive::Begin).unwrap();
        assert!(hosts.drive(Drive::Begin).is_err());
    };
    let (result, ()) = tokio::join!(running.follow(&run), begins);
    assert_eq!(result.unwrap().failed(), 0);
    assert_eq!(site.ran("ef"), [60.62, 62.57, 65.57]);
    let begin: f64 = first_line(&site.room.text("book"));
    assert_eq!(seconds(begin), 60.57);
}

/// Without scans, senders start when all receivers listen, and a session ends when all its senders have ended.
#[tokio::test(start_paused = true)]
async fn a_session_without_scans_ends_with_its_senders() {
    let site = Site::new();
    let mut session = session("");
    for flow in session
        .flows
        .iter_mut()
        .filter(|flow| flow.command == "send")
    {
        flow.options.insert("duration".to_owned(), "20s".into());
    }
    let result = site.follow(&session).await;
    assert_eq!(result.failed(), 0);
    for name in STATIONS {
        assert_eq!(site.ran(name), [0.57, 2.52, 22.52]);
        let (how, _) = end(&result, &format!("rec-{name}"));
        assert_eq!(
            (how, count(&result, &format!("rec-{name}"), "unique")),
            (Outcome::Stopped, 20_000)
        );
    }
    assert_eq!(named(&result, "ef").state, State::Ended);
}
