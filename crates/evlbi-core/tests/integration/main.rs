//! `evlbi-core` from outside: streams whose truth is known, fuzz corpora.
//!
//! Here belongs what a user of the library relies on.

mod deframe;
mod fuzz_corpora;
