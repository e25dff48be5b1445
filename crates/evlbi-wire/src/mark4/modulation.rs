//! The optional modulation of samples: a pseudo-random sequence that is the same on all tracks and restarts with each frame.

use std::sync::LazyLock;

use super::{PAYLOAD_BITS, Tracks};

/// The sequence at each bit time after the header, as a byte of eight tracks. A shift register of 16 bits that starts with ones; it
/// steps on the parity bit after each eight bits of the tape, too. Memo 230, section 2.4.
static SEQUENCE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut register = u16::MAX;
    let mut step = || {
        let bit = (register >> 10 ^ register >> 12 ^ register >> 13 ^ register >> 15) & 1;
        register = register << 1 | bit;
        bit as u8 * 0xff
    };
    let bits = (0..PAYLOAD_BITS).map(|place| {
        let bit = step();
        if place % 8 == 7 {
            step();
        }
        bit
    });
    bits.collect()
});

/// Adds the modulation to the samples of a frame, without its header, or removes it. No header shows whether a station modulates.
pub fn modulate(payload: &mut [u8], tracks: Tracks) {
    let times = payload.chunks_mut(tracks.bytes());
    for (bits, mask) in times.zip(SEQUENCE.iter()) {
        bits.iter_mut().for_each(|byte| *byte ^= mask);
    }
}
