//! Fetches the bytes of recordings that a part needs from the hosts that hold them.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use super::error::ChunkError;
use super::{Ends, RecordingPlan};
use crate::files::{FileError, make_directory};
use crate::station::StationFile;

/// Command that fetches a range of bytes: a line for the shell with `{host}`, `{path}`, `{offset}`, `{length}` and `{out}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage(String);

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

/// Directory of fetched files, which is removed at the end.
pub struct Staged {
    directory: PathBuf,
    /// File of each station.
    pub files: Vec<PathBuf>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Stage {
    /// Fetches the ranges of the stations' recordings, and checks that they are those of the plan.
    pub(super) fn fetch(
        &self,
        stations: &[(&StationFile, &RecordingPlan)],
        ranges: &[Range<u64>],
    ) -> Result<Staged, ChunkError> {
        let name = format!("evlbi-stage-{}", std::process::id());
        let mut staged = Staged {
            directory: std::env::temp_dir().join(name),
            files: Vec::new(),
        };
        make_directory(&staged.directory)?;
        for (number, ((file, plan), range)) in stations.iter().zip(ranges).enumerate() {
            let end = staged.directory.join("end");
            let found = Ends::read(file.path(), file.size(), |bytes| {
                let fetched = self.fetch_range(file.path(), &plan.host, &bytes, &end);
                fetched.map_err(io::Error::other)?;
                fs::read(&end)
            });
            // An error of the command is one, and not one of a file.
            let found = found.map_err(|error| match error.source.downcast::<ChunkError>() {
                Ok(error) => error,
                Err(source) => FileError { source, ..error }.into(),
            })?;
            plan.ends.check(file.path(), &found)?;
            let out = staged.directory.join(number.to_string());
            self.fetch_range(file.path(), &plan.host, range, &out)?;
            staged.files.push(out);
        }
        Ok(staged)
    }

    fn fetch_range(
        &self,
        path: &Path,
        host: &str,
        range: &Range<u64>,
        out: &Path,
    ) -> Result<(), ChunkError> {
        let length = range.end - range.start;
        let words = [
            ("{host}", host.to_owned()),
            ("{path}", path.display().to_string()),
            ("{offset}", range.start.to_string()),
            ("{length}", length.to_string()),
            ("{out}", out.display().to_string()),
        ];
        let command = words.iter().fold(self.0.clone(), |command, (name, word)| {
            command.replace(name, &quoted(word))
        });
        let failed = |why: String| ChunkError::Stage {
            path: path.to_owned(),
            command: command.clone(),
            why,
        };
        let ran = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(format!("cannot run: {error}")))?;
        if !ran.status.success() {
            let said = String::from_utf8_lossy(&ran.stderr);
            let said = said.trim().lines().last().unwrap_or_default().to_owned();
            return Err(failed(format!("ended with {}: {said}", ran.status)));
        }
        let there = fs::metadata(out).map_or(0, |metadata| metadata.len());
        match there == length {
            true => Ok(()),
            false => Err(failed(format!("brought {there} of {length} bytes"))),
        }
    }
}

/// Returns a word that the shell takes as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
