//! `evlbi-trace` from outside: fuzz corpora, kernels' traces.
//!
//! Here belongs what kernels did, beside what the models do.

mod fuzz_corpora;
mod tcp;
