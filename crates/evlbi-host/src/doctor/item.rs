//! Result of one check: the value found, the value wanted, the reason, and the command that changes it.

use std::borrow::Cow;

use serde::Serialize;

/// Verdict on the value found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No change is needed.
    Good,
    /// A change is needed.
    Change,
    /// Worth knowing; good or bad depending on the purpose of the host.
    Note,
    /// Unknown: not reported by the kernel, a driver or a container.
    #[default]
    Unknown,
}

/// The result of one check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Item {
    /// Part of the host: kernel, processor, card NAME, clock, path, disk or rights.
    pub group: String,
    pub name: String,
    /// The value with its unit, or the reason why it is unknown.
    pub found: String,
    pub wanted: Option<String>,
    pub verdict: Verdict,
    /// Consequence if it is not changed.
    pub why: String,
    /// Shell command that changes it, usually as root.
    pub command: Option<String>,
    /// Shell command that makes the change permanent.
    pub permanent: Option<String>,
    /// The kernel's setting that the command changes, as a file of sysctl has it.
    #[serde(skip)]
    pub setting: Option<String>,
}

/// An item without its name yet, or the reason why it is unknown.
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
    /// Names a result. `why` is the default reason.
    pub fn new(group: &str, name: &str, why: &str, found: Found) -> Item {
        let mut item =
            found.unwrap_or_else(|reason| judged(format!("unknown: {reason}"), Verdict::Unknown));
        if item.why.is_empty() {
            why.clone_into(&mut item.why);
        }
        Item {
            group: group.to_owned(),
            name: name.to_owned(),
            ..item
        }
    }

    /// Returns the heading of its group in text. JSON keeps [`group`](Item::group), which scripts may match.
    pub fn heading(&self) -> Cow<'_, str> {
        match self.group.strip_prefix("card ") {
            Some(interface) => format!("NIC {interface}").into(),
            None if self.group == "processor" => "CPU".into(),
            None => self.group.as_str().into(),
        }
    }

    /// Returns its name in text. JSON keeps [`name`](Item::name), which scripts may match.
    pub fn label(&self) -> &str {
        match self.name.as_str() {
            "soft interrupts" => "softirqs",
            "UDP segmentation in the card" => "UDP segmentation offload",
            name => name,
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

    /// Sets the command that changes it.
    pub fn by(mut self, command: impl Into<String>) -> Item {
        self.command = Some(command.into());
        self
    }

    /// Sets the command that makes the change permanent.
    pub fn kept_by(mut self, command: impl Into<String>) -> Item {
        self.permanent = Some(command.into());
        self
    }
}

/// Quotes text as one word of a shell command.
pub fn quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| "NAME".to_owned(), Cow::into_owned)
}
