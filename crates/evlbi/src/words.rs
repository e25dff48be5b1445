//! The command line's texts for errors of libraries: they name options and remedies.
//!
//! The remedy for an error belongs here, in the file of the library that it comes from.

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

pub use self::correlate::{no_fringe, off_model, only_integration};
pub use self::stream::cut_off;

/// Returns the text that replaces an error's own, without its causes; `None` keeps the error's own.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (stream::of(error))
        .or_else(|| probe::of(error))
        .or_else(|| correlate::of(error))
        .or_else(|| path::of(error))
        .or_else(|| host::of(error))
        .or_else(|| control::of(error))
        .or_else(|| net::of(error))
}
