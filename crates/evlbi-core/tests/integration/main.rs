//! `evlbi-core` from outside: streams whose truth is known, fuzz corpora.

mod deframe;
mod fuzz_corpora;
