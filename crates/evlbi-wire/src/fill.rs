//! The fill pattern 0x11223344: what stands in the place of data that is not there.
//!
//! jive5ab, DiFX and SFXC honour it. It lies in 32-bit little-endian words.

/// The pattern, one 32-bit word.
pub const PATTERN: u32 = 0x1122_3344;

/// Overwrites `bytes` with the pattern, beginning with a whole word.
pub fn make(bytes: &mut [u8]) {
    make_from(bytes, 0);
}

/// Overwrites `bytes` with the pattern as if they lay `offset` bytes into a run of it.
pub fn make_from(bytes: &mut [u8], offset: usize) {
    let mut word = PATTERN.to_le_bytes();
    word.rotate_left(offset % 4);
    let mut chunks = bytes.chunks_exact_mut(4);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word);
    }
    for (byte, pattern) in chunks.into_remainder().iter_mut().zip(word) {
        *byte = pattern;
    }
}
