//! Reasons why frames cannot be turned: bounds of a header, and of the turn itself.

use evlbi_core::turn::MAX_CHANNELS;
use evlbi_wire::vdif::MAX_FRAME_LEN;
use thiserror::Error;

use crate::samples::SamplesError;
use crate::selection::ChannelId;

/// Maximum number of frames per second that a header can count.
pub const MAX_RATE: u64 = 1 << 24;
/// Maximum number of a thread.
pub const MAX_THREAD: u64 = 1023;

/// Reasons why frames cannot be turned.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The bits of a sample are not a power of two.
    #[error("samples of {0} bits cannot be rearranged: only those of 1, 2, 4, 8, 16 or 32 bits")]
    Bits(u8),
    /// There are too many channels.
    #[error("{0} channels cannot be rearranged: at most {MAX_CHANNELS}")]
    Channels(u64),
    /// The samples of Mark 4 or Mark 5B are unknown.
    #[error("{0}")]
    Unknown(#[from] SamplesError),
    /// A payload ends within a sample of all channels.
    #[error("payloads of {payload} bytes do not hold a whole number of samples of {bits} bits")]
    Samples {
        /// Length of a payload, in bytes.
        payload: usize,
        /// Bits of a sample of all channels.
        bits: u64,
    },
    /// A requested channel does not exist.
    #[error("there is no channel {asked}: the channels are {channels}")]
    NoChannel {
        /// Requested channel.
        asked: ChannelId,
        /// All channels.
        channels: String,
    },
    /// The times of the headers are not in the given year.
    #[error("its times cannot be of {0}")]
    Year(i16),
    /// The number of chosen channels is not a power of two.
    #[error("{0} channels do not fit one thread: VDIF needs a power of two")]
    Count(usize),
    /// The number of threads to join is not a power of two.
    #[error("{0} threads cannot become the channels of one: VDIF needs a power of two")]
    Threads(usize),
    /// Several frames are needed for one of the output, and the frames of a second are not a multiple.
    #[error(
        "{parts} frames would become one of each channel, but {rate} frames per second are not a multiple of {parts}"
    )]
    Rate {
        /// Frames of an input for one of the output.
        parts: u32,
        /// Frames per second.
        rate: u32,
    },
    /// The thread number of an output does not fit a header.
    #[error(
        "channel {channel} of thread {thread} would become thread {number}: the maximum is {MAX_THREAD}"
    )]
    Thread {
        /// Thread of the input.
        thread: u16,
        /// Channel.
        channel: u16,
        /// Thread of the output.
        number: u64,
    },
    /// The requested frame length does not divide the joined samples.
    #[error(
        "frames of {asked} bytes do not divide the joined payload of {payload} bytes into whole samples"
    )]
    FrameLength {
        /// Requested length of a frame, header included, in bytes.
        asked: usize,
        /// Length of the joined payload, in bytes.
        payload: usize,
    },
    /// The frames of the output are too long for a header.
    #[error("frames of {0} bytes are too long: the maximum is {MAX_FRAME_LEN}")]
    LongFrame(usize),
    /// The frames per second of the output do not fit a header.
    #[error("{0} frames per second are too many: a header counts up to {MAX_RATE}")]
    FastFrames(u64),
}
