//! A process of the attacked program: queried over its control socket, with limits on time and memory.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evlbi_testkit::{Running, command};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::scene::{LIMIT, Scene, wait_for};

/// Token of `respond` and its clients.
pub const TOKEN: &str = "attack";

/// Maximum time from a request to stop until the end, on any host.
pub const END: Duration = Duration::from_secs(10);

/// Destination of a process's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Messages {
    /// A file.
    Kept,
    /// Standard error is closed.
    Closed,
    /// A pipe whose reader takes the first line and closes it.
    Unread,
}

/// A running process.
pub struct Program {
    child: Running,
    files: String,
    control: String,
}

/// A process that has ended.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn json(&self) -> Result<Value> {
        // For a live correlation, the last line.
        let text = self.stdout.trim();
        serde_json::from_str(text)
            .or_else(|_| serde_json::from_str(text.lines().last().unwrap_or_default()))
            .with_context(|| format!("no JSON: {text} {}", self.stderr))
    }

    /// Returns whether it ended by itself, and without a panic.
    pub fn is_orderly(&self) -> bool {
        self.status.code().is_some_and(|code| code != 101) && !self.stderr.contains("panicked")
    }
}

impl Scene {
    /// Returns a command of the program.
    pub fn evlbi(&self, arguments: &[&str]) -> Command {
        let mut evlbi = command(&self.program);
        evlbi.args(arguments).env("EVLBI_TOKEN", TOKEN);
        evlbi.env("XDG_STATE_HOME", self.room.folder());
        evlbi.current_dir(self.room.folder()).stdin(Stdio::null());
        evlbi
    }

    /// Starts a command with a control socket.
    pub fn start(&self, arguments: &[&str]) -> Result<Program> {
        self.start_with(arguments, Messages::Kept)
    }

    /// Starts a command with a control socket, with another standard error.
    pub fn start_with(&self, arguments: &[&str], messages: Messages) -> Result<Program> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let files = self.room.path(&format!("process-{number}"));
        let control = format!("{files}.control");
        let mut evlbi = self.evlbi(arguments);
        if messages == Messages::Closed {
            let program = self.program.display().to_string();
            evlbi = command("sh");
            evlbi.args(["-c", "exec \"$0\" \"$@\" 2>&-", &program]);
            evlbi.args(arguments).env("EVLBI_TOKEN", TOKEN);
            evlbi.current_dir(self.room.folder()).stdin(Stdio::null());
        }
        evlbi.args(["--control", &control]);
        evlbi.stdout(File::create(format!("{files}.stdout"))?);
        evlbi.stderr(match messages {
            Messages::Unread => Stdio::piped(),
            _ => File::create(format!("{files}.stderr"))?.into(),
        });
        let mut child = Running(evlbi.spawn().context("cannot start the program")?);
        if let Some(pipe) = child.0.stderr.take() {
            let mut line = String::new();
            BufReader::with_capacity(1, pipe).read_line(&mut line)?;
        }
        Ok(Program {
            child,
            files,
            control,
        })
    }

    /// Runs a command to its end with limited memory, and expects it to end orderly.
    pub fn run_limited(&mut self, name: &str, arguments: &[&str]) -> Result<Option<Ended>> {
        const MEMORY_KIB: u64 = 4 << 20;
        let program = self.program.display().to_string();
        let mut limited = command("sh");
        let limit = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
        limited.args(["-c", &limit, &program]).args(arguments);
        limited.env("XDG_STATE_HOME", self.room.folder());
        limited.current_dir(self.room.folder()).stdin(Stdio::null());
        let files = self.room.path(name);
        limited.stdout(File::create(format!("{files}.stdout"))?);
        limited.stderr(File::create(format!("{files}.stderr"))?);
        let program = Program {
            child: Running(limited.spawn()?),
            control: String::new(),
            files,
        };
        let ended = program.end(LIMIT);
        match ended {
            Ok(ended) => {
                self.expect(
                    ended.is_orderly(),
                    format!("{arguments:?}: {} {}", ended.status, tail(&ended.stderr)),
                );
                Ok(Some(ended))
            }
            Err(error) => {
                self.expect(false, format!("{arguments:?}: {error:#}"));
                Ok(None)
            }
        }
    }

    /// Expects that a process has never used more memory than this.
    pub fn memory(&mut self, program: &Program, mebibytes: u64) {
        let most = program.peak_mebibytes();
        self.expect(
            most <= mebibytes,
            format!("memory: {most} MiB, expected at most {mebibytes} MiB"),
        );
    }
}

impl Program {
    /// Returns its answer to a request.
    pub fn ask(&self, request: &str) -> Result<Value> {
        let mut stream = wait_for("a control socket", LIMIT, || {
            UnixStream::connect(&self.control).ok()
        })?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("answer `{line}` to {request}"))
    }

    pub fn status(&self) -> Result<Value> {
        Ok(self.ask(r#"{"do":"status"}"#)?["status"].take())
    }

    /// Waits until it listens on at least `count` addresses, and returns them.
    pub fn addresses(&mut self, count: usize) -> Result<Vec<SocketAddr>> {
        wait_for("the program listens", LIMIT, || {
            if let Ok(Some(status)) = self.child.0.try_wait() {
                let said = self.stderr();
                return Some(Err(anyhow::anyhow!("it has ended: {status} {said}")));
            }
            UnixStream::connect(&self.control).ok()?;
            let status = self.status().ok()?;
            let addresses = status["listening"].as_array()?;
            let addresses = addresses.iter().filter_map(|address| address.as_str());
            let addresses: Vec<_> = addresses.filter_map(|text| text.parse().ok()).collect();
            (addresses.len() >= count).then_some(Ok(addresses))
        })?
    }

    pub fn address(&mut self) -> Result<SocketAddr> {
        Ok(self.addresses(1)?[0])
    }

    /// Returns how many datagrams have arrived at a stream, however they were counted.
    pub fn arrived(&self, stream: usize) -> u64 {
        let status = self.status().unwrap_or_default();
        let counts = &status["receiving"][stream];
        let names = ["received", "foreign", "undecided"];
        names.iter().filter_map(|name| counts[*name].as_u64()).sum()
    }

    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.0.try_wait(), Ok(None))
    }

    pub fn stderr(&self) -> String {
        self.said("stderr")
    }

    pub fn stdout(&self) -> String {
        self.said("stdout")
    }

    fn said(&self, which: &str) -> String {
        let bytes = fs::read(format!("{}.{which}", self.files)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the maximum memory that it has used so far, in MiB.
    fn peak_mebibytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.0.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        kibibytes.unwrap_or(0_u64) / 1024
    }

    /// Sends SIGTERM, and waits for the end.
    pub fn terminate(self) -> Result<Ended> {
        self.signal(Signal::SIGTERM);
        self.end(END)
    }

    /// Waits for the end.
    pub fn end(mut self, limit: Duration) -> Result<Ended> {
        let status = wait_for("the program ends", limit, || {
            self.child.0.try_wait().ok().flatten()
        });
        let (stdout, stderr) = (self.stdout(), self.stderr());
        let status = status.with_context(|| tail(&stderr))?;
        Ok(Ended {
            status,
            stdout,
            stderr,
        })
    }
}

/// Returns a count of a result.
pub fn count(result: &Value, name: &str) -> Result<u64> {
    let value = result[name].as_u64();
    value.with_context(|| format!("no count {name} in {result}"))
}

/// Returns the last lines of a process.
pub fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join("; ")
}

/// Reads what arrives within a short time.
pub fn read_some(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let count = stream.read(&mut bytes).unwrap_or(0);
    bytes.truncate(count);
    bytes
}

/// Returns an error unless a command ended well.
pub fn well(ended: &Ended) -> Result<()> {
    ensure!(
        ended.status.success(),
        "{} {}",
        ended.status,
        tail(&ended.stderr)
    );
    Ok(())
}
