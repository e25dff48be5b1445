//! What is told of a correlation: as JSON, as text and as a table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evlbi_fx::correlator::{Input, Rotation, Setup};
use evlbi_fx::fringe::Window;
use evlbi_fx::quantise;
use evlbi_fx::track::Counts;
use evlbi_net::file::{Table, TableError};
use evlbi_stream::control_socket::Profile;
use evlbi_wire::units::{show_count, show_seconds, utc};
use serde::Serialize;

use super::Correlation;
use super::plan::Shape;
use super::series::{Amplitude, Found, pair, quotient, snr_loss};
use super::stream::StreamResult;

/// A line stands this far above the median of a spectrum.
const LINE: f64 = 20.0;
/// Lines of a spectrum that are listed.
const MAX_LINES: usize = 64;
/// A false alarm that is more probable than this is no fringe.
const NO_FRINGE: f64 = 1e-3;
/// A fringe so far off that amplitudes lose more than this is told.
const LITTLE_LOST: f64 = 0.995;

/// Head of the table of baselines.
const HEAD: &str = "baseline             all     autos     valid corrected        SNR   weight          delay     rate mHz    phase";

/// The result of a correlation.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    window: Window,
    /// Cross products, 1-2, 1-3, ... in the order of the files.
    pub baselines: Vec<BaselineResult>,
    autos: Vec<AutoResult>,
    /// What was received, of streams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamResult>,
    /// Amplitude against delay, where asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profiles: Vec<BaselineProfile>,
    /// The file of visibilities that was written.
    visibilities: Option<PathBuf>,
    interrupted: bool,
}

/// Amplitude against delay of the strongest band of a baseline.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct BaselineProfile {
    stations: [String; 2],
    #[serde(flatten)]
    profile: Profile,
}

/// What was read of a station.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BaselineResult {
    /// Indices of the stations.
    #[serde(skip)]
    pub(crate) pair: [usize; 2],
    /// Names of the stations.
    pub stations: [String; 2],
    /// How much of what was recorded they have in common, from 0 to 1.
    pub amplitude: Amplitude,
    /// Signal-to-noise ratio of all bands together.
    pub snr: f64,
    /// Share of the time at which both have data, from 0 to 1.
    pub weight: f64,
    /// Share of the signal-to-noise ratio that missing samples cost: 1 - sqrt(weight).
    pub snr_loss: f64,
    /// Delay of the second station minus that of the first, beyond what the set-up says.
    pub delay_s: f64,
    /// Standard error of the delay.
    pub delay_error_s: f64,
    /// Change of the delay, in seconds per second; none where the sky frequency is not known.
    pub rate: Option<f64>,
    /// Turns of the phase a second.
    pub rate_hz: f64,
    /// Standard error of that.
    pub rate_error_hz: f64,
    /// Phase at the sky frequency in the middle of the time.
    pub phase_rad: f64,
    /// Standard error of the phase.
    pub phase_error_rad: f64,
    /// Probability that noise alone has such a peak in the window.
    pub false_alarm: f64,
    /// All that there is lies in a few channels: tones of a phase calibration, interference, or a maser.
    pub in_lines: Option<bool>,
    /// What a fringe that lies off the model leaves of the amplitudes: they are to be divided by it.
    pub coherence: f64,
    /// The same of each band.
    pub(crate) bands: Vec<BandResult>,
}

/// One product of a baseline.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BandResult {
    /// Lowest sky frequency; none where it is not known.
    frequency_hz: Option<f64>,
    polarisations: String,
    #[serde(flatten)]
    found: Found,
    delay_s: f64,
    rate_hz: f64,
    phase_rad: f64,
    in_lines: Option<bool>,
    /// Sky frequency of the zero frequency of the samples; zero where it is not known.
    #[serde(skip)]
    reference_hz: f64,
}

/// The autocorrelation of a band.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

impl StationResult {
    /// What was read of all stations.
    pub fn all(
        setup: &Setup,
        sources: &[String],
        shapes: &[Shape],
        counts: &[Counts],
    ) -> Vec<StationResult> {
        let stations = setup.stations().iter().zip(sources);
        let read = shapes.iter().zip(counts);
        let all = stations
            .zip(read)
            .map(|((station, source), (shape, counts))| StationResult {
                name: station.name.clone(),
                source: source.clone(),
                sample_rate: shape.layout.sample_rate(),
                bits: shape.layout.codec.bits(),
                complex: shape.layout.complex,
                threads: shape.threads.len(),
                channels: shape.layout.channels,
                frames: counts.frames,
                late: counts.late,
                duplicates: counts.duplicates,
                foreign: counts.foreign,
            });
        all.collect()
    }
}

impl Correlation {
    /// Everything that is told of it; `profiles`: with amplitude against delay of each baseline.
    pub fn result(&self, profiles: bool) -> CorrelateResult {
        let setup = &self.setup;
        let rate = setup.part_rate() as f64;
        let start = setup.first_part(0) + self.correlated.start;
        let found = self.found();
        // There is a product at least.
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
            baselines,
            autos: setup.inputs().map(|input| self.auto(input)).collect(),
            streams: self.streams.clone(),
            visibilities: self.visibilities.clone(),
            interrupted: self.interrupted,
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

    /// The channels that are far above the median of all, and above their neighbours.
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

/// Lowest sky frequency of a band, where it is known.
fn frequency(setup: &Setup, input: Input) -> Option<f64> {
    let band = setup.band(input);
    (band.zero_hz != 0.0).then_some(band.edge_hz)
}

/// Puts the products of each pair together.
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
            in_lines: found.fringe.in_lines,
            reference_hz: x.zero_hz,
        });
    }
    let pairs = pairs.into_iter();
    let baselines = pairs.filter_map(|(pair, bands)| baseline(setup, pair, bands));
    baselines.collect()
}

/// None without bands.
fn baseline(setup: &Setup, pair: [usize; 2], all: Vec<BandResult>) -> Option<BaselineResult> {
    // Different polarisations have little in common, and tell nothing of the baseline.
    let is_parallel = |band: &BandResult| {
        let mut letters = band.polarisations.chars();
        letters.next() == letters.next()
    };
    let parallel = all.iter().any(is_parallel);
    let bands = all.iter().filter(|band| !parallel || is_parallel(band));
    let bands: Vec<&BandResult> = bands.collect();
    // Each band was searched for itself: noise has its highest peak in one of them.
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
    // As if all bands had the strongest one's errors but for the signal-to-noise ratio.
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
        rate_hz,
        rate_error_hz: fringe.rate_error_hz * error,
        phase_rad: fringe.phase_rad,
        phase_error_rad: fringe.phase_error_rad,
        false_alarm,
        // None where one of them cannot tell.
        in_lines: (bands.iter()).try_fold(true, |all, band| Some(band.in_lines? && all)),
        coherence: by_weight(|found| found.coherence),
        bands: all,
    })
}

impl BaselineResult {
    /// Why it is not to be taken for a fringe, as a line ends.
    pub(crate) fn doubt(&self) -> &'static str {
        if self.weight <= 0.0 {
            "  no data"
        } else if self.false_alarm > NO_FRINGE {
            "  no fringe"
        } else if self.in_lines == Some(true) {
            "  lines only"
        } else {
            ""
        }
    }
}

/// Writes a table of all bands of all baselines as CSV, with a head.
///
/// # Errors
/// When the file cannot be written.
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

/// The same for people: a line for each station and each baseline.
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
        "fringes searched within {} and {:.3} Hz\n\n{HEAD}\n",
        show_seconds(result.window.delay_s.unwrap_or(0.0)),
        result.window.rate_hz.unwrap_or(0.0)
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
            baseline.doubt()
        );
    }
    if result.interrupted && result.streams.is_empty() {
        shown += "interrupted: numbers are of what was correlated until then\n";
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
