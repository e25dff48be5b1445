//! Session files: hosts with their agents, flows and scans.

use std::collections::BTreeSet;
use std::env::VarError;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use evlbi_core::rate::BitRate;
use evlbi_wire::units::{self, setting};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use thiserror::Error;

use super::trust::Trusted;
use crate::client::{Client, ClientError};
use crate::commands::{Command, Known, Language};
use crate::flow::{FlowId, NewFlow, Options};
use crate::identity::{Fingerprint, Identity, IdentityError, read_token};

/// Error: a session is invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("{}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: Box<SessionError>,
    },
    /// The text is not valid TOML, or has keys or values that a session cannot have.
    #[error("{0}")]
    Text(#[from] toml::de::Error),
    /// The parts of the session contradict each other.
    #[error("{0}")]
    Invalid(String),
    /// A flow of the session is invalid.
    #[error("flow {name}: {why}")]
    Flow {
        /// Name of the flow in the session.
        name: FlowId,
        /// Reason.
        why: String,
    },
}

/// Error: the agent of a host cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The certificate or the token of the agent cannot be read.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// The client cannot be created.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The session gives another fingerprint than that of the agent whose state directory it names.
    #[error("the `fingerprint` is not that of the agent of its `folder`: that is {0}")]
    OtherAgent(Fingerprint),
    /// The session gives neither a fingerprint nor a state directory.
    #[error(
        "no fingerprint: give the `fingerprint` that the agent prints when it starts, or the agent's `folder` on this host"
    )]
    NoFingerprint,
    /// The user has not confirmed the agent's fingerprint, so it gets no token.
    #[error(
        "no token was sent to its agent, because the fingerprint {fingerprint} is not confirmed: compare it with the one that the agent prints when it starts"
    )]
    Unconfirmed {
        /// Name of the host.
        host: String,
        /// Fingerprint that the user must confirm.
        fingerprint: Fingerprint,
    },
    /// There is no token for the agent.
    #[error("no token: give a `token-file` with the agent's token, or set EVLBI_TOKEN")]
    NoToken(#[source] VarError),
    /// The agent with this state directory has never started, so its address is unknown.
    #[error("no agent was ever started in {}", folder.display())]
    NotBegun {
        /// State directory of the agent.
        folder: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The session gives no address of the agent.
    #[error("no address of the agent: give `agent`, e.g. https://jive:3650")]
    NoAddress,
    /// The address of the agent is not an HTTPS URL.
    #[error("invalid agent `{0}`: give https://HOST:PORT, e.g. https://jive:3650")]
    BadAddress(String),
}

/// Session: hosts, scans and flows.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Session {
    pub(crate) name: FlowId,
    /// Version of the file; 1 if it gives none.
    pub(super) version: Option<u32>,
    /// Key of the reports of its flows, as an option has it.
    #[serde(skip)]
    pub(super) key: Option<String>,
    /// Time by which receivers start before a scan and end after it.
    #[serde(default = "around", deserialize_with = "setting::time")]
    pub(crate) around: Duration,
    /// Maximum offset of the hosts' clocks from that of this host.
    #[serde(default = "clocks", deserialize_with = "setting::time")]
    pub(crate) clocks: Duration,
    #[serde(rename = "host")]
    pub(crate) hosts: Vec<Host>,
    #[serde(default, rename = "scan")]
    pub(crate) scans: Vec<Scan>,
    #[serde(default, rename = "flow")]
    pub(crate) flows: Vec<FlowPlan>,
}

/// Host with an agent.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Host {
    pub name: String,
    /// `https://HOST:PORT`. Default: the address that the agent stored in `folder`.
    #[serde(default)]
    pub agent: String,
    /// State directory of an agent on this host, which contains its certificate and its tokens.
    pub folder: Option<PathBuf>,
    #[serde(default, deserialize_with = "setting::some")]
    pub fingerprint: Option<Fingerprint>,
    /// File with the agent's token for the role operate.
    pub token_file: Option<PathBuf>,
    /// Addresses of the host for data. Default: the address of its agent.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Capacity of its link.
    #[serde(default, deserialize_with = "setting::some")]
    pub link: Option<BitRate>,
}

/// Interval in which flows run.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scan {
    pub name: FlowId,
    /// UTC, e.g. `2026-11-22T12:00:00Z`, or relative to the begin of the session, e.g. `+30s`.
    #[serde(default = "at_once", deserialize_with = "start")]
    pub start: Start,
    #[serde(deserialize_with = "setting::time")]
    pub duration: Duration,
}

/// Start of a scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// Absolute time, in seconds since 1970.
    At(f64),
    After(Duration),
}

/// Flow of a session, which runs in each of its scans.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FlowPlan {
    pub name: FlowId,
    pub host: String,
    pub command: String,
    /// Scans in which it runs; empty: all scans.
    #[serde(default)]
    pub scans: Vec<FlowId>,
    /// Holder of the reservation of its path, if there is one.
    pub reserved_by: Option<String>,
    /// Until when its path is reserved.
    #[serde(default, deserialize_with = "setting::some")]
    pub reserved_until: Option<jiff::Timestamp>,
    #[serde(flatten)]
    pub options: Options,
}

impl FlowPlan {
    /// Returns its properties.
    pub fn known(&self) -> Known<'_> {
        Known::of(&self.command, &self.options)
    }

    /// Returns whether it runs in the scan of this name.
    pub fn runs_in(&self, scan: &str) -> bool {
        self.scans.is_empty() || self.scans.iter().any(|name| name.as_str() == scan)
    }
}

impl Scan {
    /// Returns its start in a session that begins at `begin`, both in seconds since 1970.
    pub fn starts(&self, begin: f64, around: Duration) -> f64 {
        match self.start {
            Start::At(time) => time,
            Start::After(delay) => begin + around.as_secs_f64() + delay.as_secs_f64(),
        }
    }
}

impl Session {
    /// Reads a session file.
    ///
    /// # Errors
    /// Returns [`SessionError`] if the file cannot be read or is invalid.
    pub fn read(path: &Path, language: Language) -> Result<Session, SessionError> {
        let text = fs::read_to_string(path).map_err(|source| SessionError::Read {
            path: path.to_owned(),
            source,
        })?;
        let session = Session::parse(&text, language);
        let mut session = session.map_err(|source| SessionError::File {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for host in &mut session.hosts {
            for path in host.folder.iter_mut().chain(&mut host.token_file) {
                *path = folder.join(&path);
            }
        }
        Ok(session)
    }

    /// Parses the text of a session file.
    ///
    /// # Errors
    /// Returns [`SessionError`] if the text is invalid.
    pub fn parse(text: &str, language: Language) -> Result<Session, SessionError> {
        let session: Session = toml::from_str(text)?;
        session.check(language)?;
        Ok(session)
    }

    /// Creates a session with one host: that of the agent on this host with this state directory.
    pub(crate) fn of_agent(folder: &Path, language: Language) -> Result<Session, SessionError> {
        let text = "name = \"console\"\n[[host]]\nname = \"here\"\nfolder = \"\"";
        let mut session = Session::parse(text, language)?;
        session.hosts[0].folder = Some(folder.to_owned());
        Ok(session)
    }

    /// Checks what can be checked without the agents.
    fn check(&self, language: Language) -> Result<(), SessionError> {
        if self.hosts.is_empty() {
            let why = "no host: give at least one [[host]]";
            return Err(SessionError::Invalid(why.to_owned()));
        }
        unique("host", self.hosts.iter().map(|host| host.name.as_str()))?;
        unique("scan", self.scans.iter().map(|scan| scan.name.as_str()))?;
        unique("flow", self.flows.iter().map(|flow| flow.name.as_str()))?;
        for flow in &self.flows {
            let checked = self.check_flow(flow, language);
            checked.map_err(|why| SessionError::Flow {
                name: flow.name.clone(),
                why,
            })?;
        }
        self.check_paths()
    }

    fn check_flow(&self, flow: &FlowPlan, language: Language) -> Result<(), String> {
        if !self.hosts.iter().any(|host| host.name == flow.host) {
            return Err(format!("there is no host {}", flow.host));
        }
        for scan in &flow.scans {
            if !self.scans.iter().any(|known| known.name == *scan) {
                return Err(format!("there is no scan {scan}"));
            }
        }
        Command::named(&flow.command)?.check_names(&flow.options, language)
    }

    /// Returns the flows of a scan with their plans. `None` stands for the endless scan of a session without scans.
    pub(crate) fn flows_of(
        &self,
        run: &str,
        scan: Option<&Scan>,
    ) -> Result<Vec<(&FlowPlan, NewFlow)>, SessionError> {
        let started = |flow| Ok((flow, self.flow(run, scan, flow)?));
        self.plans_of(scan).map(started).collect()
    }

    /// Returns the plans of the flows of a scan.
    pub(crate) fn plans_of(&self, scan: Option<&Scan>) -> impl Iterator<Item = &FlowPlan> {
        let runs = move |flow: &&FlowPlan| scan.is_none_or(|scan| flow.runs_in(scan.name.as_str()));
        self.flows.iter().filter(runs)
    }

    /// Returns the scans, or `None` once for the endless scan of a session without scans.
    pub(crate) fn parts(&self) -> Vec<Option<&Scan>> {
        match self.scans.is_empty() {
            true => vec![None],
            false => self.scans.iter().map(Some).collect(),
        }
    }

    fn flow(
        &self,
        run: &str,
        scan: Option<&Scan>,
        flow: &FlowPlan,
    ) -> Result<NewFlow, SessionError> {
        let id = match scan {
            Some(scan) if self.scans.len() > 1 => format!("{run}.{}.{}", scan.name, flow.name),
            _ => format!("{run}.{}", flow.name),
        };
        let fill = |text: &str| {
            let scan = scan.map_or("", |scan| scan.name.as_str());
            text.replace("{session}", run).replace("{scan}", scan)
        };
        let options = flow.options.iter();
        let options = options.map(|(name, value)| (name.clone(), filled(value, &fill)));
        let mut options: Options = options.collect();
        self.add_reports(scan, flow, &mut options);
        // Flows must end even if the controller is killed.
        if let Some(scan) = scan
            && !options.contains_key("duration")
            && Command::named(&flow.command).is_ok_and(|command| command.lasts.is_so(&options))
        {
            let more = match Known::of(&flow.command, &options).listens() {
                true => 2 * self.around,
                false => Duration::ZERO,
            };
            let seconds = (scan.duration + more).as_secs_f64();
            options.insert("duration".to_owned(), Value::from(format!("{seconds}s")));
        }
        Ok(NewFlow {
            id: id.parse().map_err(SessionError::Invalid)?,
            host: Some(flow.host.clone()),
            command: flow.command.clone(),
            options,
        })
    }
}

fn filled(value: &Value, fill: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::from(fill(text)),
        Value::Array(list) => list.iter().map(|value| filled(value, fill)).collect(),
        other => other.clone(),
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), SessionError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(SessionError::Invalid(format!(
                "duplicate [[{what}]] {name}: give each its own name"
            )));
        }
    }
    Ok(())
}

impl Host {
    /// Creates a client of the host's agent.
    ///
    /// # Errors
    /// Returns [`AccessError`] if the agent is not trusted, or its address or token is missing.
    pub fn client(&self, trusted: &Trusted) -> Result<Client, AccessError> {
        let (fingerprint, token) = self.secret(trusted)?;
        Ok(Client::new(&self.url()?, fingerprint, &token)?)
    }

    /// Returns the fingerprint of the agent's certificate, and its token. A session file may come from anybody, so a token is sent only to
    /// an agent that the user has confirmed, or whose state directory contains the token.
    fn secret(&self, trusted: &Trusted) -> Result<(Fingerprint, String), AccessError> {
        let own = self.folder.as_deref().map(Identity::read).transpose()?;
        if let (Some((own, _)), Some(given)) = (&own, self.fingerprint)
            && *own != given
        {
            return Err(AccessError::OtherAgent(*own));
        }
        let fingerprint = own.as_ref().map(|(own, _)| *own).or(self.fingerprint);
        let fingerprint = fingerprint.ok_or(AccessError::NoFingerprint)?;
        match (&self.token_file, own) {
            (None, Some((_, token))) => return Ok((fingerprint, token)),
            _ if trusted.knows(&fingerprint) => {}
            _ => {
                return Err(AccessError::Unconfirmed {
                    host: self.name.clone(),
                    fingerprint,
                });
            }
        }
        let token = match &self.token_file {
            Some(path) => read_token(path)?,
            None => std::env::var("EVLBI_TOKEN").map_err(AccessError::NoToken)?,
        };
        Ok((fingerprint, token.trim().to_owned()))
    }

    fn url(&self) -> Result<String, AccessError> {
        match (&self.folder, self.agent.as_str()) {
            (Some(folder), "") => {
                let missing = |source| AccessError::NotBegun {
                    folder: folder.clone(),
                    source,
                };
                let text = fs::read_to_string(folder.join("address")).map_err(missing)?;
                Ok(text.trim().to_owned())
            }
            (None, "") => Err(AccessError::NoAddress),
            (_, agent) if agent.starts_with("https://") => Ok(agent.to_owned()),
            (_, agent) => Err(AccessError::BadAddress(agent.to_owned())),
        }
    }

    /// Returns whether data sent to `host` arrives at this host.
    pub fn has_address(&self, host: &str) -> bool {
        let agent = self.url().unwrap_or_default();
        let agent = agent.trim_start_matches("https://");
        let agent = agent.rsplit_once(':').map_or(agent, |(agent, _)| agent);
        match self.addresses.is_empty() {
            true => agent.trim_matches(['[', ']']) == host,
            false => self.addresses.iter().any(|address| address == host),
        }
    }
}

/// Returns when a flow is started for a scan that begins at `start`, and the flow with its own start. Receivers are started `around`
/// seconds before the scan, and so are senders that can wait for their start.
pub fn made_ready(mut flow: NewFlow, start: f64, around: f64, listens: bool) -> (f64, NewFlow) {
    if listens {
        return (start - around, flow);
    }
    if !Command::named(&flow.command).is_ok_and(|command| command.waits) {
        return (start, flow);
    }
    if let Ok(moment) = jiff::Timestamp::from_nanosecond((start * 1e9) as i128) {
        let start = flow.options.entry("start".to_owned());
        start.or_insert_with(|| moment.to_string().into());
    }
    (start - around, flow)
}

/// Reads the start of a scan.
fn start<'de, D: Deserializer<'de>>(from: D) -> Result<Start, D::Error> {
    setting::read(from, "a time such as \"+30s\"", parse_start)
}

fn parse_start(text: &str) -> Result<Start, String> {
    if let Some(after) = text.strip_prefix('+') {
        return Ok(Start::After(units::duration(after)?));
    }
    let at: jiff::Timestamp = text.parse().map_err(|_| {
        format!(
            "invalid start `{text}`: give a time, e.g. 2026-11-22T12:00:00Z, or +30s after the begin of the session"
        )
    })?;
    Ok(Start::At(at.as_nanosecond() as f64 * 1e-9))
}

fn at_once() -> Start {
    Start::After(Duration::ZERO)
}

fn around() -> Duration {
    Duration::from_secs(2)
}

fn clocks() -> Duration {
    Duration::from_millis(500)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str =
        "name = \"n\"\n[[host]]\nname = \"ef\"\nagent = \"https://10.77.0.1:3650\"\n";

    #[test]
    fn flows_of_a_scan_end_by_themselves() {
        let text = format!(
            "{HOST}[[scan]]\nname = \"s1\"\nduration = \"30s\"\n[[scan]]\nname = \"s2\"\nstart = \"+40s\"\nduration = \"10s\"
             [[flow]]\nname = \"rec\"\nhost = \"ef\"\ncommand = \"recv\"\nfrom = \"udp://:2630\"\nto = \"{{session}}/{{scan}}.vdif\"
             [[flow]]\nname = \"send\"\nhost = \"ef\"\ncommand = \"send\"\nscans = [\"s1\"]\nsource = \"a\"\nto = \"udp://x:1\"\nrate = 1000000"
        );
        let session: Session = toml::from_str(&text).unwrap();
        let first = session.flows_of("n-1", Some(&session.scans[0])).unwrap();
        let first: Vec<NewFlow> = first.into_iter().map(|(_, flow)| flow).collect();
        let names: Vec<&str> = first.iter().map(|flow| flow.id.as_str()).collect();
        assert_eq!(names, ["n-1.s1.rec", "n-1.s1.send"]);
        assert_eq!(first[0].options["to"], "n-1/s1.vdif");
        assert_eq!(
            (&first[0].options["duration"], &first[1].options["duration"]),
            (&"34s".into(), &"30s".into())
        );
        assert_eq!(first[1].options["rate"], 1_000_000);
        let second = session.flows_of("n-1", Some(&session.scans[1])).unwrap();
        assert_eq!(second.len(), 1);
    }

    #[test]
    fn a_start_is_a_time_or_a_delay() {
        let at = |text: &str| {
            toml::from_str::<Scan>(&format!(
                "name = \"s\"\nstart = \"{text}\"\nduration = \"1s\""
            ))
            .unwrap()
        };
        assert_eq!(at("+90s").start, Start::After(Duration::from_secs(90)));
        assert_eq!(at("1970-01-02T00:00:00Z").start, Start::At(86_400.0));
    }
}
