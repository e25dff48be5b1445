//! What the benches share whose instructions and allocations valgrind counts (`cargo xtask instructions`). They are tests, which
//! reach what no library shows; run as such they prove that they still do their work.

use std::hint::black_box;

use evlbi_core::deframe::{Chunk, Deframer};
use evlbi_wire::pattern::{frame_rate, payload};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{HEADER_LEN, Header, Shape, StationId, StreamKey};

/// Variable with the number of units (datagrams, frames or bytes) that a bench is to do.
pub const UNITS: &str = "EVLBI_UNITS";

/// Midnight, in UTC seconds since 1970.
const START: i64 = 1_704_067_200;

/// Returns the number of units to do: `usual` in a test.
///
/// # Panics
/// When [`UNITS`] is no number.
#[must_use]
pub fn units(usual: u64) -> u64 {
    let given = std::env::var(UNITS).ok();
    given.map_or(usual, |text| text.parse().expect(UNITS))
}

/// Does the work that is counted. Valgrind knows this function by its name: it counts from its call to its return.
#[inline(never)]
pub fn measured<R>(work: impl FnOnce() -> R) -> R {
    // What returns through this function is no jump out of it.
    black_box(work())
}

/// Frames that are handed over together.
pub const ROUND: usize = 64;

/// Has `frames` deframed, and each piece of the stream taken.
///
/// # Panics
/// When a part of them is left.
pub fn pass(deframer: &mut Deframer, frames: &[u8], mut take: impl FnMut(Chunk<'_>)) {
    let taken = deframer.walk(frames, false, &mut take);
    assert_eq!(taken, frames.len());
}

/// Frames of 2 bits and one channel, of all threads of all stations in turn, without an end.
pub struct Frames {
    headers: Vec<Header>,
    rate: FrameRate,
    next: usize,
    frame: Vec<u8>,
}

impl Frames {
    /// Frames of so many bytes; each thread has so many a second.
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

    /// Makes the next frame.
    ///
    /// # Panics
    /// After some decades of them.
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

    /// Makes the next frames, one after the other.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.make().to_vec()).collect()
    }
}
