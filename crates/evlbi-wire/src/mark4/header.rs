//! The header of a frame: those of all its tracks, bit by bit side by side; and where headers are in a stream of bytes.

use std::fmt;

use super::track::{TimeCode, TimeCodeError, TrackHeader};
use super::{HEADER_BITS, Tracks};

/// Bit times before the sync word.
const AUXILIARY_BITS: usize = 64;
/// Bit times of the sync word.
const SYNC_BITS: usize = 32;

/// Reason why bytes are not the header of a Mark 4 frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than needed.
    #[error("truncated Mark 4 header: need {needed} bytes, got {found}")]
    Short {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes given.
        found: usize,
    },
    /// More than a tenth of the bits of the sync word are wrong, or of its first bit time, or of the zeros before it.
    #[error(
        "not a Mark 4 header of {tracks} tracks: {wrong} of {bits} bits of the sync word are wrong"
    )]
    Sync {
        /// Number of tracks.
        tracks: usize,
        /// Number of wrong bits.
        wrong: usize,
        /// Number of bits.
        bits: usize,
    },
}

/// Header of a frame.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    pub(super) tracks: Tracks,
    /// Headers of the tracks, by index; the rest is zero.
    heads: [TrackHeader; 64],
}

impl Header {
    /// Makes a header of these tracks, which are zero but for the sync word, headstack and track number, as Mark 5A orders them.
    pub fn new(tracks: Tracks) -> Header {
        let mut header = Header {
            tracks,
            heads: [TrackHeader::default(); 64],
        };
        for (index, head) in header.tracks_mut().iter_mut().enumerate() {
            head.words[2] = TrackHeader::SYNC;
            let (stack, place) = (index / 32, index % 32);
            // Fewer than 32 tracks are the even ones of the first headstack.
            let track = match tracks.count() {
                8 | 16 => 2 + 2 * place,
                _ => 2 + place,
            };
            head.set_place(stack as u8, track as u8);
        }
        header
    }

    /// Parses the header at the start of `bytes`.
    pub fn parse(bytes: &[u8], tracks: Tracks) -> Result<Header, HeaderError> {
        let needed = tracks.header_length();
        let Some(bytes) = bytes.get(..needed) else {
            let found = bytes.len();
            return Err(HeaderError::Short { needed, found });
        };
        let wrong = wrong_sync_bits(bytes, tracks);
        let bits = SYNC_BITS * tracks.count();
        if wrong > bits / 10 || !begins_sync(bytes, tracks) {
            let tracks = tracks.count();
            return Err(HeaderError::Sync {
                tracks,
                wrong,
                bits,
            });
        }
        let mut heads = [TrackHeader::default(); 64];
        for (time, bits) in bytes.chunks_exact(tracks.bytes()).enumerate() {
            for (eight, byte) in heads.chunks_exact_mut(8).zip(bits) {
                for (bit, head) in eight.iter_mut().enumerate() {
                    let word = &mut head.words[time / 32];
                    *word = *word << 1 | u32::from(byte >> bit & 1);
                }
            }
        }
        Ok(Header { tracks, heads })
    }

    /// Writes this header to the start of `frame`. If `frame` is shorter, the rest of the header is not written.
    pub fn emit(&self, frame: &mut [u8]) {
        let times = frame.chunks_mut(self.tracks.bytes());
        for (time, bits) in times.take(HEADER_BITS).enumerate() {
            for (eight, byte) in self.heads.chunks_exact(8).zip(bits) {
                let of = |head: &TrackHeader| (head.words[time / 32] >> (31 - time % 32) & 1) as u8;
                let bits = eight.iter().enumerate();
                *byte = bits.fold(0, |byte, (bit, head)| byte | of(head) << bit);
            }
        }
    }

    /// Returns the number of tracks.
    pub fn count(&self) -> Tracks {
        self.tracks
    }

    /// Returns the headers of the tracks, by index.
    pub fn tracks(&self) -> &[TrackHeader] {
        &self.heads[..self.tracks.count()]
    }

    pub(super) fn tracks_mut(&mut self) -> &mut [TrackHeader] {
        &mut self.heads[..self.tracks.count()]
    }

    /// Returns on how many tracks the CRC is correct. A header that is read a few bits off has at most half of them.
    pub fn intact_tracks(&self) -> usize {
        let intact = |head: &&TrackHeader| head.is_intact();
        self.tracks().iter().filter(intact).count()
    }

    /// Returns whether the CRC is correct on three quarters of the tracks.
    pub fn is_intact(&self) -> bool {
        self.intact_tracks() * 4 >= self.tracks.count() * 3
    }

    /// Returns whether a track with a correct CRC reports an error of the formatter.
    pub fn is_faulty(&self) -> bool {
        let is_faulty = |head: &TrackHeader| head.is_faulty() && head.is_intact();
        self.tracks().iter().any(is_faulty)
    }

    /// Returns the time code: each bit as most tracks have it, of those whose CRC is correct if there are any.
    pub fn time_code(&self) -> Result<TimeCode, TimeCodeError> {
        let any = self.intact_tracks() == 0;
        let voters = self.tracks().iter().filter(|head| any || head.is_intact());
        let mut votes = [0i32; 64];
        for head in voters {
            let bits = u64::from(head.words[3]) << 32 | u64::from(head.words[4]);
            for (place, votes) in votes.iter_mut().enumerate() {
                *votes += if bits >> place & 1 == 1 { 1 } else { -1 };
            }
        }
        let set = votes.iter().enumerate().filter(|(_, votes)| **votes > 0);
        let bits = set.fold(0u64, |bits, (place, _)| bits | 1 << place);
        let voted = TrackHeader::from_words([0, 0, 0, (bits >> 32) as u32, bits as u32]);
        voted.time_code()
    }

    /// Sets the time code and the CRC of every track.
    pub fn set_time_code(&mut self, time: TimeCode) {
        let tracks = self.tracks_mut().iter_mut();
        tracks.for_each(|head| head.set_time_code(time));
    }

    /// Sets the number of the recorder on every track. Mark 5A records only even ones: without parity, the bit before the sync word
    /// must be zero.
    pub fn set_station(&mut self, station: u8) {
        let tracks = self.tracks_mut().iter_mut();
        tracks.for_each(|head| head.set_station(station & !1));
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("tracks", &self.tracks.count())
            .field("time_code", &self.time_code())
            .field("intact_tracks", &self.intact_tracks())
            .field("first", &self.heads[0])
            .finish()
    }
}

/// Returns whether `bytes` start with a header whose sync word is undamaged.
pub fn has_sync(bytes: &[u8], tracks: Tracks) -> bool {
    let is_synced =
        |header: &[u8]| wrong_sync_bits(header, tracks) == 0 && begins_sync(header, tracks);
    bytes.get(..tracks.header_length()).is_some_and(is_synced)
}

/// Returns how many bits of the sync word in a complete header are zero.
fn wrong_sync_bits(header: &[u8], tracks: Tracks) -> usize {
    let at = AUXILIARY_BITS * tracks.bytes();
    zeros(&header[at..at + SYNC_BITS * tracks.bytes()])
}

/// Returns whether nine tenths of the tracks turn from zero to one where the sync word of a complete header starts. Its CRC does not
/// show whether a header is read a byte off, by which tracks only change places.
fn begins_sync(header: &[u8], tracks: Tracks) -> bool {
    let (count, bytes) = (tracks.count(), tracks.bytes());
    let at = AUXILIARY_BITS * bytes;
    let ones_before = count - zeros(&header[at - bytes..at]);
    ones_before.max(zeros(&header[at..at + bytes])) <= count / 10
}

fn zeros(bytes: &[u8]) -> usize {
    bytes.iter().map(|byte| byte.count_zeros() as usize).sum()
}

/// Finds the offsets in `bytes` at which a whole header with an undamaged sync word may start. The time code of years that end in 8 or
/// 9 lengthens the run of ones, so only the first of a run counts: the bit before it is zero on every track.
pub fn find(bytes: &[u8], tracks: Tracks) -> impl Iterator<Item = usize> {
    let length = SYNC_BITS * tracks.bytes();
    let before = AUXILIARY_BITS * tracks.bytes();
    let last = bytes.len().checked_sub(tracks.header_length());
    let mut from = 0;
    let runs = std::iter::from_fn(move || {
        let rest = bytes.get(from..)?;
        let begin = from + rest.iter().position(|byte| *byte == 0xff)?;
        let rest = bytes.get(begin..)?;
        let ones = rest.iter().position(|byte| *byte != 0xff);
        let end = begin + ones.unwrap_or(rest.len());
        from = end;
        Some(begin..end)
    });
    let synced = runs.filter(move |run| run.len() >= length);
    let starts = synced.filter_map(move |run| run.start.checked_sub(before));
    starts.filter(move |start| {
        last.is_some_and(|last| *start <= last) && begins_sync(&bytes[*start..], tracks)
    })
}
