//! A directory of a test, which is removed with the test or, if its run is killed, by the next run.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::leftovers;
use crate::result::read;

/// A directory of a test.
#[derive(Debug)]
pub struct Room(TempDir);

impl Room {
    /// Creates an empty directory.
    ///
    /// # Panics
    /// Panics if it cannot be created.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each one is another folder")]
    pub fn new() -> Room {
        Room::within(&leftovers::folder())
    }

    /// Creates an empty directory on a disk, next to the test binary.
    ///
    /// # Panics
    /// Panics if it cannot be created.
    #[must_use]
    pub fn on_disk() -> Room {
        Room::within(&leftovers::folder_on_disk().expect("a test binary's folder"))
    }

    /// Creates an empty directory in this directory.
    ///
    /// # Panics
    /// Panics if it cannot be created.
    #[must_use]
    pub fn within(folder: &Path) -> Room {
        crate::need::watch();
        leftovers::make(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        Room(TempDir::new_in(folder).expect("a temporary folder"))
    }

    /// Returns its path.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file in it, existing or not.
    ///
    /// # Panics
    /// Panics if that is not UTF-8.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        let path = self.0.path().join(name);
        path.to_str().expect("a path in UTF-8").to_owned()
    }

    /// Writes a file and returns its path.
    ///
    /// # Panics
    /// Panics if it cannot be written.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
        path
    }

    /// Returns a file's bytes.
    ///
    /// # Panics
    /// Panics if it cannot be read.
    #[must_use]
    #[track_caller]
    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns a file's text.
    ///
    /// # Panics
    /// Panics if it cannot be read, or is not UTF-8.
    #[must_use]
    #[track_caller]
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns a file's JSON.
    ///
    /// # Panics
    /// Panics if it cannot be read, or is invalid JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self, name: &str) -> Value {
        read(self.text(name))
    }
}
