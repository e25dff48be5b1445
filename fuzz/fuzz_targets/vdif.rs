#![no_main]

#[path = "../bodies/vdif.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
