//! Table of the frequencies and polarisations that stations recorded in their channels.
//!
//! Headers contain neither. A file has one `[[channel]]` per row; a row for the station `*` is for all stations without rows of their own.

use std::path::{Path, PathBuf};

use evlbi_wire::mark4::Sideband;
use serde::{Deserialize, Serialize};

use crate::selection::ChannelId;

/// Station of rows that are for all stations.
const ALL: &str = "*";

/// Reasons why a table cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file cannot be read.
    #[error("cannot read the channel table {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The file is not a table.
    #[error("in the channel table {}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Error with its place.
        source: toml::de::Error,
    },
    /// A row that is not possible.
    #[error("in the channel table {}: {why}", path.display())]
    Row {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
}

/// Frequencies and polarisations of channels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelTable {
    /// Rows; the first one that fits a channel is used.
    #[serde(rename = "channel", default)]
    pub rows: Vec<ChannelRow>,
}

/// One channel of a station, or of all stations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelRow {
    /// Name of the station, or `*`.
    #[serde(default = "all")]
    pub station: String,
    /// Thread; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u16>,
    /// Channel within its thread; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<ChannelId>,
    /// Sky frequency of the band edge to which the signal was mixed down (LO frequency), in MHz.
    pub frequency_mhz: f64,
    /// Side of that frequency on which the band lies.
    pub sideband: Sideband,
    /// Polarisation: an upper-case letter.
    pub polarisation: char,
}

fn all() -> String {
    ALL.to_owned()
}

impl ChannelTable {
    /// Reads a table from a file.
    ///
    /// # Errors
    /// Returns a [`TableError`] if it cannot be read, or a row is not possible.
    pub fn read(path: &Path) -> Result<ChannelTable, TableError> {
        let text = std::fs::read_to_string(path).map_err(|source| TableError::Read {
            path: path.to_owned(),
            source,
        })?;
        ChannelTable::parse(&text, path)
    }

    /// Parses a table, which is in the file at `path`.
    ///
    /// # Errors
    /// Returns a [`TableError`] if a row is not possible.
    pub fn parse(text: &str, path: &Path) -> Result<ChannelTable, TableError> {
        let path_of = || path.to_owned();
        let table: ChannelTable = toml::from_str(text).map_err(|source| TableError::Parse {
            path: path_of(),
            source,
        })?;
        match table.check() {
            Ok(()) => Ok(table),
            Err(why) => Err(TableError::Row {
                path: path_of(),
                why,
            }),
        }
    }

    /// Checks that all rows are possible.
    ///
    /// # Errors
    /// Returns what is wrong with a row.
    pub fn check(&self) -> Result<(), String> {
        if self.rows.is_empty() {
            return Err("it has no rows: give one [[channel]] per channel".into());
        }
        for row in &self.rows {
            if !(row.frequency_mhz > 0.0 && row.frequency_mhz.is_finite()) {
                let given = row.frequency_mhz;
                return Err(format!("invalid frequency {given} MHz: give one above 0"));
            }
            if !row.polarisation.is_ascii_uppercase() {
                let given = row.polarisation;
                return Err(format!("invalid polarisation `{given}`: give R, L, X or Y"));
            }
        }
        Ok(())
    }

    /// Returns the row of a station's channel; `None` if there is none. A station with rows of its own uses no others.
    pub fn row(&self, station: &str, thread: u16, channel: ChannelId) -> Option<&ChannelRow> {
        let has_own = self.rows.iter().any(|row| row.station == station);
        let of = if has_own { station } else { ALL };
        let mut rows = self.rows.iter().filter(|row| row.station == of);
        rows.find(|row| {
            row.thread.is_none_or(|its| its == thread)
                && row.channel.is_none_or(|its| its == channel)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ChannelTable, String> {
        let table: ChannelTable = toml::from_str(text).map_err(|error| error.to_string())?;
        table.check().map(|()| table)
    }

    #[test]
    fn rows_of_a_station_come_before_those_of_all() {
        let text = r#"
            [[channel]]
            channel = 0
            frequency_mhz = 1642.49
            sideband = "U"
            polarisation = "R"
            [[channel]]
            station = "Ef"
            channel = "0U"
            frequency_mhz = 1658.49
            sideband = "L"
            polarisation = "L"
            [[channel]]
            station = "Jb"
            thread = 2
            frequency_mhz = 1674.49
            sideband = "U"
            polarisation = "X"
        "#;
        let table = read(text).unwrap();
        let zero = ChannelId::Number(0);
        let named = ChannelId::Named("0U".parse().unwrap());
        let frequency = |station, thread, channel| {
            let row = table.row(station, thread, channel);
            row.map(|row| row.frequency_mhz)
        };
        assert_eq!(frequency("On", 5, zero), Some(1642.49));
        assert_eq!(frequency("On", 0, named), None);
        assert_eq!(frequency("Ef", 0, named), Some(1658.49));
        assert_eq!(frequency("Ef", 0, zero), None);
        assert_eq!(frequency("Jb", 2, ChannelId::Number(7)), Some(1674.49));
        assert_eq!(frequency("Jb", 1, zero), None);
        let written = toml::to_string(&table).unwrap();
        assert_eq!(read(&written), Ok(table));
    }

    #[test]
    fn rows_that_are_not_possible_are_refused() {
        let row = "[[channel]]\nchannel = 1\nfrequency_mhz = 5e3\nsideband = \"U\"\npolarisation = \"R\"\n";
        assert!(read(row).is_ok());
        for (from, to, says) in [
            ("5e3", "0", "give one above 0"),
            ("5e3", "nan", "invalid frequency NaN"),
            ("\"R\"", "\"r\"", "give R, L, X or Y"),
            ("\"U\"", "\"M\"", "unknown variant"),
            ("channel = 1", "channel = \"1X\"", "converter and sideband"),
            ("channel = 1", "chanel = 1", "unknown field"),
            (row, "", "it has no rows"),
        ] {
            let refused = read(&row.replace(from, to)).unwrap_err();
            assert!(refused.contains(says), "{to}: {refused}");
        }
    }
}
