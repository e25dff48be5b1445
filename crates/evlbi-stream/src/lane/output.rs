//! A recording of frames that were made from those of other recordings, and its gaps file.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use evlbi_net::file::{OutputError, Part, check_new};
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

/// Writer of a recording and its gaps file. Both get their names at the end.
pub struct Output {
    file: BufWriter<File>,
    parts: [Part; 2],
    gaps: GapsWriter,
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
        let gaps_file = gaps_beside(path);
        check_new([path, &gaps_file], force)?;
        let (file, part) = Part::create(path, force)?;
        let (gaps_out, gaps_part) = Part::create(&gaps_file, force)?;
        let name = path.file_name();
        let document = Gaps {
            file: name.map(|name| name.to_string_lossy().into_owned()),
            frame_rate,
            frame_length: Some(frame_length),
            ..Gaps::default()
        };
        let gaps = GapsWriter::new(gaps_out, &document, "time");
        Ok(Output {
            file: BufWriter::with_capacity(BUFFER, file),
            parts: [part, gaps_part],
            gaps: gaps.map_err(|source| OutputError::Write {
                path: gaps_file.clone(),
                source,
            })?,
            made: MadeFile {
                path: path.to_owned(),
                frame_length,
                frames: 0,
                invalid_frames: 0,
                bytes: 0,
                gaps_file,
                gaps: 0,
            },
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
        self.write(made).map_err(|source| self.failed(source))
    }

    fn write(&mut self, made: &Made<'_>) -> io::Result<()> {
        for gap in made.gaps {
            self.gaps.add(TimeGap {
                key: made.key,
                start: made.time,
                frames: made.frames,
                first_byte: gap.is_there.then_some(self.made.bytes),
                bytes: gap.bytes.clone(),
                cause: gap.cause,
            })?;
        }
        if let Some((header, payload)) = &made.frame {
            let header_bytes = &header.to_bytes()[..header.len()];
            self.file.write_all(header_bytes)?;
            self.file.write_all(payload)?;
            self.made.bytes += (header_bytes.len() + payload.len()) as u64;
            self.made.frames += 1;
            self.made.invalid_frames += u64::from(header.is_invalid());
        }
        Ok(())
    }

    /// Completes the files; they get their names if they are to be kept.
    ///
    /// # Errors
    /// Returns an error if the files cannot be written.
    pub fn finish(mut self, keep: bool) -> Result<MadeFile, OutputError> {
        let flushed = self.file.flush();
        flushed.map_err(|source| self.failed(source))?;
        let Output {
            parts,
            gaps,
            mut made,
            ..
        } = self;
        made.gaps = gaps.finish().map_err(|source| OutputError::Write {
            path: made.gaps_file.clone(),
            source,
        })?;
        if keep {
            for part in parts {
                part.keep()?;
            }
        }
        Ok(made)
    }

    fn failed(&self, source: io::Error) -> OutputError {
        OutputError::Write {
            path: self.made.path.clone(),
            source,
        }
    }
}
