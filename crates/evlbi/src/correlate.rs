//! `evlbi correlate`: recordings of several stations become visibilities and amplitudes.

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
mod teller;
pub mod visibilities;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use evlbi_fx::fringe::Window;

use crate::cli::{CorrelateArgs, CorrelateOptions};
use crate::output::{self, Results};
use crate::progress;

pub use self::correlation::Correlation;
pub use self::options::{Chunk, DelayTerms, Flag, Hertz, TrustChoice};
pub use self::series::{Amplitude, Dump, Found, check_window};
pub use self::station::Tampered;
pub use self::tamper::Tamper;

use self::job::Job;
use self::plan::Shape;
use self::result::{text, write_csv};
use self::station::{StationFile, StationReader};
use self::visibilities::VisibilityWriter;

/// Correlates as the options say.
pub fn run(args: &CorrelateArgs) -> Result<()> {
    if args.live {
        return run_live(args);
    }
    let recordings = Recordings::open(&args.files, &args.options, args.trust)?;
    let summaries = args.out.as_ref().map(|directory| {
        let part = args.chunk.map_or_else(String::new, Chunk::suffix);
        [
            directory.join(format!("summary{part}.json")),
            directory.join(format!("baselines{part}.csv")),
        ]
    });
    output::check_new(summaries.iter().flatten().map(PathBuf::as_path), args.force)?;
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let output = args.out.as_ref().map(|directory| Output {
        directory: directory.as_path(),
        force: args.force,
    });
    let scope = Scope {
        chunk: args.chunk,
        stretch: args
            .last
            .map_or(Stretch::All, |last| Stretch::Last(last.as_secs_f64())),
        output,
    };
    let correlation = correlate(&recordings, &args.options, &scope, &mut |_| Ok(None))?;
    correlation.has_any()?;
    let result = correlation.result(args);
    if let Some([summary, table]) = &summaries {
        output::replace_json(summary, &result)?;
        write_csv(table, &result)?;
    }
    output::print(args.json, &result, text)?;
    progress::complete(correlation.interrupted)
}

fn run_live(args: &CorrelateArgs) -> Result<()> {
    let mut results = Results::default();
    let (correlation, streams) = live::run(args, &mut results)?;
    let mut result = correlation.result(args);
    let nothing: Vec<String> = streams
        .iter()
        .filter_map(live::StreamResult::nothing)
        .collect();
    result.streams = streams;
    if args.json {
        // A line, as those before it.
        let line = serde_json::to_string(&result).context("cannot write the result as JSON")?;
        results.line(&line);
    } else {
        results.line(&text(&result));
    }
    results.end()?;
    if !nothing.is_empty() {
        bail!("no data correlated of {}", nothing.join("; "));
    }
    Ok(())
}

/// Recordings of several stations.
pub struct Recordings {
    pub paths: Vec<String>,
    pub files: Vec<StationFile>,
    pub shapes: Vec<Shape>,
}

impl Recordings {
    /// Opens them.
    pub fn open(
        paths: &[String],
        options: &CorrelateOptions,
        trust: TrustChoice,
    ) -> Result<Recordings> {
        let rate = match (&options.sample_rate, &options.model) {
            (Some(rate), _) => Some(rate.0.round() as u64),
            (None, Some(model)) => plan::sample_rate(model)?,
            (None, None) => None,
        };
        let open = |path: &String| StationFile::open(Path::new(path), rate, trust.into());
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

/// What of recordings is correlated, and where visibilities go.
#[derive(Default)]
pub struct Scope<'a> {
    pub chunk: Option<Chunk>,
    pub stretch: Stretch,
    pub output: Option<Output<'a>>,
}

/// Which time of recordings.
#[derive(Clone, Copy, Default)]
pub enum Stretch {
    #[default]
    All,
    /// So many seconds from the beginning on.
    First(f64),
    /// So many seconds up to the end.
    Last(f64),
}

/// Where visibilities are written.
pub struct Output<'a> {
    directory: &'a Path,
    force: bool,
}

/// Correlates recordings, or what comes before Ctrl-C of them; `tamper` may harm each on its way.
pub fn correlate(
    recordings: &Recordings,
    options: &CorrelateOptions,
    scope: &Scope<'_>,
    tamper: &mut dyn FnMut(usize) -> Result<Option<Tamper>>,
) -> Result<Correlation> {
    let Recordings {
        paths,
        files,
        shapes,
    } = recordings;
    let plan = plan::plan(paths, shapes, options)?;
    let names: Vec<String> = plan.stations.iter().map(|s| s.name.clone()).collect();
    let (averaged, of_difx) = (plan.averaged, plan.job.clone());
    let window = window(options);
    let mut job = Job::of_files(plan, files, scope.chunk, &window)?;
    let dumps = |seconds: f64| (seconds / job.dump_seconds()).ceil() as i64;
    match scope.stretch {
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
    let mut writer = match &scope.output {
        Some(Output { directory, force }) if !job.range.is_empty() => {
            Some(VisibilityWriter::create(
                directory,
                &job.setup,
                of_difx,
                averaged,
                job.integration,
                job.begins(job.range.start),
                *force,
            )?)
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
            file.read(job.setup.epoch(), from, tamper(index)?, flags, since)
        })
        .collect::<Result<Vec<StationReader>>>()?;
    let threads = threads(options.threads);
    let counts = run::run(
        &job.setup,
        &mut readers,
        job.periods,
        job.range.clone(),
        threads,
        |period, sums| {
            series.add(sums);
            match &mut writer {
                Some(writer) => writer.add(job.begins(period), sums),
                None => Ok(()),
            }
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

/// Where fringes are searched.
pub fn window(options: &CorrelateOptions) -> Window {
    Window {
        delay_s: options.delay_window.map(|window| window.as_secs_f64()),
        rate_hz: options.rate_window.map(|window| window.0),
    }
}

/// How many threads correlate.
pub fn threads(asked: Option<u16>) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or(processors, usize::from)
}
