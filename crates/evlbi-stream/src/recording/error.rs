//! Errors of recordings. Put here further reasons why a recording, or a part of one, is not read.

use std::io;
use std::path::{Path, PathBuf};

use evlbi_wire::units::show_count;
use thiserror::Error;

use super::Rest;
use crate::samples::SamplesError;
use crate::selection::SelectionError;

/// Reasons why a recording cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The path is not a file.
    #[error("{} is {what}: give a recording", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// Kind of what it is instead.
        what: &'static str,
    },
    /// The file is empty.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    /// Reading from the file failed.
    #[error("cannot read {what}")]
    Read {
        /// Path of the file, if known.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The given frame rate is another one than that of the frames.
    #[error("the frame rate of {} is given as {given}/s, but the times of its frames show {found}/s", path.display())]
    OtherRate {
        /// Its path.
        path: PathBuf,
        /// Given frames per second.
        given: u32,
        /// Frames per second by the times in the headers.
        found: u32,
    },
    /// The settings of the recording are not valid.
    #[error("in {}", path.display())]
    Selection {
        /// Its path.
        path: PathBuf,
        /// Reason.
        source: SelectionError,
    },
    /// The selected part of the recording is not there.
    #[error("cannot select from {}", path.display())]
    NotThere {
        /// Its path.
        path: PathBuf,
        /// Reason.
        source: SamplesError,
    },
    /// The recording is not of the year of its settings.
    #[error(
        "the times of {} cannot be of {year}: by its headers it begins at {begins}",
        path.display()
    )]
    OtherYear {
        /// Its path.
        path: PathBuf,
        /// Year in the settings.
        year: i16,
        /// UTC of the first frame.
        begins: String,
    },
    /// The format of the recording changes; its start was read.
    #[error("{}: {rest}, which are not used", path.display())]
    Changes {
        /// Its path.
        path: PathBuf,
        /// Part that was not read.
        rest: Rest,
    },
    /// The recording ends within a frame; those before it were read.
    #[error(
        "{}: the last frame is truncated to {} bytes at byte {byte}, and is left out",
        path.display(),
        show_count(*bytes)
    )]
    Truncated {
        /// Its path.
        path: PathBuf,
        /// Number of bytes of the last frame.
        bytes: u64,
        /// Offset in the file of that frame.
        byte: u64,
    },
    /// Some frames of the recording have no place in the output; the others were used.
    #[error(
        "{}: {} frames are left out, from byte {byte} on: they have no time, or the time of another frame, or samples of another shape",
        path.display(),
        show_count(*frames)
    )]
    LeftOut {
        /// Its path.
        path: PathBuf,
        /// Number of these frames.
        frames: u64,
        /// Offset in the file of the first one.
        byte: u64,
    },
}

impl RecordingError {
    /// Returns an error of reading the file at `path`.
    pub(crate) fn read(path: &Path) -> impl Fn(io::Error) -> RecordingError {
        move |source| RecordingError::Read {
            what: path.display().to_string(),
            source,
        }
    }

    /// Returns an error of reading a file whose path is unknown.
    pub(super) fn read_on(source: io::Error) -> RecordingError {
        let what = "the recording".to_owned();
        RecordingError::Read { what, source }
    }
}
