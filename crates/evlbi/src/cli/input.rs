//! Inputs with their settings: `FILE#station=Cm`, `udp://ADDRESS:PORT#thread=0-3`. Parsers of arguments that take settings belong here.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use evlbi_stream::selection::{Selection, SelectionError};

/// Address of an input, and the settings after it.
#[derive(Clone, Debug)]
pub struct Input<T> {
    /// The address without its settings.
    pub address: T,
    /// The settings.
    pub selection: Selection,
}

impl<T: FromStr<Err: Display>> FromStr for Input<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Input<T>, String> {
        let (address, selection) = Selection::split(text).map_err(|error| error.to_string())?;
        let address = address.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Input { address, selection })
    }
}

/// Parses a file with settings. A name that is not UTF-8 has none.
pub fn file(text: OsString) -> Result<Input<PathBuf>, SelectionError> {
    let (address, selection) = match text.to_str() {
        Some(text) => {
            let (address, selection) = Selection::split(text)?;
            (address.into(), selection)
        }
        None => (text.into(), Selection::default()),
    };
    Ok(Input { address, selection })
}
