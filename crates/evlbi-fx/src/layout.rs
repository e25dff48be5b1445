//! Layout of samples in payloads: coding, channels, length and rate. Further properties that all frames of a station share belong here.

use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif::Header;

use crate::codec::words;
use crate::codec::{Codec, CodecError};

/// Layout of samples in the frames of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Coding of the samples.
    pub codec: Codec,
    /// Whether samples have a real and an imaginary component.
    pub complex: bool,
    /// Channels per thread.
    pub channels: usize,
    /// Length of a payload that can be decoded, in bytes.
    pub payload: usize,
    /// Samples of a channel at the start of a frame that its header replaces: they are never valid.
    pub replaced: usize,
    /// Frames per second of a thread.
    pub frame_rate: FrameRate,
}

/// Reason why the frames of a station cannot be correlated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Unsupported coding.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Payload that does not contain whole samples.
    #[error("a payload of {payload} bytes does not hold whole samples of {bits} bits")]
    Shape {
        /// Length of the payload, in bytes.
        payload: usize,
        /// Bits of a sample of all channels.
        bits: usize,
    },
    /// Several channels with a width that divides no word.
    #[error(
        "{channels} channels of {bits} bits: VDIF has no order for several channels unless their bits are a power of two"
    )]
    Order {
        /// Number of channels.
        channels: usize,
        /// Bits of a component.
        bits: u8,
    },
}

impl Layout {
    /// Returns the layout of frames with such a header.
    ///
    /// # Errors
    /// Returns a [`LayoutError`] if the samples cannot be decoded.
    pub fn of(header: &Header, frame_rate: FrameRate) -> Result<Layout, LayoutError> {
        let shape = header.shape();
        let mut layout = Layout {
            codec: Codec::of(header)?,
            complex: shape.complex,
            channels: usize::try_from(shape.channels()).unwrap_or(usize::MAX),
            payload: shape.payload_length(),
            replaced: 0,
            frame_rate,
        };
        if let Some(words) = layout.codec.words(shape.complex) {
            let (channels, bits) = (layout.channels, shape.bits);
            if channels > 1 && !bits.is_power_of_two() {
                return Err(LayoutError::Order { channels, bits });
            }
            let all = layout.payload / words::BYTES * words.components();
            let components = layout.components();
            layout.payload = all / components * components * words::BYTES;
        }
        layout.checked()
    }

    /// Returns this layout if a payload holds whole samples.
    pub(crate) fn checked(self) -> Result<Layout, LayoutError> {
        let (payload, bits) = (self.payload, self.bits());
        if payload == 0 || bits == 0 || !(payload * 8).is_multiple_of(bits) {
            return Err(LayoutError::Shape { payload, bits });
        }
        Ok(self)
    }

    /// Returns the components of a sample of all channels.
    pub fn components(&self) -> usize {
        self.channels
            .saturating_mul(if self.complex { 2 } else { 1 })
    }

    /// Returns the bits of a sample of all channels in a payload that can be decoded.
    pub fn bits(&self) -> usize {
        self.components()
            .saturating_mul(usize::from(self.codec.width()))
    }

    /// Returns the samples of a channel in a frame.
    pub fn frame_samples(&self) -> i64 {
        (self.payload * 8 / self.bits()) as i64
    }

    /// Returns the samples of a channel per second.
    pub fn sample_rate(&self) -> i64 {
        self.frame_samples() * i64::from(self.frame_rate.get())
    }
}
