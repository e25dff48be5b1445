//! Formats of tape that look like Mark 4 and cannot be read, by what their bytes show.

use super::{FRAME_BITS, Header, Tracks, find};

/// Format that is not read, found in the bytes of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Relative {
    /// VLBA tape: a frame of each track has 20 160 bits, which do not replace samples.
    Vlba(Tracks),
    /// Mark IIIA: tracks 4 to 31 of 32.
    MarkIiia,
    /// Mark 4 with the parity bits of the tape (`st:mark4`): a frame of each track has 22 500 bits.
    Parity(Tracks),
    /// Mark 4 with fewer than 25 frames per second: 0.25 Mbit/s and track, or less.
    Slow(Tracks),
    /// Mark 4 with damaged headers: wrong CRC on more than a quarter of the tracks, or times that do not advance by a frame.
    Damaged(Tracks),
}

impl Relative {
    /// Finds such a format in the first bytes of a recording: two sync words at the distance of its frames.
    pub fn find(bytes: &[u8]) -> Option<Relative> {
        for tracks in Tracks::ALL {
            let all: Vec<usize> = find(bytes, tracks).take(MAX_STARTS).collect();
            let starts = all.as_slice();
            let followed = |bits: usize| {
                let apart = bits * tracks.bytes();
                let follows = move |start: &&usize| starts.binary_search(&(*start + apart)).is_ok();
                starts.iter().filter(follows)
            };
            let has = |bits: usize| followed(bits).next().is_some();
            if has(20_160) {
                return Some(Relative::Vlba(tracks));
            }
            if has(22_500) {
                return Some(Relative::Parity(tracks));
            }
            if has(FRAME_BITS) {
                let is_slow = |start: &usize| is_slow(&bytes[*start..], tracks);
                return Some(match followed(FRAME_BITS).any(is_slow) {
                    true => Relative::Slow(tracks),
                    false => Relative::Damaged(tracks),
                });
            }
        }
        has_mark_iiia(bytes).then_some(Relative::MarkIiia)
    }
}

/// Returns whether the times of two undamaged headers in a row are more than 40 ms apart.
fn is_slow(bytes: &[u8], tracks: Tracks) -> bool {
    let code = |bytes: &[u8]| {
        let header = Header::parse(bytes, tracks).ok()?;
        header.time_code().ok().filter(|_| header.is_intact())
    };
    let next = bytes.get(tracks.frame_length()..).and_then(code);
    let apart = code(bytes).zip(next);
    let micros = apart.and_then(|(first, next)| first.micros_until(next));
    micros.is_some_and(|micros| micros > 40_000)
}

/// Maximum number of sync words that are compared.
const MAX_STARTS: usize = 256;
/// The bits of tracks 4 to 31 in a bit time of 32 tracks.
const TRACKS_4_TO_31: u32 = 0x3fff_fffc;

/// Returns whether two sync words of tracks 4 to 31 are a frame apart.
fn has_mark_iiia(bytes: &[u8]) -> bool {
    (0..4).any(|phase| {
        let (times, _) = bytes.get(phase..).unwrap_or_default().as_chunks::<4>();
        let is_one = |time: &[u8; 4]| u32::from_le_bytes(*time) & TRACKS_4_TO_31 == TRACKS_4_TO_31;
        let mut run = 0;
        let mut ends = Vec::new();
        for (place, time) in times.iter().enumerate() {
            run = if is_one(time) { run + 1 } else { 0 };
            if run == 32 && ends.len() < MAX_STARTS {
                ends.push(place);
            }
        }
        let follows = |end: &usize| ends.binary_search(&(end + FRAME_BITS)).is_ok();
        ends.iter().any(follows)
    })
}

impl std::fmt::Display for Relative {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Relative::Vlba(tracks) => write!(f, "VLBA tape format of {} tracks", tracks.count()),
            Relative::MarkIiia => f.write_str("Mark IIIA format"),
            Relative::Parity(tracks) => {
                write!(f, "Mark 4 with parity bits on {} tracks", tracks.count())
            }
            Relative::Slow(tracks) => {
                let tracks = tracks.count();
                write!(
                    f,
                    "Mark 4 of {tracks} tracks with fewer than 25 frames per second"
                )
            }
            Relative::Damaged(tracks) => {
                let tracks = tracks.count();
                write!(
                    f,
                    "Mark 4 of {tracks} tracks with damaged headers (wrong CRC or times)"
                )
            }
        }
    }
}
