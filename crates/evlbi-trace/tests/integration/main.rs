//! `evlbi-trace` from outside: fuzz corpora, kernels' traces.

mod fuzz_corpora;
mod tcp;
