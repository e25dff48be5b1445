//! Iterates over the frames that go into a track, from a file or a stream.

use evlbi_core::deframe::{Chunk, FrameState, Layout};
use evlbi_fx::unpack::Recorded;
use evlbi_wire::time::FrameTime;
use evlbi_wire::vdif::StreamKey;

/// A frame with its time and thread.
#[derive(Clone)]
pub struct Arrived<'a> {
    /// Common properties of the frames of its stream.
    pub layout: Layout,
    pub key: StreamKey,
    pub time: FrameTime,
    pub invalid: bool,
    /// Whether the header is damaged: thread and time are those of the next frame of the stream.
    pub is_odd: bool,
    /// Offset of the frame in its piece.
    pub begin: usize,
    pub header: &'a [u8],
    pub samples: Recorded<'a>,
}

/// Returns the frames of a piece of a stream that have a time and a thread.
pub fn arrived<'a>(chunk: Chunk<'a>) -> impl Iterator<Item = Arrived<'a>> {
    chunk.frames.iter().filter_map(move |frame| {
        let layout = chunk.layout?;
        let begin = frame.bytes.start + layout.header_length;
        Some(Arrived {
            layout,
            key: frame.key?,
            time: frame.time?,
            invalid: matches!(frame.state, FrameState::SourceInvalid | FrameState::Lost),
            is_odd: frame.state == FrameState::Odd,
            begin: frame.bytes.start,
            header: chunk.bytes.get(frame.bytes.start..begin)?,
            samples: Recorded::new(chunk.with_next, begin..frame.bytes.end)?,
        })
    })
}
