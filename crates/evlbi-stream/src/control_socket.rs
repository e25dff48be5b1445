//! Watches and changes a run from outside, as the control application of VLBI_UDP did with its programs.
//!
//! Clients send one [`Request`] per line of JSON and receive one [`Answer`] per request. The run publishes its status once a second
//! ([`ControlSocket::tell`]) and at each request ([`ControlSocket::on_status`]). Separate threads answer from that status; the data plane
//! never waits for them.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::receive;
use evlbi_net::run::Run;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use thiserror::Error;
use utoipa::ToSchema;

use crate::counters::{self, Counter, Counts, Received};
use crate::safe::SafeNotice;

/// Maximum length of a request, in bytes.
const MAX: u64 = 1 << 16;
/// Maximum number of connections; further ones are closed.
const MAX_CONNECTIONS: usize = 16;
/// Reply to a change of a run that accepts none.
const FIXED: &str = "this run accepts no changes";

/// Reasons why a control socket cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another run listens on the socket.
    #[error("another run listens on {}", .0.display())]
    InUse(PathBuf),
    /// The socket cannot be created.
    #[error("cannot listen on {}", path.display())]
    Bind {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The stale socket of a killed run cannot be removed, permissions cannot be set, or no thread can be started.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A request to a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Returns the status.
    Status,
    /// Changes the run.
    Change(Change),
    /// Stops the run after everything is written.
    Stop,
}

/// Settings to change; a field that is left out keeps its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Bit rate of the data, e.g. `512M`; only for a sender that was started with a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// Policy of a sender for shedding data, e.g. `every:100` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shed: Option<String>,
    /// Whether a sender under SafeUDP that has stopped tries again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rearm: bool,
}

/// An answer to a [`Request`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Status of the run.
    Status(Box<Status>),
    /// The request was carried out.
    Done,
    /// The request was refused, with the reason.
    Refused(String),
}

/// Status of a run. docs/src/counters.md defines the counters, which count from the start of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// Time of the status, in seconds since 1970.
    pub time: f64,
    /// Progress from 0 to 1, if the run has an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<f64>,
    /// Progress as one line of text.
    pub line: String,
    /// Addresses on which the run listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listening: Vec<String>,
    /// Status of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sending: Option<Sending>,
    /// Status of each received stream; several if the run correlates them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receiving: Vec<Receiving>,
    /// Last integration of each baseline, if the run correlates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<Baseline>,
}

/// Status of a sender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sending {
    /// Requested bit rate of the data; `None` for the maximum.
    pub rate_asked_bps: Option<u64>,
    /// Policy for shedding data.
    pub shed_policy: String,
    /// Congestion control, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safe: Option<SafeSent>,
    /// Counters of the sender ([`counters::SENT`]).
    #[serde(flatten)]
    #[schema(schema_with = counters::sent_schema)]
    pub counts: Counts,
}

/// SafeUDP of a sender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SafeSent {
    /// Protection of the path: `shared`, `reserved` or `strict`.
    pub mode: String,
    /// State (docs/src/safeudp.md, section 7).
    pub state: String,
    /// The latest notices, at most twenty.
    #[serde(default)]
    pub notices: Vec<SafeNotice>,
    /// Its values ([`counters::SAFE_SENT`]).
    #[serde(flatten)]
    #[schema(schema_with = counters::safe_sent_schema)]
    pub counts: Counts,
}

/// SafeUDP of a received stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SafeReceived {
    /// State of the sender; `None` before it was heard.
    pub state: Option<String>,
    /// Its values ([`counters::SAFE_RECEIVED`]).
    #[serde(flatten)]
    #[schema(schema_with = counters::safe_received_schema)]
    pub counts: Counts,
}

/// Status of a received stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Receiving {
    /// Station of the stream, if the run correlates several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub station: Option<String>,
    /// Whether data arrived in the last second.
    pub is_streaming: bool,
    /// SafeUDP, if reports are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safe: Option<SafeReceived>,
    /// Counters of the stream ([`counters::RECEIVED`]).
    #[serde(flatten)]
    #[schema(schema_with = counters::received_schema)]
    pub counts: Counts,
    /// Lag of its newest data behind the newest of all streams, in seconds; only for streams that are correlated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_s: Option<f64>,
}

impl Status {
    /// Returns the value of a counter, summed over the sender and all streams; `None` if none has it.
    pub fn total(&self, counter: &Counter) -> Option<Number> {
        let sent = self.sending.iter().flat_map(|sending| {
            let safe = sending.safe.iter().map(|safe| &safe.counts);
            [&sending.counts].into_iter().chain(safe)
        });
        let received = self.receiving.iter().flat_map(|stream| {
            let safe = stream.safe.iter().map(|safe| &safe.counts);
            [&stream.counts].into_iter().chain(safe)
        });
        let values = sent.chain(received).filter_map(|it| it.get(counter.name));
        values.cloned().reduce(|a, b| counter.join(&a, &b))
    }
}

impl SafeSent {
    /// Formats the state and the fraction that is sent.
    pub fn text(&self) -> String {
        format!("{} {:.0} %", self.state, self.counts.real("kept") * 100.0)
    }
}

impl Receiving {
    /// Creates the status of a stream from a receiver's snapshot and the bit rate of the last second.
    pub fn of(live: receive::Snapshot, rate_bps: f64) -> Receiving {
        Receiving {
            is_streaming: live.streaming,
            safe: live.safe.map(|safe| SafeReceived {
                state: safe.state.map(|(state, _)| evlbi_plot::name(&state)),
                counts: Counts::of(counters::SAFE_RECEIVED, &safe),
            }),
            counts: Counts::of(counters::RECEIVED, &Received { live, rate_bps }),
            ..Receiving::default()
        }
    }
}

/// One integration of a baseline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Baseline {
    /// Names of its stations.
    pub stations: [String; 2],
    /// UTC of its start.
    pub start: String,
    /// Correlation coefficient at the fringe, from the samples that both stations have.
    pub amplitude: f64,
    /// Signal-to-noise ratio of the fringe.
    pub snr: f64,
    /// Fraction of the time for which both stations have data.
    pub weight: f64,
    /// Fraction of the signal-to-noise ratio lost with the missing samples: 1 - sqrt(weight).
    pub snr_loss: f64,
    /// Delay of the second station relative to the first, in seconds.
    pub delay_s: f64,
    /// Standard error of the delay, in seconds.
    pub delay_error_s: f64,
    /// Fringe rate in Hz.
    pub rate_hz: f64,
    /// Phase in radians.
    pub phase_rad: f64,
    /// Probability that noise alone has a peak this high.
    pub false_alarm: f64,
    /// Fraction of each station's packets lost since the previous integration, of those that were sent.
    pub lost: [f64; 2],
    /// Fraction of each station's packets that it shed since the previous integration (SafeUDP).
    #[serde(default)]
    pub shed: [f64; 2],
    /// Amplitude against delay.
    pub profile: Profile,
}

/// Amplitude against delay at the fringe rate, in equal steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Profile {
    /// First delay, in seconds.
    pub from_s: f64,
    /// Step between delays, in seconds.
    pub step_s: f64,
    /// Correlation coefficients.
    pub amplitudes: Vec<f32>,
}

/// A run that can be watched and changed.
pub trait Watched: Send + Sync {
    /// Updates the counters to the current time.
    fn refresh(&self) {}

    /// Writes the current status into `status`.
    fn tell(&self, status: &mut Status);

    /// Applies a change, or returns the reason why not.
    fn change(&self, _change: &Change) -> Result<(), String> {
        Err(FIXED.to_owned())
    }

    /// Returns how much is done, and the total if known, in units of the run's own.
    fn progress(&self) -> (u64, Option<u64>);

    /// Returns the progress as one line of text.
    fn line(&self) -> String;
}

/// Meter of a bit rate, averaged over at least a second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    since: Nanos,
    bytes: u64,
    bps: f64,
}

impl Rate {
    /// Creates a meter that starts now at zero.
    pub fn from(now: Nanos) -> Rate {
        Rate {
            since: now,
            bytes: 0,
            bps: 0.0,
        }
    }

    /// Returns the current rate; `bytes` were transferred since the start.
    pub fn of(&mut self, bytes: u64, now: Nanos) -> f64 {
        let elapsed = now.since(self.since);
        if elapsed >= Nanos::SECOND {
            self.bps = bytes.saturating_sub(self.bytes) as f64 * 8.0 / elapsed.as_secs_f64();
            (self.since, self.bytes) = (now, bytes);
        }
        self.bps
    }

    /// Returns the last measured rate.
    pub fn last(&self) -> f64 {
        self.bps
    }
}

/// Handler of changes; returns the reason if it refuses one.
type Changer = Box<dyn FnMut(&Change) -> Result<(), String> + Send>;

/// Handler that publishes the current status with [`ControlSocket::tell`].
type Teller = Box<dyn Fn(&ControlSocket) + Send>;

/// Status of a run and its handlers of requests.
pub struct ControlSocket {
    run: Run,
    status: Mutex<Status>,
    teller: Mutex<Option<Teller>>,
    changer: Mutex<Option<Changer>>,
}

impl ControlSocket {
    /// Creates the control socket of `run`; a stop request ends the run.
    pub fn new(run: Run) -> ControlSocket {
        ControlSocket {
            run,
            status: Mutex::default(),
            teller: Mutex::default(),
            changer: Mutex::default(),
        }
    }

    /// Listens on a socket at `path` that only this user can access.
    ///
    /// # Errors
    /// Returns an error if another run listens there, or the socket cannot be created.
    pub fn listen(self: &Arc<ControlSocket>, path: &Path) -> Result<(), ListenError> {
        match UnixStream::connect(path) {
            Ok(_) => return Err(ListenError::InUse(path.to_owned())),
            // A killed run left it.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && is_socket(path) => {
                std::fs::remove_file(path)?;
            }
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(|source| ListenError::Bind {
            path: path.to_owned(),
            source,
        })?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        self.tell(|_| {});
        let control_socket = Arc::clone(self);
        let accept = move || control_socket.accept(&listener);
        self.run.clock().spawn("control", accept)?;
        Ok(())
    }

    /// Saves the final status next to the socket; a client that polls once a second would miss it.
    pub fn leave(&self, path: &Path) {
        let status = self.status.lock().clone();
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(&status)?;
            let place = last_words(path);
            // Remove the final status of an earlier run.
            let _ = std::fs::remove_file(&place);
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            options.open(place)?.write_all(&text)?;
            std::fs::remove_file(path)
        };
        if let Err(error) = write() {
            tracing::warn!("cannot save the last status: {error}");
        }
    }

    /// Publishes the status of the run.
    pub fn tell(&self, note: impl FnOnce(&mut Status)) {
        let mut status = self.status.lock();
        note(&mut status);
        status.time = self.run.clock().utc() as f64 * 1e-9;
    }

    /// Sets the handler that publishes the status at each request.
    pub fn on_status(&self, teller: impl Fn(&ControlSocket) + Send + 'static) {
        *self.teller.lock() = Some(Box::new(teller));
    }

    /// Sets the handler of changes.
    pub fn on_change(&self, changer: impl FnMut(&Change) -> Result<(), String> + Send + 'static) {
        *self.changer.lock() = Some(Box::new(changer));
    }

    fn accept(self: Arc<ControlSocket>, listener: &UnixListener) {
        // Each connection holds a clone, so the reference count limits their number.
        let places = Arc::new(());
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors: wait until a connection ends.
                self.run.clock().sleep(Duration::from_millis(100));
                continue;
            };
            if Arc::strong_count(&places) > MAX_CONNECTIONS {
                continue;
            }
            let (control_socket, place) = (Arc::clone(&self), Arc::clone(&places));
            // Without a thread the connection is closed.
            let _ = self.run.clock().spawn("control", move || {
                // A client that disconnects does not concern the run.
                let _ = control_socket.serve(&stream);
                drop(place);
            });
        }
    }

    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if reader.by_ref().take(MAX).read_line(&mut line)? == 0 {
                return Ok(());
            }
            let answer = match serde_json::from_str(&line) {
                Ok(request) => self.answer(request),
                Err(error) => Answer::Refused(format!("unknown request: {error}")),
            };
            let text = format!("{}\n", serde_json::to_string(&answer)?);
            let mut stream = stream;
            stream.write_all(text.as_bytes())?;
        }
    }

    fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Status => {
                if let Some(teller) = &*self.teller.lock() {
                    teller(self);
                }
                Answer::Status(Box::new(self.status.lock().clone()))
            }
            Request::Stop => {
                self.run.stop();
                Answer::Done
            }
            Request::Change(change) => {
                let mut changer = self.changer.lock();
                let changed = match changer.as_mut() {
                    Some(changer) => changer(&change),
                    None => Err(FIXED.to_owned()),
                };
                changed.map_or_else(Answer::Refused, |()| Answer::Done)
            }
        }
    }
}

fn is_socket(path: &Path) -> bool {
    let file = path.symlink_metadata();
    file.is_ok_and(|file| file.file_type().is_socket())
}

/// Returns where a run with a socket saves its final status.
pub fn last_words(socket: &Path) -> PathBuf {
    socket.with_added_extension("last")
}
