//! History of flows in an SQLite file: counters per second for the last hours and per half minute for a month, and events. The web UI
//! shows them as soon as it is opened.
//!
//! This module contains the tables and their queries. The counters are defined in [`evlbi_stream::counters`]. A new version of the tables
//! adds an SQL file.

use std::collections::{BTreeMap, HashMap};
use std::error::Error as _;
use std::iter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_net::file::{TableError, table_text};
use evlbi_net::run::explain;
use evlbi_probe::sqlite::{Schema, SchemaError, Unusable};
use evlbi_stream::control_socket::{Baseline, Status};
use evlbi_stream::counters::{self, Counter, Kind, Unit};
use parking_lot::Mutex;
use rusqlite::ErrorCode::{
    self, CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, NotADatabase, Unknown,
};
use rusqlite::types::{FromSqlError, Value as Sql, ValueRef};
use rusqlite::{Connection, OptionalExtension, Transaction, params, params_from_iter};
use rusqlite_migration::M;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Number;
use thiserror::Error;
use utoipa::ToSchema;

use super::flow::{Flow, FlowId};

/// The application ID is "EVHI". No file of version 1 exists. From version 3, `sample` has a column for each counter ([`add_columns`]); a
/// program ignores columns of counters that it does not know.
const SCHEMA: Schema = Schema {
    application: 0x4556_4849,
    versions: &[M::up(""), M::up(TABLES), M::up("")],
    synchronous: "normal",
    busy: Duration::from_secs(5),
};
/// Seconds for which one-second samples are kept: six hours, plus an allowance for clock differences between hosts.
const KEEP_SECONDS: i64 = 6 * 3600 + 600;
/// Seconds for which half-minute means are kept.
const KEEP_MEANS: i64 = 31 * 86_400;
/// Length of the interval of a mean, in seconds.
const MEAN: i64 = 30;
/// Maximum length of the past that one call removes, in seconds. It is longer than the interval between calls, so the file stays
/// bounded.
const PRUNED: i64 = 2 * MEAN;
/// Maximum number of stored events.
const MAX_EVENTS: i64 = 100_000;
/// Maximum number of events per query.
const EVENTS_AT_ONCE: u32 = 1000;
/// Maximum number of points of a time series.
const MAX_POINTS: i64 = 4000;

/// Tables of version 2. Their primary keys let the statements of each half minute look up the rows of each flow by time, so their cost
/// does not grow with the length of the history.
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

/// Error: a history cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// Another program has locked the file.
    #[error("the history {} is locked by another program: try again", path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
        /// Error of SQLite.
        source: Box<HistoryError>,
    },
    /// SQLite reports an error.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A column has a value of another type.
    #[error("{0}")]
    Value(#[from] FromSqlError),
    /// The file has other tables, or the tables cannot be created.
    #[error("{0}")]
    Tables(#[from] SchemaError),
}

type Result<T> = std::result::Result<T, HistoryError>;

/// Event on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Number of the event; later events have higher numbers.
    pub id: i64,
    /// Time, in seconds since 1970.
    pub time: f64,
    /// Name of the host.
    pub host: String,
    /// Name of the flow, if the event concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Description of the event.
    pub text: String,
}

/// Time series of a flow. The lists of values have the length of `time`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = Course)]
pub(crate) struct TimeSeries {
    /// Seconds per value.
    pub step_s: i64,
    /// Start of each step, in seconds since 1970.
    pub time: Vec<i64>,
    /// Values of the sender and all streams together: the increase of a counter in the step, the mean of a rate, or the maximum or minimum
    /// of a level. `lost` is negative if late datagrams arrived after they were counted as lost. `host_lost` includes datagrams that a sender
    /// could not send.
    #[serde(flatten)]
    #[schema(schema_with = counters::lists_schema)]
    pub counts: Lists,
    /// Fringes of each baseline that the flow correlates.
    pub baselines: BTreeMap<String, Fringes>,
}

/// Time series of a baseline's fringe: means of the integrations that ended in each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Fringes {
    /// Start of each step, in seconds since 1970.
    pub time: Vec<i64>,
    pub amplitude: Vec<f64>,
    pub snr: Vec<f64>,
    pub delay_s: Vec<f64>,
    pub weight: Vec<f64>,
}

/// Interval and step of a time series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Start and end, in seconds since 1970.
    pub from: i64,
    pub to: i64,
    /// Seconds per value.
    pub step: i64,
}

/// Open history file.
pub(crate) struct History {
    path: PathBuf,
    connection: Mutex<Connection>,
    /// Start time and last recorded status of each flow.
    seen: Mutex<HashMap<FlowId, (f64, Status)>>,
    /// Start of the next half minute to average; `None` before the first sample.
    next_mean: Mutex<Option<i64>>,
    /// Time at which the file was opened. Another process recorded what flows did before.
    opened: f64,
}

/// Values of each counter over time, in the order of the columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lists(Vec<(&'static Counter, Vec<Number>)>);

impl History {
    /// Opens or creates a file. Renames a damaged or foreign file, reports that, and creates a new one. If the file cannot be read or
    /// written, or has a newer version, leaves it unchanged and keeps the history in memory.
    ///
    /// # Errors
    /// Returns [`HistoryError::InUse`] if another program has locked the file.
    pub fn open(path: &Path) -> Result<History> {
        let (connection, said) = match connect(path) {
            Ok(connection) => (connection, None),
            Err(error) if matches!(code(&error), Some(DatabaseBusy | DatabaseLocked)) => {
                return Err(HistoryError::InUse {
                    path: path.to_owned(),
                    source: Box::new(error),
                });
            }
            Err(error) => {
                let (connection, said) = renew(path, &error)?;
                (connection, Some(said))
            }
        };
        let history = History {
            path: path.to_owned(),
            connection: Mutex::new(connection),
            seen: Mutex::default(),
            next_mean: Mutex::default(),
            opened: super::time::now(),
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

    /// Calls `work` with the connection. If the file is damaged, replaces it and calls `work` again.
    fn with<T>(&self, work: impl Fn(&mut Connection) -> Result<T>) -> Result<T> {
        let mut connection = self.connection.lock();
        let error = match work(&mut connection) {
            Err(error) if matches!(code(&error), Some(DatabaseCorrupt | NotADatabase)) => error,
            done => return done,
        };
        let (new, said) = renew(&self.path, &error)?;
        *connection = new;
        let again = work(&mut connection);
        drop(connection);
        self.say(&said);
        again
    }

    /// Records the counters of all flows in the second that ends at `now` (seconds since 1970).
    pub fn sample(&self, flows: &[Flow], now: i64) -> Result<()> {
        self.with(|connection| self.record(connection, flows, now))
    }

    fn record(&self, connection: &mut Connection, flows: &[Flow], now: i64) -> Result<()> {
        let transaction = connection.transaction()?;
        let mut next_mean = self.next_mean.lock();
        let current = now / MEAN * MEAN;
        let mut next = match *next_mean {
            Some(next) => next,
            None => first_mean(&transaction)?.unwrap_or(current),
        };
        if next > now {
            // The clock was set back: times from here on occur twice.
            next = current;
            means_to_seconds(&transaction, next)?;
        }
        let columns = columns(&transaction)?;
        let mut seen = self.seen.lock();
        seen.retain(|id, _| flows.iter().any(|flow| flow.id == *id));
        let mut recorded = Vec::new();
        for flow in flows {
            let Some(status) = &flow.status else { continue };
            // Another flow may have had this name.
            let before = seen.get(&flow.id);
            let before = before.filter(|(started, _)| *started == flow.started);
            let before = before.map(|(_, before)| before);
            let is_old = before.is_none() && flow.started < self.opened;
            // A status with another time is new, even if the clock was set back.
            if before.is_none_or(|before| before.time != status.time) {
                if !is_old {
                    write(&transaction, &columns, flow, status, before, now - 1)?;
                }
                recorded.push((flow.id.clone(), (flow.started, status.clone())));
            }
        }
        next = next.max((now - KEEP_SECONDS) / MEAN * MEAN);
        let first = next;
        while next + MEAN <= now {
            average(&transaction, next)?;
            next += MEAN;
        }
        if next > first {
            prune(&transaction, now)?;
        }
        transaction.commit()?;
        // If the transaction failed, the next second contains its counts.
        seen.extend(recorded);
        *next_mean = Some(next);
        Ok(())
    }

    /// Records and logs an event.
    pub fn tell(&self, host: &str, flow: Option<&FlowId>, text: &str) {
        let time = super::time::now();
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
            tracing::warn!("cannot store an event: {error}");
        }
    }

    /// Returns the events with numbers above `after`, oldest first. If there are more than 1000, returns the newest.
    pub fn events(&self, after: i64) -> Result<Vec<Event>> {
        self.with(|connection| events(connection, after))
    }

    /// Returns the time series of a flow, in steps that are long enough for what is kept and for 4000 points.
    pub fn time_series(&self, flow: &FlowId, span: Span, now: i64) -> Result<TimeSeries> {
        self.with(|connection| time_series(connection, flow, span, now))
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

fn time_series(connection: &Connection, flow: &FlowId, span: Span, now: i64) -> Result<TimeSeries> {
    let is_old = span.from < now - KEEP_SECONDS;
    let min = if is_old { MEAN } else { 1 };
    let min = min.max(span.to.saturating_sub(span.from) / MAX_POINTS);
    let step = span.step.max(min);
    let kept = if step >= MEAN { MEAN } else { 1 };
    let step = (step + kept - 1) / kept * kept;
    let mut course = TimeSeries {
        step_s: step,
        ..TimeSeries::default()
    };
    let number = "select id from flow where name = ?";
    let number = connection.query_row(number, [flow.as_str()], |row| row.get::<_, i64>(0));
    let Some(number) = number.optional()? else {
        return Ok(course);
    };
    let bounds = params![step, kept, number, span.from, span.to];
    let columns = columns(connection)?;
    let mut statement = connection.prepare_cached(&format!(
        "select time / ?1 * ?1, {} from sample
         where span = ?2 and flow = ?3 and time >= ?4 and time < ?5 group by 1 order by 1",
        list(&columns, joined)
    ))?;
    course.counts = Lists(columns.into_iter().map(|it| (it, Vec::new())).collect());
    let mut rows = statement.query(bounds)?;
    while let Some(row) = rows.next()? {
        course.time.push(row.get(0)?);
        for (place, (_, values)) in course.counts.0.iter_mut().enumerate() {
            values.push(match row.get_ref(place + 1)? {
                ValueRef::Integer(value) => value.into(),
                value => counters::number(value.as_f64()?),
            });
        }
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

impl TimeSeries {
    /// Formats times and counts as CSV, without baselines.
    pub fn csv(&self) -> std::result::Result<String, TableError> {
        let rows = self.time.iter().enumerate().map(|(place, time)| {
            let cell = |(counter, values): &(&Counter, Vec<Number>)| {
                let value = &values[place];
                match (counter.unit, value.as_i64()) {
                    (Unit::BitsPerSecond, _) => format!("{:.0}", value.as_f64().unwrap_or(0.0)),
                    (_, Some(count)) => count.to_string(),
                    // A loss event rate may be far below 1e-4.
                    (Unit::Ratio, _)
                        if (f64::MIN_POSITIVE..1e-3).contains(&counters::real(value)) =>
                    {
                        format!("{:.3e}", counters::real(value))
                    }
                    _ => format!("{:.4}", value.as_f64().unwrap_or(0.0)),
                }
            };
            let cells: Vec<String> = self.counts.0.iter().map(cell).collect();
            (time, self.step_s, cells)
        });
        let names = self.counts.0.iter().map(|(counter, _)| counter.name);
        let names: Vec<&str> = ["time", "step_s"].into_iter().chain(names).collect();
        table_text(&names.join(","), rows)
    }
}

impl Serialize for Lists {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let lists = self.0.iter();
        serializer.collect_map(lists.map(|(counter, values)| (counter.name, values)))
    }
}

/// Returns the increase of a counter between two statuses, or the value of a rate or level in the second one.
fn value(counter: &Counter, now: &Status, before: Option<&Status>) -> Sql {
    let total = |status: &Status| {
        let own = status.total(counter);
        match (counter.name, &status.sending) {
            ("host_lost", Some(sending)) => {
                let not_sent = sending.counts.count("not_sent");
                Some(own.map_or(not_sent.into(), |own| counter.join(&own, &not_sent.into())))
            }
            _ => own,
        }
    };
    let now = total(now).unwrap_or_else(|| 0.into());
    let before = before.filter(|_| counter.kind == Kind::Counter);
    let before = before.and_then(total).unwrap_or_else(|| 0.into());
    match counter.unit.is_real() {
        true => Sql::Real(counters::real(&now) - counters::real(&before)),
        false => {
            let whole = |value: &Number| value.as_u64().unwrap_or(0) as i64;
            Sql::Integer(whole(&now) - whole(&before))
        }
    }
}

/// Lists the known counters that the file has columns for, in the order of the columns.
fn columns(connection: &Connection) -> Result<Vec<&'static Counter>> {
    let mut statement =
        connection.prepare_cached("select name from pragma_table_info('sample')")?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?;
    let names = names.collect::<rusqlite::Result<Vec<String>>>()?;
    Ok(names.iter().filter_map(|it| counters::named(it)).collect())
}

/// Adds a column for each counter that has none.
fn add_columns(connection: &mut Connection) -> Result<()> {
    let transaction = connection.transaction()?;
    let known = columns(&transaction)?;
    for counter in counters::shown() {
        if known.iter().all(|it| it.name != counter.name) {
            let is_real = counter.unit.is_real();
            let kind = if is_real { "real" } else { "integer" };
            let name = name(counter);
            let add = format!("alter table sample add column {name} {kind} not null default 0");
            transaction.execute(&add, [])?;
        }
    }
    Ok(transaction.commit()?)
}

/// Lists an expression for each column, separated by commas.
fn list(columns: &[&Counter], each: impl Fn(&Counter) -> String) -> String {
    let all: Vec<String> = columns.iter().map(|counter| each(counter)).collect();
    all.join(", ")
}

/// Returns the expression that combines values of several times.
fn joined(counter: &Counter) -> String {
    let join = match counter.kind {
        Kind::Counter => "sum",
        Kind::Rate => "avg",
        Kind::Level => "max",
        Kind::Least => "min",
    };
    format!("{join}({})", name(counter))
}

/// Returns the quoted name of a counter's column; some names are SQL keywords.
fn name(counter: &Counter) -> String {
    format!("\"{}\"", counter.name)
}

/// Returns the assignment that combines a value with an existing one of the same time.
fn added(counter: &Counter) -> String {
    let name = name(counter);
    match counter.kind {
        Kind::Counter => format!("{name} = {name} + excluded.{name}"),
        Kind::Rate => format!("{name} = ({name} + excluded.{name}) / 2"),
        Kind::Level => format!("{name} = max({name}, excluded.{name})"),
        Kind::Least => format!("{name} = min({name}, excluded.{name})"),
    }
}

/// Opens or creates a history file.
fn connect(path: &Path) -> Result<Connection> {
    with_tables(Connection::open(path)?)
}

/// Creates missing tables, and checks that the file is a history.
fn with_tables(mut connection: Connection) -> Result<Connection> {
    SCHEMA.make(&mut connection)?;
    add_columns(&mut connection)?;
    for table in ["flow", "sample", "fringe", "event"] {
        let mut rows = connection.prepare(&format!("select * from {table} limit 1"))?;
        let _ = rows.query([])?.next()?;
    }
    Ok(connection)
}

/// Finds an error of type `E` among the causes of an error.
fn among<E: std::error::Error + 'static>(error: &HistoryError) -> Option<&E> {
    let mut causes = iter::successors(error.source(), |&cause| cause.source());
    causes.find_map(|cause| cause.downcast_ref())
}

fn code(error: &HistoryError) -> Option<ErrorCode> {
    among::<rusqlite::Error>(error)?.sqlite_error_code()
}

/// Returns whether a file that could not be opened is useless, so it may be renamed.
fn is_useless(path: &Path, error: &HistoryError) -> bool {
    match code(error) {
        Some(CannotOpen) => path.is_dir(),
        // SQLite reports `Unknown` for missing tables.
        Some(code) => matches!(code, DatabaseCorrupt | NotADatabase | Unknown),
        None => !is_newer(error),
    }
}

/// Returns whether the file has a newer version.
fn is_newer(error: &HistoryError) -> bool {
    matches!(among(error), Some(Unusable::Version { version, known }) if version > known)
}

/// Replaces a history that cannot be used: renames a useless file and creates a new one, or uses memory. Also returns a message about it.
fn renew(path: &Path, error: &HistoryError) -> Result<(Connection, String)> {
    let remedy = match is_newer(error) {
        true => ": use a newer evlbi",
        false => "",
    };
    let (why, name) = (explain(error) + remedy, path.display());
    if is_useless(path, error)
        && let Ok(aside) = set_aside(path)
        && let Ok(connection) = connect(path)
    {
        let said = format!(
            "the history {name} could not be used ({why}): it was renamed to {}, and a new one was created",
            aside.display()
        );
        return Ok((connection, said));
    }
    let connection = with_tables(Connection::open_in_memory()?)?;
    let said = format!(
        "the history {name} cannot be used ({why}): it is kept in memory until the next start"
    );
    Ok((connection, said))
}

/// Renames a file and the files that SQLite keeps next to it.
fn set_aside(path: &Path) -> std::io::Result<PathBuf> {
    let with = |path: &Path, end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let names = (1..).map(|number| path.with_added_extension(format!("damaged-{number}")));
    let mut names = names.filter(|name| !name.exists());
    let aside = names.next().unwrap_or_else(|| with(path, ".damaged"));
    std::fs::rename(path, &aside)?;
    for end in ["-wal", "-shm"] {
        let _ = std::fs::rename(with(path, end), with(&aside, end));
    }
    Ok(aside)
}

/// Writes one second of a flow, and the integrations that ended in it.
fn write(
    transaction: &Transaction<'_>,
    columns: &[&Counter],
    flow: &Flow,
    status: &Status,
    before: Option<&Status>,
    time: i64,
) -> Result<()> {
    let id = flow.id.as_str();
    let mut insert = transaction.prepare_cached("insert or ignore into flow (name) values (?)")?;
    insert.execute([id])?;
    let mut number = transaction.prepare_cached("select id from flow where name = ?")?;
    let number: i64 = number.query_row([id], |row| row.get(0))?;
    let start = [number, 1, time].map(Sql::Integer).into_iter();
    let values = columns.iter().map(|it| value(it, status, before));
    // If the clock was set back, a second occurs twice and holds the counts of both.
    let insert = format!(
        "insert into sample (flow, span, time, {}) values (?, ?, ?, {}) on conflict do update set {}",
        list(columns, name),
        list(columns, |_| "?".to_owned()),
        list(columns, added)
    );
    let mut insert = transaction.prepare_cached(&insert)?;
    insert.execute(params_from_iter(start.chain(values)))?;
    for baseline in &status.baselines {
        let mut known = before.into_iter().flat_map(|before| &before.baselines);
        let is_known =
            |it: &Baseline| it.stations == baseline.stations && it.start == baseline.start;
        if !known.any(is_known) {
            let mut insert = transaction.prepare_cached(
                "insert into fringe values (?, ?, 1, ?, ?, ?, ?, ?) on conflict do update set
                 amplitude = (amplitude + excluded.amplitude) / 2, snr = (snr + excluded.snr) / 2,
                 delay_s = (delay_s + excluded.delay_s) / 2, weight = (weight + excluded.weight) / 2",
            )?;
            let stations = baseline.stations.join("-");
            let Baseline {
                amplitude,
                snr,
                delay_s,
                weight,
                ..
            } = baseline;
            let values = params![number, stations, time, amplitude, snr, delay_s, weight];
            insert.execute(values)?;
        }
    }
    Ok(())
}

/// Returns the start of the half minute after the last one with means.
fn first_mean(transaction: &Transaction<'_>) -> Result<Option<i64>> {
    let last =
        "select max((select max(time) from sample where span = ? and flow = flow.id)) from flow";
    let last: Option<i64> = transaction.query_row(last, [MEAN], |row| row.get(0))?;
    Ok(last.map(|last| last + MEAN))
}

/// Converts means from `from` on whose seconds were removed back to seconds, so new counts of the same times are added to them.
fn means_to_seconds(transaction: &Transaction<'_>, from: i64) -> Result<()> {
    let counts = list(&columns(transaction)?, name);
    let fringe = "baseline, amplitude, snr, delay_s, weight";
    for (table, values) in [("sample", counts.as_str()), ("fringe", fringe)] {
        let insert = format!(
            "insert or ignore into {table} (flow, span, time, {values}) select flow, 1, time, {values} from {table} as mean
             where span = ?2 and flow in (select id from flow) and time >= ?1 and not exists
             (select 1 from {table} as second where second.span = 1 and second.flow = mean.flow
              and second.time >= mean.time and second.time < mean.time + ?2)"
        );
        transaction.execute(&insert, [from, MEAN])?;
    }
    Ok(())
}

/// Writes the means of the half minute that starts at `from`.
fn average(transaction: &Transaction<'_>, from: i64) -> Result<()> {
    let bounds = params![from, MEAN];
    let columns = columns(transaction)?;
    let means = format!(
        "insert or replace into sample (flow, span, time, {}) select flow, ?2, ?1, {} from sample
         where span = 1 and flow in (select id from flow) and time >= ?1 and time < ?1 + ?2 group by flow",
        list(&columns, name),
        list(&columns, joined)
    );
    transaction.prepare_cached(&means)?.execute(bounds)?;
    transaction.execute(
        "insert or replace into fringe select flow, baseline, ?2, ?1, avg(amplitude), avg(snr), avg(delay_s), avg(weight)
         from fringe where span = 1 and flow in (select id from flow) and time >= ?1 and time < ?1 + ?2
         group by flow, baseline",
        bounds,
    )?;
    Ok(())
}

/// Removes old samples, means and events, at most [`PRUNED`] seconds per half minute: a clock that is temporarily far ahead removes
/// little of the past.
fn prune(transaction: &Transaction<'_>, now: i64) -> Result<()> {
    for table in ["sample", "fringe"] {
        for (span, keep) in [(1, KEEP_SECONDS), (MEAN, KEEP_MEANS)] {
            let oldest = format!(
                "select min((select min(time) from {table} where span = ? and flow = flow.id)) from flow"
            );
            let mut oldest = transaction.prepare_cached(&oldest)?;
            let oldest: Option<i64> = oldest.query_row([span], |row| row.get(0))?;
            let Some(oldest) = oldest else { continue };
            let old = format!(
                "delete from {table} where span = ? and flow in (select id from flow) and time < ?"
            );
            let mut old = transaction.prepare_cached(&old)?;
            old.execute([span, (now - keep).min(oldest + PRUNED)])?;
        }
    }
    transaction.execute(
        "delete from flow where not exists (select 1 from sample where span in (1, ?) and flow = flow.id)",
        [MEAN],
    )?;
    transaction.execute(
        "delete from event where id <= (select max(id) from event) - ?",
        [MAX_EVENTS],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests;
