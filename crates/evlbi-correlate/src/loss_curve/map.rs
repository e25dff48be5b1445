//! Maps where amplitudes rise at low weight, over header search, packet length and loss.
//!
//! The hardware correlator of the first loss experiments (EXPReS, 2006) showed wildly inflated amplitudes of tiny weight at 20 % loss. That
//! it dropped frames without a header, and needed several until it was in step again, is a hypothesis. The map compares it with a decoder
//! that keeps such frames, as this program's does.

use std::collections::BTreeSet;

use evlbi_plot::{Axis, Figure, Panel, Series, Style, Unit, name};
use serde::Serialize;

use super::{Curve, Harm, Search, WEIGHT_CUT};

/// Amplitude over that without loss from which it counts as raised.
const RAISED: f64 = 1.2;

/// Meaning of the map, for its picture and its text.
const MEANING: &str = "Hypothesis about the hardware correlator of 2006: it dropped frames without a header. Flywheel: this program's decoder";

/// A point of a curve on the map.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct Cell {
    #[serde(flatten)]
    harm: Harm,
    pub(super) baseline: [String; 2],
    /// Requested loss fraction.
    loss: f64,
    /// Mean amplitude of the periods with less than half of their data over that without loss; `None` if there are none.
    light_amplitude: Option<f64>,
    /// Highest amplitude of a period over that without loss; `None` if no period has data.
    highest_amplitude: Option<f64>,
    /// Weight of that period.
    weight: Option<f64>,
}

impl Cell {
    /// Returns whether an amplitude rises at low weight.
    fn rises(&self) -> bool {
        let is_light = self.weight.is_some_and(|weight| weight < WEIGHT_CUT);
        is_light
            && self
                .highest_amplitude
                .is_some_and(|highest| highest > RAISED)
    }
}

/// Returns the map of the curves of baselines that lose data.
pub(super) fn cells(curves: &[Curve]) -> Vec<Cell> {
    let lossy = curves
        .iter()
        .filter(|curve| !curve.lossy_stations.is_empty());
    let cells = lossy.flat_map(|curve| {
        curve.points.iter().map(|point| Cell {
            harm: curve.harm,
            baseline: curve.baseline.clone(),
            loss: point.loss,
            light_amplitude: point.light_amplitude,
            highest_amplitude: point.highest.map(|highest| highest.amplitude),
            weight: point.highest.map(|highest| highest.weight),
        })
    });
    cells.collect()
}

/// Formats the map as a table, and what it shows.
pub(super) fn text(cells: &[Cell]) -> String {
    let mut shown = format!(
        "\nMap. {MEANING}.\n{:<12} {:<30} {:<10} {:>9} {:>7}  {:>15} {:>17} {:>10}\n",
        "baseline",
        "loss",
        "search",
        "packet",
        "loss",
        "light periods",
        "highest amplitude",
        "its weight"
    );
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"));
    for cell in cells {
        let harm = cell.harm;
        shown += &format!(
            "{:<12} {:<30} {:<10} {:>7} B {:>5.1} %  {:>15} {:>17} {:>10}{}\n",
            cell.baseline.join("-"),
            format!(
                "{} {} {}",
                name(&harm.shed),
                name(&harm.replace),
                name(&harm.knows)
            ),
            harm.search.to_string(),
            harm.packet.unwrap_or_default(),
            cell.loss * 100.0,
            number(cell.light_amplitude),
            number(cell.highest_amplitude),
            number(cell.weight),
            if cell.rises() { "  rises" } else { "" },
        );
    }
    shown
}

/// Returns what a reader with this header search does, for sentences about it.
pub(super) fn reader(search: Search) -> String {
    match search {
        Search::Flywheel => "that keeps frames without a header".to_owned(),
        Search::Drop(0) => "that drops frames without a header".to_owned(),
        Search::Drop(more) => {
            format!("that drops frames without a header and {more} after each")
        }
        Search::Hold { missing, needed } => format!(
            "that keeps up to {missing} frames without a header in a row, then needs {needed} headers in a row"
        ),
    }
}

/// Returns the conclusions of the map as sentences, one per header search.
pub(super) fn conclusions(cells: &[Cell]) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for Cell { harm, .. } in cells {
        let search = harm.search;
        let of = || cells.iter().filter(|cell| cell.harm.search == search);
        let losses = of().filter(|cell| cell.rises()).map(|cell| cell.loss);
        let reader = reader(search);
        let what = match losses.reduce(f64::min) {
            None => "no amplitude rises at low weight".to_owned(),
            Some(least) => format!(
                "amplitudes rise at low weight from {:.1} % loss",
                least * 100.0
            ),
        };
        let conclusion = format!("A reader {reader}: {what}.");
        if !said.contains(&conclusion) {
            said.push(conclusion);
        }
    }
    said
}

/// Draws the map of a baseline: a panel per header search, knowledge and replacement.
pub(super) fn figure(cells: &[&Cell], title: &str) -> Figure {
    let mut kinds: Vec<Harm> = Vec::new();
    for cell in cells {
        // All that a panel has in common.
        let harm = Harm {
            packet: None,
            ..cell.harm
        };
        if !kinds.contains(&harm) {
            kinds.push(harm);
        }
    }
    let is_of = |kind: Harm, cell: &Cell| {
        kind == Harm {
            packet: None,
            ..cell.harm
        }
    };
    let panels = kinds.into_iter().map(|kind| {
        let cells: Vec<&Cell> = cells.iter().copied().filter(|it| is_of(kind, it)).collect();
        panel(&cells, kind)
    });
    Figure {
        title: format!("{title}. {MEANING}"),
        panels: panels.collect(),
    }
}

fn panel(cells: &[&Cell], kind: Harm) -> Panel {
    let packets: BTreeSet<usize> = cells.iter().filter_map(|cell| cell.harm.packet).collect();
    let mut losses: Vec<f64> = cells.iter().map(|cell| cell.loss).collect();
    losses.sort_by(f64::total_cmp);
    losses.dedup();
    let place = |cell: &&&Cell| {
        let across = losses.iter().position(|loss| *loss == cell.loss)?;
        let up = packets
            .iter()
            .position(|packet| Some(*packet) == cell.harm.packet)?;
        Some((across as f64, up as f64))
    };
    let series = |name: &str, rises: bool| {
        let of = || cells.iter().filter(|cell| cell.rises() == rises);
        let label = |cell: &&Cell| {
            cell.highest_amplitude
                .map_or_else(String::new, |it| format!("{it:.2}"))
        };
        Series {
            labels: of().map(label).collect(),
            ..Series::new(
                name,
                Style::Dots,
                of().filter_map(|cell| place(&cell)).collect(),
            )
        }
    };
    let axis = |label: &str, names: Vec<String>| Axis {
        range: Some((-0.5, names.len() as f64 - 0.5)),
        names,
        ..Axis::new(label, Unit::Bare)
    };
    let losses_shown = losses
        .iter()
        .map(|loss| format!("{}", (loss * 1e4).round() / 100.0));
    Panel {
        title: format!(
            "{} ({}, {}): highest amplitude of a period",
            kind.search,
            name(&kind.replace),
            name(&kind.knows)
        ),
        x: axis("loss (%)", losses_shown.collect()),
        y: axis(
            "packet (bytes)",
            packets.iter().map(usize::to_string).collect(),
        ),
        series: vec![
            series("not raised at low weight", false),
            series("raised at low weight", true),
        ],
    }
}
