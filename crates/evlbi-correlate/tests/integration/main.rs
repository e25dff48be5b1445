//! `evlbi-correlate` from outside: simulated stations, as recordings and as streams, and recordings with results of other correlators.
//!
//! Put tests of what a user of the library relies on here.

mod correlate;
mod formats;
mod live;
mod loss;
mod models;
mod options;
mod swin;

use std::error::Error;

use evlbi_core::shed::Replace;
use evlbi_correlate::fringe::{FringeOptions, in_directory, in_recordings};
use evlbi_correlate::loss_curve::{LossCurveOptions, measure};
use evlbi_correlate::{CorrelateOptions, Correlation, Recordings, correlate};
use evlbi_net::run::Run;
use evlbi_stream::drop::{DropOptions, drop};
use evlbi_stream::sky::{SkyOptions, simulate};
use evlbi_testkit::Room;
use evlbi_testkit::result::{refused, shown};
use serde_json::Value;

/// Writes the recordings of a plan: `sky/NAME.vdif` for each station.
#[track_caller]
fn sky(room: &Room, plan: &str) {
    let options = SkyOptions {
        plan: room.write("sky.toml", plan).into(),
        out: room.path("sky").into(),
        force: false,
    };
    shown(simulate(&options, &Run::silent()));
}

/// Drops frames of one recording into another.
#[track_caller]
fn dropped(input: &str, output: &str, shed: &str, replace: Replace) {
    let options = DropOptions {
        input: input.into(),
        output: output.into(),
        shed: shed.parse().unwrap(),
        replace,
        ..DropOptions::default()
    };
    shown(drop(&options, &Run::silent()));
}

/// Options with this many channels.
fn channels(channels: usize) -> CorrelateOptions {
    CorrelateOptions {
        channels: Some(channels),
        ..CorrelateOptions::default()
    }
}

/// Options with this many channels of a band at 4.9 GHz, and the delay of each station.
fn delayed(number: usize, delays: &[&str]) -> CorrelateOptions {
    CorrelateOptions {
        freq: vec!["4.9G".parse().unwrap()],
        delay: delays.iter().map(|terms| terms.parse().unwrap()).collect(),
        ..channels(number)
    }
}

fn attempt(
    files: &[&str],
    options: &CorrelateOptions,
) -> Result<Correlation, Box<dyn Error + Send + Sync>> {
    let (files, run) = (owned(files), Run::silent());
    let recordings = Recordings::open(&files, options, &run)?;
    let found = correlate(&recordings, options, &run, &mut ())?;
    found.has_any()?;
    Ok(found)
}

#[track_caller]
fn correlated(files: &[&str], options: &CorrelateOptions) -> Value {
    shown(attempt(files, options).map(|found| found.result(false)))
}

#[track_caller]
fn not_correlated(files: &[&str], options: &CorrelateOptions) -> String {
    refused(attempt(files, options))
}

/// The fringes of recordings.
#[track_caller]
fn fringes(files: &[&str], correlate: CorrelateOptions) -> Value {
    let options = FringeOptions {
        correlate,
        ..FringeOptions::default()
    };
    shown(in_recordings(&owned(files), &options, &Run::silent()))
}

/// The fringes of visibilities.
#[track_caller]
fn fringes_in(directory: &str, options: &FringeOptions) -> Value {
    shown(in_directory(directory.as_ref(), options))
}

#[track_caller]
fn curve(files: &[&str], options: LossCurveOptions) -> Value {
    let options = LossCurveOptions {
        files: owned(files),
        ..options
    };
    shown(measure(&options, &Run::silent()))
}

fn owned(files: &[&str]) -> Vec<String> {
    files.iter().map(|file| (*file).to_owned()).collect()
}

#[track_caller]
fn number(value: &Value, path: &str) -> f64 {
    let found = value.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number at {path} in {value}"))
}

#[track_caller]
fn near(found: f64, expected: f64, within: f64) {
    assert!(
        (found - expected).abs() <= within,
        "{found}, not {expected} within {within}"
    );
}
