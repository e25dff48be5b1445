//! Reads the start of a recording, or all of it, for its format, its threads, and its first and last frame.
//!
//! Put here what is found out from frames in their order.

use std::collections::HashSet;
use std::path::Path;

use evlbi_core::deframe::{Chunk, Deframer, Format, FrameState, Layout, Selected};
use evlbi_wire::mark4;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, Shape, StreamKey};

use super::{Blocks, Recording, RecordingError, Rest, deframer, is_near, open};

/// The start of a recording, or all of it.
pub(super) struct Start {
    pub(super) survey: Survey,
    pub(super) deframer: Deframer,
    /// Number of bytes before the first frame.
    pub(super) leading: u64,
    /// Number of bytes that were read.
    pub(super) read: u64,
}

impl Start {
    /// Reads up to `length` bytes of a file; only `enough` if these show the frame rate. The first and last frames are those of
    /// `selected`.
    pub(super) fn read(
        path: &Path,
        selected: &Selected,
        frame_rate: Option<FrameRate>,
        second: i64,
        length: u64,
        enough: u64,
    ) -> Result<Start, RecordingError> {
        let mut survey = Survey::of(selected.clone());
        let mut deframer = deframer(frame_rate, second, Selected::default());
        let mut blocks = Blocks::new(open(path)?, length);
        while blocks.step(&mut deframer, |chunk| survey.note(chunk))? {
            if blocks.offset() >= enough && deframer.frame_rate().is_some() {
                break;
            }
        }
        Ok(Start {
            survey,
            deframer,
            leading: blocks.leading().unwrap_or(0),
            read: length - blocks.left,
        })
    }

    pub(super) fn recording(&self, path: &Path, size: u64, second: i64) -> Recording {
        let (survey, layout) = (&self.survey, self.deframer.layout());
        Recording {
            path: path.to_path_buf(),
            format: self.deframer.format().unwrap_or(Format::Raw),
            size,
            leading: self.leading,
            frame_length: layout.map(|layout| layout.frame_length),
            layout,
            shape: survey.shape,
            mark4: survey.mark4.clone(),
            relative: None,
            keys: survey.keys.clone(),
            frame_rate: self.deframer.frame_rate(),
            first: survey.first.map(|first| first.time),
            last: None,
            rest: None,
            latest: second,
            selected: Selected::default(),
        }
    }
}

#[derive(Default)]
pub(super) struct Survey {
    selected: Selected,
    layout: Option<Layout>,
    /// First change of the format; it counts bytes from the first frame.
    pub(super) rest: Option<Rest>,
    /// Number of bytes so far.
    bytes: u64,
    /// Number of bytes up to the end of the last undamaged frame.
    framed: u64,
    /// Number and time of the last frame of the first frame's thread.
    pub(super) last: Option<(u64, FrameTime)>,
    keys: Vec<StreamKey>,
    seen: HashSet<StreamKey>,
    shape: Option<Shape>,
    mark4: Option<Box<mark4::Header>>,
    pub(super) first: Option<First>,
    /// Whether a frame without the invalid bit was found.
    has_valid: bool,
    frames: u64,
}

/// The first trustworthy frame.
#[derive(Clone, Copy)]
pub(super) struct First {
    pub(super) number: u64,
    pub(super) key: StreamKey,
    pub(super) time: FrameTime,
    /// The frame rate in its header.
    pub(super) told: Option<FrameRate>,
}

impl Survey {
    /// Makes a survey whose first and last frames are those of some streams.
    pub(super) fn of(selected: Selected) -> Survey {
        Survey {
            selected,
            ..Survey::default()
        }
    }

    pub(super) fn note(&mut self, chunk: Chunk<'_>) {
        let begin = self.bytes;
        self.bytes += chunk.bytes.len() as u64;
        if let (None, Some(layout), [_, ..]) = (self.rest, chunk.layout, chunk.frames) {
            let first = *self.layout.get_or_insert(layout);
            let Layout {
                format,
                frame_length,
                ..
            } = layout;
            let is_alike = (first.format, first.frame_length) == (format, frame_length);
            match self.framed {
                _ if is_alike => {}
                0 => self.layout = Some(layout),
                byte => {
                    self.rest = Some(Rest {
                        byte,
                        format,
                        frame_length,
                    });
                }
            }
        }
        if self.rest.is_some() {
            return;
        }
        for frame in chunk.frames {
            if frame.state != FrameState::Odd {
                self.framed = begin + frame.bytes.end as u64;
            }
            if let (Some(key), Some(time)) = (frame.key, frame.time) {
                // The header of an invalid frame may be wrong.
                let is_better = frame.state == FrameState::Whole && !self.has_valid;
                let is_first = self.first.is_none() || is_better;
                if is_first && self.selected.has(Some(key)) {
                    let bytes = &chunk.bytes[frame.bytes.clone()];
                    let is_vdif = chunk.layout.is_some_and(|it| it.format == Format::Vdif);
                    let header = Header::parse(bytes).ok().filter(|_| is_vdif);
                    let told = header.and_then(|header| header.frame_rate());
                    self.shape = header.map(|header| header.shape());
                    let tracks = chunk.layout.and_then(|layout| layout.tracks());
                    let header = tracks.and_then(|it| mark4::Header::parse(bytes, it).ok());
                    self.mark4 = header.map(Box::new);
                    let first = First {
                        number: self.frames,
                        key,
                        time,
                        told,
                    };
                    self.first.get_or_insert(first).told = told;
                    self.has_valid = is_better;
                    self.last = None;
                }
                self.see_last(frame.state, key, time);
                if self.seen.insert(key) {
                    self.keys.push(key);
                }
            }
            self.frames += 1;
        }
    }

    fn see_last(&mut self, state: FrameState, key: StreamKey, time: FrameTime) {
        let is_shown = |first: &First| match state {
            FrameState::SourceInvalid => is_near(first.time, time, self.frames),
            _ => true,
        };
        let first = self.first.filter(|first| first.key == key);
        if first.filter(is_shown).is_some() {
            self.last = Some((self.frames, time));
        }
    }
}
