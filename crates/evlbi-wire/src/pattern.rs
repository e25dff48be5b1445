//! Test pattern: VDIF frames whose payload can be verified from their headers alone.
//!
//! The payload follows from the frame number modulo [`PERIOD`], so it restarts every second.

use std::num::NonZeroU32;

use crate::time::{FrameRate, FrameTime};
use crate::vdif::{HEADER_LEN, Header, Shape, StationId, StreamKey};

/// Period of the pattern within a second, in frames.
pub const PERIOD: u32 = 64;
/// Station identifier of pattern frames.
pub const STATION: StationId = StationId(u16::from_be_bytes(*b"TP"));
/// Maximum frame rate, from the width of VDIF's frame number: 2^24.
const HIGHEST_RATE: u32 = 1 << 24;

/// Invalid length of a pattern frame, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid length of pattern frames, {0} bytes: use a multiple of 8 from 40 to 134217720")]
#[non_exhaustive]
pub struct LengthError(pub usize);

/// Returns the frame rate of a pattern, limited to 1 to 2^24 frames per second.
pub fn frame_rate(frames_per_second: u64) -> FrameRate {
    let rate = frames_per_second.clamp(1, u64::from(HIGHEST_RATE)) as u32;
    FrameRate(NonZeroU32::new(rate).unwrap_or(NonZeroU32::MIN))
}

/// Checks whether pattern frames can have this length, in bytes.
///
/// # Errors
/// [`LengthError`]
pub fn check_length(frame_length: usize) -> Result<(), LengthError> {
    let is_possible = frame_length >= HEADER_LEN + 8
        && frame_length.is_multiple_of(8)
        && frame_length <= crate::vdif::MAX_FRAME_LEN;
    is_possible.then_some(()).ok_or(LengthError(frame_length))
}

/// Returns `count` frames, starting with the first frame of `second` (UTC since 1970).
///
/// # Errors
/// [`LengthError`]
pub fn frames(
    frame_length: usize,
    second: i64,
    rate: FrameRate,
    count: u32,
) -> Result<Vec<u8>, LengthError> {
    check_length(frame_length)?;
    let shape = Shape {
        frame_length,
        log2_channels: 0,
        bits: 2,
        complex: false,
        legacy: false,
    };
    let key = StreamKey {
        station: STATION,
        thread: 0,
    };
    let mut header = Header::new(shape, key);
    let first = FrameTime { second, frame: 0 }.index(rate);
    let mut frames = vec![0; frame_length * count as usize];
    for (index, frame) in (first..).zip(frames.chunks_exact_mut(frame_length)) {
        // The caller's clock may be wrong: a time outside VDIF's epochs becomes the first epoch.
        let _ = header.set_time(FrameTime::from_index(index, rate));
        header.emit(frame);
        payload(header.frame_number(), &mut frame[HEADER_LEN..]);
    }
    Ok(frames)
}

/// Writes the payload of the frame with this number.
pub fn payload(frame_number: u32, payload: &mut [u8]) {
    let mut word = u64::from(frame_number % PERIOD)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for eight in payload.chunks_mut(8) {
        word = word.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        eight.copy_from_slice(&(word ^ word >> 29).to_le_bytes()[..eight.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_verify_from_their_headers() {
        let rate = frame_rate(128);
        let frames = frames(1464, 1_700_000_000, rate, 200).unwrap();
        let mut expected = vec![0; 1464 - HEADER_LEN];
        for (number, bytes) in (0..).zip(frames.chunks(1464)) {
            let header = Header::parse(bytes).unwrap();
            assert_eq!(
                header.time().second,
                1_700_000_000 + i64::from(number / 128)
            );
            assert_eq!(header.frame_number(), number % 128);
            payload(number + PERIOD, &mut expected);
            assert_eq!(bytes[HEADER_LEN..], expected);
        }
        let different: std::collections::HashSet<&[u8]> = frames
            .chunks(1464)
            .map(|frame| &frame[HEADER_LEN..])
            .collect();
        assert_eq!(different.len(), PERIOD as usize);
    }

    #[test]
    fn rates_are_limited_to_countable_frame_numbers() {
        for (asked, rate) in [(0, 1), (1, 1), (1557, 1557), (u64::MAX, HIGHEST_RATE)] {
            assert_eq!(frame_rate(asked).get(), rate);
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for length in [0, 32, 39, 1001, usize::MAX] {
            let refused = frames(length, 0, frame_rate(0), 1);
            assert_eq!(refused, Err(LengthError(length)));
        }
    }
}
