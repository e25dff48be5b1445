//! Measures the points for one knowledge of the loss: damages, correlates and compares the recordings.

use std::path::PathBuf;

use evlbi_core::shed::{Policy, PolicyError, Replace, Shed, ShedError, Stream};
use evlbi_fx::track::Trust;
use evlbi_net::run::Run;

use super::{
    Harm, Kind, Knows, LossCurveError, LossCurveOptions, Measures, Point, WEIGHT_CUT, Where, theory,
};
use crate::plan;
use crate::series::{Dump, Found};
use crate::tamper::Tampered;
use crate::{
    Along, Cause, CorrelateError, CorrelateOptions, Correlation, Recordings, Tamper, correlate,
};

/// Maximum deviation from the theory of a period that does not count as off, in standard errors.
const OFF: f64 = 5.0;
/// Step of the loss for the slope of the theory.
const STEP: f64 = 1e-3;
/// Mean length of a burst, in frames.
const BURST: f64 = 8.0;

impl Along for (&Experiment<'_>, Harm, f64) {
    fn tamper(&mut self, station: usize) -> Result<Option<Tamper>, Cause> {
        let (experiment, harm, loss) = *self;
        let loses = experiment.loses(station, harm);
        let tamper = loses.then(|| experiment.tamper(station, harm, loss));
        Ok(tamper.transpose()?)
    }
}

/// Reasons why frames cannot be shed.
#[derive(Debug, thiserror::Error)]
enum HarmError {
    #[error("{0}")]
    Policy(#[from] PolicyError),
    #[error("{0}")]
    Shed(#[from] ShedError),
}

/// Common settings of all points for one knowledge.
pub(super) struct Experiment<'a> {
    asked: &'a LossCurveOptions,
    knows: Knows,
    recordings: Recordings,
    options: CorrelateOptions,
    /// Index of the station that loses data.
    pub(super) lossy: usize,
    pub(super) whole: Found,
    /// Spectra of both stations, without loss.
    spectra: [Vec<f64>; 2],
    whole_mean: f64,
    pub(super) stations: [String; 2],
    pub(super) period_s: f64,
}

impl Experiment<'_> {
    pub(super) fn new<'a>(
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
        let is_job = |model: &PathBuf| !plan::is_sky(model);
        if options.model.as_ref().is_some_and(is_job) && pair != [0, 1] {
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

    /// Returns all points: the policies and replacements at one station; then at both, independent and in common.
    pub(super) fn points(&self) -> Vec<(Harm, f64)> {
        // Skip points that another knowledge measures identically.
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

    /// Measures a point; `None` if the run is stopped.
    pub(super) fn point(
        &self,
        harm: Harm,
        loss: f64,
        run: &Run,
    ) -> Result<Option<Point>, CorrelateError> {
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
        // The replacement as the correlator sees it.
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
            frame_rate: Some(shape.layout().frame_rate),
        };
        // Common shedding uses one seed, all other shedding one per station.
        let seed = match harm.shed {
            Kind::Common => self.asked.seed,
            _ => self.asked.seed.wrapping_add(1000 * station as u64),
        };
        let replace = match harm.replace {
            // A correlator with the list of gaps ignores the data there.
            Replace::Random if self.knows == Knows::All => Replace::Invalid,
            other => other,
        };
        let shed = Shed::new(policy, seed, &stream)?;
        let loses_step = self.knows == Knows::Papers;
        Ok(Tamper::new(shed, replace, seed, loses_step))
    }

    /// Returns the standard deviation of the fraction that a period loses: the choice of its frames is random.
    fn scatter(&self, kind: Kind, shed: f64) -> f64 {
        let shape = self.recordings.files[self.lossy].shape();
        let a_second = f64::from(shape.layout().frame_rate.get()) * shape.threads.len() as f64;
        let frames = (a_second * self.period_s).max(1.0);
        // Mean square over mean of the lengths of contiguous losses, in frames.
        let together = match kind {
            Kind::Every | Kind::Random => 1.0,
            Kind::Bunch => 7.0,
            Kind::Burst => 2.0 * BURST - 1.0,
            Kind::Common => a_second * theory::COMMON_CELL,
        };
        // Plus the effect of frames cut by the ends of the period.
        (shed * (1.0 - shed) * together / frames).sqrt() + 1.0 / frames
    }

    pub(super) fn measure(
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

/// Returns the mean amplitude of the periods with this weight or more.
fn mean(periods: &[Dump], least: f64) -> f64 {
    let is_heavy = |period: &&Dump| period.weight > 0.0 && period.weight >= least;
    let heavy = || periods.iter().filter(is_heavy);
    let sum = heavy().fold(0.0, |sum, period| sum + period.amplitude);
    sum / heavy().count().max(1) as f64
}
