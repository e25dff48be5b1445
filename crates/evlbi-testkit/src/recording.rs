//! A recording of VDIF frames with noise, and bytes without any frame.

use std::ops::Range;

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, Shape, StationId, StreamKey};

/// Length of a frame in bytes.
pub const FRAME: usize = 1032;
/// Length of its header in bytes.
pub const HEADER: usize = 32;
/// Frames per second of a thread.
pub const RATE: u32 = 50;
/// 2024-05-01T12:00:00Z.
pub const START: i64 = 1_714_564_800;

/// Returns three seconds of a thread.
#[must_use]
pub fn recording() -> Vec<u8> {
    (0..150)
        .flat_map(|number| frame(number, 0, false))
        .collect()
}

/// Returns the byte range of one of its frames.
#[must_use]
pub fn frame_range(number: usize) -> Range<usize> {
    number * FRAME..(number + 1) * FRAME
}

/// Returns frame `number` of a thread since the start, with noise.
///
/// # Panics
/// Panics if its time does not fit into a header.
#[must_use]
pub fn frame(number: i64, thread: u16, invalid: bool) -> Vec<u8> {
    let shape = Shape {
        frame_length: FRAME,
        log2_channels: 0,
        bits: 2,
        complex: false,
        legacy: false,
    };
    let mut header = Header::new(shape, key(thread));
    header.set_time(time(number)).expect("a time of a header");
    header.set_invalid(invalid);
    let mut bytes = noise(FRAME, number as u64 * 8 + u64::from(thread));
    header.emit(&mut bytes);
    bytes
}

/// Returns the station of the frames.
#[must_use]
pub fn key(thread: u16) -> StreamKey {
    StreamKey {
        station: StationId::from_code(*b"Ef"),
        thread,
    }
}

/// Returns the time of a frame.
#[must_use]
pub fn time(number: i64) -> FrameTime {
    let rate = FrameRate::new(RATE).expect("a frame rate");
    let start = FrameTime {
        second: START,
        frame: 0,
    };
    FrameTime::from_index(start.index(rate) + number, rate)
}

/// Returns bytes without any frame.
#[must_use]
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}
