//! Trusted agents: the controller's user has confirmed their fingerprints, so tokens may be sent to them (as in ssh's `known_hosts`).
//! A fingerprint in a session file is not a confirmation, since the file may come from anybody.

use std::path::{Path, PathBuf};

use super::ControllerError;
use crate::identity::{FileError, Fingerprint, read_if_there, write_private};

/// Confirmed fingerprints, stored in the controller's state directory.
#[derive(Debug)]
pub(crate) struct Trusted {
    path: PathBuf,
    /// Text of the file: one line per agent with its fingerprint and the name of its host.
    text: String,
    known: Vec<Fingerprint>,
}

impl Trusted {
    /// Reads the file `trusted` in the controller's state directory.
    ///
    /// # Errors
    /// Returns [`ControllerError`] if it cannot be read or parsed.
    pub fn open(folder: &Path) -> Result<Trusted, ControllerError> {
        let path = folder.join("trusted");
        let text = read_if_there(&path)?.unwrap_or_default();
        let first = |line: &str| line.split(' ').next().unwrap_or("").parse();
        match text.lines().map(first).collect() {
            Ok(known) => Ok(Trusted { path, text, known }),
            Err(why) => Err(ControllerError::Trusted { path, why }),
        }
    }

    /// Returns whether tokens may be sent to the agent with this certificate.
    pub fn knows(&self, fingerprint: &Fingerprint) -> bool {
        self.known.contains(fingerprint)
    }

    /// Confirms the fingerprint of a host's agent permanently.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file cannot be written.
    pub fn add(&mut self, host: &str, fingerprint: Fingerprint) -> Result<(), FileError> {
        if !self.knows(&fingerprint) {
            self.text += &format!("{fingerprint} {}\n", host.escape_debug());
            write_private(&self.path, &self.text)?;
            self.known.push(fingerprint);
        }
        Ok(())
    }
}
