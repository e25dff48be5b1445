//! Common properties of the frames of a stream, and the content of their headers.

use std::fmt;
use std::sync::Arc;

use evlbi_wire::mark4::{self, TimeCode, Tracks};
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
    /// Mark 4 frames, as Mark 5A records them.
    Mark4,
    /// Anything else: bytes without frames.
    Raw,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Vdif => "VDIF",
            Format::Mark5b => "Mark 5B",
            Format::Mark4 => "Mark 4",
            Format::Raw => "raw data",
        })
    }
}

/// Common properties of the frames of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// VDIF, Mark 5B or Mark 4.
    pub format: Format,
    /// Length of a frame in bytes, header included.
    pub frame_length: usize,
    /// Length of a header in bytes.
    pub header_length: usize,
    /// VDIF version number; 0 in other formats.
    pub version: u8,
    /// Frames per second of Mark 4, as the times in two headers show; `None` in other formats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_rate: Option<FrameRate>,
}

/// Days before the latest time of a Mark 5B recording, in the middle of the 1000 days in which times do not repeat. Two days allow for
/// clocks that differ.
const MARK5B_MIDDLE: i64 = 498 * 86_400;

impl Layout {
    /// Mark 5B frames all have the same layout.
    pub(super) const MARK5B: Layout = Layout {
        format: Format::Mark5b,
        frame_length: mark5b::FRAME_LEN,
        header_length: mark5b::HEADER_LEN,
        version: 0,
        frame_rate: None,
    };

    /// Returns the layout of Mark 4 frames of these tracks; `None` if a second is not a whole number of frames.
    pub(super) fn of_mark4(tracks: Tracks, frame_rate: FrameRate) -> Option<Layout> {
        mark4::FRAME_RATES
            .contains(&frame_rate.get())
            .then_some(Layout {
                format: Format::Mark4,
                frame_length: tracks.frame_length(),
                header_length: tracks.header_length(),
                version: 0,
                frame_rate: Some(frame_rate),
            })
    }

    /// Returns the tracks of Mark 4 frames.
    pub fn tracks(&self) -> Option<Tracks> {
        let tracks = Tracks::new(8 * self.frame_length / mark4::FRAME_BITS);
        tracks.filter(|_| self.format == Format::Mark4)
    }

    pub(super) fn of_vdif(header: &vdif::Header) -> Layout {
        Layout {
            format: Format::Vdif,
            frame_length: header.frame_length(),
            header_length: header.len(),
            version: header.version(),
            frame_rate: None,
        }
    }

    /// Returns whether `bytes` start with a header of this layout.
    #[inline]
    pub(crate) fn is_header(&self, bytes: &[u8]) -> bool {
        match self.format {
            // Without a copy on the heap.
            Format::Mark4 => {
                let header = self.read_mark4(bytes, 0);
                header.is_some_and(|(header, _)| header.is_intact())
            }
            _ => self.read(bytes, 0).is_some(),
        }
    }

    /// Reads what the header at the start of `bytes` says, if it has this layout. `latest` is
    /// [`Settings::latest`](super::Settings::latest).
    pub fn stamp(&self, bytes: &[u8], latest: i64) -> Option<Stamp> {
        let head = self.read(bytes, latest)?;
        Some(Stamp {
            key: head.key(),
            time: head.time(),
            is_invalid: head.is_invalid(),
        })
    }

    /// Reads the header at the start of `bytes`, if it has this layout. `latest` is [`Settings::latest`](super::Settings::latest).
    pub(super) fn read(&self, bytes: &[u8], latest: i64) -> Option<Head> {
        match self.format {
            Format::Vdif => {
                let header = vdif::Header::parse(bytes).ok()?;
                (Layout::of_vdif(&header) == *self).then_some(Head::Vdif(header))
            }
            Format::Mark5b => {
                let header = mark5b::Header::parse(bytes).ok()?;
                let time = header.time(latest.saturating_sub(MARK5B_MIDDLE)).ok()?;
                Some(Head::Mark5b(header, time))
            }
            Format::Mark4 => {
                let (header, time) = self.read_mark4(bytes, latest)?;
                let is_intact = header.is_intact();
                is_intact.then(|| Head::Mark4(Arc::new(header), time))
            }
            Format::Raw => None,
        }
    }

    /// Reads the time that most tracks of a Mark 4 header show, whatever their CRC.
    pub(super) fn voted_time(&self, bytes: &[u8], latest: i64) -> Option<FrameTime> {
        self.read_mark4(bytes, latest).map(|(_, time)| time)
    }

    fn read_mark4(&self, bytes: &[u8], latest: i64) -> Option<(mark4::Header, FrameTime)> {
        let header = mark4::Header::parse(bytes, self.tracks()?).ok()?;
        let code = header.time_code().ok()?;
        let second = code.second(latest)?;
        let micros = 1_000_000 / self.frame_rate?.get();
        let frame = code.micros() / micros;
        let time = FrameTime { second, frame };
        (code.micros() % micros == 0).then_some((header, time))
    }
}

/// Station, thread and time in the header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Station and thread.
    pub key: StreamKey,
    /// Time.
    pub time: FrameTime,
    /// Whether the frame is marked invalid.
    pub is_invalid: bool,
}

/// Header of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Vdif(vdif::Header),
    Mark5b(mark5b::Header, FrameTime),
    Mark4(Arc<mark4::Header>, FrameTime),
}

impl Head {
    pub fn key(&self) -> StreamKey {
        match self {
            Head::Vdif(header) => header.key(),
            Head::Mark5b(..) | Head::Mark4(..) => StreamKey::default(),
        }
    }

    pub fn time(&self) -> FrameTime {
        match self {
            Head::Vdif(header) => header.time(),
            Head::Mark5b(_, time) | Head::Mark4(_, time) => *time,
        }
    }

    /// Seconds since 1970 at which VDIF's epochs start: the time of a header whose time was never set.
    const UNSET: i64 = 946_684_800;

    /// Returns whether this is a frame marked invalid without a time, as some recorders write for lost frames.
    pub fn is_without_time(&self) -> bool {
        self.is_invalid() && self.time().second == Head::UNSET
    }

    /// Returns whether the frame is marked invalid: Mark 5B cannot do it, in Mark 4 the formatter reports an error.
    pub fn is_invalid(&self) -> bool {
        match self {
            Head::Vdif(header) => header.is_invalid(),
            Head::Mark5b(..) => false,
            Head::Mark4(header, _) => header.is_faulty(),
        }
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
            Head::Mark5b(..) | Head::Mark4(..) => None,
        }
    }

    /// Writes the header to the start of `frame`.
    pub fn emit(&self, frame: &mut [u8]) {
        match self {
            Head::Vdif(header) => header.emit(frame),
            Head::Mark5b(header, _) => header.emit(frame),
            Head::Mark4(header, _) => header.emit(frame),
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
            Head::Mark4(header, _) => {
                let micros = u64::from(time.frame) * 1_000_000 / u64::from(rate?.get());
                let code = TimeCode::new(time.second, u32::try_from(micros).ok()?)?;
                let mut filled = header.as_ref().clone();
                filled.set_time_code(code);
                Some(Head::Mark4(Arc::new(filled), time))
            }
        }
    }
}
