//! The process of a flow, and the socket by which it is asked and told.

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

use super::guard::Allowed;
use crate::flow::Outcome;
use crate::identity::FileError;

/// A flow answers within this time, unless it was stopped or its host is overrun.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer of a flow, in bytes.
const MAX_ANSWER: u64 = 16 << 20;
/// How much of what a flow had to say is looked at.
const MAX_LOG: u64 = 64 << 10;

/// Why something cannot be done with the folder or the process of a flow.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FlowDirError {
    /// A file that only this user may read, or the folder.
    #[error("{0}")]
    File(#[from] FileError),
    /// What is to be kept cannot be written as JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The folder cannot get its name.
    #[error("{0}")]
    Name(#[from] io::Error),
    /// The file for what the flow prints as its result.
    #[error("the flow's result")]
    Result(#[source] io::Error),
    /// The file for the log of the flow.
    #[error("the flow's log")]
    Log(#[source] io::Error),
    /// That file is another process'.
    #[error("the flow's log")]
    Lock(#[source] TryLockError),
    /// The system gives no process.
    #[error("no process can be started")]
    Process(#[source] io::Error),
    /// The flow does not listen, or ends before it has answered.
    #[error("the flow cannot be reached")]
    Reach(#[source] io::Error),
    /// No answer comes in time.
    #[error("the flow does not answer")]
    Silent,
    /// The number is no process'.
    #[error("{0}")]
    Number(#[from] TryFromIntError),
    /// The process cannot be ended.
    #[error("the flow's process cannot be killed")]
    Kill(#[source] nix::Error),
}

/// The folder of all flows.
pub const FLOW_DIRS: &str = "flows";

/// The folder of a flow.
#[derive(Clone, Debug)]
pub struct FlowDir(pub PathBuf);

impl FlowDir {
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Starts the flow's process, one of `program`, which continues when this one ends.
    ///
    /// # Errors
    /// When there is no room for its files, or no process can be had.
    pub fn start(&self, program: &Path, allowed: &Allowed) -> Result<Child, FlowDirError> {
        let result = File::create(self.file("result.json")).map_err(FlowDirError::Result)?;
        let log = File::create(self.file("log")).map_err(FlowDirError::Log)?;
        // The process holds it from its first moment to its last: an agent that finds it locked knows that the flow lives.
        log.try_lock().map_err(FlowDirError::Lock)?;
        Command::new(program)
            .arg0("evlbi")
            // The name of a socket must be short.
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

    /// Whether the flow's process lives, though it may not listen yet or any more.
    pub fn is_alive(&self) -> bool {
        let locked = |log: File| matches!(log.try_lock(), Err(TryLockError::WouldBlock));
        File::open(self.file("log")).is_ok_and(locked)
    }

    /// The flow's process, found by where it works and what it writes to.
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

    /// Asks the flow for something else than how it is.
    pub async fn ask(&self, request: &Request) -> Result<Answer, FlowDirError> {
        let ask = async { self.connect().await?.ask(request).await };
        match tokio::time::timeout(TIMEOUT, ask).await {
            Ok(answer) => answer.map_err(FlowDirError::Reach),
            Err(_) => Err(FlowDirError::Silent),
        }
    }

    /// What the flow printed as its result, of several documents the last, as a file that is to be read from where it stands and its
    /// length. However long it is, it is not held in memory.
    pub fn result(&self) -> Option<(File, u64)> {
        let mut file = File::open(self.file("result.json")).ok()?;
        let end = file.metadata().ok()?.len();
        let start = last_document(&mut file, end).ok()??;
        file.seek(SeekFrom::Start(start)).ok()?;
        Some((file, end - start))
    }

    /// Whether it printed more than how it was on the way.
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

    /// How the flow was at its end, where it came to say so.
    pub fn last_words(&self) -> Option<Status> {
        let text = fs::read(last_words(&self.file("control"))).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The end of what the flow had to say.
    pub fn log(&self) -> io::Result<String> {
        let mut file = File::open(self.file("log"))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG)))?;
        let mut bytes = Vec::new();
        file.take(MAX_LOG).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The last complaint of the flow. Warnings are left out: they do not end a flow.
    fn complaint(&self) -> Option<String> {
        let log = self.log().ok()?;
        let said = log.lines().rev();
        let mut said = said.filter_map(|line| line.strip_prefix("evlbi: "));
        let last = said.find(|line| !line.starts_with("warning: "));
        last.map(str::to_owned)
    }

    /// How the flow ended, by its exit status where that is known, and by what it left behind.
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
                let message =
                    "it ended without a result while nobody looked: killed, or its host went down";
                (Outcome::Killed, Some(message.to_owned()))
            }
            (_, complaint) => (Outcome::Failed, complaint),
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
    pub async fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        let text = format!("{}\n", serde_json::to_string(request)?);
        self.0.get_mut().write_all(text.as_bytes()).await?;
        let mut answer = String::new();
        let mut most = (&mut self.0).take(MAX_ANSWER);
        most.read_line(&mut answer).await?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

/// Ends a process at once.
pub fn kill(process: u32) -> Result<(), FlowDirError> {
    let process = Pid::from_raw(i32::try_from(process)?);
    signal::kill(process, Signal::SIGKILL).map_err(FlowDirError::Kill)
}

/// Where the last JSON object of a file begins that ends at `end`, if it is whole. Objects begin at the beginning of a line, and either
/// stand on it or end with a line that is a brace.
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
    // From the end backwards, each block with the first byte of the one behind it.
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
            // What begins the file: as it ends, unless its beginning is missing.
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

    /// Of several documents the last is the result, if it is whole; however long the file is.
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
        // As one that was killed while it ran leaves it.
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
