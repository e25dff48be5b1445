//! Gaps files: read next to a recording, and written frame by frame next to one that is made, so that they take no memory however long it
//! is.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use evlbi_core::deframe::Layout;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Gaps, SequenceGap, TimeGap};
use evlbi_wire::vdif::StreamKey;
use thiserror::Error;

use crate::recording::gaps_beside;

/// Reasons why the gaps file next to a recording cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GapsError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the gaps file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// It is damaged.
    #[error("in {}", path.display())]
    Format {
        /// Path of the gaps file.
        path: PathBuf,
        /// The damage.
        source: serde_json::Error,
    },
    /// It belongs to another recording.
    #[error(
        "gaps file {} does not match {}: frame rate, frame length or byte ranges differ",
        gaps.display(),
        recording.display()
    )]
    Other {
        /// Path of the gaps file.
        gaps: PathBuf,
        /// Path of the recording.
        recording: PathBuf,
    },
}

/// Reads the gaps file next to a recording with these frames; `None` if there is no such file.
///
/// # Errors
/// Returns an error if it cannot be read, is damaged, or was written for other frames.
pub fn read_beside(
    recording: &Path,
    frame_rate: Option<FrameRate>,
    layout: &Layout,
) -> Result<Option<Gaps>, GapsError> {
    let path = gaps_beside(recording);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(GapsError::Read { path, source }),
    };
    let gaps: Gaps = match serde_json::from_slice(&text) {
        Ok(gaps) => gaps,
        Err(source) => return Err(GapsError::Format { path, source }),
    };
    let is_other_rate = |theirs| frame_rate.is_some_and(|ours| ours != theirs);
    let payload = layout.frame_length - layout.header_length;
    let is_beyond = |bytes: &Range<usize>| bytes.start > bytes.end || bytes.end > payload;
    if gaps.frame_rate.is_some_and(is_other_rate)
        || gaps
            .frame_length
            .is_some_and(|it| it != layout.frame_length)
        || gaps.time.iter().flat_map(|gap| &gap.bytes).any(is_beyond)
    {
        return Err(GapsError::Other {
            gaps: path,
            recording: recording.to_owned(),
        });
    }
    Ok(Some(gaps))
}

/// Writer of the document.
pub struct GapsWriter {
    file: BufWriter<File>,
    /// The document without the list.
    document: Gaps,
    list: &'static str,
    /// Runs that may continue.
    runs: HashMap<StreamKey, TimeGap>,
    packets: Option<SequenceGap>,
    count: u64,
}

impl GapsWriter {
    /// Starts to write `document`, whose own lists are empty; `list` is the name of the list to write.
    pub fn new(file: File, document: Gaps, list: &'static str) -> io::Result<GapsWriter> {
        let mut file = BufWriter::new(file);
        write!(file, "{{\"{list}\":[")?;
        Ok(GapsWriter {
            file,
            document,
            list,
            runs: HashMap::new(),
            packets: None,
            count: 0,
        })
    }

    /// Sets the frames per second, which are known later than the first gaps of a live stream.
    pub fn set_frame_rate(&mut self, rate: FrameRate) {
        self.document.frame_rate = Some(rate);
    }

    /// Adds a gap; joins it with the previous one of its thread if it follows directly and is of the same kind.
    pub fn add(&mut self, gap: TimeGap) -> io::Result<()> {
        let kind = |gap: &TimeGap| (gap.bytes.clone(), gap.cause, gap.first_byte.is_some());
        if let Some(run) = self.runs.get_mut(&gap.key) {
            if kind(run) == kind(&gap) && after(run, self.document.frame_rate) == Some(gap.start) {
                run.frames += gap.frames;
                return Ok(());
            }
            let run = std::mem::replace(run, gap);
            return self.write(&run);
        }
        self.runs.insert(gap.key, gap);
        Ok(())
    }

    /// Adds a packet by its number; numbers must increase.
    pub fn add_packet(&mut self, number: u64) -> io::Result<()> {
        if let Some(run) = &mut self.packets
            && run.last + 1 == number
        {
            run.last = number;
            return Ok(());
        }
        let next = SequenceGap {
            first: number,
            last: number,
        };
        match self.packets.replace(next) {
            Some(run) => self.write(&run),
            None => Ok(()),
        }
    }

    /// Writes the end of the document; returns the number of gaps in it.
    pub fn finish(mut self) -> io::Result<u64> {
        let mut runs: Vec<TimeGap> = self.runs.drain().map(|(_, run)| run).collect();
        runs.sort_by_key(|run| (run.start.second, run.start.frame, run.key));
        for run in runs {
            self.write(&run)?;
        }
        if let Some(run) = self.packets.take() {
            self.write(&run)?;
        }
        let text = serde_json::to_string(&self.document)?;
        // The lists come after all text that a user chose.
        let own = format!(",\"{}\":[]", self.list);
        let (before, after) = text.rsplit_once(&own).unwrap_or((&text, ""));
        writeln!(self.file, "\n],{}{after}", &before[1..])?;
        self.file.flush()?;
        Ok(self.count)
    }

    fn write(&mut self, gap: &impl serde::Serialize) -> io::Result<()> {
        let separator: &[u8] = if self.count == 0 { b"\n" } else { b",\n" };
        self.file.write_all(separator)?;
        serde_json::to_writer(&mut self.file, gap)?;
        self.count += 1;
        Ok(())
    }
}

/// Returns the time of the frame that follows the run.
fn after(run: &TimeGap, rate: Option<FrameRate>) -> Option<FrameTime> {
    if let Some(rate) = rate {
        return Some(FrameTime::from_index(run.indices(rate).end, rate));
    }
    Some(FrameTime {
        second: run.start.second,
        frame: run.start.frame.checked_add(run.frames.try_into().ok()?)?,
    })
}

#[cfg(test)]
mod tests {
    use evlbi_core::deframe::Format;
    use evlbi_testkit::Room;
    use evlbi_wire::validity::Cause;

    use super::*;

    #[test]
    fn a_gaps_file_of_other_frames_is_refused() {
        let room = Room::new();
        let recording = room.path("a.vdif");
        let layout = Layout {
            format: Format::Vdif,
            frame_length: 1032,
            header_length: 32,
            version: 0,
            frame_rate: None,
        };
        let is_read = |rate, length, bytes| {
            let gap = TimeGap {
                key: StreamKey::default(),
                start: FrameTime {
                    second: 5,
                    frame: 0,
                },
                frames: 1,
                first_byte: None,
                bytes: Some(bytes),
                cause: Cause::Lost,
            };
            let gaps = Gaps {
                frame_rate: rate,
                frame_length: length,
                time: vec![gap],
                ..Gaps::default()
            };
            room.write("a.vdif.gaps.json", serde_json::to_vec(&gaps).unwrap());
            match read_beside(Path::new(&recording), FrameRate::new(50), &layout) {
                Ok(read) => read == Some(gaps),
                Err(error) => {
                    assert!(matches!(error, GapsError::Other { .. }), "{error}");
                    false
                }
            }
        };
        let part = 992..1000;
        assert!(is_read(FrameRate::new(50), Some(1032), part.clone()));
        assert!(is_read(None, None, part.clone()));
        assert!(!is_read(FrameRate::new(49), None, part.clone()));
        assert!(!is_read(None, Some(1000), part));
        assert!(!is_read(None, None, 992..1001));
    }
}
