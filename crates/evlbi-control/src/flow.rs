//! A flow: its command and options, its state, and how it ended.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use evlbi_stream::control_socket::Status;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Maximum length of a flow's name.
const MAX_ID: usize = 64;

/// Name of a flow: up to 64 letters, digits, `-`, `_` and `.`, the first a letter or digit. Each name is used once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String")]
#[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples("ef-1"))]
pub struct FlowId(String);

impl FlowId {
    /// Returns the name as text.
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
                "invalid flow name `{}`: give up to {MAX_ID} letters, digits, -, _ and ., the first a letter or digit",
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

/// Flow to start: a command with its options, as on the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewFlow {
    /// Name of the new flow.
    pub id: FlowId,
    /// Name of the host to run on. An agent accepts only its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Command: `send`, `recv`, `probe udp`, ...
    pub command: String,
    /// Options of the command.
    #[serde(flatten)]
    pub options: Options,
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its process is starting.
    Starting,
    /// It is running.
    Running,
    /// A stop was requested; it has not ended yet.
    Stopping,
    /// It has ended.
    Ended,
}

/// Outcome of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It completed its task.
    Finished,
    /// It was stopped on request.
    Stopped,
    /// It stopped because of an error.
    Failed,
    /// Its process was killed, or the host went down.
    Killed,
    /// Its agent stopped it, with everything written, because less than `min-free` was free for recordings.
    Full,
}

/// End of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct End {
    /// Time at which the end was noticed, in seconds since 1970.
    pub time: f64,
    /// Outcome of the flow.
    pub outcome: Outcome,
    /// Reason, if there is one to report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Flow with its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Flow {
    /// Name of the flow.
    pub id: FlowId,
    /// Name of the host that it runs on.
    pub host: String,
    /// Command: `send`, `recv`, `probe udp`, ...
    pub command: String,
    /// Options by their names on the command line, without tokens.
    #[schema(value_type = BTreeMap<String, Value>)]
    pub options: Options,
    /// File that it records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<String>,
    /// Number of its revision: 1 at its start, plus 1 for each change. A change names the revision that it applies to.
    pub revision: u64,
    /// State of the flow.
    pub state: State,
    /// Start time, in seconds since 1970.
    pub started: f64,
    /// End of the flow, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Last status that it reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

impl End {
    /// Returns the reason with a colon before it, or an empty text.
    pub(crate) fn why(&self) -> String {
        self.message.iter().map(|why| format!(": {why}")).collect()
    }
}

impl Flow {
    /// Returns whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Removes details that are too long for a list of flows.
    pub(crate) fn make_brief(&mut self) {
        let status = self.status.iter_mut();
        for baseline in status.flat_map(|status| &mut status.baselines) {
            baseline.profile.amplitudes = Vec::new();
        }
        let status = self.status.as_mut();
        let sending = status.and_then(|status| status.sending.as_mut());
        if let Some(safe) = sending.and_then(|sending| sending.safe.as_mut()) {
            safe.notices.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_be_paths() {
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
            assert!(error.contains("invalid flow name"), "{error}");
        }
    }

    #[test]
    fn a_flow_is_written_as_its_command_line_is() {
        let text = r#"{"id":"ef","command":"send","source":"ef.vdif","to":"udp://127.0.0.1:2630","rate":"64M"}"#;
        let flow: NewFlow = serde_json::from_str(text).unwrap();
        assert_eq!(flow.options["rate"], "64M");
        assert_eq!(serde_json::to_string(&flow).unwrap().len(), text.len());
        let error = serde_json::from_str::<NewFlow>(r#"{"id":"../x","command":"send"}"#);
        assert!(error.unwrap_err().to_string().contains("invalid flow name"));
    }
}
