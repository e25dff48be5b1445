//! `evlbi-probe` from outside: captures, plans, streams over paths of cells, fuzz corpora, and probes over real sockets.
//!
//! Here belongs what a user of the library relies on: over real sockets in `live`, else in virtual time, if it can be.

mod analyse;
mod captures;
mod fuzz_corpora;
mod live;
mod plan;
mod switch;
