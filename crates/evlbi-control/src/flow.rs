//! A flow: what it is to do, how it is, and how it ended.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use evlbi_stream::control_socket::Status;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Longest name of a flow.
const MAX_ID: usize = 64;

/// The name of a flow: up to 64 letters, digits, `-`, `_` and `.`, the first a letter or digit. It is used once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String")]
#[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples("ef-1"))]
pub struct FlowId(String);

impl FlowId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FlowId {
    type Err = String;

    fn from_str(text: &str) -> Result<FlowId, String> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !begins || text.len() > MAX_ID || !text.chars().all(is_good) {
            return Err(format!(
                "`{}` is no name of a flow: up to {MAX_ID} letters, digits, -, _ and ., the first a letter or digit",
                text.escape_debug()
            ));
        }
        Ok(FlowId(text.to_owned()))
    }
}

impl TryFrom<String> for FlowId {
    type Error = String;

    fn try_from(text: String) -> Result<FlowId, String> {
        text.parse()
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Options of a command by their names on the command line.
pub type Options = BTreeMap<String, Value>;

/// A flow that is to be started: a command with its options, as on the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewFlow {
    /// What it is to be called.
    pub id: FlowId,
    /// The host that it is meant for; an agent takes flows for its own only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// `send`, `recv`, `probe udp`, ...
    pub command: String,
    /// The options of the command.
    #[serde(flatten)]
    pub options: Options,
}

/// Where a flow is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its process makes ready.
    Starting,
    /// It runs.
    Running,
    /// It was told to stop, and has not ended yet.
    Stopping,
    /// It is over.
    Ended,
}

/// How a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// By itself, as it was meant to.
    Finished,
    /// Because it was told to.
    Stopped,
    /// It could not go on.
    Failed,
    /// Its process was killed, or the host went down.
    Killed,
    /// Its agent ended it, with everything written, because less than `min-free` was free for recordings.
    Full,
}

/// The end of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct End {
    /// When it was seen, in seconds since 1970.
    pub time: f64,
    /// How it ended.
    pub outcome: Outcome,
    /// What is to be said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A flow as it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Flow {
    /// Its name.
    pub id: FlowId,
    /// The host that it runs on.
    pub host: String,
    /// `send`, `recv`, `probe udp`, ...
    pub command: String,
    /// Its options by their names on the command line; tokens are left out.
    #[schema(value_type = BTreeMap<String, Value>)]
    pub options: Options,
    /// The file that it records in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<String>,
    /// How often it was started and changed; a change names the one that it is meant for.
    pub revision: u64,
    /// Where it is in its life.
    pub state: State,
    /// When it was started, in seconds since 1970.
    pub started: f64,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// What it said of itself last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

impl End {
    /// Why it ended so, to be put behind how it did.
    pub(crate) fn why(&self) -> String {
        self.message.iter().map(|why| format!(": {why}")).collect()
    }
}

impl Flow {
    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Leaves out what a list of many has no room for.
    pub(crate) fn make_brief(&mut self) {
        let status = self.status.iter_mut();
        for baseline in status.flat_map(|status| &mut status.baselines) {
            baseline.profile.amplitudes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_paths() {
        for good in ["ef", "Ef-1", "0", "a.b_c", &"x".repeat(64)] {
            assert_eq!(good.parse::<FlowId>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "-x",
            "a b",
            "a\0",
            "é",
            &"x".repeat(65),
        ] {
            let error = bad.parse::<FlowId>().unwrap_err();
            assert!(error.contains("no name of a flow"), "{error}");
        }
    }

    #[test]
    fn a_flow_is_written_as_its_command_line_is() {
        let text = r#"{"id":"ef","command":"send","source":"ef.vdif","to":"udp://127.0.0.1:2630","rate":"64M"}"#;
        let flow: NewFlow = serde_json::from_str(text).unwrap();
        assert_eq!(flow.options["rate"], "64M");
        assert_eq!(serde_json::to_string(&flow).unwrap().len(), text.len());
        let error = serde_json::from_str::<NewFlow>(r#"{"id":"../x","command":"send"}"#);
        assert!(error.unwrap_err().to_string().contains("no name of a flow"));
    }
}
