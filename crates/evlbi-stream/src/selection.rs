//! Settings of one input, which follow its address: `file.vdif#thread=2`, `udp://239.1.2.3:2630#station=Cm&name=Da`.
//!
//! They select a part of a recording or stream, and describe its samples where its headers do not. An address with `#` or `%` in it
//! is written with `%23` or `%25` instead. Further settings of single inputs belong here.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;

use evlbi_core::deframe::Selected;
use evlbi_wire::mark4;
use evlbi_wire::naming::{FormatName, NameError};
use evlbi_wire::vdif::{StationId, StreamKey};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

/// Keys of the settings, each with its form.
const KEYS: [(&str, &str); 8] = [
    ("station", "the code of a station, e.g. station=Cm"),
    (
        "thread",
        "numbers of threads, each once, e.g. thread=2, thread=0-3",
    ),
    (
        "channels",
        "channels, each once: numbers from 0, or names of Mark 4, e.g. channels=4-7, channels=0U,1L",
    ),
    ("name", "the name of the station, e.g. name=Da"),
    (
        "format",
        "the name of a format, e.g. format=MKIV1_4-512-8-2",
    ),
    ("modulated", "no value"),
    ("inverted", "no value"),
    ("year", "a year, e.g. year=2006"),
];

/// Maximum number of channels or threads that a range names.
const MAX_RANGE: usize = 1 << 16;

/// Settings after the address of an input that are not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// An unknown key.
    #[error(
        "unknown setting `{key}` after `#`: known are {}; write `#` in a file name as %23",
        keys()
    )]
    Key {
        /// The key.
        key: String,
    },
    /// A key that is given twice.
    #[error("`{key}` is given twice after `#`")]
    Twice {
        /// The key.
        key: &'static str,
    },
    /// A value that does not fit its key.
    #[error("invalid `{key}={value}` after `#`: give {form}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// Expected form.
        form: &'static str,
    },
    /// A format that is unknown or cannot be decoded.
    #[error("{0}")]
    Format(#[from] NameError),
    /// A name that does not fit a header.
    #[error(
        "invalid name `{0}` of a station: a VDIF header holds two letters or digits, e.g. name=Ef"
    )]
    StationName(String),
    /// A key that has no meaning for whole frames.
    #[error(
        "`{key}` after `#` cannot be used here: whole frames can be selected only by station and thread, and dated by year"
    )]
    WholeFrames {
        /// The key.
        key: &'static str,
    },
}

fn keys() -> String {
    KEYS.map(|(key, _)| key).join(", ")
}

/// Channel of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "NumberOrName", into = "NumberOrName")]
pub enum ChannelId {
    /// Number within its thread, from 0: of VDIF and Mark 5B.
    Number(usize),
    /// Converter and sideband: of Mark 4.
    Named(mark4::Channel),
}

impl FromStr for ChannelId {
    type Err = String;

    fn from_str(text: &str) -> Result<ChannelId, String> {
        match text.parse() {
            Ok(number) => Ok(ChannelId::Number(number)),
            Err(_) => text.parse().map(ChannelId::Named).map_err(|_| {
                format!("invalid channel `{text}`: give a number from 0, or converter and sideband, e.g. 3L")
            }),
        }
    }
}

/// A channel in a file: a number, or a text.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrName {
    Number(usize),
    Name(String),
}

impl TryFrom<NumberOrName> for ChannelId {
    type Error = String;

    fn try_from(written: NumberOrName) -> Result<ChannelId, String> {
        match written {
            NumberOrName::Number(number) => Ok(ChannelId::Number(number)),
            NumberOrName::Name(name) => name.parse(),
        }
    }
}

impl From<ChannelId> for NumberOrName {
    fn from(channel: ChannelId) -> NumberOrName {
        match channel {
            ChannelId::Number(number) => NumberOrName::Number(number),
            ChannelId::Named(name) => NumberOrName::Name(name.to_string()),
        }
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelId::Number(number) => write!(f, "{number}"),
            ChannelId::Named(channel) => write!(f, "{channel}"),
        }
    }
}

/// Settings of one input. The default selects all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Code or number of the station whose frames are used; `None` for the first one.
    pub station: Option<String>,
    /// Threads to use, in this order; empty for all.
    pub threads: Vec<u16>,
    /// Channels to use, in this order; empty for all.
    pub channels: Vec<ChannelId>,
    /// Name of the station; `None` for its code, or that of the file.
    pub name: Option<String>,
    /// Format of the samples, where the headers do not contain it.
    pub format: Option<FormatName>,
    /// Whether the samples are modulated, as Mark 4 formatters can do.
    pub modulated: bool,
    /// Whether the sign of the samples is reversed.
    pub inverted: bool,
    /// Year of the recording, where headers contain only a part of it.
    pub year: Option<i16>,
}

impl Selection {
    /// Separates the address of an input from the settings after it.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if a setting is unknown or invalid.
    pub fn split(input: &str) -> Result<(String, Selection), SelectionError> {
        let (address, settings) = match input.split_once('#') {
            Some((address, settings)) => (address, settings.parse()?),
            None => (input, Selection::default()),
        };
        Ok((unescaped(address), settings))
    }

    /// Writes an input with this address and these settings: the inverse of [`Selection::split`].
    pub fn join(&self, address: &str) -> String {
        let address = address.replace('%', "%25").replace('#', "%23");
        match self.to_string() {
            none if none.is_empty() => address,
            settings => format!("{address}#{settings}"),
        }
    }

    /// Returns an address as a result shows it: with the settings, if any.
    pub fn written(&self, address: &str) -> String {
        match *self == Selection::default() {
            true => address.to_owned(),
            false => self.join(address),
        }
    }

    /// Returns whether it selects a part of an input by station, thread or channel.
    pub fn is_part(&self) -> bool {
        self.station.is_some() || !self.threads.is_empty() || !self.channels.is_empty()
    }

    /// Returns the station and thread of samples whose headers contain neither: of the name, if there is one.
    pub(crate) fn key(&self) -> Result<StreamKey, SelectionError> {
        let Some(name) = &self.name else {
            return Ok(StreamKey::default());
        };
        let code = <[u8; 2]>::try_from(name.as_bytes()).ok();
        let code = code.filter(|code| code.iter().all(u8::is_ascii_alphanumeric));
        let code = code.ok_or_else(|| SelectionError::StationName(name.clone()))?;
        let station = StationId::from_code(code);
        Ok(StreamKey { station, thread: 0 })
    }

    /// Separates what selects stations and threads from what describes samples, without the channels. Both have the year.
    pub(crate) fn apart(self) -> (Selection, Selection) {
        let part = Selection {
            station: self.station,
            threads: self.threads,
            year: self.year,
            ..Selection::default()
        };
        let described = Selection {
            station: None,
            threads: Vec::new(),
            channels: Vec::new(),
            ..self
        };
        (part, described)
    }

    /// Returns the stations and threads that are selected, for use on whole frames.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if it selects, describes or renames what is within frames.
    pub fn streams(&self) -> Result<Selected, SelectionError> {
        let channels = (!self.channels.is_empty()).then_some("channels");
        if let Some(key) = channels.into_iter().chain(self.described()).next() {
            return Err(SelectionError::WholeFrames { key });
        }
        Ok(self.part())
    }

    /// Returns the keys of the settings that describe or rename what is within frames.
    pub(crate) fn described(&self) -> impl Iterator<Item = &'static str> {
        let keys = [
            ("name", self.name.is_some()),
            ("format", self.format.is_some()),
            ("modulated", self.modulated),
            ("inverted", self.inverted),
        ];
        let keys = keys.into_iter();
        keys.filter_map(|(key, is_set)| is_set.then_some(key))
    }

    /// Returns the stations and threads that are selected.
    pub fn part(&self) -> Selected {
        Selected {
            stations: self.station.as_deref().map(stations_of),
            threads: self.threads.clone(),
        }
    }

    /// Returns a second at which headers without a complete year were read, in UTC seconds since 1970-01-01: the end of the year if
    /// it is known, otherwise `now`.
    pub fn read_at(&self, now: i64) -> i64 {
        let end = |year: i16| {
            let next = Date::new(year.checked_add(1)?, 1, 1).ok()?;
            let next = next.to_zoned(TimeZone::UTC).ok()?;
            Some(next.timestamp().as_second() - 1)
        };
        self.year.and_then(end).unwrap_or(now)
    }

    /// Returns whether a time is in the year of the recording, if it is known.
    pub fn is_year_of(&self, second: i64) -> bool {
        let time = jiff::Timestamp::from_second(second);
        let is_of = |year| {
            time.as_ref()
                .is_ok_and(|time| time.to_zoned(TimeZone::UTC).year() == year)
        };
        self.year.is_none_or(is_of)
    }

    fn set(&mut self, key: &'static str, value: Option<&str>) -> Result<(), SelectionError> {
        let form = KEYS.iter().find(|known| known.0 == key);
        let invalid = || SelectionError::Value {
            key,
            value: value.unwrap_or_default().to_owned(),
            form: form.map_or("", |known| known.1),
        };
        let flag = |value: Option<&str>| value.is_none().then_some(true).ok_or_else(invalid);
        match key {
            "modulated" => self.modulated = flag(value)?,
            "inverted" => self.inverted = flag(value)?,
            key => {
                let text = value
                    .filter(|value| !value.is_empty())
                    .ok_or_else(invalid)?;
                match key {
                    "station" => self.station = Some(unescaped(text)),
                    "thread" => self.threads = listed(text, thread).ok_or_else(invalid)?,
                    "channels" => self.channels = channel_list(text).ok_or_else(invalid)?,
                    "name" => self.name = Some(unescaped(text)),
                    "format" => self.format = Some(text.parse()?),
                    _ => {
                        let year = text.parse().ok();
                        let year = year.filter(|year| (1970..=9998).contains(year));
                        self.year = Some(year.ok_or_else(invalid)?);
                    }
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Selection, SelectionError> {
        let mut selection = Selection::default();
        let mut seen = Vec::new();
        for setting in text.split('&') {
            let (key, value) = match setting.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (setting, None),
            };
            let known = KEYS.iter().find(|known| known.0 == key);
            let (key, _) = *known.ok_or_else(|| SelectionError::Key {
                key: key.to_owned(),
            })?;
            if seen.contains(&key) {
                return Err(SelectionError::Twice { key });
            }
            seen.push(key);
            selection.set(key, value)?;
        }
        Ok(selection)
    }
}

/// The settings as they are written after `#`; nothing if all of the input is selected.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Display>(items: &[T]) -> Option<String> {
            let items: Vec<String> = items.iter().map(T::to_string).collect();
            (!items.is_empty()).then(|| items.join(","))
        }
        let valued = [
            ("station", self.station.as_deref().map(escaped)),
            ("thread", list(&self.threads)),
            ("channels", list(&self.channels)),
            ("name", self.name.as_deref().map(escaped)),
            ("format", self.format.map(|format| format.to_string())),
            ("year", self.year.map(|year| year.to_string())),
        ];
        let valued = valued.into_iter();
        let mut settings: Vec<String> = valued
            .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
            .collect();
        settings.extend(self.modulated.then(|| "modulated".to_owned()));
        settings.extend(self.inverted.then(|| "inverted".to_owned()));
        f.write_str(&settings.join("&"))
    }
}

/// Returns the stations with this code or number: those that are shown so.
pub(crate) fn stations_of(name: &str) -> Vec<StationId> {
    let code = <[u8; 2]>::try_from(name.as_bytes()).map(StationId::from_code);
    let number = name.parse().map(StationId);
    let both = [code.ok(), number.ok()].into_iter().flatten();
    both.filter(|station| station.to_string() == name).collect()
}

/// Characters with a meaning in an input, and how they are written.
const ESCAPES: [(&str, &str); 3] = [("#", "%23"), ("&", "%26"), ("%", "%25")];

fn unescaped(text: &str) -> String {
    let plain = ESCAPES.iter();
    // Of `%2523` only the first three characters are an escape.
    plain.fold(text.to_owned(), |text, (plain, escape)| {
        text.replace(escape, plain)
    })
}

fn escaped(text: &str) -> String {
    let mut escapes = ESCAPES.iter().rev();
    escapes
        .by_ref()
        .fold(text.to_owned(), |text, (plain, escape)| {
            text.replace(plain, escape)
        })
}

/// Parses different items that commas separate, each of which may be a range of several.
fn listed<T: Eq + Hash>(text: &str, parse: fn(&str) -> Option<Vec<T>>) -> Option<Vec<T>> {
    let items: Option<Vec<Vec<T>>> = text.split(',').map(parse).collect();
    let items: Vec<T> = items?.into_iter().flatten().collect();
    let distinct = items.iter().collect::<HashSet<&T>>().len();
    (distinct == items.len()).then_some(items)
}

fn range(text: &str) -> Option<impl Iterator<Item = usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < MAX_RANGE).then_some(first..=last)
}

fn thread(text: &str) -> Option<Vec<u16>> {
    range(text)?
        .map(|number| u16::try_from(number).ok())
        .collect()
}

/// Parses different channels, separated by commas: numbers, ranges of numbers, or names.
pub(crate) fn channel_list(text: &str) -> Option<Vec<ChannelId>> {
    listed(text, channels)
}

fn channels(text: &str) -> Option<Vec<ChannelId>> {
    match text.parse() {
        Ok(channel) => Some(vec![channel]),
        Err(_) => Some(range(text)?.map(ChannelId::Number).collect()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(input: &str) -> (String, Selection) {
        Selection::split(input).unwrap()
    }

    #[test]
    fn settings_follow_the_address() {
        let plain = ("x.vdif".to_owned(), Selection::default());
        assert_eq!(split("x.vdif"), plain);
        let (address, selection) = split("udp://239.1.2.3:2630?batch=1#station=Cm&thread=0-2,7");
        assert_eq!(address, "udp://239.1.2.3:2630?batch=1");
        assert_eq!(selection.station.as_deref(), Some("Cm"));
        assert_eq!(selection.threads, [0, 1, 2, 7]);
        let (address, selection) =
            split("a%23b%2525.m4#channels=0U,1L&name=Da&modulated&year=2006");
        assert_eq!(address, "a#b%25.m4");
        let channels = ["0U", "1L"].map(|name| ChannelId::Named(name.parse().unwrap()));
        assert_eq!(selection.channels, channels);
        assert_eq!(selection.name.as_deref(), Some("Da"));
        assert!(selection.modulated && !selection.inverted);
        assert_eq!(selection.read_at(0), 1_167_609_599);
        assert!(selection.is_year_of(1_167_609_599) && !selection.is_year_of(1_167_609_600));
        assert_eq!(Selection::default().read_at(7), 7);
        let (_, selection) = split("x#channels=4-6,1&format=Mark5B-512-8-2&inverted");
        let numbers = [4, 5, 6, 1].map(ChannelId::Number);
        assert_eq!(selection.channels, numbers);
        assert_eq!(selection.format.map(|it| it.bits()), Some(2));
    }

    #[test]
    fn invalid_settings_are_refused_with_what_to_write() {
        for (settings, says) in [
            ("", "known are station, thread, channels"),
            ("stations=Cm", "unknown setting `stations`"),
            ("1.vdif", "write `#` in a file name as %23"),
            ("thread=1&thread=2", "`thread` is given twice"),
            ("thread=", "give numbers of threads"),
            ("thread=4-2", "thread=0-3"),
            ("thread=1-3,2", "each once"),
            ("thread=70000", "invalid `thread=70000`"),
            ("channels=0-99999999999", "numbers from 0, or names"),
            ("channels=16U", "invalid `channels=16U`"),
            ("station=", "station=Cm"),
            ("name", "give the name"),
            ("modulated=1", "give no value"),
            ("year=06", "year=2006"),
            ("format=VLBA1_2-256-8-2", "VLBA tape"),
            ("format=Mark5B", "e.g. MKIV1_4-512-8-2"),
        ] {
            let refused = settings.parse::<Selection>().unwrap_err().to_string();
            assert!(refused.contains(says), "{settings}: {refused}");
        }
    }

    #[test]
    fn stations_and_threads_of_an_input_are_checked() {
        let key = |station: StationId, thread| StreamKey { station, thread };
        let [ef, twelve] = [StationId::from_code(*b"Ef"), StationId(12)];
        let keys = [key(ef, 0), key(ef, 1), key(twelve, 7)];
        for (settings, says) in [
            ("station=Ef", ""),
            ("station=12&thread=7", ""),
            ("thread=0,7", ""),
            ("station=Jb", "it has no station Jb: it contains 12, Ef"),
            (
                "station=Ef&thread=7",
                "it has no thread 7: it contains 0, 1",
            ),
            ("thread=3", "it has no thread 3: it contains 0, 1, 7"),
        ] {
            let selection: Selection = settings.parse().unwrap();
            let refused = selection
                .check(&keys)
                .map_or_else(|error| error.to_string(), |()| String::new());
            assert_eq!(refused, says, "{settings}");
            let selected = selection.streams().unwrap();
            let has = keys.iter().filter(|key| selected.has(Some(**key))).count();
            assert_eq!(
                has > 0,
                !settings.contains("Jb") && !says.contains("thread"),
                "{settings}"
            );
        }
        // The code 12 is another station than the number 12, and shown alike.
        let selected = Selection {
            station: Some("12".into()),
            ..Selection::default()
        };
        assert_eq!(
            selected.streams().unwrap().stations.map(|it| it.len()),
            Some(2)
        );
        for settings in [
            "channels=1",
            "name=Da",
            "modulated",
            "inverted",
            "format=VDIF-64-1-2",
        ] {
            let selection: Selection = settings.parse().unwrap();
            assert!(
                selection
                    .streams()
                    .unwrap_err()
                    .to_string()
                    .contains("only by station and thread")
            );
        }
    }

    fn selections() -> impl Strategy<Value = Selection> {
        let channel = prop_oneof![
            (0..MAX_RANGE).prop_map(ChannelId::Number),
            "(1[0-5]|[0-9])[UL]".prop_map(|name| ChannelId::Named(name.parse().unwrap())),
        ];
        (
            prop::option::of("[^\\n]{1,3}"),
            prop::collection::hash_set(any::<u16>(), 0..4),
            prop::collection::hash_set(channel, 0..4),
            prop::option::of("[^\\n]{1,8}"),
            prop::option::of(Just("MKIV1_4-512-8-2".parse().unwrap())),
            any::<(bool, bool)>(),
            prop::option::of(1970i16..=9998),
        )
            .prop_map(|(station, threads, channels, name, format, flags, year)| {
                Selection {
                    station,
                    threads: threads.into_iter().collect(),
                    channels: channels.into_iter().collect(),
                    name,
                    format,
                    modulated: flags.0,
                    inverted: flags.1,
                    year,
                }
            })
    }

    proptest! {
        #[test]
        fn settings_are_read_as_they_are_written(selection in selections()) {
            let written = selection.to_string();
            let read = match written.as_str() {
                "" => Selection::default(),
                written => written.parse().unwrap(),
            };
            prop_assert_eq!(read, selection);
        }

        #[test]
        fn any_address_can_be_written(
            address in "[^\\n]{0,12}",
            selection in selections(),
            rest in "[^\\n]{0,12}",
        ) {
            let written = selection.join(&address);
            prop_assert_eq!(Selection::split(&written), Ok((address, selection)));
            // Nothing panics.
            let _ = Selection::split(&rest);
        }
    }
}
