//! Samples in payloads: the codes that samplers write, and their values.
//!
//! VDIF and Mark 5B payloads are both a series of codes of 1, 2, 4 or 8 bits, starting with the lowest bits of the first byte; VDIF
//! samples of other widths are converted ([`words`]). A complete sample contains one component per channel, or two (real, imaginary) if
//! samples are complex; complete samples follow each other without a gap. So a payload decodes to *interleaved components*: time
//! outermost, then channel, then real and imaginary.
//!
//! New sample codes belong here.

mod levels;
#[cfg(test)]
mod tests;
pub mod words;

use evlbi_wire::vdif;

pub use self::levels::HIGH;
use self::words::Words;

/// Threshold between the two magnitudes of 2-bit samples, in units of the rms of the signal: the one at which Gaussian noise
/// keeps most of its signal-to-noise ratio (0.8825). Cooper (1970).
pub const THRESHOLD: f32 = 0.9816;

/// Extended data version of payloads that are from a Mark 5B recorder and keep its codes.
const MARK5B_EDV: u8 = 0xab;

/// Number of bits for which there is no table of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode {coding} samples of {bits} bits: supported are {known} bits")]
pub struct CodecError {
    coding: &'static str,
    known: &'static str,
    bits: u8,
}

/// Coding of the samples in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Codec(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Vdif1,
    Vdif2,
    Vdif4,
    Vdif8,
    Mark5b1,
    Mark5b2,
    /// VDIF of this many bits, converted.
    Words(u8),
}

impl Codec {
    /// Returns the VDIF coding: offset binary, the lowest code is the lowest level. VDIF 1.1, section 10.
    pub fn vdif(bits: u8) -> Result<Codec, CodecError> {
        let kinds = [Kind::Vdif1, Kind::Vdif2, Kind::Vdif4, Kind::Vdif8];
        Codec::among(&kinds, bits, "VDIF", "1, 2, 4 or 8")
    }

    /// Returns the Mark 5B coding: sign in the lower bit, magnitude in the upper one. Mark 5B user's manual, appendix A; the sign
    /// of 1-bit samples is the one that mark5access and `baseband` read.
    pub fn mark5b(bits: u8) -> Result<Codec, CodecError> {
        let kinds = [Kind::Mark5b1, Kind::Mark5b2];
        Codec::among(&kinds, bits, "Mark 5B", "1 or 2")
    }

    fn among(
        kinds: &[Kind],
        bits: u8,
        coding: &'static str,
        known: &'static str,
    ) -> Result<Codec, CodecError> {
        let mut codecs = kinds.iter().map(|kind| Codec(*kind));
        let codec = codecs.find(|codec| codec.bits() == bits);
        codec.ok_or(CodecError {
            coding,
            known,
            bits,
        })
    }

    /// Returns the coding of the samples after `header`.
    pub fn of(header: &vdif::Header) -> Result<Codec, CodecError> {
        let bits = header.shape().bits;
        if header.edv() == Some(MARK5B_EDV) {
            Codec::mark5b(bits)
        } else {
            Ok(Codec::vdif(bits).unwrap_or(Codec(Kind::Words(bits))))
        }
    }

    /// Returns how words contain the samples, if payloads must be converted before they are decoded.
    pub(crate) fn words(self, is_complex: bool) -> Option<Words> {
        match self.0 {
            Kind::Words(bits) => Some(Words::of(bits, is_complex)),
            _ => None,
        }
    }

    /// Returns the bits of a component as it is recorded.
    pub fn bits(self) -> u8 {
        match self.0 {
            Kind::Words(bits) => bits,
            Kind::Vdif1 | Kind::Mark5b1 => 1,
            Kind::Vdif2 | Kind::Mark5b2 => 2,
            Kind::Vdif4 => 4,
            Kind::Vdif8 => 8,
        }
    }

    /// Returns the bits of a component in a payload that can be decoded.
    pub fn width(self) -> u8 {
        match self.0 {
            Kind::Words(_) => words::WIDTH,
            _ => self.bits(),
        }
    }

    /// Returns the value of each code, indexed by the code; of more than 8 bits, that of their highest 8 bits.
    pub fn levels(self) -> &'static [f32] {
        match self.0 {
            Kind::Vdif1 => &levels::VDIF_1,
            Kind::Vdif2 => &levels::VDIF_2,
            Kind::Vdif4 => &levels::VDIF_4,
            Kind::Words(3) => &levels::VDIF_3,
            Kind::Words(5) => &levels::VDIF_5,
            Kind::Words(6) => &levels::VDIF_6,
            Kind::Words(7) => &levels::VDIF_7,
            Kind::Vdif8 | Kind::Words(_) => &levels::VDIF_8,
            Kind::Mark5b1 => &levels::MARK5B_1,
            Kind::Mark5b2 => &levels::MARK5B_2,
        }
    }

    /// Returns the rms of a signal in units of the levels: with it, [`Codec::encode`] restores the codes of decoded values.
    pub fn sigma(self) -> f32 {
        match self.bits() {
            2 => levels::SIGMA_2,
            _ => 1.0,
        }
    }

    /// Returns the number of components in `bytes` bytes of payload.
    pub fn components(self, bytes: usize) -> usize {
        bytes.saturating_mul(8) / usize::from(self.width())
    }

    /// Decodes the components of `payload` into `values`, as many as there are and fit, and returns their number. The rest of
    /// `values` is unchanged.
    pub fn decode(self, payload: &[u8], values: &mut [f32]) -> usize {
        match self.0 {
            Kind::Vdif1 => decode(&levels::VDIF_1_TABLE, payload, values),
            Kind::Vdif2 => decode(&levels::VDIF_2_TABLE, payload, values),
            Kind::Vdif4 => decode(&levels::VDIF_4_TABLE, payload, values),
            Kind::Vdif8 => decode(&levels::VDIF_8_TABLE, payload, values),
            Kind::Mark5b1 => decode(&levels::MARK5B_1_TABLE, payload, values),
            Kind::Mark5b2 => decode(&levels::MARK5B_2_TABLE, payload, values),
            Kind::Words(_) => words::decode(payload, values),
        }
    }

    /// Calls `each` with the codes of the components of `payload`, as indices of [`Codec::levels`], in the order of [`Codec::decode`].
    pub fn codes(self, payload: &[u8], mut each: impl FnMut(u8)) {
        if let Kind::Words(bits) = self.0 {
            words::codes(bits, payload).for_each(each);
            return;
        }
        let bits = self.bits();
        let mask = u8::MAX >> (8 - bits);
        for byte in payload {
            for low in (0..8).step_by(usize::from(bits)) {
                each(byte >> low & mask);
            }
        }
    }

    /// Encodes `values`, a signal of rms `sigma` about zero, into `payload`: as many whole bytes as the values fill and fit.
    /// Returns their number. 1 bit: the sign. 2 bits: the sign, and whether the magnitude is [`THRESHOLD`] sigma or more. 4 and 8
    /// bits: the nearest level, with 2.95 and 35.5 levels per sigma. Payloads of other widths are not encoded: nothing is written.
    pub fn encode(self, values: &[f32], sigma: f32, payload: &mut [u8]) -> usize {
        let threshold = THRESHOLD * sigma;
        let two = |value: f32| {
            u8::from(value >= -threshold) + u8::from(value >= 0.0) + u8::from(value >= threshold)
        };
        match self.0 {
            Kind::Vdif1 => encode::<8>(values, payload, |value| u8::from(value >= 0.0)),
            Kind::Vdif2 => encode::<4>(values, payload, two),
            Kind::Vdif4 => {
                let scale = levels::STEPS_4 / sigma;
                // A cast from float to integer rounds towards zero and saturates.
                encode::<2>(values, payload, |value| {
                    ((value * scale + 8.5) as u8).min(15)
                })
            }
            Kind::Vdif8 => {
                let scale = levels::STEPS_8 / sigma;
                encode::<1>(values, payload, |value| (value * scale + 128.0) as u8)
            }
            Kind::Mark5b1 => encode::<8>(values, payload, |value| u8::from(value < 0.0)),
            Kind::Mark5b2 => encode::<4>(values, payload, |value| {
                let code = two(value);
                code >> 1 | (code & 1) << 1
            }),
            Kind::Words(_) => 0,
        }
    }
}

fn decode<const N: usize>(table: &[[f32; N]; 256], payload: &[u8], values: &mut [f32]) -> usize {
    let count = values.len().min(payload.len().saturating_mul(N));
    let (whole, rest) = values[..count].as_chunks_mut::<N>();
    for (values, byte) in whole.iter_mut().zip(payload) {
        *values = table[usize::from(*byte)];
    }
    if let Some(byte) = payload.get(whole.len()) {
        rest.copy_from_slice(&table[usize::from(*byte)][..rest.len()]);
    }
    count
}

/// Number of components that are converted to codes before they are packed: the compiler vectorises small, simple loops.
const BATCH: usize = 64;

/// Encodes `N` codes per byte.
fn encode<const N: usize>(values: &[f32], payload: &mut [u8], code: impl Fn(f32) -> u8) -> usize {
    let count = payload.len().min(values.len() / N);
    let values = &values[..count * N];
    let mut codes = [0u8; BATCH];
    for (values, bytes) in values
        .chunks(BATCH)
        .zip(payload[..count].chunks_mut(BATCH / N))
    {
        for (slot, value) in codes.iter_mut().zip(values) {
            *slot = code(*value);
        }
        let (packs, _) = codes.as_chunks::<N>();
        for (byte, codes) in bytes.iter_mut().zip(packs) {
            *byte = pack(codes);
        }
    }
    count
}

fn pack<const N: usize>(codes: &[u8; N]) -> u8 {
    let mut byte = 0;
    for (place, code) in codes.iter().enumerate() {
        byte |= code << (place * 8 / N);
    }
    byte
}
