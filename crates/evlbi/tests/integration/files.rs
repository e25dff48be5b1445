//! `correlate`, `doctor`, `drop`, `inspect` and `sky` on files, run as a user runs them.
//!
//! Put tests of the command line on files here; the contents of files are tested in the libraries.

mod analyse;
mod bad_input;
mod chunks;
mod correlate;
mod doctor;
mod pages;
mod plan;
mod recordings;

use std::process::Output;

use evlbi_testkit::result::read;
use evlbi_testkit::{Room, command};
use serde_json::Value;

fn evlbi(arguments: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_evlbi"))
        .args(arguments)
        .output()
        .unwrap()
}

/// The result as JSON, which is all that may be on standard output.
fn json(arguments: &[&str]) -> Value {
    let output = evlbi(&[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    read(output.stdout)
}

/// Returns the message of a command that must fail.
fn failure(arguments: &[&str]) -> String {
    let output = evlbi(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}
