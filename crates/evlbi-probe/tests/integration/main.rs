//! Tests of `evlbi-probe` from outside: captures, plans, streams over emulated paths, fuzz corpora, and probes over real sockets.
//!
//! Tests of behaviour that users of the library rely on belong here: over real sockets in `live`, otherwise in virtual time where possible.

mod analyse;
mod captures;
mod fuzz_corpora;
mod live;
mod plan;
mod switch;
