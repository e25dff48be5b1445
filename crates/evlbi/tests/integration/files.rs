//! `correlate`, `doctor`, `drop`, `inspect` and `sky` on files, run as a user runs them.

mod analyse;
mod correlate;
mod doctor;
mod drop;
mod inspect;
mod options;
pub mod oracles;
mod pages;
mod plan;
mod sky;

use std::ops::Range;
use std::process::Output;

use evlbi_testkit::{Room, command};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::Gaps;
use evlbi_wire::vdif::{Header, Shape, StationId, StreamKey};
use evlbi_wire::{fill, mark5b};
use serde_json::Value;

const FRAME: usize = 1032;
const HEADER: usize = 32;
const RATE: u32 = 50;
/// 2024-05-01T12:00:00Z.
const START: i64 = 1_714_564_800;

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
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What it says when it fails.
fn failure(arguments: &[&str]) -> String {
    let output = evlbi(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn gaps(room: &Room, name: &str) -> Gaps {
    serde_json::from_slice(&room.read(name)).unwrap()
}

fn key(thread: u16) -> StreamKey {
    StreamKey {
        station: StationId::from_code(*b"Ef"),
        thread,
    }
}

/// Frame number `number` of a thread since the start, with noise in it.
fn frame(number: i64, thread: u16, invalid: bool) -> Vec<u8> {
    let shape = Shape {
        frame_length: FRAME,
        log2_channels: 0,
        bits: 2,
        complex: false,
        legacy: false,
    };
    let mut header = Header::new(shape, key(thread));
    header.set_time(time(number)).unwrap();
    header.set_invalid(invalid);
    let mut bytes = noise(FRAME, number as u64 * 8 + u64::from(thread));
    header.emit(&mut bytes);
    bytes
}

fn time(number: i64) -> FrameTime {
    let rate = FrameRate::new(RATE).unwrap();
    let start = FrameTime {
        second: START,
        frame: 0,
    };
    FrameTime::from_index(start.index(rate) + number, rate)
}

/// Bytes in which no frame is.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Three seconds of a thread.
fn recording() -> Vec<u8> {
    (0..150)
        .flat_map(|number| frame(number, 0, false))
        .collect()
}

fn frame_range(number: usize) -> Range<usize> {
    number * FRAME..(number + 1) * FRAME
}
