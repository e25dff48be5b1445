//! Predicts points from theory, and draws conclusions from measured points.

use evlbi_core::shed::Replace;
use evlbi_fx::correlator::{Input, Rotation};
use evlbi_fx::loss::{self, Lost, Replaced, Samples};

use super::{Curve, Harm, Kind, Knows, Measures, Point, Search, Where, map};
use crate::Correlation;

/// Length of the time blocks of common shedding, in seconds.
pub(super) const COMMON_CELL: f64 = 0.1;
/// Fraction by which two shed fractions may differ to be compared.
const NEAR: f64 = 0.1;

/// Loss of a baseline.
#[derive(Clone, Copy)]
pub(super) struct Shed {
    /// Whether each of its stations loses data.
    pub(super) losing: [bool; 2],
    /// Fraction of its samples that such a station gets replaced.
    pub(super) replaced: f64,
    /// Fraction that it knows to be missing.
    pub(super) missing: f64,
    /// Time by which one of them receives later than the other, in seconds.
    pub(super) delay: f64,
}

impl Shed {
    /// Returns the loss of the baseline if its stations lose `fraction`.
    fn lost(self, kind: Kind, fraction: f64) -> Lost {
        match (self.losing, kind) {
            ([true, true], Kind::Common) => {
                Lost::at_same_spread_times(fraction, self.delay, COMMON_CELL)
            }
            (losing, _) => {
                let [a, b] = losing.map(|loses| if loses { fraction } else { 0.0 });
                Lost::independent(a, b)
            }
        }
    }
}

/// Payloads of the fill pattern for each station of a baseline: [`Samples::fill`].
pub(super) type Fill = [Vec<Vec<u8>>; 2];

/// Predicts the ratios of a baseline with this loss. `spectra` are those of its stations without loss, `product` is the index of its
/// first product.
pub(super) fn predict(
    found: &Correlation,
    (spectra, product): (&[Vec<f64>; 2], usize),
    fill: &Fill,
    harm: Harm,
    shed: Shed,
) -> Option<Measures> {
    let replaced = match harm.replace {
        Replace::Nothing | Replace::Invalid => Replaced::Flagged,
        Replace::Random => Replaced::Random,
        Replace::Fill => Replaced::Fill,
    };
    let [a, b] = inputs(found, product);
    let samples = [(a, &fill[0]), (b, &fill[1])].map(|(input, fill)| {
        let layout = &found.setup.stations()[input.station].layout;
        Samples {
            codec: layout.codec,
            channels: layout.channels,
            channel: found.setup.band(input).channel,
            complex: layout.complex,
            turn: turn(found, input),
            fill,
        }
    });
    let predicted = |replaced: Replaced, fraction: f64| {
        let lost = shed.lost(harm.shed, fraction);
        loss::predicted(replaced, lost, samples, [&spectra[0], &spectra[1]])
    };
    if shed.replaced == 0.0 {
        return predicted(Replaced::Flagged, shed.missing).map(Measures::from);
    }
    // Of the samples that are not missing.
    let fraction = shed.replaced / (1.0 - shed.missing).max(shed.replaced);
    let ratios = predicted(replaced, fraction)?;
    let of_all = ratios.flagged(shed.lost(harm.shed, shed.missing));
    Some(Measures {
        // Of the samples that look valid.
        valid: Measures::from(ratios).valid,
        ..Measures::from(of_all)
    })
}

/// Returns the frequency shift of a station's samples by fringe stopping, as a fraction of the sample rate.
fn turn(found: &Correlation, input: Input) -> f64 {
    let (setup, band) = (&found.setup, found.setup.band(input));
    let station = &setup.stations()[input.station];
    if setup.rotation() != Rotation::Samples {
        return 0.0;
    }
    let rate = station.delay.about(setup.middle(found.first_block()));
    let rate = rate.map_or(0.0, |(_, rate)| rate);
    let up = rate * band.zero_hz / station.layout.sample_rate() as f64;
    if is_reversed(found, input) { -up } else { up }
}

/// Returns whether a station has real samples of a lower sideband.
fn is_reversed(found: &Correlation, input: Input) -> bool {
    let band = found.setup.band(input);
    let layout = &found.setup.stations()[input.station].layout;
    band.edge_hz < band.zero_hz && !layout.complex
}

/// Returns the power spectra of a product's stations from zero to half of the sample rate; for complex samples from minus half of it.
pub(super) fn spectra(found: &Correlation, product: usize) -> [Vec<f64>; 2] {
    inputs(found, product).map(|input| {
        let mut power = found.series.input(input).power.clone();
        if is_reversed(found, input) {
            power.reverse();
        }
        power
    })
}

/// Returns the inputs of a product.
fn inputs(found: &Correlation, product: usize) -> [Input; 2] {
    let product = found.setup.products()[product];
    [product.a, product.b]
}

/// Returns the conclusions from the curves of baselines that lose data as sentences.
pub(super) fn conclusions(curves: &[Curve]) -> Vec<String> {
    let mut said = Vec::new();
    let lossy = || {
        curves
            .iter()
            .filter(|curve| !curve.lossy_stations.is_empty())
    };
    // The point of a curve with the loss closest to 10 %.
    let nearest = |harm: &dyn Fn(Harm) -> bool| {
        let distance = |point: &&Point| (point.loss - 0.1).abs();
        let is_of = |curve: &&Curve| curve.lossy_stations.len() == 1 && harm(curve.harm);
        let points = lossy().find(is_of)?.points.iter();
        points.min_by(|a, b| distance(a).total_cmp(&distance(b)))
    };
    let cost = |point: &Point, what: &str| {
        let snr = point.ratio.snr;
        format!(
            "{:.1} % {what} costs {:.1} % of the signal-to-noise ratio: as much as {:.1} % less integration time or bandwidth.",
            point.shed * 100.0,
            (1.0 - snr) * 100.0,
            (1.0 - snr * snr) * 100.0
        )
    };
    let known = |harm: Harm| harm.at == Where::One && harm.knows == Knows::All;
    said.extend(nearest(&known).map(|point| cost(point, "lost at one station")));
    for (replace, shown) in [
        (Replace::Fill, "the fill pattern"),
        (Replace::Random, "random bytes"),
    ] {
        let taken = |harm: Harm| {
            (harm.at, harm.knows, harm.replace) == (Where::One, Knows::Headers, replace)
        };
        let what = format!("replaced by {shown} that the correlator treats as data");
        said.extend(nearest(&taken).map(|point| cost(point, &what)));
    }
    let known_by = |knows: Knows| lossy().filter(move |curve| curve.harm.knows == knows);
    let points = known_by(Knows::Papers).flat_map(|curve| &curve.points);
    let steps = points.filter(|point| point.lost > point.shed);
    let steps = steps.map(|point| point.lost / point.shed);
    if let Some((least, most)) = extremes(steps) {
        said.push(format!(
            "A correlator that loses one more frame after each gap loses {least:.2} to {most:.2} times what the path lost.",
        ));
    }
    let mut searches = Vec::new();
    for curve in lossy().filter(|curve| curve.harm.search != Search::Flywheel) {
        let theory = |point: &Point| Some((point.shed, point.lost, point.lost_theory?));
        let Some((shed, lost, theory)) = curve.points.last().and_then(theory) else {
            continue;
        };
        let Harm { search, packet, .. } = curve.harm;
        if searches.contains(&(search, packet)) {
            continue;
        }
        searches.push((search, packet));
        said.push(format!(
            "A reader {} loses {:.1} % of the samples if {:.1} % of the {} are lost: {:.1} % by theory.",
            map::reader(search),
            lost * 100.0,
            shed * 100.0,
            packet.map_or("frames".to_owned(), |packet| format!("packets of {packet} bytes")),
            theory * 100.0
        ));
    }
    let at_both = |shed: Kind| {
        let is_both = |curve: &&Curve| (curve.harm.at, curve.harm.shed) == (Where::Both, shed);
        known_by(Knows::All).find(is_both)?.points.last()
    };
    if let (Some(apart), Some(alike)) = (at_both(Kind::Random), at_both(Kind::Common)) {
        let is_near = (alike.shed - apart.shed).abs() <= NEAR * apart.shed;
        said.push(match is_near {
            true => format!(
                "{:.1} % lost at both stations leaves a weight of {:.4} if the losses are independent, and of {:.4} if both lose the same times.",
                apart.shed * 100.0,
                apart.ratio.weight,
                alike.ratio.weight
            ),
            false => format!(
                "Shedding the same times at both stations takes blocks of {COMMON_CELL} s: of these short recordings it shed {:.1} % instead of {:.1} %, so no comparison with independent losses.",
                alike.shed * 100.0,
                apart.loss * 100.0
            ),
        });
    }
    for knows in [Knows::All, Knows::Headers, Knows::Papers] {
        let has_theory = |curve: &&Curve| curve.points.iter().any(|point| point.theory.is_some());
        let curves: Vec<&Curve> = known_by(knows).filter(has_theory).collect();
        let losses = curves.iter().flat_map(|curve| &curve.points);
        let Some((_, highest)) = extremes(losses.map(|point| point.loss)) else {
            continue;
        };
        let knowledge = knows.label();
        let broken = || curves.iter().filter_map(|curve| curve.breaks_at);
        said.push(match extremes(broken()) {
            None => format!(
                "A correlator that {knowledge}: at each measured loss up to {:.1} %, at most 1 % of the periods are more than 5 standard errors off the theory.",
                highest * 100.0
            ),
            Some((lowest, _)) => format!(
                "A correlator that {knowledge}: in {} of {} curves, at {:.1} % loss or more, more than 1 % of the periods are more than 5 standard errors off the theory.",
                broken().count(),
                curves.len(),
                lowest * 100.0
            ),
        });
    }
    said
}

/// Returns the minimum and maximum, if there are any values.
fn extremes(values: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let least = values.clone().reduce(f64::min)?;
    Some((least, values.reduce(f64::max)?))
}
