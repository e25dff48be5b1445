//! Options that take one of some values, which are the engines' own, or a number of a range.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use evlbi_core::shed::Replace;
use evlbi_wire::units;

/// Values by name, each with its help or none.
pub type Choices<T> = &'static [(&'static str, &'static str, T)];

/// Replacements for shed data; a sender has the first three.
pub const REPLACEMENTS: Choices<Replace> = &[
    ("nothing", "", Replace::Nothing),
    ("fill", "", Replace::Fill),
    ("random", "", Replace::Random),
    ("invalid", "", Replace::Invalid),
];

/// Units of a shed decision: whether packets, not frames.
pub const UNITS: Choices<bool> = &[("frame", "", false), ("packet", "", true)];

/// Parses one of these values.
pub fn choice<T>(values: Choices<T>) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let shown = values.iter().map(|(name, help, _)| match *help {
        "" => PossibleValue::new(*name),
        help => PossibleValue::new(*name).help(help),
    });
    PossibleValuesParser::new(shown).try_map(move |given| {
        let is_given = |(name, ..): &&(&str, &str, T)| name.eq_ignore_ascii_case(&given);
        let found = values.iter().find(is_given);
        found.map(|(.., value)| *value).ok_or("no such value")
    })
}

/// Returns the name of a value.
pub fn name<T: PartialEq>(values: Choices<T>, value: T) -> &'static str {
    names(values, &[value]).first().copied().unwrap_or_default()
}

/// Returns the names of some of the values.
pub fn names<T: PartialEq>(values: Choices<T>, some: &[T]) -> Vec<&'static str> {
    let find = |value: &T| values.iter().find(|(.., other)| other == value);
    some.iter()
        .filter_map(find)
        .map(|(name, ..)| *name)
        .collect()
}

/// Parses a duration, whose unit has to be given.
pub fn time(text: &str) -> Result<Duration, String> {
    let text = units::with_unit(text, "duration", ["ms", "s"])?;
    Ok(units::duration(text)?)
}

/// Parses a duration above 0.
pub fn length(text: &str) -> Result<Duration, String> {
    let length = time(text)?;
    match length.is_zero() {
        true => Err("must be longer than 0".to_owned()),
        false => Ok(length),
    }
}

/// Parses the address of a socket.
pub fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let parsed = text.parse();
    parsed.map_err(|_| "give ADDRESS:PORT, e.g. 127.0.0.1:8620 or [::1]:8620")
}

/// Checks the form of a responder's address.
pub fn responder(text: &str) -> Result<String, &'static str> {
    match evlbi_net::responder::split(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("give HOST or HOST:PORT, e.g. jive, jive:8620, [2001:db8::5]:8620"),
    }
}

/// Reads a number within a range; `why` is the error for all else.
pub fn within<T>(text: &str, range: RangeInclusive<T>, why: &str) -> Result<T, String>
where
    T: FromStr + PartialOrd,
{
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("`{text}` {why}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Cli;

    #[test]
    fn an_address_needs_a_port() {
        for line in [
            "agent --bind 3650",
            "run session.toml --bind 127.0.0.1",
            "respond --bind localhost:8620",
        ] {
            let words = ["evlbi"].into_iter().chain(line.split(' '));
            let error = Cli::try_parse_from(words).err().unwrap().to_string();
            assert!(error.contains(": give ADDRESS:PORT, e.g. "), "{error}");
        }
    }
}
