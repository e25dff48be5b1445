//! Reads and writes directories of visibilities: SWIN files as DiFX writes them, and a description of their content.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::num::TryFromIntError;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evlbi_fx::correlator::{Input, Setup, Sums};
use evlbi_fx::difx::{self, swin};
use evlbi_net::file::{OutputError, check_new, replace_json};
use rustfft::num_complex::{Complex32, Complex64};
use serde::{Deserialize, Serialize};

use super::files::{FileError, make_directory, read_text};
use super::job::Job;
use super::plan::{DifxJob, place, station_names};

/// Description of a directory of visibilities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Description {
    /// Name and version of this format.
    pub schema: String,
    /// Names of the stations, in the order of their numbers in the records.
    pub stations: Vec<String>,
    /// Frequencies, in the order of their indices in the records.
    pub frequencies: Vec<FrequencyDescription>,
    /// Length of an integration, in seconds.
    pub integration_s: f64,
}

/// A frequency of the description.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrequencyDescription {
    /// Sky frequency of the zero frequency of the samples, to which phases and rates refer; 0 if unknown.
    pub reference_hz: f64,
    /// Frequency of the first channel above that.
    pub first_channel_hz: f64,
    /// Spacing of the channels.
    pub channel_width_hz: f64,
    /// Number of channels.
    pub channels: usize,
    /// Number of the band if its frequency is unknown; else 0.
    #[serde(default)]
    pub band: usize,
}

/// File name of the description in the directory.
const DESCRIPTION: &str = "visibilities.json";
const SCHEMA: &str = "evlbi.visibilities/1";
const MAX_CHANNELS: usize = 1 << 20;

/// Reasons why visibilities cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VisibilityError {
    /// A file or directory of visibilities cannot be used.
    #[error("{0}")]
    File(#[from] FileError),
    /// Visibilities already exist, or the description cannot be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The description is damaged.
    #[error("in {}", path.display())]
    Description {
        /// Path of the description.
        path: PathBuf,
        /// The damage.
        source: serde_json::Error,
    },
    /// A record is damaged.
    #[error("in {}", path.display())]
    Record {
        /// Path of the file of records.
        path: PathBuf,
        /// The damage.
        source: swin::SwinError,
    },
    /// Nothing describes the visibilities: neither this program nor DiFX wrote them.
    #[error(
        "no visibilities in {}: it has no {DESCRIPTION}, as this program writes, and no DiFX job {} is next to it",
        directory.display(),
        job.display()
    )]
    NoDescription {
        /// The directory.
        directory: PathBuf,
        /// The `.input` that would describe it.
        job: PathBuf,
    },
    /// The `.input` of a DiFX job is damaged.
    #[error("in {}", path.display())]
    Job {
        /// The `.input`.
        path: PathBuf,
        /// The first wrong or missing line.
        source: difx::DifxError,
    },
    /// Files of visibilities are of several phase centres or pulsar bins.
    #[error(
        "{} holds several phase centres or pulsar bins, e.g. {} and {}",
        directory.display(),
        names[0],
        names[1]
    )]
    SeveralCentres {
        /// The directory.
        directory: PathBuf,
        /// Names of a file of one and of a file of another.
        names: [String; 2],
    },
    /// The description is of other visibilities, or these cannot be written; the text is the reason.
    #[error("{0}")]
    Unfit(String),
    /// Records cannot distinguish two bands of a station.
    #[error(
        "bands {} and {} of station {station} have the same frequency and polarisation ({polarisation}), so visibility files cannot distinguish them",
        bands[0],
        bands[1]
    )]
    AlikeBands {
        /// The bands, from 1.
        bands: [usize; 2],
        /// Name of the station.
        station: String,
        /// Polarisation of both.
        polarisation: char,
    },
    /// A number does not fit its field of a record.
    #[error("{0}")]
    Number(#[from] TryFromIntError),
}

impl Description {
    /// Reads the description of `directory`.
    pub fn read(directory: &Path) -> Result<Description, VisibilityError> {
        let path = directory.join(DESCRIPTION);
        let text = read_text(&path)?;
        let description: Description = match serde_json::from_str(&text) {
            Ok(description) => description,
            Err(source) => return Err(VisibilityError::Description { path, source }),
        };
        let shown = path.display();
        let schema = &description.schema;
        if schema != SCHEMA {
            let why = format!("{shown} has schema {schema}, this program reads {SCHEMA}");
            return Err(VisibilityError::Unfit(why));
        }
        description.check(&path)
    }

    /// Refuses lengths and widths that nothing has.
    fn check(self, path: &Path) -> Result<Description, VisibilityError> {
        let sound = |frequency: &FrequencyDescription| {
            (1..=MAX_CHANNELS).contains(&frequency.channels)
                && frequency.channel_width_hz > 0.0
                && frequency.channel_width_hz.is_finite()
        };
        let (shown, integration) = (path.display(), self.integration_s);
        if !self.frequencies.iter().all(sound) || !(1e-9..1e9).contains(&integration) {
            let why = format!(
                "invalid description of visibilities {shown}: a length or a width is wrong"
            );
            return Err(VisibilityError::Unfit(why));
        }
        Ok(self)
    }

    /// Returns the description of `directory`: that of this program, or the `.input` of a DiFX job, e.g. `sim_1.input` next to `sim_1.difx`.
    pub fn find(directory: &Path) -> Result<Description, VisibilityError> {
        if directory.join(DESCRIPTION).exists() {
            return Description::read(directory);
        }
        let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let job = whole.with_extension("input");
        if !job.exists() {
            let directory = directory.to_owned();
            return Err(VisibilityError::NoDescription { directory, job });
        }
        match difx::Output::parse(&read_text(&job)?) {
            Ok(output) => Description::of_job(output).check(&job),
            Err(source) => Err(VisibilityError::Job { path: job, source }),
        }
    }

    fn of_job(output: difx::Output) -> Description {
        let described = |frequency: &difx::Frequency| {
            let (zero, edge) = (frequency.zero_hz, frequency.edge_hz());
            let width = frequency.bandwidth_hz / frequency.channels as f64;
            let channels = (frequency.channels, frequency.averaged);
            FrequencyDescription::new(zero, edge, width, channels)
        };
        Description {
            schema: SCHEMA.into(),
            stations: output.stations,
            frequencies: output.frequencies.iter().map(described).collect(),
            integration_s: output.integration,
        }
    }

    /// Reads all records of `directory`, file after file, or those of `only` one file.
    pub fn records(
        &self,
        directory: &Path,
        only: Option<&Path>,
    ) -> Result<Vec<swin::Record>, VisibilityError> {
        let channels: Vec<usize> = self.frequencies.iter().map(|f| f.channels).collect();
        let mut records = Vec::new();
        let files = match only {
            Some(file) => vec![file.to_owned()],
            None => swin_files(directory)?,
        };
        for path in files {
            let file = File::open(&path).map_err(FileError::at("cannot open", &path))?;
            for record in swin::Reader::new(BufReader::new(file), channels.clone()) {
                records.push(record.map_err(|source| VisibilityError::Record {
                    path: path.clone(),
                    source,
                })?);
            }
        }
        Ok(records)
    }
}

impl FrequencyDescription {
    /// A frequency of `channels` from `edge_hz` on, each `averaged` of them averaged to one.
    fn new(
        zero_hz: f64,
        edge_hz: f64,
        width_hz: f64,
        (channels, averaged): (usize, usize),
    ) -> FrequencyDescription {
        FrequencyDescription {
            reference_hz: zero_hz,
            // An averaged channel is centred on its channels.
            first_channel_hz: edge_hz - zero_hz + (averaged - 1) as f64 / 2.0 * width_hz,
            channel_width_hz: width_hz * averaged as f64,
            channels: channels / averaged,
            band: 0,
        }
    }
}

/// Returns whether a file has the name of visibilities.
pub fn is_swin(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("DIFX_"))
}

/// The files of visibilities of a directory, which must be of one phase centre and pulsar bin.
fn swin_files(directory: &Path) -> Result<Vec<PathBuf>, VisibilityError> {
    let entries = std::fs::read_dir(directory);
    let entries = entries.map_err(FileError::at("cannot read", directory))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_swin(name.as_ref())).collect();
    names.sort();
    // What follows the date: `s0000.b0000`.
    let centre = |name: &String| name.split('.').skip(1).take(2).collect::<String>();
    if let [first, rest @ ..] = names.as_slice()
        && let Some(other) = rest.iter().find(|name| centre(name) != centre(first))
    {
        return Err(VisibilityError::SeveralCentres {
            directory: directory.to_owned(),
            names: [first.clone(), other.clone()],
        });
    }
    Ok(names.iter().map(|name| directory.join(name)).collect())
}

/// Writer of a run's visibilities.
pub struct VisibilityWriter {
    setup: Arc<Setup>,
    difx: Option<DifxJob>,
    directory: PathBuf,
    path: PathBuf,
    file: BufWriter<File>,
    description: Description,
    /// Index of the frequency of each input.
    frequencies: Vec<usize>,
    /// Number of channels averaged into one.
    averaged: usize,
    /// Sums of the current integration.
    sums: Sums,
    /// Start of the current integration, in seconds since the start of the grid.
    begins: Option<f64>,
    /// Whether the description was written.
    is_described: bool,
}

impl VisibilityWriter {
    /// Creates the directory and the file.
    pub fn create(
        directory: &Path,
        job: &Job,
        force: bool,
    ) -> Result<VisibilityWriter, VisibilityError> {
        let Job { plan, setup, .. } = job;
        let (frequencies, table) = frequencies(setup, plan.averaged, plan.difx.as_ref())?;
        check_distinct(setup, &frequencies)?;
        make_directory(directory)?;
        let first = job.begins(job.range.start);
        let start = setup.middle(0).plus(first - setup.block_seconds() / 2.0);
        // Add a microsecond so that rounding does not give the second before.
        let (mjd, second) = difx::mjd(start.plus(1e-6));
        let mut name = swin::file_name(mjd, second as i64);
        let micros = (second.fract() * 1e6 - 1.0).round();
        if micros > 0.0 {
            // DiFX jobs begin at a whole second; parts of a run need not.
            name += &format!(".us{micros:06.0}");
        }
        let path = directory.join(&name);
        check_new([path.as_path()], force)?;
        let file = File::create(&path).map_err(FileError::at("cannot write", &path))?;
        Ok(VisibilityWriter {
            is_described: false,
            sums: Sums::new(setup),
            setup: Arc::clone(setup),
            difx: plan.difx.clone(),
            directory: directory.to_path_buf(),
            path,
            file: BufWriter::new(file),
            description: Description {
                schema: SCHEMA.into(),
                stations: station_names(setup),
                frequencies: table,
                integration_s: plan.integration,
            },
            frequencies,
            averaged: plan.averaged,
            begins: None,
        })
    }

    /// Adds a dump of the integration that begins this many seconds after the start of the grid.
    pub fn add(&mut self, begins: f64, sums: &Sums) -> Result<(), VisibilityError> {
        let half = self.description.integration_s / 2.0;
        if self.begins.is_some_and(|now| begins > now + half) {
            self.flush()?;
        }
        self.begins.get_or_insert(begins);
        self.sums.add(sums);
        Ok(())
    }

    /// Writes the rest; returns the path of the visibilities.
    pub fn finish(mut self) -> Result<PathBuf, VisibilityError> {
        self.flush()?;
        self.describe()?;
        Ok(self.path)
    }

    /// Removes the file, which is empty.
    pub fn abandon(self) {
        let _ = std::fs::remove_file(self.path);
    }

    /// Writes the description that readers need.
    fn describe(&mut self) -> Result<(), VisibilityError> {
        if std::mem::replace(&mut self.is_described, true) {
            return Ok(());
        }
        let description = self.directory.join(DESCRIPTION);
        // Separately correlated parts of a run share a directory.
        if let Ok(other) = Description::read(&self.directory)
            && other != self.description
        {
            return Err(VisibilityError::Unfit(format!(
                "{} describes visibilities of other stations, frequencies or integrations: give each run its own directory",
                description.display()
            )));
        }
        Ok(replace_json(&description, &self.description)?)
    }

    /// Writes the current integration, which can be read from then on.
    fn flush(&mut self) -> Result<(), VisibilityError> {
        let Some(begins) = self.begins.take() else {
            return Ok(());
        };
        let sums = std::mem::replace(&mut self.sums, Sums::new(&self.setup));
        let (setup, integration) = (&self.setup, self.description.integration_s);
        let middle = begins + integration / 2.0 - setup.block_seconds() / 2.0;
        let middle = setup.middle(0).plus(middle);
        let (mjd, seconds) = difx::mjd(middle);
        // A block belongs to the integration in which it begins, so an integration can contain more blocks than fit.
        let parts = integration * setup.part_rate() as f64;
        let parts = parts.max(sums.blocks as f64 * setup.block_parts() as f64);
        let channels = setup.channels() as f64;
        let record = |a: Input, b: Input, good: u64, channels: Vec<Complex32>| {
            let number = |input: Input| u8::try_from(input.station + 1);
            let uvw = |input: Input| self.difx.as_ref()?.model.uvw(input.station, middle);
            let uvw = uvw(a).zip(uvw(b));
            Ok::<_, TryFromIntError>(swin::Record {
                baseline: (number(a)?, number(b)?),
                mjd: i32::try_from(mjd)?,
                seconds,
                frequency: i32::try_from(self.frequencies[setup.index(a)])?,
                polarisations: [a, b].map(|input| setup.band(input).polarisation as u8),
                weight: good as f64 / parts,
                uvw: uvw.map_or([0.0; 3], |(a, b)| [0, 1, 2].map(|axis| a[axis] - b[axis])),
                channels,
                ..swin::Record::default()
            })
        };
        let mut records = Vec::new();
        for (product, sums) in setup.products().iter().zip(&sums.products) {
            if sums.overlap > 0 {
                let scale = channels / (sums.energy_a * sums.energy_b).sqrt();
                let values = self.average(sums.values.iter().map(|value| value * scale));
                records.push(record(product.a, product.b, sums.overlap, values)?);
            }
        }
        for (input, sums) in setup.inputs().zip(&sums.inputs) {
            if sums.good > 0 {
                let scale = channels / sums.energy;
                let power = sums
                    .power
                    .iter()
                    .map(|power| Complex64::from(power * scale));
                records.push(record(input, input, sums.good, self.average(power))?);
            }
        }
        let written = records
            .iter()
            .try_for_each(|record| record.write(&mut self.file))
            .and_then(|()| self.file.flush());
        written.map_err(FileError::at("cannot write", &self.path))?;
        self.describe()
    }

    fn average(&self, values: impl Iterator<Item = Complex64>) -> Vec<Complex32> {
        let values: Vec<Complex64> = values.collect();
        let means = values.chunks(self.averaged).map(|values| {
            let mean = values.iter().sum::<Complex64>() / values.len() as f64;
            Complex32::new(mean.re as f32, mean.im as f32)
        });
        means.collect()
    }
}

/// Returns the index of each input's frequency, and the table of frequencies: first those of a job, unchanged.
fn frequencies(
    setup: &Setup,
    averaged: usize,
    job: Option<&DifxJob>,
) -> Result<(Vec<usize>, Vec<FrequencyDescription>), VisibilityError> {
    let channels = setup.channels();
    if !channels.is_multiple_of(averaged) {
        let why = format!("{channels} channels cannot be averaged by {averaged}");
        return Err(VisibilityError::Unfit(why));
    }
    let width = setup.channel_width();
    let described = |zero_hz: f64, edge_hz: f64, band: usize| FrequencyDescription {
        band,
        ..FrequencyDescription::new(zero_hz, edge_hz, width, (channels, averaged))
    };
    let known = job.iter().flat_map(|job| &job.frequencies);
    let known = known.map(|known| described(known.zero_hz, known.edge_hz(), 0));
    let mut table: Vec<FrequencyDescription> = known.collect();
    let mut indices = Vec::new();
    for input in setup.inputs() {
        let band = setup.band(input);
        let number = match band.zero_hz {
            0.0 => place(&setup.stations()[input.station], input.band),
            _ => 0,
        };
        let frequency = described(band.zero_hz, band.edge_hz, number);
        let of_job = job.map(|job| job.of_bands[input.station][input.band]);
        let place = of_job.or_else(|| table.iter().position(|other| *other == frequency));
        indices.push(place.unwrap_or(table.len()));
        if place.is_none() {
            table.push(frequency);
        }
    }
    Ok((indices, table))
}

/// Checks that frequency and polarisation distinguish the bands of each station, since records contain nothing else.
fn check_distinct(setup: &Setup, frequencies: &[usize]) -> Result<(), VisibilityError> {
    let mut seen = HashMap::new();
    for (input, frequency) in setup.inputs().zip(frequencies) {
        let polarisation = setup.band(input).polarisation;
        let other = seen.insert((input.station, *frequency, polarisation), input.band);
        if let Some(other) = other {
            return Err(VisibilityError::AlikeBands {
                bands: [other + 1, input.band + 1],
                station: setup.stations()[input.station].name.clone(),
                polarisation,
            });
        }
    }
    Ok(())
}

/// Key of a product in records: baseline, frequency and polarisations.
pub type ProductKey = ((u8, u8), i32, [u8; 2]);

/// Returns the product key of a record.
pub fn key(record: &swin::Record) -> ProductKey {
    (record.baseline, record.frequency, record.polarisations)
}
