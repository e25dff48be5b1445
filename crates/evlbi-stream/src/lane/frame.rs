//! Frames before and after a turn.

use std::ops::Range;

use evlbi_core::deframe::{Frame, FrameState};
use evlbi_fx::unpack::{Recorded, Unpacker};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::Cause;
use evlbi_wire::vdif::{Extended, Header, Nict, SYNC, StreamKey};

use crate::selection::ChannelId;

/// A frame of the input: a header that describes it, and samples in VDIF's order.
pub struct Piece<'a> {
    /// Header with the right time, station, thread and shape.
    pub header: Header,
    /// Samples.
    pub payload: &'a [u8],
    /// Samples as they were recorded, with the bytes next to them.
    pub recorded: Recorded<'a>,
    /// Order in which they were recorded; `None` if it is that of VDIF.
    pub order: Option<&'a Unpacker>,
    /// Cause for which the frame is invalid; `None` if it is valid.
    pub invalid: Option<Cause>,
    /// Names of the channels, in order; empty if they are numbers.
    pub names: &'a [ChannelId],
}

impl<'a> Piece<'a> {
    /// Reads a frame of VDIF in a piece of the stream. If its header is damaged, it is made from `like`, the header of an earlier frame of the thread. Returns
    /// `None` if the frame has no place in time, or there is no such header.
    pub fn read(frame: &Frame, piece: &'a [u8], like: Option<&Header>) -> Option<Piece<'a>> {
        let (key, time) = (frame.key?, frame.time?);
        let bytes = piece.get(frame.bytes.clone())?;
        let mut header = match frame.state {
            FrameState::Odd => *like?,
            _ => Header::parse(bytes).ok()?,
        };
        if header.frame_length() != bytes.len() {
            return None;
        }
        if header.time() != time {
            header.set_time(time).ok()?;
        }
        header.set_key(key);
        let invalid = match frame.state {
            FrameState::Lost => Some(Cause::Lost),
            _ => header.is_invalid().then_some(Cause::Source),
        };
        Some(Piece {
            payload: &bytes[header.len()..],
            header,
            recorded: Recorded::new(piece, frame.bytes.start + header.len()..frame.bytes.end)?,
            order: None,
            invalid,
            names: &[],
        })
    }

    /// Returns the numbers of the samples, of `width` bits each, that have bits in a range of the recorded bytes.
    pub fn samples_of(&self, bytes: &Range<usize>, width: u64) -> Range<u64> {
        match self.order {
            Some(order) => unsigned(order.samples_of(bytes.clone())),
            None => {
                let bits = |byte: usize| byte as u64 * 8;
                bits(bytes.start) / width..bits(bytes.end).div_ceil(width)
            }
        }
    }

    /// Returns the numbers of the samples that are fill pattern.
    pub fn filled(&self, width: u64) -> Vec<Range<u64>> {
        match self.order {
            Some(order) => order.filled(&self.recorded).iter().map(unsigned).collect(),
            None => {
                let runs = self.recorded.fill();
                runs.map(|run| self.samples_of(&run, width)).collect()
            }
        }
    }

    /// Returns the number of samples at the start that the header replaced.
    pub fn replaced(&self) -> u64 {
        self.order.map_or(0, |order| order.layout().replaced as u64)
    }
}

fn unsigned(samples: Range<i64>) -> Range<u64> {
    samples.start as u64..samples.end as u64
}

/// A frame of the output, or a run of frames that are missing in it.
pub struct Made<'a> {
    /// Station and thread of the first input.
    pub from: StreamKey,
    /// Channel, if channels are separated.
    pub channel: Option<ChannelId>,
    /// Station and thread of the output.
    pub key: StreamKey,
    /// Time of the first frame.
    pub time: FrameTime,
    /// Number of frames.
    pub frames: u64,
    /// Length of a frame in bytes, header included.
    pub frame_length: usize,
    /// Frames per second; `None` if unknown.
    pub frame_rate: Option<FrameRate>,
    /// Whether frames of some inputs are missing.
    pub is_incomplete: bool,
    /// Header and payload; `None` if there is nothing to write.
    pub frame: Option<(Header, &'a [u8])>,
    /// Missing parts of the frame.
    pub gaps: &'a [Gap],
}

/// Missing part of a frame.
#[derive(Clone, Debug)]
pub struct Gap {
    /// Bytes of the payload; `None` for all of it.
    pub bytes: Option<Range<usize>>,
    /// Cause.
    pub cause: Cause,
    /// Whether there is something in its place.
    pub is_there: bool,
}

/// Returns the extended words of a frame of other samples and another length than the one with this header; `None` if the words stay. Those
/// of merged threads and of Mark 5B frames describe the samples that they came with; those of ALMA and NRAO prescribe the length.
pub fn extended(header: &Header, length: usize) -> Option<Extended> {
    let none = Extended::Other {
        version: 0,
        words: [0; 4],
    };
    match header.extended()? {
        Extended::Nrao(nrao) if !matches!(length, 1032 | 5032) => Some(Extended::Nict(Nict {
            complex_rate: nrao.complex_rate,
            sync: SYNC,
            das: 0,
        })),
        Extended::Alma(_) if !matches!(length, 5032 | 8032) => Some(none),
        Extended::Merged(_) | Extended::Mark5b(_) => Some(none),
        _ => None,
    }
}

/// Returns the validity of merged threads, unless all of them are valid.
pub fn mask(header: &Header) -> Option<(u64, u32)> {
    match header.extended() {
        Some(Extended::Merged(merged)) => {
            let length = u32::from(merged.mask_length).clamp(1, 64);
            let all = u64::MAX >> (64 - length);
            (merged.mask & all != all).then_some((merged.mask, length))
        }
        _ => None,
    }
}

/// Returns whether the header of merged threads marks a channel as missing; `None` for any channel.
pub fn lacks(header: &Header, channel: Option<u16>) -> bool {
    let Some((mask, length)) = mask(header) else {
        return false;
    };
    let Some(channel) = channel else {
        return true;
    };
    let bit = u64::from(channel) * u64::from(length) / header.shape().channels();
    mask >> bit & 1 == 0
}
