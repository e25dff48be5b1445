//! The extended user data of a VDIF header, words 4 to 7, for the versions that are registered.

use std::fmt;

use super::{EDV, Field, Header, RATE, RATE_UNIT};
use crate::mark5b;

/// Word 5 of extended data versions 1, 3 and 4.
pub const SYNC: u32 = 0xACAB_FEED;
/// The 20 bits that stand in word 4 of extended data version 2.
pub const ALMA_SYNC: u32 = 0xA_5EA5;

const MEGA: u64 = 1_000_000;
const KILO: u64 = 1_000;

/// The rate is no whole number of kHz, or needs more than the 23 bits that the header has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a VDIF header cannot tell a rate of {0} complex samples per second")]
pub struct RateError(pub u64);

/// What the extended user data says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// Version 1 (NICT).
    Nict {
        /// Complex samples per second of each channel; real data has two samples for one of those.
        complex_rate: u64,
        /// [`SYNC`] in an intact header.
        sync: u32,
        /// Name of the data acquisition system, eight characters.
        das: u64,
    },
    /// Version 2 (ALMA).
    Alma {
        /// Polarisation, one bit.
        polarisation: u8,
        /// Quadrant of the baseline correlator, two bits.
        quadrant: u8,
        /// The baseline correlator, one bit.
        correlator: u8,
        /// [`ALMA_SYNC`] in an intact header.
        sync: u32,
        /// Status of the phasing interface card.
        status: u32,
        /// Packet serial number.
        serial: u64,
    },
    /// Version 3 (NRAO).
    Nrao {
        /// Complex samples per second of the channel; real data has two samples for one of those.
        complex_rate: u64,
        /// [`SYNC`] in an intact header.
        sync: u32,
        /// Tuning of the local oscillator within the intermediate frequency, units of 2^-24 MHz.
        tuning: u32,
        /// Digital back end that made the data, four bits.
        unit: u8,
        /// Number of the intermediate frequency, four bits.
        input: u8,
        /// Number of the sub-band, three bits.
        sub_band: u8,
        /// The upper side band, else the lower.
        upper: bool,
        /// Major and minor revision of the firmware, four bits each.
        revision: (u8, u8),
        /// Type of the firmware.
        personality: u8,
    },
    /// Version 4 (DiFX): several threads merged into one frame, each perhaps missing.
    Merged {
        /// How many bits of the mask count; the channels of the frame divide evenly over them.
        mask_length: u8,
        /// [`SYNC`] in an intact header.
        sync: u32,
        /// A bit for each merged thread, lowest first; one where its data is good.
        mask: u64,
    },
    /// Version 0xAB (Haystack): the header of the Mark 5B frame that the payload came in.
    Mark5b(mark5b::Header),
    /// Version 0, which leaves the words unused, and any that is not known here.
    Other {
        /// The version.
        version: u8,
        /// Words 4 to 7, the version's byte in word 4 included.
        words: [u32; 4],
    },
}

const WORD_5: Field = Field(5, 0, 32);
const WORD_6: Field = Field(6, 0, 32);
const WORD_7: Field = Field(7, 0, 32);
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
    /// The extended user data, decoded; `None` in a legacy header, which has none.
    pub fn extended(&self) -> Option<Extended> {
        let version = self.edv()?;
        let words = [self.words[4], self.words[5], self.words[6], self.words[7]];
        let known = match version {
            1 => Some(self.nict()),
            2 => Some(self.alma()),
            3 => Some(self.nrao()),
            4 => Some(self.merged()),
            0xab => mark5b::Header::from_words(words).ok().map(Extended::Mark5b),
            _ => None,
        };
        Some(known.unwrap_or(Extended::Other { version, words }))
    }

    fn nict(&self) -> Extended {
        Extended::Nict {
            complex_rate: self.complex_rate(),
            sync: self.get(WORD_5),
            das: self.words_6_and_7(),
        }
    }

    fn alma(&self) -> Extended {
        Extended::Alma {
            polarisation: self.get(ALMA_POLARISATION) as u8,
            quadrant: self.get(ALMA_QUADRANT) as u8,
            correlator: self.get(ALMA_CORRELATOR) as u8,
            sync: self.get(ALMA_SYNC_20),
            status: self.get(WORD_5),
            serial: self.words_6_and_7(),
        }
    }

    fn nrao(&self) -> Extended {
        Extended::Nrao {
            complex_rate: self.complex_rate(),
            sync: self.get(WORD_5),
            tuning: self.get(WORD_6),
            unit: self.get(NRAO_UNIT) as u8,
            input: self.get(NRAO_INPUT) as u8,
            sub_band: self.get(NRAO_SUB_BAND) as u8,
            upper: self.get(NRAO_UPPER) == 1,
            revision: (self.get(NRAO_MAJOR) as u8, self.get(NRAO_MINOR) as u8),
            personality: self.get(NRAO_PERSONALITY) as u8,
        }
    }

    fn merged(&self) -> Extended {
        Extended::Merged {
            mask_length: self.get(MASK_LENGTH) as u8,
            sync: self.get(WORD_5),
            mask: self.words_6_and_7(),
        }
    }

    /// The rate field of versions 1 and 3.
    pub(super) fn complex_rate(&self) -> u64 {
        let unit = if self.get(RATE_UNIT) == 1 { MEGA } else { KILO };
        u64::from(self.get(RATE)) * unit
    }

    fn words_6_and_7(&self) -> u64 {
        u64::from(self.words[7]) << 32 | u64::from(self.words[6])
    }

    /// Replaces the extended user data. A number that is wider than its place loses its upper bits; a
    /// legacy header has no place and stays as it is.
    pub fn set_extended(&mut self, extended: &Extended) -> Result<(), RateError> {
        if self.is_legacy() {
            return Ok(());
        }
        let mut new = *self;
        new.words[4..].fill(0);
        match *extended {
            Extended::Nict {
                complex_rate,
                sync,
                das,
            } => {
                new.set(EDV, 1);
                new.set_complex_rate(complex_rate)?;
                new.set(WORD_5, sync);
                new.set_words_6_and_7(das);
            }
            Extended::Alma {
                polarisation,
                quadrant,
                correlator,
                sync,
                status,
                serial,
            } => {
                new.set(EDV, 2);
                new.set(ALMA_POLARISATION, u32::from(polarisation));
                new.set(ALMA_QUADRANT, u32::from(quadrant));
                new.set(ALMA_CORRELATOR, u32::from(correlator));
                new.set(ALMA_SYNC_20, sync);
                new.set(WORD_5, status);
                new.set_words_6_and_7(serial);
            }
            Extended::Nrao {
                complex_rate,
                sync,
                tuning,
                unit,
                input,
                sub_band,
                upper,
                revision: (major, minor),
                personality,
            } => {
                new.set(EDV, 3);
                new.set_complex_rate(complex_rate)?;
                new.set(WORD_5, sync);
                new.set(WORD_6, tuning);
                new.set(NRAO_UNIT, u32::from(unit));
                new.set(NRAO_INPUT, u32::from(input));
                new.set(NRAO_SUB_BAND, u32::from(sub_band));
                new.set(NRAO_UPPER, u32::from(upper));
                new.set(NRAO_MAJOR, u32::from(major));
                new.set(NRAO_MINOR, u32::from(minor));
                new.set(NRAO_PERSONALITY, u32::from(personality));
            }
            Extended::Merged {
                mask_length,
                sync,
                mask,
            } => {
                new.set(EDV, 4);
                new.set(MASK_LENGTH, u32::from(mask_length));
                new.set(WORD_5, sync);
                new.set_words_6_and_7(mask);
            }
            Extended::Mark5b(header) => new.words[4..].copy_from_slice(&header.words()),
            Extended::Other { version, words } => {
                new.words[4..].copy_from_slice(&words);
                new.set(EDV, u32::from(version));
            }
        }
        *self = new;
        Ok(())
    }

    fn set_complex_rate(&mut self, rate: u64) -> Result<(), RateError> {
        let (unit, megahertz) = if rate.is_multiple_of(MEGA) {
            (MEGA, 1)
        } else {
            (KILO, 0)
        };
        let value = u32::try_from(rate / unit)
            .ok()
            .filter(|value| *value < 1 << 23 && rate.is_multiple_of(unit))
            .ok_or(RateError(rate))?;
        self.set(RATE_UNIT, megahertz);
        self.set(RATE, value);
        Ok(())
    }

    pub(super) fn set_words_6_and_7(&mut self, value: u64) {
        self.set(WORD_6, value as u32);
        self.set(WORD_7, (value >> 32) as u32);
    }
}

impl fmt::Display for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Extended::Nict {
                complex_rate, das, ..
            } => write!(
                f,
                "EDV 1 (NICT): {} of bandwidth, DAS {}",
                Hertz(complex_rate),
                String::from_utf8_lossy(&das.to_le_bytes())
                    .trim_end_matches('\0')
                    .escape_default()
            ),
            Extended::Alma {
                polarisation,
                quadrant,
                correlator,
                status,
                serial,
                ..
            } => write!(
                f,
                "EDV 2 (ALMA): polarisation {polarisation}, quadrant {quadrant}, correlator {correlator}, \
                 status {status:#010x}, packet {serial}"
            ),
            Extended::Nrao {
                complex_rate,
                tuning,
                unit,
                input,
                sub_band,
                upper,
                revision: (major, minor),
                personality,
                ..
            } => write!(
                f,
                "EDV 3 (NRAO): {} of bandwidth, tuned to {} MHz, unit {unit}, IF {input}, sub-band {sub_band}, \
                 {} side band, personality {personality:#04x} revision {major}.{minor}",
                Hertz(complex_rate),
                f64::from(tuning) / f64::from(1 << 24),
                if upper { "upper" } else { "lower" },
            ),
            Extended::Merged {
                mask_length, mask, ..
            } => {
                let digits = usize::from(mask_length.clamp(1, 64));
                write!(f, "EDV 4 (merged threads): validity {mask:0digits$b}")
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

/// A frequency in the unit in which the header tells it.
struct Hertz(u64);

impl fmt::Display for Hertz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(MEGA) {
            write!(f, "{} MHz", self.0 / MEGA)
        } else {
            write!(f, "{} kHz", self.0 / KILO)
        }
    }
}
