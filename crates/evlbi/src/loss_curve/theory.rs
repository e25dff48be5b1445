//! What theory says of a point, and what the points say in words.

use evlbi_core::shed::Replace;
use evlbi_fx::correlator::{Input, Rotation};
use evlbi_fx::loss::{self, Lost, Ratios, Replaced, Samples};

use super::{Curve, Harm, Kind, Knows, Where, inputs};
use crate::correlate::Correlation;

/// Length of the blocks of time of common shedding in seconds.
pub const COMMON_CELL: f64 = 0.1;

/// What theory says of the loss `shed` of a pair whose stations receive `delay` seconds apart, and whose bands have
/// the shapes `spectra` without loss.
pub fn predict(
    found: &Correlation,
    spectra: &[Vec<f64>; 2],
    harm: Harm,
    lossy: usize,
    shed: f64,
    delay: f64,
) -> Option<Ratios> {
    let replaced = match harm.instead {
        Replace::Nothing | Replace::Invalid => Replaced::Flagged,
        Replace::Random => Replaced::Random,
        Replace::Fill => Replaced::Fill,
    };
    let lost = match (harm.at, harm.kind) {
        (Where::Both, Kind::Common) => Lost::at_same_spread_times(shed, delay, COMMON_CELL),
        (Where::Both, _) => Lost::independent(shed, shed),
        (Where::One, _) if lossy == 0 => Lost::independent(shed, 0.0),
        (Where::One, _) => Lost::independent(0.0, shed),
    };
    let samples = inputs(found).map(|input| {
        let layout = &found.setup.stations()[input.station].layout;
        Samples {
            codec: layout.codec,
            channels: layout.channels,
            channel: found.setup.band(input).channel,
            complex: layout.complex,
            turn: turn(found, input),
        }
    });
    loss::predicted(replaced, lost, samples, [&spectra[0], &spectra[1]])
}

/// By how much of its sample rate a station's samples are moved up in frequency as its fringes are stopped.
fn turn(found: &Correlation, input: Input) -> f64 {
    let (setup, band) = (&found.setup, found.setup.band(input));
    let station = &setup.stations()[input.station];
    if setup.rotation() != Rotation::Samples {
        return 0.0;
    }
    let rate = station.delay.about(setup.middle(found.first_block()));
    let rate = rate.map_or(0.0, |(_, rate)| rate);
    let up = rate * band.zero_hz / station.layout.sample_rate() as f64;
    if band.edge_hz < band.zero_hz && !station.layout.complex {
        -up
    } else {
        up
    }
}

/// The power of both stations from zero to half of the sample rate; of complex samples from minus half of it.
pub fn spectra(found: &Correlation) -> [Vec<f64>; 2] {
    inputs(found).map(|input| {
        let mut power = found.series.input(input).power.clone();
        let band = found.setup.band(input);
        let is_lower = band.edge_hz < band.zero_hz;
        if is_lower && !found.setup.stations()[input.station].layout.complex {
            power.reverse();
        }
        power
    })
}

/// What the curves say in sentences.
pub fn conclusions(curves: &[Curve]) -> Vec<String> {
    let mut said = Vec::new();
    let nearest = |curve: &Curve| {
        let distance = |loss: f64| (loss - 0.1).abs();
        let points = curve.points.iter();
        points
            .min_by(|a, b| distance(a.loss).total_cmp(&distance(b.loss)))
            .map(|point| (point.shed, point.ratio.snr))
    };
    let known = |curve: &&Curve| curve.at == Where::One && curve.knows == Knows::All;
    let taken = |instead: Replace| {
        let of = move |curve: &&Curve| {
            (curve.at, curve.knows, curve.replace) == (Where::One, Knows::Headers, instead)
        };
        curves.iter().find(of)
    };
    let cost = |snr: f64| {
        format!(
            "{:.1} % of the signal-to-noise ratio: as much as {:.1} % less integration time or bandwidth",
            (1.0 - snr) * 100.0,
            (1.0 - snr * snr) * 100.0
        )
    };
    if let Some((shed, snr)) = curves.iter().find(known).and_then(nearest) {
        said.push(format!(
            "{:.1} % lost at one station costs {}.",
            shed * 100.0,
            cost(snr)
        ));
    }
    for (instead, shown) in [
        (Replace::Fill, "the fill pattern"),
        (Replace::Random, "random bytes"),
    ] {
        if let Some((shed, snr)) = taken(instead).and_then(nearest) {
            said.push(format!(
                "{:.1} % replaced by {shown} that the correlator takes for data costs {}.",
                shed * 100.0,
                cost(snr)
            ));
        }
    }
    let papers = curves.iter().filter(|curve| curve.knows == Knows::Papers);
    let steps: Vec<f64> = papers
        .flat_map(|curve| &curve.points)
        .filter(|point| point.lost > point.shed)
        .map(|point| point.lost / point.shed)
        .collect();
    if !steps.is_empty() {
        said.push(format!(
            "A correlator that loses step at each gap loses {:.2} to {:.2} times what the path lost.",
            steps.iter().copied().fold(f64::INFINITY, f64::min),
            steps.iter().copied().fold(0.0, f64::max)
        ));
    }
    let at_both = |kind: Kind| {
        let both = curves
            .iter()
            .find(|curve| (curve.at, curve.knows, curve.shed) == (Where::Both, Knows::All, kind))?;
        both.points
            .last()
            .map(|point| (point.shed, point.ratio.weight))
    };
    if let (Some((shed, apart)), Some((_, alike))) = (at_both(Kind::Random), at_both(Kind::Common))
    {
        said.push(format!(
            "{:.1} % lost at both stations leaves a weight of {apart:.4} when each loses its own, and of {alike:.4} when both lose alike.",
            shed * 100.0
        ));
    }
    for (knows, shown) in [
        (Knows::All, "A correlator that knows all that was lost"),
        (Knows::Headers, "One that knows invalid frames alone"),
        (Knows::Papers, "One that loses step besides"),
    ] {
        let has_theory = |curve: &&Curve| curve.points.iter().any(|point| point.theory.is_some());
        let of_kind = curves.iter().filter(|curve| curve.knows == knows);
        let curves: Vec<&Curve> = of_kind.filter(has_theory).collect();
        let points = curves.iter().flat_map(|curve| &curve.points);
        let highest = points.map(|point| point.loss).fold(0.0, f64::max);
        let broken: Vec<f64> = curves.iter().filter_map(|curve| curve.breaks_at).collect();
        if curves.is_empty() {
            continue;
        }
        said.push(if broken.is_empty() {
            format!(
                "{shown}: at no loss up to {:.1} % lie more than 1 % of the periods 5 standard errors off the theory.",
                highest * 100.0
            )
        } else {
            format!(
                "{shown}: from a loss of {:.1} % on more than 1 % of the periods lie 5 standard errors off the theory ({} of {} curves).",
                broken.iter().copied().fold(f64::INFINITY, f64::min) * 100.0,
                broken.len(),
                curves.len()
            )
        });
    }
    said
}
