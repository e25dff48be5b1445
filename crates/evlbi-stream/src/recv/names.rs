//! The names of what is written: the recording, its gaps and its result.

use std::path::{Path, PathBuf};

use evlbi_net::file::{check_new, is_special};

use super::{RecvError, RecvOptions};
use crate::recording::{gaps_beside, result_beside};
use crate::sink;

/// The options with names that are free, where a killed receiver left its recording under the wanted one, which is returned too.
/// What such a receiver left is kept, whatever is forced.
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
        // Another receiver may have begun with it.
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

/// `NAME-2.vdif` of `NAME.vdif`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{number}"));
    let mut numbered = path.with_file_name(name);
    if let Some(ending) = path.extension() {
        numbered.add_extension(ending);
    }
    numbered
}

/// Removes a recording that is empty, which would only keep the next attempt from its name. Returns whether it was.
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

/// Nothing that is there already may be lost, whatever the files are called.
pub fn check_outputs(options: &RecvOptions) -> Result<(), RecvError> {
    let recording = match options.to.as_str() {
        "null" | "check" => None,
        to if to.contains('{') => {
            // Folders may hold files of stations that are not in this stream.
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

/// What other files stand beside; no device or pipe.
fn recording(options: &RecvOptions) -> Option<PathBuf> {
    sink::recording(&options.to).filter(|path| !is_special(path))
}

/// Files beside the recording.
fn beside(options: &RecvOptions) -> impl Iterator<Item = PathBuf> {
    let beside = [gaps_path(options), result_path(options)];
    beside.into_iter().flatten()
}

/// The result stands beside the recording too, and says while it grows how it is.
pub fn result_path(options: &RecvOptions) -> Option<PathBuf> {
    let path = result_beside(&recording(options)?);
    // A folder that is not there is reported when its file is made.
    let folder = path.parent()?;
    (folder.as_os_str().is_empty() || folder.is_dir()).then_some(path)
}

pub fn gaps_path(options: &RecvOptions) -> Option<PathBuf> {
    let gaps = options.gaps.clone();
    gaps.or_else(|| Some(gaps_beside(&recording(options)?)))
}
