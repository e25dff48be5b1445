//! Tables as CSV (RFC 4180, with lines that end as Unix has it).

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// A table being written.
pub struct Table<W: Write> {
    writer: csv::Writer<W>,
    failed: String,
}

impl Table<File> {
    /// Creates a file that begins with the names of its columns, separated by commas.
    pub fn create(path: &Path, columns: &str) -> Result<Table<File>> {
        let failed = format!("cannot write {}", path.display());
        let file = File::create(path).with_context(|| failed.clone())?;
        Table::begin(file, failed, columns)
    }
}

impl<W: Write> Table<W> {
    fn begin(out: W, failed: String, columns: &str) -> Result<Table<W>> {
        let mut writer = csv::WriterBuilder::new();
        let writer = writer.has_headers(false).flexible(true).from_writer(out);
        let mut table = Table { writer, failed };
        if !columns.is_empty() {
            table.row(columns.split(',').collect::<Vec<&str>>())?;
        }
        Ok(table)
    }

    /// Writes a row: a tuple of cells. `None` is an empty cell; a float is given as the text that it is to have.
    pub fn row(&mut self, cells: impl Serialize) -> Result<()> {
        let written = self.writer.serialize(cells);
        written.with_context(|| self.failed.clone())
    }

    /// Hands all rows to the file. Reports an error that would be lost if the table were only dropped.
    pub fn flush(&mut self) -> Result<()> {
        let written = self.writer.flush();
        written.with_context(|| self.failed.clone())
    }
}

/// Returns a table as text.
pub fn text(columns: &str, rows: impl IntoIterator<Item: Serialize>) -> Result<String> {
    let mut text = Vec::new();
    let mut table = Table::begin(&mut text, "cannot make a table".to_owned(), columns)?;
    for row in rows {
        table.row(row)?;
    }
    table.flush()?;
    drop(table);
    Ok(String::from_utf8(text)?)
}
