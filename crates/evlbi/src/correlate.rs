//! `evlbi correlate`: recordings of several stations become visibilities and amplitudes.

mod live;
mod options;
mod plan;
mod run;
mod series;
mod station;
mod tamper;
pub mod visibilities;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use evlbi_fx::correlator::{Input, Rotation, Setup};
use evlbi_fx::fringe::{Fringe, Window};
use evlbi_fx::quantise;
use evlbi_fx::track::Counts;
use serde::Serialize;

use crate::cli::{CorrelateArgs, CorrelateOptions};
use crate::output;
use crate::progress::interrupt;
use crate::units::{show_count, show_seconds};

pub use self::live::Feed;
pub use self::options::{Chunk, DelayTerms, Flag, Hertz, TrustChoice};
pub use self::run::Periods;
pub use self::series::{Amplitude, Dump, Found, Series};
pub use self::station::{StationFile, StationReader};
pub use self::tamper::Tamper;

use self::live::StreamResult;
use self::plan::{Plan, Shape};
use self::visibilities::VisibilityWriter;

/// Dumps that a fringe is searched in, at least, where the blocks are short enough.
const LEAST_DUMPS: i64 = 64;
/// Dumps of an integration of streams.
const LIVE_DUMPS: i64 = 16;
/// Dumps that are reckoned with where nobody knows the length of a run: an hour of integrations of a second.
const LONG: i64 = 3600 * LIVE_DUMPS;
/// A line stands this far above the median of a spectrum.
const LINE: f64 = 20.0;
/// Lines of a spectrum that are listed.
const MOST_LINES: usize = 64;
/// A false alarm that is more probable than this is no fringe.
const NO_FRINGE: f64 = 1e-3;
/// A fringe so far off that amplitudes lose more than this is told.
const LITTLE_LOST: f64 = 0.995;
/// Blocks of a dump, at least.
const LEAST_BLOCKS: i64 = 4;

/// The result of `evlbi correlate`.
#[derive(Serialize)]
pub struct CorrelateResult {
    schema: &'static str,
    stations: Vec<StationResult>,
    /// UTC of the beginning.
    start: String,
    seconds: f64,
    channels: usize,
    channel_width_hz: f64,
    integration_s: f64,
    /// How fringes were stopped.
    rotation: Rotation,
    /// Half widths of the window that was searched.
    window: SearchWindow,
    /// Cross products, 1-2, 1-3, ... in the order of the files.
    pub baselines: Vec<BaselineResult>,
    autos: Vec<AutoResult>,
    /// What was received, of streams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streams: Vec<StreamResult>,
    /// The file of visibilities that was written.
    visibilities: Option<PathBuf>,
    interrupted: bool,
}

/// Half widths of the window in which fringes were searched.
#[derive(Clone, Copy, Serialize)]
struct SearchWindow {
    delay_s: f64,
    rate_hz: f64,
}

/// What was read of a station.
#[derive(Serialize)]
struct StationResult {
    name: String,
    source: String,
    sample_rate: i64,
    bits: u8,
    complex: bool,
    threads: usize,
    channels: usize,
    frames: u64,
    /// Frames that came out of order by too much, twice, or of another shape.
    late: u64,
    duplicates: u64,
    foreign: u64,
}

/// A pair of stations. Where there are several bands (of equal polarisations, if there are such, and with a
/// fringe, if any has one), amplitudes are their mean weighted by the valid samples, the
/// signal-to-noise ratio is that of all together, delay and rate are means weighted by its square, and the phase is
/// that of the strongest band.
#[derive(Clone, Serialize)]
pub struct BaselineResult {
    pub stations: [String; 2],
    pub amplitude: Amplitude,
    pub snr: f64,
    pub weight: f64,
    /// Share of the signal-to-noise ratio that missing samples cost: 1 - sqrt(weight).
    pub snr_loss: f64,
    pub delay_s: f64,
    pub delay_error_s: f64,
    /// s/s; none where the sky frequency is not known.
    pub rate: Option<f64>,
    pub rate_hz: f64,
    pub rate_error_hz: f64,
    pub phase_rad: f64,
    pub phase_error_rad: f64,
    /// Probability that noise alone has such a peak in the window.
    pub false_alarm: f64,
    /// What a fringe that lies off the model leaves of the amplitudes: they are to be divided by it.
    pub coherence: f64,
    pub bands: Vec<BandResult>,
}

/// One product of a baseline.
#[derive(Clone, Serialize)]
pub struct BandResult {
    /// Lowest sky frequency; none where it is not known.
    frequency_hz: Option<f64>,
    polarisations: String,
    #[serde(flatten)]
    found: Found,
    delay_s: f64,
    rate_hz: f64,
    phase_rad: f64,
}

/// The autocorrelation of a band.
#[derive(Serialize)]
struct AutoResult {
    station: String,
    frequency_hz: Option<f64>,
    polarisation: char,
    /// Share of the time with good samples.
    weight: f64,
    /// Mean square of the good samples over what the levels mean: 1 where the sampler is set right.
    power: f64,
    /// Lines in the spectrum, such as the tones of a phase calibration: the frequencies, above the zero frequency
    /// of the samples, of channels that stand far above the others.
    lines_hz: Vec<f64>,
}

/// Correlates as the options say.
pub fn run(args: &CorrelateArgs) -> Result<()> {
    if args.live {
        return run_live(args);
    }
    let recordings = Recordings::open(&args.files, &args.options)?;
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
        output,
        ..Scope::default()
    };
    let correlation = correlate(&recordings, &args.options, &scope, &mut |_| Ok(None))?;
    let result = correlation.result(args)?;
    if let Some([summary, table]) = &summaries {
        output::write_json(summary, &result)?;
        std::fs::write(table, csv(&result))
            .with_context(|| format!("cannot write {}", table.display()))?;
    }
    output::print(args.json, &result, text)
}

fn run_live(args: &CorrelateArgs) -> Result<()> {
    let (correlation, streams) = live::run(args)?;
    let mut result = correlation.result(args)?;
    result.streams = streams;
    if args.json {
        // A line, as those before it.
        let line = serde_json::to_string(&result).context("cannot write the result as JSON")?;
        println!("{line}");
        return Ok(());
    }
    output::print(false, &result, text)
}

/// A line a product.
fn csv(result: &CorrelateResult) -> String {
    let mut shown = String::from(
        "station_a,station_b,frequency_hz,polarisations,amplitude_all,amplitude_autos,amplitude_valid,\
         amplitude_corrected,snr,weight,delay_s,rate_hz,phase_rad\n",
    );
    for baseline in &result.baselines {
        for band in &baseline.bands {
            let Amplitude {
                all,
                autos,
                valid,
                corrected,
            } = band.found.amplitude;
            let frequency = band
                .frequency_hz
                .map_or_else(String::new, |hertz| hertz.to_string());
            shown += &format!(
                "{},{frequency},{},{all},{autos},{valid},{corrected},{},{},{},{},{}\n",
                baseline.stations.join(","),
                band.polarisations,
                band.found.snr,
                band.found.weight,
                band.delay_s,
                band.rate_hz,
                band.phase_rad,
            );
        }
    }
    shown
}

/// What came of a run.
pub struct Correlation {
    pub setup: Arc<Setup>,
    pub series: Series,
    names: Vec<String>,
    visibilities: Option<PathBuf>,
    counts: Vec<Counts>,
    /// Of each station what tampering shed.
    sheds: Vec<Option<f64>>,
    threads: Vec<usize>,
    interrupted: bool,
    /// Parts since the grid's beginning in which each station could have had data, and those correlated.
    spans: Vec<Range<i64>>,
    correlated: Range<i64>,
    integration: f64,
}

/// Recordings of several stations.
pub struct Recordings {
    pub paths: Vec<String>,
    pub files: Vec<StationFile>,
    pub shapes: Vec<Shape>,
}

impl Recordings {
    /// Opens them.
    pub fn open(paths: &[String], options: &CorrelateOptions) -> Result<Recordings> {
        let rate = match (&options.sample_rate, &options.model) {
            (Some(rate), _) => Some(rate.0.round() as u64),
            (None, Some(model)) => plan::sample_rate(model)?,
            (None, None) => None,
        };
        let open = |path: &String| StationFile::open(Path::new(path), rate, options.trust.into());
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
    /// So much from the beginning on.
    pub seconds: Option<f64>,
    pub output: Option<Output<'a>>,
}

/// Where visibilities are written.
pub struct Output<'a> {
    directory: &'a Path,
    force: bool,
}

/// Correlates recordings; `tamper` may harm each on its way.
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
    let (averaged, model) = (plan.averaged, plan.model.clone());
    let mut job = Job::of_files(plan, files, scope.chunk)?;
    if let Some(seconds) = scope.seconds {
        let dumps = (seconds / job.dump_seconds()).ceil() as i64;
        job.range.end = job.range.end.min(job.range.start + dumps);
    }
    let mut writer = match &scope.output {
        Some(Output { directory, force }) if !job.range.is_empty() => {
            Some(VisibilityWriter::create(
                directory,
                &job.setup,
                model,
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
            file.read(job.setup.epoch(), tamper(index)?, flags, since)
        })
        .collect::<Result<Vec<StationReader>>>()?;
    check_flags(options, &names)?;
    let mut series = job.series();
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
    let visibilities = writer.map(VisibilityWriter::finish).transpose()?;
    Ok(Correlation {
        names,
        sheds: readers.iter().map(StationReader::shed).collect(),
        visibilities,
        interrupted: series.dumps_added() < series.dumps,
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

/// A set-up and the time that is to be correlated.
pub struct Job {
    pub setup: Arc<Setup>,
    pub periods: Periods,
    pub range: Range<i64>,
    pub spans: Vec<Range<i64>>,
    pub integration: f64,
}

impl Job {
    /// Takes all integrations in which two recordings have data, or a chunk of them.
    pub fn of_files(plan: Plan, files: &[StationFile], chunk: Option<Chunk>) -> Result<Job> {
        let stations = files.iter().enumerate();
        let spans = stations
            .map(|(index, file)| plan.span(index, &file.samples(plan.epoch)?))
            .collect::<Result<Vec<Range<i64>>>>()?;
        let common = common(&spans).with_context(|| {
            let shown = plan.stations.iter().zip(&spans).map(|(station, span)| {
                let second = |part: i64| {
                    part as f64 / plan.part_rate() as f64 + (plan.epoch + plan.start) as f64
                };
                format!(
                    "{} from {} to {}",
                    station.name,
                    utc(second(span.start)),
                    utc(second(span.end))
                )
            });
            let shown: Vec<String> = shown.collect();
            format!("no two recordings overlap in time: {}", shown.join("; "))
        })?;
        let integration = plan.integration;
        let rate = plan.part_rate() as f64;
        let parts = (integration * rate).round() as i64;
        let block = 2 * plan.channels as i64;
        if parts < block {
            bail!(
                "an integration of {} is shorter than a spectrum of {} channels, {}",
                show_seconds(integration),
                plan.channels,
                show_seconds(block as f64 / rate)
            );
        }
        let length = common.end - common.start;
        let wanted = (LEAST_DUMPS * parts / length.max(1)).clamp(1, LEAST_DUMPS);
        let count = wanted.min(parts / (LEAST_BLOCKS * block)).max(1);
        let periods = Periods {
            count,
            parts,
            block,
            there: (
                spans.iter().map(|span| span.start).min().unwrap_or(0),
                spans.iter().map(|span| span.end).max().unwrap_or(0),
            ),
        };
        let setup = plan.setup((common.start as f64 / rate, common.end as f64 / rate))?;
        let range = periods.of(common.start)..periods.of(common.end - 1) + 1;
        Ok(Job {
            setup: Arc::new(setup),
            range: chunk.map_or(range.clone(), |chunk| chunk.of(range, count)),
            periods,
            spans,
            integration,
        })
    }

    /// Takes all of streams whose latest begins so many seconds after the plan's epoch.
    pub fn live(plan: Plan, first: f64) -> Result<Job> {
        let rate = plan.part_rate() as f64;
        let integration = plan.integration;
        let parts = (integration * rate).round() as i64;
        let block = 2 * plan.channels as i64;
        let begin = ((first - plan.start as f64) * rate) as i64;
        let periods = Periods {
            count: LIVE_DUMPS.min(parts / (LEAST_BLOCKS * block)).max(1),
            parts,
            block,
            there: (i64::MIN, i64::MAX),
        };
        let stations = plan.stations.len();
        let setup = plan.setup((begin as f64 / rate, begin as f64 / rate + 3600.0))?;
        Ok(Job {
            setup: Arc::new(setup),
            range: periods.of(begin) + 1..i64::MAX,
            periods,
            spans: vec![0..0; stations],
            integration,
        })
    }

    /// Length of a dump in seconds.
    pub fn dump_seconds(&self) -> f64 {
        self.integration / self.periods.count as f64
    }

    /// Where what is found goes.
    pub fn series(&self) -> Series {
        let dumps = (self.range.end - self.range.start).clamp(0, LONG) as usize;
        Series::new(&self.setup, dumps, self.dump_seconds())
    }

    /// When the integration of a period begins, in seconds since the beginning of the grid.
    pub fn begins(&self, period: i64) -> f64 {
        period.div_euclid(self.periods.count) as f64 * self.integration
    }

    /// The parts that are correlated.
    pub fn correlated(&self) -> Range<i64> {
        self.periods.first_part(self.range.start)..self.periods.first_part(self.range.end)
    }
}

/// The time in which at least two have data.
fn common(spans: &[Range<i64>]) -> Option<Range<i64>> {
    let mut starts: Vec<i64> = spans.iter().map(|span| span.start).collect();
    let mut ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let common = *starts.get(1)?..*ends.get(ends.len().checked_sub(2)?)?;
    (!common.is_empty()).then_some(common)
}

impl Correlation {
    /// What came of streams.
    fn of_streams(
        job: &Job,
        series: Series,
        names: Vec<String>,
        counts: Vec<Counts>,
        shapes: &[Shape],
        dumps: Range<i64>,
    ) -> Correlation {
        let correlated = job.periods.first_part(dumps.start)..job.periods.first_part(dumps.end);
        Correlation {
            setup: Arc::clone(&job.setup),
            series,
            visibilities: None,
            interrupted: interrupt().load(Ordering::Relaxed),
            counts,
            sheds: vec![None; names.len()],
            threads: shapes.iter().map(|shape| shape.threads.len()).collect(),
            spans: vec![correlated.clone(); names.len()],
            correlated,
            integration: job.integration,
            names,
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
    pub fn fringes(&self, options: &CorrelateOptions) -> Vec<BaselineResult> {
        let window = window(options);
        let found: Vec<Found> = (0..self.setup.products().len())
            .map(|index| self.find(index, &window))
            .collect();
        baselines(&self.setup, &self.names, &found)
    }

    /// Parts that were correlated.
    pub fn parts(&self) -> i64 {
        self.correlated.end - self.correlated.start
    }

    fn result(&self, args: &CorrelateArgs) -> Result<CorrelateResult> {
        let window = window(&args.options);
        let setup = &self.setup;
        let rate = setup.part_rate() as f64;
        let start = setup.first_part(0) + self.correlated.start;
        let found: Vec<Found> = (0..setup.products().len())
            .map(|index| self.find(index, &window))
            .collect();
        let searched = found
            .first()
            .map_or((0.0, 0.0), |found| found.fringe.window);
        Ok(CorrelateResult {
            schema: "evlbi.correlate/1",
            stations: self.stations(&args.files),
            start: utc(setup.epoch() as f64 + start as f64 / rate),
            seconds: (self.correlated.end - self.correlated.start) as f64 / rate,
            channels: setup.channels(),
            channel_width_hz: setup.channel_width(),
            integration_s: self.integration,
            rotation: setup.rotation(),
            window: SearchWindow {
                delay_s: searched.0,
                rate_hz: searched.1,
            },
            baselines: baselines(setup, &self.names, &found),
            autos: self.autos(),
            streams: Vec::new(),
            visibilities: self.visibilities.clone(),
            interrupted: self.interrupted,
        })
    }

    /// The share of its frames that a station lost by tampering.
    pub fn shed(&self, station: usize) -> Option<f64> {
        self.sheds.get(station).copied().flatten()
    }

    /// The first block that was correlated.
    pub fn first_block(&self) -> i64 {
        self.correlated.start / self.setup.block_parts()
    }

    /// A product at a delay and rate that are known.
    pub fn find_at(&self, index: usize, known: &Fringe) -> Found {
        let product = self.setup.products()[index];
        self.series
            .find_at(index, self.span(product.a, product.b), known)
    }

    /// Finds the fringe of a product.
    pub fn find(&self, index: usize, window: &Window) -> Found {
        let product = self.setup.products()[index];
        self.series
            .find(index, self.span(product.a, product.b), window)
    }

    fn stations(&self, files: &[String]) -> Vec<StationResult> {
        let stations = self.setup.stations().iter().zip(files);
        let read = self.counts.iter().zip(&self.threads);
        stations
            .zip(read)
            .map(|((station, file), (counts, threads))| StationResult {
                name: station.name.clone(),
                source: file.clone(),
                sample_rate: station.layout.sample_rate(),
                bits: station.layout.codec.bits(),
                complex: station.layout.complex,
                threads: *threads,
                channels: station.layout.channels,
                frames: counts.frames,
                late: counts.late,
                duplicates: counts.duplicates,
                foreign: counts.foreign,
            })
            .collect()
    }

    fn frequency(&self, input: Input) -> Option<f64> {
        let band = self.setup.band(input);
        (band.zero_hz != 0.0).then_some(band.edge_hz)
    }

    fn autos(&self) -> Vec<AutoResult> {
        let inputs = self.setup.inputs();
        inputs
            .map(|input| {
                let parts = self.span(input, input).max(1) as f64;
                let station = &self.setup.stations()[input.station];
                let layout = &station.layout;
                let totals = self.series.input(input);
                let (per_sample, components) = if layout.complex {
                    (2.0, 2.0)
                } else {
                    (1.0, 1.0)
                };
                let samples = totals.good as f64 / per_sample;
                let nominal = samples * components * quantise::power(layout.codec);
                AutoResult {
                    station: station.name.clone(),
                    frequency_hz: self.frequency(input),
                    polarisation: self.setup.band(input).polarisation,
                    weight: totals.good as f64 / parts,
                    power: if nominal > 0.0 {
                        totals.energy / self.setup.channels() as f64 / nominal
                    } else {
                        0.0
                    },
                    lines_hz: self.lines(input, &totals.power),
                }
            })
            .collect()
    }

    /// The channels that are far above the median of all, and above their neighbours.
    fn lines(&self, input: Input, power: &[f64]) -> Vec<f64> {
        let mut sorted = power.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        let band = self.setup.band(input);
        let around = |channel: usize| {
            let from = channel.saturating_sub(1);
            power[from..(channel + 2).min(power.len())].iter().copied()
        };
        let peaks = power.iter().enumerate().filter(|(channel, power)| {
            **power > LINE * median && around(*channel).all(|other| other <= **power)
        });
        peaks
            .take(MOST_LINES)
            .map(|(channel, _)| {
                band.edge_hz - band.zero_hz + channel as f64 * self.setup.channel_width()
            })
            .collect()
    }
}

/// Puts the products of each pair together.
fn baselines(setup: &Setup, names: &[String], found: &[Found]) -> Vec<BaselineResult> {
    let mut baselines = Vec::new();
    for a in 0..names.len() {
        for b in a + 1..names.len() {
            let products = setup.products().iter().zip(found);
            let of_pair =
                products.filter(|(product, _)| (product.a.station, product.b.station) == (a, b));
            let bands: Vec<(BandResult, f64)> = of_pair
                .map(|(product, found)| {
                    let (x, y) = (setup.band(product.a), setup.band(product.b));
                    let band = BandResult {
                        frequency_hz: (x.zero_hz != 0.0).then_some(x.edge_hz),
                        polarisations: [x.polarisation, y.polarisation].iter().collect(),
                        found: found.clone(),
                        delay_s: found.fringe.delay_s,
                        rate_hz: found.fringe.rate_hz,
                        phase_rad: found.fringe.phase_rad,
                    };
                    (band, x.zero_hz)
                })
                .collect();
            if !bands.is_empty() {
                baselines.push(baseline([&names[a], &names[b]], bands));
            }
        }
    }
    baselines
}

fn baseline(stations: [&String; 2], all: Vec<(BandResult, f64)>) -> BaselineResult {
    // Different polarisations have little in common, and tell nothing of the baseline.
    let is_parallel = |(band, _): &&(BandResult, f64)| {
        let mut letters = band.polarisations.chars();
        letters.next() == letters.next()
    };
    let parallel = all.iter().any(|band| is_parallel(&band));
    let bands: Vec<&(BandResult, f64)> = all
        .iter()
        .filter(|band| !parallel || is_parallel(band))
        .collect();
    // Each band was searched for itself: noise has its highest peak in one of them.
    let trials = bands.len() as f64;
    let least = bands.iter().map(|(band, _)| band.found.fringe.false_alarm);
    let least = least.fold(1.0, f64::min);
    let false_alarm = -f64::exp_m1(trials * f64::ln_1p(-least));
    let has_fringe =
        |band: &&&(BandResult, f64)| trials * band.0.found.fringe.false_alarm < NO_FRINGE;
    let with_fringe: Vec<&(BandResult, f64)> = bands.iter().filter(has_fringe).copied().collect();
    let strongest = bands
        .iter()
        .copied()
        .max_by(|(a, _), (b, _)| a.found.snr.total_cmp(&b.found.snr));
    let bands = if with_fringe.is_empty() {
        strongest.into_iter().collect()
    } else {
        with_fringe
    };
    let mean = |weight: &dyn Fn(&Found) -> f64, value: &dyn Fn(&BandResult) -> f64| {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (band, _) in &bands {
            let weight = weight(&band.found);
            sum += weight * value(band);
            weights += weight;
        }
        if weights > 0.0 { sum / weights } else { 0.0 }
    };
    let by_weight = |value: &dyn Fn(&BandResult) -> f64| mean(&|found| found.weight, value);
    let by_snr = |value: &dyn Fn(&BandResult) -> f64| mean(&|found| found.snr * found.snr, value);
    let snr = bands
        .iter()
        .map(|(band, _)| band.found.snr.powi(2))
        .sum::<f64>();
    let snr = snr.sqrt();
    let weight = mean(&|_| 1.0, &|band| band.found.weight);
    // As if all bands had the strongest one's errors but for the signal-to-noise ratio.
    let error = |value: &dyn Fn(&Found) -> f64| {
        strongest.map_or(0.0, |(band, _)| {
            value(&band.found) * if snr > 0.0 { band.found.snr / snr } else { 1.0 }
        })
    };
    let reference = strongest.map_or(0.0, |(_, reference)| *reference);
    let rate_hz = by_snr(&|band| band.rate_hz);
    BaselineResult {
        stations: stations.map(Clone::clone),
        amplitude: Amplitude {
            all: by_weight(&|band| band.found.amplitude.all),
            autos: by_weight(&|band| band.found.amplitude.autos),
            valid: by_weight(&|band| band.found.amplitude.valid),
            corrected: by_weight(&|band| band.found.amplitude.corrected),
        },
        snr,
        weight,
        snr_loss: 1.0 - weight.clamp(0.0, 1.0).sqrt(),
        delay_s: by_snr(&|band| band.delay_s),
        delay_error_s: error(&|found| found.fringe.delay_error_s),
        rate: (reference != 0.0).then(|| rate_hz / reference),
        rate_hz,
        rate_error_hz: error(&|found| found.fringe.rate_error_hz),
        phase_rad: strongest.map_or(0.0, |(band, _)| band.phase_rad),
        phase_error_rad: strongest.map_or(0.0, |(band, _)| band.found.fringe.phase_error_rad),
        false_alarm,
        coherence: by_weight(&|band| band.found.coherence),
        bands: all.into_iter().map(|(band, _)| band).collect(),
    }
}

/// UTC seconds as date and time, to a tenth of a millisecond.
pub fn utc(seconds: f64) -> String {
    let tenths = (seconds * 1e4).round() as i128;
    jiff::Timestamp::from_nanosecond(tenths * 100_000)
        .map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

fn text(result: &CorrelateResult) -> String {
    let mut shown = format!(
        "{} for {}, {} channels of {:.3} kHz, integrations of {}, fringes stopped {}\n",
        result.start,
        show_seconds(result.seconds),
        result.channels,
        result.channel_width_hz / 1e3,
        show_seconds(result.integration_s),
        match result.rotation {
            Rotation::Samples => "sample by sample",
            Rotation::Blocks => "block by block",
        },
    );
    for station in &result.stations {
        let odd = station.late + station.duplicates + station.foreign;
        let other = if odd > 0 {
            format!(", {} others", show_count(odd))
        } else {
            String::new()
        };
        shown += &format!(
            "{:>12}  {} frames{other}\n",
            station.name,
            show_count(station.frames)
        );
    }
    shown += &format!(
        "fringes searched within {} and {:.3} Hz\n\n",
        show_seconds(result.window.delay_s),
        result.window.rate_hz
    );
    shown += &format!(
        "{:<14} {:>9} {:>9} {:>9} {:>9} {:>10} {:>8} {:>14} {:>12} {:>8}\n",
        "baseline",
        "all",
        "autos",
        "valid",
        "corrected",
        "SNR",
        "weight",
        "delay",
        "rate mHz",
        "phase"
    );
    for baseline in &result.baselines {
        let Amplitude {
            all,
            autos,
            valid,
            corrected,
        } = baseline.amplitude;
        shown += &format!(
            "{:<14} {all:>9.6} {autos:>9.6} {valid:>9.6} {corrected:>9.6} {:>10.1} {:>8.5} {:>14} {:>12.4} {:>6.1} deg{}\n",
            baseline.stations.join("-"),
            baseline.snr,
            baseline.weight,
            show_seconds(baseline.delay_s),
            baseline.rate_hz * 1e3,
            baseline.phase_rad.to_degrees(),
            if baseline.false_alarm > NO_FRINGE {
                "  no fringe"
            } else {
                ""
            }
        );
    }
    for baseline in &result.baselines {
        if baseline.coherence < LITTLE_LOST && baseline.false_alarm < NO_FRINGE {
            shown += &format!(
                "\n{}: the fringe lies so far off that amplitudes are low by a factor of {:.4}; put its delay and rate into the model",
                baseline.stations.join("-"),
                baseline.coherence
            );
        }
    }
    shown.trim_end().to_string()
}
