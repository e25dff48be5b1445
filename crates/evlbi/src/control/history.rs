//! What flows did, second by second for the last hours and in half minutes for a month, and what happened: kept in an
//! SQLite file, so that a page that is opened shows the past at once.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::flow::{Flow, FlowId};
use crate::steer::Status;

/// Version of the tables, and what marks the file as one of ours (`PRAGMA application_id`: "EVHI").
const VERSION: i64 = 2;
const APPLICATION: i64 = 0x4556_4849;
/// Seconds that one-second samples are kept: six hours, and what clocks of hosts may differ; and half minutes.
const KEEP_SECONDS: i64 = 6 * 3600 + 600;
const KEEP_MEANS: i64 = 31 * 86_400;
/// Seconds of a mean.
const MEAN: i64 = 30;
/// Events that are kept.
const MOST_EVENTS: i64 = 100_000;
/// Events that are given at once.
const EVENTS_AT_ONCE: u32 = 1000;
/// Points of a course that are given at once.
const MOST_POINTS: i64 = 4000;
const BUSY: Duration = Duration::from_secs(5);

/// Statements of each half minute look up what they want of each flow of the last month, however long its past is.
const TABLES: &str = "
create table flow (id integer primary key, name text not null unique) strict;
create table sample (
    flow integer not null,     -- of the table flow
    span integer not null,     -- seconds: 1 or 30
    time integer not null,     -- when it begins, seconds since 1970
    rate_bps real not null,    -- mean; counts are those of the span, datagrams
    expected integer not null, lost integer not null,
    host_lost integer not null, network_lost integer not null, unattributed integer not null,
    offered integer not null, shed integer not null,
    ring_fill real not null,   -- highest
    primary key (span, flow, time)
) strict, without rowid;
create table fringe (
    flow integer not null,
    baseline text not null, span integer not null, time integer not null,
    amplitude real not null, snr real not null, delay_s real not null, weight real not null, -- means
    primary key (span, flow, time, baseline)
) strict, without rowid;
create table event (
    id integer primary key autoincrement, time real not null, host text not null, flow text, text text not null
) strict;
";

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Grows from event to event.
    pub id: i64,
    /// Seconds since 1970.
    pub time: f64,
    /// The host that it happened on.
    pub host: String,
    /// The flow that it happened to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// What happened.
    pub text: String,
}

/// The course of a flow. The lists of values are as long as that of times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Course {
    /// Seconds that each value is of.
    pub step_s: i64,
    /// When each begins, in seconds since 1970.
    pub time: Vec<i64>,
    /// Bits of data a second, sent or received, on average.
    pub rate_bps: Vec<f64>,
    /// Datagrams that were expected by a receiver; those of the step, as are the other counts.
    pub expected: Vec<i64>,
    /// Lost; below 0 where late ones came after all.
    pub lost: Vec<i64>,
    /// Of the lost: in this host. Of a sender: what it could not send.
    pub host_lost: Vec<i64>,
    /// Of the lost: before this host.
    pub network_lost: Vec<i64>,
    /// Of the lost: one or the other.
    pub unattributed: Vec<i64>,
    /// Datagrams that were due at a sender.
    pub offered: Vec<i64>,
    /// Of these: left out on purpose.
    pub shed: Vec<i64>,
    /// Highest share of the ring that waited.
    pub ring_fill: Vec<f64>,
    /// Of each baseline that a flow correlates.
    pub baselines: BTreeMap<String, Fringes>,
}

/// The course of a baseline's fringe: means of the integrations that ended in each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Fringes {
    /// Seconds since 1970.
    pub time: Vec<i64>,
    pub amplitude: Vec<f64>,
    pub snr: Vec<f64>,
    pub delay_s: Vec<f64>,
    pub weight: Vec<f64>,
}

/// Which part of a course.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Seconds since 1970.
    pub from: i64,
    pub to: i64,
    /// Seconds of a value.
    pub step: i64,
}

/// The file, open.
pub struct History {
    connection: Mutex<Connection>,
    /// When each flow began, and what it had counted when it was looked at last.
    seen: Mutex<HashMap<FlowId, (f64, Status)>>,
    /// The half minute whose means are made next; none before the first look.
    next_mean: Mutex<Option<i64>>,
    /// When the file was opened: what flows did before, another took down.
    opened: f64,
}

/// Counts of a flow that only grow, but for what comes late.
#[derive(Clone, Copy, Default)]
struct Counts {
    expected: i64,
    lost: i64,
    host_lost: i64,
    network_lost: i64,
    unattributed: i64,
    offered: i64,
    shed: i64,
}

impl History {
    /// Opens a file, or makes it.
    ///
    /// # Errors
    /// When it is not one of ours, or cannot be used.
    pub fn open(path: &Path) -> Result<History> {
        let what = || format!("the history {}", path.display());
        let connection = Connection::open(path).with_context(what)?;
        connection.busy_timeout(BUSY)?;
        connection
            .pragma_update(None, "journal_mode", "wal")
            .with_context(what)?;
        connection.pragma_update(None, "synchronous", "normal")?;
        // Two that open a new file at once: the second finds what the first has made.
        let transaction = Transaction::new_unchecked(&connection, TransactionBehavior::Immediate)
            .with_context(what)?;
        let mark =
            |name| transaction.query_row(&format!("pragma {name}"), [], |row| row.get::<_, i64>(0));
        match (mark("application_id")?, mark("user_version")?) {
            (0, 0) => transaction.execute_batch(&format!(
                "pragma application_id = {APPLICATION}; pragma user_version = {VERSION}; {TABLES}"
            ))?,
            (APPLICATION, VERSION) => {}
            (APPLICATION, version) => bail!(
                "{} is of version {version} of the tables, and this program knows {VERSION}; move it away to begin a new one",
                what()
            ),
            _ => bail!("{} was not made by evlbi; move it away", what()),
        }
        transaction.commit()?;
        Ok(History {
            connection: Mutex::new(connection),
            seen: Mutex::default(),
            next_mean: Mutex::default(),
            opened: crate::units::now(),
        })
    }

    /// Takes down what all flows did in the second that ends at `now` (seconds since 1970).
    pub fn sample(&self, flows: &[Flow], now: i64) -> Result<()> {
        let mut connection = lock(&self.connection);
        let transaction = connection.transaction()?;
        let mut seen = lock(&self.seen);
        seen.retain(|id, _| flows.iter().any(|flow| flow.id == *id));
        let mut looked = Vec::new();
        for flow in flows {
            let Some(status) = &flow.status else { continue };
            // Another may have had its name.
            let before = seen
                .get(&flow.id)
                .filter(|(started, _)| *started == flow.started)
                .map(|(_, before)| before);
            let is_old = before.is_none() && flow.started < self.opened;
            if before.is_none_or(|before| before.time < status.time) {
                if !is_old {
                    write(&transaction, flow, status, before, now - 1)?;
                }
                looked.push((flow.id.clone(), (flow.started, status.clone())));
            }
        }
        let mut next_mean = lock(&self.next_mean);
        let next = match *next_mean {
            // A clock that was set back.
            Some(next) if next > now => now / MEAN * MEAN,
            Some(next) => next,
            None => first_mean(&transaction)?.unwrap_or(now / MEAN * MEAN),
        };
        let next = next.max((now - KEEP_SECONDS) / MEAN * MEAN);
        let mut complete = (next..)
            .step_by(MEAN as usize)
            .take_while(|from| from + MEAN <= now);
        let mut last = None;
        for from in complete.by_ref() {
            average(&transaction, from)?;
            last = Some(from);
        }
        if last.is_some() {
            prune(&transaction, now)?;
        }
        transaction.commit()?;
        // What could not be written is part of the next second.
        seen.extend(looked);
        *next_mean = Some(last.map_or(next, |from| from + MEAN));
        Ok(())
    }

    /// Takes down what happened.
    pub fn tell(&self, host: &str, flow: Option<&FlowId>, text: &str) {
        let time = crate::units::now();
        let done = lock(&self.connection).execute(
            "insert into event (time, host, flow, text) values (?, ?, ?, ?)",
            params![time, host, flow.map(FlowId::as_str), text],
        );
        match flow {
            Some(flow) => tracing::info!("{host}: {flow}: {text}"),
            None => tracing::info!("{host}: {text}"),
        }
        if let Err(error) = done {
            tracing::warn!("an event could not be kept: {error}");
        }
    }

    /// The events after one, the oldest first: of more than a thousand the newest.
    pub fn events(&self, after: i64) -> Result<Vec<Event>> {
        let connection = lock(&self.connection);
        let mut statement = connection.prepare_cached(
            "select id, time, host, flow, text from event where id > ? order by id desc limit ?",
        )?;
        let rows = statement.query_map(params![after, EVENTS_AT_ONCE], |row| {
            Ok(Event {
                id: row.get(0)?,
                time: row.get(1)?,
                host: row.get(2)?,
                flow: row.get(3)?,
                text: row.get(4)?,
            })
        })?;
        let mut events = rows.collect::<rusqlite::Result<Vec<Event>>>()?;
        events.reverse();
        Ok(events)
    }

    /// The course of a flow, in steps that are long enough for what is kept and for 4000 points.
    pub fn course(&self, flow: &FlowId, span: Span, now: i64) -> Result<Course> {
        let is_old = span.from < now - KEEP_SECONDS;
        let least =
            (span.to.saturating_sub(span.from) / MOST_POINTS).max(if is_old { MEAN } else { 1 });
        let mut step = span.step.max(least);
        let kept = if step >= MEAN { MEAN } else { 1 };
        if kept == MEAN {
            step = (step + MEAN - 1) / MEAN * MEAN;
        }
        let mut course = Course {
            step_s: step,
            ..Course::default()
        };
        let connection = lock(&self.connection);
        let number = "select id from flow where name = ?";
        let number: Option<i64> = connection
            .query_row(number, [flow.as_str()], |row| row.get(0))
            .optional()?;
        let Some(number) = number else {
            return Ok(course);
        };
        let bounds = params![step, kept, number, span.from, span.to];
        let mut statement = connection.prepare_cached(
            "select time / ?1 * ?1, avg(rate_bps), sum(expected), sum(lost), sum(host_lost), sum(network_lost),
             sum(unattributed), sum(offered), sum(shed), max(ring_fill) from sample
             where span = ?2 and flow = ?3 and time >= ?4 and time < ?5 group by 1 order by 1",
        )?;
        let mut rows = statement.query(bounds)?;
        while let Some(row) = rows.next()? {
            course.time.push(row.get(0)?);
            course.rate_bps.push(row.get(1)?);
            course.expected.push(row.get(2)?);
            course.lost.push(row.get(3)?);
            course.host_lost.push(row.get(4)?);
            course.network_lost.push(row.get(5)?);
            course.unattributed.push(row.get(6)?);
            course.offered.push(row.get(7)?);
            course.shed.push(row.get(8)?);
            course.ring_fill.push(row.get(9)?);
        }
        let mut statement = connection.prepare_cached(
            "select baseline, time / ?1 * ?1, avg(amplitude), avg(snr), avg(delay_s), avg(weight) from fringe
             where span = ?2 and flow = ?3 and time >= ?4 and time < ?5 group by 1, 2 order by 1, 2",
        )?;
        let mut rows = statement.query(bounds)?;
        while let Some(row) = rows.next()? {
            let fringes = course.baselines.entry(row.get(0)?).or_default();
            fringes.time.push(row.get(1)?);
            fringes.amplitude.push(row.get(2)?);
            fringes.snr.push(row.get(3)?);
            fringes.delay_s.push(row.get(4)?);
            fringes.weight.push(row.get(5)?);
        }
        Ok(course)
    }
}

impl Course {
    /// As a table: times and counts, without baselines.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "time,step_s,rate_bps,expected,lost,host_lost,network_lost,unattributed,offered,shed,ring_fill\n",
        );
        for (place, time) in self.time.iter().enumerate() {
            let row = [
                time.to_string(),
                self.step_s.to_string(),
                format!("{:.0}", self.rate_bps[place]),
                self.expected[place].to_string(),
                self.lost[place].to_string(),
                self.host_lost[place].to_string(),
                self.network_lost[place].to_string(),
                self.unattributed[place].to_string(),
                self.offered[place].to_string(),
                self.shed[place].to_string(),
                format!("{:.4}", self.ring_fill[place]),
            ];
            text += &row.join(",");
            text.push('\n');
        }
        text
    }
}

impl Counts {
    fn of(status: &Status) -> Counts {
        let mut counts = Counts::default();
        for stream in &status.receiving {
            counts.expected += stream.expected as i64;
            counts.lost += stream.lost as i64;
            counts.host_lost += stream.host_lost as i64;
            counts.network_lost += stream.network_lost as i64;
            counts.unattributed += stream.unattributed as i64;
        }
        if let Some(sending) = &status.sending {
            counts.offered += sending.offered as i64;
            counts.shed += sending.shed as i64;
            counts.host_lost += sending.not_sent as i64;
        }
        counts
    }
}

/// A second of a flow, and the integrations that ended in it.
fn write(
    transaction: &Transaction<'_>,
    flow: &Flow,
    status: &Status,
    before: Option<&Status>,
    time: i64,
) -> Result<()> {
    let name = flow.id.as_str();
    transaction
        .prepare_cached("insert or ignore into flow (name) values (?)")?
        .execute([name])?;
    let number: i64 = transaction
        .prepare_cached("select id from flow where name = ?")?
        .query_row([name], |row| row.get(0))?;
    let (now, then) = (
        Counts::of(status),
        before.map(Counts::of).unwrap_or_default(),
    );
    let received: f64 = status.receiving.iter().map(|stream| stream.rate_bps).sum();
    let sent = status
        .sending
        .as_ref()
        .map_or(0.0, |sending| sending.rate_bps);
    let fill = status.receiving.iter().map(|stream| stream.ring_fill);
    transaction
        .prepare_cached(
            "insert or replace into sample values (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            number,
            time,
            received + sent,
            now.expected - then.expected,
            now.lost - then.lost,
            now.host_lost - then.host_lost,
            now.network_lost - then.network_lost,
            now.unattributed - then.unattributed,
            now.offered - then.offered,
            now.shed - then.shed,
            fill.fold(0.0, f64::max),
        ])?;
    for baseline in &status.baselines {
        let known = before.into_iter().flat_map(|before| &before.baselines);
        let is_old = known
            .into_iter()
            .any(|known| known.stations == baseline.stations && known.start == baseline.start);
        if !is_old {
            transaction
                .prepare_cached("insert or replace into fringe values (?, ?, 1, ?, ?, ?, ?, ?)")?
                .execute(params![
                    number,
                    baseline.stations.join("-"),
                    time,
                    baseline.amplitude,
                    baseline.snr,
                    baseline.delay_s,
                    baseline.weight,
                ])?;
        }
    }
    Ok(())
}

/// The half minute behind the last that has means.
fn first_mean(transaction: &Transaction<'_>) -> Result<Option<i64>> {
    let last =
        "select max((select max(time) from sample where span = ? and flow = flow.id)) from flow";
    let last: Option<i64> = transaction.query_row(last, [MEAN], |row| row.get(0))?;
    Ok(last.map(|last| last + MEAN))
}

/// The means of what began in the half minute from `from` on.
fn average(transaction: &Transaction<'_>, from: i64) -> Result<()> {
    let bounds = params![from, MEAN];
    transaction.execute(
        "insert or replace into sample select flow, ?2, ?1, avg(rate_bps), sum(expected), sum(lost), sum(host_lost),
         sum(network_lost), sum(unattributed), sum(offered), sum(shed), max(ring_fill) from sample
         where span = 1 and flow in (select id from flow) and time >= ?1 and time < ?1 + ?2 group by flow",
        bounds,
    )?;
    transaction.execute(
        "insert or replace into fringe select flow, baseline, ?2, ?1, avg(amplitude), avg(snr), avg(delay_s), avg(weight)
         from fringe where span = 1 and flow in (select id from flow) and time >= ?1 and time < ?1 + ?2
         group by flow, baseline",
        bounds,
    )?;
    Ok(())
}

fn prune(transaction: &Transaction<'_>, now: i64) -> Result<()> {
    for table in ["sample", "fringe"] {
        for (span, keep) in [(1, KEEP_SECONDS), (MEAN, KEEP_MEANS)] {
            let old = format!(
                "delete from {table} where span = ? and flow in (select id from flow) and time < ?"
            );
            transaction
                .prepare_cached(&old)?
                .execute([span, now - keep])?;
        }
    }
    transaction.execute(
        "delete from flow where not exists (select 1 from sample where span in (1, ?) and flow = flow.id)",
        [MEAN],
    )?;
    transaction.execute(
        "delete from event where id <= (select max(id) from event) - ?",
        [MOST_EVENTS],
    )?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::control::flow::State;
    use crate::steer::{Baseline, Receiving, Sending};

    /// Than any file is opened.
    const LATER: f64 = 1e10;

    fn flow(name: &str, second: u64) -> Flow {
        Flow {
            id: name.parse().unwrap(),
            host: "here".into(),
            command: "recv".into(),
            options: BTreeMap::new(),
            revision: 1,
            state: State::Running,
            started: LATER,
            end: None,
            status: Some(Status {
                time: second as f64,
                receiving: vec![Receiving {
                    rate_bps: 1e6 * second as f64,
                    expected: 100 * second,
                    lost: 10 * second,
                    network_lost: 8 * second,
                    host_lost: 2 * second,
                    ring_fill: 0.25,
                    ..Receiving::default()
                }],
                sending: Some(Sending {
                    offered: 50 * second,
                    shed: 5 * second,
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
        let seconds = history.course(&id, span(0, 100, 1), 100).unwrap();
        assert_eq!((seconds.step_s, seconds.time.len()), (1, 90));
        assert_eq!(seconds.time[..3], [0, 1, 2]);
        assert_eq!(seconds.rate_bps[1], 2e6);
        assert!(seconds.lost.iter().all(|lost| *lost == 10));
        assert!(seconds.shed.iter().all(|shed| *shed == 5));
        let fringes = &seconds.baselines["Ef-Jb"];
        assert_eq!(fringes.time[..3], [0, 1, 3], "each integration once");
        let halves = history.course(&id, span(0, 100, 30), 100).unwrap();
        assert_eq!((halves.step_s, &halves.time[..]), (30, &[0, 30, 60][..]));
        assert_eq!(halves.expected, [3000, 3000, 3000]);
        assert_eq!(halves.rate_bps[0], 15.5e6);
        assert_eq!(halves.network_lost.iter().sum::<i64>(), 8 * 90);
        assert_eq!(halves.csv().lines().count(), 4);
        // Of long ago only half minutes are left; of a flow that is not known, nothing.
        let later = 100 + KEEP_SECONDS;
        assert_eq!(history.course(&id, span(0, 100, 1), later).unwrap(), halves);
        let other = "jb".parse().unwrap();
        assert!(
            history
                .course(&other, span(0, 100, 1), 100)
                .unwrap()
                .time
                .is_empty()
        );
    }

    /// What flows did before the file was opened is not told as done in a second.
    #[test]
    fn flows_that_were_there_before_begin_where_they_are() {
        let folder = evlbi_testkit::Room::new();
        let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
        let old = |second| Flow {
            started: 0.0,
            ..flow("ef", second)
        };
        history.sample(&[old(1000)], 1000).unwrap();
        history.sample(&[old(1001)], 1001).unwrap();
        let course = history
            .course(&"ef".parse().unwrap(), span(0, 1100, 1), 1100)
            .unwrap();
        assert_eq!(
            (&course.time[..], &course.lost[..]),
            (&[1000][..], &[10][..])
        );
    }

    /// A flow that takes the name of one that was forgotten begins at nothing.
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
            .course(&"ef".parse().unwrap(), span(0, 1100, 1), 1100)
            .unwrap();
        assert_eq!(course.lost, [10_000, 20]);
    }

    /// A half minute whose end nobody saw, for the disk was busy or the agent was away, gets its means all the same.
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
        let halves = history.course(&id, span(0, 100, 30), 100).unwrap();
        assert_eq!(halves.time, [0, 30]);
    }

    #[test]
    fn what_is_old_goes() {
        let folder = evlbi_testkit::Room::new();
        let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
        history.sample(&[flow("ef", 1)], 1).unwrap();
        let rows = || {
            let count = "select count(*) from sample";
            lock(&history.connection)
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
        let flows: i64 = lock(&history.connection)
            .query_row(flows, [], |row| row.get(0))
            .unwrap();
        assert_eq!(flows, 0);
    }

    /// In steps of SQLite's machine; the file is opened anew.
    #[test]
    fn a_long_past_costs_the_present_nothing() {
        let folder = evlbi_testkit::Room::new();
        let now = 40 * 86_400;
        let cost = |seconds: i64, halves: i64| {
            let path = folder.folder().join(halves.to_string());
            let history = History::open(&path).unwrap();
            let connection = lock(&history.connection);
            connection
                .execute("insert into flow (name) values (1), (2), (3), (4), (5)", [])
                .unwrap();
            // Of the last half minute there are no means yet.
            for (span, first, count) in [(1, 1, seconds), (MEAN, 2, halves)] {
                let past = "with recursive past(n) as (select ?3 union all select n + 1 from past where n < ?4)
                    insert into sample select id, ?1, (?2 / ?1 - n) * ?1, 1.0, 1, 0, 0, 0, 0, 0, 0, 0.0 from past, flow";
                connection.execute(past, [span, now, first, count]).unwrap();
            }
            let fringes = "insert into fringe select flow, 'Ef-Jb', span, time, 1.0, 1.0, 1.0, 1.0 from sample";
            connection.execute(fringes, []).unwrap();
            drop(connection);
            let history = History::open(&path).unwrap();
            let steps = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&steps);
            let count = move || {
                counted.fetch_add(1, Ordering::Relaxed);
                false
            };
            lock(&history.connection).progress_handler(1, Some(count));
            history.sample(&[], now).unwrap();
            let rows = |span| {
                let count = "select count(*), max(time), min(time) from sample where span = ?";
                let of = |row: &rusqlite::Row<'_>| -> rusqlite::Result<[i64; 3]> {
                    Ok([row.get(0)?, row.get(1)?, row.get(2)?])
                };
                lock(&history.connection)
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
        // Thirty samples of each flow become a half minute; as many of six hours ago go.
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
    fn files_of_others_are_refused() {
        let folder = evlbi_testkit::Room::new();
        let path = folder.folder().join("other.sqlite");
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "application_id", 7).unwrap();
        let error = History::open(&path).err().unwrap().to_string();
        assert!(error.contains("not made by evlbi"), "{error}");
    }
}
