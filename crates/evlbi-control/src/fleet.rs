//! What is controlled: the flows of a host, or of all hosts of a session.

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
use utoipa::ToSchema;

use super::flow::{Flow, FlowId, NewFlow};
use super::history::Event;
use super::identity::Role;

/// An answer, or why there is none.
pub type Reply<T> = Result<T, Problem>;

/// An answer that comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = Reply<T>> + Send + 'a>>;

/// Flows that are started, changed and stopped.
pub trait Control: Send + Sync + 'static {
    /// Starts a flow.
    ///
    /// # Errors
    /// When the name was used before, or the flow is not to be allowed or cannot begin.
    fn start(&self, flow: NewFlow) -> Later<'_, Flow>;

    /// Changes a running flow, if it is still at that revision.
    ///
    /// # Errors
    /// When there is no such flow, it is at another revision or does not run, or refuses the change.
    fn change(&self, id: FlowId, revision: u64, change: Change) -> Later<'_, Flow>;

    /// Has a flow end with everything written; `kill`: at once, with what was written.
    ///
    /// # Errors
    /// When there is no such flow, or it does not answer.
    fn stop(&self, id: FlowId, kill: bool) -> Later<'_, Flow>;

    /// Forgets a flow that has ended. Its name stays used, and recordings stay.
    ///
    /// # Errors
    /// When there is no such flow, or it has not ended.
    fn forget(&self, id: FlowId) -> Later<'_, ()>;

    /// Checks whether flows could be started: the problems of each, and what it would send.
    ///
    /// # Errors
    /// When who is asked does not answer; what stands against flows is no error.
    fn check(&self, flows: Vec<NewFlow>) -> Later<'_, Vec<Checked>>;

    /// Gives what a flow printed as its result: JSON, which may be long.
    ///
    /// # Errors
    /// When there is no such flow, or no result yet.
    fn result(&self, id: FlowId) -> Later<'_, Body>;

    /// Gives the end of what a flow had to say beside its result, some 64 KiB at most.
    ///
    /// # Errors
    /// When there is no such flow.
    fn log(&self, id: FlowId) -> Later<'_, String>;
}

/// Flows that are known here, of a host or of a session.
pub(crate) trait Fleet: Control {
    /// What this is: the host, or the session.
    fn about(&self) -> About;

    /// All flows, in the order of their names.
    fn flows(&self) -> Vec<Flow>;

    /// What is to come of the session, where this is one with flows of its own.
    fn session(&self) -> Option<SessionPlan> {
        None
    }

    /// Begins a session that is held, or ends one: senders first.
    ///
    /// # Errors
    /// When there is none, or it is not held, or over.
    fn drive(&self, _drive: Drive) -> Reply<SessionPlan> {
        Err(Problem::missing(NO_SESSION))
    }
}

/// An agent on another host. It answers within a limited time, or is reported not to.
pub trait Remote: Control {
    /// Asks what it is, its clock, and what it lets the asker do.
    ///
    /// # Errors
    /// When it does not answer, or does not know the token.
    fn about(&self) -> Later<'_, AboutYou>;

    /// Asks for all flows, in the order of their names.
    ///
    /// # Errors
    /// When it does not answer.
    fn flows(&self) -> Later<'_, Vec<Flow>>;

    /// Asks for the events whose numbers are above `after`, the oldest first.
    ///
    /// # Errors
    /// When it does not answer.
    fn events(&self, after: i64) -> Later<'_, Vec<Event>>;
}

/// What answers.
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
    /// When it was started.
    pub started: f64,
    /// Where recordings are, of an agent, and the bytes that are free there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

/// What answers, and what it lets the asker do.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct AboutYou {
    /// What answers.
    #[serde(flatten)]
    pub about: About,
    /// What the token lets its bearer do.
    pub your_role: Role,
}

/// What is said where there is no session.
pub(crate) const NO_SESSION: &str =
    "there is no session here: this is an agent, or a controller without a plan of flows";

/// What is done to a session as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Drive {
    Begin,
    End,
}

/// A session: what is to come, and which hosts are out of reach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SessionPlan {
    /// Name of this run of it.
    pub run: String,
    pub state: SessionState,
    pub scans: Vec<ScanPlan>,
    /// Flows that were not started yet, or could not be.
    pub flows: Vec<FlowToCome>,
    /// Hosts whose agents do not answer now, and why.
    pub silent: BTreeMap<String, String>,
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SessionState {
    /// It waits for somebody to begin it.
    Held,
    Running,
    /// Its flows are told to end.
    Ending,
    Over,
}

/// A scan of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScanPlan {
    pub name: String,
    /// Seconds since 1970; none before a session that is held has begun.
    pub starts: Option<f64>,
    /// Where its start counts from the session's beginning: seconds after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_s: Option<f64>,
    pub lasts_s: f64,
}

/// A flow that is not there yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct FlowToCome {
    pub id: FlowId,
    pub host: String,
    pub command: String,
    /// Seconds since 1970, where that is known.
    pub starts: Option<f64>,
    /// Why it could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// What is found of a flow that is not started yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Checked {
    /// Name of the flow.
    pub id: FlowId,
    /// What stands against it, and what to do.
    pub problems: Vec<String>,
    /// Bits of data a second that it would send, where that is known beforehand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
}

/// Where recordings are written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Storage {
    /// The folder.
    pub folder: String,
    /// Bytes that are free.
    pub free_bytes: u64,
}

/// Why something that was asked for is not done.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct Problem {
    /// The status of HTTP that it is answered with.
    pub status: StatusCode,
    /// What is wrong, and what to do.
    pub error: String,
}

/// A [`Problem`] as it is answered.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProblemBody {
    /// What is wrong, and what to do.
    pub error: String,
}

impl Problem {
    /// Says that something is not done, with the status of HTTP that says how it is meant.
    pub fn new(status: StatusCode, error: impl Into<String>) -> Problem {
        Problem {
            status,
            error: error.into(),
        }
    }

    /// It is not there.
    pub(crate) fn missing(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, error)
    }

    /// There is no such flow.
    pub(crate) fn unknown(id: &FlowId) -> Problem {
        Problem::missing(format!("there is no flow {id}"))
    }

    /// It makes no sense, or is not allowed.
    pub(crate) fn unprocessable(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error)
    }

    /// It does not fit to how things are.
    pub(crate) fn conflict(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, error)
    }

    /// There was such a flow already.
    pub(crate) fn used(id: &FlowId) -> Problem {
        let why = format!("the name {id} was used before; a flow has a name of its own");
        Problem::conflict(why)
    }

    /// Something of this host's failed.
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
