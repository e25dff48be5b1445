//! A stream of bytes from what a connection brings to the deframer, with no sink behind it.

use evlbi_testkit::instructions::{Frames, measured, units};

use super::*;
use crate::sink::Sink;

const FRAME: usize = 8032;
/// Bytes that one call brings.
const READ: usize = 64 << 10;

#[test]
fn bytes() {
    let mut straight = Straight::new(deframe::Settings::default(), Sink::Null);
    let mut stream = Tcp::default();
    let mut frames = Frames::new(&[b"Ef"], 4, FRAME, 4000);
    let mut coming = Vec::new();
    let reads = units(16 * READ as u64) / READ as u64;
    for _ in 0..reads {
        while coming.len() < READ {
            coming.extend_from_slice(frames.make());
        }
        let begin = stream.filled;
        measured(|| stream.make_room());
        stream.buffer[begin..begin + READ].copy_from_slice(&coming[..READ]);
        coming.drain(..READ);
        measured(|| {
            stream.filled += READ;
            stream.pass_on(&mut straight, false);
        });
    }
    stream.pass_on(&mut straight, true);
    let whole = straight.finish().counts.whole;
    assert_eq!(whole, reads * READ as u64 / FRAME as u64);
}
