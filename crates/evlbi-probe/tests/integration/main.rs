//! `evlbi-probe` from outside: streams over paths of cells, fuzz corpora.

mod fuzz_corpora;
mod switch;
