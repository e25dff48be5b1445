//! Mark 4 frames as Mark 5A records them: on each of 8, 16, 32 or 64 tracks, a header of 160 bits and then 19 840 bits of samples.
//!
//! A bit time holds one bit of every track: bit `b` of byte `k` belongs to the track with index `8k + b`. The header replaces samples,
//! so 160 samples per track and frame are always missing, and the time of a frame is that of its first replaced bit. Parity is not
//! recorded. Haystack Mark 4 memo 230, revision 1.21 (Whitney 2005).
//!
//! The two bits of a sample are VDIF's code of it: a frame becomes VDIF by a change of the order of bits ([`Order`]).

mod channels;
mod header;
mod modulation;
mod order;
mod relatives;
#[cfg(test)]
mod tests;
mod track;

pub use self::channels::{Channel, ChannelError, Channels, Sideband};
pub use self::header::{Header, HeaderError, find, has_sync};
pub use self::modulation::modulate;
pub use self::order::Order;
pub use self::relatives::Relative;
pub use self::track::{TimeCode, TimeCodeError, TrackHeader};

/// Bits of a frame of one track.
pub const FRAME_BITS: usize = 20_000;
/// Bits of a header of one track.
pub const HEADER_BITS: usize = 160;
/// Bits of samples in a frame of one track.
pub const PAYLOAD_BITS: usize = FRAME_BITS - HEADER_BITS;

/// Frames per second of the possible rates of tracks, from 16 to 0.5 Mbit/s. At 0.25 Mbit/s and below, a second is not a whole number
/// of frames.
pub const FRAME_RATES: [u32; 6] = [800, 400, 200, 100, 50, 25];

/// Number of tracks of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tracks(u8);

impl Tracks {
    /// The possible numbers, the largest first: a search for few tracks finds a sync word inside that of more tracks.
    pub const ALL: [Tracks; 4] = [Tracks(64), Tracks(32), Tracks(16), Tracks(8)];

    /// Makes a number of tracks; `None` if Mark 5A does not record as many.
    pub fn new(tracks: usize) -> Option<Tracks> {
        let mut all = Tracks::ALL.into_iter();
        all.find(|possible| possible.count() == tracks)
    }

    /// Returns the number.
    #[inline]
    pub fn count(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the bytes of one bit time.
    #[inline]
    pub fn bytes(self) -> usize {
        self.count() / 8
    }

    /// Returns the length of a frame, in bytes.
    pub fn frame_length(self) -> usize {
        FRAME_BITS * self.bytes()
    }

    /// Returns the length of a header, in bytes.
    pub fn header_length(self) -> usize {
        HEADER_BITS * self.bytes()
    }

    /// Returns the length of the samples of a frame, in bytes.
    pub fn payload_length(self) -> usize {
        PAYLOAD_BITS * self.bytes()
    }
}
