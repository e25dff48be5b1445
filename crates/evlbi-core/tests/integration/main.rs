//! `evlbi-core` from outside: streams whose truth is known, fuzz corpora, kernels' traces.

mod deframe;
mod fuzz_corpora;
mod probe;
mod tcp;
