//! The file of a campaign: SQLite, with a transaction for each window, so that settled windows survive any end of the program.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::Value as Cell;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params, params_from_iter};
use rusqlite_migration::M;
use serde::{Deserialize, Serialize};

use crate::direction::Direction;
use crate::measure::Stream;
use crate::sqlite::{Schema, SchemaError, Unusable};

/// The mark is "EVWA". A commit is durable; another program may read at the same time.
const SCHEMA: Schema = Schema {
    application: 0x4556_5741,
    versions: &[M::up(TABLES)],
    synchronous: "full",
    busy: Duration::from_secs(30),
};

/// Compared with the tables of existing files, letter by letter: do not change even a comment in it.
const TABLES: &str = "
create table campaign (plan text not null) strict;
create table run (
    id integer primary key,
    begun real not null,       -- seconds since 1970, UTC
    ended real,                -- null of one that was killed
    reason text                -- why, where it was not to end then
) strict;
create table result (
    id integer primary key,
    run integer not null references run(id),
    direction text not null,   -- there or back
    begin real not null, end real not null,
    sent integer not null, received integer not null, uniq integer not null,
    lost integer not null,     -- network_lost + host_lost + unattributed
    network_lost integer not null, host_lost integer not null, unattributed integer not null,
    duplicates integer not null, reordered integer not null, late integer not null,
    runs integer not null,     -- runs of consecutive losses
    rate_sent real not null, rate_received real not null, -- bits of UDP payload per second
    wire_factor real not null, -- bytes on an Ethernet for each of payload
    jitter_ns real not null, pdv_p999_ns real,
    detail text not null       -- JSON
) strict;
create index result_by_time on result(begin);
";

/// Reason why the file of a campaign cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It does not exist.
    #[error("there is no file {}", .0.display())]
    Missing(PathBuf),
    /// SQLite cannot open it.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
    /// It is of another version.
    #[error("{} has version {version}; this program reads version {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Version of its tables.
        version: i64,
        /// Newest version that this program knows.
        known: i64,
    },
    /// It is another kind of file.
    #[error("{} is not a campaign file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The mismatch.
        source: TablesError,
    },
    /// It holds a campaign of another plan.
    #[error(
        "{} holds a campaign with another plan ({plan}): give the same options to continue it, or another file",
        path.display()
    )]
    OtherPlan {
        /// The file.
        path: PathBuf,
        /// The plan in it, as JSON.
        plan: String,
    },
    /// The plan in it cannot be read.
    #[error("invalid plan in the file")]
    Plan(#[source] serde_json::Error),
    /// A result in it cannot be read.
    #[error("invalid result in the file")]
    Result(#[source] rusqlite::Error),
    /// A result in it has impossible times or counts.
    #[error("impossible result in the file, from {begin} to {end}")]
    Impossible {
        /// Start, in seconds since 1970.
        begin: f64,
        /// End, in seconds since 1970.
        end: f64,
    },
    /// A run in it cannot be read.
    #[error("invalid run in the file")]
    Run(#[source] rusqlite::Error),
    /// A result cannot be written.
    #[error("cannot store a result")]
    Keep(#[source] rusqlite::Error),
    /// A value cannot be converted to JSON.
    #[error("{0}")]
    Encode(#[from] serde_json::Error),
    /// Another error of SQLite.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// Mismatch in the tables of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TablesError {
    /// They are of another kind, or cannot be read.
    #[error("{0}")]
    Schema(#[from] SchemaError),
    /// They differ from the tables that this program creates.
    #[error("its tables are not those of a campaign")]
    Changed,
}

impl From<rusqlite::Error> for TablesError {
    fn from(error: rusqlite::Error) -> TablesError {
        TablesError::Schema(error.into())
    }
}

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Plan of a campaign; a file holds one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Plan {
    /// Address of the responder, as given by the user.
    pub target: String,
    /// The stream in each direction.
    pub stream: Stream,
    /// Whether to test the outbound direction.
    pub there: bool,
    /// Whether to test the return direction.
    pub back: bool,
    /// Length of a window in seconds.
    pub window: f64,
    /// Seconds from the start of a test to that of the next; `None` for one continuous flow.
    pub every: Option<f64>,
}

/// Columns of a result, as they are read.
const COLUMNS: &str = "direction, begin, end, sent, received, uniq, lost, network_lost, host_lost, unattributed, duplicates, \
                       reordered, late, runs, rate_sent, rate_received, wire_factor, jitter_ns, pdv_p999_ns";

/// A window of a flow, or a test.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    /// Direction of its stream.
    pub direction: Direction,
    /// Start, in seconds since 1970, UTC.
    pub begin: f64,
    /// End, in seconds since 1970, UTC.
    pub end: f64,
    /// Sent datagrams.
    pub sent: u64,
    /// Arrivals: unique and duplicates.
    pub received: u64,
    /// Received datagrams, each counted once.
    pub unique: u64,
    /// Datagrams that never arrived, or too late: the sum of the next three.
    pub lost: u64,
    /// Of the lost, those lost in the network.
    pub network_lost: u64,
    /// Of the lost, those dropped by the hosts or their NICs.
    pub host_lost: u64,
    /// Of the lost, those at an unknown place.
    pub unattributed: u64,
    /// Arrivals beyond the first of a datagram.
    pub duplicates: u64,
    /// Datagrams that arrived after later ones (RFC 4737).
    pub reordered: u64,
    /// Datagrams that arrived after the loss timeout.
    pub late: u64,
    /// Runs of consecutive losses.
    pub runs: u64,
    /// Sent bits of UDP payload per second.
    pub rate_sent: f64,
    /// Received bits of UDP payload per second.
    pub rate_received: f64,
    /// Bytes on Ethernet per byte of payload.
    pub wire_factor: f64,
    /// Jitter (RFC 3550), in nanoseconds.
    pub jitter: f64,
    /// Packet delay variation (RFC 5481), 99.9 % quantile, in nanoseconds.
    pub pdv_p999: Option<f64>,
}

impl Row {
    /// Returns the counts, in the order of their columns.
    fn counts(&mut self) -> [&mut u64; 11] {
        [
            &mut self.sent,
            &mut self.received,
            &mut self.unique,
            &mut self.lost,
            &mut self.network_lost,
            &mut self.host_lost,
            &mut self.unattributed,
            &mut self.duplicates,
            &mut self.reordered,
            &mut self.late,
            &mut self.runs,
        ]
    }

    /// Returns itself if its times and counts are possible: sums of all results must not overflow.
    fn checked(mut self) -> Result<Row> {
        const MAX: u64 = 1 << 48;
        // From 1970 to about 2100.
        let is_time = |time: f64| (0.0..4.2e9).contains(&time);
        let are_numbers = [
            self.rate_sent,
            self.rate_received,
            self.wire_factor,
            self.jitter,
        ];
        if !is_time(self.begin)
            || !is_time(self.end)
            || self.counts().iter().any(|count| **count > MAX)
            || !are_numbers.iter().all(|number| number.is_finite())
        {
            return Err(StoreError::Impossible {
                begin: self.begin,
                end: self.end,
            });
        }
        Ok(self)
    }
}

/// A period in which the campaign was running.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stretch {
    /// Start, in seconds since 1970, UTC.
    pub begun: f64,
    /// End, in seconds since 1970, UTC; `None` if it is running or was killed.
    pub ended: Option<f64>,
    /// Reason for an early end.
    pub reason: Option<String>,
}

/// An open file of a campaign.
pub struct Store {
    connection: Connection,
    run: i64,
}

impl Store {
    /// Creates the file, or continues it if it holds the same plan.
    pub fn open(path: &Path, plan: &Plan) -> Result<Store> {
        let mut connection = Connection::open(path).map_err(|error| cannot_open(path, error))?;
        SCHEMA
            .make(&mut connection)
            .map_err(|error| refuse(path, error.into()))?;
        let store = Store { connection, run: 0 };
        match store.plan()? {
            Some(before) if before != *plan => {
                return Err(StoreError::OtherPlan {
                    path: path.to_owned(),
                    plan: serde_json::to_string(&before)?,
                });
            }
            Some(_) => {}
            None => {
                let plan = serde_json::to_string(plan)?;
                let insert = "insert into campaign (plan) values (?1)";
                store.connection.execute(insert, [plan])?;
            }
        }
        Ok(store)
    }

    /// Opens an existing file for reading.
    pub fn read(path: &Path) -> Result<Store> {
        if !path.is_file() {
            return Err(StoreError::Missing(path.to_owned()));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .or_else(|_| Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY))
            .map_err(|error| cannot_open(path, error))?;
        let length = std::fs::metadata(path).map_or(0, |file| file.len());
        limit_work(&connection, length)?;
        let is_ours = SCHEMA
            .check(&connection)
            .map_err(TablesError::from)
            .and_then(|()| check_tables(&connection));
        is_ours.map_err(|error| refuse(path, error))?;
        Ok(Store { connection, run: 0 })
    }

    /// Returns the plan of the campaign.
    pub fn plan(&self) -> Result<Option<Plan>> {
        let select = "select plan from campaign";
        let plan = self.connection.query_row(select, [], |row| row.get(0));
        let plan: Option<String> = plan.optional()?;
        let plan = plan.map(|plan| serde_json::from_str(&plan));
        plan.transpose().map_err(StoreError::Plan)
    }

    /// Records the start or continuation of a run, in seconds since 1970.
    pub fn begin(&mut self, now: f64) -> Result<i64> {
        let insert = "insert into run (begun) values (?1)";
        self.connection.execute(insert, [now])?;
        self.run = self.connection.last_insert_rowid();
        Ok(self.run)
    }

    /// Records the end of a run, in seconds since 1970.
    pub fn end(&self, run: i64, now: f64, reason: Option<&str>) -> Result<()> {
        let update = "update run set ended = ?2, reason = ?3 where id = ?1";
        self.connection.execute(update, params![run, now, reason])?;
        Ok(())
    }

    /// Adds a window, with its distributions. When this returns, the window is on disk.
    pub fn add(&self, row: &Row, detail: &impl Serialize) -> Result<()> {
        let insert = format!(
            "insert into result (run, {COLUMNS}, detail) values ({})",
            ["?"; 21].join(",")
        );
        let count = |count: &mut u64| i64::try_from(*count).unwrap_or(i64::MAX).into();
        let mut values: Vec<Cell> = vec![
            self.run.into(),
            row.direction.name().to_owned().into(),
            row.begin.into(),
            row.end.into(),
        ];
        values.extend(row.clone().counts().map(count));
        values.extend([
            row.rate_sent.into(),
            row.rate_received.into(),
            row.wire_factor.into(),
            row.jitter.into(),
            row.pdv_p999.into(),
            serde_json::to_string(detail)?.into(),
        ]);
        self.connection
            .prepare_cached(&insert)?
            .execute(params_from_iter(values))
            .map_err(StoreError::Keep)?;
        Ok(())
    }

    /// Returns all windows in order of time, without their distributions.
    pub fn rows(&self) -> Result<Vec<Row>> {
        let select = format!("select {COLUMNS} from result order by begin, id");
        let mut statement = self.connection.prepare(&select)?;
        let rows = statement.query_map([], |read| {
            let mut row = Row {
                direction: match read.get::<_, String>(0)?.as_str() {
                    "back" => Direction::Back,
                    _ => Direction::There,
                },
                begin: read.get(1)?,
                end: read.get(2)?,
                rate_sent: read.get(14)?,
                rate_received: read.get(15)?,
                wire_factor: read.get(16)?,
                jitter: read.get(17)?,
                pdv_p999: read.get(18)?,
                ..Row::default()
            };
            for (column, count) in (3..).zip(row.counts()) {
                *count = read.get::<_, i64>(column)?.max(0) as u64;
            }
            Ok(row)
        })?;
        rows.map(|row| row.map_err(StoreError::Result).and_then(Row::checked))
            .collect()
    }

    /// Returns the periods in which it was running.
    pub fn runs(&self) -> Result<Vec<Stretch>> {
        let mut statement = self
            .connection
            .prepare("select begun, ended, reason from run order by id")?;
        let runs = statement.query_map([], |row| {
            Ok(Stretch {
                begun: row.get(0)?,
                ended: row.get(1)?,
                reason: row.get(2)?,
            })
        })?;
        runs.map(|run| run.map_err(StoreError::Run)).collect()
    }
}

/// Limits the work of SQLite: a crafted file can make a query endless. A result takes some hundred steps of SQLite's virtual machine and
/// more than twenty bytes, so a query with far more steps than the file has bytes is stopped.
fn limit_work(connection: &Connection, length: u64) -> rusqlite::Result<()> {
    const AT_ONCE: i32 = 10_000;
    let most = (10_000_000 + 100 * length) / AT_ONCE as u64;
    let mut done = 0;
    connection.progress_handler(
        AT_ONCE,
        Some(move || {
            done += 1;
            done > most
        }),
    );
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(())
}

/// Checks that the tables are those of this program: no views or other columns, which could compute anything.
fn check_tables(connection: &Connection) -> Result<(), TablesError> {
    let made = Connection::open_in_memory()?;
    made.execute_batch(TABLES)?;
    let tables = |connection: &Connection| -> rusqlite::Result<Vec<[String; 3]>> {
        let select = "select type, name, sql from sqlite_schema where name not like 'sqlite_%' order by name";
        let mut statement = connection.prepare(select)?;
        let rows = statement.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?;
        rows.collect()
    };
    if tables(connection)? != tables(&made)? {
        return Err(TablesError::Changed);
    }
    Ok(())
}

/// Returns the error for a refused file, with its name.
fn refuse(path: &Path, error: TablesError) -> StoreError {
    let path = path.to_owned();
    match error {
        TablesError::Schema(SchemaError::Unusable(Unusable::Version { version, known })) => {
            StoreError::Version {
                path,
                version,
                known,
            }
        }
        source => StoreError::Foreign { path, source },
    }
}

fn cannot_open(path: &Path, source: rusqlite::Error) -> StoreError {
    let path = path.to_owned();
    StoreError::Open { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_campaign_of_an_earlier_version_continues() {
        let room = evlbi_testkit::Room::new();
        let path = room.folder().join("old.sqlite");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(include_str!("campaign-1.sql")).unwrap();
        drop(old);
        let read = Store::read(&path).unwrap();
        let (plan, rows) = (read.plan().unwrap().unwrap(), read.rows().unwrap());
        assert_eq!((rows.len(), rows[1].unique), (2, 85));
        let mut store = Store::open(&path, &plan).unwrap();
        store.begin(1.8e9).unwrap();
        store.add(&rows[0], &()).unwrap();
        assert_eq!(store.rows().unwrap().len(), 3);
        assert_eq!(Store::read(&path).unwrap().runs().unwrap().len(), 2);
    }

    /// A crafted file is read as a campaign or refused; in either case reading ends.
    #[test]
    fn crafted_files_are_refused() {
        let room = evlbi_testkit::Room::new();
        let mark = format!(
            "pragma application_id = {}; pragma user_version = 1;",
            SCHEMA.application
        );
        let file = |name: &str, tables: &str| {
            let path = room.folder().join(name);
            let connection = Connection::open(&path).unwrap();
            connection
                .execute_batch(&format!("{mark} {tables}"))
                .unwrap();
            path
        };
        // A view without an end in place of a table.
        let columns = "run, direction, begin, end, sent, received, uniq, lost, network_lost, host_lost, unattributed, duplicates,
            reordered, late, runs, rate_sent, rate_received, wire_factor, jitter_ns, pdv_p999_ns, detail";
        let ones = vec!["1"; 21].join(", ");
        let endless = format!(
            "create table campaign (plan text); create table run (id, begun, ended, reason);
             create view result as with recursive n(id) as (select 1 union all select id + 1 from n)
             select id, {} from n where id < 0;",
            columns
                .split(',')
                .map(|column| format!("1 as {}", column.trim()))
                .collect::<Vec<String>>()
                .join(", ")
        );
        let path = file("view.sqlite", &endless);
        let error = Store::read(&path).err().unwrap().to_string();
        assert!(error.contains("not a campaign file"), "{error}");
        // Without this check, the limit of work would stop it.
        let connection = Connection::open(&path).unwrap();
        limit_work(&connection, 0).unwrap();
        let count = "select count(*) from result";
        let error = connection
            .query_row(count, [], |row| row.get::<_, i64>(0))
            .unwrap_err();
        let code = error.sqlite_error_code();
        assert_eq!(
            code,
            Some(rusqlite::ErrorCode::OperationInterrupted),
            "{error}"
        );
        // Values that sums and plots cannot represent.
        for (values, is_well) in [
            (ones.replacen("1, 1, 1", "1, 'there', 1", 1), true),
            (
                ones.replacen("1, 1, 1, 1", "1, 'there', 1e300, 1e301", 1),
                false,
            ),
            (
                ones.replacen("1, 1, 1, 1, 1", "1, 'there', 1, 2, 9223372036854775807", 1),
                false,
            ),
            (ones.replacen("1, 1, 1", "1, 'there', -9e999", 1), false),
        ] {
            let name = format!("{}.sqlite", values.len());
            let insert = format!(
                "{TABLES} insert into run values (1, 1.0, null, null);
                insert into result ({columns}) values ({values});"
            );
            let store = Store::read(&file(&name, &insert)).unwrap();
            assert_eq!(store.rows().is_ok(), is_well, "{values}");
        }
    }
}
