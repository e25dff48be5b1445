//! A run that is watched and changed from outside while it lasts: VLBI_UDP's applications without
//! user input, which one control application drives.
//!
//! Whoever connects to the socket sends a line of JSON, a [`Request`], and gets a line back, an [`Answer`], as often as
//! wanted. A run writes down once a second how it is ([`ControlSocket::tell`]), and again whenever it is asked ([`ControlSocket::on_status`]); threads of
//! their own answer from that. The data plane waits for none of them.

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

/// Longest request, in bytes.
const MAX: u64 = 1 << 16;
/// Connections at once; more are closed.
const MAX_CONNECTIONS: usize = 16;
/// What is said to a change of a run of which nothing can be changed.
const FIXED: &str = "nothing of this run can be changed while it lasts";

/// Why a run cannot be watched and changed from outside.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another run has the socket.
    #[error("{}: another run listens there", .0.display())]
    InUse(PathBuf),
    /// The socket cannot be made.
    #[error("{}: cannot listen there", path.display())]
    Bind {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The socket that a killed run left cannot be removed, or this one not be kept from others, or there is no thread for it.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What is asked of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// How it is.
    Status,
    /// To go on otherwise.
    Change(Change),
    /// To end, with everything written.
    Stop,
}

/// What of a run is to be otherwise: a field that is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Bit rate of the data, as `512M`; of a sender that was given a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// What a sender leaves out on purpose, as `every:100` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shed: Option<String>,
}

/// What a run answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// How it is.
    Status(Box<Status>),
    /// It is done.
    Done,
    /// It cannot be done: why.
    Refused(String),
}

/// How a run is. Counters are those of `docs/src/counters.md`, from its start on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// When this was so, in seconds since 1970.
    pub time: f64,
    /// How far it is, from 0 to 1, where it has an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<f64>,
    /// The same in a line for people.
    pub line: String,
    /// Where it listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listening: Vec<String>,
    /// What it sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sending: Option<Sending>,
    /// What it receives; several streams where it correlates them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receiving: Vec<Receiving>,
    /// The last integration of each baseline that it correlates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<Baseline>,
}

/// What a sender does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sending {
    /// Bits of data a second that are asked for; none for as much as goes.
    pub rate_asked_bps: Option<u64>,
    /// Policy of selective dropping.
    pub shed_policy: String,
    /// What it has counted ([`counters::SENT`]).
    #[serde(flatten)]
    #[schema(schema_with = counters::sent_schema)]
    pub counts: Counts,
}

/// What is received of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Receiving {
    /// The station whose stream it is, where a correlator has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub station: Option<String>,
    /// Whether something came in the last second.
    pub is_streaming: bool,
    /// What was counted of it ([`counters::RECEIVED`]).
    #[serde(flatten)]
    #[schema(schema_with = counters::received_schema)]
    pub counts: Counts,
    /// How far its newest data lie behind the newest of all streams, in seconds; of streams that are correlated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_s: Option<f64>,
}

impl Status {
    /// Returns the value of a counter of the sender and of all streams together, if any has it.
    pub fn total(&self, counter: &Counter) -> Option<Number> {
        let sent = self.sending.iter().map(|sending| &sending.counts);
        let received = self.receiving.iter().map(|stream| &stream.counts);
        let values = sent.chain(received).filter_map(|it| it.get(counter.name));
        values.cloned().reduce(|a, b| counter.join(&a, &b))
    }
}

impl Receiving {
    /// Takes over what a receiver shows, and the bits of data that came in the last second.
    pub fn of(live: receive::Snapshot, rate_bps: f64) -> Receiving {
        Receiving {
            is_streaming: live.streaming,
            counts: Counts::of(counters::RECEIVED, &Received { live, rate_bps }),
            ..Receiving::default()
        }
    }
}

/// An integration of a baseline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Baseline {
    /// Its stations.
    pub stations: [String; 2],
    /// UTC of the integration's beginning.
    pub start: String,
    /// Correlation coefficient at the fringe, by the samples that both stations have.
    pub amplitude: f64,
    /// Amplitude over the noise.
    pub snr: f64,
    /// Share of the time at which both stations have data.
    pub weight: f64,
    /// Share of the signal-to-noise ratio that the missing samples cost: 1 - sqrt(weight).
    pub snr_loss: f64,
    /// Delay of the second station behind the first, in seconds.
    pub delay_s: f64,
    /// Its standard error.
    pub delay_error_s: f64,
    /// Fringe rate in Hz.
    pub rate_hz: f64,
    /// Phase in radians.
    pub phase_rad: f64,
    /// Probability that noise alone has such a peak.
    pub false_alarm: f64,
    /// Share of the packets of each station that did not come since the integration before.
    pub lost: [f64; 2],
    /// Amplitude against delay.
    pub profile: Profile,
}

/// Amplitude against delay at the fringe's rate, in even steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Profile {
    /// First delay in seconds.
    pub from_s: f64,
    /// From one to the next.
    pub step_s: f64,
    /// Correlation coefficients.
    pub amplitudes: Vec<f32>,
}

/// Work that is watched while it lasts.
pub trait Watched: Send + Sync {
    /// Has the counts be those of this moment.
    fn refresh(&self) {}

    /// Writes down how it is.
    fn tell(&self, status: &mut Status);

    /// Takes a change up, or says why not.
    fn change(&self, _change: &Change) -> Result<(), String> {
        Err(FIXED.to_owned())
    }

    /// Says how far it is, and how far it goes where that is known, in units of its own.
    fn progress(&self) -> (u64, Option<u64>);

    /// Says how it is, in a line for people.
    fn line(&self) -> String;
}

/// Bits of data a second, measured over a second at least.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    since: Nanos,
    bytes: u64,
    bps: f64,
}

impl Rate {
    /// Begins to measure now, with nothing.
    pub fn from(now: Nanos) -> Rate {
        Rate {
            since: now,
            bytes: 0,
            bps: 0.0,
        }
    }

    /// Returns the rate now that so many bytes have come or left since the beginning.
    pub fn of(&mut self, bytes: u64, now: Nanos) -> f64 {
        let elapsed = now.since(self.since);
        if elapsed >= Nanos::SECOND {
            self.bps = bytes.saturating_sub(self.bytes) as f64 * 8.0 / elapsed.as_secs_f64();
            (self.since, self.bytes) = (now, bytes);
        }
        self.bps
    }

    /// Returns the rate that was measured last.
    pub fn last(&self) -> f64 {
        self.bps
    }
}

/// What a run can do about a change: takes it up, or says why not.
type Changer = Box<dyn FnMut(&Change) -> Result<(), String> + Send>;

/// What writes down, with [`ControlSocket::tell`], how a run is at this moment.
type Teller = Box<dyn Fn(&ControlSocket) + Send>;

/// What of a run is seen and changed from outside.
pub struct ControlSocket {
    run: Run,
    status: Mutex<Status>,
    teller: Mutex<Option<Teller>>,
    changer: Mutex<Option<Changer>>,
}

impl ControlSocket {
    /// Makes one of `run`, which a request to stop ends.
    pub fn new(run: Run) -> ControlSocket {
        ControlSocket {
            run,
            status: Mutex::default(),
            teller: Mutex::default(),
            changer: Mutex::default(),
        }
    }

    /// Listens on a socket at `path`, which only this user may use.
    ///
    /// # Errors
    /// When there is a run that listens there, or the socket cannot be made.
    pub fn listen(self: &Arc<ControlSocket>, path: &Path) -> Result<(), ListenError> {
        match UnixStream::connect(path) {
            Ok(_) => return Err(ListenError::InUse(path.to_owned())),
            // Left behind by a run that was killed.
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

    /// Leaves behind how the run was at its end, beside its socket: whoever asks once a second would miss it.
    pub fn leave(&self, path: &Path) {
        let status = self.status.lock().clone();
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(&status)?;
            let place = last_words(path);
            // What an earlier run left there.
            let _ = std::fs::remove_file(&place);
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            options.open(place)?.write_all(&text)?;
            std::fs::remove_file(path)
        };
        if let Err(error) = write() {
            tracing::warn!("the last status cannot be left behind: {error}");
        }
    }

    /// Writes down how the run is.
    pub fn tell(&self, note: impl FnOnce(&mut Status)) {
        let mut status = self.status.lock();
        note(&mut status);
        status.time = self.run.clock().utc() as f64 * 1e-9;
    }

    /// Has `teller` write down how the run is whenever somebody asks from now on.
    pub fn on_status(&self, teller: impl Fn(&ControlSocket) + Send + 'static) {
        *self.teller.lock() = Some(Box::new(teller));
    }

    /// Has `changer` take up changes from now on.
    pub fn on_change(&self, changer: impl FnMut(&Change) -> Result<(), String> + Send + 'static) {
        *self.changer.lock() = Some(Box::new(changer));
    }

    fn accept(self: Arc<ControlSocket>, listener: &UnixListener) {
        // Each connection has a clone, which limits their number.
        let places = Arc::new(());
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors: some connection will end.
                self.run.clock().sleep(Duration::from_millis(100));
                continue;
            };
            if Arc::strong_count(&places) > MAX_CONNECTIONS {
                continue;
            }
            let (control_socket, place) = (Arc::clone(&self), Arc::clone(&places));
            // One for which there is no thread is closed.
            let _ = self.run.clock().spawn("control", move || {
                // Whoever went away is no matter of the run's.
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
                Err(error) => Answer::Refused(format!("no request that is known: {error}")),
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

/// Says where a run with a socket leaves how it was at its end.
pub fn last_words(socket: &Path) -> PathBuf {
    socket.with_added_extension("last")
}
