//! Fetches the bytes of recordings that a part needs from the hosts that hold them.

use std::borrow::Cow;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::time::Duration;

use evlbi_net::run::Run;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::error::ChunkError;
use super::{Ends, RecordingPlan};
use crate::files::{FileError, last_line_of};
use crate::station::StationFile;

/// Command that fetches a range of bytes: a line for the shell with `{host}`, `{path}`, `{offset}`, `{length}` and `{out}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage(String);

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Stage, String> {
        let needed = ["{path}", "{offset}", "{length}", "{out}"];
        match needed.iter().find(|name| !text.contains(**name)) {
            Some(name) => Err(format!(
                "invalid command `{text}`: it lacks {name}; give {} and, if needed, {{host}}",
                needed.join(", ")
            )),
            None => Ok(Stage(text.to_owned())),
        }
    }
}

/// Exit statuses of a shell for commands that cannot be run, or are not there.
const CANNOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;
/// Interval between looks at a command.
const LOOK: Duration = Duration::from_millis(10);

/// Directory of fetched files, which is removed at the end.
pub struct Staged {
    directory: TempDir,
    /// File of each station.
    pub files: Vec<PathBuf>,
}

impl Stage {
    /// Fetches the ranges of the stations' recordings, and checks that they are those of the plan.
    pub(super) fn fetch(
        &self,
        stations: &[(&StationFile, &RecordingPlan)],
        ranges: &[Range<u64>],
        run: &Run,
    ) -> Result<Staged, ChunkError> {
        // No other process or host takes its name.
        let directory = tempfile::Builder::new().prefix("evlbi-stage-").tempdir();
        let mut staged = Staged {
            directory: directory.map_err(FileError::at(
                "cannot make a directory in",
                &env::temp_dir(),
            ))?,
            files: Vec::new(),
        };
        for (number, ((file, plan), range)) in stations.iter().zip(ranges).enumerate() {
            let end = staged.directory.path().join("end");
            let found = Ends::read(file.path(), file.size(), |bytes| {
                let fetched = self.fetch_range((file.path(), &plan.host), &bytes, &end, run);
                fetched.map_err(io::Error::other)?;
                fs::read(&end)
            });
            // An error of the command is one, and not one of a file.
            let found = found.map_err(|error| match error.source.downcast::<ChunkError>() {
                Ok(error) => error,
                Err(source) => FileError { source, ..error }.into(),
            })?;
            plan.ends.check(file.path(), &found)?;
            let out = staged.directory.path().join(number.to_string());
            self.fetch_range((file.path(), &plan.host), range, &out, run)?;
            staged.files.push(out);
        }
        Ok(staged)
    }

    fn fetch_range(
        &self,
        (path, host): (&Path, &str),
        range: &Range<u64>,
        out: &Path,
        run: &Run,
    ) -> Result<(), ChunkError> {
        let length = range.end - range.start;
        let words = [
            ("{host}", host.to_owned()),
            ("{path}", path.display().to_string()),
            ("{offset}", range.start.to_string()),
            ("{length}", length.to_string()),
            ("{out}", out.display().to_string()),
        ];
        let command = filled(&self.0, &words);
        let failed = |why: String| ChunkError::Stage {
            path: path.to_owned(),
            command: command.clone(),
            why,
            may_succeed: true,
        };
        let ran = ended(&command, run);
        let ran = ran.map_err(|error| failed(format!("cannot run: {error}")))?;
        let Some((status, said)) = ran else {
            return Err(ChunkError::Interrupted);
        };
        if !status.success() {
            return Err(ChunkError::Stage {
                path: path.to_owned(),
                why: format!("ended with {status}: {said}"),
                may_succeed: !matches!(status.code(), Some(CANNOT_RUN | NOT_FOUND)),
                command,
            });
        }
        let there = fs::metadata(out).map_or(0, |metadata| metadata.len());
        match there == length {
            true => Ok(()),
            false => Err(failed(format!("brought {there} of {length} bytes"))),
        }
    }
}

/// Runs a line of the shell; returns its status and the last line that it printed, or nothing if the run was stopped, which ends it.
fn ended(line: &str, run: &Run) -> io::Result<Option<(ExitStatus, String)>> {
    let printed = tempfile::tempfile()?;
    let mut child = Command::new("sh")
        .args(["-c", line])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(printed.try_clone()?)
        .process_group(0)
        .spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some((status, last_line_of(printed))));
        }
        if run.is_stopped() {
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            child.wait()?;
            return Ok(None);
        }
        run.clock().sleep(LOOK);
    }
}

/// Fills words into a command; what they contain is not replaced.
fn filled(command: &str, words: &[(&str, String)]) -> String {
    let mut filled = String::new();
    let mut rest = command;
    while let Some(begin) = rest.find('{') {
        filled.push_str(&rest[..begin]);
        rest = &rest[begin..];
        match words.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, word)) => {
                filled.push_str(&quoted(word));
                rest = &rest[name.len()..];
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled + rest
}

/// Returns text as one word of the shell. A command with a zero byte, which no word can contain, fails.
pub fn quoted(text: &str) -> Cow<'_, str> {
    let quoter = shlex::Quoter::new().allow_nul(true);
    quoter.quote(text).unwrap_or(Cow::Borrowed(text))
}
