//! The process of a flow and its control socket.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader as FileReader, Read, Seek, SeekFrom};
use std::num::TryFromIntError;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use evlbi_stream::control_socket::{Answer, Request, Status, last_words};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::guard::{Allowed, KEY_FILE};
use crate::flow::Outcome;
use crate::identity::FileError;

/// Timeout for an answer of a flow. A flow exceeds it only if it is suspended or its host is overloaded.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a flow's answer, in bytes.
const MAX_ANSWER: u64 = 16 << 20;
/// Maximum length of the end of a log that is read, in bytes.
const MAX_LOG: u64 = 64 << 10;

/// Error: the directory or the process of a flow cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FlowDirError {
    /// A private file or the directory cannot be created.
    #[error("{0}")]
    File(#[from] FileError),
    /// The flow's description cannot be written as JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The directory cannot be renamed.
    #[error("{0}")]
    Name(#[from] io::Error),
    /// The result file cannot be created.
    #[error("cannot create the flow's result file")]
    Result(#[source] io::Error),
    /// The log file cannot be created.
    #[error("cannot create the flow's log")]
    Log(#[source] io::Error),
    /// The log file is locked by another process.
    #[error("cannot lock the flow's log")]
    Lock(#[source] TryLockError),
    /// The process cannot be started.
    #[error("cannot start the flow's process")]
    Process(#[source] io::Error),
    /// The flow does not listen, or ends before it answers.
    #[error("cannot reach the flow")]
    Reach(#[source] io::Error),
    /// The flow does not answer before the timeout.
    #[error("the flow does not answer")]
    Silent,
    /// The process ID is out of range.
    #[error("{0}")]
    Number(#[from] TryFromIntError),
    /// The process cannot be killed.
    #[error("cannot kill the flow's process")]
    Kill(#[source] nix::Error),
}

/// Directory of all flows.
pub const FLOW_DIRS: &str = "flows";

/// Files of a flow that are removed when it is forgotten.
pub const FLOW_FILES: [&str; 6] = [
    "flow.json",
    "result.json",
    "log",
    "control",
    "control.last",
    KEY_FILE,
];

/// Directory of a flow.
#[derive(Clone, Debug)]
pub struct FlowDir(pub PathBuf);

impl FlowDir {
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Starts `program` as the flow's process. It keeps running when this process ends.
    ///
    /// # Errors
    /// Returns [`FlowDirError`] if the flow's files cannot be created or the process cannot be started.
    pub fn start(&self, program: &Path, allowed: &Allowed) -> Result<Child, FlowDirError> {
        let result = File::create(self.file("result.json")).map_err(FlowDirError::Result)?;
        let log = File::create(self.file("log")).map_err(FlowDirError::Log)?;
        // The process inherits the lock and holds it until it ends: a locked log means that the flow is alive.
        log.try_lock().map_err(FlowDirError::Lock)?;
        Command::new(program)
            .arg0("evlbi")
            // A Unix socket path must be short.
            .args(["--control", "control"])
            .args(&allowed.words)
            .current_dir(&self.0)
            .env_remove("EVLBI_TOKEN")
            // A flow does what its options say: the user of the agent has no part in it.
            .env("EVLBI_CONFIG", "")
            .envs(allowed.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(result)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(false)
            .spawn()
            .map_err(FlowDirError::Process)
    }

    /// Returns whether the flow's process is alive, even if it does not listen yet or no longer listens.
    pub fn is_alive(&self) -> bool {
        let locked = |log: File| matches!(log.try_lock(), Err(TryLockError::WouldBlock));
        File::open(self.file("log")).is_ok_and(locked)
    }

    /// Finds the flow's process by its working directory and its log file.
    pub fn process(&self) -> Option<u32> {
        let folder = fs::canonicalize(&self.0).ok()?;
        let log = folder.join("log");
        let leads = |link: PathBuf, to: &Path| fs::read_link(link).is_ok_and(|found| found == to);
        let mut all = fs::read_dir("/proc").ok()?.flatten();
        let found = all.find(|entry| {
            let process = entry.path();
            leads(process.join("cwd"), &folder) && leads(process.join("fd/2"), &log)
        })?;
        found.file_name().to_str()?.parse().ok()
    }

    /// Opens a connection to the flow.
    pub async fn connect(&self) -> io::Result<Line> {
        let stream = UnixStream::connect(self.file("control")).await?;
        Ok(Line(BufReader::new(stream)))
    }

    /// Sends a request other than one for the status, and returns the answer.
    pub async fn ask(&self, request: &Request) -> Result<Answer, FlowDirError> {
        let ask = async { self.connect().await?.ask(request).await };
        match tokio::time::timeout(TIMEOUT, ask).await {
            Ok(answer) => answer.map_err(FlowDirError::Reach),
            Err(_) => Err(FlowDirError::Silent),
        }
    }

    /// Returns the flow's result as a file, positioned at its start, and its length in bytes. If the flow printed several documents, the
    /// last one is the result. It is not read into memory.
    pub fn result(&self) -> Option<(File, u64)> {
        let mut file = File::open(self.file("result.json")).ok()?;
        let end = file.metadata().ok()?.len();
        let start = last_document(&mut file, end).ok()??;
        file.seek(SeekFrom::Start(start)).ok()?;
        Some((file, end - start))
    }

    /// Returns whether the flow printed a result, not only live documents.
    fn has_result(&self) -> bool {
        #[derive(Deserialize)]
        struct Marked {
            schema: String,
        }
        self.result().is_some_and(|(file, length)| {
            let marked = serde_json::from_reader(FileReader::new(file.take(length)));
            marked.is_ok_and(|marked: Marked| marked.schema != "evlbi.live/1")
        })
    }

    /// Returns the last status of an ended flow, if it wrote one.
    pub fn last_words(&self) -> Option<Status> {
        let text = fs::read(last_words(&self.file("control"))).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Returns the end of the flow's log.
    pub fn log(&self) -> io::Result<String> {
        let mut file = File::open(self.file("log"))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG)))?;
        let mut bytes = Vec::new();
        file.take(MAX_LOG).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the last error in the flow's log. Warnings are skipped because they do not end a flow.
    fn complaint(&self) -> Option<String> {
        let log = self.log().ok()?;
        let said = log.lines().rev();
        let mut said = said.filter_map(|line| line.strip_prefix("evlbi: "));
        let last = said.find(|line| !line.starts_with("warning: "));
        last.map(str::to_owned)
    }

    /// Returns how the flow ended and why: from its exit status, if known, and from the files that it left.
    pub fn outcome(&self, status: Option<ExitStatus>, was_told: bool) -> (Outcome, Option<String>) {
        if let Some(signal) = status.and_then(|status| status.signal()) {
            return (Outcome::Killed, Some(format!("killed by signal {signal}")));
        }
        let is_well = status.map_or_else(|| self.has_result(), |status| status.success());
        if is_well {
            let outcome = match was_told {
                true => Outcome::Stopped,
                false => Outcome::Finished,
            };
            return (outcome, None);
        }
        match (status, self.complaint()) {
            (None, None) => {
                let message = "ended without a result while no agent was running: it was killed, or its host went down";
                (Outcome::Killed, Some(message.to_owned()))
            }
            (_, complaint) => (Outcome::Failed, complaint),
        }
    }
}

/// A connection to a flow.
pub struct Line(BufReader<UnixStream>);

impl Line {
    /// Returns the process ID of the flow.
    pub fn process(&self) -> Option<u32> {
        let peer = self.0.get_ref().peer_cred().ok()?;
        peer.pid().and_then(|pid| u32::try_from(pid).ok())
    }

    /// Sends a request and waits for the answer.
    pub async fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        let text = format!("{}\n", serde_json::to_string(request)?);
        self.0.get_mut().write_all(text.as_bytes()).await?;
        let mut answer = String::new();
        let mut limited = (&mut self.0).take(MAX_ANSWER);
        limited.read_line(&mut answer).await?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

/// Kills a process.
pub fn kill(process: u32) -> Result<(), FlowDirError> {
    let process = Pid::from_raw(i32::try_from(process)?);
    signal::kill(process, Signal::SIGKILL).map_err(FlowDirError::Kill)
}

/// Returns the start of the last JSON object of a file that ends at `end`, or `None` if that object is incomplete. Objects start at the
/// start of a line. They either take one line or end with a line that is a brace.
fn last_document(file: &mut File, end: u64) -> io::Result<Option<u64>> {
    const BLOCK: u64 = 64 << 10;
    let mut tail = [0; 3];
    let tail = &mut tail[..end.min(3) as usize];
    file.seek(SeekFrom::Start(end - tail.len() as u64))?;
    file.read_exact(tail)?;
    if !tail.ends_with(b"}\n") {
        return Ok(None);
    }
    let is_on_lines = tail.starts_with(b"\n");
    // Read blocks backwards from the end, each with the first byte of the following one.
    let mut block_end = end;
    while block_end > 0 {
        let begin = block_end.saturating_sub(BLOCK);
        let mut block = vec![0; (block_end - begin + 1).min(end - begin) as usize];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(&mut block)?;
        if let Some(at) = block.windows(2).rposition(|pair| pair == b"\n{") {
            return Ok(Some(begin + at as u64 + 1));
        }
        if begin == 0 {
            // The first object must have the form of its end, otherwise its start is missing.
            let is_first = block.starts_with(b"{") && (block.starts_with(b"{\n") == is_on_lines);
            return Ok(is_first.then_some(0));
        }
        block_end = begin;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The last of several documents is the result if it is complete, however long the file is.
    #[test]
    fn the_result_is_the_last_whole_document() {
        let folder = evlbi_testkit::Room::new();
        let flow_dir = FlowDir(folder.folder().to_owned());
        let result = |text: &str| {
            folder.write("result.json", text);
            let (file, length) = flow_dir.result()?;
            let mut found = String::new();
            file.take(length).read_to_string(&mut found).unwrap();
            Some(found)
        };
        let pretty = "{\n  \"schema\": \"evlbi.recv/1\",\n  \"files\": [\n    {\n    }\n  ]\n}\n";
        assert_eq!(result(pretty).as_deref(), Some(pretty));
        let long = format!(
            "{{\"schema\":\"evlbi.live/1\",\"x\":\"{}\"}}\n",
            "y".repeat(200_000)
        );
        let last = "{\"schema\":\"evlbi.correlate/1\"}\n";
        assert_eq!(
            result(&format!("{long}{long}{last}")).as_deref(),
            Some(last)
        );
        assert!(flow_dir.has_result());
        // A flow that was killed leaves this.
        assert_eq!(
            result(&format!("{last}{long}")).as_deref(),
            Some(long.as_str())
        );
        assert!(!flow_dir.has_result());
        for broken in [
            "",
            "{",
            "}\n",
            &pretty[..pretty.len() - 2],
            &long[..1000],
            "x\n}\n",
        ] {
            assert_eq!(result(broken), None, "{broken}");
        }
    }
}
