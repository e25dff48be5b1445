//! Searches for fringes in visibilities or recordings, and draws them.
//!
//! Put here what is searched and drawn; the search itself is in [`evlbi_fx::fringe`].

mod picture;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use evlbi_fx::difx::swin::Record;
use evlbi_fx::fringe::{self, Fringe, Visibilities};
use evlbi_fx::simd::Simd;
use evlbi_net::run::Run;
use evlbi_wire::units::{show_hertz, show_seconds};
use rustfft::num_complex::Complex32;
use serde::Serialize;

use self::picture::fringe_figure;
use crate::pictures::{self, PictureError};
use crate::result::{NO_FRINGE, NoFringe};
use crate::series::{WindowError, check_window};
use crate::visibilities::{
    Description, FrequencyDescription, ProductKey, VisibilityError, is_swin, key,
};
use crate::{CorrelateError, CorrelateOptions, LeftOut, Recordings, correlate};

/// Maximum number of values in a fringe search.
const MAX_VALUES: usize = 1 << 27;
/// Width and height of a picture in the terminal.
const TEXT: (usize, usize) = (100, 30);

/// Options of a fringe search.
#[derive(Clone, Debug, Default)]
pub struct FringeOptions {
    /// The window, and options for correlating recordings first.
    pub correlate: CorrelateOptions,
    /// Directory for pictures; `None` for no pictures.
    pub out: Option<PathBuf>,
    /// Whether existing pictures are overwritten.
    pub force: bool,
}

/// Reasons why fringes cannot be searched or drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FringeError {
    /// The recordings cannot be correlated.
    #[error("{0}")]
    Correlate(#[from] CorrelateError),
    /// There is no such directory.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The directory contains no visibilities.
    #[error("{} is not a directory of visibilities", .0.display())]
    NoDirectory(PathBuf),
    /// The visibilities cannot be read.
    #[error("{0}")]
    Visibilities(#[from] VisibilityError),
    /// No fringe can be searched in the visibilities; the text is the reason.
    #[error("{0}")]
    Unfit(String),
    /// The window is too wide.
    #[error("{0}")]
    Window(#[from] WindowError),
    /// A picture cannot be written.
    #[error("{0}")]
    Picture(#[from] PictureError),
}

/// Fringes of all products.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FringeResult {
    schema: &'static str,
    fringes: Vec<Found>,
    /// Recordings that were not correlated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Whether the run was stopped before all data was correlated.
    pub interrupted: bool,
}

/// Fringe of one product.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Found {
    stations: [String; 2],
    polarisations: String,
    /// Sky frequency to which phase and rate refer; `None` if unknown.
    frequency_hz: Option<f64>,
    /// Correlation coefficient of the recorded samples.
    correlation: f64,
    #[serde(flatten)]
    fringe: Fringe,
    pictures: Vec<PathBuf>,
    #[serde(skip)]
    drawn: String,
    /// Length of an integration, in seconds.
    #[serde(skip)]
    period_s: f64,
}

impl Found {
    /// Returns whether there is more than one integration, without which there is no rate.
    fn has_rate(&self) -> bool {
        self.fringe.window.1 > 0.0
    }

    fn has_fringe(&self) -> bool {
        self.fringe.false_alarm <= NO_FRINGE
    }
}

/// A product to search.
struct Product<'a> {
    stations: [String; 2],
    polarisations: String,
    /// Suffix that distinguishes it from products of the same stations and polarisations.
    number: String,
    visibilities: Visibilities<'a>,
    /// Factor from amplitudes to correlation coefficients.
    scale: f64,
}

/// Names of a run's pictures: unique for each product, whatever the stations and bands are called.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    /// Returns `name`, with a number appended if it is taken.
    fn take(&mut self, name: &str) -> String {
        let (mut taken, mut number) = (name.to_owned(), 1);
        while !self.0.insert(taken.clone()) {
            number += 1;
            taken = format!("{name}-{number}");
        }
        taken
    }
}

impl FringeResult {
    /// Returns the baselines of which no product has a fringe; `None` if all have one.
    pub fn no_fringe(&self) -> Option<NoFringe> {
        let mut by_baseline: BTreeMap<String, Vec<&Found>> = BTreeMap::new();
        for found in &self.fringes {
            let products = by_baseline.entry(found.stations.join("-")).or_default();
            products.push(found);
        }
        by_baseline.retain(|_, found| !found.iter().any(|found| found.has_fringe()));
        let without = || by_baseline.values().flatten();
        let (delay_s, rate_hz) = without().next()?.fringe.window;
        let mut stations: Vec<String> = Vec::new();
        for station in self.fringes.iter().flat_map(|found| &found.stations) {
            if !stations.contains(station) {
                stations.push(station.clone());
            }
        }
        let bands = by_baseline.values().map(Vec::len).max()?;
        let (baselines, without_data): (Vec<_>, Vec<_>) = by_baseline
            .into_iter()
            .partition(|(_, found)| found.iter().any(|found| found.fringe.snr > 0.0));
        let names = |baselines: Vec<(String, Vec<&Found>)>| -> Vec<String> {
            baselines.into_iter().map(|(name, _)| name).collect()
        };
        Some(NoFringe {
            stations,
            bands,
            times: Vec::new(),
            baselines: names(baselines),
            without_data: names(without_data),
            delay_s,
            rate_hz,
        })
    }

    /// Returns the length of the integration in seconds if the visibilities have only one, so that no rate was searched.
    pub fn only_integration(&self) -> Option<f64> {
        let first = self.fringes.first()?;
        let is_only = !self.fringes.iter().any(Found::has_rate);
        is_only.then_some(first.period_s)
    }

    fn new(fringes: Vec<Found>, left_out: Vec<LeftOut>, interrupted: bool) -> FringeResult {
        FringeResult {
            schema: "evlbi.fringe/1",
            fringes,
            left_out,
            interrupted,
        }
    }
}

/// Correlates recordings, and searches and draws the fringes.
///
/// # Errors
/// Returns an error if they cannot be correlated, a window is too wide, or a picture exists or cannot be written.
pub fn in_recordings(
    files: &[String],
    options: &FringeOptions,
    run: &Run,
) -> Result<FringeResult, FringeError> {
    let recordings = Recordings::open(files, &options.correlate, run)?;
    let found = correlate(&recordings, &options.correlate, run, &mut ())?;
    found.has_any()?;
    let setup = &found.setup;
    let mut names = Names::default();
    let products = setup.products().iter().enumerate();
    let fringes = products
        .map(|(index, product)| {
            let name = |station: usize| setup.stations()[station].name.clone();
            let bands = [product.a, product.b].map(|input| setup.band(input).polarisation);
            let product = Product {
                stations: [name(product.a.station), name(product.b.station)],
                polarisations: bands.iter().collect(),
                // Several bands of the other station may have the same frequency.
                number: match product.a.band == product.b.band {
                    true => product.a.band.to_string(),
                    false => format!("{}x{}", product.a.band, product.b.band),
                },
                visibilities: found.series.visibilities(index),
                scale: found.series.scale(index),
            };
            search(product, options, &mut names)
        })
        .collect::<Result<Vec<Found>, FringeError>>()?;
    Ok(FringeResult::new(
        fringes,
        found.left_out,
        found.interrupted,
    ))
}

/// Searches and draws the fringes of visibilities. `path` is their directory, as [`correlate`] or DiFX wrote it (with the job's
/// `.input` next to it), the `.input` of such a job, or one file of such a directory.
///
/// # Errors
/// Returns an error if it contains none, a window is too wide, or a picture exists or cannot be written.
pub fn in_directory(path: &Path, options: &FringeOptions) -> Result<FringeResult, FringeError> {
    let is_swin = is_swin(path) && path.is_file();
    let (directory, only) = match path.parent() {
        Some(parent) if is_swin => (Path::new(".").join(parent), Some(path)),
        _ if path.extension().is_some_and(|kind| kind == "input") => {
            (path.with_extension("difx"), None)
        }
        _ => (path.to_owned(), None),
    };
    if !directory.is_dir() {
        return Err(match directory.exists() {
            true => FringeError::NoDirectory(directory),
            false => FringeError::Missing(directory),
        });
    }
    let description = Description::find(&directory)?;
    let mut by_product: BTreeMap<ProductKey, Vec<Record>> = BTreeMap::new();
    for record in description.records(&directory, only)? {
        if record.baseline.0 != record.baseline.1 {
            by_product.entry(key(&record)).or_default().push(record);
        }
    }
    if by_product.is_empty() {
        let why = format!("{} contains no cross products", directory.display());
        return Err(FringeError::Unfit(why));
    }
    let mut names = Names::default();
    let fringes = by_product
        .iter()
        .map(|(key, records)| {
            let frequency = usize::try_from(key.1)
                .ok()
                .and_then(|index| description.frequencies.get(index))
                .ok_or_else(|| {
                    let why = "a record has a frequency that is not in the description";
                    FringeError::Unfit(why.into())
                })?;
            let gathered = Gathered::new(records, frequency, description.integration_s)?;
            let name = |station: u8| {
                let place = usize::from(station).wrapping_sub(1);
                let known = description.stations.get(place);
                known.cloned().unwrap_or_else(|| station.to_string())
            };
            let product = Product {
                stations: [name(key.0.0), name(key.0.1)],
                polarisations: key.2.iter().map(|letter| *letter as char).collect(),
                number: key.1.to_string(),
                visibilities: gathered.visibilities(frequency, description.integration_s),
                scale: 1.0 / gathered.weights.max(1e-30),
            };
            search(product, options, &mut names)
        })
        .collect::<Result<Vec<Found>, FringeError>>()?;
    Ok(FringeResult::new(fringes, Vec::new(), false))
}

/// Records of a product on a time grid.
struct Gathered {
    values: Vec<Complex32>,
    /// Sum of the weights of all values.
    weights: f64,
    noise: f64,
}

impl Gathered {
    fn new(
        records: &[Record],
        frequency: &FrequencyDescription,
        integration: f64,
    ) -> Result<Gathered, FringeError> {
        let seconds = |record: &Record| f64::from(record.mjd) * 86_400.0 + record.seconds;
        let first = records.iter().map(seconds).fold(f64::INFINITY, f64::min);
        let place = |record: &Record| ((seconds(record) - first) / integration).round() as usize;
        let periods = records.iter().map(place).max().map_or(0, |last| last + 1);
        let channels = frequency.channels;
        if periods.saturating_mul(channels) > MAX_VALUES {
            return Err(FringeError::Unfit(format!(
                "the records span {periods} integrations of {channels} channels: too many, or a time is damaged"
            )));
        }
        let mut values = vec![Complex32::default(); periods * channels];
        let (mut weights, mut noise) = (0.0, 0.0);
        for record in records {
            let row = &mut values[place(record) * channels..][..channels];
            for (value, channel) in row.iter_mut().zip(&record.channels) {
                *value += channel * record.weight as f32;
            }
            weights += record.weight * channels as f64;
            // A coefficient of one channel from this many independent samples, weighted.
            let samples = integration * frequency.channel_width_hz;
            noise += record.weight * channels as f64 / (2.0 * samples);
        }
        Ok(Gathered {
            values,
            weights,
            noise,
        })
    }

    fn visibilities(&self, frequency: &FrequencyDescription, integration: f64) -> Visibilities<'_> {
        Visibilities {
            values: &self.values,
            channels: frequency.channels,
            channel_width_hz: frequency.channel_width_hz,
            first_channel_hz: frequency.first_channel_hz,
            reference_hz: frequency.reference_hz,
            period_s: integration,
            noise: self.noise,
            simd: Simd::best(),
        }
    }
}

fn search(
    product: Product<'_>,
    options: &FringeOptions,
    names: &mut Names,
) -> Result<Found, FringeError> {
    let Product {
        stations,
        polarisations,
        number,
        visibilities,
        scale,
    } = product;
    let window = &options.correlate.window();
    let channels = (visibilities.channels, visibilities.channel_width_hz);
    check_window(window, channels, visibilities.period_s)?;
    let fringe = fringe::search(&visibilities, window);
    let baseline = stations.join("-");
    let name = format!("{baseline} {polarisations}");
    let figure = fringe_figure(&name, &visibilities, &fringe, scale);
    let reference = visibilities.reference_hz;
    let mut pictures = Vec::new();
    if let Some(directory) = &options.out {
        let stem = names.take(&format!("fringe-{baseline}-{polarisations}-{number}"));
        pictures = pictures::write(&figure, directory, &stem, options.force)?;
    }
    Ok(Found {
        stations,
        polarisations,
        frequency_hz: (reference != 0.0).then_some(reference),
        correlation: fringe.amplitude * scale,
        fringe,
        pictures,
        drawn: figure.text(TEXT.0, TEXT.1),
        period_s: visibilities.period_s,
    })
}

/// Formats a result as text.
pub fn text(result: &FringeResult) -> String {
    let shown = result.fringes.iter().map(|found| {
        let fringe = &found.fringe;
        format!(
            "{}\n{} {}: correlation {:.6}, SNR {:.1}, delay {}, rate {}, phase {:.1} deg{}",
            found.drawn,
            found.stations.join("-"),
            found.polarisations,
            found.correlation,
            fringe.snr,
            show_seconds(fringe.delay_s),
            match found.has_rate() {
                true => show_hertz(fringe.rate_hz),
                false => "unknown".to_owned(),
            },
            fringe.phase_rad.to_degrees(),
            match fringe.in_lines {
                _ if !found.has_fringe() => " (no fringe: noise alone reaches this)",
                Some(true) => " (lines only: tones, interference or a maser)",
                _ => "",
            }
        )
    });
    let mut shown: Vec<String> = shown.collect();
    if result.interrupted {
        shown.push("interrupted: the fringes are from the part correlated until then".to_owned());
    }
    shown.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stations A-B and C, and A and B-C.
    #[test]
    fn pictures_of_a_run_have_names_of_their_own() {
        let mut names = Names::default();
        let taken = ["A-B-C", "D", "A-B-C", "A-B-C-2"].map(|name| names.take(name));
        assert_eq!(taken, ["A-B-C", "D", "A-B-C-2", "A-B-C-2-2"]);
    }
}
