//! `evlbi-wire` from outside: what another reader finds in the same bytes, and bytes that are damaged.

mod baseband;
mod hostile_bytes;
