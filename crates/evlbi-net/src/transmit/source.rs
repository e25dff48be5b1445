//! The sources of frames: a file that is read ahead, or memory that is sent round and round.

use std::io;

use crate::file::{Block, Reader};

use super::{Frames, Source};

/// A recording, read once or several times.
pub struct FileSource {
    reader: Reader,
    block: Option<Block>,
    /// There are no more blocks.
    ended: bool,
    /// What comes after the last block.
    tail: Vec<u8>,
    at: usize,
    /// Frames of each thread that a pass lasts.
    pass_frames: i64,
}

impl FileSource {
    /// Sends what `reader` reads, in whole frames; each further pass is moved on by `pass_frames`. After
    /// all of it, `tail` is sent, whole frames too.
    pub fn new(reader: Reader, pass_frames: i64, tail: Vec<u8>) -> FileSource {
        FileSource {
            reader,
            block: None,
            ended: false,
            tail,
            at: 0,
            pass_frames,
        }
    }
}

impl Source for FileSource {
    fn frames(&mut self) -> io::Result<Frames<'_>> {
        let left = |block: &Block| self.at < block.len();
        if !self.ended && !self.block.as_ref().is_some_and(left) {
            // Its memory goes back before the next block is waited for.
            self.block = None;
            self.at = 0;
            self.block = self
                .reader
                .next_block()
                .transpose()
                .map_err(io::Error::other)?;
            self.ended = self.block.is_none();
        }
        Ok(match &self.block {
            Some(block) => Frames {
                bytes: &block[self.at..],
                shift: self
                    .pass_frames
                    .saturating_mul(i64::try_from(block.pass).unwrap_or(i64::MAX)),
            },
            None => Frames {
                bytes: &self.tail[self.at..],
                shift: 0,
            },
        })
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

/// Frames in memory, sent round and round.
pub struct LoopSource {
    frames: Vec<u8>,
    at: usize,
    pass: i64,
    pass_frames: i64,
    /// Bytes that are still to be sent.
    left: u64,
}

impl LoopSource {
    /// Sends `frames`, whole frames that last `pass_frames` in each thread, until `total` bytes have left.
    pub fn new(frames: Vec<u8>, pass_frames: i64, total: u64) -> LoopSource {
        LoopSource {
            left: if frames.is_empty() { 0 } else { total },
            frames,
            at: 0,
            pass: 0,
            pass_frames,
        }
    }
}

impl Source for LoopSource {
    fn frames(&mut self) -> io::Result<Frames<'_>> {
        let rest = &self.frames[self.at..];
        let length = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(rest.len());
        Ok(Frames {
            bytes: &rest[..length],
            shift: self.pass_frames.saturating_mul(self.pass),
        })
    }

    fn consume(&mut self, bytes: usize) {
        self.left -= bytes as u64;
        self.at += bytes;
        if self.at == self.frames.len() {
            self.at = 0;
            self.pass += 1;
        }
    }
}
