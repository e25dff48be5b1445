//! The picture of a fringe.

use evlbi_fx::fringe::{self, Fringe, Visibilities};

use super::scale::measured;
use super::{Axis, Figure, Panel, Series, Style, Unit};

/// Amplitude against delay and rate, phase against time. `scale` makes correlation coefficients of amplitudes.
pub fn fringe_figure(
    title: &str,
    visibilities: &Visibilities<'_>,
    fringe: &Fringe,
    scale: f64,
) -> Figure {
    let searched = |width: f64| (width > 0.0).then_some((-width, width));
    let some = |error: f64| Some(error).filter(|error| *error > 0.0);
    let delay = cut(
        format!(
            "Delay {}",
            measured(fringe.delay_s, some(fringe.delay_error_s), "s")
        ),
        over("delay", "s", searched(fringe.window.0)),
        fringe::over_delay(visibilities, fringe),
        (fringe.delay_s, fringe.amplitude),
        scale,
    );
    let rate = cut(
        format!(
            "Rate {}",
            measured(fringe.rate_hz, some(fringe.rate_error_hz), "Hz")
        ),
        over("fringe rate", "Hz", searched(fringe.window.1)),
        fringe::over_rate(visibilities, fringe),
        (fringe.rate_hz, fringe.amplitude),
        scale,
    );
    Figure {
        title: format!(
            "{title}: SNR {:.1}, false alarm probability {}",
            fringe.snr,
            probability(fringe.false_alarm)
        ),
        panels: vec![delay, rate, phase(visibilities, fringe)],
    }
}

/// An axis over the window that was searched.
fn over(label: &str, unit: &'static str, window: Option<(f64, f64)>) -> Axis {
    Axis {
        range: window,
        ..Axis::new(label, Unit::Si(unit))
    }
}

fn probability(probability: f64) -> String {
    match probability {
        ..1e-300 => "below 1e-300".to_string(),
        ..1e-3 => format!("{probability:.1e}"),
        _ => format!("{probability:.3}"),
    }
}

/// An amplitude along an axis, with the fringe marked.
fn cut(title: String, x: Axis, line: Vec<(f64, f64)>, peak: (f64, f64), scale: f64) -> Panel {
    let scaled = |(x, y): (f64, f64)| (x, y * scale);
    Panel {
        title,
        x,
        y: Axis::new("amplitude", Unit::Bare),
        series: vec![
            Series {
                name: "visibilities".to_string(),
                points: line.into_iter().map(scaled).collect(),
                ..Series::default()
            },
            Series {
                name: "fringe".to_string(),
                points: vec![scaled(peak)],
                style: Style::Dots,
                ..Series::default()
            },
        ],
    }
}

fn phase(visibilities: &Visibilities<'_>, fringe: &Fringe) -> Panel {
    let mean = fringe.phase_rad.to_degrees();
    let sums = fringe::by_period(visibilities, fringe);
    let end = sums.len() as f64 * visibilities.period_s;
    let points = sums.iter().enumerate().filter(|(_, sum)| sum.norm() > 0.0);
    let points = points.map(|(period, sum)| {
        let middle = (period as f64 + 0.5) * visibilities.period_s;
        (middle, sum.arg().to_degrees())
    });
    Panel {
        title: format!(
            "Phase {mean:.1} ± {:.1} deg, delay and rate taken out",
            fringe.phase_error_rad.to_degrees()
        ),
        x: Axis {
            range: Some((0.0, end)),
            ..Axis::new("time", Unit::Si("s"))
        },
        y: Axis {
            range: Some((-180.0, 180.0)),
            ..Axis::new("phase", Unit::Degrees)
        },
        series: vec![
            Series {
                name: "fringe".to_string(),
                points: vec![(0.0, mean), (end, mean)],
                ..Series::default()
            },
            Series {
                name: "periods".to_string(),
                points: points.collect(),
                style: Style::Dots,
                ..Series::default()
            },
        ],
    }
}
