//! Recordings or streams of several stations become visibilities and amplitudes.

mod arrived;
mod clocks;
mod correlation;
mod feed;
mod integrations;
mod job;
mod lines;
mod live;
mod options;
mod plan;
mod result;
mod run;
mod series;
mod station;
mod tamper;
#[cfg(test)]
mod tests;
pub mod visibilities;
mod watch;

use std::path::Path;

use anyhow::{Result, bail};
use evlbi_fx::correlator::Sums;
use evlbi_net::run::Run;

pub use self::correlation::Correlation;
pub use self::lines::Integration;
pub use self::live::{StreamResult, correlate_streams};
pub use self::options::{
    Chunk, CorrelateOptions, DelayTerms, Flag, Hertz, SideBand, StreamOptions, Stretch,
};
pub use self::result::{text, write_csv};
pub use self::series::{Amplitude, Dump, Found, check_window};
pub use self::station::Tampered;
pub use self::tamper::Tamper;

use self::job::Job;
use self::plan::Shape;
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
    pub fn open(paths: &[String], options: &CorrelateOptions) -> Result<Recordings> {
        let rate = match (&options.sample_rate, &options.model) {
            (Some(rate), _) => Some(rate.0.round() as u64),
            (None, Some(model)) => plan::sample_rate(model)?,
            (None, None) => None,
        };
        let open = |path: &String| StationFile::open(Path::new(path), rate, options.trust);
        let files = paths
            .iter()
            .map(open)
            .collect::<Result<Vec<StationFile>>>()?;
        Ok(Recordings {
            paths: paths.to_vec(),
            shapes: files.iter().map(|file| file.shape().clone()).collect(),
            files,
        })
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
    let names: Vec<String> = plan.stations.iter().map(|s| s.name.clone()).collect();
    let (averaged, of_difx) = (plan.averaged, plan.job.clone());
    let window = options.window();
    let mut job = Job::of_files(plan, files, options.chunk, &window)?;
    let dumps = |seconds: f64| (seconds / job.dump_seconds()).ceil() as i64;
    match options.stretch {
        Stretch::All => {}
        Stretch::First(seconds) => {
            job.range.end = job.range.end.min(job.range.start + dumps(seconds));
        }
        Stretch::Last(seconds) => {
            job.range.start = job.range.start.max(job.range.end - dumps(seconds));
        }
    }
    check_flags(options, &names)?;
    let dumps = job.range.clone().count();
    let mut series = job.series();
    series.check(&window, dumps)?;
    let mut writer = match &options.visibilities {
        Some(directory) if !job.range.is_empty() => Some(VisibilityWriter::create(
            directory,
            &job.setup,
            of_difx,
            averaged,
            job.integration,
            job.begins(job.range.start),
            options.force,
        )?),
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
        names,
        sources: paths.clone(),
        window,
        streams: Vec::new(),
        tampered: readers.iter().map(StationReader::tampered).collect(),
        visibilities,
        interrupted,
        counts,
        threads: shapes.iter().map(|shape| shape.threads.len()).collect(),
        correlated: job.correlated(),
        integration: job.integration,
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
