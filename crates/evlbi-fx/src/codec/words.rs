//! VDIF samples of other widths than 1, 2, 4 and 8 bits: how 32-bit words contain them, and their values.
//!
//! Each word contains as many whole samples as fit, the first one in the lowest bits; the highest bits of it may be unused. A complex
//! sample of more than 32 bits takes a word for each component. Codes are offset binary. Their values are those of 8-bit samples
//! with finer or coarser steps: the highest code of all widths has the same value, within a step.
//!
//! Payloads of such samples are converted to 32-bit floating-point numbers (little-endian), since bits between them may be unused.

use super::levels::STEPS_8;

/// Bits of a component in a converted payload.
pub const WIDTH: u8 = 32;
/// Bytes of it.
pub const BYTES: usize = 4;
/// Range of 8-bit codes about zero.
const HALF: f64 = 128.0;

/// Samples in 32-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    bits: u8,
    /// Components in a word.
    components: usize,
}

impl Words {
    /// Makes the packing of samples with components of 1 to 32 bits.
    pub fn of(bits: u8, is_complex: bool) -> Words {
        let bits = bits.clamp(1, 32);
        let group = if is_complex { 2 } else { 1 };
        let samples = 32 / (usize::from(bits) * group);
        Words {
            bits,
            components: (samples * group).max(1),
        }
    }

    /// Returns the number of components in a word.
    pub fn components(self) -> usize {
        self.components
    }

    /// Appends the values in whole words of a payload to `values`, as the bytes of 32-bit floating-point numbers.
    pub fn unpack(self, payload: &[u8], values: &mut Vec<u8>) {
        let (words, _) = payload.as_chunks::<BYTES>();
        values.reserve(words.len() * self.components * BYTES);
        let bits = u32::from(self.bits);
        let mask = u32::MAX >> (32 - bits);
        let zero = f64::from(mask) / 2.0;
        let unit = HALF / (zero + 0.5) / f64::from(STEPS_8);
        for word in words {
            let mut word = u64::from(u32::from_le_bytes(*word));
            for _ in 0..self.components {
                let value = (f64::from(word as u32 & mask) - zero) * unit;
                values.extend((value as f32).to_le_bytes());
                word >>= bits;
            }
        }
    }
}

/// Decodes components of a converted payload into `values`, as many as there are and fit, and returns their number.
pub(super) fn decode(payload: &[u8], values: &mut [f32]) -> usize {
    let (numbers, _) = payload.as_chunks::<BYTES>();
    for (value, number) in values.iter_mut().zip(numbers) {
        *value = f32::from_le_bytes(*number);
    }
    values.len().min(numbers.len())
}

/// Returns the index of the level of each component of a converted payload, among the levels of at most eight bits.
pub(super) fn codes(bits: u8, payload: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let (numbers, _) = payload.as_chunks::<BYTES>();
    let coarser = 8u8.saturating_sub(bits);
    numbers.iter().map(move |number| {
        let value = f32::from_le_bytes(*number) * STEPS_8 + HALF as f32;
        // A cast from float to integer rounds towards zero and saturates.
        (value as u8) >> coarser
    })
}
