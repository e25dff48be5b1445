//! Iterates over the frames that go into a track, from a file or a stream.

use evlbi_core::deframe::{Chunk, FrameState};
use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::{Header, StreamKey};

/// A frame with its time and thread.
pub struct Arrived<'a> {
    pub header: Header,
    pub key: StreamKey,
    pub time: FrameTime,
    pub invalid: bool,
    pub payload: &'a [u8],
}

/// Returns the frames of a piece of a stream that have a time and a thread.
pub fn arrived<'a>(chunk: Chunk<'a>) -> impl Iterator<Item = Arrived<'a>> {
    chunk.frames.iter().filter_map(move |frame| {
        let bytes = &chunk.bytes[frame.bytes.clone()];
        let header = Header::parse(bytes).ok()?;
        Some(Arrived {
            payload: bytes.get(header.len()..).unwrap_or_default(),
            header,
            key: frame.key?,
            time: frame.time?,
            invalid: matches!(frame.state, FrameState::SourceInvalid | FrameState::Lost),
        })
    })
}
