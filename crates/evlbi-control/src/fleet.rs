//! Traits and types of remote control: the flows of a host, or of all hosts of a session.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use evlbi_net::run::explain;
use evlbi_stream::control_socket::Change;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::flow::{Flow, FlowId, NewFlow};
use super::history::Event;
use super::identity::Role;

/// Answer to a request, or the reason why there is none.
pub type Reply<T> = Result<T, Problem>;

/// Future of a [`Reply`].
pub type Later<'a, T> = Pin<Box<dyn Future<Output = Reply<T>> + Send + 'a>>;

/// Control of flows: starts, changes and stops them.
pub trait Control: Send + Sync + 'static {
    /// Starts a flow.
    ///
    /// # Errors
    /// Returns [`Problem`] if the name was used before, or the flow is not allowed or cannot be started.
    fn start(&self, flow: NewFlow) -> Later<'_, Flow>;

    /// Changes a running flow if it is at this revision.
    ///
    /// # Errors
    /// Returns [`Problem`] if there is no such flow, it has another revision, is not running or refuses the change.
    fn change(&self, id: FlowId, revision: u64, change: Change) -> Later<'_, Flow>;

    /// Stops a flow with everything written, or kills it at once.
    ///
    /// # Errors
    /// Returns [`Problem`] if there is no such flow, or it does not answer.
    fn stop(&self, id: FlowId, kill: bool) -> Later<'_, Flow>;

    /// Forgets an ended flow. Its name stays used, and its recordings stay.
    ///
    /// # Errors
    /// Returns [`Problem`] if there is no such flow, or it has not ended.
    fn forget(&self, id: FlowId) -> Later<'_, ()>;

    /// Checks whether flows could be started. Returns the problems and the bit rate of each.
    ///
    /// # Errors
    /// Returns [`Problem`] if an agent does not answer. Problems of flows are not errors.
    fn check(&self, flows: Vec<NewFlow>) -> Later<'_, Vec<Checked>>;

    /// Returns a flow's result: JSON, which may be long.
    ///
    /// # Errors
    /// Returns [`Problem`] if there is no such flow, or no result yet.
    fn result(&self, id: FlowId) -> Later<'_, Body>;

    /// Returns the end of a flow's log, at most 64 KiB.
    ///
    /// # Errors
    /// Returns [`Problem`] if there is no such flow.
    fn log(&self, id: FlowId) -> Later<'_, String>;
}

/// Flows of a host or of a session.
pub(crate) trait Fleet: Control {
    /// Returns the role, name and clock of this process.
    fn about(&self) -> About;

    /// Returns all flows, sorted by name.
    fn flows(&self) -> Vec<Flow>;

    /// Returns the plan of the session, if this is a controller with planned flows.
    fn session(&self) -> Option<SessionPlan> {
        None
    }

    /// Begins a held session, or ends a running one.
    ///
    /// # Errors
    /// Returns [`Problem`] if there is no session, or its state does not allow this.
    fn drive(&self, _drive: Drive) -> Reply<SessionPlan> {
        Err(Problem::missing(NO_SESSION))
    }
}

/// Agent on another host. A request returns a [`Problem`] if the agent does not answer before a timeout.
pub trait Remote: Control {
    /// Requests the agent's name, its clock and the role of the token.
    ///
    /// # Errors
    /// Returns [`Problem`] if it does not answer or does not accept the token.
    fn about(&self) -> Later<'_, AboutYou>;

    /// Requests all flows, sorted by name.
    ///
    /// # Errors
    /// Returns [`Problem`] if it does not answer.
    fn flows(&self) -> Later<'_, Vec<Flow>>;

    /// Requests the events whose numbers are above `after`, oldest first.
    ///
    /// # Errors
    /// Returns [`Problem`] if it does not answer.
    fn events(&self, after: i64) -> Later<'_, Vec<Event>>;
}

/// Description of an agent or a controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct About {
    /// `agent` or `session`.
    pub role: String,
    /// Name of the host or of the session.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Its clock, in seconds since 1970.
    pub time: f64,
    /// Start time, in seconds since 1970.
    pub started: f64,
    /// Directory for recordings and its free space, for an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

/// Description of an agent or a controller, with the role of the client's token.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct AboutYou {
    /// Description of the agent or the controller.
    #[serde(flatten)]
    pub about: About,
    /// Role of the client's token.
    pub your_role: Role,
}

/// Error text for a request about a session where there is none.
pub(crate) const NO_SESSION: &str =
    "no session: this is an agent, or a controller without planned flows";

/// Command to a whole session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Drive {
    Begin,
    End,
}

/// Session: its state, its planned flows and the hosts that do not answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionPlan {
    /// Name of the run.
    pub run: String,
    pub state: SessionState,
    pub scans: Vec<ScanPlan>,
    /// Planned flows, and flows that could not be started.
    pub flows: Vec<PlannedFlow>,
    /// Hosts whose agents do not answer now, with the reason.
    pub silent: BTreeMap<String, String>,
}

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SessionState {
    /// It waits for Begin.
    Held,
    Running,
    /// Its flows are being stopped.
    Ending,
    Over,
}

/// Scan of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScanPlan {
    pub name: String,
    /// Start, in seconds since 1970; `None` while it depends on the begin of a held session.
    pub starts: Option<f64>,
    /// Seconds from the begin of the session to the start, if the start is relative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_s: Option<f64>,
    pub lasts_s: f64,
}

/// Planned flow, which is not started yet or could not be started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = FlowToCome)]
pub(crate) struct PlannedFlow {
    pub id: FlowId,
    pub host: String,
    pub command: String,
    /// Start, in seconds since 1970, if known.
    pub starts: Option<f64>,
    /// Reason why it could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// Result of a check of a flow before its start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Checked {
    /// Name of the flow.
    pub id: FlowId,
    /// Problems, with what to do about them.
    pub problems: Vec<String>,
    /// Bit rate of data that it would send, in bit/s, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Losses at which it would shed and stop (`evlbi.plan.safe/1`), under SafeUDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub safe: Option<Value>,
}

/// Storage for recordings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Storage {
    /// Path of the directory.
    pub folder: String,
    /// Free space, in bytes.
    pub free_bytes: u64,
}

/// Error: a request was refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct Problem {
    /// HTTP status of the answer.
    pub status: StatusCode,
    /// Reason, and what to do about it.
    pub error: String,
}

/// Body of an answer that reports a [`Problem`].
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProblemBody {
    /// Reason, and what to do about it.
    pub error: String,
}

impl Problem {
    /// Creates a problem with an HTTP status.
    pub fn new(status: StatusCode, error: impl Into<String>) -> Problem {
        Problem {
            status,
            error: error.into(),
        }
    }

    /// Creates a problem: something does not exist.
    pub(crate) fn missing(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, error)
    }

    /// Creates a problem: there is no such flow.
    pub(crate) fn unknown(id: &FlowId) -> Problem {
        Problem::missing(format!("there is no flow {id}"))
    }

    /// Creates a problem: the request is invalid or not allowed.
    pub(crate) fn unprocessable(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error)
    }

    /// Creates a problem: the current state does not allow the request.
    pub(crate) fn conflict(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, error)
    }

    /// Creates a problem: the name of a flow was used before.
    pub(crate) fn used(id: &FlowId) -> Problem {
        let why = format!("the name {id} was used before: give each flow its own name");
        Problem::conflict(why)
    }

    /// Creates a problem: something failed on this host.
    pub(crate) fn internal(error: impl Error + 'static) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, explain(&error))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Json(ProblemBody { error: self.error });
        (self.status, body).into_response()
    }
}
