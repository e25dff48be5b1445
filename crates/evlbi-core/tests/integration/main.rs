//! `evlbi-core` from outside: streams of known content, fuzz corpora.
//! Behaviour that users of the library rely on belongs here.

mod deframe;
mod fuzz_corpora;
