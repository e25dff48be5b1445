//! Lines of a key, a colon and a value.

use std::str::FromStr;

/// What is wrong with a file of DiFX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DifxError {
    /// A line is missing.
    #[error("there is no line `{key}:` after line {after}")]
    Missing {
        /// Its key.
        key: String,
        /// What comes before it.
        after: usize,
    },
    /// A value makes no sense.
    #[error("line {line}, `{key}`: `{value}` is not what stands there")]
    Value {
        /// Number of the line, from 1 on.
        line: usize,
        /// Its key.
        key: String,
        /// What stands there.
        value: String,
    },
    /// Something is asked for that this program does not do.
    #[error("line {line}: {what} is not supported")]
    Unsupported {
        /// Number of the line, from 1 on.
        line: usize,
        /// What.
        what: &'static str,
    },
}

/// The lines of a file, read from top to bottom.
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

    /// The next line with this key; what lies between is passed over.
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

    /// The value of the next line with this key.
    pub fn number<T: FromStr>(&mut self, key: &str) -> Result<T, DifxError> {
        self.seek(key)?.parse()
    }

    /// A table: how many things there are, and each of them.
    pub fn table<T>(
        &mut self,
        key: &str,
        mut read: impl FnMut(&mut Lines<'a>, usize) -> Result<T, DifxError>,
    ) -> Result<Vec<T>, DifxError> {
        let count = self.count(key)?;
        (0..count).map(|number| read(self, number)).collect()
    }

    /// How many things there are: few enough to be believed.
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
