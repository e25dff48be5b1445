//! Reads files and makes directories, with errors that name them.

use std::io;
use std::path::{Path, PathBuf};

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
