//! What flows did, second by second for the last hours and in half minutes for a month, and what happened: kept in an
//! SQLite file, so that a page that is opened shows the past at once.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params,
};
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
/// Most seconds of the past that are removed at once: faster than it grows, so that it stays bounded.
const PRUNED: i64 = 2 * MEAN;
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
    path: PathBuf,
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
    /// Opens a file, or makes it. One that is damaged, or none of ours, is moved aside and a new one made, which is said. If the
    /// file cannot be read or written, or is of a newer version, it stays as it is and the history is in memory alone.
    ///
    /// # Errors
    /// When other programs keep the file busy.
    pub fn open(path: &Path) -> Result<History> {
        let (connection, said) = match connect(path) {
            Ok(connection) => (connection, None),
            Err(error) if is_busy(&error) => {
                return Err(error).with_context(|| {
                    format!("the history {} is in use: try again", path.display())
                });
            }
            Err(error) => renew(path, &error)?,
        };
        let history = History {
            path: path.to_owned(),
            connection: Mutex::new(connection),
            seen: Mutex::default(),
            next_mean: Mutex::default(),
            opened: crate::units::now(),
        };
        if let Some(said) = said {
            history.say(&said);
        }
        Ok(history)
    }

    fn say(&self, text: &str) {
        tracing::warn!("{text}");
        self.tell("", None, text);
    }

    /// Does something with the file. If it turns out to be damaged, the same is done with a new one.
    fn with<T>(&self, work: impl Fn(&mut Connection) -> Result<T>) -> Result<T> {
        let mut connection = lock(&self.connection);
        let done = work(&mut connection);
        let Err(error) = &done else { return done };
        if !is_damaged(error) {
            return done;
        }
        let (new, said) = renew(&self.path, error)?;
        *connection = new;
        let again = work(&mut connection);
        drop(connection);
        if let Some(said) = said {
            self.say(&said);
        }
        again
    }

    /// Takes down what all flows did in the second that ends at `now` (seconds since 1970).
    pub fn sample(&self, flows: &[Flow], now: i64) -> Result<()> {
        self.with(|connection| self.take_down(connection, flows, now))
    }

    fn take_down(&self, connection: &mut Connection, flows: &[Flow], now: i64) -> Result<()> {
        let transaction = connection.transaction()?;
        let mut next_mean = lock(&self.next_mean);
        let next = match *next_mean {
            Some(next) => next,
            None => first_mean(&transaction)?.unwrap_or(now / MEAN * MEAN),
        };
        let next = if next > now {
            // The clock was set back: the past from here on comes a second time.
            let next = now / MEAN * MEAN;
            means_to_seconds(&transaction, next)?;
            next
        } else {
            next
        };
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
            // Another time is another status, also where the clock was set back.
            if before.is_none_or(|before| before.time != status.time) {
                if !is_old {
                    write(&transaction, flow, status, before, now - 1)?;
                }
                looked.push((flow.id.clone(), (flow.started, status.clone())));
            }
        }
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
        let done = self.with(|connection| {
            let insert = "insert into event (time, host, flow, text) values (?, ?, ?, ?)";
            let values = params![time, host, flow.map(FlowId::as_str), text];
            Ok(connection.execute(insert, values)?)
        });
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
        self.with(|connection| events(connection, after))
    }

    /// The course of a flow, in steps that are long enough for what is kept and for 4000 points.
    pub fn course(&self, flow: &FlowId, span: Span, now: i64) -> Result<Course> {
        self.with(|connection| course(connection, flow, span, now))
    }
}

fn events(connection: &Connection, after: i64) -> Result<Vec<Event>> {
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

fn course(connection: &Connection, flow: &FlowId, span: Span, now: i64) -> Result<Course> {
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

/// Opens a file of ours, or makes it.
fn connect(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    make_tables(&connection)?;
    Ok(connection)
}

/// Makes the tables if there are none, and makes sure that they are ours.
fn make_tables(connection: &Connection) -> Result<()> {
    // Two that open a new file at once: the second finds what the first has made.
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let mark =
        |name| transaction.query_row(&format!("pragma {name}"), [], |row| row.get::<_, i64>(0));
    match (mark("application_id")?, mark("user_version")?) {
        (0, 0) => transaction.execute_batch(&format!(
            "pragma application_id = {APPLICATION}; pragma user_version = {VERSION}; {TABLES}"
        ))?,
        (APPLICATION, VERSION) => {}
        (APPLICATION, version) if version > VERSION => bail!(Newer(version)),
        (APPLICATION, version) => {
            bail!("it is of version {version} of the tables, and this program knows {VERSION}")
        }
        _ => bail!("it was not made by evlbi"),
    }
    for table in ["flow", "sample", "fringe", "event"] {
        let rows = format!("select * from {table} limit 1");
        let mut rows = transaction.prepare(&rows)?;
        let _ = rows.query([])?.next()?;
    }
    transaction.commit()?;
    Ok(())
}

/// Version of the tables of a file that a newer program made.
#[derive(Debug)]
struct Newer(i64);

impl std::fmt::Display for Newer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Newer(version) = self;
        write!(
            f,
            "it is of version {version} of the tables, and this program knows {VERSION}: use a newer evlbi"
        )
    }
}

impl std::error::Error for Newer {}

fn code(error: &anyhow::Error) -> Option<ErrorCode> {
    error.downcast_ref::<rusqlite::Error>()?.sqlite_error_code()
}

fn is_busy(error: &anyhow::Error) -> bool {
    matches!(
        code(error),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// Whether the file holds something else than it should.
fn is_damaged(error: &anyhow::Error) -> bool {
    matches!(
        code(error),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Whether a file that could not be opened is of no use to anybody, and so need not stay where it is.
fn is_useless(path: &Path, error: &anyhow::Error) -> bool {
    match code(error) {
        Some(ErrorCode::CannotOpen) => path.is_dir(),
        // The last is what SQLite says of tables that are not there.
        Some(code) => matches!(
            code,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown
        ),
        None => !error.is::<Newer>(),
    }
}

/// A new history in the place of one that cannot be used, which is moved aside if it is damaged; and what is to be said of it.
fn renew(path: &Path, error: &anyhow::Error) -> Result<(Connection, Option<String>)> {
    let why = crate::output::explain(error);
    if is_useless(path, error)
        && let Ok(aside) = set_aside(path)
        && let Ok(connection) = connect(path)
    {
        let said = format!(
            "the history {} could not be used ({why}): it is now {}, and a new one begins",
            path.display(),
            aside.display()
        );
        return Ok((connection, Some(said)));
    }
    let connection = Connection::open_in_memory()?;
    make_tables(&connection)?;
    let said = format!(
        "the history {} cannot be used ({why}): until the next start it is kept in memory",
        path.display()
    );
    Ok((connection, Some(said)))
}

/// Gives a file another name, with what SQLite keeps beside it.
fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    let with = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let names = (1..).map(|number| with(&format!(".damaged-{number}")));
    let mut names = names.filter(|name| !name.exists());
    let aside = names.next().unwrap_or_else(|| with(".damaged"));
    std::fs::rename(path, &aside)?;
    for end in ["-wal", "-shm"] {
        let mut name = aside.as_os_str().to_owned();
        name.push(end);
        let _ = std::fs::rename(with(end), name);
    }
    Ok(aside)
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
            // A clock that was set back passes a second again: the second holds what was counted both times.
            "insert into sample values (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do update set
             rate_bps = (rate_bps + excluded.rate_bps) / 2, expected = expected + excluded.expected,
             lost = lost + excluded.lost, host_lost = host_lost + excluded.host_lost,
             network_lost = network_lost + excluded.network_lost, unattributed = unattributed + excluded.unattributed,
             offered = offered + excluded.offered, shed = shed + excluded.shed, ring_fill = max(ring_fill, excluded.ring_fill)",
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
                .prepare_cached(
                    "insert into fringe values (?, ?, 1, ?, ?, ?, ?, ?) on conflict do update set
                     amplitude = (amplitude + excluded.amplitude) / 2, snr = (snr + excluded.snr) / 2,
                     delay_s = (delay_s + excluded.delay_s) / 2, weight = (weight + excluded.weight) / 2",
                )?
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

/// Means from `from` on whose seconds are gone become seconds again, so that what comes at the same times is added to them.
fn means_to_seconds(transaction: &Transaction<'_>, from: i64) -> Result<()> {
    for (table, values) in [
        (
            "sample",
            "flow, 1, time, rate_bps, expected, lost, host_lost, network_lost, unattributed, offered, shed, ring_fill",
        ),
        (
            "fringe",
            "flow, baseline, 1, time, amplitude, snr, delay_s, weight",
        ),
    ] {
        let insert = format!(
            "insert or ignore into {table} select {values} from {table} as mean
             where span = ?2 and flow in (select id from flow) and time >= ?1 and not exists
             (select 1 from {table} as second where second.span = 1 and second.flow = mean.flow
              and second.time >= mean.time and second.time < mean.time + ?2)"
        );
        transaction.execute(&insert, [from, MEAN])?;
    }
    Ok(())
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

/// Removes what is too old, at most [`PRUNED`] seconds of it each half minute: a clock that is set far ahead for a while costs little
/// of the past.
fn prune(transaction: &Transaction<'_>, now: i64) -> Result<()> {
    for table in ["sample", "fringe"] {
        for (span, keep) in [(1, KEEP_SECONDS), (MEAN, KEEP_MEANS)] {
            let oldest = format!(
                "select min((select min(time) from {table} where span = ? and flow = flow.id)) from flow"
            );
            let oldest: Option<i64> = transaction
                .prepare_cached(&oldest)?
                .query_row([span], |row| row.get(0))?;
            let Some(oldest) = oldest else { continue };
            let old = format!(
                "delete from {table} where span = ? and flow in (select id from flow) and time < ?"
            );
            transaction
                .prepare_cached(&old)?
                .execute([span, (now - keep).min(oldest + PRUNED)])?;
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

    /// A file that cannot be used keeps nobody from going on: it is moved aside, whole, and that is an event.
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
        // Of another program.
        std::fs::remove_file(&path).unwrap();
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "application_id", 7).unwrap();
        drop(connection);
        drop(renewed(2));
        // A table is gone.
        let connection = Connection::open(&path).unwrap();
        connection.execute("drop table fringe", []).unwrap();
        drop(connection);
        drop(renewed(3));
        // Cut off in the middle.
        let whole = std::fs::metadata(&path).unwrap().len();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(whole / 2).unwrap();
        let history = renewed(4);
        // Damaged while it is in use: found when it is read from the disk again.
        drop(history);
        let mut bytes = std::fs::read(&path).unwrap();
        // The pages behind the schema's.
        bytes[4096..].fill(0x5a);
        std::fs::write(&path, bytes).unwrap();
        drop(renewed(5));
        // What is in the way is no file at all.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        renewed(6);
    }

    /// A file that another program or another user can still use stays where it is: the history is in memory, and says why.
    #[test]
    fn a_file_that_others_can_use_is_left_alone() {
        let folder = evlbi_testkit::Room::new();
        let path = folder.folder().join("history.sqlite");
        drop(History::open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        let newer = VERSION + 1;
        connection
            .pragma_update(None, "user_version", newer)
            .unwrap();
        drop(connection);
        let unreadable = folder.folder().join("unreadable.sqlite");
        std::os::unix::fs::symlink(folder.folder().join("gone/history.sqlite"), &unreadable)
            .unwrap();
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

    /// A clock that is set back passes times again: both are kept, in seconds and in means, also where the seconds are gone.
    #[test]
    fn a_clock_set_back_loses_nothing() {
        let folder = evlbi_testkit::Room::new();
        let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
        let id: FlowId = "ef".parse().unwrap();
        // What the flow counts goes on, whatever the clock says: ten lost a second.
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
            let course = history.course(&id, span(from, to, step), now).unwrap();
            (course.step_s, course.lost.iter().sum::<i64>())
        };
        seconds(1..=90);
        seconds(31..=60);
        // At once, not when the clock has caught up; nothing is overwritten.
        assert_eq!(lost(30, 60, 1, 60), (1, 600));
        assert_eq!(lost(0, 90, 1, 60), (1, 1200));
        assert_eq!(lost(0, 90, 30, 60), (30, 1200));
        // Far ahead, and back when the seconds are gone.
        let ahead = 2 * KEEP_SECONDS;
        seconds(ahead..=ahead + 5 * MEAN);
        seconds(61..=90);
        assert_eq!(lost(0, 90, 30, ahead), (30, 1500));
    }

    /// A clock that is 40 days ahead for a while does not cost the month before.
    #[test]
    fn a_clock_set_ahead_keeps_the_past() {
        let folder = evlbi_testkit::Room::new();
        let history = History::open(&folder.folder().join("history.sqlite")).unwrap();
        let id: FlowId = "ef".parse().unwrap();
        let past =
            "with recursive past(n) as (select 0 union all select n + 1 from past where n < 999)
            insert into sample select 1, ?1, n * ?1, 1.0, 1, 0, 0, 0, 0, 0, 0, 0.0 from past";
        {
            let connection = lock(&history.connection);
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
            .course(&id, span(0, 1000 * MEAN, MEAN), 1000 * MEAN)
            .unwrap();
        assert!(left.time.len() >= 1000 - 20, "{}", left.time.len());
    }
}
