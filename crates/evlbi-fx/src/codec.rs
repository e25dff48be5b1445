//! Samples in payloads: the codes that samplers write, and the values that the codes stand for.
//!
//! VDIF and Mark 5B payloads are both a row of codes of 1, 2, 4 or 8 bits, lowest bits of the first byte
//! first. A complete sample holds one component for each channel, or two (real, imaginary) where samples
//! are complex; complete samples follow each other without a break. So a payload decodes to *interleaved
//! components*: time outermost, then channel, then real and imaginary.
//!
//! Here belongs a further code of samples.

mod levels;
#[cfg(test)]
mod tests;

use evlbi_wire::vdif;

pub use self::levels::HIGH;

/// Threshold between the two magnitudes of 2-bit samples, in units of the rms of the signal: the one
/// at which Gaussian noise keeps most of its signal-to-noise ratio (0.8825). Cooper (1970).
pub const THRESHOLD: f32 = 0.9816;

/// Extended data version whose payload came from a Mark 5B recorder and keeps its codes.
const MARK5B_EDV: u8 = 0xab;

/// There is no table of levels for samples of this many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{coding} samples of {bits} bits are not decoded, only those of {known} bits")]
pub struct CodecError {
    coding: &'static str,
    known: &'static str,
    bits: u8,
}

/// What the codes of a payload mean.
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
}

impl Codec {
    /// VDIF: offset binary, the lowest code is the lowest level. VDIF 1.1, section 10.
    pub fn vdif(bits: u8) -> Result<Codec, CodecError> {
        let kinds = [Kind::Vdif1, Kind::Vdif2, Kind::Vdif4, Kind::Vdif8];
        Codec::among(&kinds, bits, "VDIF", "1, 2, 4 or 8")
    }

    /// Mark 5B: sign in the lower bit, magnitude in the upper one. Mark 5B user's manual, appendix A;
    /// the sign of 1-bit samples is the one that mark5access and `baseband` read.
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

    /// The codec of the payload that follows `header`.
    pub fn of(header: &vdif::Header) -> Result<Codec, CodecError> {
        let bits = header.shape().bits;
        if header.edv() == Some(MARK5B_EDV) {
            Codec::mark5b(bits)
        } else {
            Codec::vdif(bits)
        }
    }

    /// Bits of a component.
    pub fn bits(self) -> u8 {
        match self.0 {
            Kind::Vdif1 | Kind::Mark5b1 => 1,
            Kind::Vdif2 | Kind::Mark5b2 => 2,
            Kind::Vdif4 => 4,
            Kind::Vdif8 => 8,
        }
    }

    /// The value of each code, the code being the index.
    pub fn levels(self) -> &'static [f32] {
        match self.0 {
            Kind::Vdif1 => &levels::VDIF_1,
            Kind::Vdif2 => &levels::VDIF_2,
            Kind::Vdif4 => &levels::VDIF_4,
            Kind::Vdif8 => &levels::VDIF_8,
            Kind::Mark5b1 => &levels::MARK5B_1,
            Kind::Mark5b2 => &levels::MARK5B_2,
        }
    }

    /// The rms of a signal in units of the levels: with it, [`Codec::encode`] gives decoded values
    /// back the codes that they came from.
    pub fn sigma(self) -> f32 {
        match self.bits() {
            2 => levels::SIGMA_2,
            _ => 1.0,
        }
    }

    /// How many components lie in `bytes` bytes of payload.
    pub fn components(self, bytes: usize) -> usize {
        bytes.saturating_mul(8 / usize::from(self.bits()))
    }

    /// Decodes the components of `payload` into `values`, as many as there are and have room;
    /// says how many. What lies behind them in `values` stays as it is.
    pub fn decode(self, payload: &[u8], values: &mut [f32]) -> usize {
        match self.0 {
            Kind::Vdif1 => decode(&levels::VDIF_1_TABLE, payload, values),
            Kind::Vdif2 => decode(&levels::VDIF_2_TABLE, payload, values),
            Kind::Vdif4 => decode(&levels::VDIF_4_TABLE, payload, values),
            Kind::Vdif8 => decode(&levels::VDIF_8_TABLE, payload, values),
            Kind::Mark5b1 => decode(&levels::MARK5B_1_TABLE, payload, values),
            Kind::Mark5b2 => decode(&levels::MARK5B_2_TABLE, payload, values),
        }
    }

    /// The codes of the components of `payload`, in the order of [`Codec::decode`].
    pub fn codes(self, payload: &[u8]) -> impl Iterator<Item = u8> + '_ {
        let bits = self.bits();
        let mask = u8::MAX >> (8 - bits);
        payload.iter().flat_map(move |byte| {
            (0..8)
                .step_by(usize::from(bits))
                .map(move |low| byte >> low & mask)
        })
    }

    /// Samples `values`, a signal of rms `sigma` about zero, into `payload`: as many whole bytes as the
    /// values fill and have room; says how many. 1 bit: the sign. 2 bits: the sign, and whether the
    /// magnitude is [`THRESHOLD`] sigma or more. 4 and 8 bits: the nearest level, of which a sigma spans
    /// 2.95 and 35.5.
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
                // A float that is cast to an integer is rounded towards zero and kept in its range.
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

/// Components that are turned into codes before they are packed: small loops of one thing each are
/// what the compiler makes SIMD of.
const BATCH: usize = 64;

/// `N` codes go into a byte.
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
