//! A recording of frames that were made from those of other recordings, and its gaps file.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use evlbi_net::file::{OutputError, Part};
use evlbi_wire::time::FrameRate;
use evlbi_wire::units::show_count;
use evlbi_wire::validity::{Gaps, TimeGap};
use serde::Serialize;

use super::Made;
use crate::gaps::GapsWriter;
use crate::recording::gaps_beside;

/// Bytes of a recording that are written together.
const BUFFER: usize = 256 << 10;

/// A recording that was made from others.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadeFile {
    /// Path of the recording.
    pub path: PathBuf,
    /// Length of a frame in bytes, header included.
    pub frame_length: usize,
    /// Frames written.
    pub frames: u64,
    /// Frames of these that are marked invalid.
    pub invalid_frames: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Path of the gaps file.
    pub gaps_file: PathBuf,
    /// Runs of missing frames in the gaps file.
    pub gaps: u64,
}

impl fmt::Display for MadeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [frames, invalid, gaps] = [self.frames, self.invalid_frames, self.gaps].map(show_count);
        let (path, length) = (self.path.display(), self.frame_length);
        write!(
            f,
            "{path}: {frames} frames of {length} bytes, {invalid} invalid, {gaps} gaps"
        )
    }
}

/// Gaps file of a recording that is made. It gets its name at the end.
pub struct GapsFile {
    path: PathBuf,
    part: Part,
    writer: GapsWriter,
    /// Bytes of the recording so far.
    bytes: u64,
}

impl GapsFile {
    /// Creates the gaps file next to a recording with frames of this length and rate.
    ///
    /// # Errors
    /// Returns an error if it exists and must not be overwritten (no `force`), or cannot be created.
    pub fn create(
        recording: &Path,
        force: bool,
        frame_length: usize,
        frame_rate: Option<FrameRate>,
    ) -> Result<GapsFile, OutputError> {
        let path = gaps_beside(recording);
        let (file, part) = Part::create(&path, force)?;
        let name = recording.file_name();
        let document = Gaps {
            file: name.map(|name| name.to_string_lossy().into_owned()),
            frame_rate,
            frame_length: Some(frame_length),
            ..Gaps::default()
        };
        let writer = GapsWriter::new(file, document, "time").map_err(failed(&path))?;
        Ok(GapsFile {
            path,
            part,
            writer,
            bytes: 0,
        })
    }

    /// Lists what is missing in the next frame of the recording.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn put(&mut self, made: &Made<'_>) -> Result<(), OutputError> {
        if let Some(rate) = made.frame_rate {
            self.writer.set_frame_rate(rate);
        }
        for gap in made.gaps {
            let gap = TimeGap {
                key: made.key,
                start: made.time,
                frames: made.frames,
                first_byte: gap.is_there.then_some(self.bytes),
                bytes: gap.bytes.clone(),
                cause: gap.cause,
            };
            self.writer.add(gap).map_err(failed(&self.path))?;
        }
        if made.frame.is_some() {
            self.bytes += made.frame_length as u64;
        }
        Ok(())
    }

    /// Completes the file, which gets its name if it is to be kept. Returns its path and the number of gaps.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn finish(self, keep: bool) -> Result<(PathBuf, u64), OutputError> {
        let gaps = self.writer.finish().map_err(failed(&self.path))?;
        if keep {
            self.part.keep()?;
        }
        Ok((self.path, gaps))
    }
}

/// Writer of a recording and its gaps file. Both get their names at the end.
pub struct Output {
    file: BufWriter<File>,
    part: Part,
    gaps: GapsFile,
    made: MadeFile,
}

impl Output {
    /// Creates the files of a recording with frames of this length and rate.
    ///
    /// # Errors
    /// Returns an error if one of them exists and must not be overwritten (no `force`), or cannot be created.
    pub fn create(
        path: &Path,
        force: bool,
        frame_length: usize,
        frame_rate: Option<FrameRate>,
    ) -> Result<Output, OutputError> {
        let (file, part) = Part::create(path, force)?;
        let gaps = GapsFile::create(path, force, frame_length, frame_rate)?;
        Ok(Output {
            file: BufWriter::with_capacity(BUFFER, file),
            part,
            made: MadeFile {
                path: path.to_owned(),
                frame_length,
                frames: 0,
                invalid_frames: 0,
                bytes: 0,
                gaps_file: gaps.path.clone(),
                gaps: 0,
            },
            gaps,
        })
    }

    /// Returns the path of the recording.
    pub fn path(&self) -> &Path {
        &self.made.path
    }

    /// Writes a frame, and lists what is missing in it.
    ///
    /// # Errors
    /// Returns an error if the files cannot be written.
    pub fn put(&mut self, made: &Made<'_>) -> Result<(), OutputError> {
        self.gaps.put(made)?;
        let Some((header, payload)) = &made.frame else {
            return Ok(());
        };
        let header_bytes = &header.to_bytes()[..header.len()];
        let written = self.file.write_all(header_bytes);
        let written = written.and_then(|()| self.file.write_all(payload));
        written.map_err(failed(&self.made.path))?;
        self.made.bytes += made.frame_length as u64;
        self.made.frames += 1;
        self.made.invalid_frames += u64::from(header.is_invalid());
        Ok(())
    }

    /// Completes the files; they get their names if they are to be kept.
    ///
    /// # Errors
    /// Returns an error if the files cannot be written.
    pub fn finish(mut self, keep: bool) -> Result<MadeFile, OutputError> {
        self.file.flush().map_err(failed(&self.made.path))?;
        let (_, gaps) = self.gaps.finish(keep)?;
        if keep {
            self.part.keep()?;
        }
        Ok(MadeFile { gaps, ..self.made })
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> OutputError {
    move |source| OutputError::Write {
        path: path.to_owned(),
        source,
    }
}
