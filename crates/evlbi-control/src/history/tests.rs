//! The history has the true counts of flows over days, restarts and damaged files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evlbi_stream::control_socket::{Baseline, Receiving, Sending};
use evlbi_stream::counters::Counts;

use super::*;
use crate::flow::State;

/// Start of flows: later than the opening of any file.
const LATER: f64 = 1e10;

fn flow(name: &str, second: u64) -> Flow {
    Flow {
        id: name.parse().unwrap(),
        host: "here".into(),
        command: "recv".into(),
        options: BTreeMap::new(),
        recording: None,
        revision: 1,
        state: State::Running,
        started: LATER,
        end: None,
        status: Some(Status {
            time: second as f64,
            receiving: vec![Receiving {
                counts: Counts::from([
                    ("rate_bps", counters::number(1e6 * second as f64)),
                    ("expected", (100 * second).into()),
                    ("lost", (10 * second).into()),
                    ("network_lost", (8 * second).into()),
                    ("host_lost", (2 * second).into()),
                    ("ring_fill", counters::number(0.25)),
                    ("ring_waits", counters::number(0.5 * second as f64)),
                    ("restarts", (3 * second).into()),
                ]),
                ..Receiving::default()
            }],
            sending: Some(Sending {
                counts: Counts::from([
                    ("offered", (50 * second).into()),
                    ("shed", (5 * second).into()),
                ]),
                ..Sending::default()
            }),
            baselines: vec![Baseline {
                stations: ["Ef".into(), "Jb".into()],
                // An integration of two seconds.
                start: (second / 2).to_string(),
                amplitude: 0.5,
                ..Baseline::default()
            }],
            ..Status::default()
        }),
    }
}

impl TimeSeries {
    /// The values of a counter.
    fn of(&self, name: &str) -> Vec<f64> {
        let mut lists = self.counts.0.iter();
        let (_, values) = lists.find(|(counter, _)| counter.name == name).unwrap();
        values.iter().map(counters::real).collect()
    }
}

fn span(from: i64, to: i64, step: i64) -> Span {
    Span { from, to, step }
}

#[test]
fn seconds_become_half_minutes() {
    let folder = evlbi_testkit::Room::new();
    let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
    let id: FlowId = "ef".parse().unwrap();
    for second in 1..=90 {
        history
            .sample(&[flow("ef", second)], second as i64)
            .unwrap();
    }
    let seconds = history.time_series(&id, span(0, 100, 1), 100).unwrap();
    assert_eq!((seconds.step_s, seconds.time.len()), (1, 90));
    assert_eq!(seconds.time[..3], [0, 1, 2]);
    assert_eq!(seconds.of("rate_bps")[1], 2e6);
    assert!(seconds.of("lost").iter().all(|lost| *lost == 10.0));
    assert!(seconds.of("shed").iter().all(|shed| *shed == 5.0));
    assert!(
        seconds
            .of("restarts")
            .iter()
            .all(|restarts| *restarts == 3.0)
    );
    assert!(seconds.of("ring_waits").iter().all(|waits| *waits == 0.5));
    let fringes = &seconds.baselines["Ef-Jb"];
    assert_eq!(fringes.time[..3], [0, 1, 3], "each integration once");
    let halves = history.time_series(&id, span(0, 100, 30), 100).unwrap();
    assert_eq!((halves.step_s, &halves.time[..]), (30, &[0, 30, 60][..]));
    assert_eq!(halves.of("expected"), [3000.0; 3]);
    assert_eq!(halves.of("rate_bps")[0], 15.5e6);
    assert_eq!(halves.of("network_lost").iter().sum::<f64>(), 8.0 * 90.0);
    let csv = halves.csv().unwrap();
    let old = "time,step_s,rate_bps,expected,lost,host_lost,network_lost,unattributed,offered,shed,ring_fill,";
    assert!(csv.starts_with(old), "{csv}");
    assert!(csv.contains(",restarts,") && csv.contains(",90,"), "{csv}");
    assert_eq!(csv.lines().count(), 4);
    // Only half minutes remain of the distant past, and an unknown flow has no history.
    let later = 100 + KEEP_SECONDS;
    assert_eq!(
        history.time_series(&id, span(0, 100, 1), later).unwrap(),
        halves
    );
    let other = "jb".parse().unwrap();
    assert!(
        history
            .time_series(&other, span(0, 100, 1), 100)
            .unwrap()
            .time
            .is_empty()
    );
}

/// Counts from before the file was opened are not recorded as counts of one second.
#[test]
fn earlier_flows_start_at_their_present_counts() {
    let folder = evlbi_testkit::Room::new();
    let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
    let old = |second| Flow {
        started: 0.0,
        ..flow("ef", second)
    };
    history.sample(&[old(1000)], 1000).unwrap();
    history.sample(&[old(1001)], 1001).unwrap();
    let course = history
        .time_series(&"ef".parse().unwrap(), span(0, 1100, 1), 1100)
        .unwrap();
    assert_eq!(
        (&course.time[..], &course.of("lost")[..]),
        (&[1000][..], &[10.0][..])
    );
}

/// A flow with the name of a forgotten one starts at zero.
#[test]
fn a_name_that_is_taken_again_is_another_flow() {
    let folder = evlbi_testkit::Room::new();
    let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
    history.sample(&[flow("ef", 1000)], 1000).unwrap();
    let again = Flow {
        started: LATER + 1.0,
        status: flow("ef", 2).status.map(|status| Status {
            time: 1001.0,
            ..status
        }),
        ..flow("ef", 2)
    };
    history.sample(&[again], 1001).unwrap();
    let course = history
        .time_series(&"ef".parse().unwrap(), span(0, 1100, 1), 1100)
        .unwrap();
    assert_eq!(course.of("lost"), [10_000.0, 20.0]);
}

/// A half minute gets its means even if nothing was recorded at its end, because the disk was busy or the agent was not running.
#[test]
fn half_minutes_are_not_forgotten() {
    let folder = evlbi_testkit::Room::new();
    let path = folder.folder().join("history.sqlite");
    let id: FlowId = "ef".parse().unwrap();
    {
        let history = History::open(&path).unwrap();
        history.sample(&[flow("ef", 1)], 1).unwrap();
        history.sample(&[flow("ef", 31)], 31).unwrap();
        history.sample(&[flow("ef", 50)], 50).unwrap();
    }
    let history = History::open(&path).unwrap();
    history.sample(&[flow("ef", 95)], 95).unwrap();
    let halves = history.time_series(&id, span(0, 100, 30), 100).unwrap();
    assert_eq!(halves.time, [0, 30]);
}

#[test]
fn old_samples_are_removed() {
    let folder = evlbi_testkit::Room::new();
    let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
    history.sample(&[flow("ef", 1)], 1).unwrap();
    let rows = || {
        let count = "select count(*) from sample";
        history
            .connection
            .lock()
            .query_row(count, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    assert_eq!(rows(), 1);
    history.sample(&[], 30).unwrap();
    assert_eq!(rows(), 2);
    history.sample(&[], 30 * (KEEP_SECONDS / 30 + 2)).unwrap();
    assert_eq!(rows(), 1);
    history.sample(&[], 30 * (KEEP_MEANS / 30 + 2)).unwrap();
    assert_eq!(rows(), 0);
    let flows = "select count(*) from flow";
    let flows: i64 = history
        .connection
        .lock()
        .query_row(flows, [], |row| row.get(0))
        .unwrap();
    assert_eq!(flows, 0);
}

/// Measured in steps of SQLite's virtual machine; the file is reopened.
#[test]
fn a_long_past_costs_the_present_nothing() {
    let folder = evlbi_testkit::Room::new();
    let now = 40 * 86_400;
    let cost = |seconds: i64, halves: i64| {
        let path = folder.folder().join(halves.to_string());
        let history = History::open(&path).unwrap();
        let connection = history.connection.lock();
        connection
            .execute("insert into flow (name) values (1), (2), (3), (4), (5)", [])
            .unwrap();
        // The last half minute has no means yet.
        for (span, first, count) in [(1, 1, seconds), (MEAN, 2, halves)] {
            let past = "with recursive past(n) as (select ?3 union all select n + 1 from past where n < ?4)
                insert into sample (flow, span, time, rate_bps, expected, lost, host_lost, network_lost, unattributed, offered, shed, ring_fill) select id, ?1, (?2 / ?1 - n) * ?1, 1.0, 1, 0, 0, 0, 0, 0, 0, 0.0 from past, flow";
            connection.execute(past, [span, now, first, count]).unwrap();
        }
        let fringes =
            "insert into fringe select flow, 'Ef-Jb', span, time, 1.0, 1.0, 1.0, 1.0 from sample";
        connection.execute(fringes, []).unwrap();
        drop(connection);
        let history = History::open(&path).unwrap();
        let steps = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&steps);
        let count = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            false
        };
        history.connection.lock().progress_handler(1, Some(count));
        history.sample(&[], now).unwrap();
        let rows = |span| {
            let count = "select count(*), max(time), min(time) from sample where span = ?";
            let of = |row: &rusqlite::Row<'_>| -> rusqlite::Result<[i64; 3]> {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?])
            };
            history
                .connection
                .lock()
                .query_row(count, [span], of)
                .unwrap()
        };
        (steps.load(Ordering::Relaxed), rows(1), rows(MEAN))
    };
    let (short, ..) = cost(120, 4);
    let (long, seconds, halves) = cost(KEEP_SECONDS + MEAN, KEEP_MEANS / MEAN + 1);
    assert_eq!(seconds, [5 * KEEP_SECONDS, now - 1, now - KEEP_SECONDS]);
    assert_eq!(
        halves,
        [5 * KEEP_MEANS / MEAN, now - MEAN, now - KEEP_MEANS]
    );
    // Thirty samples of each flow become a half minute, and as many from six hours ago are removed.
    assert!(long < 5 * short, "{short} steps, {long} with a past");
}

#[test]
fn events_are_kept_in_order_and_the_newest_are_given() {
    let folder = evlbi_testkit::Room::new();
    let path = folder.folder().join("history.sqlite");
    let history = History::open(&path).unwrap();
    for number in 0..1500 {
        history.tell("here", None, &number.to_string());
    }
    drop(history);
    let history = History::open(&path).unwrap();
    let events = history.events(0).unwrap();
    assert_eq!((events.len(), events[0].text.as_str()), (1000, "500"));
    let last = events.last().unwrap();
    assert_eq!(last.text, "1499");
    assert_eq!(history.events(last.id).unwrap(), []);
}

#[test]
fn a_history_of_an_earlier_version_continues() {
    let folder = evlbi_testkit::Room::new();
    let path = folder.folder().join("history.sqlite");
    let old = Connection::open(&path).unwrap();
    old.execute_batch(include_str!("history-2.sql")).unwrap();
    drop(old);
    let history = History::open(&path).unwrap();
    history.tell("here", None, "the agent begins again");
    let events = history.events(0).unwrap();
    assert_eq!(
        (events.len(), events[2].text.as_str()),
        (4, "the agent ends")
    );
    let (rec, now) = ("rec".parse().unwrap(), 1_795_627_778);
    let course = history
        .time_series(&rec, span(now - 4, now, 1), now)
        .unwrap();
    assert_eq!(course.time.len(), 4);
}

/// A file that cannot be used does not stop the history: it is renamed unchanged, and an event reports it.
#[test]
fn a_damaged_file_is_moved_aside() {
    let folder = evlbi_testkit::Room::new();
    let path = folder.folder().join("history.sqlite");
    let aside = |number: usize| {
        folder
            .folder()
            .join(format!("history.sqlite.damaged-{number}"))
    };
    let renewed = |number: usize| {
        let history = History::open(&path).unwrap();
        let events = history.events(0).unwrap();
        let said = &events.last().unwrap().text;
        assert!(said.contains(&format!("damaged-{number}")), "{said}");
        assert!(aside(number).exists());
        history.sample(&[flow("ef", 1)], 1).unwrap();
        history
    };
    std::fs::write(&path, "no database at all, but a text of some length").unwrap();
    drop(renewed(1));
    // A file of another program.
    std::fs::remove_file(&path).unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "application_id", 7).unwrap();
    drop(connection);
    drop(renewed(2));
    // A table is missing.
    let connection = Connection::open(&path).unwrap();
    connection.execute("drop table fringe", []).unwrap();
    drop(connection);
    drop(renewed(3));
    // Cut off in the middle.
    let whole = std::fs::metadata(&path).unwrap().len();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(whole / 2).unwrap();
    let history = renewed(4);
    // Damage during use is found when the file is read from the disk again.
    drop(history);
    let mut bytes = std::fs::read(&path).unwrap();
    // The pages behind the schema's.
    bytes[4096..].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
    drop(renewed(5));
    // A directory is in the way.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    renewed(6);
}

/// A file that another program or another user can still use keeps its name: the history is in memory, and an event gives the reason.
#[test]
fn a_file_that_others_can_use_is_left_alone() {
    let folder = evlbi_testkit::Room::new();
    let path = folder.folder().join("history.sqlite");
    drop(History::open(&path).unwrap());
    let connection = Connection::open(&path).unwrap();
    let newer = SCHEMA.versions.len() + 1;
    connection
        .pragma_update(None, "user_version", newer)
        .unwrap();
    drop(connection);
    let unreadable = folder.folder().join("unreadable.sqlite");
    std::os::unix::fs::symlink(folder.folder().join("gone/history.sqlite"), &unreadable).unwrap();
    for (path, why) in [
        (&path, format!("version {newer}")),
        (&unreadable, "unable to open".into()),
    ] {
        let history = History::open(path).unwrap();
        let events = history.events(0).unwrap();
        let said = &events.last().unwrap().text;
        assert!(said.contains(&why) && said.contains("in memory"), "{said}");
        history.sample(&[flow("ef", 1)], 1).unwrap();
    }
    let files = std::fs::read_dir(folder.folder()).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    let is_aside = |name: &std::ffi::OsString| name.to_string_lossy().contains("damaged");
    assert!(!names.iter().any(is_aside), "{names:?}");
}

/// If the clock is set back, times occur twice: the counts of both are kept, in seconds and in means, also where the seconds were removed.
#[test]
fn a_clock_set_back_loses_nothing() {
    let folder = evlbi_testkit::Room::new();
    let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
    let id: FlowId = "ef".parse().unwrap();
    // The flow counts ten lost datagrams per second, independently of the clock.
    let counted = std::cell::Cell::new(0);
    let seconds = |times: std::ops::RangeInclusive<i64>| {
        for time in times {
            counted.set(counted.get() + 1);
            let mut flow = flow("ef", counted.get());
            flow.status.as_mut().unwrap().time = time as f64;
            history.sample(&[flow], time).unwrap();
        }
    };
    let lost = |from, to, step, now| {
        let course = history.time_series(&id, span(from, to, step), now).unwrap();
        (course.step_s, course.of("lost").iter().sum::<f64>() as i64)
    };
    seconds(1..=90);
    seconds(31..=60);
    // Counts are recorded at once, not when the clock has caught up, and nothing is overwritten.
    assert_eq!(lost(30, 60, 1, 60), (1, 600));
    assert_eq!(lost(0, 90, 1, 60), (1, 1200));
    assert_eq!(lost(0, 90, 30, 60), (30, 1200));
    // Far ahead, and back after the seconds were removed.
    let ahead = 2 * KEEP_SECONDS;
    seconds(ahead..=ahead + 5 * MEAN);
    seconds(61..=90);
    assert_eq!(lost(0, 90, 30, ahead), (30, 1500));
}

/// A clock that is temporarily 40 days ahead does not remove the past month.
#[test]
fn a_clock_set_ahead_keeps_the_past() {
    let folder = evlbi_testkit::Room::new();
    let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
    let id: FlowId = "ef".parse().unwrap();
    let past = "with recursive past(n) as (select 0 union all select n + 1 from past where n < 999)
        insert into sample (flow, span, time, rate_bps, expected, lost, host_lost, network_lost, unattributed, offered, shed, ring_fill) select 1, ?1, n * ?1, 1.0, 1, 0, 0, 0, 0, 0, 0, 0.0 from past";
    {
        let connection = history.connection.lock();
        connection
            .execute("insert into flow (name) values ('ef')", [])
            .unwrap();
        connection.execute(past, [MEAN]).unwrap();
    }
    let ahead = 1000 * MEAN + 40 * 86_400;
    for half in 0..10 {
        history.sample(&[], ahead + half * MEAN).unwrap();
    }
    let left = history
        .time_series(&id, span(0, 1000 * MEAN, MEAN), 1000 * MEAN)
        .unwrap();
    assert!(left.time.len() >= 1000 - 20, "{}", left.time.len());
}
