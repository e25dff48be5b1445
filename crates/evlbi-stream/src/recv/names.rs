//! Names the output files: the recording, its gaps and its result.

use std::path::{Path, PathBuf};

use evlbi_net::file::{check_new, is_special};

use super::{RecvError, RecvOptions};
use crate::recording::{gaps_beside, result_beside};
use crate::sink;

/// Returns the options with free names. If a killed receiver left its recording under the requested name, that is returned too, and kept
/// even with `force`.
pub fn with_free_names(options: &RecvOptions) -> Result<(RecvOptions, Option<PathBuf>), RecvError> {
    let first = Path::new(&options.to);
    if !sink::is_left_unfinished(&options.to)? {
        return Ok((options.clone(), None));
    }
    for number in 2_u32.. {
        let path = numbered(first, number);
        let Some(to) = path.to_str() else {
            continue;
        };
        // Another receiver may have started to write it.
        if sink::is_left_unfinished(to)? || path.exists() || !sink::those_of(to).is_empty() {
            continue;
        }
        let gaps = options.gaps.as_deref().map(|gaps| numbered(gaps, number));
        let options = RecvOptions {
            to: to.to_owned(),
            gaps,
            ..options.clone()
        };
        if beside(&options).all(|path| !path.exists()) {
            return Ok((options, Some(first.to_owned())));
        }
    }
    Err(RecvError::NoName(first.to_owned()))
}

/// Returns `NAME-2.vdif` for `NAME.vdif`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{number}"));
    let mut numbered = path.with_file_name(name);
    if let Some(ending) = path.extension() {
        numbered.add_extension(ending);
    }
    numbered
}

/// Removes an empty recording, which would only block its name for the next attempt. Returns whether it was empty.
pub fn remove_empty(options: &RecvOptions) -> bool {
    let Some(recording) = recording(options) else {
        return false;
    };
    let is_there = |path: &PathBuf| path.metadata().is_ok_and(|file| file.len() > 0);
    if sink::those_of(&options.to).iter().any(is_there) {
        return false;
    }
    for path in beside(options).chain([recording]) {
        if path.is_file() {
            let _ = std::fs::remove_file(path);
        }
    }
    true
}

/// Checks that no existing file would be lost, whatever the names of the outputs.
pub fn check_outputs(options: &RecvOptions) -> Result<(), RecvError> {
    let recording = match options.to.as_str() {
        "null" | "check" => None,
        to if to.contains('{') => {
            // Directories may contain files of stations that are not in this stream.
            let is_in_folders = Path::new(to)
                .parent()
                .is_some_and(|folder| folder.to_str().is_some_and(|folder| folder.contains('{')));
            if let Some(path) = sink::those_of(to).into_iter().next()
                && !options.force
                && !is_in_folders
            {
                let to = to.to_owned();
                return Err(RecvError::MayExist { path, to });
            }
            None
        }
        to => Some(Path::new(to)),
    };
    let beside: Vec<PathBuf> = beside(options).collect();
    let beside = beside.iter().map(PathBuf::as_path);
    Ok(check_new(
        recording.into_iter().chain(beside),
        options.force,
    )?)
}

/// Returns the recording that other files are named after; `None` for a device or a pipe.
fn recording(options: &RecvOptions) -> Option<PathBuf> {
    sink::recording(&options.to).filter(|path| !is_special(path))
}

/// Returns the files next to the recording.
fn beside(options: &RecvOptions) -> impl Iterator<Item = PathBuf> {
    let beside = [gaps_path(options), result_path(options)];
    beside.into_iter().flatten()
}

/// Returns the path of the result next to the recording, which also reports progress while the recording grows.
pub fn result_path(options: &RecvOptions) -> Option<PathBuf> {
    let path = result_beside(&recording(options)?);
    // A missing directory is reported when its file is created.
    let folder = path.parent()?;
    (folder.as_os_str().is_empty() || folder.is_dir()).then_some(path)
}

pub fn gaps_path(options: &RecvOptions) -> Option<PathBuf> {
    let gaps = options.gaps.clone();
    gaps.or_else(|| Some(gaps_beside(&recording(options)?)))
}
