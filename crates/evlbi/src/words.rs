//! What the command line says of errors of libraries in place of their own words: it names its options, and what to do.
//!
//! Here belongs what to do about an error, in the file of the library that it comes from.

mod control;
mod correlate;
mod host;
mod net;
mod path;
mod probe;
mod stream;
#[cfg(test)]
mod tests;

use std::error::Error;

/// What is said in place of an error's own words, without its causes; none where these will do.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (stream::of(error))
        .or_else(|| probe::of(error))
        .or_else(|| correlate::of(error))
        .or_else(|| path::of(error))
        .or_else(|| host::of(error))
        .or_else(|| control::of(error))
        .or_else(|| net::of(error))
}
