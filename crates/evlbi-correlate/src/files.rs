//! Reads files and makes directories, with errors that name them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes at the end of what a program printed in which its last line is searched for.
const LAST: u64 = 4096;

/// An operation on a file or directory that failed.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
#[non_exhaustive]
pub struct FileError {
    /// Failed operation, e.g. `cannot read`.
    pub doing: &'static str,
    /// Path of the file or directory.
    pub path: PathBuf,
    /// Error of the system.
    pub source: io::Error,
}

impl FileError {
    /// Adds the operation and the path to an error of the system.
    pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let path = path.to_owned();
        move |source| FileError {
            doing,
            path,
            source,
        }
    }
}

/// Creates a directory and its parents.
pub fn make_directory(path: &Path) -> Result<(), FileError> {
    std::fs::create_dir_all(path).map_err(FileError::at("cannot make the directory", path))
}

/// Returns a path from the root directory on.
pub fn whole(path: &Path) -> Result<PathBuf, FileError> {
    std::path::absolute(path).map_err(FileError::at("cannot find", path))
}

/// Returns the text of a file.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(FileError::at("cannot read", path))
}

/// Returns the last line of a file that a program wrote; nothing if there is none.
pub fn last_line(path: &Path) -> String {
    File::open(path).map_or(String::new(), last_line_of)
}

/// Returns the last line of an open file.
pub fn last_line_of(mut file: File) -> String {
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::End(0))
        .and_then(|length| file.seek(SeekFrom::Start(length.saturating_sub(LAST))))
        .and_then(|_| file.read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let line = text.trim().lines().last().unwrap_or_default();
    line.trim_start_matches("evlbi: ").to_owned()
}
