//! `evlbi-wire` from outside: comparison with another reader, and damaged bytes.
//!
//! Comparisons with other readers and all kinds of damage belong here.

mod baseband;
mod hostile_bytes;
mod mark4;
