//! Plots of a capture's connections: throughput, data in flight, round-trip times, retransmissions; and times between datagrams.

use evlbi_trace::capture::{Connection, DirectionReport, Interval, Stream, StreamInterval};

use super::{Analysis, Seen};
use crate::direction::Direction;
use evlbi_plot::{Axis, Figure, Panel, Series, Unit};

/// Maximum number of directions, and of streams, that are plotted.
const MAX: usize = 4;

/// Plots the largest connections and streams.
pub fn figure(analysis: &Analysis) -> Figure {
    let ways = analysis.connections.iter().flat_map(|seen| {
        let ways = seen.found.ways.iter().enumerate();
        ways.filter(|(_, way)| way.bytes > 0)
            .map(move |(place, way)| (seen, place, way))
    });
    let mut ways: Vec<(&Seen<Connection>, usize, &DirectionReport)> = ways.collect();
    ways.sort_by_key(|(_, _, way)| std::cmp::Reverse(way.bytes));
    ways.truncate(MAX);
    let series = |get: &dyn Fn(&DirectionReport, &Interval) -> Option<f64>| -> Vec<Series> {
        let one = |(seen, place, way): &(&Seen<Connection>, usize, &DirectionReport)| Series {
            name: format!("{} {}", seen.number, Direction::BOTH[*place].label()),
            points: course(seen.found.from, way.every, &way.intervals, |interval| {
                get(way, interval)
            }),
            ..Series::default()
        };
        ways.iter().map(one).collect()
    };
    let panel = |title: &str, y: &str, unit: Unit, series: Vec<Series>| Panel {
        title: title.to_owned(),
        x: Axis::new("time", Unit::Si("s")),
        y: Axis::new(y, unit),
        series,
    };
    let mut panels = Vec::new();
    if !ways.is_empty() {
        let rates = series(&|way, interval| Some(interval.acknowledged as f64 * 8.0 / way.every));
        panels.push(panel(
            "achieved throughput",
            "acknowledged",
            Unit::Si("bit/s"),
            rates,
        ));
        let mut flights = series(&|_, interval| Some(interval.flight as f64));
        if ways.len() == 1 {
            let windows = series(&|_, interval| interval.window.map(|window| window as f64));
            flights.extend(windows.into_iter().map(|window| Series {
                name: "the receiver's window".to_owned(),
                ..window
            }));
        }
        panels.push(panel("data in flight", "maximum", Unit::Si("B"), flights));
        let trips = series(&|_, interval| Some(interval.round_trip? as f64 * 1e-9));
        panels.push(panel("RTT from here", "shortest", Unit::Si("s"), trips));
        let mut again = series(&|_, interval| Some(interval.sent_again as f64));
        for series in &mut again {
            let mut sum = 0.0;
            for (_, count) in &mut series.points {
                sum += *count;
                *count = sum;
            }
        }
        panels.push(panel(
            "retransmissions",
            "segments so far",
            Unit::Bare,
            again,
        ));
    }
    let streams = analysis.streams.iter().take(MAX);
    let of_streams = |get: &dyn Fn(&Stream, &StreamInterval) -> f64| -> Vec<Series> {
        let one = |Seen { number, found, .. }: &Seen<Stream>| Series {
            name: format!("stream {number}"),
            points: course(found.from, found.every, &found.intervals, |interval| {
                Some(get(found, interval))
            }),
            ..Series::default()
        };
        streams.clone().map(one).collect()
    };
    if !analysis.streams.is_empty() {
        let rates = of_streams(&|stream, interval| interval.bytes as f64 * 8.0 / stream.every);
        panels.push(panel(
            "rate of streams",
            "payload",
            Unit::Si("bit/s"),
            rates,
        ));
        let lost = of_streams(&|_, interval| interval.lost as f64);
        let mut counts = lost.iter().flat_map(|series| &series.points);
        if counts.any(|(_, lost)| *lost != 0.0) {
            panels.push(panel("lost", "datagrams", Unit::Bare, lost));
        }
    }
    let gaps: Vec<Series> = streams
        .filter_map(|seen| {
            let gaps = seen.found.gaps.as_ref();
            let gaps = gaps.filter(|gaps| !gaps.bins.is_empty())?;
            let middle = gaps.bin_width.unwrap_or(0) as f64 / 2.0;
            Some(Series {
                name: format!("stream {}", seen.number),
                points: gaps
                    .bins
                    .iter()
                    .map(|(bin, count)| ((*bin as f64 + middle) * 1e-9, *count as f64))
                    .collect(),
                ..Series::default()
            })
        })
        .collect();
    if !gaps.is_empty() {
        let mut panel = panel("times between datagrams", "packets", Unit::Bare, gaps);
        panel.y.log = true;
        panels.push(panel);
    }
    let begun = analysis.begun.as_deref().unwrap_or("-");
    Figure {
        title: format!("{} from {begun}", analysis.file.display()),
        panels,
    }
}

/// Returns a curve of the intervals' values, each in the middle of its interval.
fn course<I>(
    from: f64,
    every: f64,
    intervals: &[I],
    get: impl Fn(&I) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let points = intervals
        .iter()
        .enumerate()
        .filter_map(|(place, interval)| {
            let middle = from + (place as f64 + 0.5) * every;
            Some((middle, get(interval)?))
        });
    points.collect()
}
