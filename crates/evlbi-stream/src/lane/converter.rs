//! Frames of Mark 4 and Mark 5B as pieces: their samples in the order and codes of VDIF, under a header of VDIF.
//!
//! Put here how frames of another format become a [`Piece`].

use evlbi_core::deframe::{Frame, FrameState, Layout};
use evlbi_fx::codec::Codec;
use evlbi_fx::unpack::Recorded;
use evlbi_wire::fill;
use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::Cause;
use evlbi_wire::vdif::{Extended, HEADER_LEN, Header, Nict, SYNC, Shape, StreamKey};

use super::frame::Piece;
use crate::samples::{Samples, SamplesError};
use crate::selection::Selection;

/// Converter of the frames of a recording or stream.
#[derive(Debug)]
pub struct Converter {
    layout: Layout,
    samples: Samples,
    /// Header of all frames, except for their times.
    header: Header,
    /// VDIF's codes of the samples in a byte; `None` if the byte has them already.
    codes: Option<[u8; 256]>,
    payload: Vec<u8>,
}

impl Converter {
    /// Makes a converter of frames of a layout, of which `first` is an undamaged header, into those of a station. `selection` describes the
    /// samples where the headers do not.
    pub fn new(
        selection: &Selection,
        layout: &Layout,
        first: &[u8],
        frame_rate: Option<FrameRate>,
        key: StreamKey,
    ) -> Result<Converter, SamplesError> {
        let samples = Samples::of(selection, layout, first, frame_rate, None)?;
        let recorded = samples.unpacker.layout();
        let shape = Shape {
            frame_length: HEADER_LEN + recorded.payload,
            log2_channels: recorded.channels.trailing_zeros() as u8,
            bits: recorded.codec.bits(),
            complex: false,
            legacy: false,
        };
        let mut header = Header::new(shape, key);
        // A rate that is not a whole number of kHz does not fit: the header is without it then.
        let _ = header.set_extended(&Extended::Nict(Nict {
            complex_rate: recorded.sample_rate() as u64 / 2,
            sync: SYNC,
            das: u64::from_le_bytes(*b"evlbi\0\0\0"),
        }));
        Ok(Converter {
            layout: *layout,
            codes: codes(recorded.codec, selection.inverted),
            samples,
            header,
            payload: Vec::new(),
        })
    }

    /// Returns whether frames of a layout are of the format and length of these.
    pub fn fits(&self, layout: &Layout) -> bool {
        let of = |it: &Layout| (it.format, it.frame_length, it.header_length);
        of(layout) == of(&self.layout)
    }

    /// Returns the frames per second.
    pub fn frame_rate(&self) -> FrameRate {
        self.samples.unpacker.layout().frame_rate
    }

    /// Converts a frame of `bytes`; `None` if it has no place in time, or other channels on its tracks. Neither format has a mark for invalid frames: those that consist of
    /// the fill pattern are lost.
    pub fn piece<'a>(
        &'a mut self,
        frame: &Frame,
        bytes: &'a [u8],
        header_length: usize,
    ) -> Option<Piece<'a>> {
        let begin = frame.bytes.start + header_length;
        let has_channels = || self.samples.are_in(&bytes[frame.bytes.start..begin]);
        if frame.state == FrameState::Whole && !has_channels() {
            return None;
        }
        let recorded = Recorded::new(bytes, begin..frame.bytes.end)?;
        let mut header = self.header;
        header.set_time(frame.time?).ok()?;
        let invalid = match frame.state {
            FrameState::Lost => Some(Cause::Lost),
            FrameState::SourceInvalid => Some(Cause::Source),
            _ => fill::is_fill(recorded.samples()).then_some(Cause::Lost),
        };
        self.samples
            .unpacker
            .unpack(recorded.samples(), &mut self.payload);
        if let Some(codes) = &self.codes {
            let bytes = self.payload.iter_mut();
            bytes.for_each(|byte| *byte = codes[usize::from(*byte)]);
        }
        Some(Piece {
            header,
            payload: &self.payload,
            invalid,
            recorded,
            order: Some(&self.samples.unpacker),
            names: &self.samples.channels,
        })
    }
}

/// Returns for each byte the one in which VDIF's codes have the same levels, or the opposite ones; `None` if that changes no byte.
fn codes(codec: Codec, is_inverted: bool) -> Option<[u8; 256]> {
    let bits = usize::from(codec.bits());
    let sign = if is_inverted { -1.0 } else { 1.0 };
    let vdif = Codec::vdif(codec.bits()).ok()?;
    let code = |recorded: usize| {
        let level = codec.levels().get(recorded)? * sign;
        vdif.levels().iter().position(|other| *other == level)
    };
    let mut codes = [0; 256];
    for (byte, into) in codes.iter_mut().enumerate() {
        for place in (0..8).step_by(bits) {
            *into |= (code(byte >> place & ((1 << bits) - 1))? << place) as u8;
        }
    }
    let is_changed = (0..=u8::MAX).zip(codes).any(|(byte, code)| byte != code);
    is_changed.then_some(codes)
}
