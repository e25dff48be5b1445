//! The process of a flow, and the socket by which it is asked and told.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::guard::Allowed;
use crate::control::flow::Outcome;
use crate::steer::{Answer, Request, Status, last_words};

/// A flow answers within this time, unless it was stopped or its host is overrun.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer of a flow, in bytes.
const LONGEST_ANSWER: u64 = 16 << 20;
/// How much of what a flow had to say is looked at.
const LONGEST_LOG: u64 = 64 << 10;

/// The folder of a flow.
#[derive(Clone, Debug)]
pub struct Room(pub PathBuf);

impl Room {
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Starts the flow's process, which goes on when this one ends.
    ///
    /// # Errors
    /// When there is no room for its files, or no process can be had.
    pub fn start(&self, allowed: &Allowed) -> Result<Child> {
        let result = File::create(self.file("result.json")).context("the flow's result")?;
        let log = File::create(self.file("log")).context("the flow's log")?;
        Command::new("/proc/self/exe")
            .arg0("evlbi")
            // The name of a socket must be short.
            .args(["--control", "control"])
            .args(&allowed.words)
            .current_dir(&self.0)
            .env_remove("EVLBI_TOKEN")
            .envs(allowed.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(result)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(false)
            .spawn()
            .context("no process can be started")
    }

    /// Opens a connection to the flow.
    pub async fn connect(&self) -> std::io::Result<Line> {
        let stream = UnixStream::connect(self.file("control")).await?;
        Ok(Line(BufReader::new(stream)))
    }

    /// Asks the flow for something else than how it is.
    pub async fn ask(&self, request: &Request) -> Result<Answer> {
        let ask = async { self.connect().await?.ask(request).await };
        match tokio::time::timeout(PATIENCE, ask).await {
            Ok(answer) => answer.context("the flow cannot be reached"),
            Err(_) => bail!("the flow does not answer"),
        }
    }

    /// What the flow printed as its result; of several lines the last.
    pub fn result(&self) -> Option<Value> {
        let text = fs::read_to_string(self.file("result.json")).ok()?;
        let whole = serde_json::from_str(&text).ok();
        whole.or_else(|| serde_json::from_str(text.lines().last()?).ok())
    }

    /// How the flow was at its end, where it came to say so.
    pub fn last_words(&self) -> Option<Status> {
        let text = fs::read(last_words(&self.file("control"))).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The end of what the flow had to say.
    pub fn log(&self) -> std::io::Result<String> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = File::open(self.file("log"))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LONGEST_LOG)))?;
        let mut bytes = Vec::new();
        file.take(LONGEST_LOG).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The last complaint of the flow. Warnings are left out: they do not end a flow.
    fn complaint(&self) -> Option<String> {
        let log = self.log().ok()?;
        log.lines()
            .rev()
            .filter_map(|line| line.strip_prefix("evlbi: "))
            .find(|line| !line.starts_with("warning: "))
            .map(str::to_owned)
    }

    /// How the flow ended, by its exit status where that is known, and by what it left behind.
    pub fn outcome(&self, status: Option<ExitStatus>, was_told: bool) -> (Outcome, Option<String>) {
        let well = if was_told {
            Outcome::Stopped
        } else {
            Outcome::Finished
        };
        if let Some(signal) = status.and_then(|status| status.signal()) {
            return (Outcome::Killed, Some(format!("killed by signal {signal}")));
        }
        match status.map(|status| status.success()) {
            Some(true) => (well, None),
            Some(false) => (Outcome::Failed, self.complaint()),
            None if self
                .result()
                .is_some_and(|result| result["schema"] != "evlbi.live/1") =>
            {
                (well, None)
            }
            None if self.complaint().is_some() => (Outcome::Failed, self.complaint()),
            None => {
                let message =
                    "it ended without a result while nobody looked: killed, or its host went down";
                (Outcome::Killed, Some(message.to_owned()))
            }
        }
    }
}

/// A connection to a flow.
pub struct Line(BufReader<UnixStream>);

impl Line {
    /// The process at the other end.
    pub fn process(&self) -> Option<u32> {
        let peer = self.0.get_ref().peer_cred().ok()?;
        peer.pid().and_then(|pid| u32::try_from(pid).ok())
    }

    /// Asks, and waits for the answer.
    pub async fn ask(&mut self, request: &Request) -> std::io::Result<Answer> {
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        self.0.get_mut().write_all(text.as_bytes()).await?;
        let mut answer = String::new();
        (&mut self.0)
            .take(LONGEST_ANSWER)
            .read_line(&mut answer)
            .await?;
        if answer.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

/// Ends a process at once.
pub fn kill(process: u32) -> Result<()> {
    let process = Pid::from_raw(i32::try_from(process)?);
    signal::kill(process, Signal::SIGKILL).context("the flow's process cannot be killed")
}

/// The folder of all flows.
pub fn rooms() -> &'static Path {
    Path::new("flows")
}
