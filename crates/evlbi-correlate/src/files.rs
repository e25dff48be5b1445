//! Files and directories that cannot be used as a correlation has to.

use std::io;
use std::path::{Path, PathBuf};

/// What was to be done with a file or a directory, and why it failed.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
#[non_exhaustive]
pub struct FileError {
    /// What failed, as `cannot read`.
    pub doing: &'static str,
    /// The file or the directory.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

impl FileError {
    /// Says of an error of the system what failed with which file.
    pub(crate) fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let path = path.to_owned();
        move |source| FileError {
            doing,
            path,
            source,
        }
    }
}

/// Makes a directory and those above it.
pub fn make_directory(path: &Path) -> Result<(), FileError> {
    std::fs::create_dir_all(path).map_err(FileError::at("cannot make the directory", path))
}

/// The text of a file.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(FileError::at("cannot read", path))
}
