//! Formats loss curves as text. Further tables of a result belong here.

use std::collections::BTreeSet;

use evlbi_plot::name;

use super::{Curve, Harm, LossCurve, Lossless, Point, Where, map};

/// Heading of the table of a curve.
const HEAD: &str = "    loss     shed     lost       all    autos    valid   weight      SNR   theory:      all    autos    valid      SNR  off";

/// Formats points as lines of a table.
fn rows(points: &[Point]) -> String {
    let rows = points.iter().map(|point| {
        let theory = point.theory.map_or_else(String::new, |theory| {
            format!(
                "{:>8.4} {:>8.4} {:>8.4} {:>8.4}",
                theory.all, theory.autos, theory.valid, theory.snr
            )
        });
        let off = point.periods_off.map(|off| format!("{:.0} %", off * 100.0));
        let off = off.unwrap_or_default();
        format!(
            "{:>7.2}% {:>7.3}% {:>7.3}%  {:>8.4} {:>8.4} {:>8.4} {:>8.4} {:>8.4}           {theory:<35}  {off}\n",
            point.loss * 100.0,
            point.shed * 100.0,
            point.lost * 100.0,
            point.ratio.all,
            point.ratio.autos,
            point.ratio.valid,
            point.ratio.weight,
            point.ratio.snr,
        )
    });
    rows.collect()
}

/// Formats a result as text: a table of each curve, and the conclusions at the end. Identical curves share a table.
pub fn text(result: &LossCurve) -> String {
    let mut shown = String::new();
    for Lossless { baseline, point } in &result.lossless_baselines {
        shown += &format!(
            "{}: amplitude {:.6}, signal-to-noise ratio {:.1} without loss; periods of {:.3} s\n",
            baseline.join("-"),
            point.amplitude.valid,
            point.snr,
            result.period_s
        );
    }
    // A correlator that knows the loss sees no difference between replacements.
    let mut tables: Vec<(&Curve, String, String)> = Vec::new();
    let mut unchanged = BTreeSet::new();
    for curve in &result.curves {
        if result.is_unchanged(curve) {
            unchanged.insert(curve.baseline.join("-"));
            continue;
        }
        let (rows, replacement) = (rows(&curve.points), name(&curve.harm.replace));
        let is_same = |(other, _, shown): &&mut (&Curve, String, String)| {
            let replace = other.harm.replace;
            other.harm
                == Harm {
                    replace,
                    ..curve.harm
                }
                && other.baseline == curve.baseline
                && *shown == rows
        };
        match tables.iter_mut().find(is_same) {
            Some((_, replacements, _)) => *replacements += &format!(" or {replacement}"),
            None => tables.push((curve, replacement, rows)),
        }
    }
    for (curve, replacements, rows) in tables {
        let harm = curve.harm;
        let is_pair = result.stations.len() == 2;
        let place = match harm.at {
            Where::One => result.lossy_stations.join(" and "),
            Where::Both if is_pair => "both".to_owned(),
            Where::Both => "all stations".to_owned(),
        };
        let baseline = match is_pair {
            true => String::new(),
            false => format!("{}: ", curve.baseline.join("-")),
        };
        shown += &format!(
            "\n{baseline}{} at {place}{}, replaced by {replacements}; the correlator {}{}\n{HEAD}\n{rows}",
            name(&harm.shed),
            harm.packets(),
            harm.knows.label(),
            harm.reader(),
        );
    }
    for baseline in unchanged {
        shown += &format!("\n{baseline}: unchanged wherever only other stations lose data\n");
    }
    if !result.map.is_empty() {
        shown += &map::text(&result.map);
    }
    if !result.conclusions.is_empty() {
        shown += "\nConclusions:";
    }
    for conclusion in &result.conclusions {
        shown += &format!("\n  - {conclusion}");
    }
    if result.interrupted {
        shown += "\ninterrupted: not all points were measured";
    }
    shown.trim_end().to_string()
}
