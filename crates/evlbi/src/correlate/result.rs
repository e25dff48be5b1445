//! What is told of a correlation: as JSON, as text and as a table.

use std::path::{Path, PathBuf};

use anyhow::Result;
use evlbi_fx::correlator::{Input, Rotation, Setup};
use evlbi_fx::quantise;
use serde::Serialize;

use super::correlation::Correlation;
use super::live::StreamResult;
use super::series::{Amplitude, Found};
use crate::steer::Profile;
use crate::table::Table;
use crate::units::{show_count, show_seconds, utc};

/// A line stands this far above the median of a spectrum.
const LINE: f64 = 20.0;
/// Lines of a spectrum that are listed.
const MOST_LINES: usize = 64;
/// A false alarm that is more probable than this is no fringe.
const NO_FRINGE: f64 = 1e-3;
/// A fringe so far off that amplitudes lose more than this is told.
const LITTLE_LOST: f64 = 0.995;

/// The result of a correlation.
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
struct BaselineProfile {
    stations: [String; 2],
    #[serde(flatten)]
    profile: Profile,
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
    /// All that there is lies in a few channels: tones of a phase calibration, interference, or a maser.
    pub in_lines: Option<bool>,
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
    in_lines: Option<bool>,
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

impl Correlation {
    /// Everything that is told of it; `profiles`: with amplitude against delay of each baseline.
    pub fn result(&self, profiles: bool) -> CorrelateResult {
        let setup = &self.setup;
        let rate = setup.part_rate() as f64;
        let start = setup.first_part(0) + self.correlated.start;
        let found = self.found();
        let searched = found
            .first()
            .map_or((0.0, 0.0), |found| found.fringe.window);
        CorrelateResult {
            schema: "evlbi.correlate/1",
            stations: self.stations(),
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
            streams: self.streams.clone(),
            profiles: if profiles {
                self.profiles(&found)
            } else {
                Vec::new()
            },
            visibilities: self.visibilities.clone(),
            interrupted: self.interrupted,
        }
    }

    fn profiles(&self, found: &[Found]) -> Vec<BaselineProfile> {
        let count = self.names.len();
        let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
        let profile = |(a, b)| {
            Some(BaselineProfile {
                stations: [a, b].map(|station: usize| self.names[station].clone()),
                profile: self.series.profile((a, b), found)?,
            })
        };
        pairs.filter_map(profile).collect()
    }

    fn stations(&self) -> Vec<StationResult> {
        let stations = self.setup.stations().iter().zip(&self.sources);
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
                    frequency_hz: frequency(&self.setup, input),
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

/// Lowest sky frequency of a band, where it is known.
fn frequency(setup: &Setup, input: Input) -> Option<f64> {
    let band = setup.band(input);
    (band.zero_hz != 0.0).then_some(band.edge_hz)
}

/// Puts the products of each pair together.
pub fn baselines(setup: &Setup, names: &[String], found: &[Found]) -> Vec<BaselineResult> {
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
                        frequency_hz: frequency(setup, product.a),
                        polarisations: [x.polarisation, y.polarisation].iter().collect(),
                        found: found.clone(),
                        delay_s: found.fringe.delay_s,
                        rate_hz: found.fringe.rate_hz,
                        phase_rad: found.fringe.phase_rad,
                        in_lines: found.fringe.in_lines,
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
    let mut with_fringe: Vec<&(BandResult, f64)> =
        bands.iter().filter(has_fringe).copied().collect();
    if with_fringe
        .iter()
        .any(|(band, _)| band.in_lines != Some(true))
    {
        with_fringe.retain(|(band, _)| band.in_lines != Some(true));
    }
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
        in_lines: in_lines(&bands),
        coherence: by_weight(&|band| band.found.coherence),
        bands: all.into_iter().map(|(band, _)| band).collect(),
    }
}

/// Whether all bands are in lines; none where one of them cannot tell.
fn in_lines(bands: &[&(BandResult, f64)]) -> Option<bool> {
    let told: Option<Vec<bool>> = bands.iter().map(|(band, _)| band.in_lines).collect();
    told.map(|told| told.into_iter().all(|lines| lines))
}

impl BaselineResult {
    /// Why it is not to be taken for a fringe, as a line ends.
    pub fn doubt(&self) -> &'static str {
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

/// Writes a line a product.
pub fn write_csv(path: &Path, result: &CorrelateResult) -> Result<()> {
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
