//! `evlbi-probe` from outside: captures, plans, streams over paths of cells, fuzz corpora.

mod analyse;
mod captures;
mod fuzz_corpora;
mod plan;
mod switch;
