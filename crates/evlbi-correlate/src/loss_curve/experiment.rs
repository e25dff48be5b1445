//! Measures the points for one knowledge of the loss: damages, correlates and compares the recordings.

use std::collections::BTreeSet;

use evlbi_core::shed::{Policy, PolicyError, Replace, Shed, ShedError, Stream};
use evlbi_fx::loss::packets::{Packets, Step};
use evlbi_fx::track::Trust;
use evlbi_net::run::Run;

use super::{
    Harm, Highest, Kind, Knows, LossCurveError, LossCurveOptions, Measures, Point, WEIGHT_CUT,
    Where, theory,
};
use crate::plan;
use crate::series::{Dump, Found, pair};
use crate::station::StationFile;
use crate::tamper::{Damage, Search, Tampered};
use crate::{
    Along, Cause, CorrelateError, CorrelateOptions, Correlation, LeftOut, Recordings, Tamper,
    correlate,
};

/// Maximum deviation from the theory of a period that does not count as off, in standard errors.
const OFF: f64 = 5.0;
/// Step of the loss for the slope of the theory.
const STEP: f64 = 1e-3;
/// Minimum number of packets of a frame, unless their length is given.
const PARTS: usize = 8;
/// The same for each row of a map.
const MAP_PARTS: [usize; 3] = [2, 8, 32];
/// Mean length of a burst, in frames or packets.
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
    /// Lengths of the packets that are shed, or `None` for frames.
    packets: Vec<Option<usize>>,
    /// Whether each station loses data in curves of [`Where::One`].
    lossy: Vec<bool>,
    pub(super) stations: Vec<String>,
    /// In the order 1-2, 1-3, and so on.
    pub(super) baselines: Vec<Baseline>,
    pub(super) period_s: f64,
}

/// Result of a baseline's complete recordings.
pub(super) struct Baseline {
    /// Index of its first product.
    product: usize,
    stations: [usize; 2],
    pub(super) names: [String; 2],
    whole: Found,
    /// Spectra of both stations.
    spectra: [Vec<f64>; 2],
    /// Mean amplitude of the periods.
    mean: f64,
}

impl Experiment<'_> {
    pub(super) fn new<'a>(
        asked: &'a LossCurveOptions,
        knows: Knows,
        run: &Run,
    ) -> Result<Experiment<'a>, LossCurveError> {
        let recordings = asked.files.len();
        if !asked.kept.is_empty() && asked.kept.len() != recordings {
            let given = asked.kept.len();
            return Err(LossCurveError::Kept { given, recordings });
        }
        let is_there = |station: u8| (1..=recordings).contains(&usize::from(station));
        if let Some(station) = asked.station.iter().copied().find(|it| !is_there(*it)) {
            return Err(LossCurveError::NoStation {
                station,
                recordings,
            });
        }
        let is_named = |number: usize| asked.station.iter().any(|it| usize::from(*it) == number);
        let lossy: Vec<bool> = match asked.kept.is_empty() {
            true => (1..=recordings).map(is_named).collect(),
            false => asked.kept.iter().map(|kept| *kept < 1.0).collect(),
        };
        let mut options = asked.correlate.clone();
        options.trust = match knows {
            Knows::All => Trust::Exact,
            Knows::Headers | Knows::Papers => Trust::Headers,
        };
        let recordings = Recordings::open(&asked.files, &options, run)?;
        all_of(&recordings.left_out)?;
        let packets = packets(asked, &recordings, &lossy)?;
        let whole = correlate(&recordings, &options, run, &mut ())?;
        all_of(&whole.left_out)?;
        if whole.interrupted {
            return Err(LossCurveError::Interrupted);
        }
        let stations = plan::station_names(&whole.setup);
        let baseline = |(product, pair): (usize, [usize; 2])| {
            let found = whole.find(product);
            let names = pair.map(|station| stations[station].clone());
            if found.fringe.false_alarm > 1e-3 {
                return Err(LossCurveError::NoFringe {
                    stations: names,
                    snr: found.snr,
                });
            }
            Ok(Baseline {
                product,
                stations: pair,
                names,
                spectra: theory::spectra(&whole, product),
                mean: mean(&whole.series.dumps_at(product, &found.fringe), 0.0),
                whole: found,
            })
        };
        // The first product of each.
        let pairs = whole.setup.products().iter().map(pair).enumerate();
        let mut pairs: Vec<(usize, [usize; 2])> = pairs.collect();
        pairs.sort_by_key(|(_, pair)| *pair);
        pairs.dedup_by_key(|(_, pair)| *pair);
        let baselines = pairs.into_iter().map(baseline);
        Ok(Experiment {
            asked,
            knows,
            packets,
            lossy,
            baselines: baselines.collect::<Result<Vec<Baseline>, LossCurveError>>()?,
            stations,
            period_s: whole.series.dump_seconds,
            recordings,
            options,
        })
    }

    /// Returns the names of the stations that lose data in curves of [`Where::One`].
    pub(super) fn lossy_names(&self) -> Vec<String> {
        let names = self.stations.iter().zip(&self.lossy);
        names
            .filter(|(_, lossy)| **lossy)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Returns the first baseline with a station that loses data.
    pub(super) fn first_lossy(&self) -> Option<&Baseline> {
        let is_lossy = |baseline: &&Baseline| baseline.stations.iter().any(|it| self.lossy[*it]);
        self.baselines.iter().find(is_lossy)
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
                for (packet, search) in self.cuts() {
                    let harm = Harm {
                        knows: self.knows,
                        shed,
                        replace: *replace,
                        at,
                        packet,
                        search,
                    };
                    let losses = self.asked.losses().into_iter();
                    points.extend(losses.map(|loss| (harm, loss)));
                }
            }
        }
        points
    }

    /// Returns each length of packets with each header search.
    fn cuts(&self) -> impl Iterator<Item = (Option<usize>, Search)> + '_ {
        let packets = self.packets.iter();
        packets.flat_map(|packet| {
            let searches = self.asked.searches().into_iter();
            searches.map(move |search| (*packet, search))
        })
    }

    /// Returns the length of the packets of frames of this length. If those that are shed do not divide it, as of a station that
    /// only loses data in curves of both, there are as many per frame.
    fn packet(&self, frame: usize, harm: Harm) -> Option<usize> {
        let packet = harm.packet?;
        if frame.is_multiple_of(packet) {
            return Some(packet);
        }
        let mut files = self.recordings.files.iter().zip(&self.lossy);
        let lossy = files.find(|(_, lossy)| **lossy);
        let parts = lossy.map_or(PARTS, |(file, _)| file.frame_length() / packet);
        Some(part(frame, parts))
    }

    fn loses(&self, station: usize, harm: Harm) -> bool {
        (harm.at == Where::Both && self.asked.kept.is_empty()) || self.lossy[station]
    }

    /// Returns the names of a baseline's stations that lose data.
    pub(super) fn losing(&self, baseline: &Baseline, harm: Harm) -> Vec<String> {
        let stations = baseline.stations.iter().zip(&baseline.names);
        let losing = stations.filter(|(station, _)| self.loses(**station, harm));
        losing.map(|(_, name)| name.clone()).collect()
    }

    /// Measures a point of each baseline; `None` if the run is stopped.
    pub(super) fn point(
        &self,
        harm: Harm,
        loss: f64,
        run: &Run,
    ) -> Result<Option<Vec<Point>>, CorrelateError> {
        let mut harming = (self, harm, loss);
        let found = correlate(&self.recordings, &self.options, run, &mut harming)?;
        if found.interrupted {
            return Ok(None);
        }
        let baselines = self.baselines.iter();
        let points = baselines.map(|baseline| self.point_of(baseline, &found, harm, loss));
        Ok(Some(points.collect()))
    }

    fn point_of(&self, baseline: &Baseline, found: &Correlation, harm: Harm, loss: f64) -> Point {
        let losing = baseline.stations.map(|station| self.loses(station, harm));
        let stations = baseline.stations.into_iter();
        let done: Vec<Tampered> = stations
            .filter_map(|station| found.tampered(station))
            .collect();
        let mean = |share: fn(&Tampered) -> f64| {
            let sum = done.iter().map(share).fold(0.0, |sum, share| sum + share);
            sum / done.len().max(1) as f64
        };
        let (shed, lost) = (mean(|harm| harm.shed), mean(|harm| harm.lost));
        let is_replaced = matches!(harm.replace, Replace::Fill | Replace::Random);
        let (replaced, missing) = match self.knows {
            Knows::All => (0.0, lost),
            Knows::Headers => (mean(|harm| harm.replaced), mean(|harm| harm.missing)),
            Knows::Papers if is_replaced => (shed, 0.0),
            Knows::Papers => (0.0, shed),
        };
        let delay = delay_between(found, baseline.stations);
        let fill = baseline.stations.map(|station| self.fill(station, harm));
        let predict = |more: f64| {
            let lost = theory::Shed {
                losing,
                replaced: replaced + if replaced > 0.0 { more } else { 0.0 },
                missing: missing + if replaced > 0.0 { 0.0 } else { more },
                delay,
            };
            let spectra = (&baseline.spectra, baseline.product);
            theory::predict(found, spectra, &fill, harm, lost)
        };
        // The theory is that of one fraction.
        let has_theory = harm.shed != Kind::Keep && self.asked.kept.is_empty();
        let predicted = has_theory.then(|| predict(0.0)).flatten();
        let theory = predicted.map(|here| {
            let slope = predict(STEP).map_or(0.0, |there| (there.valid - here.valid).abs());
            (
                here,
                slope / STEP * self.scatter(baseline, harm, replaced + missing),
            )
        });
        let (product, fringe) = (baseline.product, &baseline.whole.fringe);
        let here = found.find_at(product, fringe);
        let periods = found.series.dumps_at(product, fringe);
        Point {
            lost_theory: self.lost(baseline, harm, shed),
            ..baseline.measure(&here, loss, (shed, lost), periods, theory)
        }
    }

    /// Returns the payloads of the fill pattern in a station's samples, for each start in a word of a packet.
    fn fill(&self, station: usize, harm: Harm) -> Vec<Vec<u8>> {
        let file = &self.recordings.files[station];
        let (frame, unpacker) = (file.frame_length(), &file.shape().samples.unpacker);
        let header = frame - unpacker.recorded_length();
        let packet = self.packet(frame, harm);
        let starts = packet.map_or(vec![header], |packet| (0..frame).step_by(packet).collect());
        // Counted from the samples, in words of four bytes.
        let starts: BTreeSet<usize> = starts.iter().map(|at| (at + 3 * header) % 4).collect();
        // The mean of all starts is that of losses that do not repeat in step with the words.
        if starts.len() > 1 && !matches!(harm.shed, Kind::Random | Kind::Burst) {
            return Vec::new();
        }
        let fill = starts.into_iter().map(|start| unpacker.fill(start));
        fill.collect::<Option<Vec<Vec<u8>>>>().unwrap_or_default()
    }

    /// Predicts the fraction of the samples that the stations of a baseline lose if they lose this fraction of their packets.
    fn lost(&self, baseline: &Baseline, harm: Harm, shed: f64) -> Option<f64> {
        // Packets of a frame that is marked invalid are not lost, and another knowledge has a search of its own.
        if (harm.shed, harm.knows == Knows::Papers) != (Kind::Random, false)
            || harm.replace == Replace::Invalid
        {
            return None;
        }
        let stations = baseline.stations.into_iter();
        let losing = stations.filter(|station| self.loses(*station, harm));
        let lost = losing.map(|station| {
            let file = &self.recordings.files[station];
            let frame = file.frame_length();
            let packets = Packets {
                frame,
                header: frame - file.shape().samples.unpacker.recorded_length(),
                packet: self.packet(frame, harm)?,
            };
            Some(1.0 - packets.kept(shed, harm.search.step()).intact)
        });
        let lost: Vec<f64> = lost.collect::<Option<_>>()?;
        (!lost.is_empty()).then(|| lost.iter().sum::<f64>() / lost.len() as f64)
    }

    fn tamper(&self, station: usize, harm: Harm, loss: f64) -> Result<Tamper, HarmError> {
        let loss = self.asked.kept.get(station).map_or(loss, |kept| 1.0 - kept);
        let policy: Policy = match harm.shed {
            Kind::Every => format!("every:{}", (1.0 / loss).round().max(2.0)),
            Kind::Bunch => format!("bunch:{loss}"),
            Kind::Random => format!("random:{loss}"),
            Kind::Burst => format!("burst:{loss},{BURST}"),
            Kind::Common => format!("common:{loss}"),
            Kind::Keep => format!("keep:{}", 1.0 - loss),
        }
        .parse()?;
        let file = &self.recordings.files[station];
        let shape = file.shape();
        let packet = self.packet(file.frame_length(), harm);
        let unit = packet.unwrap_or(file.frame_length()) as u64;
        let stream = Stream {
            rate: None,
            unit_bytes: unit,
            wire_bytes: unit,
            threads: shape.threads.clone(),
            frame_rate: Some(shape.layout().frame_rate),
        };
        // Common steps use one seed, all other shedding one per station.
        let seed = match harm.shed {
            Kind::Common | Kind::Keep => self.asked.seed,
            _ => self.asked.seed.wrapping_add(1000 * station as u64),
        };
        let replace = match harm.replace {
            // A correlator with the list of gaps ignores the data there.
            Replace::Random if self.knows == Knows::All => match harm.packet {
                None => Replace::Invalid,
                Some(_) => Replace::Nothing,
            },
            other => other,
        };
        let shed = Shed::new(policy, seed, &stream)?;
        let damage = Damage {
            replace,
            packet,
            search: match (self.knows, harm.search) {
                (Knows::Papers, Search::Flywheel | Search::Drop(0)) => Search::Drop(1),
                (_, search) => search,
            },
        };
        Ok(Tamper::new(shed, damage, seed))
    }

    /// Returns the standard deviation of the fraction that a period loses: the choice of its frames is random.
    fn scatter(&self, baseline: &Baseline, harm: Harm, lost: f64) -> f64 {
        let lossy = baseline.stations.into_iter().find(|it| self.lossy[*it]);
        let file = &self.recordings.files[lossy.unwrap_or(baseline.stations[0])];
        let shape = file.shape();
        let packets = |packet: usize| (file.frame_length() / packet).max(1);
        let a_frame = harm.packet.map_or(1, packets) as f64;
        let a_second =
            f64::from(shape.layout().frame_rate.get()) * shape.threads.len() as f64 * a_frame;
        let units = (a_second * self.period_s).max(1.0);
        // Mean square over mean of the lengths of contiguous losses, in frames or packets.
        let together = match harm.shed {
            Kind::Every | Kind::Random => 1.0,
            Kind::Bunch => 7.0,
            Kind::Burst => 2.0 * BURST - 1.0,
            Kind::Common | Kind::Keep => a_second * theory::COMMON_CELL,
        };
        // Or as many as the reader drops.
        let dropped = match harm.search.step() {
            Step { missing: None, .. } => 0.0,
            Step { needed, .. } => a_frame * f64::from(needed),
        };
        // Plus the effect of frames cut by the ends of the period.
        (lost * (1.0 - lost) * together.max(dropped) / units).sqrt() + a_frame / units
    }
}

/// Returns an error if a recording is left out: stations are counted in the order of all.
fn all_of(left_out: &[LeftOut]) -> Result<(), LossCurveError> {
    match left_out.first() {
        Some(left_out) => Err(LossCurveError::LeftOut(left_out.source.clone())),
        None => Ok(()),
    }
}

/// Returns the lengths of the packets to shed. Given ones must be whole parts of the frames of the stations that lose data.
fn packets(
    asked: &LossCurveOptions,
    recordings: &Recordings,
    lossy: &[bool],
) -> Result<Vec<Option<usize>>, LossCurveError> {
    if !(asked.by_packet || asked.map) {
        return match asked.packet.is_empty() {
            true => Ok(vec![None]),
            false => Err(LossCurveError::NoPackets),
        };
    }
    let frames = recordings.files.iter().map(StationFile::frame_length);
    let frames = frames.zip(lossy).filter(|(_, lossy)| **lossy);
    let frames = frames.map(|(frame, _)| frame);
    let packets = match (asked.packet.as_slice(), frames.clone().next()) {
        ([], Some(frame)) if asked.map => MAP_PARTS.map(|parts| part(frame, parts)).into(),
        ([], Some(frame)) => vec![part(frame, PARTS)],
        (packets, _) => packets.to_vec(),
    };
    for packet in asked.packet.iter().copied() {
        let is_whole = |frame: &usize| packet > 0 && frame.is_multiple_of(packet);
        if let Some(frame) = frames.clone().find(|frame| !is_whole(frame)) {
            return Err(LossCurveError::Packet { packet, frame });
        }
    }
    Ok(packets.into_iter().map(Some).collect())
}

/// Returns the maximum length of packets of which at least `parts` equal ones make a frame.
fn part(frame: usize, parts: usize) -> usize {
    let lengths = (1..=frame / parts).rev();
    let mut whole = lengths.filter(|length| frame.is_multiple_of(*length));
    whole.next().unwrap_or(frame)
}

/// Returns how much later one of a pair receives than the other, in seconds.
fn delay_between(found: &Correlation, pair: [usize; 2]) -> f64 {
    let middle = found.setup.middle(found.first_block());
    let [first, second] = pair.map(|station| {
        let late = found.setup.stations()[station].delay.about(middle);
        late.map_or(0.0, |(late, _)| late)
    });
    (first - second).abs()
}

impl Baseline {
    /// Returns the point without loss.
    pub(super) fn lossless(&self) -> Point {
        self.measure(&self.whole, 0.0, (0.0, 0.0), Vec::new(), None)
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
            let scatter = scatter * self.mean;
            let expected = theory.valid * self.mean;
            let with_data = || periods.iter().filter(|period| period.weight > 0.0);
            let off = |period: &&Dump| {
                (period.amplitude - expected).abs() > OFF * period.error.hypot(scatter)
            };
            with_data().filter(off).count() as f64 / with_data().count().max(1) as f64
        });
        let is_light = |period: &&Dump| period.weight < WEIGHT_CUT;
        let with_data = || periods.iter().filter(|period| period.weight > 0.0);
        let amplitudes = with_data().filter(is_light).map(|period| period.amplitude);
        let count = amplitudes.clone().count();
        let light = (count > 0).then(|| amplitudes.sum::<f64>() / count as f64);
        let highest = with_data().max_by(|a, b| a.amplitude.total_cmp(&b.amplitude));
        Point {
            loss,
            shed,
            lost,
            lost_theory: None,
            amplitude: here.amplitude,
            relative_error: 1.0 / here.snr.max(1e-9),
            snr: here.snr,
            weight: here.weight,
            ratio,
            theory: theory.map(|(theory, _)| theory),
            periods_off: off,
            mean_of_periods: mean(&periods, 0.0) / self.mean,
            mean_of_heavy_periods: mean(&periods, WEIGHT_CUT) / self.mean,
            light_periods: periods.iter().filter(is_light).count(),
            light_amplitude: light.map(|amplitude| amplitude / self.mean),
            highest: highest.map(|period| Highest {
                amplitude: period.amplitude / self.mean,
                weight: period.weight,
            }),
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
