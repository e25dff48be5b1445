//! Measures what lost data costs a correlation, and compares it with theory.
//!
//! For each point, frames are removed from the recordings with one shedding policy, loss and replacement, and the rest is correlated at the
//! delay and rate of the complete recordings.
//!
//! Put here further ways to damage recordings, and conclusions from curves; the theory is in [`evlbi_fx::loss`].

mod experiment;
mod map;
mod picture;
mod table;
mod theory;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use evlbi_core::shed::Replace;
use evlbi_fx::loss::Ratios;
use evlbi_net::file::{OutputError, check_new, replace_json};
use evlbi_net::run::Run;
use evlbi_plot::name;
use serde::Serialize;

use self::experiment::{Baseline, Experiment};
pub use self::table::text;
use crate::files::{FileError, make_directory};
use crate::pictures::{self, PictureError};
use crate::series::Dump;
pub use crate::tamper::{Search, SearchError};
use crate::{Amplitude, CorrelateError, CorrelateOptions};

/// Losses measured in a range, in addition to its ends.
const STEPS: [f64; 12] = [
    0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
];
/// Maximum fraction of the periods that may deviate.
const MAX_OFF: f64 = 0.01;
/// Minimum weight of a period for the mean with a cut.
const WEIGHT_CUT: f64 = 0.5;

/// Difference of two amplitudes of the same samples: stations share transforms, and with them rounding.
const ROUNDING: f64 = 1e-6;

/// Header searches of a map: this program's, the one that the authors of the first loss experiments published (2 missing headers, then 2
/// correct ones), and those that drop each frame without a header.
const MAP_SEARCHES: [Search; 5] = [
    Search::Flywheel,
    Search::Hold {
        missing: 2,
        needed: 2,
    },
    Search::Drop(0),
    Search::Drop(2),
    Search::Drop(8),
];

/// Default loss fractions.
pub const DEFAULT_LOSSES: &str = "0.5%..20%";

/// Loss fractions, e.g. `1%,5%,10%` or `0.5%..20%`.
#[derive(Clone, Debug, PartialEq)]
pub struct Losses(Vec<f64>);

impl FromStr for Losses {
    type Err = String;

    fn from_str(text: &str) -> Result<Losses, String> {
        let fraction = evlbi_wire::units::fraction;
        let mut losses = match text.split_once("..") {
            Some((from, to)) => {
                let (from, to) = (fraction(from)?, fraction(to)?);
                let inside = STEPS.into_iter().filter(|loss| (from..=to).contains(loss));
                inside.chain([from, to]).collect()
            }
            None => text
                .split(',')
                .map(fraction)
                .collect::<Result<Vec<_>, _>>()?,
        };
        losses.retain(|loss| *loss > 0.0);
        losses.sort_by(f64::total_cmp);
        losses.dedup();
        if losses.is_empty() || losses.iter().any(|loss| *loss > 0.9) {
            return Err(format!(
                "invalid losses `{text}`: write fractions between 0 and 90 %, e.g. 0.5%..20% or 1%,5%"
            ));
        }
        Ok(Losses(losses))
    }
}

/// Reasons why curves cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossCurveError {
    /// The recordings cannot be correlated.
    #[error("{0}")]
    Correlate(#[from] CorrelateError),
    /// There is no recording of the station that shall lose data.
    #[error("station {station} is not among the {recordings} recordings")]
    NoStation {
        /// Number of the station, from 1.
        station: u8,
        /// Number of recordings.
        recordings: usize,
    },
    /// Fractions are given for another number of stations.
    #[error("{given} fractions are given for {recordings} recordings")]
    Kept {
        /// Number of fractions.
        given: usize,
        /// Number of recordings.
        recordings: usize,
    },
    /// No station is named that loses data.
    #[error("no station is named that loses data")]
    NoLoss,
    /// Lengths of packets are given, and whole frames are shed.
    #[error("lengths of packets are given, but whole frames are shed")]
    NoPackets,
    /// Frames do not consist of whole packets.
    #[error("frames of {frame} bytes do not consist of whole packets of {packet} bytes")]
    Packet {
        /// Length of a packet, in bytes.
        packet: usize,
        /// Length of a frame, header included, in bytes.
        frame: usize,
    },
    /// No knowledge of the correlator is given.
    #[error("no knowledge of the correlator is named")]
    NoKnowledge,
    /// The run was stopped before the complete recordings were correlated.
    #[error("interrupted before the complete recordings were correlated")]
    Interrupted,
    /// A recording cannot be correlated with the others.
    #[error("loss curves need all recordings, and {0} is left out")]
    LeftOut(String),
    /// The complete recordings of a baseline show no fringe.
    #[error(
        "the complete recordings of {} show no fringe (signal-to-noise ratio {snr:.1}), so the effect of loss cannot be measured",
        stations.join("-")
    )]
    NoFringe {
        /// Its stations.
        stations: [String; 2],
        /// Signal-to-noise ratio of the highest peak.
        snr: f64,
    },
    /// The directory of the results cannot be created.
    #[error("{0}")]
    File(#[from] FileError),
    /// The curves already exist, or cannot be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// A picture cannot be written.
    #[error("{0}")]
    Picture(#[from] PictureError),
}

/// How data is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Regularly, one frame in N
    Every,
    /// In bunches of 1 to 10 frames
    Bunch,
    /// At random
    Random,
    /// At random, in bursts
    Burst,
    /// The same at all stations, in blocks of time or whole threads
    Common,
    /// In steps of which each contains the lower ones, at all stations, as under SafeUDP
    Keep,
}

/// Knowledge of the correlator about the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Knows {
    /// Everything: invalid bits, fill pattern, gaps files
    All,
    /// Only invalid bits
    Headers,
    /// Only invalid bits, and after each gap it loses one more frame until it is in step again
    Papers,
}

impl Knows {
    /// Returns what a correlator with this knowledge does, for sentences about it.
    fn label(self) -> &'static str {
        match self {
            Knows::All => "knows all losses",
            Knows::Headers => "knows only the invalid bits",
            Knows::Papers => "knows only the invalid bits and loses one more frame after each gap",
        }
    }
}

/// Stations that lose data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Where {
    /// Those of [`LossCurveOptions::station`].
    One,
    /// All.
    Both,
}

/// Options of [`measure()`].
#[derive(Clone, Debug)]
pub struct LossCurveOptions {
    /// Paths of the recordings.
    pub files: Vec<String>,
    /// Numbers of the stations that lose data, from 1.
    pub station: Vec<u8>,
    /// Fractions of lost data.
    pub loss: Losses,
    /// Fractions of the data that the stations keep, one each. There are two curves of one point then: shed in common steps, and at
    /// random.
    pub kept: Vec<f64>,
    /// How frames are shed; one curve each.
    pub shed: Vec<Kind>,
    /// Replacements for shed frames; one curve each.
    pub replace: Vec<Replace>,
    /// Whether packets are shed, not frames.
    pub by_packet: bool,
    /// Lengths of the packets, in bytes; one curve each. By default an eighth of a frame, or the largest whole part below that.
    pub packet: Vec<usize>,
    /// Treatments of frames whose header is lost; one curve each. By default only [`Search::Flywheel`].
    pub search: Vec<Search>,
    /// Whether to map amplitudes over header search, length of packets and loss. Only [`LossCurveOptions::station`] lose data then, and
    /// always packets; by default there are several header searches and lengths.
    pub map: bool,
    /// Knowledge of the correlator; one curve each.
    pub knows: Vec<Knows>,
    /// Seed of all random choices.
    pub seed: u64,
    /// Options of the correlation.
    pub correlate: CorrelateOptions,
    /// Directory for the curves, as they grow, and for their pictures, if the crate has its feature `pictures`.
    pub out: Option<PathBuf>,
    /// Whether existing results are overwritten.
    pub force: bool,
}

impl Default for LossCurveOptions {
    fn default() -> LossCurveOptions {
        LossCurveOptions {
            files: Vec::new(),
            station: vec![2],
            loss: DEFAULT_LOSSES.parse().unwrap_or(Losses(Vec::new())),
            kept: Vec::new(),
            shed: vec![Kind::Every, Kind::Bunch, Kind::Random],
            replace: vec![Replace::Nothing, Replace::Fill],
            by_packet: false,
            packet: Vec::new(),
            search: Vec::new(),
            map: false,
            knows: vec![Knows::All, Knows::Headers],
            seed: 1,
            correlate: CorrelateOptions::default(),
            out: None,
            force: false,
        }
    }
}

impl LossCurveOptions {
    /// Returns how frames are shed, and at which stations.
    fn losing(&self) -> Vec<(Kind, Where)> {
        let at_one = self.shed.iter().map(|shed| (*shed, Where::One));
        let at_all = |kinds: [Kind; 2]| kinds.map(|shed| (shed, Where::Both));
        match self.map {
            _ if !self.kept.is_empty() => at_all([Kind::Random, Kind::Keep]).into(),
            true => at_one.collect(),
            false => at_one.chain(at_all([Kind::Random, Kind::Common])).collect(),
        }
    }

    /// Returns the fractions of lost data: their mean, if each station keeps a fraction of its own.
    fn losses(&self) -> Vec<f64> {
        match self.kept.len() {
            0 => self.loss.0.clone(),
            count => vec![1.0 - self.kept.iter().sum::<f64>() / count as f64],
        }
    }

    /// Returns the names of all pictures' files, without suffix.
    fn stems(&self) -> BTreeSet<String> {
        let losing = self.losing().into_iter();
        let of = |(shed, at): (Kind, Where)| {
            let pairs = pairs(self.files.len()).into_iter();
            pairs.map(move |pair| stem(at, shed, pair))
        };
        let stems = losing.flat_map(of);
        let map = pairs(self.files.len()).into_iter().map(map_stem);
        stems.chain(map.filter(|_| self.map)).collect()
    }

    /// Returns the header searches to measure.
    fn searches(&self) -> Vec<Search> {
        match (self.search.as_slice(), self.map) {
            ([], false) => vec![Search::Flywheel],
            ([], true) => MAP_SEARCHES.to_vec(),
            (searches, _) => searches.to_vec(),
        }
    }
}

/// Result of [`measure()`]: amplitude, weight and noise against loss.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LossCurve {
    schema: &'static str,
    stations: Vec<String>,
    /// The first station that loses data; all do in curves of both.
    lossy: String,
    /// All stations that lose data, unless the curve is of both.
    lossy_stations: Vec<String>,
    knows: Vec<Knows>,
    seed: u64,
    period_s: f64,
    /// Result of the complete recordings, for the first baseline that loses data.
    lossless: Point,
    /// The same for each baseline.
    lossless_baselines: Vec<Lossless>,
    curves: Vec<Curve>,
    /// Map of the amplitudes, if one was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    map: Vec<map::Cell>,
    /// Conclusions, as sentences.
    conclusions: Vec<String>,
    /// Whether all points were measured; false while it runs, or if it was interrupted.
    finished: bool,
    /// Whether the run was stopped before all points were measured.
    pub interrupted: bool,
}

/// How the recordings are damaged, and what the correlator knows of it.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Harm {
    knows: Knows,
    shed: Kind,
    replace: Replace,
    at: Where,
    /// Length of the shed packets in bytes; `None` if whole frames are shed.
    packet: Option<usize>,
    /// Treatment of frames whose header is lost: `flywheel`, `drop`, `drop:N` or `hold:M:N`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    search: Search,
}

impl Harm {
    /// Returns the packets that are shed, for a sentence; nothing for frames.
    fn packets(self) -> String {
        let shown = |packet: usize| format!(", packets of {packet} bytes");
        self.packet.map_or_else(String::new, shown)
    }

    /// Returns what the reader does without a header, for a sentence; nothing if that is not to be mentioned.
    fn reader(self) -> String {
        match (self.search, self.packet) {
            (Search::Flywheel, None) => String::new(),
            (Search::Flywheel, Some(_)) => "; frames without a header are kept".to_owned(),
            (Search::Drop(0), _) => "; frames without a header are dropped".to_owned(),
            (Search::Drop(more), _) => {
                format!("; frames without a header are dropped, and {more} more after each")
            }
            (Search::Hold { missing, needed }, _) => format!(
                "; frames without a header are kept up to {missing} in a row, then all are dropped until {needed} in a row have one"
            ),
        }
    }
}

/// Result of a baseline's complete recordings.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Lossless {
    baseline: [String; 2],
    #[serde(flatten)]
    point: Point,
}

/// Points of a baseline with the same damage at different losses.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Curve {
    #[serde(flatten)]
    harm: Harm,
    baseline: [String; 2],
    /// Stations of the baseline that lose data.
    lossy_stations: Vec<String>,
    points: Vec<Point>,
    /// Minimum loss at which more than 1 % of the periods deviate from the theory by more than 5 standard errors.
    breaks_at: Option<f64>,
}

/// Result of one correlation.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Point {
    /// Requested loss fraction.
    loss: f64,
    /// Fraction of the frames or packets that was shed, averaged over the stations that lost some.
    shed: f64,
    /// Fraction of the samples that was lost, including those of frames that the reader dropped.
    lost: f64,
    /// Prediction of `lost` from `shed` for packets that are lost independently; `None` for other losses.
    lost_theory: Option<f64>,
    amplitude: Amplitude,
    /// Relative standard error of an amplitude.
    relative_error: f64,
    snr: f64,
    weight: f64,
    /// Amplitudes, weight and signal-to-noise ratio relative to those without loss.
    ratio: Measures,
    /// Prediction of these ratios; `None` if the theory has none.
    theory: Option<Measures>,
    /// Fraction of the periods that deviate from the theory by more than 5 standard errors, including the random choice of frames.
    periods_off: Option<f64>,
    /// Mean over the periods of the amplitude by the valid overlap, relative to that without loss.
    mean_of_periods: f64,
    /// The same over the periods with half of their data or more.
    mean_of_heavy_periods: f64,
    light_periods: usize,
    /// Mean amplitude of the periods with less than half of their data, relative to that without loss; `None` if there are none.
    light_amplitude: Option<f64>,
    /// Period of the highest amplitude; `None` if no period has data.
    highest: Option<Highest>,
    /// Periods of the highest loss of a curve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    periods: Vec<Dump>,
}

/// Period of the highest amplitude.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Highest {
    /// Amplitude relative to the mean of those without loss.
    amplitude: f64,
    weight: f64,
}

/// Quantities that change with loss.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Measures {
    all: f64,
    autos: f64,
    valid: f64,
    weight: f64,
    snr: f64,
}

impl From<Ratios> for Measures {
    fn from(ratios: Ratios) -> Measures {
        Measures {
            all: ratios.amplitude_by_all,
            autos: ratios.amplitude_by_autos,
            // Without flags all samples count as valid.
            valid: if ratios.weight < 1.0 {
                ratios.amplitude_by_overlap
            } else {
                ratios.amplitude_by_autos
            },
            weight: ratios.weight,
            snr: ratios.snr,
        }
    }
}

/// Measures all curves.
///
/// # Errors
/// Returns an error if the recordings cannot be correlated or show no fringe, or a result exists or cannot be written.
pub fn measure(asked: &LossCurveOptions, run: &Run) -> Result<LossCurve, LossCurveError> {
    // Checked before minutes of work.
    let directory = asked.out.as_ref();
    let curves = directory.map(|directory| directory.join("loss-curve.json"));
    check_new(curves.as_deref(), asked.force)?;
    if let Some(directory) = &asked.out {
        make_directory(directory)?;
        if pictures::ARE_DRAWN {
            pictures::check(directory, asked.stems(), asked.force)?;
        }
    }
    // Points take hours, so each is saved once it is measured.
    let keep = |result: &LossCurve| match &curves {
        Some(file) => replace_json(file, result),
        None => Ok(()),
    };
    let result = measure_all(asked, run, &keep)?;
    keep(&result)?;
    if let Some(directory) = asked.out.as_ref().filter(|_| pictures::ARE_DRAWN) {
        result.draw(directory, asked.force)?;
    }
    Ok(result)
}

/// Returns the name of a picture's files, without suffix. `pair` are the numbers of the baseline's stations, if there are several
/// baselines.
fn stem(at: Where, shed: Kind, pair: Option<[usize; 2]>) -> String {
    format!("{}-{}{}", name(&at), name(&shed), suffix(pair))
}

fn map_stem(pair: Option<[usize; 2]>) -> String {
    format!("map{}", suffix(pair))
}

fn suffix(pair: Option<[usize; 2]>) -> String {
    pair.map_or_else(String::new, |[a, b]| format!("-{a}-{b}"))
}

/// Returns the numbers of the stations of each baseline; none if there is only one.
fn pairs(stations: usize) -> Vec<Option<[usize; 2]>> {
    let of = |a: usize| (a + 1..=stations).map(move |b| Some([a, b]));
    match stations {
        ..=2 => vec![None],
        _ => (1..=stations).flat_map(of).collect(),
    }
}

/// Measures all curves for each knowledge, until the run is stopped; calls `keep` with the result after each point.
fn measure_all(
    asked: &LossCurveOptions,
    run: &Run,
    keep: &dyn Fn(&LossCurve) -> Result<(), OutputError>,
) -> Result<LossCurve, LossCurveError> {
    let experiments = asked.knows.iter();
    let experiments = experiments
        .map(|knows| Experiment::new(asked, *knows, run))
        .collect::<Result<Vec<Experiment<'_>>, LossCurveError>>()?;
    let all = experiments.iter().flat_map(|experiment| {
        let points = experiment.points().into_iter();
        points.map(move |(harm, loss)| (experiment, harm, loss))
    });
    let all: Vec<(&Experiment<'_>, Harm, f64)> = all.collect();
    let mut progress = run.progress(Some(all.len() as u64));
    let first = experiments.first().ok_or(LossCurveError::NoKnowledge)?;
    let lossy = first.first_lossy().ok_or(LossCurveError::NoLoss)?;
    let lossy_stations = first.lossy_names();
    let lossless = |baseline: &Baseline| Lossless {
        baseline: baseline.names.clone(),
        point: baseline.lossless(),
    };
    let mut result = LossCurve {
        schema: "evlbi.loss-curve/1",
        stations: first.stations.clone(),
        lossy: lossy_stations.first().cloned().unwrap_or_default(),
        lossy_stations,
        knows: asked.knows.clone(),
        seed: asked.seed,
        period_s: first.period_s,
        conclusions: Vec::new(),
        lossless: lossy.lossless(),
        lossless_baselines: first.baselines.iter().map(lossless).collect(),
        curves: Vec::new(),
        map: Vec::new(),
        finished: false,
        interrupted: false,
    };
    // A point has no notes that the whole recordings had not.
    let silenced = run.silenced();
    let count = all.len();
    for (done, (experiment, harm, loss)) in (1..).zip(all) {
        let Some(points) = experiment.point(harm, loss, &silenced)? else {
            result.interrupted = true;
            break;
        };
        for (baseline, point) in experiment.baselines.iter().zip(points) {
            let lossy = experiment.losing(baseline, harm);
            result.add(harm, &baseline.names, lossy, point);
        }
        keep(&result)?;
        if progress.is_due() {
            progress.show(done, &format!("{done} of {count} points"));
        }
    }
    result.conclusions = theory::conclusions(&result.curves);
    if asked.map {
        result.map = map::cells(&result.curves);
        result.conclusions.extend(map::conclusions(&result.map));
    }
    result.finished = !result.interrupted;
    Ok(result)
}

impl LossCurve {
    /// Adds a point to its curve.
    fn add(&mut self, harm: Harm, baseline: &[String; 2], lossy: Vec<String>, point: Point) {
        let is_broken = point.periods_off.is_some_and(|off| off > MAX_OFF);
        let breaks_at = is_broken.then_some(point.loss);
        let is_of = |curve: &&mut Curve| curve.harm == harm && curve.baseline == *baseline;
        match self.curves.iter_mut().find(is_of) {
            Some(curve) => {
                // Only the periods of the highest loss are kept.
                if let Some(before) = curve.points.last_mut() {
                    before.periods.clear();
                }
                curve.breaks_at = curve.breaks_at.or(breaks_at);
                curve.points.push(point);
            }
            None => self.curves.push(Curve {
                harm,
                baseline: baseline.clone(),
                lossy_stations: lossy,
                points: vec![point],
                breaks_at,
            }),
        }
    }

    /// Draws the curves of each policy, place and baseline.
    fn draw(&self, directory: &Path, force: bool) -> Result<(), PictureError> {
        let mut drawn = Vec::new();
        let harms = self.curves.iter().map(|curve| curve.harm);
        let kinds = harms.map(|Harm { at, shed, .. }| (at, shed));
        for (at, shed) in kinds {
            if drawn.contains(&(at, shed)) {
                continue;
            }
            drawn.push((at, shed));
            for (pair, shown) in pairs(self.stations.len())
                .into_iter()
                .zip(&self.lossless_baselines)
            {
                let baseline = &shown.baseline;
                let is_of = |curve: &&Curve| {
                    (curve.harm.at, curve.harm.shed) == (at, shed) && curve.baseline == *baseline
                };
                let curves: Vec<&Curve> = self.curves.iter().filter(is_of).collect();
                let (place, kind) = (name(&at), name(&shed));
                let title = format!("Loss at {place} of {}, shed {kind}", baseline.join("-"));
                let figure = picture::figure(&curves, &title);
                pictures::write(&figure, directory, &stem(at, shed, pair), force)?;
            }
        }
        for (pair, shown) in pairs(self.stations.len())
            .into_iter()
            .zip(&self.lossless_baselines)
        {
            let cells = self
                .map
                .iter()
                .filter(|cell| cell.baseline == shown.baseline);
            let cells: Vec<&map::Cell> = cells.collect();
            if !cells.is_empty() {
                let figure = map::figure(&cells, &shown.baseline.join("-"));
                pictures::write(&figure, directory, &map_stem(pair), force)?;
            }
        }
        Ok(())
    }

    /// Returns whether a curve is of a baseline that loses nothing, and whose results are those of the complete recordings.
    fn is_unchanged(&self, curve: &Curve) -> bool {
        let is_same = |ratio: f64| (ratio - 1.0).abs() < ROUNDING;
        let is_same = |point: &Point| is_same(point.ratio.valid) && is_same(point.ratio.weight);
        curve.lossy_stations.is_empty() && curve.points.iter().all(is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read() {
        assert_eq!("1%,0.05".parse(), Ok(Losses(vec![0.01, 0.05])));
        let Losses(range) = "0.5%..20%".parse().unwrap();
        assert_eq!((range[0], *range.last().unwrap()), (0.005, 0.2));
        assert!(range.len() > 5);
        for bad in ["", "0", "95%", "20%..x", "5%..1%,"] {
            assert!(bad.parse::<Losses>().is_err(), "{bad}");
        }
    }
}
