//! The header of a frame: those of all its tracks, bit by bit side by side; and where headers are in a stream of bytes.

use std::fmt;
use std::ops::Range;

use super::track::{TimeCode, TimeCodeError, TrackHeader};
use super::{HEADER_BITS, Tracks};

/// Bit times before the sync word.
const AUXILIARY_BITS: usize = 64;
/// Bit times of the sync word.
const SYNC_BITS: usize = 32;
/// Maximum number of zeros in eight bytes of a sync word: those of the tracks on which it may be damaged, one of 8 or six of 64.
const MAX_ZEROS: u32 = 8;

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
    /// More than a tenth of the bits of the sync word are wrong, or it does not start on nine tenths of the tracks; but one track may be
    /// dead.
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
        if wrong > (bits / 10).max(SYNC_BITS) || !begins_sync(bytes, tracks) {
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

    /// Returns whether a track with a correct CRC changes places from frame to frame.
    pub fn is_rolled(&self) -> bool {
        let is_rolled = |head: &TrackHeader| head.is_rolled() && head.is_intact();
        self.tracks().iter().any(is_rolled)
    }

    /// Returns the time code: each bit as most tracks have it, of those whose sync word and CRC are correct if there are any. A dead track
    /// of zeros has a correct CRC.
    pub fn time_code(&self) -> Result<TimeCode, TimeCodeError> {
        let is_sound = |head: &TrackHeader| head.words[2] == TrackHeader::SYNC && head.is_intact();
        let any = !self.tracks().iter().any(is_sound);
        let voters = self.tracks().iter().filter(|head| any || is_sound(head));
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

/// Returns whether `bytes` start with a whole header that has its sync word: 32 ones after a zero, on nine tenths of the tracks, or on all
/// but one of 8. So a recording with dead tracks is found, too. Of random bytes, less than one in 10^66 starts a header: on seven of 8
/// tracks, 33 bits are right by chance.
pub fn has_sync(bytes: &[u8], tracks: Tracks) -> bool {
    let is_synced = |header: &[u8]| {
        begins_sync(header, tracks) && is_on_most(whole_sync_words(header, tracks), tracks)
    };
    bytes.get(..tracks.header_length()).is_some_and(is_synced)
}

/// Returns the tracks on which a complete header has the sync word after a zero.
fn whole_sync_words(header: &[u8], tracks: Tracks) -> u64 {
    let zero = !bit_time(header, tracks, AUXILIARY_BITS - 1);
    sync_times().fold(zero, |whole, time| whole & bit_time(header, tracks, time))
}

/// Returns how many bits of the sync word in a complete header are zero.
fn wrong_sync_bits(header: &[u8], tracks: Tracks) -> usize {
    let ones = sync_times().map(|time| bit_time(header, tracks, time).count_ones() as usize);
    SYNC_BITS * tracks.count() - ones.sum::<usize>()
}

/// Returns whether enough tracks turn from zero to one where the sync word of a complete header starts. Its CRC does not show whether a
/// header is read a byte off, by which tracks only change places.
fn begins_sync(header: &[u8], tracks: Tracks) -> bool {
    let [before, first] = [AUXILIARY_BITS - 1, AUXILIARY_BITS];
    let turned = !bit_time(header, tracks, before) & bit_time(header, tracks, first);
    is_on_most(turned, tracks)
}

/// Returns whether the bit is set for nine tenths of the tracks, or all but one.
fn is_on_most(bits: u64, tracks: Tracks) -> bool {
    let damaged = tracks.count() - bits.count_ones() as usize;
    damaged <= (tracks.count() / 10).max(1)
}

fn sync_times() -> Range<usize> {
    AUXILIARY_BITS..AUXILIARY_BITS + SYNC_BITS
}

/// Returns the bits of all tracks in a bit time of a complete header, at most that after the sync word.
#[inline]
fn bit_time(header: &[u8], tracks: Tracks, time: usize) -> u64 {
    let bits = header.get(time * tracks.bytes()..);
    let bits = bits.and_then(<[u8]>::first_chunk).unwrap_or(&[0; 8]);
    u64::from_le_bytes(*bits) & u64::MAX >> (64 - tracks.count())
}

/// Finds the offsets in `bytes` at which a header with its sync word ([`has_sync`]) starts. The time code of years that end in 8 or 9
/// lengthens the run of ones; the zeros before the sync word show where it starts.
pub fn find(bytes: &[u8], tracks: Tracks) -> impl Iterator<Item = usize> {
    let first = AUXILIARY_BITS * tracks.bytes();
    let before = first - tracks.bytes();
    // Each sync word has eight bytes at one of these places in its first half.
    let step = SYNC_BITS * tracks.bytes() / 2;
    let is_synced = move |place: &usize| {
        let eight = bytes[*place..].first_chunk();
        eight.is_some_and(|eight| u64::from_le_bytes(*eight).count_zeros() <= MAX_ZEROS)
    };
    let places = (0..bytes.len()).step_by(step).filter(is_synced);
    places.flat_map(move |place| {
        let end = (place + 1).saturating_sub(first);
        let starts = end.saturating_sub(step)..end;
        // Most are not a header: the first byte shows that soonest.
        let may_start = move |start: &usize| bytes[start + first] & !bytes[start + before] != 0;
        starts.filter(move |start| may_start(start) && has_sync(&bytes[*start..], tracks))
    })
}
