//! `evlbi-wire` from outside: what another reader finds in the same bytes, and bytes that are damaged.
//!
//! Here belongs what another reader finds, and any damage.

mod baseband;
mod hostile_bytes;
