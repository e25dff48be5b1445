//! CSV tables (RFC 4180, but with Unix line ends).

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

/// Reason why a row is not written.
#[derive(Debug, thiserror::Error)]
#[error("{failed}")]
pub struct TableError {
    failed: String,
    source: csv::Error,
}

/// A table being written.
pub struct Table<W: Write> {
    writer: csv::Writer<W>,
    failed: String,
}

impl Table<File> {
    /// Creates a file with this header line: column names separated by commas.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created or written.
    pub fn create(path: &Path, columns: &str) -> Result<Table<File>, TableError> {
        let failed = format!("cannot write {}", path.display());
        match File::create(path) {
            Ok(file) => Table::begin(file, failed, columns),
            Err(source) => Err(TableError {
                failed,
                source: source.into(),
            }),
        }
    }
}

impl<W: Write> Table<W> {
    fn begin(out: W, failed: String, columns: &str) -> Result<Table<W>, TableError> {
        let mut writer = csv::WriterBuilder::new();
        let writer = writer.has_headers(false).flexible(true).from_writer(out);
        let mut table = Table { writer, failed };
        if !columns.is_empty() {
            table.row(columns.split(',').collect::<Vec<&str>>())?;
        }
        Ok(table)
    }

    /// Writes a row, given as a tuple of cells. `None` is an empty cell; a float must be passed as formatted text.
    ///
    /// # Errors
    /// Returns an error if the row cannot be written.
    pub fn row(&mut self, cells: impl Serialize) -> Result<(), TableError> {
        let written = self.writer.serialize(cells);
        self.check(written)
    }

    /// Writes all buffered rows. Dropping the table would hide an error.
    ///
    /// # Errors
    /// Returns an error if they cannot be written.
    pub fn flush(&mut self) -> Result<(), TableError> {
        let written = self.writer.flush().map_err(csv::Error::from);
        self.check(written)
    }

    fn check(&self, written: Result<(), csv::Error>) -> Result<(), TableError> {
        written.map_err(|source| TableError {
            failed: self.failed.clone(),
            source,
        })
    }
}

/// Returns a table as text.
///
/// # Errors
/// Returns an error if a row cannot be represented in CSV.
pub fn table_text(
    columns: &str,
    rows: impl IntoIterator<Item: Serialize>,
) -> Result<String, TableError> {
    let mut text = Vec::new();
    let mut table = Table::begin(&mut text, "cannot write the table".to_owned(), columns)?;
    for row in rows {
        table.row(row)?;
    }
    table.flush()?;
    drop(table);
    Ok(String::from_utf8_lossy(&text).into_owned())
}
