//! Extended user data of a VDIF header, words 4 to 7, for the registered versions.

use std::fmt;

use super::{EDV, Header, RATE, RATE_UNIT};
use crate::field::Field;
use crate::mark5b;

/// Sync word: word 5 of extended data versions 1, 3 and 4.
pub const SYNC: u32 = 0xACAB_FEED;
/// Sync field of 20 bits in word 4 of extended data version 2.
pub const ALMA_SYNC: u32 = 0xA_5EA5;

const MEGA: u64 = 1_000_000;
const KILO: u64 = 1_000;

/// Complex sample rate that is not a whole number of kHz, or needs more than the 23 bits of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} complex samples per second do not fit a VDIF header: use a whole number of kHz, at most 23 bits in kHz or MHz"
)]
#[non_exhaustive]
pub struct RateError(pub u64);

/// Content of the extended user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// Version 1 (NICT).
    Nict(Nict),
    /// Version 2 (ALMA).
    Alma(Alma),
    /// Version 3 (NRAO).
    Nrao(Nrao),
    /// Version 4 (DiFX): several threads merged into one frame, any of which may be missing.
    Merged(Merged),
    /// Version 0xAB (Haystack): the header of the Mark 5B frame that contained the payload.
    Mark5b(mark5b::Header),
    /// Version 0, which leaves the words unused, or an unknown version.
    Other {
        /// Version.
        version: u8,
        /// Words 4 to 7, including the byte of word 4 with the version.
        words: [u32; 4],
    },
}

/// Fields of version 1 (NICT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nict {
    /// Complex samples per second of each channel; real data have two samples for each of those.
    pub complex_rate: u64,
    /// [`SYNC`] in an intact header.
    pub sync: u32,
    /// Name of the data acquisition system, eight characters.
    pub das: u64,
}

/// Fields of version 2 (ALMA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alma {
    /// Polarisation, one bit.
    pub polarisation: u8,
    /// Quadrant of the baseline correlator, two bits.
    pub quadrant: u8,
    /// Number of the baseline correlator, one bit.
    pub correlator: u8,
    /// [`ALMA_SYNC`] in an intact header.
    pub sync: u32,
    /// Status of the phasing interface card.
    pub status: u32,
    /// Packet serial number.
    pub serial: u64,
}

/// Fields of version 3 (NRAO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nrao {
    /// Complex samples per second of the channel; real data have two samples for each of those.
    pub complex_rate: u64,
    /// [`SYNC`] in an intact header.
    pub sync: u32,
    /// Tuning of the local oscillator within the intermediate frequency, in units of 2^-24 MHz.
    pub tuning: u32,
    /// Number of the digital back end, four bits.
    pub unit: u8,
    /// Number of the intermediate frequency, four bits.
    pub input: u8,
    /// Number of the sub-band, three bits.
    pub sub_band: u8,
    /// Upper sideband, else lower.
    pub upper: bool,
    /// Major and minor revision of the firmware, four bits each.
    pub revision: (u8, u8),
    /// Type of the firmware.
    pub personality: u8,
}

/// Fields of version 4 (DiFX): several threads merged into one frame, any of which may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Number of bits of the mask that are used; the channels of the frame are divided evenly among them.
    pub mask_length: u8,
    /// [`SYNC`] in an intact header.
    pub sync: u32,
    /// One bit for each merged thread, lowest first; set if its data is valid.
    pub mask: u64,
}

const ALMA_POLARISATION: Field = Field(4, 0, 1);
const ALMA_QUADRANT: Field = Field(4, 1, 2);
const ALMA_CORRELATOR: Field = Field(4, 3, 1);
const ALMA_SYNC_20: Field = Field(4, 4, 20);
const NRAO_UNIT: Field = Field(7, 24, 4);
const NRAO_INPUT: Field = Field(7, 20, 4);
const NRAO_SUB_BAND: Field = Field(7, 17, 3);
const NRAO_UPPER: Field = Field(7, 16, 1);
const NRAO_MAJOR: Field = Field(7, 12, 4);
const NRAO_MINOR: Field = Field(7, 8, 4);
const NRAO_PERSONALITY: Field = Field(7, 0, 8);
const MASK_LENGTH: Field = Field(4, 16, 8);

impl Header {
    /// Decodes the extended user data; `None` in a legacy header, which has none.
    pub fn extended(&self) -> Option<Extended> {
        let version = self.edv()?;
        let words = [self.words[4], self.words[5], self.words[6], self.words[7]];
        let mark5b = mark5b::Header::from_words(words);
        Some(match (version, mark5b) {
            (1, _) => Extended::Nict(Nict {
                complex_rate: self.complex_rate(),
                sync: self.words[5],
                das: self.words_6_and_7(),
            }),
            (2, _) => Extended::Alma(Alma {
                polarisation: ALMA_POLARISATION.of(&self.words) as u8,
                quadrant: ALMA_QUADRANT.of(&self.words) as u8,
                correlator: ALMA_CORRELATOR.of(&self.words) as u8,
                sync: ALMA_SYNC_20.of(&self.words),
                status: self.words[5],
                serial: self.words_6_and_7(),
            }),
            (3, _) => Extended::Nrao(Nrao {
                complex_rate: self.complex_rate(),
                sync: self.words[5],
                tuning: self.words[6],
                unit: NRAO_UNIT.of(&self.words) as u8,
                input: NRAO_INPUT.of(&self.words) as u8,
                sub_band: NRAO_SUB_BAND.of(&self.words) as u8,
                upper: NRAO_UPPER.of(&self.words) == 1,
                revision: (
                    NRAO_MAJOR.of(&self.words) as u8,
                    NRAO_MINOR.of(&self.words) as u8,
                ),
                personality: NRAO_PERSONALITY.of(&self.words) as u8,
            }),
            (4, _) => Extended::Merged(Merged {
                mask_length: MASK_LENGTH.of(&self.words) as u8,
                sync: self.words[5],
                mask: self.words_6_and_7(),
            }),
            (0xab, Ok(header)) => Extended::Mark5b(header),
            _ => Extended::Other { version, words },
        })
    }

    /// Returns the rate of versions 1 and 3, in complex samples per second.
    pub(super) fn complex_rate(&self) -> u64 {
        let unit = if RATE_UNIT.of(&self.words) == 1 {
            MEGA
        } else {
            KILO
        };
        u64::from(RATE.of(&self.words)) * unit
    }

    fn words_6_and_7(&self) -> u64 {
        u64::from(self.words[7]) << 32 | u64::from(self.words[6])
    }

    /// Replaces the extended user data. A number that is too wide for its field loses its upper bits; a legacy header stays
    /// unchanged.
    pub fn set_extended(&mut self, extended: &Extended) -> Result<(), RateError> {
        if self.is_legacy() {
            return Ok(());
        }
        let mut new = *self;
        new.words[4..].fill(0);
        match extended {
            Extended::Nict(nict) => {
                EDV.set(&mut new.words, 1);
                new.set_complex_rate(nict.complex_rate)?;
                new.words[5] = nict.sync;
                new.set_words_6_and_7(nict.das);
            }
            Extended::Alma(alma) => {
                EDV.set(&mut new.words, 2);
                ALMA_POLARISATION.set(&mut new.words, u32::from(alma.polarisation));
                ALMA_QUADRANT.set(&mut new.words, u32::from(alma.quadrant));
                ALMA_CORRELATOR.set(&mut new.words, u32::from(alma.correlator));
                ALMA_SYNC_20.set(&mut new.words, alma.sync);
                new.words[5] = alma.status;
                new.set_words_6_and_7(alma.serial);
            }
            Extended::Nrao(nrao) => {
                EDV.set(&mut new.words, 3);
                new.set_complex_rate(nrao.complex_rate)?;
                new.words[5] = nrao.sync;
                new.words[6] = nrao.tuning;
                NRAO_UNIT.set(&mut new.words, u32::from(nrao.unit));
                NRAO_INPUT.set(&mut new.words, u32::from(nrao.input));
                NRAO_SUB_BAND.set(&mut new.words, u32::from(nrao.sub_band));
                NRAO_UPPER.set(&mut new.words, u32::from(nrao.upper));
                NRAO_MAJOR.set(&mut new.words, u32::from(nrao.revision.0));
                NRAO_MINOR.set(&mut new.words, u32::from(nrao.revision.1));
                NRAO_PERSONALITY.set(&mut new.words, u32::from(nrao.personality));
            }
            Extended::Merged(merged) => {
                EDV.set(&mut new.words, 4);
                MASK_LENGTH.set(&mut new.words, u32::from(merged.mask_length));
                new.words[5] = merged.sync;
                new.set_words_6_and_7(merged.mask);
            }
            Extended::Mark5b(header) => new.words[4..].copy_from_slice(&header.words()),
            Extended::Other { version, words } => {
                new.words[4..].copy_from_slice(words);
                EDV.set(&mut new.words, u32::from(*version));
            }
        }
        *self = new;
        Ok(())
    }

    fn set_complex_rate(&mut self, rate: u64) -> Result<(), RateError> {
        let is_mega = rate.is_multiple_of(MEGA);
        let unit = if is_mega { MEGA } else { KILO };
        if !rate.is_multiple_of(unit) || rate / unit >= 1 << 23 {
            return Err(RateError(rate));
        }
        RATE_UNIT.set(&mut self.words, u32::from(is_mega));
        RATE.set(&mut self.words, (rate / unit) as u32);
        Ok(())
    }

    pub(super) fn set_words_6_and_7(&mut self, value: u64) {
        self.words[6] = value as u32;
        self.words[7] = (value >> 32) as u32;
    }
}

impl fmt::Display for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Extended::Nict(nict) => write!(
                f,
                "EDV 1 (NICT): {} of bandwidth, DAS {}",
                hertz(nict.complex_rate),
                String::from_utf8_lossy(&nict.das.to_le_bytes())
                    .trim_end_matches('\0')
                    .escape_default()
            ),
            Extended::Alma(alma) => write!(
                f,
                "EDV 2 (ALMA): polarisation {}, quadrant {}, correlator {}, status {:#010x}, packet {}",
                alma.polarisation, alma.quadrant, alma.correlator, alma.status, alma.serial
            ),
            Extended::Nrao(nrao) => write!(
                f,
                "EDV 3 (NRAO): {} of bandwidth, tuned to {} MHz, unit {}, IF {}, sub-band {}, \
                 {} side band, personality {:#04x} revision {}.{}",
                hertz(nrao.complex_rate),
                f64::from(nrao.tuning) / f64::from(1 << 24),
                nrao.unit,
                nrao.input,
                nrao.sub_band,
                if nrao.upper { "upper" } else { "lower" },
                nrao.personality,
                nrao.revision.0,
                nrao.revision.1,
            ),
            Extended::Merged(merged) => {
                let digits = usize::from(merged.mask_length.clamp(1, 64));
                write!(
                    f,
                    "EDV 4 (merged threads): validity {:0digits$b}",
                    merged.mask
                )
            }
            Extended::Mark5b(header) => write!(f, "EDV 0xab (Mark 5B): {header:?}"),
            Extended::Other { version: 0, words } if words == [0; 4] => {
                write!(f, "EDV 0 (unused)")
            }
            Extended::Other { version, words } => {
                write!(f, "EDV {version:#04x}: words {words:08x?}")
            }
        }
    }
}

/// Formats a frequency in the unit that the header uses.
fn hertz(rate: u64) -> String {
    match rate.is_multiple_of(MEGA) {
        true => format!("{} MHz", rate / MEGA),
        false => format!("{} kHz", rate / KILO),
    }
}
