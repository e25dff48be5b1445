//! What losing data costs a correlation, measured on recordings and held against theory.
//!
//! Each point harms the recordings on their way into the correlator with one shedding policy, loss and replacement,
//! and correlates them at the delay and rate of the whole recordings.
//!
//! Here belongs a further harm to recordings, or what is concluded from a curve; what theory says is in [`evlbi_fx::loss`].

mod picture;
mod theory;

use std::path::PathBuf;
use std::str::FromStr;

use evlbi_core::shed::{Policy, PolicyError, Replace, Shed, ShedError, Stream};
use evlbi_fx::correlator::Input;
use evlbi_fx::loss::Ratios;
use evlbi_fx::track::Trust;
use evlbi_net::file::{OutputError, check_new, replace_json};
use evlbi_net::run::Run;
use evlbi_plot::name;
use serde::Serialize;

use crate::files::{FileError, make_directory};
use crate::pictures::{self, PictureError};
use crate::series::{Dump, Found};
use crate::tamper::Tampered;
use crate::{
    Along, Amplitude, Cause, CorrelateError, CorrelateOptions, Correlation, Recordings, Tamper,
    correlate,
};

/// Losses of a range: those of these that lie in it, and its ends.
const STEPS: [f64; 12] = [
    0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
];
/// Periods further than this off the theory, in standard errors, are off.
const OFF: f64 = 5.0;
/// Share of the periods that may be off.
const MOST_OFF: f64 = 0.01;
/// Step of the loss in which the theory's slope is taken.
const STEP: f64 = 1e-3;
/// Mean length of a burst.
const BURST: f64 = 8.0;
/// Least weight of a period for the mean with a cut.
const WEIGHT_CUT: f64 = 0.5;

/// Head of the table of a curve.
const HEAD: &str = "    loss     shed     lost       all    autos    valid   weight      SNR   theory:      all    autos    valid      SNR  off";

/// Fractions where nothing is said.
pub const DEFAULT_LOSSES: &str = "0.5%..20%";

/// Fractions: `1%,5%,10%` or `0.5%..20%`.
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
                "`{text}` names no losses between 0 and 90 %: write 0.5%..20% or 1%,5%"
            ));
        }
        Ok(Losses(losses))
    }
}

/// Why curves are not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossCurveError {
    /// The recordings cannot be correlated.
    #[error("{0}")]
    Correlate(#[from] CorrelateError),
    /// The station that is to lose data is none of the recordings.
    #[error("station {station} is not among the {recordings} recordings")]
    NoStation {
        /// The station, from 1 on.
        station: u8,
        /// How many recordings there are.
        recordings: usize,
    },
    /// A delay model goes with the recordings, but its first two stations are not those that are correlated.
    #[error("a delay model is of its first two stations, and the recordings are of others")]
    OtherThanModel,
    /// No knowledge of the correlator is asked for.
    #[error("nothing that the correlator may know is named")]
    NoKnowledge,
    /// The run was stopped before there was anything to hold the curves against.
    #[error("interrupted before the whole recordings were correlated")]
    Interrupted,
    /// The whole recordings show no fringe.
    #[error(
        "the whole recordings show no fringe (signal-to-noise ratio {snr:.1}), so there is nothing that loss could harm"
    )]
    NoFringe {
        /// Signal-to-noise ratio of the highest peak.
        snr: f64,
    },
    /// The directory of the results cannot be made.
    #[error("{0}")]
    File(#[from] FileError),
    /// The curves are there already, or cannot be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// A picture cannot be written.
    #[error("{0}")]
    Picture(#[from] PictureError),
}

/// How data are shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Steadily, one in so many
    Every,
    /// In bunches of 1 to 10
    Bunch,
    /// By chance
    Random,
    /// By chance in bursts
    Burst,
    /// Alike at all stations, in blocks of time or whole threads
    Common,
}

/// How a correlator finds out what is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Knows {
    /// All that there is to know: invalid bits, fill pattern, lists of gaps
    All,
    /// Invalid bits alone
    Headers,
    /// Invalid bits alone, and after each gap one frame more is lost until frames are found again
    Papers,
}

/// Which stations lose data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Where {
    /// One of the two.
    One,
    /// Both.
    Both,
}

/// What is measured of which recordings.
#[derive(Clone, Debug)]
pub struct LossCurveOptions {
    /// Recordings, of which two are correlated: that of `station` and the first other.
    pub files: Vec<String>,
    /// Which station loses data, from 1 on.
    pub station: u8,
    /// Fractions that are lost.
    pub loss: Losses,
    /// How frames are shed.
    pub shed: Vec<Kind>,
    /// What stands in their place.
    pub replace: Vec<Replace>,
    /// What the correlator knows of the loss: curves of each.
    pub knows: Vec<Knows>,
    /// Seed of all random choices.
    pub seed: u64,
    /// How they are correlated.
    pub correlate: CorrelateOptions,
    /// Directory for the curves, as they grow, and their pictures.
    pub out: Option<PathBuf>,
    /// Whether results that exist are overwritten.
    pub force: bool,
}

impl Default for LossCurveOptions {
    fn default() -> LossCurveOptions {
        LossCurveOptions {
            files: Vec::new(),
            station: 2,
            loss: DEFAULT_LOSSES.parse().unwrap_or(Losses(Vec::new())),
            shed: vec![Kind::Every, Kind::Bunch, Kind::Random],
            replace: vec![Replace::Nothing, Replace::Fill],
            knows: vec![Knows::All, Knows::Headers],
            seed: 1,
            correlate: CorrelateOptions::default(),
            out: None,
            force: false,
        }
    }
}

impl LossCurveOptions {
    /// How frames are shed, and at which stations.
    fn losing(&self) -> Vec<(Kind, Where)> {
        let at_one = self.shed.iter().map(|shed| (*shed, Where::One));
        let at_both = [Kind::Random, Kind::Common].map(|shed| (shed, Where::Both));
        at_one.chain(at_both).collect()
    }
}

/// Amplitude, weight and noise against loss.
#[derive(Serialize)]
pub struct LossCurve {
    schema: &'static str,
    stations: [String; 2],
    /// The station that loses data, or both of them in curves of both.
    lossy: String,
    knows: Vec<Knows>,
    seed: u64,
    period_s: f64,
    /// The whole recordings.
    lossless: Point,
    curves: Vec<Curve>,
    /// What it means.
    conclusions: Vec<String>,
    /// Whether all points were measured: not yet, or not at all if it was interrupted.
    finished: bool,
    /// Whether it was stopped before all points were measured.
    pub interrupted: bool,
}

/// What is done to the recordings, and what the correlator knows of it.
#[derive(Clone, Copy, PartialEq, Serialize)]
struct Harm {
    knows: Knows,
    shed: Kind,
    replace: Replace,
    at: Where,
}

/// The losses of one harm.
#[derive(Serialize)]
struct Curve {
    #[serde(flatten)]
    harm: Harm,
    points: Vec<Point>,
    /// Smallest loss at which more than 1 % of the periods lie 5 standard errors off the theory.
    breaks_at: Option<f64>,
}

/// One correlation.
#[derive(Clone, Serialize)]
struct Point {
    /// Fraction asked for.
    loss: f64,
    /// Fraction of the frames that was shed, the mean of the stations that lost some.
    shed: f64,
    /// The same with the frames that were read over after a gap.
    lost: f64,
    amplitude: Amplitude,
    /// Standard error of an amplitude relative to itself.
    relative_error: f64,
    snr: f64,
    weight: f64,
    /// Amplitudes, weight and signal-to-noise ratio in units of those without loss.
    ratio: Measures,
    /// What theory says of these; none where it says nothing.
    theory: Option<Measures>,
    /// Share of the periods that lie 5 standard errors off the theory, that of the frames' chance included.
    periods_off: Option<f64>,
    /// Mean over the periods of the amplitude by the valid overlap, in units of that without loss.
    mean_of_periods: f64,
    /// The same of those with half of their data or more.
    mean_of_heavy_periods: f64,
    light_periods: usize,
    /// The periods of the highest loss of a curve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    periods: Vec<Dump>,
}

/// What changes with loss.
#[derive(Clone, Copy, Debug, Serialize)]
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
            // Where loss is not flagged, all samples count as valid.
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

/// Measures the curves that are asked for.
///
/// # Errors
/// When the recordings cannot be correlated or show no fringe, or a result exists or cannot be written.
pub fn measure(asked: &LossCurveOptions, run: &Run) -> Result<LossCurve, LossCurveError> {
    // Before minutes of work.
    let directory = asked.out.as_ref();
    let curves = directory.map(|directory| directory.join("loss-curve.json"));
    check_new(curves.as_deref(), asked.force)?;
    if let Some(directory) = &asked.out {
        make_directory(directory)?;
        let losing = asked.losing();
        let stems = losing.iter().map(|(shed, at)| stem(*at, *shed));
        pictures::check(directory, stems, asked.force)?;
    }
    // Points take hours: each is on disk once it is measured.
    let keep = |result: &LossCurve| match &curves {
        Some(file) => replace_json(file, result),
        None => Ok(()),
    };
    let result = measure_all(asked, run, &keep)?;
    keep(&result)?;
    if let Some(directory) = &asked.out {
        let mut drawn = Vec::new();
        for Harm { at, shed, .. } in result.curves.iter().map(|curve| curve.harm) {
            if drawn.contains(&(at, shed)) {
                continue;
            }
            drawn.push((at, shed));
            let (place, shown, pair) = (name(&at), name(&shed), result.stations.join("-"));
            let title = format!("Loss at {place} of {pair}, shed {shown}");
            let figure = picture::figure(&result.curves, at, shed, &title);
            pictures::write(&figure, directory, &stem(at, shed), asked.force)?;
        }
    }
    Ok(result)
}

/// The name of a picture's files, without their endings.
fn stem(at: Where, shed: Kind) -> String {
    format!("{}-{}", name(&at), name(&shed))
}

/// Measures with each knowledge, until the run is stopped; `keep` gets the result with each point.
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
    let mut result = LossCurve {
        schema: "evlbi.loss-curve/1",
        stations: first.stations.clone(),
        lossy: first.stations[first.lossy].clone(),
        knows: asked.knows.clone(),
        seed: asked.seed,
        period_s: first.period_s,
        conclusions: Vec::new(),
        lossless: first.measure(&first.whole, 0.0, (0.0, 0.0), Vec::new(), None),
        curves: Vec::new(),
        finished: false,
        interrupted: false,
    };
    for (done, (experiment, harm, loss)) in (1..).zip(all) {
        let Some(point) = experiment.point(harm, loss, run)? else {
            result.interrupted = true;
            break;
        };
        result.add(harm, point);
        keep(&result)?;
        if progress.is_due() {
            progress.show(done, &format!("{done} points"));
        }
    }
    result.conclusions = theory::conclusions(&result.curves);
    result.finished = !result.interrupted;
    Ok(result)
}

impl LossCurve {
    /// Adds a point to its curve.
    fn add(&mut self, harm: Harm, point: Point) {
        let is_broken = point.periods_off.is_some_and(|off| off > MOST_OFF);
        let breaks_at = is_broken.then_some(point.loss);
        match self.curves.iter_mut().find(|curve| curve.harm == harm) {
            Some(curve) => {
                // The periods of the highest loss are kept.
                if let Some(before) = curve.points.last_mut() {
                    before.periods.clear();
                }
                curve.breaks_at = curve.breaks_at.or(breaks_at);
                curve.points.push(point);
            }
            None => self.curves.push(Curve {
                harm,
                points: vec![point],
                breaks_at,
            }),
        }
    }
}

impl Along for (&Experiment<'_>, Harm, f64) {
    fn tamper(&mut self, station: usize) -> Result<Option<Tamper>, Cause> {
        let (experiment, harm, loss) = *self;
        let loses = experiment.loses(station, harm);
        let tamper = loses.then(|| experiment.tamper(station, harm, loss));
        Ok(tamper.transpose()?)
    }
}

/// Why frames cannot be shed so.
#[derive(Debug, thiserror::Error)]
enum HarmError {
    #[error("{0}")]
    Policy(#[from] PolicyError),
    #[error("{0}")]
    Shed(#[from] ShedError),
}

/// What all points of one knowledge have in common.
struct Experiment<'a> {
    asked: &'a LossCurveOptions,
    knows: Knows,
    recordings: Recordings,
    options: CorrelateOptions,
    /// Which of the two loses data.
    lossy: usize,
    whole: Found,
    /// Of both stations, without loss.
    spectra: [Vec<f64>; 2],
    whole_mean: f64,
    stations: [String; 2],
    period_s: f64,
}

impl Experiment<'_> {
    fn new<'a>(
        asked: &'a LossCurveOptions,
        knows: Knows,
        run: &Run,
    ) -> Result<Experiment<'a>, LossCurveError> {
        let (station, files) = (usize::from(asked.station), &asked.files);
        if !(1..=files.len()).contains(&station) {
            return Err(LossCurveError::NoStation {
                station: asked.station,
                recordings: files.len(),
            });
        }
        // The first of the others is its partner.
        let partner = usize::from(station == 1);
        let mut pair = [partner, station - 1];
        pair.sort_unstable();
        let paths = pair.map(|index| files[index].clone());
        let mut options = asked.correlate.clone();
        if options.model.is_some() && pair != [0, 1] {
            return Err(LossCurveError::OtherThanModel);
        }
        let delays = pair.iter().filter_map(|index| options.delay.get(*index));
        options.delay = delays.cloned().collect();
        options.trust = match knows {
            Knows::All => Trust::Exact,
            Knows::Headers | Knows::Papers => Trust::Headers,
        };
        let recordings = Recordings::open(&paths, &options, run)?;
        let whole = correlate(&recordings, &options, run, &mut ())?;
        let found = whole.find(0);
        if whole.interrupted {
            return Err(LossCurveError::Interrupted);
        }
        if found.fringe.false_alarm > 1e-3 {
            return Err(LossCurveError::NoFringe { snr: found.snr });
        }
        Ok(Experiment {
            asked,
            knows,
            lossy: usize::from(station - 1 == pair[1]),
            stations: [0, 1].map(|place| whole.setup.stations()[place].name.clone()),
            period_s: whole.series.dump_seconds,
            recordings,
            options,
            spectra: theory::spectra(&whole),
            whole_mean: mean(&whole.series.dumps_at(0, &found.fringe), 0.0),
            whole: found,
        })
    }

    /// All points: the policies and replacements at one station; then at both, independent and in common.
    fn points(&self) -> Vec<(Harm, f64)> {
        // What another knowledge measures alike is measured once.
        let asked = |knows: Knows| self.asked.knows.contains(&knows);
        let again = |replace: Replace| match (self.knows, replace) {
            (Knows::Headers, Replace::Nothing | Replace::Invalid) => asked(Knows::All),
            (Knows::Papers, Replace::Nothing) => false,
            (Knows::Papers, Replace::Invalid) => asked(Knows::All) || asked(Knows::Headers),
            (Knows::Papers, _) => asked(Knows::Headers),
            _ => false,
        };
        let mut points = Vec::new();
        for (shed, at) in self.asked.losing() {
            for replace in self.asked.replace.iter().filter(|it| !again(**it)) {
                let harm = Harm {
                    knows: self.knows,
                    shed,
                    replace: *replace,
                    at,
                };
                points.extend(self.asked.loss.0.iter().map(|loss| (harm, *loss)));
            }
        }
        points
    }

    fn loses(&self, station: usize, harm: Harm) -> bool {
        harm.at == Where::Both || station == self.lossy
    }

    /// Measures a point; none if the run is stopped.
    fn point(&self, harm: Harm, loss: f64, run: &Run) -> Result<Option<Point>, CorrelateError> {
        let mut harming = (self, harm, loss);
        let found = correlate(&self.recordings, &self.options, run, &mut harming)?;
        if found.interrupted {
            return Ok(None);
        }
        let lossy = (0..2).filter(|station| self.loses(*station, harm));
        let done: Vec<Tampered> = lossy
            .filter_map(|station| found.tampered(station))
            .collect();
        let mean = |share: fn(&Tampered) -> f64| {
            done.iter().map(share).sum::<f64>() / done.len().max(1) as f64
        };
        let (shed, lost) = (mean(|harm| harm.shed), mean(|harm| harm.lost));
        let delay = self.delay_between(&found);
        // What the correlator takes the place of lost data for.
        let known = Harm {
            replace: match self.knows {
                Knows::All => Replace::Nothing,
                Knows::Headers | Knows::Papers => harm.replace,
            },
            ..harm
        };
        let predict = |shed: f64| {
            let ratios = theory::predict(&found, &self.spectra, known, self.lossy, shed, delay);
            ratios.map(Measures::from)
        };
        let theory = predict(shed).map(|here| {
            let slope = predict(shed + STEP).map_or(0.0, |there| (there.valid - here.valid).abs());
            (here, slope / STEP * self.scatter(harm.shed, shed))
        });
        let fringe = &self.whole.fringe;
        let (here, periods) = (found.find_at(0, fringe), found.series.dumps_at(0, fringe));
        let point = self.measure(&here, loss, (shed, lost), periods, theory);
        Ok(Some(point))
    }

    fn delay_between(&self, found: &Correlation) -> f64 {
        let middle = found.setup.middle(found.first_block());
        let late = |station: usize| {
            let late = found.setup.stations()[station].delay.about(middle);
            late.map_or(0.0, |(late, _)| late)
        };
        (late(0) - late(1)).abs()
    }

    fn tamper(&self, station: usize, harm: Harm, loss: f64) -> Result<Tamper, HarmError> {
        let policy: Policy = match harm.shed {
            Kind::Every => format!("every:{}", (1.0 / loss).round().max(2.0)),
            Kind::Bunch => format!("bunch:{loss}"),
            Kind::Random => format!("random:{loss}"),
            Kind::Burst => format!("burst:{loss},{BURST}"),
            Kind::Common => format!("common:{loss}"),
        }
        .parse()?;
        let file = &self.recordings.files[station];
        let shape = file.shape();
        let frame = file.frame_length() as u64;
        let stream = Stream {
            rate: None,
            unit_bytes: frame,
            wire_bytes: frame,
            threads: shape.threads.clone(),
            frame_rate: Some(shape.layout.frame_rate),
        };
        // Common shedding goes by one seed, all other by one a station.
        let seed = match harm.shed {
            Kind::Common => self.asked.seed,
            _ => self.asked.seed.wrapping_add(1000 * station as u64),
        };
        let replace = match harm.replace {
            // Who knows the list of gaps does not look at what lies there.
            Replace::Random if self.knows == Knows::All => Replace::Invalid,
            other => other,
        };
        let shed = Shed::new(policy, seed, &stream)?;
        let loses_step = self.knows == Knows::Papers;
        Ok(Tamper::new(shed, replace, seed, loses_step))
    }

    /// Standard deviation of the share that a period loses: chance decides which frames it has.
    fn scatter(&self, kind: Kind, shed: f64) -> f64 {
        let shape = self.recordings.files[self.lossy].shape();
        let a_second = f64::from(shape.layout.frame_rate.get()) * shape.threads.len() as f64;
        let frames = (a_second * self.period_s).max(1.0);
        // Mean square over mean of the lengths of what is lost in one piece.
        let together = match kind {
            Kind::Every | Kind::Random => 1.0,
            Kind::Bunch => 7.0,
            Kind::Burst => 2.0 * BURST - 1.0,
            Kind::Common => a_second * theory::COMMON_CELL,
        };
        // And where the period's ends cut frames.
        (shed * (1.0 - shed) * together / frames).sqrt() + 1.0 / frames
    }

    fn measure(
        &self,
        here: &Found,
        loss: f64,
        (shed, lost): (f64, f64),
        periods: Vec<Dump>,
        theory: Option<(Measures, f64)>,
    ) -> Point {
        let whole = &self.whole;
        let ratio = Measures {
            all: here.amplitude.all / whole.amplitude.all,
            autos: here.amplitude.autos / whole.amplitude.autos,
            valid: here.amplitude.valid / whole.amplitude.valid,
            weight: here.weight / whole.weight,
            snr: here.snr / whole.snr,
        };
        let theory_of_periods = theory.filter(|_| !periods.is_empty());
        let off = theory_of_periods.map(|(theory, scatter)| {
            let scatter = scatter * self.whole_mean;
            let expected = theory.valid * self.whole_mean;
            let with_data = || periods.iter().filter(|period| period.weight > 0.0);
            let off = |period: &&Dump| {
                (period.amplitude - expected).abs() > OFF * period.error.hypot(scatter)
            };
            with_data().filter(off).count() as f64 / with_data().count().max(1) as f64
        });
        let is_light = |period: &&Dump| period.weight < WEIGHT_CUT;
        Point {
            loss,
            shed,
            lost,
            amplitude: here.amplitude,
            relative_error: 1.0 / here.snr.max(1e-9),
            snr: here.snr,
            weight: here.weight,
            ratio,
            theory: theory.map(|(theory, _)| theory),
            periods_off: off,
            mean_of_periods: mean(&periods, 0.0) / self.whole_mean,
            mean_of_heavy_periods: mean(&periods, WEIGHT_CUT) / self.whole_mean,
            light_periods: periods.iter().filter(is_light).count(),
            periods,
        }
    }
}

/// Mean amplitude of the periods of some weight.
fn mean(periods: &[Dump], least: f64) -> f64 {
    let is_heavy = |period: &&Dump| period.weight > 0.0 && period.weight >= least;
    let heavy = || periods.iter().filter(is_heavy);
    let sum = heavy().fold(0.0, |sum, period| sum + period.amplitude);
    sum / heavy().count().max(1) as f64
}

/// An input of the pair: its first product's.
pub fn inputs(found: &Correlation) -> [Input; 2] {
    let product = found.setup.products()[0];
    [product.a, product.b]
}

/// The same for people.
pub fn text(result: &LossCurve) -> String {
    let mut shown = format!(
        "{}: amplitude {:.6}, signal-to-noise ratio {:.1} without loss; periods of {:.3} s\n",
        result.stations.join("-"),
        result.lossless.amplitude.valid,
        result.lossless.snr,
        result.period_s
    );
    for curve in &result.curves {
        let place = match curve.harm.at {
            Where::One => &result.lossy,
            Where::Both => "both",
        };
        shown += &format!(
            "\n{} at {place}, replaced by {}, known by {}\n{HEAD}\n",
            name(&curve.harm.shed),
            name(&curve.harm.replace),
            name(&curve.harm.knows)
        );
        for point in &curve.points {
            let theory = point.theory.map_or_else(String::new, |theory| {
                format!(
                    "{:>8.4} {:>8.4} {:>8.4} {:>8.4}",
                    theory.all, theory.autos, theory.valid, theory.snr
                )
            });
            let off = point.periods_off.map(|off| format!("{:.0} %", off * 100.0));
            let off = off.unwrap_or_default();
            shown += &format!(
                "{:>7.2}% {:>7.3}% {:>7.3}%  {:>8.4} {:>8.4} {:>8.4} {:>8.4} {:>8.4}           {theory:<35}  {off}\n",
                point.loss * 100.0,
                point.shed * 100.0,
                point.lost * 100.0,
                point.ratio.all,
                point.ratio.autos,
                point.ratio.valid,
                point.ratio.weight,
                point.ratio.snr,
            );
        }
    }
    for conclusion in &result.conclusions {
        shown += &format!("\n{conclusion}");
    }
    if result.interrupted {
        shown += "\ninterrupted: not all points were measured";
    }
    shown.trim_end().to_string()
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
