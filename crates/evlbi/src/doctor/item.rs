//! What one check found: what is there, what is wanted, why, and the command that changes it.

use serde::Serialize;

/// What is to be thought of what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// To be changed.
    Change,
    /// To be known; good or bad by what the host is for.
    Note,
    /// Not seen: the kernel, a driver or a container does not tell.
    Unknown,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Part of the host: kernel, processor, card NAME, clock, path or disk.
    pub group: String,
    pub name: String,
    /// The value with its unit, or why it is not known.
    pub found: String,
    pub wanted: Option<String>,
    pub verdict: Verdict,
    /// What goes wrong otherwise.
    pub why: String,
    /// Shell command that changes it, mostly as root.
    pub command: Option<String>,
    /// Shell command that has it so after the next start too.
    pub permanent: Option<String>,
}

/// A check before anything was found.
#[derive(Clone, Debug)]
pub struct Check {
    group: String,
    name: String,
    why: String,
}

impl Check {
    pub fn new(group: &str, name: &str, why: impl Into<String>) -> Check {
        Check {
            group: group.to_owned(),
            name: name.to_owned(),
            why: why.into(),
        }
    }

    pub fn good(self, found: impl Into<String>) -> Item {
        self.found(found.into(), Verdict::Good)
    }

    pub fn note(self, found: impl Into<String>) -> Item {
        self.found(found.into(), Verdict::Note)
    }

    pub fn change(
        self,
        found: impl Into<String>,
        wanted: impl Into<String>,
        command: impl Into<String>,
    ) -> Item {
        let item = self.found(found.into(), Verdict::Change);
        item.wanting(wanted).by(command)
    }

    /// `reason` says why it was not seen.
    pub fn unknown(self, reason: impl AsRef<str>) -> Item {
        let found = format!("not known here: {}", reason.as_ref());
        self.found(found, Verdict::Unknown)
    }

    fn found(self, found: String, verdict: Verdict) -> Item {
        Item {
            group: self.group,
            name: self.name,
            found,
            wanted: None,
            verdict,
            why: self.why,
            command: None,
            permanent: None,
        }
    }
}

impl Item {
    pub fn wanting(mut self, wanted: impl Into<String>) -> Item {
        self.wanted = Some(wanted.into());
        self
    }

    /// Names the command that changes it.
    pub fn by(mut self, command: impl Into<String>) -> Item {
        self.command = Some(command.into());
        self
    }

    /// Names the command that keeps it so.
    pub fn kept_by(mut self, command: impl Into<String>) -> Item {
        self.permanent = Some(command.into());
        self
    }
}

/// Text in the place of one word of a shell command.
pub fn quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| "NAME".to_owned(), std::borrow::Cow::into_owned)
}
