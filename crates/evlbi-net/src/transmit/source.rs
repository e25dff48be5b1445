//! Sources of frames: a file that is read ahead, memory that is sent repeatedly, or the test pattern.

use std::io;

use evlbi_wire::pattern::{self, LengthError};
use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif::HEADER_LEN;

use crate::file::{Block, Reader};

use super::{Frames, Source};

/// A recording, read once or several times.
pub struct FileSource {
    reader: Reader,
    block: Option<Block>,
    /// There are no more blocks.
    ended: bool,
    /// Frames after the last block.
    tail: Vec<u8>,
    at: usize,
    /// Frames of each thread per pass.
    pass_frames: i64,
}

impl FileSource {
    /// Creates a source of what `reader` reads, in whole frames; each further pass is re-timed by `pass_frames`. Sends `tail`, also
    /// whole frames, at the end.
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
        let left = |block: &Option<Block>, at| block.as_ref().is_some_and(|it| at < it.len());
        while !self.ended && !left(&self.block, self.at) {
            // Its memory returns before waiting for the next block.
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

/// Frames in memory that are sent repeatedly.
pub struct LoopSource {
    frames: Vec<u8>,
    at: usize,
    pass: i64,
    pass_frames: i64,
    /// Bytes left to send.
    left: u64,
}

impl LoopSource {
    /// Creates a source of `frames`: whole frames, `pass_frames` per thread, until `total` bytes are sent.
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

/// The test pattern, at any frame rate: each frame's payload follows from its number in the second.
pub struct PatternSource {
    /// As many periods, or as much of one, as fits into the memory.
    frames: Vec<u8>,
    frame_length: usize,
    rate: FrameRate,
    /// Index of the next frame, counted from the first of a second.
    next: u64,
    /// Number of the first frame in memory, if that is less than a period.
    held: Option<u32>,
}

impl PatternSource {
    /// Creates frames of `rate`, starting with the first one of `second` (UTC since 1970), in this many bytes of memory, or in the
    /// memory of one frame if that is more.
    ///
    /// # Errors
    /// Returns [`LengthError`].
    pub fn new(
        frame_length: usize,
        second: i64,
        rate: FrameRate,
        memory: usize,
    ) -> Result<PatternSource, LengthError> {
        let room = u32::try_from(memory / frame_length.max(1)).unwrap_or(u32::MAX);
        let count = match room / pattern::PERIOD {
            0 => room.max(1),
            periods => periods * pattern::PERIOD,
        };
        Ok(PatternSource {
            frames: pattern::frames(frame_length, second, rate, count)?,
            frame_length,
            rate,
            next: 0,
            held: (count < pattern::PERIOD).then_some(0),
        })
    }

    /// Returns the number of frames in memory.
    fn count(&self) -> u32 {
        (self.frames.len() / self.frame_length) as u32
    }

    /// Fills the memory with the frames from `number` on.
    fn hold(&mut self, number: u32) {
        for (number, frame) in (number..).zip(self.frames.chunks_exact_mut(self.frame_length)) {
            pattern::payload(number, &mut frame[HEADER_LEN..]);
        }
        self.held = Some(number);
    }
}

impl Source for PatternSource {
    fn frames(&mut self) -> io::Result<Frames<'_>> {
        let rate = u64::from(self.rate.get());
        let number = (self.next % rate) as u32;
        let place = match self.held {
            None => number % pattern::PERIOD,
            Some(first) if (first..first + self.count()).contains(&number) => number - first,
            Some(_) => {
                self.hold(number);
                0
            }
        };
        // The numbers, and with them the payloads, restart with the second.
        let count = (self.count() - place).min(self.rate.get() - number) as usize;
        let from = place as usize * self.frame_length;
        Ok(Frames {
            bytes: &self.frames[from..from + count * self.frame_length],
            shift: i64::try_from(self.next).unwrap_or(i64::MAX) - i64::from(place),
        })
    }

    fn consume(&mut self, bytes: usize) {
        self.next += (bytes / self.frame_length) as u64;
    }
}

#[cfg(test)]
mod tests {
    use evlbi_wire::time::FrameTime;
    use evlbi_wire::vdif::Header;

    use super::*;

    /// Frames over several seconds, by their headers: slow and fast rates, multiples of the period and others, with memory for a whole
    /// period and for part of it.
    #[test]
    fn a_pattern_verifies_at_any_rate_in_any_memory() {
        const LENGTH: usize = 72;
        const SECOND: i64 = 1_700_000_000;
        for rate in [1, 3, 63, 64, 65, 200, 249] {
            let rate = FrameRate::new(rate).unwrap();
            for memory in [0, 5 * LENGTH, 64 * LENGTH, 300 * LENGTH] {
                let mut source = PatternSource::new(LENGTH, SECOND, rate, memory).unwrap();
                assert!(source.frames.len() <= memory.max(LENGTH));
                let (mut index, mut step) = (0, 0);
                while index < 3 * i64::from(rate.get()) + 70 {
                    let frames = source.frames().unwrap();
                    // Like a flow: some of them, or all.
                    step += 1;
                    let taken = (frames.bytes.len() / LENGTH).min(step % 9 + 1);
                    for bytes in frames.bytes.chunks(LENGTH).take(taken) {
                        let header = Header::parse(bytes).unwrap();
                        let time = header.time().index(rate) + frames.shift;
                        let time = FrameTime::from_index(time, rate);
                        let first = FrameTime {
                            second: SECOND,
                            frame: 0,
                        };
                        assert_eq!(time.index(rate), first.index(rate) + index);
                        let mut expected = [0; LENGTH - HEADER_LEN];
                        pattern::payload(time.frame, &mut expected);
                        assert_eq!(bytes[header.len()..], expected, "{rate:?} {memory} {index}");
                        index += 1;
                    }
                    source.consume(taken * LENGTH);
                }
            }
        }
    }
}
