//! The check of a session before its start.

use std::time::Duration;

use evlbi_core::rate::BitRate;

use super::console::Few;
use super::fleet::{Agent, Loss, TIMEOUT};
use super::*;
use crate::identity::Role;
use crate::session::run::prepare;
use crate::session::{ControllerOptions, check};

/// Scans of ten seconds: 30 MB are recorded in each.
fn two_scans() -> Session {
    session(&(scan("s1", "+0s", "10s") + &scan("s2", "+20s", "10s")))
}

/// Returns the problems as they are printed.
async fn found(site: &Site, session: &Session) -> Vec<String> {
    let hosts = site.hosts(session, &[], Some(RUN));
    hosts.wait_for_answers().await;
    let found = check::check(session, RUN, &hosts).await;
    assert_eq!(site.all(), [""; 0], "a check starts nothing");
    found.problems.iter().map(ToString::to_string).collect()
}

/// Returns the problems of a good site after a change.
async fn wrong(at: &str, change: impl FnOnce(&mut Agent)) -> Vec<String> {
    let site = Site::new();
    site.fleet.at(at, change);
    found(&site, &two_scans()).await
}

#[tokio::test(start_paused = true)]
async fn nothing_is_wrong_with_a_good_session() {
    let site = Site::new();
    let session = two_scans();
    let hosts = site.hosts(&session, &[], Some(RUN));
    hosts.wait_for_answers().await;
    let found = check::check(&session, RUN, &hosts).await;
    assert_eq!(found.problems, []);
    let hosts: Vec<_> = found
        .hosts
        .iter()
        .map(|host| (host.host.as_str(), host.clock_ahead_s, host.free_bytes))
        .collect();
    assert_eq!(hosts, HOSTS.map(|name| (name, 0.0, Some(1 << 40))));
}

/// A path that is reserved for less than the session is a problem; one without a stated congestion control is not yet.
#[tokio::test(start_paused = true)]
async fn reservations_last_until_the_end() {
    for (until, count) in [("2100-01-01T00:00:00Z", 0), ("1970-01-01T00:00:00Z", 2)] {
        let mut session = two_scans();
        let sender = session
            .flows
            .iter_mut()
            .find(|flow| !flow.known().listens());
        sender.unwrap().reserved_until = Some(until.parse().unwrap());
        let found = found(&Site::new(), &session).await;
        assert_eq!(found.len(), count, "{found:?}");
        let says = format!("its path is reserved until {until}, before the end of scan s");
        assert!(found.iter().all(|found| found.contains(&says)), "{found:?}");
    }
}

/// A clock may be off by 500 ms, or by what the session allows.
#[tokio::test(start_paused = true)]
async fn clocks_that_are_off_are_found() {
    assert_eq!(wrong("jb", |agent| agent.ahead = 0.5).await, [""; 0]);
    for (ahead, side) in [(2.0, "ahead of"), (-2.0, "behind")] {
        let found = wrong("jb", |agent| agent.ahead = ahead).await;
        assert_eq!(
            found,
            [format!(
                "jb: its clock is 2.0000 s {side} this host's: synchronise both with NTP, or raise `clocks` in the session"
            )]
        );
    }
    let site = Site::new();
    site.fleet.at("jb", |agent| agent.ahead = 2.0);
    let mut session = two_scans();
    session.clocks = Duration::from_secs(2);
    assert_eq!(found(&site, &session).await, [""; 0]);
}

/// The time of an answer is not a clock offset, but it limits how well the offset is known.
#[tokio::test(start_paused = true)]
async fn late_answers_hide_no_clock() {
    assert_eq!(
        wrong("jb", |agent| agent.late = Duration::from_secs(4)).await,
        [""; 0]
    );
    let late = |ahead| {
        wrong("jb", move |agent| {
            (agent.late, agent.ahead) = (Duration::from_secs(2), ahead);
        })
    };
    // Within a second of the middle.
    assert_eq!(late(1.4).await, [""; 0]);
    let found = late(1.6).await;
    assert!(
        found.len() == 1 && found[0].starts_with("jb: its clock is 1.6000 s ahead"),
        "{found:?}"
    );
}

/// An agent that answers after the client's timeout counts as silent, like one that died. The others are checked anyway.
#[tokio::test(start_paused = true)]
async fn agents_that_do_not_answer_are_found() {
    let site = Site::new();
    site.fleet.with(|world| world.die("ef", Loss::Agent));
    site.fleet.at("jb", |agent| {
        agent.late = 2 * TIMEOUT + Duration::from_millis(2);
    });
    site.fleet.at("on", |agent| agent.ahead = 3.0);
    let found = found(&site, &two_scans()).await;
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(
        found[0],
        "ef: https://ef:3650 does not answer: Connection refused"
    );
    assert_eq!(
        found[1],
        "jb: https://jb:3650 does not answer: operation timed out"
    );
    assert!(found[2].starts_with("on: its clock is 3.0000 s ahead"));
}

/// A session starts after the check, however long that takes.
#[tokio::test(start_paused = true)]
async fn late_answers_cost_a_scan_nothing() {
    let site = Site::new();
    site.fleet
        .at("jb", |agent| agent.late = Duration::from_secs(4));
    let session = session(&scan("s1", "+0s", "5s"));
    let mut running = site
        .prepared(&session, RunOptions::default())
        .await
        .unwrap();
    let checked = clock();
    assert_eq!(checked, 16.02);
    site.fleet.at("jb", |agent| agent.late = Duration::ZERO);
    let result = running.follow(&site.run()).await.unwrap();
    assert_eq!(result.failed(), 0);
    for name in STATIONS {
        assert_eq!(
            site.ran(name),
            [checked + 0.55, checked + 2.5, checked + 7.5]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn links_that_are_too_small_are_found() {
    let site = Site::new();
    let with_link = |host: usize, link: &str| {
        let mut session = two_scans();
        session.hosts[host].link = Some(link.parse().unwrap());
        session
    };
    // Three stations send 8 Mbit/s each to the recorder.
    assert_eq!(found(&site, &with_link(0, "24M")).await, [""; 0]);
    let into = found(&site, &with_link(0, "23M")).await;
    assert_eq!(
        into,
        ["jive: 24.000 Mbit/s of inbound data exceed its link of 23Mbit/s"]
    );
    assert_eq!(found(&site, &with_link(1, "8M")).await, [""; 0]);
    let out = found(&site, &with_link(1, "7M")).await;
    assert_eq!(
        out,
        ["ef: 8.000 Mbit/s of outbound data exceed its link of 7Mbit/s"]
    );
}

/// The problem names the scan in which the disk becomes full.
#[tokio::test(start_paused = true)]
async fn disks_that_are_too_small_are_found() {
    let free = |bytes: u64| wrong("jive", move |agent| agent.free_bytes = bytes);
    assert_eq!(free(60_000_000).await, [""; 0]);
    for (bytes, scan) in [(59_999_999, "s2"), (29_999_999, "s1")] {
        let found = free(bytes).await;
        let says = format!("up to the end of scan {scan}, and");
        assert!(
            found.len() == 1 && found[0].starts_with("jive: ") && found[0].contains(&says),
            "{found:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_recorded_twice_is_found() {
    let site = Site::new();
    let mut session = two_scans();
    session.flows[1]
        .options
        .insert("to".to_owned(), "ef.vdif".into());
    assert_eq!(
        found(&site, &session).await,
        ["jive rec-ef: ef.vdif is recorded more than once: put {scan} into the name"]
    );
}

/// A problem of both scans is reported once.
#[tokio::test(start_paused = true)]
async fn ports_in_use_are_found() {
    let found = wrong("jive", |agent| agent.taken = vec![2631]).await;
    assert_eq!(
        found,
        ["jive rec-jb: cannot listen on port 2631: Address already in use"]
    );
}

/// The rates of overlapping scans add up; those of successive scans do not.
#[tokio::test(start_paused = true)]
async fn rates_above_an_agents_limit_are_found() {
    let limited = async |rate: &str, second: &str| {
        let site = Site::new();
        site.fleet.at("ef", |agent| {
            agent.max_rate = Some(rate.parse::<BitRate>().unwrap());
        });
        let mut session = session(&(scan("s1", "+0s", "10s") + &scan("s2", second, "10s")));
        // No other flow is in both scans.
        session.flows.retain(|flow| flow.name.as_str() == "ef");
        found(&site, &session).await
    };
    assert_eq!(limited("8M", "+10s").await, [""; 0]);
    assert_eq!(limited("16M", "+9s").await, [""; 0]);
    assert_eq!(
        limited("15M", "+9s").await,
        ["ef ef: max-rate 15M: 7000000 is left"]
    );
    assert_eq!(
        limited("7M", "+10s").await,
        ["ef ef: max-rate 7M: 7000000 is left"]
    );
}

#[tokio::test(start_paused = true)]
async fn tokens_that_may_only_watch_are_found() {
    let found = wrong("jb", |agent| agent.role = Role::Watch).await;
    assert_eq!(
        found,
        ["jb: the token allows only viewing: give the token for the role operate"]
    );
}

/// Names that were used before, e.g. by another run of the same second, are problems.
#[tokio::test(start_paused = true)]
async fn used_names_are_found() {
    let site = Site::new();
    let session = session(&scan("s1", "+0s", "5s"));
    assert_eq!(site.follow(&session).await.failed(), 0);
    let hosts = site.hosts(&session, &[], Some(RUN));
    hosts.wait_for_answers().await;
    let found = check::check(&session, RUN, &hosts).await;
    assert_eq!(found.problems.len(), 6);
    for name in STATIONS {
        let said = format!("{name} {name}: the name {RUN}.{name} was used before");
        assert!(
            found.problems.iter().any(|found| found.to_string() == said),
            "{said}"
        );
    }
}

/// Unknown hosts and runs are refused before any request.
#[tokio::test(start_paused = true)]
async fn unknown_names_are_refused() {
    let site = Site::new();
    let session = site.room.write("three.toml", text(""));
    let controller = ControllerOptions {
        session: session.into(),
        dir: Some(site.room.folder().join("controller")),
        ..ControllerOptions::default()
    };
    let trusting = |name: &str| ControllerOptions {
        trust: vec![name.to_owned()],
        ..controller.clone()
    };
    let run = |controller| RunOptions {
        controller,
        ..RunOptions::default()
    };
    let without = RunOptions {
        without: vec!["ys".to_owned()],
        ..run(controller.clone())
    };
    let resume = RunOptions {
        resume: Some("three-9".parse().unwrap()),
        ..run(controller.clone())
    };
    for (options, says) in [
        (without, "ys: the session has no such host"),
        (run(trusting("ys")), "ys: the session has no such host"),
        (
            run(trusting("ef")),
            "ef: the session gives no `fingerprint` of its agent",
        ),
        (resume, "three-9: no such run in "),
    ] {
        let refused = prepare(&options, &Few, &site.run()).await.err().unwrap();
        let refused = refused.to_string();
        assert!(refused.starts_with(says), "{refused}");
    }
    assert_eq!(clock(), 0.0);
}
