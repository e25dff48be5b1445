//! Writes the recordings of simulated stations, and next to them the plan, which contains the delays of the stations.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use evlbi_fx::sky::{PlanError, Station};
use evlbi_net::file::{OutputError, Part, check_new};
use evlbi_net::run::Run;
use evlbi_wire::units;
use serde::Serialize;
use thiserror::Error;

use crate::source::SourceError;
use crate::{recording, source};

/// Reasons why simulated stations cannot be recorded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SkyError {
    /// The plan cannot be read.
    #[error("{0}")]
    Read(#[from] SourceError),
    /// The plan does not describe valid stations.
    #[error("in the plan {}", path.display())]
    Plan {
        /// Its path.
        path: PathBuf,
        /// Reason.
        source: PlanError,
    },
    /// A recording exists, or its file cannot be created.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The directory for the recordings cannot be created.
    #[error("cannot make the directory {}", path.display())]
    Directory {
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Writing to a recording failed.
    #[error("cannot write {}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Options of [`simulate`].
#[derive(Clone, Debug)]
pub struct SkyOptions {
    /// Path of the plan of stations and sky.
    pub plan: PathBuf,
    /// Directory for the recordings, one per station.
    pub out: PathBuf,
    /// Whether existing recordings are overwritten.
    pub force: bool,
}

/// Result of [`simulate`].
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkyReport {
    schema: &'static str,
    plan: PathBuf,
    /// Seed of all random numbers.
    seed: u64,
    /// Copy of the plan next to the recordings: the delay model with which they are correlated. `None` if interrupted.
    model: Option<PathBuf>,
    files: Vec<Written>,
    /// Whether the run was stopped before the end.
    pub interrupted: bool,
}

/// One station's recording.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Written {
    station: String,
    file: PathBuf,
    bytes: u64,
    frames: u64,
    threads: u16,
    frame_length: usize,
    /// Frames per second of each thread.
    frame_rate: u32,
    /// Bits per second of all threads, headers included.
    bit_rate: u64,
    seconds: f64,
}

/// Writes a recording for each station of the plan.
///
/// # Errors
/// Returns an error if the plan is invalid, or a recording exists or cannot be written.
pub fn simulate(options: &SkyOptions, run: &Run) -> Result<SkyReport, SkyError> {
    let text = source::read_text(&options.plan)?;
    let plan = source::parse_plan(&text, &options.plan)?;
    let stations = plan.stations().map_err(|source| SkyError::Plan {
        path: options.plan.clone(),
        source,
    })?;
    let file = |station: &Station| {
        let name = format!("{}.{}", station.name(), station.format().ending());
        options.out.join(name)
    };
    let files: Vec<PathBuf> = stations.iter().map(file).collect();
    let name = options.plan.file_name().unwrap_or(options.plan.as_os_str());
    // By the ending a model is known as a plan.
    let model = options.out.join(name).with_extension("toml");
    // A copy that exists stays.
    let is_copied = fs::read_to_string(&model).is_ok_and(|copy| copy == text);
    let new = files.iter().chain(Some(&model).filter(|_| !is_copied));
    check_new(new.map(PathBuf::as_path), options.force)?;
    fs::create_dir_all(&options.out).map_err(|source| SkyError::Directory {
        path: options.out.clone(),
        source,
    })?;
    let total = stations.iter().map(length).sum();
    let mut progress = run.progress(Some(total));
    let mut report = SkyReport {
        schema: "evlbi.sky/1",
        plan: options.plan.clone(),
        seed: plan.seed,
        model: None,
        files: Vec::new(),
        interrupted: false,
    };
    let mut done = 0;
    for (station, file) in stations.iter().zip(files) {
        let bytes = write(station, &file, options.force, run, |bytes| {
            if progress.is_due() {
                progress.show(done + bytes, station.name());
            }
        })?;
        done += bytes;
        if bytes < length(station) {
            report.interrupted = true;
            break;
        }
        let frames = bytes / station.frame_length() as u64;
        let (threads, frame_rate) = (station.threads(), station.frame_rate().get());
        report.files.push(Written {
            station: station.name().to_string(),
            file,
            bytes,
            frames,
            threads,
            frame_length: station.frame_length(),
            frame_rate,
            bit_rate: station.bit_rate(),
            seconds: frames as f64 / f64::from(threads) / f64::from(frame_rate),
        });
    }
    if !report.interrupted {
        if !is_copied {
            write_model(&model, &text, options.force)?;
        }
        report.model = Some(model);
    }
    Ok(report)
}

fn write_model(model: &Path, text: &str, force: bool) -> Result<(), SkyError> {
    let (mut file, part) = Part::create(model, force)?;
    file.write_all(text.as_bytes())
        .map_err(|source| SkyError::Write {
            path: model.to_owned(),
            source,
        })?;
    Ok(part.keep()?)
}

fn length(station: &Station) -> u64 {
    let frames = station.total_frames();
    frames.saturating_mul(station.frame_length() as u64)
}

/// Writes all frames; returns the number of bytes. If stopped, it returns the number written so far and leaves no file.
fn write(
    station: &Station,
    path: &Path,
    force: bool,
    run: &Run,
    mut show: impl FnMut(u64),
) -> Result<u64, SkyError> {
    let cannot = |source| SkyError::Write {
        path: path.to_owned(),
        source,
    };
    let (mut file, part) = Part::create(path, force)?;
    let frames = (recording::BLOCK / station.frame_length()).max(1) as u64;
    let frames = frames.min(station.total_frames()) as usize;
    let mut block = vec![0; frames * station.frame_length()];
    let mut generator = station.generator();
    let mut bytes = 0;
    while !run.is_stopped() {
        let filled = generator.fill(&mut block);
        if filled == 0 {
            break;
        }
        file.write_all(&block[..filled]).map_err(cannot)?;
        bytes += filled as u64;
        show(bytes);
    }
    if bytes == length(station) {
        part.keep()?;
    }
    Ok(bytes)
}

/// Formats a report as text.
pub fn text(report: &SkyReport) -> String {
    let lines = report.files.iter().map(|file| {
        format!(
            "{}  {} bytes: {} frames of {} in {} threads, {:.3} s at {} frames/s each, {}",
            file.file.display(),
            units::show_count(file.bytes),
            units::show_count(file.frames),
            file.frame_length,
            file.threads,
            file.seconds,
            file.frame_rate,
            units::show_rate(file.bit_rate as f64),
        )
    });
    let mut lines: Vec<String> = lines.collect();
    if let Some(model) = &report.model {
        lines.push(format!(
            "{}  delay model of these stations",
            model.display()
        ));
    }
    if report.interrupted {
        lines.push("interrupted: the next recording was not kept".to_string());
    }
    lines.join("\n")
}
