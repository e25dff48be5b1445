//! Derives the setup of the correlator from the options, the headers and a DiFX job.

mod bands;
mod choice;
mod names;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evlbi_fx::correlator::{Band, Product, Setup, SetupError, StationSetup};
use evlbi_fx::delay::{Delay, Moment, OutsideModel, Polynomial};
use evlbi_fx::difx::{self, DifxError, Model};
use evlbi_fx::layout::Layout;
use evlbi_fx::simd::Simd;
use evlbi_fx::sky::SkyPlan;
use evlbi_net::run::Run;
use evlbi_stream::channel_table::{ChannelTable, TableError};
use evlbi_stream::selection::ChannelId;
use evlbi_stream::source::{SourceError, parse_plan, read_plan};
use evlbi_wire::vdif::StationId;

pub use self::bands::place;
use self::bands::{bands, names_in, product, products};
use self::choice::{Candidate, Candidates};
use self::names::names;
pub use self::names::{check_given, twice};
use super::files::FileError;
use super::options::{CorrelateOptions, DelayTerms, Hertz, SideBand, is_sky};
use super::shape::Shape;

const DAY: i64 = 86_400;

/// A setup before the length of the run is known.
pub struct Plan {
    pub stations: Vec<StationSetup>,
    /// Index of each station among the shapes that it was made from.
    pub taken: Vec<usize>,
    /// Places of the inputs that cannot be correlated with the others, with the reasons.
    pub left_out: Vec<(usize, PlanError)>,
    pub products: Vec<Product>,
    pub channels: usize,
    /// UTC second from which samples are counted.
    pub epoch: i64,
    /// Seconds from the epoch to the start of the first possible period.
    pub start: i64,
    /// Length of a period in seconds.
    pub integration: f64,
    /// Number of channels averaged into one output channel.
    pub averaged: usize,
    pub difx: Option<DifxJob>,
    /// Vector instructions; `None` for the best of this CPU.
    pub simd: Option<Simd>,
}

/// Parts of a DiFX job that are copied to the output.
#[derive(Clone)]
pub struct DifxJob {
    pub model: Model,
    /// Frequency table; records refer to its indices.
    pub frequencies: Vec<difx::Frequency>,
    /// Indices of each station's bands in it.
    pub of_bands: Vec<Vec<usize>>,
}

/// Reasons why stations cannot be set up with the options or a DiFX job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A file of the job cannot be read.
    #[error("{0}")]
    File(#[from] FileError),
    /// A file of the job is damaged.
    #[error("in {}", path.display())]
    Difx {
        /// Path of the file.
        path: PathBuf,
        /// The damage.
        source: DifxError,
    },
    /// The plan of the simulated sky cannot be read.
    #[error("{0}")]
    Sky(#[from] SourceError),
    /// There are more delays than stations.
    #[error("{delays} delays for {recordings} recordings: give at most one per recording")]
    TooManyDelays {
        /// Number of delays in the options.
        delays: usize,
        /// Number of recordings.
        recordings: usize,
    },
    /// A delay changes with time, and the LO frequency is unknown.
    #[error("a delay that changes with time needs the sky frequency, which is unknown")]
    NoFrequency,
    /// There are several LO frequencies, but not one for each band.
    #[error("{0} frequencies for more bands: give one, or one per band")]
    TooFewFrequencies(usize),
    /// There is one LO frequency for channels of both sidebands.
    #[error(
        "station {0} has channels of both sidebands: give one frequency per channel, or a channel table"
    )]
    BothSidebands(String),
    /// The bands of a station do not fill the blocks of polarisations.
    #[error(
        "polarisations {polarisations} need a multiple of {needed} bands, and station {station} has {bands}"
    )]
    Polarisations {
        /// The polarisations.
        polarisations: String,
        /// Bands of all blocks.
        needed: usize,
        /// Name of the station.
        station: String,
        /// Its bands: threads times channels.
        bands: usize,
    },
    /// The channel table cannot be used.
    #[error("{0}")]
    Table(#[from] TableError),
    /// The channel table has no row for a channel.
    #[error(
        "the channel table has no row for thread {thread}, channel {channel} of station {station}"
    )]
    NoRow {
        /// Name of the station.
        station: String,
        /// Thread.
        thread: u16,
        /// Channel.
        channel: ChannelId,
    },
    /// Two inputs are given the same name.
    #[error("two stations are named {0}: give them different names")]
    SameName(String),
    /// The options invert an unknown station.
    #[error("unknown station {station} to invert: the stations are {}", stations.join(", "))]
    UnknownInverted {
        /// The unknown station.
        station: String,
        /// The known stations.
        stations: Vec<String>,
    },
    /// A flag names an unknown station.
    #[error("unknown station {station} in a flag: the stations are {}", stations.join(", "))]
    UnknownStation {
        /// The unknown station.
        station: String,
        /// The known stations.
        stations: Vec<String>,
    },
    /// No other station recorded a band of the same frequency and polarisation.
    #[error(
        "no other station has a band of {station} ({})",
        bands.join(", ")
    )]
    NoCommonBand {
        /// Name of the station.
        station: String,
        /// Its bands.
        bands: Vec<String>,
    },
    /// No two recordings have data at the same time.
    #[error("no two recordings overlap in time: {}", .0.join("; "))]
    NoOverlap(Vec<String>),
    /// The recordings do not fit each other, the job or the options; the text is the reason.
    #[error("{0}")]
    Unfit(String),
    /// The correlator rejects the setup.
    #[error("{0}")]
    Setup(#[from] SetupError),
    /// The delay model does not cover a station's time.
    #[error("station {station}")]
    OutsideModel {
        /// Name of the station.
        station: String,
        /// The time, and the time of the model.
        source: OutsideModel,
    },
}

impl PlanError {
    /// Returns an error that a station's samples are outside its delay model.
    pub(super) fn outside(station: &str) -> impl FnOnce(OutsideModel) -> PlanError {
        let station = station.to_owned();
        move |source| PlanError::OutsideModel { station, source }
    }
}

/// Format of an input, with its place among all inputs: one that cannot be read has none.
pub type Placed<'a> = (usize, &'a Shape);

/// Sets stations up from a model if there is one, else from the options. Of all inputs `files`, those with a shape are stations.
pub fn plan(
    files: &[String],
    shapes: &[Placed<'_>],
    options: &CorrelateOptions,
    run: &Run,
) -> Result<Plan, PlanError> {
    let (delays, recordings) = (options.delay.len(), files.len());
    if delays > recordings {
        return Err(PlanError::TooManyDelays { delays, recordings });
    }
    let mut plan = match &options.model {
        Some(sky) if is_sky(sky) => by_sky(files, shapes, sky, options)?,
        Some(model) => by_model(files, shapes, model, options, run)?,
        None => by_options(files, shapes, options)?,
    };
    for station in &mut plan.stations {
        station.inverted ^= options.invert.contains(&station.name);
    }
    Ok(plan)
}

/// Sets stations up from the options. A station's bands are the channels of its threads, in order.
fn by_options(
    files: &[String],
    shapes: &[Placed<'_>],
    options: &CorrelateOptions,
) -> Result<Plan, PlanError> {
    let first = first_second(shapes);
    let has_rate = |terms: &DelayTerms| terms.0.iter().skip(1).any(|term| *term != 0.0);
    let table = options.channel_table.as_deref();
    let table = table.map(|path| match options.texts.get(path) {
        Some(text) => ChannelTable::parse(text, path),
        None => ChannelTable::read(path),
    });
    let table = table.transpose()?;
    let has_frequencies = table.is_some() || !options.freq.is_empty();
    if !has_frequencies && options.delay.iter().any(has_rate) {
        return Err(PlanError::NoFrequency);
    }
    let mut stations = Candidates::default();
    for (index, ((place, shape), name)) in shapes.iter().zip(names(files, shapes)?).enumerate() {
        let bands = match bands(shape, &name, options, table.as_ref()) {
            Ok(bands) => bands,
            Err(error) => {
                stations.left_out.push((*place, error));
                continue;
            }
        };
        let mut delay = Delay::default();
        delay.add(given_delay(*place, first, options));
        stations.found.push(Candidate {
            index,
            setup: StationSetup {
                bands,
                name,
                layout: *shape.layout(),
                delay,
                inverted: shape.selection.inverted,
            },
            stream: 0,
            frequencies: Vec::new(),
            names: names_in(shape),
            is_chosen: !shape.selection.channels.is_empty(),
        });
    }
    let products = stations.choose(shapes, |stations| products(stations, options.cross_hands))?;
    if products.is_empty() {
        let why = "the recordings have no frequency and polarisation in common";
        return Err(PlanError::Unfit(why.into()));
    }
    Ok(Plan {
        taken: stations.found.iter().map(|it| it.index).collect(),
        left_out: stations.left_out,
        stations: stations.found.into_iter().map(|it| it.setup).collect(),
        products,
        channels: options.channels.unwrap_or(1024),
        epoch: first - first.rem_euclid(DAY),
        start: 0,
        integration: options.integration.map_or(1.0, |time| time.as_secs_f64()),
        averaged: 1,
        difx: None,
        simd: options.simd,
    })
}

/// Returns the UTC second of the first frame of the first station.
pub fn first_second(shapes: &[Placed<'_>]) -> i64 {
    shapes.first().map_or(0, |(_, shape)| shape.first_second)
}

/// Returns the delay in the options of the input at a place, from the UTC second `first`.
fn given_delay(place: usize, first: i64, options: &CorrelateOptions) -> Polynomial {
    let terms = options.delay.get(place);
    Polynomial {
        start: Moment::at(first),
        coefficients: terms.map_or_else(Vec::new, |DelayTerms(terms)| terms.clone()),
    }
}

/// Sets stations up as the plan of a simulated sky says, in which they are found by their codes.
fn by_sky(
    files: &[String],
    shapes: &[Placed<'_>],
    path: &Path,
    options: &CorrelateOptions,
) -> Result<Plan, PlanError> {
    let sky = sky_of(path, options)?;
    let options = CorrelateOptions {
        freq: vec![Hertz(sky.sky_frequency)],
        sideband: Some(SideBand::Upper),
        channel_table: None,
        ..options.clone()
    };
    let mut plan = by_options(files, shapes, &options)?;
    for (index, station) in plan.taken.iter().zip(&mut plan.stations) {
        let (place, shape) = shapes[*index];
        let has_code = shape.station != StationId::default();
        let name = match &shape.selection.name {
            None if has_code => shape.station.to_string(),
            _ => station.name.clone(),
        };
        let known = sky.stations.iter().find(|known| known.name == name);
        // A stream that has not begun has no code yet, and formats without codes have none.
        let by_place = || sky.stations.get(place).filter(|_| !has_code);
        let known = known.or_else(by_place).ok_or_else(|| {
            let path = path.display();
            PlanError::Unfit(format!("{path} has no station {name}"))
        })?;
        for terms in [&known.delay, &known.clock] {
            station.delay.add(Polynomial {
                start: Moment::at(sky.start),
                coefficients: terms.clone(),
            });
        }
    }
    Ok(plan)
}

/// Sets stations up from a DiFX job; the files are its stations, in order.
fn by_model(
    files: &[String],
    shapes: &[Placed<'_>],
    path: &Path,
    options: &CorrelateOptions,
    run: &Run,
) -> Result<Plan, PlanError> {
    let model = Model::parse(&options.text(path)?).map_err(|source| PlanError::Difx {
        path: path.to_owned(),
        source,
    })?;
    let (beside, job) = read_input(path, options)?;
    if files.len() > job.telescopes.len() {
        return Err(PlanError::Unfit(format!(
            "{} recordings were given, and the job of {} has {} stations",
            files.len(),
            beside.display(),
            job.telescopes.len()
        )));
    }
    let first = first_second(shapes);
    let mut stations = Candidates::default();
    for (index, (place, shape)) in shapes.iter().enumerate() {
        let telescope = &job.telescopes[*place];
        let name = &telescope.name;
        let of_station = |stream: &difx::Datastream| stream.telescope == *place;
        let number = job.datastreams.iter().position(of_station);
        let number = number.ok_or_else(|| {
            let beside = beside.display();
            PlanError::Unfit(format!("{beside} has no recording of station {name}"))
        })?;
        let stream = &job.datastreams[number];
        let in_model = model.telescopes.iter().position(|other| other == name);
        let in_model = in_model.ok_or_else(|| {
            let path = path.display();
            PlanError::Unfit(format!("{path} has no station {name}"))
        })?;
        let mut delay = model.delay(in_model);
        delay.add(telescope.clock.clone());
        delay.add(given_delay(*place, first, options));
        let bands = match recorded_bands(shape, stream, &job) {
            Ok(bands) => bands,
            Err(why) => {
                let why = format!("station {name} in {}: {why}", beside.display());
                stations.left_out.push((*place, PlanError::Unfit(why)));
                continue;
            }
        };
        stations.found.push(Candidate {
            index,
            setup: StationSetup {
                name: name.clone(),
                layout: *shape.layout(),
                delay,
                inverted: shape.selection.inverted,
                bands,
            },
            stream: number,
            frequencies: stream.bands.iter().map(|band| band.frequency).collect(),
            names: names_in(shape),
            is_chosen: !shape.selection.channels.is_empty(),
        });
    }
    let products = stations.choose(shapes, |stations| products_of_job(&job, stations).0)?;
    let (_, zoomed) = products_of_job(&job, &stations.found);
    if products.is_empty() {
        return Err(PlanError::Unfit(format!(
            "{} has no products of recorded bands of these stations{}",
            beside.display(),
            if zoomed > 0 { ", only zoom bands" } else { "" }
        )));
    }
    if zoomed > 0 {
        run.say(format_args!(
            "{zoomed} products of zoom bands are skipped; the recorded bands are correlated whole"
        ));
    }
    let first = products[0].a;
    let frequency = job
        .frequencies
        .get(stations.found[first.station].frequencies[first.band])
        .ok_or_else(|| PlanError::Unfit("the job has no frequencies".into()))?;
    let epoch = job.start.second - job.start.second.rem_euclid(DAY);
    let integration = options.integration;
    let averaged = options.channels.map_or(frequency.averaged, |_| 1);
    let of_bands = stations.found.iter().map(|it| it.frequencies.clone());
    let of_bands = of_bands.collect();
    Ok(Plan {
        taken: stations.found.iter().map(|it| it.index).collect(),
        left_out: stations.left_out,
        stations: stations.found.into_iter().map(|it| it.setup).collect(),
        products,
        channels: options.channels.unwrap_or(frequency.channels),
        epoch,
        start: job.start.plus(0.5).since(Moment::at(epoch)).floor() as i64,
        integration: integration.map_or(job.integration, |time| time.as_secs_f64()),
        averaged,
        difx: Some(DifxJob {
            model,
            frequencies: job.frequencies,
            of_bands,
        }),
        simd: options.simd,
    })
}

/// Returns the products of the stations in a job, and the number of those of zoom bands.
fn products_of_job(job: &difx::Input, stations: &[Candidate]) -> (Vec<Product>, usize) {
    let (mut products, mut zoomed) = (Vec::new(), 0);
    for (a, first) in stations.iter().enumerate() {
        for (b, second) in stations.iter().enumerate().skip(a + 1) {
            let pair = (first.stream, second.stream);
            let of_pair = |baseline: &&difx::JobBaseline| (baseline.a, baseline.b) == pair;
            let baseline = job.baselines.iter().find(of_pair);
            for (x, y) in baseline.iter().flat_map(|baseline| &baseline.products) {
                if *x < first.setup.bands.len() && *y < second.setup.bands.len() {
                    products.push(product((a, *x), (b, *y)));
                } else {
                    zoomed += 1;
                }
            }
        }
    }
    (products, zoomed)
}

/// Returns the sample rate of the recordings if the options or a model give it.
pub fn given_rate(options: &CorrelateOptions) -> Result<Option<u64>, PlanError> {
    match (&options.sample_rate, &options.model) {
        (Some(rate), _) => Ok(Some(rate.0.round() as u64)),
        (None, Some(model)) => sample_rate(model, options),
        (None, None) => Ok(None),
    }
}

/// Returns the sample rate of a model's first recording.
fn sample_rate(model: &Path, options: &CorrelateOptions) -> Result<Option<u64>, PlanError> {
    if is_sky(model) {
        return Ok(Some(sky_of(model, options)?.sample_rate as u64));
    }
    // If both are missing, the error names the file that the user named.
    options.text(model)?;
    let (_, job) = read_input(model, options)?;
    let stream = job.datastreams.first();
    let rate = stream.and_then(|stream| {
        let band = stream.bands.first()?;
        let width = job.frequencies.get(band.frequency)?.bandwidth_hz;
        Some(width * if stream.is_complex { 1.0 } else { 2.0 })
    });
    Ok(rate.map(|rate| rate.round() as u64))
}

/// Reads the plan of a simulated sky.
fn sky_of(path: &Path, options: &CorrelateOptions) -> Result<SkyPlan, SourceError> {
    match options.texts.get(path) {
        Some(text) => parse_plan(text, path),
        None => read_plan(path),
    }
}

/// Reads the `.input` next to a model.
fn read_input(
    model: &Path,
    options: &CorrelateOptions,
) -> Result<(PathBuf, difx::Input), PlanError> {
    let path = model.with_extension("input");
    match difx::Input::parse(&options.text(&path)?) {
        Ok(job) => Ok((path, job)),
        Err(source) => Err(PlanError::Difx { path, source }),
    }
}

/// Returns the number of parts in a sample.
pub fn sample_parts(layout: &Layout) -> i64 {
    if layout.complex { 2 } else { 1 }
}

/// Returns the bandwidth of a channel, in Hz.
fn bandwidth(layout: &Layout) -> f64 {
    (layout.sample_rate() * sample_parts(layout)) as f64 / 2.0
}

fn recorded_bands(
    shape: &Shape,
    stream: &difx::Datastream,
    job: &difx::Input,
) -> Result<Vec<Band>, String> {
    let layout = shape.layout();
    let (named, there) = (stream.bands.len(), shape.places().len());
    if named > there {
        return Err(format!(
            "the job has {named} bands, but the recording has {there}"
        ));
    }
    if (stream.bits, stream.is_complex) != (layout.codec.bits(), layout.complex) {
        return Err(format!(
            "the job has samples of {} bits{}, but the recording has {} bits{}",
            stream.bits,
            if stream.is_complex { ", complex" } else { "" },
            layout.codec.bits(),
            if layout.complex { ", complex" } else { "" },
        ));
    }
    let width = bandwidth(layout);
    let bands = stream.bands.iter().zip(shape.places());
    let bands = bands.map(|(band, (lane, channel))| {
        let of = job.frequencies.get(band.frequency);
        let of = of.ok_or_else(|| format!("there is no frequency {}", band.frequency))?;
        if (of.bandwidth_hz - width).abs() > 0.5 {
            return Err(format!(
                "the job has a bandwidth of {} Hz, but the recording has {width} Hz",
                of.bandwidth_hz
            ));
        }
        Ok(Band {
            lane,
            channel,
            zero_hz: of.zero_hz,
            edge_hz: of.edge_hz(),
            polarisation: band.polarisation,
        })
    });
    bands.collect()
}

/// Returns the names of the stations, in order.
pub fn station_names(setup: &Setup) -> Vec<String> {
    let stations = setup.stations().iter();
    stations.map(|station| station.name.clone()).collect()
}

/// Checks that the options invert and flag only these stations. If they are not all, since inputs were left out, warns of others.
pub fn check_names(
    options: &CorrelateOptions,
    stations: &[String],
    are_all: bool,
    run: &Run,
) -> Result<(), PlanError> {
    let unknown = |name: &&String| !stations.contains(name);
    let inverted = options.invert.iter().filter(unknown);
    let inverted = inverted.map(|station| PlanError::UnknownInverted {
        station: station.clone(),
        stations: stations.to_vec(),
    });
    let flagged = options.flag.iter().map(|flag| &flag.station);
    let flagged = flagged.filter(unknown);
    let flagged = flagged.map(|station| PlanError::UnknownStation {
        station: station.clone(),
        stations: stations.to_vec(),
    });
    for error in inverted.chain(flagged) {
        if are_all {
            return Err(error);
        }
        run.warn(format_args!("{}", run.explain(&error)));
    }
    Ok(())
}

impl Plan {
    /// Counts samples from another UTC second.
    pub fn count_from(&mut self, epoch: i64) {
        self.start += self.epoch - epoch;
        self.epoch = epoch;
    }

    /// Returns the number of parts per second.
    pub fn part_rate(&self) -> i64 {
        self.stations.first().map_or(0, |station| {
            station.layout.sample_rate() * sample_parts(&station.layout)
        })
    }

    /// Returns the parts since the plan's start in which a station's samples passed the reference.
    ///
    /// # Errors
    /// Returns an error if the delay model does not cover them.
    pub fn span(&self, station: usize, samples: &Range<i64>) -> Result<Range<i64>, PlanError> {
        let station = &self.stations[station];
        let part = |sample: i64| -> Result<i64, PlanError> {
            let seconds = sample as f64 / station.layout.sample_rate() as f64;
            let late = station.delay.about(Moment::at(self.epoch).plus(seconds));
            let (late, _) = late.map_err(PlanError::outside(&station.name))?;
            let since = seconds - late - self.start as f64;
            Ok((since * self.part_rate() as f64).round() as i64)
        };
        Ok(part(samples.start)?..part(samples.end)?)
    }

    /// Returns the number of parts per integration.
    pub fn parts(&self) -> i64 {
        (self.integration * self.part_rate() as f64).round() as i64
    }

    /// Returns the setup of a run over this span, in seconds after the plan's start.
    pub fn setup(&self, span: (f64, f64)) -> Result<Arc<Setup>, PlanError> {
        let setup = Setup::new(
            self.stations.clone(),
            self.products.clone(),
            self.channels,
            self.epoch,
            self.start * self.part_rate(),
            span,
        )?;
        let setup = match self.simd {
            Some(simd) => setup.with_simd(simd)?,
            None => setup,
        };
        Ok(Arc::new(setup))
    }
}
