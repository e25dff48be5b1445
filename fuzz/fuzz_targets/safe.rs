#![no_main]

#[path = "../bodies/safe.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| evlbi_fuzz::counted(data, body::run));
