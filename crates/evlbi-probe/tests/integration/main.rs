//! `evlbi-probe` from outside: captures, plans, streams over paths of cells, fuzz corpora, and probes over real sockets.

mod analyse;
mod captures;
mod fuzz_corpora;
mod live;
mod plan;
mod switch;
