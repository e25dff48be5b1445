//! SafeUDP over emulated paths, in virtual time.

mod fuzz_corpora;
mod safe;
mod specification;
