//! Reads the frames of some stations and threads of a recording, ahead of the sender.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evlbi_core::deframe::Deframer;
use evlbi_net::file::{ReadError, Reader};
use evlbi_net::run::Run;

use super::LeftOut;
use crate::recording::{Blocks, Recording, RecordingError, open};

/// Bytes of frames that are passed on together, at least; and the number of such blocks in memory.
const BLOCK: usize = 8 << 20;
const BLOCKS: usize = 8;

/// Passes through a recording.
struct Passes {
    recording: Recording,
    /// Number of the current pass, and of all.
    pass: u64,
    passes: u64,
    /// The current pass, once it has begun.
    open: Option<(Blocks, Deframer)>,
    /// Bytes of selected frames in the current pass so far.
    kept: u64,
    left_out: Arc<LeftOut>,
}

/// Starts to read the selected frames of a recording this many times.
///
/// # Errors
/// Returns an error if the system cannot start a thread.
pub fn reader(
    recording: Recording,
    passes: u64,
    left_out: Arc<LeftOut>,
    run: &Run,
) -> Result<Reader, ReadError> {
    let path = recording.path.clone();
    let error = move |offset, source| ReadError::new(&path, offset, source);
    let cannot_start = error.clone();
    let mut passes = Passes {
        recording,
        pass: 0,
        passes,
        open: None,
        kept: 0,
        left_out,
    };
    let fill = Box::new(move |bytes: &mut Vec<u8>| {
        let filled = passes.fill(bytes);
        let offset = passes.open.as_ref().map_or(0, |(it, _)| it.offset());
        filled.map_err(|failed| match failed {
            RecordingError::Read { source, .. } | RecordingError::Open { source, .. } => {
                error(offset, source)
            }
            other => error(offset, io::Error::other(other)),
        })
    });
    let reader = Reader::of(fill, BLOCKS, run.clock());
    reader.map_err(|source| cannot_start(0, source))
}

impl Passes {
    /// Collects the next frames of a pass; returns its number.
    fn fill(&mut self, bytes: &mut Vec<u8>) -> Result<Option<u64>, RecordingError> {
        bytes.clear();
        while self.pass < self.passes {
            let pass = self.pass;
            if !self.step(bytes)? {
                (self.open, self.kept) = (None, 0);
                self.pass += 1;
            }
            let is_over = self.pass > pass && !bytes.is_empty();
            if is_over || bytes.len() >= BLOCK {
                return Ok(Some(pass));
            }
        }
        Ok(None)
    }

    /// Adds the frames of a part of the file; returns whether there is more.
    fn step(&mut self, bytes: &mut Vec<u8>) -> Result<bool, RecordingError> {
        let recording = &self.recording;
        let (blocks, deframer) = match &mut self.open {
            Some(open) => open,
            none => none.insert((
                Blocks::new(open(&recording.path)?, recording.end()),
                recording.deframer(recording.frame_rate),
            )),
        };
        let unselected = deframer.counts().unselected_frames;
        let before = bytes.len();
        let more = blocks.step(deframer, |chunk| {
            for frame in chunk.frames {
                let frame = &chunk.bytes[frame.bytes.clone()];
                // The sender cuts frames of one length.
                if Some(frame.len()) == recording.frame_length {
                    bytes.extend_from_slice(frame);
                }
            }
        })?;
        self.kept += (bytes.len() - before) as u64;
        let counts = deframer.counts();
        let new = counts.unselected_frames - unselected;
        self.left_out.unselected.fetch_add(new, Ordering::Relaxed);
        if !more {
            let used = recording.leading + self.kept + counts.unselected_bytes;
            let truncated = blocks.offset().saturating_sub(used);
            self.left_out.truncated.store(truncated, Ordering::Relaxed);
        }
        Ok(more)
    }
}
