//! Shedding policies as text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evlbi_wire::units;
use serde::Serialize;

use crate::rate::BitRate;

use super::mixed;

/// Minimum block of time of `common:` and `keep:`. It must be much longer than the tens of milliseconds between the arrivals of a wavefront
/// at two stations.
const MIN_BLOCK: Duration = Duration::from_millis(100);

/// Default mean length of the bursts of `burst:`, in units.
const BURST_LENGTH: f64 = 10.0;

/// Fraction between 0 and 1 in units of 10^-12, so that nothing drifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction(pub(super) u64);

impl Fraction {
    /// Value of the whole.
    pub const ONE: u64 = 1_000_000_000_000;

    /// Makes a fraction of `parts` in [`Fraction::ONE`]; `None` for nothing and for all: `none` and not sending are clearer.
    pub fn new(parts: u64) -> Option<Fraction> {
        (1..Fraction::ONE)
            .contains(&parts)
            .then_some(Fraction(parts))
    }

    /// Returns the fraction as a number.
    pub fn get(self) -> f64 {
        self.0 as f64 / Fraction::ONE as f64
    }

    /// Returns how many units to keep after `shed` units were shed, n(1/f - 1), and the remainder.
    pub(super) fn kept_after(self, shed: u64, carried: u64) -> (u64, u64) {
        let exact = shed * (Fraction::ONE - self.0) + carried;
        (exact / self.0, exact % self.0)
    }

    /// Returns whether the cell with this number is selected; selected cells are spread evenly.
    pub(super) fn falls_on(self, seed: u64, cell: i128) -> bool {
        let parts = i128::from(self.0);
        let one = i128::from(Fraction::ONE);
        let phase = i128::from(mixed(seed, u64::MAX) % Fraction::ONE);
        (cell * parts + phase).rem_euclid(one) < parts
    }
}

impl FromStr for Fraction {
    type Err = ();

    /// Parses `0.05`, `5%` or `1/20`.
    fn from_str(text: &str) -> Result<Fraction, ()> {
        if let Some((part, whole)) = text.split_once('/') {
            let [part, whole] = [part, whole].map(|text| text.parse::<u32>().map_err(|_| ()));
            let (part, whole) = (u64::from(part?), u64::from(whole?));
            let parts = (u128::from(part) * u128::from(Fraction::ONE)).checked_div(whole.into());
            return Fraction::new(u64::try_from(parts.ok_or(())?).map_err(|_| ())?).ok_or(());
        }
        let percent = text.strip_suffix('%').map(|number| (number, 0.01));
        let (number, scale) = percent.unwrap_or((text, 1.0));
        if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return Err(());
        }
        let parts = (number.parse::<f64>().map_err(|_| ())? * scale * Fraction::ONE as f64).round();
        Fraction::new(parts as u64).ok_or(())
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:012}", self.0);
        write!(f, "0.{}", digits.trim_end_matches('0'))
    }
}

/// Shedding policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Nothing.
    None,
    /// One unit in every N.
    Every(u64),
    /// Bunches of 1 to 10 units, then n(1/f - 1) kept.
    Bunch(Fraction),
    /// Each unit at random.
    Random(Fraction),
    /// At random in bursts (Gilbert-Elliott channel with two states).
    Burst {
        /// Fraction that is shed.
        fraction: Fraction,
        /// Mean length of a burst, in units.
        length: f64,
    },
    /// Whole threads.
    Threads(Vec<u16>),
    /// The same cells of time at every station.
    Common {
        /// Fraction that is shed.
        fraction: Fraction,
        /// Length of a cell if the stream has one thread.
        block: Duration,
    },
    /// All but a fraction of whole threads, the highest of which are shed first, and of blocks of time. A fraction contains every
    /// smaller one.
    Keep {
        /// Fraction that is kept.
        kept: Fraction,
        /// Length of a block.
        block: Duration,
    },
    /// As little as possible to fit an Ethernet of this rate.
    Fit(BitRate),
}

/// Text that is not a valid policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid policy `{text}`: {why}")]
pub struct PolicyError {
    text: String,
    why: String,
}

const CHOICES: &str = "choose none, every:N, bunch:F, random:F, burst:F[,LENGTH], threads:A,B-C, common:F[,TIME], keep:F[,TIME] or fit:RATE";
const NO_FRACTION: &str = "the fraction must be between 0 and 1, e.g. 0.05, 5% or 1/20";

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let error = |why: &str| PolicyError {
            text: text.to_owned(),
            why: why.to_owned(),
        };
        let (name, argument) = text.split_once(':').unwrap_or((text, ""));
        let fraction = |text: &str| text.parse::<Fraction>().map_err(|()| error(NO_FRACTION));
        let (first, second) = match argument.split_once(',') {
            Some((first, second)) => (first, Some(second)),
            None => (argument, None),
        };
        match (name, second) {
            ("none", None) if argument.is_empty() => Ok(Policy::None),
            ("every", None) => match argument.parse() {
                Ok(n @ 2..) => Ok(Policy::Every(n)),
                _ => Err(error("every:N needs a whole number of at least 2")),
            },
            ("bunch", None) => Ok(Policy::Bunch(fraction(first)?)),
            ("random", None) => Ok(Policy::Random(fraction(first)?)),
            ("burst", length) => burst(fraction(first)?, length).map_err(error),
            ("threads", _) => units::numbers(argument, 1023)
                .map(Policy::Threads)
                .ok_or_else(|| error("threads: needs numbers from 0 to 1023, e.g. 0,2,4-7")),
            ("common" | "keep", block) => {
                let block = block.map_or(Ok(MIN_BLOCK), |text| block_length(name, text));
                let (fraction, block) = (fraction(first)?, block.map_err(|why| error(&why))?);
                Ok(match name {
                    "common" => Policy::Common { fraction, block },
                    _ => Policy::Keep {
                        kept: fraction,
                        block,
                    },
                })
            }
            ("fit", None) => argument
                .parse()
                .map(Policy::Fit)
                .map_err(|_| error("fit: needs the rate of a link, e.g. 1G")),
            _ => Err(error(CHOICES)),
        }
    }
}

fn burst(fraction: Fraction, length: Option<&str>) -> Result<Policy, &'static str> {
    let length = match length {
        None => BURST_LENGTH,
        Some(text) => text
            .parse::<f64>()
            .ok()
            .filter(|length| (1.0..1e9).contains(length))
            .ok_or("the mean length of a burst must be a number of at least 1")?,
    };
    if fraction.get() / (1.0 - fraction.get()) > length {
        return Err("so large a fraction needs longer bursts: LENGTH must be at least F / (1 - F)");
    }
    Ok(Policy::Burst { fraction, length })
}

fn block_length(policy: &str, text: &str) -> Result<Duration, String> {
    let block = units::duration(units::with_unit(text, "duration", ["ms", "s"])?)?;
    let blocks = MIN_BLOCK..Duration::from_secs(86_400);
    match blocks.contains(&block) {
        true => Ok(block),
        false => Err(format!(
            "the block of {policy}: must be 100ms or more, and less than 24h"
        )),
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::None => f.write_str("none"),
            Policy::Every(n) => write!(f, "every:{n}"),
            Policy::Bunch(fraction) => write!(f, "bunch:{fraction}"),
            Policy::Random(fraction) => write!(f, "random:{fraction}"),
            Policy::Burst { fraction, length } => write!(f, "burst:{fraction},{length}"),
            Policy::Threads(threads) => {
                let names: Vec<String> = threads.iter().map(u16::to_string).collect();
                write!(f, "threads:{}", names.join(","))
            }
            Policy::Common { fraction, block } => {
                write!(f, "common:{fraction},{}s", block.as_secs_f64())
            }
            Policy::Keep { kept, block } => write!(f, "keep:{kept},{}s", block.as_secs_f64()),
            Policy::Fit(link) => write!(f, "fit:{link}"),
        }
    }
}

/// Replacement of shed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Replace {
    /// None: the data are not sent, or cut out of the file.
    Nothing,
    /// The fill pattern.
    Fill,
    /// Random bytes.
    Random,
    /// A frame with its right time and the invalid bit set.
    Invalid,
}
