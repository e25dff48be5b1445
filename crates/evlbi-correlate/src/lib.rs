//! Correlates: recordings or streams of several stations become visibilities and amplitudes.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![allow(missing_docs)]

mod arrived;
mod clocks;
mod feed;
pub mod fringe;
mod integrations;
mod job;
mod lines;
mod live;
pub mod loss_curve;
mod options;
mod pictures;
mod plan;
mod result;
mod run;
mod series;
mod station;
mod stream;
mod tamper;
#[cfg(test)]
mod tests;
pub mod visibilities;
mod watch;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use evlbi_fx::correlator::{Input, Setup, Sums};
use evlbi_fx::fringe::{Fringe, Window, at};
use evlbi_net::run::Run;

pub use self::lines::Integration;
pub use self::live::correlate_streams;
pub use self::options::{
    Chunk, CorrelateOptions, DelayTerms, Flag, Hertz, SideBand, StreamOptions, Stretch,
};
pub use self::result::{text, write_csv};
pub use self::series::{Amplitude, Dump, Found, check_window};
pub use self::stream::StreamResult;
pub use self::tamper::{Tamper, Tampered};

use self::job::Job;
use self::plan::Shape;
use self::result::{BaselineResult, StationResult, baselines};
use self::series::Series;
use self::station::{StationFile, StationReader};
use self::visibilities::VisibilityWriter;

/// Recordings of several stations.
pub struct Recordings {
    pub paths: Vec<String>,
    pub files: Vec<StationFile>,
    pub shapes: Vec<Shape>,
}

impl Recordings {
    /// Opens them.
    ///
    /// # Errors
    /// When one is no recording that can be correlated.
    pub fn open(paths: &[String], options: &CorrelateOptions, run: &Run) -> Result<Recordings> {
        let rate = match (&options.sample_rate, &options.model) {
            (Some(rate), _) => Some(rate.0.round() as u64),
            (None, Some(model)) => plan::sample_rate(model)?,
            (None, None) => None,
        };
        let second = run.clock().second();
        let open = |path: &String| StationFile::open(Path::new(path), rate, options.trust, second);
        let files = paths.iter().map(open);
        let files = files.collect::<Result<Vec<StationFile>>>()?;
        Ok(Recordings {
            paths: paths.to_vec(),
            shapes: files.iter().map(|file| file.shape().clone()).collect(),
            files,
        })
    }
}

/// What came of a run.
pub struct Correlation {
    pub setup: Arc<Setup>,
    pub series: Series,
    stations: Vec<StationResult>,
    /// Where fringes are searched.
    window: Window,
    /// What was received, of streams.
    streams: Vec<StreamResult>,
    visibilities: Option<PathBuf>,
    /// Of each station what tampering did.
    tampered: Vec<Option<Tampered>>,
    /// Whether it was stopped before the end: what was correlated is whole periods until then.
    pub interrupted: bool,
    /// Parts since the grid's beginning in which each station could have had data, and those correlated.
    spans: Vec<Range<i64>>,
    correlated: Range<i64>,
    integration: f64,
}

impl Correlation {
    /// # Errors
    /// When it was stopped before there was anything.
    pub fn has_any(&self) -> Result<()> {
        match self.interrupted && self.series.added == 0 {
            true => bail!("interrupted before anything was correlated"),
            false => Ok(()),
        }
    }

    /// The parts in which both stations of a product could have had data.
    pub fn span(&self, a: Input, b: Input) -> i64 {
        let (a, b) = (&self.spans[a.station], &self.spans[b.station]);
        let start = a.start.max(b.start).max(self.correlated.start);
        let end = a.end.min(b.end).min(self.correlated.end);
        (end - start).max(0)
    }

    /// The fringes of all baselines.
    pub fn fringes(&self) -> Vec<BaselineResult> {
        baselines(&self.setup, &self.found())
    }

    fn found(&self) -> Vec<Found> {
        let products = 0..self.setup.products().len();
        products.map(|index| self.find(index)).collect()
    }

    /// Parts that were correlated.
    pub fn parts(&self) -> i64 {
        self.correlated.end - self.correlated.start
    }

    /// What tampering did to a station's frames.
    pub fn tampered(&self, station: usize) -> Option<Tampered> {
        self.tampered.get(station).copied().flatten()
    }

    /// The first block that was correlated.
    pub fn first_block(&self) -> i64 {
        self.correlated.start / self.setup.block_parts()
    }

    /// A product at a delay and rate that are known.
    pub fn find_at(&self, index: usize, known: &Fringe) -> Found {
        let fringe = at(&self.series.visibilities(index), known);
        self.series.found(index, self.span_of(index), fringe)
    }

    /// Finds the fringe of a product.
    pub fn find(&self, index: usize) -> Found {
        let span = self.span_of(index);
        self.series.find(index, span, &self.window)
    }

    fn span_of(&self, index: usize) -> i64 {
        let product = self.setup.products()[index];
        self.span(product.a, product.b)
    }
}

/// What is done on the way of recordings to what comes of them. `()` does nothing.
pub trait Along {
    /// Returns what harms the frames of a station on their way.
    ///
    /// # Errors
    /// When there is no such thing, which ends the correlation.
    fn tamper(&mut self, _station: usize) -> Result<Option<Tamper>> {
        Ok(None)
    }

    /// Takes a dump, in the order of time: when its integration begins, in seconds since the grid's beginning, and the sums.
    ///
    /// # Errors
    /// When it cannot be taken, which ends the correlation.
    fn dump(&mut self, _begins: f64, _sums: &Sums) -> Result<()> {
        Ok(())
    }
}

impl Along for () {}

/// Correlates recordings, until the run is stopped: then what comes of it are whole dumps.
///
/// # Errors
/// When they cannot be correlated as the options say, or visibilities cannot be written.
pub fn correlate(
    recordings: &Recordings,
    options: &CorrelateOptions,
    run: &Run,
    along: &mut dyn Along,
) -> Result<Correlation> {
    let Recordings {
        paths,
        files,
        shapes,
    } = recordings;
    let plan = plan::plan(paths, shapes, options, run)?;
    let window = options.window();
    let mut job = Job::of_files(plan, files, options.chunk, &window)?;
    let Range { start, end } = job.range;
    let dumps = |seconds: f64| (seconds / job.dump_seconds()).ceil() as i64;
    job.range = match options.stretch {
        Stretch::All => start..end,
        Stretch::First(seconds) => start..end.min(start + dumps(seconds)),
        Stretch::Last(seconds) => start.max(end - dumps(seconds))..end,
    };
    let names = plan::station_names(&job.setup);
    check_flags(options, &names)?;
    let dumps = job.range.clone().count();
    let mut series = job.series();
    series.check(&window, dumps)?;
    let mut writer = match &options.visibilities {
        Some(directory) if !job.range.is_empty() => {
            Some(VisibilityWriter::create(directory, &job, options.force)?)
        }
        _ => None,
    };
    let mut readers = files
        .iter()
        .zip(&names)
        .enumerate()
        .map(|(index, (file, name))| {
            let flags = options.flag.iter().filter(|flag| flag.station == *name);
            let since = shapes[0].first_second;
            let blocks = job.periods.blocks(job.range.start);
            let from = job.setup.samples(index, blocks)?.start;
            file.read(job.setup.epoch(), from, along.tamper(index)?, flags, since)
        })
        .collect::<Result<Vec<StationReader>>>()?;
    let counts = run::run(
        &job.setup,
        &mut readers,
        job.periods,
        job.range.clone(),
        options.threads(),
        run,
        |period, sums| {
            series.add(sums);
            if let Some(writer) = &mut writer {
                writer.add(job.begins(period), sums)?;
            }
            along.dump(job.begins(period), sums)
        },
    )?;
    let visibilities = match writer {
        Some(writer) if series.added == 0 => {
            writer.abandon();
            None
        }
        writer => writer.map(VisibilityWriter::finish).transpose()?,
    };
    let interrupted = series.added < dumps;
    job.range.end = job.range.start + series.added as i64;
    Ok(Correlation {
        stations: StationResult::all(&job.setup, paths, shapes, &counts),
        window,
        streams: Vec::new(),
        tampered: readers.iter().map(StationReader::tampered).collect(),
        visibilities,
        interrupted,
        correlated: job.correlated(),
        integration: job.plan.integration,
        spans: job.spans,
        setup: job.setup,
        series,
    })
}

fn check_flags(options: &CorrelateOptions, names: &[String]) -> Result<()> {
    let unknown = |flag: &&Flag| !names.contains(&flag.station);
    match options.flag.iter().find(unknown) {
        Some(flag) => bail!(
            "--flag names station {}, and the stations are {}",
            flag.station,
            names.join(", ")
        ),
        None => Ok(()),
    }
}
