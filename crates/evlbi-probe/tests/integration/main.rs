//! Tests of `evlbi-probe` from outside: captures, plans, streams over emulated paths, fuzz corpora, and probes over real sockets.
//!
//! What a user of the library relies on belongs here: over real sockets in `live`, otherwise in virtual time where possible.

mod analyse;
mod captures;
mod fuzz_corpora;
mod live;
mod plan;
mod switch;
