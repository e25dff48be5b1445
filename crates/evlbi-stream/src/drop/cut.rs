//! Cuts a recording, frame by frame or packet by packet.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;

use evlbi_core::deframe::{Chunk, Frame};
use evlbi_core::shed::{self, Replace, Shed};
use evlbi_wire::validity::{Cause, TimeGap};
use evlbi_wire::vdif::{StationId, StreamKey};
use serde::Serialize;

use super::DropOptions;
use super::listed::Listed;
use crate::gaps::GapsWriter;

/// Key of data without station and thread; no VDIF thread has this number.
const NO_KEY: StreamKey = StreamKey {
    station: StationId(0),
    thread: u16::MAX,
};

/// Unit of the policy's decisions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A whole frame.
    Frame,
    /// This many bytes of a frame or of raw data, as in a datagram.
    Packet(usize),
}

/// Counts of the input and the output.
#[derive(Clone, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counts {
    /// Whole frames in the input.
    pub frames: u64,
    /// Frames of which all or part was shed.
    pub frames_touched: u64,
    /// Frames in the output, including invalid and damaged ones.
    pub frames_out: u64,
    /// Packets that the policy decided on; 0 if the unit is the frame.
    pub packets: u64,
    /// Bytes of the input that belong to no frame and were copied unchanged.
    pub unframed_bytes: u64,
    /// Bytes in the output.
    pub bytes_out: u64,
    /// Frames with shed data whose thread or time is unknown; the gaps file does not list them.
    pub frames_not_listed: u64,
    /// Bytes of the input, without trimmed ones.
    #[serde(skip)]
    pub walked: u64,
}

/// Writer of the output.
pub struct Cut {
    output: File,
    gaps: GapsWriter,
    /// Gaps of the input.
    listed: Listed,
    pub shed: Shed,
    unit: Unit,
    replace: Replace,
    header_length: usize,
    /// Seed of replacement data.
    seed: u64,
    /// Output of the current chunk.
    block: Vec<u8>,
    /// Shed parts of a frame.
    parts: Vec<Range<usize>>,
    /// Remaining bytes of a packet of raw data that may extend into the next block, and whether it is shed.
    raw_left: usize,
    raw_is_shed: bool,
    counts: Counts,
    /// Error that ended the output.
    pub error: Option<io::Error>,
}

impl Cut {
    pub fn new(
        output: File,
        gaps: GapsWriter,
        listed: Listed,
        shed: Shed,
        unit: Unit,
        options: &DropOptions,
        header_length: usize,
    ) -> Cut {
        Cut {
            output,
            gaps,
            listed,
            shed,
            unit,
            replace: options.replace,
            header_length,
            seed: options.seed,
            block: Vec::new(),
            parts: Vec::new(),
            raw_left: 0,
            raw_is_shed: false,
            counts: Counts::default(),
            error: None,
        }
    }

    /// Takes a piece of the input.
    pub fn take(&mut self, chunk: Chunk<'_>) {
        if self.error.is_some() {
            return;
        }
        self.block.clear();
        let done = self.cut(chunk);
        let done = done.and_then(|()| self.output.write_all(&self.block));
        self.error = done.err();
        self.counts.bytes_out += self.block.len() as u64;
        self.counts.walked += chunk.bytes.len() as u64;
    }

    /// Closes the files; returns the counts and the number of listed gaps.
    pub fn finish(mut self) -> io::Result<(Counts, u64)> {
        self.listed.finish(&mut self.gaps)?;
        let gaps = self.gaps.finish()?;
        Ok((self.counts, gaps))
    }

    fn cut(&mut self, chunk: Chunk<'_>) -> io::Result<()> {
        if chunk.frames.is_empty() {
            return self.take_unframed(chunk.bytes);
        }
        for frame in chunk.frames {
            let bytes = &chunk.bytes[frame.bytes.clone()];
            self.counts.frames += 1;
            self.listed.skip_to(frame, &mut self.gaps)?;
            let unit = self.unit;
            match unit {
                Unit::Frame if self.decide(Some(frame), bytes) => {
                    self.lose_frame(frame, bytes, self.header_length)?;
                }
                Unit::Frame => self.keep(frame, bytes)?,
                Unit::Packet(length) => self.take_packets(frame, bytes, length)?,
            }
        }
        Ok(())
    }

    fn take_packets(&mut self, frame: &Frame, bytes: &[u8], length: usize) -> io::Result<()> {
        self.parts.clear();
        for start in (0..bytes.len()).step_by(length) {
            let end = bytes.len().min(start + length);
            self.counts.packets += 1;
            if self.decide(Some(frame), bytes) {
                match self.parts.last_mut() {
                    Some(part) if part.end == start => part.end = end,
                    _ => self.parts.push(start..end),
                }
            }
        }
        if self.parts.is_empty() {
            return self.keep(frame, bytes);
        }
        if self.replace == Replace::Invalid {
            return self.lose_frame(frame, bytes, self.header_length);
        }
        match self.parts[0] == (0..bytes.len()) {
            true => self.lose_frame(frame, bytes, 0),
            false => self.lose_parts(frame, bytes),
        }
    }

    fn keep(&mut self, frame: &Frame, bytes: &[u8]) -> io::Result<()> {
        let place = self.counts.bytes_out + self.block.len() as u64;
        self.listed.keep(frame, Some(place), &mut self.gaps)?;
        self.counts.frames_out += 1;
        self.block.extend_from_slice(bytes);
        Ok(())
    }

    /// Drops a frame; the first `kept` bytes, its header, stay.
    fn lose_frame(&mut self, frame: &Frame, bytes: &[u8], kept: usize) -> io::Result<()> {
        self.note(frame, None)?;
        if self.replace == Replace::Nothing {
            return Ok(());
        }
        self.counts.frames_out += 1;
        let (header, payload) = bytes.split_at(kept.min(bytes.len()));
        let start = self.block.len();
        self.block.extend_from_slice(header);
        if self.replace == Replace::Invalid {
            // The highest bit of the first word of VDIF, which is little-endian.
            if let Some(byte) = self.block.get_mut(start + 3) {
                *byte |= 0x80;
            }
        }
        self.put_replaced(unit_of(Some(frame), bytes), payload.len(), 0, 0);
        Ok(())
    }

    /// Drops the shed packets of a frame; headers are dropped with the packets that contain them.
    fn lose_parts(&mut self, frame: &Frame, bytes: &[u8]) -> io::Result<()> {
        self.counts.frames_out += u64::from(self.replace != Replace::Nothing);
        let parts = std::mem::take(&mut self.parts);
        let place = self.counts.bytes_out + self.block.len() as u64;
        let mut kept = 0;
        for part in &parts {
            self.block.extend_from_slice(&bytes[kept..part.start]);
            if self.replace != Replace::Nothing {
                let unit = unit_of(Some(frame), bytes);
                self.put_replaced(unit, part.len(), part.start, part.start as u64);
            }
            kept = part.end;
        }
        self.block.extend_from_slice(&bytes[kept..]);
        self.note(frame, Some(&parts))?;
        self.parts = parts;
        let place = Some(place).filter(|_| self.replace != Replace::Nothing);
        self.listed.keep(frame, place, &mut self.gaps)
    }

    /// Appends replacement data for `length` bytes at `offset` of their frame.
    fn put_replaced(&mut self, unit: shed::Unit, length: usize, offset: usize, part: u64) {
        let start = self.block.len();
        self.block.resize(start + length, 0);
        unit.replace(
            self.replace,
            self.seed,
            part,
            offset,
            &mut self.block[start..],
        );
    }

    /// Lists a frame in the gaps: all of it, or `parts` of it.
    fn note(&mut self, frame: &Frame, parts: Option<&[Range<usize>]>) -> io::Result<()> {
        self.counts.frames_touched += 1;
        let (Some(key), Some(start)) = (frame.key, frame.time) else {
            self.counts.frames_not_listed += 1;
            return Ok(());
        };
        let there = self.replace != Replace::Nothing;
        let in_block = match parts {
            // A partly kept frame is at the end of the block by now.
            Some(_) => self.block.len() - frame.bytes.len().min(self.block.len()),
            None => self.block.len(),
        };
        let gap = TimeGap {
            key,
            start,
            frames: 1,
            first_byte: there.then_some(self.counts.bytes_out + in_block as u64),
            bytes: None,
            cause: Cause::Shed,
        };
        let Some(parts) = parts else {
            return self.gaps.add(gap);
        };
        for part in parts {
            let in_payload = |place: usize| place.saturating_sub(self.header_length);
            let bytes = Some(in_payload(part.start)..in_payload(part.end));
            self.gaps.add(TimeGap {
                bytes,
                ..gap.clone()
            })?;
        }
        Ok(())
    }

    fn decide(&mut self, frame: Option<&Frame>, bytes: &[u8]) -> bool {
        self.shed.decide(&unit_of(frame, bytes))
    }

    /// Takes raw data, or data between frames.
    fn take_unframed(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.counts.unframed_bytes += bytes.len() as u64;
        let length = match self.unit {
            // Only a recording with frames has a header length.
            Unit::Packet(length) if self.header_length == 0 => length,
            _ => {
                self.block.extend_from_slice(bytes);
                return Ok(());
            }
        };
        while !bytes.is_empty() {
            if self.raw_left == 0 {
                self.raw_is_shed = self.decide(None, bytes);
                self.raw_left = length;
                if self.raw_is_shed {
                    self.gaps.add_packet(self.counts.packets)?;
                }
                self.counts.packets += 1;
            }
            let (now, later) = bytes.split_at(self.raw_left.min(bytes.len()));
            match (self.raw_is_shed, self.replace) {
                (false, _) => self.block.extend_from_slice(now),
                (true, Replace::Nothing) => {}
                (true, _) => {
                    let offset = length - self.raw_left;
                    // A packet of raw data is identified by its offset alone.
                    let part = self.counts.packets * length as u64 + offset as u64;
                    self.put_replaced(unit_of(None, now), now.len(), offset, part);
                }
            }
            self.raw_left -= now.len();
            bytes = later;
        }
        Ok(())
    }
}

/// Returns the unit that the policy decides on, for a frame or raw data.
fn unit_of(frame: Option<&Frame>, bytes: &[u8]) -> shed::Unit {
    let key = frame.and_then(|frame| frame.key).unwrap_or(NO_KEY);
    shed::Unit::new(key, frame.and_then(|frame| frame.time), bytes)
}
