//! Reports a correlation as JSON, text and a table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evlbi_fx::correlator::{Input, Rotation, Setup};
use evlbi_fx::fringe::Window;
use evlbi_fx::quantise;
use evlbi_fx::track::Counts;
use evlbi_net::file::{Table, TableError};
use evlbi_plot::columns;
use evlbi_stream::control_socket::Profile;
use evlbi_wire::units::{show_count, show_hertz, show_seconds, utc};
use serde::Serialize;

use super::job::{Job, MIN_BLOCKS};
use super::options::DelayTerms;
use super::plan::Placed;
use super::series::{Amplitude, Found, pair, quotient, snr_loss};
use super::station::RecordingDamage;
use super::stream::StreamResult;
use super::{Correlation, LeftOut};

/// Factor by which a wider window of rates is wider.
const WIDER: f64 = 16.0;

/// Minimum power of a spectral line, relative to the median of the spectrum.
const LINE: f64 = 20.0;
/// Maximum number of lines listed per spectrum.
const MAX_LINES: usize = 64;
/// Maximum false alarm probability of a fringe.
pub(crate) const NO_FRINGE: f64 = 1e-3;
/// Minimum coherence of a fringe without a warning that amplitudes are low.
const LITTLE_LOST: f64 = 0.995;

/// Maximum number of rows in the table of bands.
const MAX_ROWS: usize = 128;

/// Heading of the table of baselines.
const HEAD: &str = "baseline             all     autos     valid corrected        SNR   weight          delay           rate    phase";

/// The result of a correlation.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CorrelateResult {
    schema: &'static str,
    stations: Vec<StationResult>,
    /// UTC of the start.
    start: String,
    seconds: f64,
    channels: usize,
    channel_width_hz: f64,
    integration_s: f64,
    /// How fringes were stopped.
    rotation: Rotation,
    /// Half widths of the search window.
    window: Window,
    /// Cross products, 1-2, 1-3, ... in the order of the files.
    pub baselines: Vec<BaselineResult>,
    autos: Vec<AutoResult>,
    /// Results of the streams, if streams were correlated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamResult>,
    /// Amplitude against delay, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profiles: Vec<BaselineProfile>,
    /// Path of the file of visibilities, if written.
    visibilities: Option<PathBuf>,
    /// SHA-256 of the sums of all dumps, if visibilities were written: two runs that are equal to the bit have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    sums_sha256: Option<String>,
    /// Parts that were missing when parts were merged: gaps, of weight 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
    interrupted: bool,
    /// Inputs that were not correlated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Baselines with a fringe off the model; `None` if there are none.
    #[serde(skip)]
    pub off_model: Option<OffModel>,
}

/// Amplitude against delay of the strongest band of a baseline.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct BaselineProfile {
    stations: [String; 2],
    #[serde(flatten)]
    profile: Profile,
}

/// Data read from a station.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StationResult {
    name: String,
    source: String,
    sample_rate: i64,
    bits: u8,
    complex: bool,
    threads: usize,
    channels: usize,
    frames: u64,
    /// Frames too far out of order, repeated, or of another shape.
    late: u64,
    duplicates: u64,
    foreign: u64,
    /// Damage of the recording; `None` if there is none, and for streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<RecordingDamage>,
    /// UTC of the first and the last data; `None` for streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<[String; 2]>,
}

/// Result of a pair of stations. Several bands are combined: only those of equal polarisations if there are any, and of these only those
/// with a fringe if any has one. Amplitudes are means weighted by the valid samples. Delay and rate are means weighted by the squared
/// signal-to-noise ratio. The phase is that of the strongest band.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BaselineResult {
    /// Indices of the stations.
    #[serde(skip)]
    pub(crate) pair: [usize; 2],
    /// Names of the stations.
    pub stations: [String; 2],
    /// Correlation of the recorded signals, from 0 to 1.
    pub amplitude: Amplitude,
    /// Signal-to-noise ratio of all bands together.
    pub snr: f64,
    /// Fraction of the time for which both stations have data, from 0 to 1.
    pub weight: f64,
    /// Fraction of the signal-to-noise ratio lost with the missing samples: 1 - sqrt(weight).
    pub snr_loss: f64,
    /// Residual delay of the second station minus that of the first, relative to the setup, in seconds.
    pub delay_s: f64,
    /// Standard error of the delay, in seconds.
    pub delay_error_s: f64,
    /// Rate of change of the delay, in seconds per second; `None` if the sky frequency is unknown.
    pub rate: Option<f64>,
    /// The same at the middle of the strongest band, to which the fringe rate refers unless there are lines.
    #[serde(skip)]
    pub(crate) slope: Option<f64>,
    /// Fringe rate: turns of the phase per second.
    pub rate_hz: f64,
    /// Standard error of the fringe rate.
    pub rate_error_hz: f64,
    /// Phase at the sky frequency in the middle of the time, in radians.
    pub phase_rad: f64,
    /// Standard error of the phase.
    pub phase_error_rad: f64,
    /// Probability that noise alone has a peak this high in the window.
    pub false_alarm: f64,
    /// Whether the whole signal is in a few channels: phase calibration tones, interference, or a maser.
    pub in_lines: Option<bool>,
    /// Fraction of the amplitudes that remains with a fringe off the model, to about 7 %; a maximum if the sky frequency is unknown.
    pub coherence: f64,
    /// Results of each band.
    pub(crate) bands: Vec<BandResult>,
}

/// One product of a baseline.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BandResult {
    /// Lowest sky frequency; `None` if unknown.
    frequency_hz: Option<f64>,
    polarisations: String,
    #[serde(flatten)]
    found: Found,
    delay_s: f64,
    rate_hz: f64,
    phase_rad: f64,
    false_alarm: f64,
    in_lines: Option<bool>,
    /// Sky frequency of the zero frequency of the samples; 0 if unknown.
    #[serde(skip)]
    reference_hz: f64,
    /// Sky frequency of its middle.
    #[serde(skip)]
    centre_hz: f64,
}

/// Autocorrelation of a band.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct AutoResult {
    station: String,
    frequency_hz: Option<f64>,
    polarisation: char,
    /// Fraction of the time with good samples.
    weight: f64,
    /// Mean square of the good samples relative to the nominal levels: 1 if the sampler is adjusted.
    power: f64,
    /// Spectral lines, e.g. phase calibration tones: frequencies above the zero frequency of the samples, of channels with far more power
    /// than the others.
    lines_hz: Vec<f64>,
}

/// A part that is missing, whose time has no data.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Missing {
    /// Number of the part.
    pub part: usize,
    /// UTC of its start.
    pub start: String,
    /// Its length, in seconds.
    pub seconds: f64,
    /// Its bands, from 1; none if it has all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bands: Vec<usize>,
}

impl CorrelateResult {
    /// Passes the result to a writer of a file next to the visibilities: it then names them without their directory.
    pub fn beside<T>(&mut self, write: impl FnOnce(&CorrelateResult) -> T) -> T {
        let path = self.visibilities.take();
        self.visibilities = path.as_deref().and_then(Path::file_name).map(PathBuf::from);
        let written = write(self);
        self.visibilities = path;
        written
    }
}

impl StationResult {
    /// Returns the data read from all stations.
    pub fn all(
        setup: &Setup,
        sources: &[String],
        shapes: &[Placed<'_>],
        counts: &[Counts],
    ) -> Vec<StationResult> {
        let stations = setup.stations().iter();
        let read = shapes.iter().zip(counts);
        let all = stations
            .zip(read)
            .map(|(station, ((place, shape), counts))| StationResult {
                name: station.name.clone(),
                source: sources[*place].clone(),
                sample_rate: shape.layout().sample_rate(),
                bits: shape.layout().codec.bits(),
                complex: shape.layout().complex,
                threads: shape.threads.len(),
                channels: shape.samples.selected.len(),
                frames: counts.frames,
                late: counts.late,
                duplicates: counts.duplicates,
                foreign: counts.foreign,
                damage: None,
                times: None,
            });
        all.collect()
    }

    /// Adds what only the recording of the station with this index shows.
    pub fn see(&mut self, job: &Job, index: usize, damage: Option<RecordingDamage>) {
        let (span, rate) = (&job.spans[index], job.setup.part_rate() as f64);
        let utc = |part: i64| job.utc(part as f64 / rate);
        self.times = Some([span.start, span.end].map(utc));
        self.damage = damage;
    }
}

impl Correlation {
    /// Returns the result; with `profiles`, including amplitude against delay of each baseline.
    pub fn result(&self, profiles: bool) -> CorrelateResult {
        let setup = &self.setup;
        let rate = setup.part_rate() as f64;
        let start = setup.first_part(0) + self.correlated.start;
        let found = self.found();
        // There is at least one product.
        let (delay, turn) = found[0].fringe.window;
        let baselines = baselines(setup, &found);
        let profile = |baseline: &BaselineResult| {
            Some(BaselineProfile {
                stations: baseline.stations.clone(),
                profile: self.series.profile(baseline.pair, &found)?,
            })
        };
        let asked = baselines.iter().filter(|_| profiles);
        CorrelateResult {
            schema: "evlbi.correlate/1",
            stations: self.stations.clone(),
            start: utc(setup.epoch() as f64 + start as f64 / rate),
            seconds: self.parts() as f64 / rate,
            channels: setup.channels(),
            channel_width_hz: setup.channel_width(),
            integration_s: self.integration,
            rotation: setup.rotation(),
            window: Window {
                delay_s: Some(delay),
                rate_hz: Some(turn),
            },
            profiles: asked.filter_map(profile).collect(),
            off_model: OffModel::of(self, &baselines, turn),
            baselines,
            autos: setup.inputs().map(|input| self.auto(input)).collect(),
            streams: self.streams.clone(),
            visibilities: self.visibilities.clone(),
            sums_sha256: self.sums.clone(),
            missing: self.missing.clone(),
            interrupted: self.interrupted,
            left_out: self.left_out.clone(),
        }
    }

    fn auto(&self, input: Input) -> AutoResult {
        let station = &self.setup.stations()[input.station];
        let totals = self.series.input(input);
        let good = totals.good as f64;
        // A complex sample has two parts and two components.
        let nominal = good * quantise::power(station.layout.codec);
        AutoResult {
            station: station.name.clone(),
            frequency_hz: frequency(&self.setup, input),
            polarisation: self.setup.band(input).polarisation,
            weight: good / self.span(input, input).max(1) as f64,
            power: quotient(totals.energy / self.setup.channels() as f64, nominal),
            lines_hz: self.lines(input, &totals.power),
        }
    }

    /// Returns the channels with a power far above the median, and above their neighbours.
    fn lines(&self, input: Input, power: &[f64]) -> Vec<f64> {
        let mut sorted = power.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        let band = self.setup.band(input);
        let peaks = (0..power.len()).filter(|channel| {
            let around = &power[channel.saturating_sub(1)..(channel + 2).min(power.len())];
            let here = power[*channel];
            here > LINE * median && around.iter().all(|other| *other <= here)
        });
        let lowest = band.edge_hz - band.zero_hz;
        let hertz = |channel| lowest + channel as f64 * self.setup.channel_width();
        peaks.take(MAX_LINES).map(hertz).collect()
    }
}

/// Returns the lowest sky frequency of a band; `None` if unknown.
fn frequency(setup: &Setup, input: Input) -> Option<f64> {
    let band = setup.band(input);
    (band.zero_hz != 0.0).then_some(band.edge_hz)
}

/// Combines the products of each pair.
pub fn baselines(setup: &Setup, found: &[Found]) -> Vec<BaselineResult> {
    let mut pairs: BTreeMap<[usize; 2], Vec<BandResult>> = BTreeMap::new();
    for (product, found) in setup.products().iter().zip(found) {
        let (x, y) = (setup.band(product.a), setup.band(product.b));
        pairs.entry(pair(product)).or_default().push(BandResult {
            frequency_hz: frequency(setup, product.a),
            polarisations: [x.polarisation, y.polarisation].iter().collect(),
            found: found.clone(),
            delay_s: found.fringe.delay_s,
            rate_hz: found.fringe.rate_hz,
            phase_rad: found.fringe.phase_rad,
            false_alarm: found.fringe.false_alarm,
            in_lines: found.fringe.in_lines,
            reference_hz: x.zero_hz,
            centre_hz: setup.centre(product.a),
        });
    }
    let pairs = pairs.into_iter();
    let baselines = pairs.filter_map(|(pair, bands)| baseline(setup, pair, bands));
    baselines.collect()
}

/// Returns the combined result of a pair; `None` without bands.
fn baseline(setup: &Setup, pair: [usize; 2], all: Vec<BandResult>) -> Option<BaselineResult> {
    // Different polarisations have little in common, and show nothing about the baseline.
    let is_parallel = |band: &BandResult| {
        let mut letters = band.polarisations.chars();
        letters.next() == letters.next()
    };
    let parallel = all.iter().any(is_parallel);
    let bands = all.iter().filter(|band| !parallel || is_parallel(band));
    let bands: Vec<&BandResult> = bands.collect();
    // Each band was searched separately: noise has its highest peak in one of them.
    let trials = bands.len() as f64;
    let alarms = bands.iter().map(|band| band.found.fringe.false_alarm);
    let false_alarm = -f64::exp_m1(trials * f64::ln_1p(-alarms.fold(1.0, f64::min)));
    let strongest = (bands.iter().copied()).max_by(|a, b| a.found.snr.total_cmp(&b.found.snr))?;
    let has_fringe = |band: &&BandResult| trials * band.found.fringe.false_alarm < NO_FRINGE;
    let mut bands: Vec<&BandResult> = bands.into_iter().filter(has_fringe).collect();
    let is_whole = |band: &&BandResult| band.in_lines != Some(true);
    if bands.iter().any(is_whole) {
        bands.retain(is_whole);
    } else if bands.is_empty() {
        bands.push(strongest);
    }
    let mean = |weight: fn(&Found) -> f64, value: fn(&Found) -> f64| {
        let (sum, weights) = bands.iter().fold((0.0, 0.0), |(sum, weights), band| {
            let weight = weight(&band.found);
            (sum + weight * value(&band.found), weights + weight)
        });
        quotient(sum, weights)
    };
    let by_weight = |value: fn(&Found) -> f64| mean(|found| found.weight, value);
    let by_snr = |value: fn(&Found) -> f64| mean(|found| found.snr * found.snr, value);
    let squares = bands.iter().map(|band| band.found.snr.powi(2));
    let snr = squares.sum::<f64>().sqrt();
    let weight = mean(|_| 1.0, |found| found.weight);
    let fringe = strongest.found.fringe;
    // As if all bands had the errors of the strongest one, apart from the signal-to-noise ratio.
    let error = if snr > 0.0 { fringe.snr / snr } else { 1.0 };
    let rate_hz = by_snr(|found| found.fringe.rate_hz);
    Some(BaselineResult {
        pair,
        stations: pair.map(|station| setup.stations()[station].name.clone()),
        amplitude: Amplitude {
            all: by_weight(|found| found.amplitude.all),
            autos: by_weight(|found| found.amplitude.autos),
            valid: by_weight(|found| found.amplitude.valid),
            corrected: by_weight(|found| found.amplitude.corrected),
        },
        snr,
        weight,
        snr_loss: snr_loss(weight),
        delay_s: by_snr(|found| found.fringe.delay_s),
        delay_error_s: fringe.delay_error_s * error,
        rate: (strongest.reference_hz != 0.0).then(|| rate_hz / strongest.reference_hz),
        slope: (strongest.reference_hz != 0.0).then(|| strongest.rate_hz / strongest.centre_hz),
        rate_hz,
        rate_error_hz: fringe.rate_error_hz * error,
        phase_rad: fringe.phase_rad,
        phase_error_rad: fringe.phase_error_rad,
        false_alarm,
        // `None` if one of them is unknown.
        in_lines: (bands.iter()).try_fold(true, |all, band| Some(band.in_lines? && all)),
        coherence: by_weight(|found| found.coherence),
        bands: all,
    })
}

impl BaselineResult {
    /// Returns why it does not count as a fringe, for the end of a line.
    pub(crate) fn doubt(&self) -> &'static str {
        doubt(self.weight, self.false_alarm, self.in_lines)
    }

    /// Returns whether noise alone does not explain the peak.
    pub(crate) fn has_fringe(&self) -> bool {
        self.false_alarm < NO_FRINGE
    }

    /// Returns whether the fringe is so far off the model that amplitudes are low.
    pub(crate) fn is_off_model(&self) -> bool {
        self.coherence < LITTLE_LOST && self.has_fringe()
    }
}

/// Suffix of a line that shows no fringe.
fn doubt(weight: f64, false_alarm: f64, in_lines: Option<bool>) -> &'static str {
    if weight <= 0.0 {
        "  no data"
    } else if false_alarm > NO_FRINGE {
        "  no fringe"
    } else if in_lines == Some(true) {
        "  lines only"
    } else {
        ""
    }
}

/// Baselines without a fringe, and what was searched: what a user can try depends on it.
#[derive(Clone, Debug, PartialEq)]
pub struct NoFringe {
    /// The baselines with data, as `Ef-Jb`.
    pub baselines: Vec<String>,
    /// The baselines whose stations have no data at the same time.
    pub without_data: Vec<String>,
    /// Times of the stations of these, if known: `Ef from 2024-01-01T12:00:00Z to 2024-01-01T13:00:00Z`.
    pub times: Vec<String>,
    /// All stations, in the order of the inputs.
    pub stations: Vec<String>,
    /// Half width of the delays that were searched, in seconds.
    pub delay_s: f64,
    /// Half width of the rates that were searched, in Hz.
    pub rate_hz: f64,
    /// Maximum number of bands that a baseline has.
    pub bands: usize,
}

impl CorrelateResult {
    /// Returns the baselines without a fringe; `None` if all have one.
    pub fn no_fringe(&self) -> Option<NoFringe> {
        let is_without = |baseline: &&BaselineResult| baseline.false_alarm > NO_FRINGE;
        let without: Vec<&BaselineResult> = self.baselines.iter().filter(is_without).collect();
        let bands = without.iter().map(|baseline| baseline.bands.len()).max()?;
        let (with_data, without_data): (Vec<&BaselineResult>, Vec<&BaselineResult>) =
            without.into_iter().partition(|it| it.weight > 0.0);
        let is_apart = |station: &&StationResult| {
            let of = |it: &&BaselineResult| it.stations.contains(&station.name);
            without_data.iter().any(of)
        };
        let apart = self.stations.iter().filter(is_apart);
        let times = apart.filter_map(|station| {
            let [first, last] = station.times.as_ref()?;
            Some(format!("{} from {first} to {last}", station.name))
        });
        let names = |baselines: &[&BaselineResult]| -> Vec<String> {
            baselines.iter().map(|it| it.stations.join("-")).collect()
        };
        let stations = self.stations.iter();
        Some(NoFringe {
            stations: stations.map(|station| station.name.clone()).collect(),
            bands,
            times: times.collect(),
            baselines: names(&with_data),
            without_data: names(&without_data),
            delay_s: self.window.delay_s.unwrap_or(0.0),
            rate_hz: self.window.rate_hz.unwrap_or(0.0),
        })
    }
}

/// Writes a table of all bands of all baselines as CSV, with a header.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn write_csv(path: &Path, result: &CorrelateResult) -> Result<(), TableError> {
    let mut table = Table::create(
        path,
        "station_a,station_b,frequency_hz,polarisations,amplitude_all,amplitude_autos,amplitude_valid,\
         amplitude_corrected,snr,weight,delay_s,rate_hz,phase_rad",
    )?;
    for baseline in &result.baselines {
        for band in &baseline.bands {
            let (found, amplitude) = (&band.found, &band.found.amplitude);
            let values = [
                amplitude.all,
                amplitude.autos,
                amplitude.valid,
                amplitude.corrected,
                found.snr,
                found.weight,
                band.delay_s,
                band.rate_hz,
                band.phase_rad,
            ];
            table.row((
                &baseline.stations,
                band.frequency_hz.map(|hertz| hertz.to_string()),
                &band.polarisations,
                values.map(|value| value.to_string()),
            ))?;
        }
    }
    table.flush()
}

/// Amplitude, weight and signal-to-noise ratio of each band of the baselines that have several.
fn band_table(baselines: &[BaselineResult]) -> String {
    let heads = [
        "baseline", "band", "MHz", "pol", "valid", "weight", "SNR", "",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for baseline in baselines.iter().filter(|baseline| baseline.bands.len() > 1) {
        for (number, band) in baseline.bands.iter().enumerate() {
            let megahertz = band.frequency_hz.map(|hertz| format!("{:.3}", hertz / 1e6));
            rows.push(vec![
                baseline.stations.join("-"),
                (number + 1).to_string(),
                megahertz.unwrap_or_default(),
                band.polarisations.clone(),
                format!("{:.6}", band.found.amplitude.valid),
                format!("{:.5}", band.found.weight),
                format!("{:.1}", band.found.snr),
                doubt(band.found.weight, band.false_alarm, band.in_lines)
                    .trim_start()
                    .to_owned(),
            ]);
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    let more = rows.len().saturating_sub(1 + MAX_ROWS);
    rows.truncate(1 + MAX_ROWS);
    let table = columns(&rows, |column| [0, 3, 7].contains(&column));
    match more {
        0 => format!("\n{table}\n"),
        _ => format!("\n{table}\nand {more} more bands, which the JSON result has\n"),
    }
}

/// Formats a result as text, with one line per station, baseline and band.
pub fn text(result: &CorrelateResult) -> String {
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
        let other = match station.late + station.duplicates + station.foreign {
            0 => String::new(),
            odd => format!(", {} others", show_count(odd)),
        };
        shown += &format!(
            "{:>12}  {} frames{other}\n",
            station.name,
            show_count(station.frames)
        );
    }
    shown += &format!(
        "fringes searched within {} and {}\n\n{HEAD}\n",
        show_seconds(result.window.delay_s.unwrap_or(0.0)),
        show_hertz(result.window.rate_hz.unwrap_or(0.0))
    );
    for baseline in &result.baselines {
        let Amplitude {
            all,
            autos,
            valid,
            corrected,
        } = baseline.amplitude;
        shown += &format!(
            "{:<14} {all:>9.6} {autos:>9.6} {valid:>9.6} {corrected:>9.6} {:>10.1} {:>8.5} {:>14} {:>14} {:>6.1} deg{}\n",
            baseline.stations.join("-"),
            baseline.snr,
            baseline.weight,
            show_seconds(baseline.delay_s),
            show_hertz(baseline.rate_hz),
            baseline.phase_rad.to_degrees(),
            baseline.doubt()
        );
    }
    shown += &band_table(&result.baselines);
    if result.interrupted && result.streams.is_empty() {
        shown += "interrupted: the numbers cover the part correlated until then\n";
    }
    for baseline in &result.baselines {
        if baseline.is_off_model() {
            let most = match baseline.rate {
                Some(_) => "about",
                // A drift of the delay costs more.
                None => "at most",
            };
            shown += &format!(
                "\n{}: the fringe is off the model: amplitudes are {most} {:.1} % of those on it",
                baseline.stations.join("-"),
                baseline.coherence * 100.0
            );
        }
    }
    shown.trim_end().to_string()
}

/// Baselines with a fringe so far off the model that amplitudes are low, and what a user can try.
#[derive(Clone, Debug, PartialEq)]
pub struct OffModel {
    /// The baselines, as `Ef-Jb`.
    pub baselines: Vec<String>,
    /// Delays of the stations, in order of the inputs, that replace those of the options; `None` if a rate was found and the sky
    /// frequency is unknown, for streams, and if no baseline of the first station has a fringe.
    pub delays: Option<Vec<DelayTerms>>,
    /// Whether the sky frequency is known, without which a fringe rate is not that of a delay.
    pub knows_frequency: bool,
    /// Half width of the rates that were searched, in Hz.
    pub rate_hz: f64,
    /// Whether these are all that the dumps resolve: a rate beyond them appears as another one within them.
    pub is_all: bool,
    /// Half width of a wider search, in Hz; `None` if there are too many channels for one.
    pub wider_hz: Option<f64>,
}

impl OffModel {
    /// Returns the baselines off the model, of which rates up to `rate_hz` were searched; `None` if there are none.
    fn of(found: &Correlation, baselines: &[BaselineResult], rate_hz: f64) -> Option<OffModel> {
        let off = baselines.iter().filter(|baseline| baseline.is_off_model());
        let names: Vec<String> = off.map(|baseline| baseline.stations.join("-")).collect();
        if names.is_empty() {
            return None;
        }
        let max_hz = 0.5 / (MIN_BLOCKS as f64 * found.setup.block_seconds());
        let wider_hz = (WIDER * rate_hz).min(max_hz);
        Some(OffModel {
            baselines: names,
            delays: delays(found, baselines),
            knows_frequency: baselines.iter().all(|baseline| baseline.rate.is_some()),
            rate_hz,
            is_all: rate_hz > 0.0 && rate_hz * found.series.dump_seconds > 0.499,
            // With one integration no rates were searched.
            wider_hz: (rate_hz > 0.0)
                .then(|| rounded_down(wider_hz))
                .filter(|wider| *wider > 1.5 * rate_hz),
        })
    }
}

/// Returns the delays of the stations with what was found on the baselines of the first.
fn delays(found: &Correlation, baselines: &[BaselineResult]) -> Option<Vec<DelayTerms>> {
    let setup = &found.setup;
    let (second, given) = found.given.as_ref()?;
    // Fringes are those of the middle, and delays count from that second.
    let parts = (found.correlated.start + found.correlated.end) as f64 / 2.0;
    let parts = setup.first_part(0) as f64 + parts;
    let middle = (setup.epoch() - second) as f64 + parts / setup.part_rate() as f64;
    let mut delays = given.clone();
    let inputs = found.places.iter().max().map_or(0, |last| last + 1);
    delays.resize(inputs.max(delays.len()), DelayTerms(Vec::new()));
    let mut has_any = false;
    for baseline in baselines.iter().filter(|baseline| baseline.has_fringe()) {
        let [0, station] = baseline.pair else {
            continue;
        };
        // Without a sky frequency, a rate has no slope, and one within its error needs none.
        let is_still = baseline.rate_hz.abs() <= baseline.rate_error_hz;
        let slope = baseline.slope.or(is_still.then_some(0.0))?;
        let DelayTerms(terms) = &mut delays[found.places[station]];
        terms.resize(terms.len().max(2), 0.0);
        terms[0] += baseline.delay_s - slope * middle;
        terms[1] += slope;
        has_any = true;
    }
    has_any.then_some(delays)
}

/// Returns the two leading digits of a positive number.
fn rounded_down(number: f64) -> f64 {
    let exponent = number.log10().floor() as i32 - 1;
    let digits = (number / 10f64.powi(exponent)).floor();
    let rounded = format!("{digits}e{exponent}").parse();
    rounded.unwrap_or(number)
}
