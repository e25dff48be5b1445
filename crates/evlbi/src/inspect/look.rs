//! What is looked for while the frames pass.

use std::collections::HashMap;

use evlbi_core::deframe::{Chunk, Format, Frame, FrameState};
use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif::{self, StreamKey};
use evlbi_wire::{fill, mark5b};
use serde::Serialize;

use super::thread::{Sampling, Thread};
use crate::recording::Recording;

/// Where the fill pattern was found.
#[derive(Clone, Copy, Default, Serialize)]
pub struct FillFound {
    /// Bytes of it, in runs of 16 bytes or more.
    pub bytes: u64,
    /// Frames with some of it.
    pub frames: u64,
    /// Those of them that are not marked invalid.
    pub valid_frames: u64,
}

/// Everything that was seen so far.
pub struct Look {
    format: Format,
    frame_rate: Option<FrameRate>,
    pub sampling: Sampling,
    /// In the order in which they first appear.
    pub threads: Vec<Thread>,
    by_key: HashMap<StreamKey, usize>,
    pub fill: FillFound,
    /// VDIF version number of the first frame.
    pub version: Option<u8>,
}

impl Look {
    pub fn new(recording: &Recording, frame_rate: Option<FrameRate>) -> Look {
        Look {
            format: recording.format,
            frame_rate,
            sampling: Sampling::new(recording.frames(), recording.keys.len()),
            threads: Vec::new(),
            by_key: HashMap::new(),
            fill: FillFound::default(),
            version: None,
        }
    }

    /// Looks at a piece of the recording.
    pub fn take(&mut self, chunk: Chunk<'_>) {
        if chunk.frames.is_empty() {
            self.fill.bytes += fill_in(chunk.bytes);
        }
        for frame in chunk.frames {
            self.take_frame(frame, &chunk.bytes[frame.bytes.clone()]);
        }
    }

    fn take_frame(&mut self, frame: &Frame, bytes: &[u8]) {
        let header = match self.format {
            Format::Vdif => vdif::Header::parse(bytes).ok(),
            Format::Mark5b | Format::Raw => None,
        };
        let header_length = header.map_or(mark5b::HEADER_LEN, |header| header.len());
        let payload = bytes.get(header_length..).unwrap_or_default();
        let valid = frame.state == FrameState::Whole;
        let filled = fill_in(payload);
        self.fill.bytes += filled;
        self.fill.frames += u64::from(filled > 0);
        self.fill.valid_frames += u64::from(filled > 0 && valid);
        let (Some(key), Some(time)) = (frame.key, frame.time) else {
            return;
        };
        if valid || self.version.is_none() {
            self.version = header.map(|header| header.version());
        }
        let (threads, frame_rate) = (&mut self.threads, self.frame_rate);
        let index = *self.by_key.entry(key).or_insert_with(|| {
            threads.push(Thread::new(key, header, frame_rate, threads.len()));
            threads.len() - 1
        });
        let thread = &mut threads[index];
        if valid && let Some(header) = header {
            thread.describe(header, index);
        }
        thread.see(time, valid);
        if valid && filled == 0 {
            thread.sample(payload, self.sampling);
        }
    }
}

/// Bytes of the fill pattern.
fn fill_in(bytes: &[u8]) -> u64 {
    fill::find(bytes).map(|run| run.len() as u64).sum()
}
