//! What one check found: what is there, what is wanted, why, and the command that changes it.

use serde::Serialize;

/// What is to be thought of what was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// To be changed.
    Change,
    /// To be known; good or bad by what the host is for.
    Note,
    /// Not seen: the kernel, a driver or a container does not tell.
    #[default]
    Unknown,
}

/// The result of one check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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

/// What a look found, its name to come, or why it was not seen.
pub type Found = Result<Item, String>;

pub fn good(found: impl Into<String>) -> Item {
    judged(found, Verdict::Good)
}

pub fn note(found: impl Into<String>) -> Item {
    judged(found, Verdict::Note)
}

pub fn change(found: impl Into<String>, wanted: impl Into<String>) -> Item {
    judged(found, Verdict::Change).wanting(wanted)
}

fn judged(found: impl Into<String>, verdict: Verdict) -> Item {
    Item {
        found: found.into(),
        verdict,
        ..Item::default()
    }
}

impl Item {
    /// Names what was found. `why` is the reason where it has none of its own.
    pub fn new(group: &str, name: &str, why: &str, found: Found) -> Item {
        let mut item = found
            .unwrap_or_else(|reason| judged(format!("not known here: {reason}"), Verdict::Unknown));
        if item.why.is_empty() {
            why.clone_into(&mut item.why);
        }
        Item {
            group: group.to_owned(),
            name: name.to_owned(),
            ..item
        }
    }

    pub fn because(mut self, why: impl Into<String>) -> Item {
        self.why = why.into();
        self
    }

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
