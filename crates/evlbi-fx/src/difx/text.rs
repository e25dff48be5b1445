//! Lines with a key, a colon and a value.

use std::str::FromStr;

/// Error in a file of DiFX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DifxError {
    /// Missing line.
    #[error("no line `{key}:` after line {after}")]
    Missing {
        /// Key of the line.
        key: String,
        /// Number of the line before it.
        after: usize,
    },
    /// Invalid value.
    #[error("line {line}, `{key}`: invalid value `{value}`")]
    Value {
        /// Number of the line, from 1.
        line: usize,
        /// Key of the line.
        key: String,
        /// Value in the file.
        value: String,
    },
    /// Feature of DiFX that is not supported here.
    #[error("line {line}: {what} is not supported")]
    Unsupported {
        /// Number of the line, from 1.
        line: usize,
        /// Name of the feature.
        what: &'static str,
    },
}

/// Lines of a file, read from top to bottom.
pub struct Lines<'a> {
    lines: Vec<Line<'a>>,
    next: usize,
}

#[derive(Clone, Copy)]
pub struct Line<'a> {
    pub number: usize,
    pub key: &'a str,
    pub value: &'a str,
}

impl<'a> Lines<'a> {
    pub fn new(text: &'a str) -> Lines<'a> {
        let lines = text.lines().enumerate().filter_map(|(index, line)| {
            let (key, value) = line.split_once(':')?;
            let comment = key.starts_with(['@', '#']);
            (!comment).then(|| Line {
                number: index + 1,
                key: key.trim(),
                value: value.trim(),
            })
        });
        Lines {
            lines: lines.collect(),
            next: 0,
        }
    }

    /// Returns the next line with this key; lines before it are skipped.
    pub fn seek(&mut self, key: &str) -> Result<Line<'a>, DifxError> {
        let rest = &self.lines[self.next..];
        let Some(place) = rest.iter().position(|line| line.key == key) else {
            return Err(DifxError::Missing {
                key: key.to_owned(),
                after: self
                    .next
                    .checked_sub(1)
                    .map_or(0, |last| self.lines[last].number),
            });
        };
        self.next += place + 1;
        Ok(self.lines[self.next - 1])
    }

    /// Parses the value of the next line with this key.
    pub fn number<T: FromStr>(&mut self, key: &str) -> Result<T, DifxError> {
        self.seek(key)?.parse()
    }

    /// Reads a table: the number of entries, and each of them.
    pub fn table<T>(
        &mut self,
        key: &str,
        mut read: impl FnMut(&mut Lines<'a>, usize) -> Result<T, DifxError>,
    ) -> Result<Vec<T>, DifxError> {
        let count = self.count(key)?;
        (0..count).map(|number| read(self, number)).collect()
    }

    /// Reads a number of entries, which must be plausible.
    pub fn count(&mut self, key: &str) -> Result<usize, DifxError> {
        let line = self.seek(key)?;
        line.parse::<usize>()
            .ok()
            .filter(|count| *count <= 1 << 16)
            .ok_or_else(|| line.wrong())
    }
}

impl Line<'_> {
    pub fn parse<T: FromStr>(&self) -> Result<T, DifxError> {
        self.value.parse().map_err(|_| self.wrong())
    }

    pub fn wrong(&self) -> DifxError {
        DifxError::Value {
            line: self.number,
            key: self.key.to_owned(),
            value: self.value.to_owned(),
        }
    }
}
