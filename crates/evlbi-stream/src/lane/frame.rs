//! Frames before and after a turn.
//!
//! Put here how a frame of another format becomes a [`Piece`].

use std::ops::Range;

use evlbi_core::deframe::{Frame, FrameState};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::Cause;
use evlbi_wire::vdif::{Extended, Header, StreamKey};

/// A frame of the input: a header that describes it, and samples in VDIF's order.
pub struct Piece<'a> {
    /// Header with the right time, station, thread and shape.
    pub header: Header,
    /// Samples.
    pub payload: &'a [u8],
    /// Whether the frame is valid.
    pub is_valid: bool,
}

impl<'a> Piece<'a> {
    /// Reads a frame of VDIF. If its header is damaged, it is made from `like`, the header of an earlier frame of the thread. Returns
    /// `None` if the frame has no place in time, or there is no such header.
    pub fn read(frame: &Frame, bytes: &'a [u8], like: Option<&Header>) -> Option<Piece<'a>> {
        let (key, time) = (frame.key?, frame.time?);
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
        let is_valid = !header.is_invalid() && !matches!(frame.state, FrameState::Lost);
        Some(Piece {
            payload: &bytes[header.len()..],
            header,
            is_valid,
        })
    }
}

/// A frame of the output, or a run of frames that are missing in it.
pub struct Made<'a> {
    /// Station and thread of the first input.
    pub from: StreamKey,
    /// Channel, if channels are separated.
    pub channel: Option<u16>,
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
