//! Draws the curves: measurements as dots with their errors, theory as lines.

use evlbi_plot::{Axis, Figure, Panel, Series, Style, Unit, name};

use super::{Curve, Measures, Point, Search};
use crate::series::Dump;

/// Draws the curves of a policy at a place for a baseline, one panel per quantity.
pub(super) fn figure(curves: &[&Curve], title: &str) -> Figure {
    type Get = fn(&Measures) -> f64;
    let measures: [(&str, Get); 4] = [
        ("amplitude by all samples", |m| m.all),
        ("amplitude by valid samples", |m| m.valid),
        ("weight", |m| m.weight),
        ("signal-to-noise ratio", |m| m.snr),
    ];
    let panels = measures.map(|(label, get)| Panel {
        title: format!("{label} over that without loss; lines: theory"),
        x: Axis::new("loss (%)", Unit::Bare),
        y: Axis::new(label, Unit::Bare),
        series: curves.iter().flat_map(|curve| series(curve, get)).collect(),
    });
    let mut panels = Vec::from(panels);
    panels.extend(curves.iter().find_map(|curve| periods(curve)));
    Figure {
        title: title.to_owned(),
        panels,
    }
}

fn series(curve: &Curve, get: fn(&Measures) -> f64) -> [Series; 2] {
    let found = curve.points.iter();
    let found = found.map(|point| (point.shed * 100.0, get(&point.ratio)));
    let error = |point: &Point| point.relative_error * get(&point.ratio);
    let theory = curve.points.iter().filter_map(|point| {
        let theory = point.theory.as_ref()?;
        Some((point.shed * 100.0, get(theory)))
    });
    let harm = curve.harm;
    let mut name = format!("{} ({})", name(&harm.replace), name(&harm.knows));
    if let Some(packet) = harm.packet {
        name += &format!(", {packet} B");
    }
    if harm.search != Search::Flywheel {
        name += &format!(", {}", harm.search);
    }
    let measured = Series {
        error: Some(curve.points.iter().map(error).collect()),
        ..Series::new(&name, Style::Dots, found.collect())
    };
    [measured, Series::new("", Style::Line, theory.collect())]
}

/// Draws the periods of the highest loss: all, and those with half of their data or more.
fn periods(curve: &Curve) -> Option<Panel> {
    let last = curve.points.last()?;
    let point = |period: &Dump| (period.seconds, period.amplitude);
    let with_data = || last.periods.iter().filter(|period| period.weight > 0.0);
    let heavy = with_data().filter(|period| period.weight >= super::WEIGHT_CUT);
    let all = Series {
        error: Some(with_data().map(|period| period.error).collect()),
        ..Series::new("all", Style::Dots, with_data().map(point).collect())
    };
    let heavy = heavy.map(point).collect();
    Some(Panel {
        title: format!(
            "periods at a loss of {:.1} % ({}, {})",
            last.shed * 100.0,
            name(&curve.harm.shed),
            name(&curve.harm.replace)
        ),
        x: Axis::new("time", Unit::Si("s")),
        y: Axis::new("amplitude by valid samples", Unit::Bare),
        series: vec![
            all,
            Series::new("with half of their data or more", Style::Line, heavy),
        ],
    })
}
