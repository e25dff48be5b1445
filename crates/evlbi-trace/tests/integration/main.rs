//! `evlbi-trace` from outside: fuzz corpora, traces of kernels.
//!
//! Comparisons of the models with kernels belong here.

mod fuzz_corpora;
mod tcp;
