//! Fields of headers that consist of words of 32 bits, and decimal digits in them.

/// Position of a field: word, lowest bit, width.
#[derive(Clone, Copy)]
pub struct Field(pub usize, pub u32, pub u32);

impl Field {
    /// Returns the value in the words of a header.
    #[inline]
    pub fn of(self, words: &[u32]) -> u32 {
        let Field(word, low, width) = self;
        words[word] >> low & (u32::MAX >> (32 - width))
    }

    /// Sets the value in the words of a header. Bits that do not fit the field are dropped.
    #[inline]
    pub fn set(self, words: &mut [u32], value: u32) {
        let Field(word, low, width) = self;
        let mask = u32::MAX >> (32 - width);
        words[word] = words[word] & !(mask << low) | (value & mask) << low;
    }
}

/// Decodes BCD; `None` if a digit is above 9.
pub fn from_bcd(bcd: u32) -> Option<u32> {
    (0..8).rev().try_fold(0, |decimal, place| {
        let digit = bcd >> (4 * place) & 0xf;
        (digit < 10).then(|| decimal * 10 + digit)
    })
}

/// Encodes the lowest eight decimal digits.
pub fn to_bcd(decimal: u32) -> u32 {
    (0..8).fold(0, |bcd, place| {
        let digit = decimal / 10u32.pow(place) % 10;
        bcd | digit << (4 * place)
    })
}
