//! Draws a fringe.

use evlbi_fx::fringe::{self, Fringe, Visibilities};
use evlbi_plot::{Axis, Figure, Panel, Series, Style, Unit, measured};

/// Draws amplitude against delay, and if there are several integrations amplitude against rate and phase against time. `scale` converts
/// amplitudes to correlation coefficients.
pub fn fringe_figure(
    title: &str,
    visibilities: &Visibilities<'_>,
    fringe: &Fringe,
    scale: f64,
) -> Figure {
    let scaled = |(place, amplitude): (f64, f64)| (place, amplitude * scale);
    let along_delay = fringe::over_delay(visibilities, fringe).into_iter();
    let along_rate = fringe::over_rate(visibilities, fringe).into_iter();
    let delay = cut(
        ("Delay", "delay", "s"),
        (fringe.delay_s, fringe.delay_error_s, fringe.window.0),
        along_delay.map(scaled).collect(),
        fringe.amplitude * scale,
    );
    let rate = cut(
        ("Rate", "fringe rate", "Hz"),
        (fringe.rate_hz, fringe.rate_error_hz, fringe.window.1),
        along_rate.map(scaled).collect(),
        fringe.amplitude * scale,
    );
    let probability = probability(fringe.false_alarm);
    Figure {
        title: format!(
            "{title}: SNR {:.1}, false alarm probability {probability}",
            fringe.snr
        ),
        panels: match visibilities.periods() {
            ..2 => vec![delay],
            _ => vec![delay, rate, phase(visibilities, fringe)],
        },
    }
}

fn probability(probability: f64) -> String {
    match probability {
        ..1e-300 => "below 1e-300".to_string(),
        ..1e-3 => format!("{probability:.1e}"),
        _ => format!("{probability:.3}"),
    }
}

/// Draws an amplitude along an axis of the search window, with the fringe marked. `found` is its position, its error and half of the
/// window's width.
fn cut(
    (title, label, unit): (&str, &str, &'static str),
    found: (f64, f64, f64),
    line: Vec<(f64, f64)>,
    peak: f64,
) -> Panel {
    let (place, error, width) = found;
    Panel {
        title: format!("{title} {}", measured(place, error, unit)),
        x: Axis {
            range: (width > 0.0).then_some((-width, width)),
            ..Axis::new(label, Unit::Si(unit))
        },
        y: Axis::new("amplitude", Unit::Bare),
        series: vec![
            Series::new("visibilities", Style::Line, line),
            Series::new("fringe", Style::Dots, vec![(place, peak)]),
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
            Series::new("fringe", Style::Line, vec![(0.0, mean), (end, mean)]),
            Series::new("periods", Style::Dots, points.collect()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use evlbi_fx::fringe::{Window, search};
    use evlbi_fx::simd::Simd;
    use rustfft::num_complex::Complex32;

    use super::*;

    /// Returns a fringe at 1.234 us and 123 mHz with some empty periods.
    fn example() -> Figure {
        let (channels, periods) = (256i32, 120i32);
        let mut seed = 1u32;
        let mut noise = || {
            let mut sum = 0.0;
            for _ in 0..6 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                sum += (f64::from(seed) / f64::from(u32::MAX) - 0.5) * 2f64.sqrt();
            }
            sum
        };
        let mut values = Vec::new();
        for period in 0..periods {
            for channel in 0..channels {
                let (f, t) = (
                    f64::from(channel - 128) * 62.5e3,
                    f64::from(period - 60) * 0.5,
                );
                let phase = 1.0 + std::f64::consts::TAU * (f * 1.234e-6 + 0.123 * t);
                let weight = if (40..50).contains(&period) { 0.0 } else { 1.0 };
                let re = weight * (0.25 * phase.cos() + noise());
                let im = weight * (0.25 * phase.sin() + noise());
                values.push(Complex32::new(re as f32, im as f32));
            }
        }
        let visibilities = Visibilities {
            values: &values,
            channels: channels as usize,
            channel_width_hz: 62.5e3,
            first_channel_hz: -8e6,
            reference_hz: 8.4e9,
            period_s: 0.5,
            noise: f64::from(channels * (periods - 10)),
            simd: Simd::best(),
        };
        let fringe = search(&visibilities, &Window::default());
        assert!((fringe.delay_s - 1.234e-6).abs() < 1e-8, "{fringe:?}");
        fringe_figure("Ef-Jb RR", &visibilities, &fringe, 1.0)
    }

    #[test]
    fn a_fringe_is_drawn_in_every_format() {
        let figure = example();
        assert!(figure.svg().unwrap().contains("SNR"));
        assert!(!figure.png().unwrap().is_empty());
        let text = figure.text(80, 45);
        assert!(text.lines().count() <= 45, "{text}");
        for part in [
            "delay (µs)",
            "fringe rate (Hz)",
            "time (s)",
            "phase (deg)",
            "180",
            "SNR",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
