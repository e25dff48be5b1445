//! Common properties of the frames of a stream, and the content of their headers.

use evlbi_wire::mark5b;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{self, StreamKey};
use serde::{Deserialize, Serialize};

/// Format of the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// VDIF frames.
    Vdif,
    /// Mark 5B disk frames.
    Mark5b,
    /// Anything else: bytes without frames.
    Raw,
}

/// Common properties of the frames of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// VDIF or Mark 5B.
    pub format: Format,
    /// Length of a frame in bytes, header included.
    pub frame_length: usize,
    /// Length of a header in bytes.
    pub header_length: usize,
    /// VDIF version number; 0 in Mark 5B.
    pub version: u8,
}

impl Layout {
    /// Mark 5B frames all have the same layout.
    pub(super) const MARK5B: Layout = Layout {
        format: Format::Mark5b,
        frame_length: mark5b::FRAME_LEN,
        header_length: mark5b::HEADER_LEN,
        version: 0,
    };

    pub(super) fn of_vdif(header: &vdif::Header) -> Layout {
        Layout {
            format: Format::Vdif,
            frame_length: header.frame_length(),
            header_length: header.len(),
            version: header.version(),
        }
    }

    /// Returns whether `bytes` start with a header of this layout.
    pub(crate) fn is_header(&self, bytes: &[u8]) -> bool {
        self.read(bytes, 0).is_some()
    }

    /// Reads the header at the start of `bytes`, if it has this layout. `reference` is a time within 500 days, in UTC seconds
    /// since 1970-01-01.
    pub(super) fn read(&self, bytes: &[u8], reference: i64) -> Option<Head> {
        match self.format {
            Format::Vdif => {
                let header = vdif::Header::parse(bytes).ok()?;
                (Layout::of_vdif(&header) == *self).then_some(Head::Vdif(header))
            }
            Format::Mark5b => {
                let header = mark5b::Header::parse(bytes).ok()?;
                let time = header.time(reference).ok()?;
                Some(Head::Mark5b(header, time))
            }
            Format::Raw => None,
        }
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Vdif(vdif::Header),
    Mark5b(mark5b::Header, FrameTime),
}

impl Head {
    pub fn key(&self) -> StreamKey {
        match self {
            Head::Vdif(header) => header.key(),
            Head::Mark5b(..) => StreamKey::default(),
        }
    }

    pub fn time(&self) -> FrameTime {
        match self {
            Head::Vdif(header) => header.time(),
            Head::Mark5b(_, time) => *time,
        }
    }

    /// Seconds since 1970 at which VDIF's epochs start: the time of a header whose time was never set.
    const UNSET: i64 = 946_684_800;

    /// Returns whether this is a frame marked invalid without a time, as some recorders write for lost frames.
    pub fn is_without_time(&self) -> bool {
        self.is_invalid() && self.time().second == Head::UNSET
    }

    /// Returns whether the frame is marked invalid, which Mark 5B cannot do.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Head::Vdif(header) if header.is_invalid())
    }

    pub fn set_invalid(&mut self, invalid: bool) {
        if let Head::Vdif(header) = self {
            header.set_invalid(invalid);
        }
    }

    pub fn set_thread(&mut self, thread: u16) {
        if let Head::Vdif(header) = self {
            let mut key = header.key();
            key.thread = thread;
            header.set_key(key);
        }
    }

    /// Returns the frames per second that the header gives.
    pub fn frame_rate(&self) -> Option<FrameRate> {
        match self {
            Head::Vdif(header) => header.frame_rate(),
            Head::Mark5b(..) => None,
        }
    }

    /// Writes the header to the start of `frame`.
    pub fn emit(&self, frame: &mut [u8]) {
        match self {
            Head::Vdif(header) => header.emit(frame),
            Head::Mark5b(header, _) => header.emit(frame),
        }
    }

    /// Returns the header of the lost frame `frames_on` frames after this one in the same thread; `None` if its time does not fit
    /// a header.
    pub fn fill_after(
        &self,
        time: FrameTime,
        frames_on: i64,
        rate: Option<FrameRate>,
    ) -> Option<Head> {
        match self {
            Head::Vdif(header) => header
                .fill_after(time, frames_on, rate)
                .ok()
                .map(Head::Vdif),
            Head::Mark5b(header, _) => {
                let filled = header.fill_at(time, rate).ok()?;
                Some(Head::Mark5b(filled, time))
            }
        }
    }
}
