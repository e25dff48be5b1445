//! Connections drawn as the EXPReS report does: window, throughput, retransmissions (figures 2.2, 2.4, 2.5), and lateness
//! against message number (figures 2.3, 2.6).

use evlbi_core::tcp::{Info, Reading, intervals};

use super::super::picture::panel;
use super::ProbeTcp;
use super::flow::Flow;
use crate::plot::{Axis, Figure, Series, Unit};

/// Points of a curve, at most.
const MOST_POINTS: usize = 4000;
/// Throughput is averaged over this part of the whole time, and no less than a few readings.
const PARTS: f64 = 200.0;
const READINGS: f64 = 5.0;
/// Slow start's threshold before the first loss.
const NO_THRESHOLD: u32 = i32::MAX as u32;

pub fn figure(result: &ProbeTcp) -> Figure {
    let time = || Axis::new("time", Unit::Si("s"));
    let name = |flow: &Flow| match result.flows.len() {
        1 => flow.algorithm.clone(),
        _ => format!(
            "{} {} {}",
            flow.number,
            flow.direction.name(),
            flow.algorithm
        ),
    };
    let curve = |flow: &Flow, get: fn(&Info) -> Option<f64>| Series {
        name: name(flow),
        points: thin(flow.readings[0].iter(), |reading| {
            Some((since(flow, reading), get(&reading.info)?))
        }),
        ..Series::default()
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
        Series {
            name: name(flow),
            points: intervals(&flow.readings[0], length)
                .iter()
                .map(|interval| (f64::midpoint(interval.from, interval.to), interval.rate))
                .collect(),
            ..Series::default()
        }
    });
    let again = result
        .flows
        .iter()
        .map(|flow| curve(flow, |info| Some(f64::from(info.sent_again))));
    let mut panels = vec![
        panel(
            "congestion window",
            time(),
            Axis::new("segments", Unit::Bare),
            windows,
        ),
        panel(
            "achieved throughput",
            time(),
            Axis::new("acknowledged", Unit::Si("bit/s")),
            rates.collect(),
        ),
        panel(
            "retransmissions",
            time(),
            Axis::new("segments so far", Unit::Bare),
            again.collect(),
        ),
    ];
    let late: Vec<Series> = result
        .flows
        .iter()
        .filter_map(|flow| {
            let messages = flow.messages.as_ref()?;
            Some(Series {
                name: name(flow),
                points: thin(messages.kept.iter(), |(number, _, _, late)| {
                    Some((*number as f64, *late as f64 * 1e-9))
                }),
                ..Series::default()
            })
        })
        .collect();
    if !late.is_empty() {
        panels.push(panel(
            "lateness of messages",
            Axis::new("message", Unit::Bare),
            Axis::new("late", Unit::Si("s")),
            late,
        ));
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

/// No more points than a picture shows.
fn thin<T>(
    all: impl ExactSizeIterator<Item = T>,
    point: impl Fn(T) -> Option<(f64, f64)>,
) -> Vec<(f64, f64)> {
    let step = all.len().div_ceil(MOST_POINTS).max(1);
    all.step_by(step).filter_map(point).collect()
}
