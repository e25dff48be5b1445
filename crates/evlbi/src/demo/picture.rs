//! The picture of a demonstration: counters along the signal path, loss over time, and the fringes.

use evlbi_plot::{Axis, FILLED, Figure, Panel, Series, Style, Unit};

use super::{DemoResult, StationResult, summary};

/// Baselines whose fringes are drawn: the first ones.
const MAX_BASELINES: usize = 6;

/// Places along the signal path, and what a station has there.
type Place = (&'static str, fn(&StationResult) -> u64);
const PLACES: [Place; 5] = [
    ("sent", |station| station.sent.live.sent),
    ("lost in the network", |station| {
        station.received.attribution.network_lost
    }),
    ("lost in this host", |station| {
        station.received.attribution.host_lost
    }),
    ("received", |station| {
        station.received.account.counters.unique
    }),
    ("invalid in the recording", |station| {
        station.recording.invalid
    }),
];

/// Draws a result.
pub fn figure(result: &DemoResult) -> Figure {
    let mut panels = vec![places(&result.stations), over_time(&result.stations)];
    if !result.baselines.is_empty() {
        panels.push(fringes(result));
    }
    Figure {
        title: summary(result),
        panels,
    }
}

/// A bar for each station at each place.
fn places(stations: &[StationResult]) -> Panel {
    let counts = stations.iter().map(|station| {
        let counts = PLACES.iter().map(|(_, count)| count(station));
        (station.station.clone(), counts.collect())
    });
    Panel::of_counts(
        "Datagrams from the stations to their recordings",
        "datagrams",
        &PLACES.map(|(name, _)| name),
        &counts.collect::<Vec<_>>(),
    )
}

/// A curve for each station.
fn over_time(stations: &[StationResult]) -> Panel {
    let series = stations.iter().map(|station| {
        let intervals = station.recording.intervals.iter();
        let points = intervals.map(|interval| {
            let lost = interval.invalid as f64 / interval.frames.max(1) as f64;
            (interval.from_s, 100.0 * lost)
        });
        Series::new(&station.station, Style::Line, points.collect())
    });
    Panel {
        title: "Loss over time".to_owned(),
        x: Axis::new("time", Unit::Si("s")),
        y: Axis::new("loss (%)", Unit::Bare),
        series: series.collect(),
    }
}

/// Amplitude against delay of one baseline next to the other, with the amplitude expected as a line across.
fn fringes(result: &DemoResult) -> Panel {
    let shown = &result.baselines[..result.baselines.len().min(MAX_BASELINES)];
    let (mut found, mut expected, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for (at, baseline) in (0u32..).map(f64::from).zip(shown) {
        let amplitudes = &baseline.profile.amplitudes;
        let step = FILLED / amplitudes.len().max(1) as f64;
        let points = (0u32..).zip(amplitudes);
        let place = |delay: u32| at - FILLED / 2.0 + (f64::from(delay) + 0.5) * step;
        found.extend(points.map(|(delay, amplitude)| (place(delay), f64::from(*amplitude))));
        let amplitude = baseline.amplitude_expected;
        expected.extend([-0.5, 0.0, 0.5].map(|side| (at + side * FILLED, amplitude)));
        let (of, found_there) = (amplitude, baseline.amplitude_found);
        labels.extend([
            String::new(),
            format!("{found_there:.4} of {of:.4}"),
            String::new(),
        ]);
        // Neither line continues to the next baseline.
        found.push((f64::NAN, f64::NAN));
        expected.push((f64::NAN, f64::NAN));
        labels.push(String::new());
    }
    let highest = expected
        .iter()
        .chain(&found)
        .map(|(_, y)| *y)
        .fold(0.0, f64::max);
    Panel {
        title: "Fringes: amplitude found of the amplitude expected".to_owned(),
        x: Axis {
            names: shown
                .iter()
                .map(|baseline| baseline.stations.join("-"))
                .collect(),
            ..Axis::new("delay, of each baseline", Unit::Bare)
        },
        y: Axis {
            range: Some((0.0, highest * 1.3)),
            ..Axis::new("amplitude", Unit::Bare)
        },
        series: vec![
            Series::new("amplitude against delay", Style::Line, found),
            Series {
                labels,
                ..Series::new("expected", Style::Line, expected)
            },
        ],
    }
}
