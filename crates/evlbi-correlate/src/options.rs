//! Options of a correlation.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use evlbi_fx::fringe::Window;
use evlbi_fx::simd::Simd;
use evlbi_fx::track::Trust;
use evlbi_net::safe::Key;
use evlbi_wire::mark4::Sideband;
use evlbi_wire::units;
use serde::{Deserialize, Serialize};

use super::files::{FileError, read_text, whole};

/// Maximum number of bands in a block of one polarisation.
const MAX_BLOCK: usize = 4096;

/// Options of a correlation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CorrelateOptions {
    /// Path of a delay model: a DiFX `.im`, whose `.input` next to it contains frequencies, sidebands and clocks, or the `.toml` of a
    /// simulated sky.
    pub model: Option<PathBuf>,
    /// Delay of each station in the order of the inputs, in addition to the model.
    pub delay: Vec<DelayTerms>,
    /// LO frequencies of the bands: one for the first, which the others follow, or one per band; empty if unknown.
    pub freq: Vec<Hertz>,
    /// Sideband of real samples; `None` for that in the names of Mark 4 channels, and the upper one for others.
    pub sideband: Option<SideBand>,
    /// Polarisations of the bands.
    pub polarisations: Polarisations,
    /// Path of a table of frequencies, sidebands and polarisations ([`evlbi_stream::channel_table`]) instead of the three above.
    pub channel_table: Option<PathBuf>,
    /// Names of the stations whose recorded samples have the opposite sign.
    pub invert: Vec<String>,
    /// Whether different polarisations are correlated too.
    pub cross_hands: bool,
    /// Samples per second of a band, if the recordings do not contain it.
    pub sample_rate: Option<Hertz>,
    /// Channels of a band; `None` for those of the model, or 1024.
    pub channels: Option<usize>,
    /// Length of an integration; `None` for that of the model, or 1 s.
    pub integration: Option<Duration>,
    /// Maximum delay of the fringe search, on either side; `None` for all that the channels resolve.
    pub delay_window: Option<Duration>,
    /// Maximum rate of the fringe search, on either side; `None` for all that the dumps resolve.
    pub rate_window: Option<Hertz>,
    /// Times of stations that are left out.
    pub flag: Vec<Flag>,
    /// Number of correlating threads; `None` for one per CPU.
    #[serde(skip)]
    pub threads: Option<u16>,
    /// Vector instructions; `None` for the best of this CPU.
    pub simd: Option<Simd>,
    /// Which samples count as valid.
    pub trust: Trust,
    /// The time of the recordings to correlate.
    #[serde(skip)]
    pub stretch: Stretch,
    /// Directory for visibilities of recordings.
    #[serde(skip)]
    pub visibilities: Option<PathBuf>,
    /// Whether existing visibilities are overwritten.
    #[serde(skip)]
    pub force: bool,
    /// Contents of the files that these options name; others are read.
    pub texts: BTreeMap<PathBuf, String>,
}

impl Default for CorrelateOptions {
    fn default() -> CorrelateOptions {
        CorrelateOptions {
            model: None,
            delay: Vec::new(),
            freq: Vec::new(),
            sideband: None,
            polarisations: Polarisations::default(),
            channel_table: None,
            invert: Vec::new(),
            cross_hands: false,
            sample_rate: None,
            channels: None,
            integration: None,
            delay_window: None,
            rate_window: None,
            flag: Vec::new(),
            threads: None,
            simd: None,
            trust: Trust::Exact,
            stretch: Stretch::All,
            visibilities: None,
            force: false,
            texts: BTreeMap::new(),
        }
    }
}

impl CorrelateOptions {
    /// Returns the window of the fringe search.
    pub fn window(&self) -> Window {
        Window {
            delay_s: self.delay_window.map(|window| window.as_secs_f64()),
            rate_hz: self.rate_window.map(|window| window.0),
        }
    }

    /// Returns the content of a file that these options name.
    pub(super) fn text(&self, path: &Path) -> Result<String, FileError> {
        match self.texts.get(path) {
            Some(text) => Ok(text.clone()),
            None => read_text(path),
        }
    }

    /// Returns the options with the contents of the files that they name, by their whole paths.
    pub(super) fn with_texts(mut self) -> Result<CorrelateOptions, FileError> {
        let mut texts = BTreeMap::new();
        self.model = self.model.as_deref().map(whole).transpose()?;
        self.channel_table = self.channel_table.as_deref().map(whole).transpose()?;
        for path in self.model.iter().chain(&self.channel_table) {
            texts.insert(path.clone(), self.text(path)?);
        }
        if let Some(model) = self.model.as_ref().filter(|model| !is_sky(model)) {
            let beside = model.with_extension("input");
            texts.insert(beside.clone(), self.text(&beside)?);
        }
        self.texts = texts;
        Ok(self)
    }

    /// Returns the number of correlating threads.
    pub(super) fn threads(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or(processors, usize::from)
    }
}

/// Returns whether a model is the plan of a simulated sky. Others are jobs of DiFX.
pub fn is_sky(model: &Path) -> bool {
    model.extension().is_some_and(|kind| kind == "toml")
}

/// Options for receiving the streams of a live correlation.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Time to wait for a late station.
    pub wait: Duration,
    /// Stop a stream after this time without a datagram.
    pub idle: Option<Duration>,
    /// Stop the streams this long after the start.
    pub duration: Option<Duration>,
    /// Send reports to senders under SafeUDP, authenticated by this key. Other transports and multicast groups have none.
    pub safe: Option<Key>,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            wait: Duration::from_secs(1),
            idle: None,
            duration: None,
            safe: None,
        }
    }
}

/// Direction of the frequency axis of a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SideBand {
    /// Frequency grows with that of the sky.
    Upper,
    /// Frequency falls as that of the sky grows.
    Lower,
}

impl From<Sideband> for SideBand {
    fn from(of_channel: Sideband) -> SideBand {
        match of_channel {
            Sideband::Upper => SideBand::Upper,
            Sideband::Lower => SideBand::Lower,
        }
    }
}

/// Letters that name the polarisations of the bands in their order, again and again: `R`, `RL`, or in blocks `8X8Y`.
///
/// The first bands of each polarisation are of the first frequency, the second of the second, and so on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Polarisations {
    letters: Vec<char>,
    /// Whether blocks were given, which the bands must fill.
    has_blocks: bool,
}

impl Default for Polarisations {
    /// One polarisation, called R.
    fn default() -> Polarisations {
        Polarisations {
            letters: vec!['R'],
            has_blocks: false,
        }
    }
}

impl Polarisations {
    /// Number of bands after which the letters begin again.
    pub(super) fn len(&self) -> usize {
        self.letters.len()
    }

    /// Returns the polarisation of each of `bands` bands, with its place among those of this polarisation; `None` if they do
    /// not fill the blocks.
    pub(super) fn of(&self, bands: usize) -> Option<Vec<(char, usize)>> {
        if self.has_blocks && !bands.is_multiple_of(self.letters.len()) {
            return None;
        }
        let mut seen = HashMap::new();
        let letters = self.letters.iter().cycle().take(bands);
        let placed = letters.map(|letter| {
            let next: &mut usize = seen.entry(*letter).or_default();
            *next += 1;
            (*letter, *next - 1)
        });
        Some(placed.collect())
    }
}

impl From<Polarisations> for String {
    fn from(polarisations: Polarisations) -> String {
        polarisations.to_string()
    }
}

impl TryFrom<String> for Polarisations {
    type Error = String;

    fn try_from(text: String) -> Result<Polarisations, String> {
        text.parse()
    }
}

impl FromStr for Polarisations {
    type Err = String;

    fn from_str(text: &str) -> Result<Polarisations, String> {
        let mut polarisations = Polarisations {
            letters: Vec::new(),
            has_blocks: false,
        };
        let mut parse = || {
            let mut rest = text;
            while !rest.is_empty() {
                let digits = rest.find(|c: char| !c.is_ascii_digit())?;
                let (count, letter) = (&rest[..digits], rest[digits..].chars().next()?);
                let is_new = !polarisations.letters.contains(&letter);
                let count: usize = match count {
                    "" => 1,
                    count => count
                        .parse()
                        .ok()
                        .filter(|count| (1..=MAX_BLOCK).contains(count))?,
                };
                (letter.is_ascii_uppercase() && is_new).then_some(())?;
                polarisations.has_blocks |= digits > 0;
                polarisations.letters.extend(vec![letter; count]);
                rest = &rest[digits + 1..];
            }
            (!polarisations.letters.is_empty()).then_some(())
        };
        match parse() {
            Some(()) => Ok(polarisations),
            None => Err(format!(
                "invalid polarisations `{text}`: give one letter per band, e.g. R, RL, XY, or blocks, e.g. 8X8Y"
            )),
        }
    }
}

impl fmt::Display for Polarisations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for block in self.letters.chunk_by(|a, b| a == b) {
            match self.has_blocks {
                true => write!(f, "{}{}", block.len(), block[0])?,
                false => write!(f, "{}", block[0])?,
            }
        }
        Ok(())
    }
}

/// Time of recordings to correlate.
#[derive(Clone, Debug, Default)]
pub enum Stretch {
    /// All of it.
    #[default]
    All,
    /// From and until this many seconds after the start.
    Between(Range<f64>),
    /// This many seconds before the end.
    Last(f64),
}

/// A frequency, e.g. `4.9G`, `32MHz`, `1Hz`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hertz(pub f64);

impl FromStr for Hertz {
    type Err = String;

    /// Parses a sky frequency or a sample rate.
    fn from_str(text: &str) -> Result<Hertz, String> {
        Hertz::parse(text, ["MHz", "GHz"])
    }
}

impl Hertz {
    /// Parses a fringe rate.
    ///
    /// # Errors
    /// Returns what to write if the text is not a frequency above 0 with a unit.
    pub fn rate(text: &str) -> Result<Hertz, String> {
        Hertz::parse(text, ["Hz", "kHz"])
    }

    /// Parses a frequency. `units` are those that one without a unit probably has.
    fn parse(text: &str, units: [&'static str; 2]) -> Result<Hertz, String> {
        let text = units::with_unit(text, "frequency", units)?;
        let number = text.strip_suffix("Hz").unwrap_or(text).trim();
        let prefixes = [("G", 1e9), ("M", 1e6), ("k", 1e3), ("m", 1e-3)];
        let hertz = units::scaled(number, &prefixes).filter(|hertz| *hertz > 0.0);
        hertz
            .map(Hertz)
            .ok_or_else(|| format!("invalid frequency `{text}`: write 4.9GHz, 32MHz or 1Hz"))
    }
}

/// A polynomial of a delay: seconds, seconds per second and so on, e.g. `1.5us,2e-12`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DelayTerms(pub Vec<f64>);

impl FromStr for DelayTerms {
    type Err = String;

    fn from_str(text: &str) -> Result<DelayTerms, String> {
        let units = [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("s", 1.0)];
        // Seconds per second, and what follows, have no unit.
        let delay = text.split(',').next().unwrap_or_default();
        units::with_unit(delay, "delay", ["us", "s"])?;
        let terms = text
            .split(',')
            .map(|term| units::scaled(term.trim(), &units));
        terms.collect::<Option<_>>().map(DelayTerms).ok_or_else(|| {
            format!(
                "invalid delay `{text}`: write the delay, its rate in s/s and so on, e.g. 1.5us,2e-12"
            )
        })
    }
}

/// The delay to a picosecond with its unit, and the other terms to seven digits.
impl fmt::Display for DelayTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delay = self.0.first().copied().unwrap_or(0.0);
        let (unit, scale, digits) = match delay.abs() {
            0.0 => ("s", 1.0, 12),
            length if length < 1e-6 => ("ns", 1e9, 3),
            length if length < 1e-3 => ("us", 1e6, 6),
            length if length < 1.0 => ("ms", 1e3, 9),
            _ => ("s", 1.0, 12),
        };
        let decimal = format!("{:.digits$}", delay * scale);
        let decimal = decimal.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{decimal}{unit}")?;
        for term in self.0.iter().skip(1) {
            let rounded: f64 = format!("{term:.6e}").parse().unwrap_or(*term);
            write!(f, ",{rounded:e}")?;
        }
        Ok(())
    }
}

/// A time of a station that is left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flag {
    /// Name of the station.
    pub station: String,
    /// Seconds since the first second of the first recording.
    pub seconds: Range<f64>,
}

impl FromStr for Flag {
    type Err = String;

    fn from_str(text: &str) -> Result<Flag, String> {
        let parse = || {
            let (station, seconds) = text.rsplit_once(':')?;
            let (from, to) = seconds.split_once("..")?;
            Some((station, from, to)).filter(|_| !station.is_empty())
        };
        let invalid =
            || format!("invalid flag `{text}`: write STATION:FROM..TO, e.g. Ef:12.5s..13s");
        let (station, from, to) = parse().ok_or_else(invalid)?;
        let seconds = |text| {
            let text = units::with_unit(text, "time", ["ms", "s"])?;
            units::duration(text)
                .map(|time| time.as_secs_f64())
                .map_err(|_| invalid())
        };
        let seconds = seconds(from)?..seconds(to)?;
        match seconds.start < seconds.end {
            true => Ok(Flag {
                station: station.to_owned(),
                seconds,
            }),
            false => Err(invalid()),
        }
    }
}

/// One of several parts of a correlation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Number of the part, from 1.
    pub number: usize,
    /// Number of parts.
    pub of: usize,
}

impl FromStr for Chunk {
    type Err = String;

    fn from_str(text: &str) -> Result<Chunk, String> {
        let parse = || {
            let (number, of) = text.split_once('/')?;
            let (number, of): (u32, u32) = (number.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&number).then_some(Chunk {
                number: number as usize,
                of: of as usize,
            })
        };
        parse().ok_or_else(|| format!("invalid part `{text}`: write K/N, from 1/N to N/N"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_delays_and_flags_are_read() {
        assert_eq!("4.9G".parse(), Ok(Hertz(4.9e9)));
        assert_eq!("32MHz".parse(), Ok(Hertz(32e6)));
        let DelayTerms(terms) = "1.5us,-2e-12".parse().unwrap();
        assert!((terms[0] - 1.5e-6).abs() < 1e-18 && terms[1] == -2e-12);
        let flag: Flag = "Ef:1.5s..2s".parse().unwrap();
        assert_eq!((flag.station.as_str(), flag.seconds), ("Ef", 1.5..2.0));
        for bad in ["", "x", "-1", "0", "nan"] {
            assert!(bad.parse::<Hertz>().is_err(), "{bad}");
        }
        for bad in ["", "1,,2", "inf"] {
            assert!(bad.parse::<DelayTerms>().is_err(), "{bad}");
        }
        let bare = "4.9".parse::<Hertz>().unwrap_err();
        assert_eq!(
            bare,
            "invalid frequency `4.9`: add a unit, e.g. 4.9MHz, 4.9GHz"
        );
        let bare = Hertz::rate("1000").unwrap_err();
        assert_eq!(
            bare,
            "invalid frequency `1000`: add a unit, e.g. 1000Hz, 1000kHz"
        );
        assert_eq!(Hertz::rate("5mHz"), Ok(Hertz(5e-3)));
        let bare = "1.5e-6,2e-12".parse::<DelayTerms>().unwrap_err();
        assert!(bare.contains("add a unit, e.g. 1.5e-6us"), "{bare}");
        assert_eq!("0,2e-12".parse(), Ok(DelayTerms(vec![0.0, 2e-12])));
        assert_eq!("0".parse(), Ok(DelayTerms(vec![0.0])));
        for text in ["0s", "1.000034ms,1.0043e-7", "-0.3ns,-2e-12,0e0", "12.5us"] {
            let terms: DelayTerms = text.parse().unwrap();
            assert_eq!(terms.to_string(), text);
        }
        let bare = "Ef:1.5s..2".parse::<Flag>().unwrap_err();
        assert!(bare.contains("add a unit, e.g. 2ms, 2s"), "{bare}");
        for bad in ["", "Ef", "Ef:1", "Ef:2s..1s", ":1s..2s", "Ef:x..2s"] {
            assert!(bad.parse::<Flag>().is_err(), "{bad}");
        }
    }

    #[test]
    fn polarisations_are_read_and_placed() {
        let read = |text: &str| text.parse::<Polarisations>().unwrap();
        let turns = vec![('X', 0), ('Y', 0), ('X', 1)];
        assert_eq!(read("XY").of(3), Some(turns));
        let blocks = [('X', 0), ('X', 1), ('Y', 0), ('X', 2), ('X', 3), ('Y', 1)];
        assert_eq!(read("2X1Y").of(6), Some(blocks.into()));
        assert_eq!(read("2XY").of(6), Some(blocks.into()));
        assert_eq!(read("8X8Y").of(12), None);
        for text in ["R", "XY", "8X8Y", "2R1L"] {
            assert_eq!(read(text).to_string(), text);
        }
        assert_eq!(read("2XY").to_string(), "2X1Y");
        for bad in [
            "", "8", "x", "RR", "2X2X", "0X", "8X8", "X8", "é", "9999X", "-1X",
        ] {
            assert!(bad.parse::<Polarisations>().is_err(), "{bad}");
        }
    }

    #[test]
    fn chunks_are_read() {
        let chunk: Chunk = "3/7".parse().unwrap();
        assert_eq!(chunk, Chunk { number: 3, of: 7 });
        for bad in ["", "1", "0/3", "4/3", "a/b"] {
            assert!(bad.parse::<Chunk>().is_err(), "{bad}");
        }
    }
}
