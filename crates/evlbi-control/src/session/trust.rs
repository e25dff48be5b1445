//! The agents that tokens may be sent to: those whose fingerprints the controller's user has confirmed, as in ssh's `known_hosts`.
//! What a session file says of itself is no confirmation, since the file may come from anybody.

use std::path::{Path, PathBuf};

use super::ControllerError;
use crate::identity::{FileError, Fingerprint, read_if_there, write_private};

/// The confirmed fingerprints, kept in a file of the controller's folder.
#[derive(Debug)]
pub(crate) struct Trusted {
    path: PathBuf,
    /// The file: a line for each agent, its fingerprint and the name of its host.
    text: String,
    known: Vec<Fingerprint>,
}

impl Trusted {
    /// Reads the file `trusted` in the controller's folder.
    ///
    /// # Errors
    /// When it cannot be read or understood.
    pub fn open(folder: &Path) -> Result<Trusted, ControllerError> {
        let path = folder.join("trusted");
        let text = read_if_there(&path)?.unwrap_or_default();
        let first = |line: &str| line.split(' ').next().unwrap_or("").parse();
        match text.lines().map(first).collect() {
            Ok(known) => Ok(Trusted { path, text, known }),
            Err(why) => Err(ControllerError::Trusted { path, why }),
        }
    }

    /// Whether the agent with this certificate may get a token.
    pub fn knows(&self, fingerprint: &Fingerprint) -> bool {
        self.known.contains(fingerprint)
    }

    /// Confirms the fingerprint of a host's agent for good.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, host: &str, fingerprint: Fingerprint) -> Result<(), FileError> {
        if !self.knows(&fingerprint) {
            self.text += &format!("{fingerprint} {}\n", host.escape_debug());
            write_private(&self.path, &self.text)?;
            self.known.push(fingerprint);
        }
        Ok(())
    }
}
