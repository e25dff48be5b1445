//! What theory says of a point, and what the points say in words.

use evlbi_fx::loss::{self, Lost, Ratios, Replaced, Samples};

use super::{Curve, Instead, Kind, Knows, Where, inputs};
use crate::correlate::Correlation;

/// Length of the blocks of time of common shedding in seconds.
const COMMON_CELL: f64 = 0.1;

/// What theory says of the loss `shed` of a pair whose stations receive `delay` seconds apart.
pub fn predict(
    found: &Correlation,
    kind: Kind,
    taken_for: Instead,
    at: Where,
    lossy: usize,
    shed: f64,
    delay: f64,
) -> Option<Ratios> {
    let replaced = match taken_for {
        Instead::Nothing | Instead::Invalid => Replaced::Flagged,
        Instead::Random => Replaced::Random,
        Instead::Fill => Replaced::Fill,
    };
    let lost = match (at, kind) {
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
        }
    });
    loss::predicted(replaced, lost, samples)
}

/// What the curves say in sentences.
pub fn conclusions(knows: Knows, curves: &[Curve]) -> Vec<String> {
    let mut said = Vec::new();
    let flagged = |curve: &&Curve| curve.at == Where::One && curve.replace != Instead::Random;
    let nearest = |curve: &Curve| {
        let distance = |loss: f64| (loss - 0.1).abs();
        curve
            .points
            .iter()
            .min_by(|a, b| distance(a.loss).total_cmp(&distance(b.loss)))
            .map(|point| (point.shed, point.ratio.snr))
    };
    if let Some((shed, snr)) = curves.iter().find(flagged).and_then(nearest) {
        said.push(format!(
            "{:.1} % lost at one station costs {:.1} % of the signal-to-noise ratio: as much as {:.1} % less integration time or bandwidth.",
            shed * 100.0,
            (1.0 - snr) * 100.0,
            (1.0 - snr * snr) * 100.0
        ));
    }
    let at_both = |kind: Kind| {
        let both = curves
            .iter()
            .find(|curve| curve.at == Where::Both && curve.shed == kind)?;
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
    let broken: Vec<f64> = curves.iter().filter_map(|curve| curve.breaks_at).collect();
    let lowest = broken.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|point| point.loss)
        .fold(0.0, f64::max);
    said.push(if broken.is_empty() {
        format!(
            "Up to a loss of {:.1} % no more than 1 % of the periods lie 5 standard errors off the theory.",
            highest * 100.0
        )
    } else {
        format!(
            "From a loss of {:.1} % on more than 1 % of the periods lie 5 standard errors off the theory ({} of {} curves{}).",
            lowest * 100.0,
            broken.len(),
            curves.len(),
            match knows {
                Knows::All => "",
                Knows::Headers | Knows::Papers => {
                    "; with --knows all every lost sample is left out"
                }
            }
        )
    });
    said
}
