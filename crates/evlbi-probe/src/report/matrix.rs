//! Results of many probes in one table: a row for each pair of hosts and path, a column for each test.

use std::io;
use std::path::{Path, PathBuf};

use evlbi_net::file::TableError;
use evlbi_net::udp::ReceiverOptions;
use evlbi_plot::columns;
use evlbi_wire::units::{show_rate, show_size};
use serde::Serialize;
use serde_json::Value;

use crate::csv::{Column, table};
use crate::direction::Direction;

/// Many results in one table.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Matrix {
    /// Name and version of the result's JSON.
    pub schema: &'static str,
    /// Tests, in the order in which they were found.
    pub columns: Vec<String>,
    /// The tests as the text names them.
    #[serde(skip)]
    heads: Vec<String>,
    /// Pairs of hosts, in the order in which they were found.
    pub rows: Vec<Row>,
}

/// A pair of hosts and the path between them.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    /// Both hosts, and the name of the path, if any.
    pub name: String,
    /// A cell for each column; `None` if that test was not made.
    pub cells: Vec<Option<Cell>>,
}

/// A test's result; the last, if there are several of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cell {
    /// Bits of UDP payload per second.
    pub rate_received: f64,
    /// Loss fraction.
    pub loss: f64,
    /// Of the lost, those lost in the network.
    pub network_lost: u64,
    /// Of the lost, those dropped by the hosts or their NICs.
    pub host_lost: u64,
    /// Of the lost, those at an unknown place.
    pub unattributed: u64,
    /// Start, in UTC.
    pub begun: String,
    /// File of the result.
    pub file: PathBuf,
}

/// Describes the options besides size, rate and direction that distinguish a test from others.
fn besides(point: &Value) -> String {
    let mut text = String::new();
    if let Some(burst) = point["burst"].as_u64().filter(|burst| *burst > 1) {
        text += &format!(", bursts of {burst}");
    }
    let usual = ReceiverOptions::default().buffer as u64;
    let buffer = point["receiver"]["buffer"]["asked"].as_u64();
    if let Some(buffer) = buffer.filter(|buffer| *buffer != usual) {
        text += &format!(", buffer {}", show_size(buffer));
    }
    let burden = &point["burden"];
    if let Some(tasks) = burden["tasks"].as_u64() {
        text += &format!(
            ", {tasks} tasks nice {}, receiver nice {}",
            burden["tasks_nice"], burden["nice"]
        );
    }
    text
}

/// Reason why results cannot be put into a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not a result of a UDP test.
    #[error("{} is not a result of a UDP test", path.display())]
    NoResult {
        /// The file.
        path: PathBuf,
        /// The error of the JSON parser; `None` for JSON of another kind.
        source: Option<serde_json::Error>,
    },
}

/// Reads results of [`udp::probe`](crate::udp::probe), one JSON file each.
///
/// # Errors
/// [`MatrixError`] if a file cannot be read, or has other content.
pub fn read(files: &[PathBuf]) -> Result<Matrix, MatrixError> {
    let mut matrix = Matrix {
        schema: "evlbi.matrix/1",
        ..Matrix::default()
    };
    for file in files {
        let path = || file.clone();
        let text = std::fs::read_to_string(file).map_err(|source| MatrixError::Read {
            path: path(),
            source,
        })?;
        let no_result = |source| MatrixError::NoResult {
            path: path(),
            source,
        };
        let result: Value = serde_json::from_str(&text).map_err(|error| no_result(Some(error)))?;
        if result["schema"] != "evlbi.probe.udp/1" {
            return Err(no_result(None));
        }
        matrix.add(&result, file);
    }
    Ok(matrix)
}

impl Matrix {
    fn add(&mut self, result: &Value, file: &Path) {
        let text = |name: &str| result[name].as_str().unwrap_or("?").to_owned();
        let label = result["label"].as_str();
        let name = format!(
            "{} - {}{}",
            text("host"),
            text("target"),
            label.map_or(String::new(), |label| format!(" ({label})"))
        );
        let points = result["points"].as_array();
        for point in points.into_iter().flatten() {
            let number = |name: &str| point[name].as_f64().unwrap_or(0.0);
            let count = |name: &str| point[name].as_u64().unwrap_or(0);
            let asked = point["rate_asked"]
                .as_f64()
                .map_or("max".to_owned(), show_rate);
            let test = |way: &str| format!("{} B {asked} {way}{}", count("size"), besides(point));
            let way = point["direction"].as_str().unwrap_or("?");
            let mut known = Direction::BOTH.into_iter();
            let known = known.find(|direction| direction.name() == way);
            let label = known.map(Direction::label);
            let head = test(label.unwrap_or(way));
            let cell = Cell {
                rate_received: number("rate_received"),
                loss: number("loss"),
                network_lost: count("network_lost"),
                host_lost: count("host_lost"),
                unattributed: count("unattributed"),
                begun: text("begun"),
                file: file.to_owned(),
            };
            self.place(&name, [&test(way), &head], cell);
        }
    }

    fn place(&mut self, name: &str, [column, head]: [&str; 2], cell: Cell) {
        let at = self.columns.iter().position(|other| other == column);
        let at = at.unwrap_or_else(|| {
            self.columns.push(column.to_owned());
            self.heads.push(head.to_owned());
            self.columns.len() - 1
        });
        let row = self.rows.iter().position(|row| row.name == name);
        let row = row.unwrap_or_else(|| {
            let cells = Vec::new();
            let name = name.to_owned();
            self.rows.push(Row { name, cells });
            self.rows.len() - 1
        });
        for row in &mut self.rows {
            row.cells.resize(self.columns.len(), None);
        }
        self.rows[row].cells[at] = Some(cell);
    }

    /// Formats it as text.
    pub fn text(&self) -> String {
        let mut lines: Vec<Vec<String>> = vec![vec![String::new()]];
        lines[0].extend(self.heads.iter().cloned());
        for row in &self.rows {
            let cells = row.cells.iter().map(|cell| match cell {
                Some(cell) => {
                    let rate = show_rate(cell.rate_received);
                    format!("{rate}, {:.4} % lost{}", cell.loss * 100.0, cell.place())
                }
                None => "-".to_owned(),
            });
            lines.push(std::iter::once(row.name.clone()).chain(cells).collect());
        }
        columns(&lines, |_| true)
    }
}

impl Cell {
    /// Returns the place with the most loss.
    fn place(&self) -> &'static str {
        // If equal: the network before the hosts, and these before an unknown place.
        let places = [
            (self.unattributed, " (?)"),
            (self.host_lost, " (host)"),
            (self.network_lost, " (network)"),
        ];
        let lossy = places.into_iter().filter(|(lost, _)| *lost > 0);
        let most = lossy.max_by_key(|(lost, _)| *lost);
        most.map_or("", |(_, place)| place)
    }
}

impl Matrix {
    /// Formats it as CSV, a row for each test that was made.
    ///
    /// # Errors
    /// [`TableError`] if a row has no form in CSV.
    pub fn csv(&self) -> Result<String, TableError> {
        let columns: &[Column<(&Row, &String, &Cell)>] = &[
            ("path", |(row, _, _)| row.name.clone()),
            ("test", |(_, test, _)| (*test).clone()),
            ("begun", |(_, _, cell)| cell.begun.clone()),
            ("rate_received_bps", |(_, _, cell)| {
                cell.rate_received.to_string()
            }),
            ("loss", |(_, _, cell)| cell.loss.to_string()),
            ("network_lost", |(_, _, cell)| cell.network_lost.to_string()),
            ("host_lost", |(_, _, cell)| cell.host_lost.to_string()),
            ("unattributed", |(_, _, cell)| cell.unattributed.to_string()),
            ("file", |(_, _, cell)| cell.file.display().to_string()),
        ];
        let rows = self.rows.iter().flat_map(|row| {
            let cells = self.columns.iter().zip(&row.cells);
            cells.filter_map(move |(test, cell)| Some((row, test, cell.as_ref()?)))
        });
        table(columns, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_for_each_pair_and_a_column_for_each_test() {
        let mut matrix = Matrix {
            schema: "evlbi.matrix/1",
            ..Matrix::default()
        };
        let result = |host: &str, label: Value, points: Value| json!({"host": host, "target": "jive:8620", "label": label, "begun": "now", "points": points});
        let point = |rate: f64, lost: u64| {
            json!({"direction": "there", "size": 1472, "rate_asked": rate, "rate_received": rate, "loss": 0.01,
                   "network_lost": lost, "host_lost": 0, "unattributed": 0})
        };
        let file = PathBuf::from("a.json");
        matrix.add(
            &result(
                "manchester",
                json!("fibre"),
                json!([point(5e8, 7), point(9e8, 0)]),
            ),
            &file,
        );
        matrix.add(
            &result("onsala", Value::Null, json!([point(9e8, 0)])),
            &file,
        );
        assert_eq!(matrix.columns.len(), 2);
        let names: Vec<&str> = matrix.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(
            names,
            ["manchester - jive:8620 (fibre)", "onsala - jive:8620"]
        );
        assert!(matrix.rows[1].cells[0].is_none() && matrix.rows[1].cells[1].is_some());
        let text = matrix.text();
        assert!(
            text.contains("500.000 Mbit/s, 1.0000 % lost (network)"),
            "{text}"
        );
        assert!(text.contains("1472 B 900.000 Mbit/s outbound"), "{text}");
        assert_eq!(matrix.columns[1], "1472 B 900.000 Mbit/s there");
        assert_eq!(text.lines().count(), 3);
    }
}
