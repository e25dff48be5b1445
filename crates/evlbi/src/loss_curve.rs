//! What losing data costs a correlation, measured on recordings and held against theory.
//!
//! Each point harms the recordings on their way into the correlator with one shedding policy, loss and replacement,
//! and correlates them at the delay and rate of the whole recordings.

mod picture;
mod theory;

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use evlbi_core::shed::{Policy, Replace, Shed, Stream};
use evlbi_fx::correlator::Input;
use evlbi_fx::loss::Ratios;
use evlbi_fx::track::Trust;
use evlbi_net::run::Run;
use serde::Serialize;

use crate::correlate::{
    self, Along, CorrelateOptions, Correlation, Dump, Found, Recordings, Tamper,
};
use crate::output::{self, name};

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

/// Fractions where nothing is said.
pub const DEFAULT_LOSSES: &str = "0.5%..20%";

/// Fractions: `1%,5%,10%` or `0.5%..20%`.
#[derive(Clone, Debug, PartialEq)]
pub struct Losses(Vec<f64>);

impl FromStr for Losses {
    type Err = String;

    fn from_str(text: &str) -> Result<Losses, String> {
        let fraction = crate::units::fraction;
        let mut losses = match text.split_once("..") {
            Some((from, to)) => {
                let (from, to) = (fraction(from)?, fraction(to)?);
                let inside = STEPS.into_iter().filter(|loss| (from..=to).contains(loss));
                inside.chain([from, to]).collect()
            }
            None => text
                .split(',')
                .map(fraction)
                .collect::<Result<Vec<f64>, String>>()?,
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
    pub interrupted: bool,
}

/// One policy and replacement.
#[derive(Serialize)]
pub struct Curve {
    knows: Knows,
    shed: Kind,
    replace: Replace,
    at: Where,
    points: Vec<Point>,
    /// Smallest loss at which more than 1 % of the periods lie 5 standard errors off the theory.
    breaks_at: Option<f64>,
}

/// One correlation.
#[derive(Clone, Serialize)]
pub struct Point {
    /// Fraction asked for.
    loss: f64,
    /// Fraction of the frames that was shed, the mean of the stations that lost some.
    shed: f64,
    /// The same with the frames that were read over after a gap.
    lost: f64,
    amplitude: correlate::Amplitude,
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
pub struct Measures {
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
pub fn measure(asked: &LossCurveOptions, run: &Run) -> Result<LossCurve> {
    // Before minutes of work.
    let curves = asked
        .out
        .as_ref()
        .map(|directory| directory.join("loss-curve.json"));
    output::check_new(curves.as_deref(), asked.force)?;
    if let Some(directory) = &asked.out {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    // Points take hours: each is on disk once it is measured.
    let keep = |result: &LossCurve| match &curves {
        Some(file) => output::replace_json(file, result),
        None => Ok(()),
    };
    let result = measure_all(asked, run, &keep)?;
    keep(&result)?;
    if let Some(directory) = &asked.out {
        let mut files = Vec::new();
        let mut drawn = Vec::new();
        for curve in &result.curves {
            if drawn.contains(&(curve.at, curve.shed)) {
                continue;
            }
            drawn.push((curve.at, curve.shed));
            let place = match curve.at {
                Where::One => "one",
                Where::Both => "both",
            };
            let shed = name(&curve.shed);
            let title = format!(
                "Loss at {place} of {}, shed {shed}",
                result.stations.join("-")
            );
            let figure = picture::figure(&result.curves, curve.at, curve.shed, &title);
            let path = |ending: &str| directory.join(format!("{place}-{shed}.{ending}"));
            files.push((path("svg"), figure.svg()?.into_bytes()));
            files.push((path("png"), figure.png()?));
        }
        output::check_new(files.iter().map(|(path, _)| path.as_path()), asked.force)?;
        for (path, bytes) in files {
            std::fs::write(&path, bytes)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(result)
}

/// Measures with each knowledge, until the run is stopped; `keep` gets the result with each point.
fn measure_all(
    asked: &LossCurveOptions,
    run: &Run,
    keep: &dyn Fn(&LossCurve) -> Result<()>,
) -> Result<LossCurve> {
    let mut experiments = Vec::new();
    for knows in &asked.knows {
        experiments.push(Experiment::new(asked, *knows, run)?);
    }
    let count = experiments
        .iter()
        .map(|experiment| experiment.harms().len());
    let mut progress = run.progress(Some(count.sum::<usize>() as u64));
    let first = experiments.first().context("--knows names nothing")?;
    let mut result = LossCurve {
        schema: "evlbi.loss-curve/1",
        stations: first.stations.clone(),
        lossy: first.stations[first.lossy].clone(),
        knows: asked.knows.clone(),
        seed: asked.seed,
        period_s: first.period_s,
        conclusions: Vec::new(),
        lossless: first.measure(&first.whole, 0.0, (0.0, 0.0), &[], None),
        curves: Vec::new(),
        finished: false,
        interrupted: false,
    };
    let points = experiments.iter().flat_map(|experiment| {
        let harms = experiment.harms().into_iter();
        harms.map(move |harm| (experiment, harm))
    });
    for (done, (experiment, harm)) in (1..).zip(points) {
        let Some(point) = experiment.point(harm, run)? else {
            result.interrupted = true;
            break;
        };
        result.add(experiment.knows, harm, point);
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
    fn add(&mut self, knows: Knows, harm: Harm, point: Point) {
        let is_of = |curve: &&mut Curve| {
            (curve.knows, curve.shed, curve.replace, curve.at)
                == (knows, harm.kind, harm.instead, harm.at)
        };
        let is_broken = point.periods_off.is_some_and(|off| off > MOST_OFF);
        let breaks_at = is_broken.then_some(point.loss);
        match self.curves.iter_mut().find(is_of) {
            Some(curve) => {
                // The periods of the highest loss are kept.
                if let Some(before) = curve.points.last_mut() {
                    before.periods.clear();
                }
                curve.breaks_at = curve.breaks_at.or(breaks_at);
                curve.points.push(point);
            }
            None => self.curves.push(Curve {
                knows,
                shed: harm.kind,
                replace: harm.instead,
                at: harm.at,
                points: vec![point],
                breaks_at,
            }),
        }
    }
}

impl Along for (&Experiment<'_>, Harm) {
    fn tamper(&mut self, station: usize) -> Result<Option<Tamper>> {
        let (experiment, harm) = *self;
        let loses = harm.at == Where::Both || station == experiment.lossy;
        loses.then(|| experiment.tamper(station, harm)).transpose()
    }
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

/// What is done to the recordings for one point.
#[derive(Clone, Copy)]
struct Harm {
    kind: Kind,
    loss: f64,
    instead: Replace,
    at: Where,
}

impl Experiment<'_> {
    fn new<'a>(asked: &'a LossCurveOptions, knows: Knows, run: &Run) -> Result<Experiment<'a>> {
        let station = usize::from(asked.station);
        if station > asked.files.len() {
            bail!(
                "--station {station} is not among the {} recordings",
                asked.files.len()
            );
        }
        // The first of the others is its partner.
        let partner = usize::from(station == 1);
        let mut pair = [partner, station - 1];
        pair.sort_unstable();
        let paths: Vec<String> = pair
            .iter()
            .map(|index| asked.files[*index].clone())
            .collect();
        let mut options = asked.correlate.clone();
        if options.model.is_some() && pair != [0, 1] {
            bail!("with --model give the two recordings of the model's first two stations");
        }
        options.delay = pair
            .iter()
            .filter_map(|index| asked.correlate.delay.get(*index).cloned())
            .collect();
        options.trust = match knows {
            Knows::All => Trust::Exact,
            Knows::Headers | Knows::Papers => Trust::Headers,
        };
        let recordings = Recordings::open(&paths, &options)?;
        let whole = correlate::correlate(&recordings, &options, run, &mut ())?;
        let found = whole.find(0);
        if whole.interrupted {
            bail!("interrupted before the whole recordings were correlated");
        }
        if found.fringe.false_alarm > 1e-3 {
            bail!(
                "the whole recordings show no fringe (signal-to-noise ratio {:.1}), so there is nothing that loss could harm",
                found.snr
            );
        }
        let mut experiment = Experiment {
            asked,
            knows,
            lossy: pair
                .iter()
                .position(|index| *index == station - 1)
                .unwrap_or(1),
            stations: [0, 1].map(|place| whole.setup.stations()[place].name.clone()),
            period_s: whole.series.dump_seconds,
            recordings,
            options,
            whole: found,
            spectra: theory::spectra(&whole),
            whole_mean: 1.0,
        };
        experiment.whole_mean = mean(&experiment.periods(&whole), 0.0);
        Ok(experiment)
    }

    /// All points: the policies and replacements at one station; then at both, independent and in common.
    fn harms(&self) -> Vec<Harm> {
        // What another knowledge measures alike is measured once.
        let asked = |knows: Knows| self.asked.knows.contains(&knows);
        let again = |instead: &&Replace| match (self.knows, instead) {
            (Knows::Headers, Replace::Nothing | Replace::Invalid) => asked(Knows::All),
            (Knows::Papers, Replace::Nothing) => false,
            (Knows::Papers, Replace::Invalid) => asked(Knows::All) || asked(Knows::Headers),
            (Knows::Papers, _) => asked(Knows::Headers),
            _ => false,
        };
        let replacements = || self.asked.replace.iter().filter(|instead| !again(instead));
        let mut harms = Vec::new();
        let mut add = |kind, instead, at| {
            for loss in &self.asked.loss.0 {
                harms.push(Harm {
                    kind,
                    loss: *loss,
                    instead,
                    at,
                });
            }
        };
        for kind in &self.asked.shed {
            for instead in replacements() {
                add(*kind, *instead, Where::One);
            }
        }
        for kind in [Kind::Random, Kind::Common] {
            for instead in replacements() {
                add(kind, *instead, Where::Both);
            }
        }
        harms
    }

    /// Measures a point; none if the run is stopped.
    fn point(&self, harm: Harm, run: &Run) -> Result<Option<Point>> {
        let mut harming = (self, harm);
        let found = correlate::correlate(&self.recordings, &self.options, run, &mut harming)?;
        if found.interrupted {
            return Ok(None);
        }
        let lossy = (0..2).filter(|station| harm.at == Where::Both || *station == self.lossy);
        let done: Vec<correlate::Tampered> = lossy
            .filter_map(|station| found.tampered(station))
            .collect();
        let mean = |share: fn(&correlate::Tampered) -> f64| {
            done.iter().map(share).sum::<f64>() / done.len().max(1) as f64
        };
        let (shed, lost) = (mean(|harm| harm.shed), mean(|harm| harm.lost));
        let delay = self.delay_between(&found);
        let known = Harm {
            instead: self.knowledge(harm.instead),
            ..harm
        };
        let predict = |shed: f64| {
            theory::predict(&found, &self.spectra, known, self.lossy, shed, delay)
                .map(Measures::from)
        };
        let theory = predict(shed);
        let scatter = theory
            .zip(predict(shed + STEP))
            .map_or(0.0, |(here, there)| {
                (there.valid - here.valid).abs() / STEP * self.scatter(harm.kind, shed)
            });
        let here = found.find_at(0, &self.whole.fringe);
        let periods = self.periods(&found);
        let point = self.measure(
            &here,
            harm.loss,
            (shed, lost),
            &periods,
            theory.map(|theory| (theory, scatter)),
        );
        Ok(Some(point))
    }

    /// What the correlator takes the place of lost data for.
    fn knowledge(&self, instead: Replace) -> Replace {
        match (self.knows, instead) {
            (Knows::All, _) => Replace::Nothing,
            (Knows::Headers | Knows::Papers, other) => other,
        }
    }

    fn delay_between(&self, found: &Correlation) -> f64 {
        let late = |station: usize| {
            let delay = &found.setup.stations()[station].delay;
            delay
                .about(found.setup.middle(found.first_block()))
                .map_or(0.0, |(late, _)| late)
        };
        (late(0) - late(1)).abs()
    }

    fn tamper(&self, station: usize, harm: Harm) -> Result<Tamper> {
        let policy: Policy = match harm.kind {
            Kind::Every => format!("every:{}", (1.0 / harm.loss).round().max(2.0)),
            Kind::Bunch => format!("bunch:{}", harm.loss),
            Kind::Random => format!("random:{}", harm.loss),
            Kind::Burst => format!("burst:{},{BURST}", harm.loss),
            Kind::Common => format!("common:{}", harm.loss),
        }
        .parse()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
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
        let seed = match harm.kind {
            Kind::Common => self.asked.seed,
            _ => self.asked.seed.wrapping_add(1000 * station as u64),
        };
        let replace = match harm.instead {
            Replace::Nothing => Replace::Nothing,
            Replace::Fill => Replace::Fill,
            Replace::Invalid => Replace::Invalid,
            // Who knows the list of gaps does not look at what lies there.
            Replace::Random if self.knows == Knows::All => Replace::Invalid,
            Replace::Random => Replace::Random,
        };
        let loses_step = self.knows == Knows::Papers;
        Ok(Tamper::new(
            Shed::new(policy, seed, &stream)?,
            replace,
            seed,
            loses_step,
        ))
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

    fn periods(&self, found: &Correlation) -> Vec<Dump> {
        found.series.dumps_at(0, &self.whole.fringe)
    }

    fn measure(
        &self,
        here: &Found,
        loss: f64,
        (shed, lost): (f64, f64),
        periods: &[Dump],
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
        let off = theory
            .filter(|_| !periods.is_empty())
            .map(|(theory, scatter)| {
                let scatter = scatter * self.whole_mean;
                let expected = theory.valid * self.whole_mean;
                let with_data: Vec<&Dump> = periods
                    .iter()
                    .filter(|period| period.weight > 0.0)
                    .collect();
                let off = |period: &&&Dump| {
                    (period.amplitude - expected).abs() > OFF * period.error.hypot(scatter)
                };
                with_data.iter().filter(off).count() as f64 / with_data.len().max(1) as f64
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
            mean_of_periods: mean(periods, 0.0) / self.whole_mean,
            mean_of_heavy_periods: mean(periods, WEIGHT_CUT) / self.whole_mean,
            light_periods: periods.iter().filter(is_light).count(),
            periods: periods.to_vec(),
        }
    }
}

/// Mean amplitude of the periods of some weight.
fn mean(periods: &[Dump], least: f64) -> f64 {
    let heavy = periods
        .iter()
        .filter(|period| period.weight > 0.0 && period.weight >= least);
    let (sum, count) = heavy.fold((0.0, 0usize), |(sum, count), period| {
        (sum + period.amplitude, count + 1)
    });
    if count > 0 { sum / count as f64 } else { 0.0 }
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
        let place = match curve.at {
            Where::One => result.lossy.clone(),
            Where::Both => "both".into(),
        };
        shown += &format!(
            "\n{} at {place}, replaced by {}, known by {}\n{:>8} {:>8} {:>8}  {:>8} {:>8} {:>8} {:>8} {:>8}   theory: {:>8} {:>8} {:>8} {:>8}  off\n",
            name(&curve.shed),
            name(&curve.replace),
            name(&curve.knows),
            "loss",
            "shed",
            "lost",
            "all",
            "autos",
            "valid",
            "weight",
            "SNR",
            "all",
            "autos",
            "valid",
            "SNR"
        );
        for point in &curve.points {
            let theory = point.theory.map_or_else(String::new, |theory| {
                format!(
                    "{:>8.4} {:>8.4} {:>8.4} {:>8.4}",
                    theory.all, theory.autos, theory.valid, theory.snr
                )
            });
            let off = point
                .periods_off
                .map_or_else(String::new, |off| format!("{:.0} %", off * 100.0));
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
