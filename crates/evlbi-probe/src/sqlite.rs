//! SQLite files of the program (campaigns here, histories in `evlbi-control`): their mark, the version of their tables, and how they are
//! written.

use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use rusqlite_migration::{M, Migrations};

/// One kind of file.
pub struct Schema {
    /// Mark of these files (`PRAGMA application_id`).
    pub application: i64,
    /// SQL that migrates the tables from each version to the next; version 0 has none.
    pub versions: &'static [M<'static>],
    /// Durability of a commit (`PRAGMA synchronous`).
    pub synchronous: &'static str,
    /// Timeout for another program's use of the file.
    pub busy: Duration,
}

/// Reason why a file is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// SQLite reads it, but it is of another kind or version.
    #[error("{0}")]
    Unusable(#[from] Unusable),
    /// SQLite cannot read or write it.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// Reason why a file that SQLite can read is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// It lacks the mark of these files.
    #[error("it was not made by evlbi")]
    Foreign,
    /// Its tables are of another version.
    #[error("its tables have version {version}; this program knows version {known}")]
    Version {
        /// Version of the tables in the file.
        version: i64,
        /// Newest version that this program knows.
        known: i64,
    },
}

impl Schema {
    /// Creates the tables of a new file, and migrates those of an older version. Two programs may do so at once.
    ///
    /// # Errors
    /// [`SchemaError`] if the file is of another kind or of a newer version, or cannot be written.
    pub fn make(&self, connection: &mut Connection) -> Result<(), SchemaError> {
        connection.busy_timeout(self.busy)?;
        connection.set_transaction_behavior(TransactionBehavior::Immediate);
        let is_new = "select application_id = 0 and not exists (select 1 from sqlite_schema) from pragma_application_id";
        if connection.query_row(is_new, [], |row| row.get(0))? {
            connection.pragma_update(None, "application_id", self.application)?;
        }
        if let Err(error) = self.check(connection) {
            let is_old = matches!(
                error,
                SchemaError::Unusable(Unusable::Version { version, known }) if version < known
            );
            if !is_old {
                return Err(error);
            }
            let made = Migrations::from_slice(self.versions).to_latest(connection);
            // After an error the tables exist if another program created them first.
            self.check(connection).map_err(|error| match made {
                Err(rusqlite_migration::Error::RusqliteError { err, .. }) => err.into(),
                _ => error,
            })?;
        }
        // Readers see a consistent file while it is written.
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", self.synchronous)?;
        Ok(())
    }

    /// Checks that a file is of this kind and of the newest version.
    ///
    /// # Errors
    /// [`SchemaError`] if it is not, or cannot be read.
    pub fn check(&self, connection: &Connection) -> Result<(), SchemaError> {
        connection.busy_timeout(self.busy)?;
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        if pragma("application_id")? != self.application {
            return Err(Unusable::Foreign.into());
        }
        match (pragma("user_version")?, self.versions.len() as i64) {
            (version, known) if version == known => Ok(()),
            (version, known) => Err(Unusable::Version { version, known }.into()),
        }
    }
}
