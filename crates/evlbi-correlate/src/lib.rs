//! Correlates recordings or streams of several stations: visibilities, fringes and amplitudes.
//!
//! This crate connects files and streams to the arithmetic of [`evlbi_fx`]. It determines stations and bands and the time in which they
//! have data, handles gaps and late streams, and reports results. [`correlate`] takes recordings and [`correlate_streams`] streams as they
//! arrive; [`fringe`] searches and draws fringes, and [`loss_curve`] measures what lost data costs.
//!
//! Put here what needs several stations at once: the choice of the data to correlate, results, and measurements of them.
//!
//! ```
//! use evlbi_correlate::{CorrelateOptions, Recordings, correlate};
//! use evlbi_net::run::Run;
//! use evlbi_stream::sky::{SkyOptions, simulate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let folder = std::env::temp_dir().join(format!("evlbi-correlate-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! // A second of two stations that see the same source.
//! let plan = folder.join("plan.toml");
//! let sky = r#"
//!     start = "2026-01-01T00:00:00Z"
//!     duration = 1
//!     sample_rate = 1e6
//!     correlation = 0.3
//!     payload = 5000
//!     edv = 1
//!     [[station]]
//!     name = "Ef"
//!     [[station]]
//!     name = "Jb"
//! "#;
//! std::fs::write(&plan, sky)?;
//! let (out, run) = (folder.join("sky"), Run::silent());
//! simulate(&SkyOptions { plan, out: out.clone(), force: false }, &run)?;
//!
//! let paths = ["Ef.vdif", "Jb.vdif"].map(|name| out.join(name).display().to_string());
//! let options = CorrelateOptions { channels: Some(64), ..CorrelateOptions::default() };
//! let recordings = Recordings::open(&paths, &options, &run)?;
//! let correlation = correlate(&recordings, &options, &run, &mut ())?;
//! let baseline = &correlation.fringes()[0];
//! assert_eq!(baseline.stations, ["Ef", "Jb"]);
//! assert!(baseline.snr > 100.0);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod arrived;
pub mod chunks;
mod clocks;
pub mod cluster;
pub mod distribute;
mod feed;
mod files;
pub mod fringe;
mod integrations;
mod job;
mod lines;
mod live;
pub mod loss_curve;
mod options;
mod pictures;
mod plan;
mod prepare;
mod result;
mod run;
mod series;
mod shape;
mod station;
mod stream;
mod sums;
mod tamper;
#[cfg(test)]
mod tests;
mod visibilities;
mod watch;

use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use evlbi_fx::correlator::{Input, Setup, Sums};
use evlbi_fx::delay::OutsideModel;
use evlbi_fx::fringe::{Fringe, Window, at};
use evlbi_fx::layout::Layout;
use evlbi_net::run::Run;
use evlbi_stream::control_socket::Profile;
use serde::{Deserialize, Serialize};

pub use self::feed::StreamError;
pub use self::files::FileError;
pub use self::lines::Integration;
pub use self::live::{Correlating, Show, correlate_streams};
pub use self::options::{
    Chunk, CorrelateOptions, DelayTerms, Flag, Hertz, Polarisations, SideBand, StreamOptions,
    Stretch,
};
pub use self::pictures::PictureError;
pub use self::plan::PlanError;
pub use self::result::{
    BaselineResult, CorrelateResult, Missing, NoFringe, OffModel, text, write_csv,
};
pub use self::series::{Amplitude, WindowError};
pub use self::station::{RecordingDamage, RecordingError};
pub use self::stream::StreamResult;
pub use self::tamper::Tamper;
pub use self::visibilities::{Description, FrequencyDescription, VisibilityError};
pub use self::watch::Watch;

use self::plan::Placed;
use self::prepare::{Prepared, Read};
use self::result::{StationResult, baselines};
use self::series::{Found, Series};
use self::station::{StationFile, StationReader};
use self::tamper::Tampered;

/// An error of a caller's code, or of another library.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Reasons why stations cannot be correlated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorrelateError {
    /// A recording cannot be correlated.
    #[error("{0}")]
    Recording(#[from] RecordingError),
    /// A stream cannot be correlated.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// The options do not fit the stations.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// The fringe search window is too wide.
    #[error("{0}")]
    Window(#[from] WindowError),
    /// The delay model does not cover a time to correlate.
    #[error("{0}")]
    OutsideModel(#[from] OutsideModel),
    /// Visibilities cannot be written.
    #[error("{0}")]
    Visibilities(#[from] VisibilityError),
    /// The caller's [`Along`] or [`Show`] failed.
    #[error("{0}")]
    Along(#[source] Cause),
    /// The run was stopped before anything was correlated.
    #[error("interrupted before anything was correlated")]
    Interrupted,
    /// The system cannot start a thread.
    #[error("{0}")]
    Spawn(#[source] io::Error),
    /// A correlating thread panicked.
    #[error("a correlating thread ended early")]
    Thread,
}

/// An input that is not correlated, so that the others can be.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// Path of the recording, and its settings.
    pub source: String,
    /// Reason, and what to do.
    pub reason: String,
}

impl LeftOut {
    /// Warns that an input is left out.
    fn new(source: &str, error: &(dyn Error + 'static), run: &Run) -> LeftOut {
        let reason = run.explain(error);
        run.warn(format_args!("{source} is left out: {reason}"));
        let source = source.to_owned();
        LeftOut { source, reason }
    }
}

/// Recordings of several stations, in the order of the stations.
pub struct Recordings {
    paths: Vec<String>,
    /// Those that can be read.
    files: Vec<StationFile>,
    /// Their places among the paths.
    places: Vec<usize>,
    left_out: Vec<LeftOut>,
}

impl Recordings {
    /// Opens recordings, one per station. Settings of a single one follow `#` ([`evlbi_stream::selection`]), `options` describe the samples
    /// of all where the files do not. A recording that cannot be correlated is left out, with a warning, if two others can be.
    ///
    /// # Errors
    /// Returns an error if settings are not valid, or fewer than two recordings can be correlated.
    pub fn open(
        paths: &[String],
        options: &CorrelateOptions,
        run: &Run,
    ) -> Result<Recordings, CorrelateError> {
        let rate = plan::given_rate(options)?;
        let second = run.clock().second();
        let (mut files, mut places, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for (place, path) in paths.iter().enumerate() {
            match StationFile::open(path, rate, options.trust, second) {
                Ok(file) => {
                    files.push(file);
                    places.push(place);
                }
                Err(error @ RecordingError::Selection { .. }) => return Err(error.into()),
                Err(error) => refused.push((path, error)),
            }
        }
        if files.len() < 2 && !refused.is_empty() {
            return Err(refused.remove(0).1.into());
        }
        let shapes: Vec<Placed<'_>> = (files.iter().zip(&places))
            .map(|(file, place)| (*place, file.shape()))
            .collect();
        // A job of DiFX has its own names.
        if options.model.as_deref().is_none_or(options::is_sky)
            && let Some(twice) = plan::twice(paths, &shapes)
        {
            run.warn(format_args!("{twice}"));
        }
        let left_out = refused
            .iter()
            .map(|(path, error)| LeftOut::new(path, error, run));
        Ok(Recordings {
            left_out: left_out.collect(),
            paths: paths.to_vec(),
            files,
            places,
        })
    }

    /// Returns the sample layout of a station's frames; `None` if there is no such station.
    pub fn layout(&self, station: usize) -> Option<&Layout> {
        let index = self.places.iter().position(|place| *place == station)?;
        Some(self.files[index].shape().layout())
    }
}

/// Result of a correlation, dump by dump.
pub struct Correlation {
    setup: Arc<Setup>,
    series: Series,
    stations: Vec<StationResult>,
    /// UTC second from which the options' delays count, and these; `None` of streams, whose next run counts from another.
    given: Option<(i64, Vec<DelayTerms>)>,
    /// Places of the stations among the inputs.
    places: Vec<usize>,
    /// Inputs that were not correlated.
    left_out: Vec<LeftOut>,
    /// Window of the fringe search.
    window: Window,
    /// Results of the streams, if streams were correlated.
    streams: Vec<StreamResult>,
    visibilities: Option<PathBuf>,
    /// SHA-256 of the sums of all dumps, if visibilities were written.
    sums: Option<String>,
    /// Parts that are missing.
    missing: Vec<Missing>,
    /// Effect of tampering, for each station.
    tampered: Vec<Option<Tampered>>,
    /// Whether the run was stopped before the end; the result then consists of whole periods until the stop.
    pub interrupted: bool,
    /// Parts since the start of the grid in which each station could have had data, and the correlated ones.
    spans: Vec<Range<i64>>,
    correlated: Range<i64>,
    integration: f64,
}

impl Correlation {
    /// Checks that something was correlated.
    ///
    /// # Errors
    /// Returns an error if the run was stopped before that.
    pub fn has_any(&self) -> Result<(), CorrelateError> {
        match self.interrupted && self.series.added == 0 {
            true => Err(CorrelateError::Interrupted),
            false => Ok(()),
        }
    }

    /// Returns the number of parts in which both stations of a product could have had data.
    fn span(&self, a: Input, b: Input) -> i64 {
        let (a, b) = (&self.spans[a.station], &self.spans[b.station]);
        let start = a.start.max(b.start).max(self.correlated.start);
        let end = a.end.min(b.end).min(self.correlated.end);
        (end - start).max(0)
    }

    /// Returns the fringes of all baselines, in the order 1-2, 1-3, and so on.
    pub fn fringes(&self) -> Vec<BaselineResult> {
        baselines(&self.setup, &self.found())
    }

    /// Returns amplitude against delay of each baseline, in the order of [`Correlation::fringes`].
    pub fn profiles(&self) -> Vec<Profile> {
        let found = self.found();
        let baselines = baselines(&self.setup, &found).into_iter();
        let profile = |baseline: BaselineResult| self.series.profile(baseline.pair, &found);
        baselines
            .map(|baseline| profile(baseline).unwrap_or_default())
            .collect()
    }

    fn found(&self) -> Vec<Found> {
        let products = 0..self.setup.products().len();
        products.map(|index| self.find(index)).collect()
    }

    /// Returns the length of the correlated time in parts: one per real sample, two per complex sample.
    pub fn parts(&self) -> i64 {
        self.correlated.end - self.correlated.start
    }

    /// Returns the effect of tampering on a station's frames.
    fn tampered(&self, station: usize) -> Option<Tampered> {
        self.tampered.get(station).copied().flatten()
    }

    /// Returns the first correlated block.
    fn first_block(&self) -> i64 {
        self.correlated.start / self.setup.block_parts()
    }

    /// Evaluates a product at a known delay and rate.
    fn find_at(&self, index: usize, known: &Fringe) -> Found {
        let fringe = at(&self.series.visibilities(index), known);
        self.series.found(index, self.span_of(index), fringe)
    }

    /// Finds the fringe of a product.
    fn find(&self, index: usize) -> Found {
        let span = self.span_of(index);
        self.series.find(index, span, &self.window)
    }

    fn span_of(&self, index: usize) -> i64 {
        let product = self.setup.products()[index];
        self.span(product.a, product.b)
    }
}

/// Actions during a correlation of recordings. `()` does nothing.
pub trait Along {
    /// Returns what tampers with a station's frames before they are correlated.
    ///
    /// # Errors
    /// Returns an error if that cannot be set up; it ends the correlation.
    fn tamper(&mut self, _station: usize) -> Result<Option<Tamper>, Cause> {
        Ok(None)
    }

    /// Takes a dump, in order of time: the start of its integration, in seconds since the start of the grid, and the sums.
    ///
    /// # Errors
    /// Returns an error if the dump cannot be handled; it ends the correlation.
    fn dump(&mut self, _begins: f64, _sums: &Sums) -> Result<(), Cause> {
        Ok(())
    }
}

impl Along for () {}

/// Correlates recordings until the end, or until the run is stopped; the result then consists of whole dumps.
///
/// # Errors
/// Returns an error if they cannot be correlated with the options, or visibilities cannot be written.
pub fn correlate(
    recordings: &Recordings,
    options: &CorrelateOptions,
    run: &Run,
    along: &mut dyn Along,
) -> Result<Correlation, CorrelateError> {
    let mut prepared = Prepared::new(recordings, options, run)?;
    let job = &mut prepared.job;
    let Range { start, end } = job.range;
    // A multiple of a dump is not rounded up.
    let dumps = |seconds: f64| (seconds / job.dump_seconds() - 1e-6).ceil() as i64;
    job.range = match &options.stretch {
        Stretch::All => start..end,
        Stretch::Between(seconds) => {
            let [from, to] = [seconds.start, seconds.end].map(|at| end.min(start + dumps(at)));
            from..to.max(from)
        }
        Stretch::Last(seconds) => start.max(end - dumps(*seconds))..end,
    };
    let mut collected = prepared.collected(options)?;
    let job = &prepared.job;
    let mut readers = prepared.readers(options, prepared.job.range.start, None, along)?;
    let counts = run::run(
        &job.setup,
        &mut readers,
        job.periods,
        job.range.clone(),
        options.threads(),
        run,
        |period, sums| {
            collected.add(job, period, sums)?;
            let taken = along.dump(job.begins(period), sums);
            taken.map_err(CorrelateError::Along)
        },
    )?;
    let tampered = readers.iter().map(StationReader::tampered).collect();
    let damage = readers.iter().map(|reader| {
        let mut damage = reader.damage().unwrap_or_default();
        if matches!(options.stretch, Stretch::Last(_)) {
            // They may still be growing.
            (damage.truncated_bytes, damage.truncated_byte) = (0, None);
        }
        damage
    });
    let read: Vec<Read> = (counts.into_iter().zip(damage))
        .map(|(counts, damage)| Read { counts, damage })
        .collect();
    prepared.conclude(options, collected, &read, tampered, run)
}
