//! Plots of connections as in the EXPReS report: window, throughput, retransmissions (figures 2.2, 2.4, 2.5), and lateness against message
//! number (figures 2.3, 2.6).

use evlbi_trace::tcp::{Info, Interval, Reading, intervals};

use super::super::picture::panel;
use super::ProbeTcp;
use super::flow::{Flow, Kept};
use evlbi_plot::{Axis, Figure, Series, Unit};

/// Maximum number of points of a curve.
const MAX_POINTS: usize = 4000;
/// Throughput is averaged over the whole time divided by this, and over [`READINGS`] samples at least.
const PARTS: f64 = 200.0;
const READINGS: f64 = 5.0;
/// Slow start threshold before the first loss.
const NO_THRESHOLD: u32 = i32::MAX as u32;

/// Plots the result: a curve for each connection.
pub fn figure(result: &ProbeTcp) -> Figure {
    let time = || Axis::new("time", Unit::Si("s"));
    let name = |flow: &Flow| match result.flows.len() {
        1 => flow.algorithm.clone(),
        _ => {
            let way = flow.direction.label();
            format!("{} {way} {}", flow.number, flow.algorithm)
        }
    };
    let series = |flow: &Flow, points: Vec<(f64, f64)>| Series {
        name: name(flow),
        points,
        ..Series::default()
    };
    let curve = |flow: &Flow, get: fn(&Info) -> Option<f64>| {
        let point = |reading: &Reading| Some((since(flow, reading), get(&reading.info)?));
        series(flow, thin(&flow.readings[0], point))
    };
    let mut windows = Vec::new();
    for flow in &result.flows {
        windows.push(curve(flow, |info| Some(f64::from(info.window))));
        if result.flows.len() == 1 {
            windows.push(Series {
                name: "threshold".to_owned(),
                ..curve(flow, |info| {
                    (info.threshold < NO_THRESHOLD).then_some(f64::from(info.threshold))
                })
            });
        }
    }
    let rates = result.flows.iter().map(|flow| {
        let length = (result.asked.duration / PARTS).max(result.asked.sample * READINGS);
        let intervals = intervals(&flow.readings[0], length);
        let point = |one: &Interval| (f64::midpoint(one.from, one.to), one.rate);
        series(flow, intervals.iter().map(point).collect())
    });
    let again = |flow: &Flow| curve(flow, |info| Some(f64::from(info.sent_again)));
    let again = result.flows.iter().map(again).collect();
    let late = result.flows.iter().filter_map(|flow| {
        let kept = &flow.messages.as_ref()?.kept;
        let point = |(number, .., late): &Kept| Some((*number as f64, *late as f64 * 1e-9));
        Some(series(flow, thin(kept, point)))
    });
    let late: Vec<Series> = late.collect();
    let acknowledged = Axis::new("acknowledged", Unit::Si("bit/s"));
    let so_far = Axis::new("segments so far", Unit::Bare);
    let segments = Axis::new("segments", Unit::Bare);
    let mut panels = vec![
        panel("congestion window", time(), segments, windows),
        panel("achieved throughput", time(), acknowledged, rates.collect()),
        panel("retransmissions", time(), so_far, again),
    ];
    if !late.is_empty() {
        let message = Axis::new("message", Unit::Bare);
        let y = Axis::new("late", Unit::Si("s"));
        panels.push(panel("lateness of messages", message, y, late));
    }
    Figure {
        title: format!("TCP to {} at {}", result.target, result.begun),
        panels,
    }
}

fn since(flow: &Flow, reading: &Reading) -> f64 {
    let begin = flow.readings[0].first().map_or(0, |first| first.at);
    reading.at.saturating_sub(begin) as f64 * 1e-9
}

/// Thins out points to the number that a plot shows.
fn thin<T>(all: &[T], point: impl Fn(&T) -> Option<(f64, f64)>) -> Vec<(f64, f64)> {
    let step = all.len().div_ceil(MAX_POINTS).max(1);
    all.iter().step_by(step).filter_map(point).collect()
}
