//! Shared code of the benches whose instructions and allocations valgrind counts (`cargo xtask instructions`). They are tests, since
//! they call private code; run as such they prove that they still do their work.

use std::hint::black_box;

use evlbi_core::deframe::{Chunk, Deframer};
use evlbi_wire::pattern::{frame_rate, payload};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{HEADER_LEN, Header, Shape, StationId, StreamKey};

/// Variable with the number of units (datagrams, frames or bytes) of a bench.
pub const UNITS: &str = "EVLBI_UNITS";

/// Midnight, in UTC seconds since 1970.
const START: i64 = 1_704_067_200;

/// Returns the number of units: `usual` in a test.
///
/// # Panics
/// Panics if [`UNITS`] is not a number.
#[must_use]
pub fn units(usual: u64) -> u64 {
    let given = std::env::var(UNITS).ok();
    given.map_or(usual, |text| text.parse().expect(UNITS))
}

/// Does the counted work. Valgrind knows this function by its name: it counts from its call to its return.
#[inline(never)]
pub fn measured<R>(work: impl FnOnce() -> R) -> R {
    // What returns through this function must not be a tail call.
    black_box(work())
}

/// Number of frames that are passed together.
pub const ROUND: usize = 64;

/// Deframes `frames`, and takes each piece of the stream.
///
/// # Panics
/// Panics if a part of them is left.
pub fn pass(deframer: &mut Deframer, frames: &[u8], mut take: impl FnMut(Chunk<'_>)) {
    let taken = deframer.walk(frames, false, &mut take);
    assert_eq!(taken, frames.len());
}

/// An endless source of frames with 2 bits and one channel, of all threads of all stations in turn.
pub struct Frames {
    headers: Vec<Header>,
    rate: FrameRate,
    next: usize,
    frame: Vec<u8>,
}

impl Frames {
    /// Creates a source of frames of this many bytes, at this many frames per second and thread.
    #[must_use]
    pub fn new(stations: &[&[u8; 2]], threads: u16, length: usize, a_second: u64) -> Frames {
        let shape = Shape {
            frame_length: length,
            log2_channels: 0,
            bits: 2,
            complex: false,
            legacy: false,
        };
        let keys = stations.iter().flat_map(|code| {
            let station = StationId::from_code(**code);
            (0..threads).map(move |thread| StreamKey { station, thread })
        });
        let mut frame = vec![0; length];
        payload(0, &mut frame[HEADER_LEN..]);
        Frames {
            headers: keys.map(|key| Header::new(shape, key)).collect(),
            rate: frame_rate(a_second),
            next: 0,
            frame,
        }
    }

    /// Returns the next frame.
    ///
    /// # Panics
    /// Panics after some decades of frames.
    pub fn make(&mut self) -> &[u8] {
        let streams = self.headers.len();
        let (index, stream) = (self.next / streams, self.next % streams);
        let header = &mut self.headers[stream];
        let first = FrameTime {
            second: START,
            frame: 0,
        }
        .index(self.rate);
        let time = FrameTime::from_index(first + index as i64, self.rate);
        header.set_time(time).expect("a time of VDIF");
        header.emit(&mut self.frame);
        self.next += 1;
        &self.frame
    }

    /// Returns the next frames, one after the other.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.make().to_vec()).collect()
    }
}
