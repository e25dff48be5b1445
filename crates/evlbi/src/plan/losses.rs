//! A flow of constant bit rate whose segments are lost by chance, for several parts of loss: the EXPReS report's figure 2.3.

use anyhow::Result;
use evlbi_core::path::Loss;
use evlbi_core::tcp::{Algorithm, Cbr, Outcome};
use evlbi_core::time::Nanos;
use evlbi_net::run::Run;
use serde::Serialize;

use super::compare::{LINK, POINTS, queue, scene};
use super::tcp::{PlanTcpOptions, algorithms, flow};
use crate::output::columns;
use crate::plot::{Axis, Figure, Panel, Series, Unit};
use crate::units::{show_bytes, show_count, show_rate, show_seconds};

/// Times in seconds, data in bytes.
#[derive(Debug, Serialize)]
pub struct Losses {
    schema: &'static str,
    rate: u64,
    mss: u32,
    acks: u32,
    link: u64,
    seconds: f64,
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    rtt_s: f64,
    algorithm: &'static str,
    /// Part of the segments that is lost, each by itself.
    loss: f64,
    messages: u64,
    delivered: u64,
    sent_again: u64,
    shed: u64,
    /// Most that was late.
    delayed_bytes: u64,
    /// One-way delay of the last message beyond the shortest.
    late_at_end_s: f64,
    /// Message number, and its one-way delay in seconds.
    #[serde(skip)]
    curve: Vec<(f64, f64)>,
}

struct Job {
    flow: Cbr,
    algorithm: Algorithm,
    loss: f64,
}

/// Simulates each algorithm at each round-trip time with each loss fraction.
///
/// # Errors
/// If the link is too slow, or the run is stopped.
pub fn simulate(options: &PlanTcpOptions, run: &Run) -> Result<Losses> {
    let link = options.link.map_or(LINK, evlbi_core::rate::BitRate::get);
    let mut jobs = Vec::new();
    for round_trip in &options.rtt {
        let flow = flow(options, *round_trip, Some(link))?;
        for algorithm in algorithms(options) {
            jobs.extend(options.loss.iter().map(|loss| Job {
                flow,
                algorithm: *algorithm,
                loss: *loss,
            }));
        }
    }
    let name = |job: &Job| {
        format!(
            "{} at {} with a loss of {}",
            job.algorithm,
            show_seconds(job.flow.round_trip),
            show_loss(job.loss)
        )
    };
    let rows = queue(&jobs, run, name, |job| row(options, link, job))?;
    Ok(Losses {
        schema: "evlbi.plan.losses/1",
        rate: options.rate.get(),
        mss: options.mss,
        acks: options.acks,
        link,
        seconds: options.duration.as_secs_f64(),
        rows,
    })
}

fn row(options: &PlanTcpOptions, link: u64, job: &Job) -> Row {
    let length = Nanos::from_secs_f64(options.duration.as_secs_f64());
    let loss = Loss::Random { fraction: job.loss };
    let scene = scene(options, link, &job.flow, job.algorithm, loss, length);
    let mut curve = Vec::with_capacity(POINTS as usize);
    let outcome = scene.run(|sample| {
        curve.push((sample.message as f64, sample.delay.as_secs_f64()));
    });
    let Outcome {
        messages,
        shed,
        delivered,
        sent_again,
        shortest,
        delayed,
        ..
    } = outcome;
    let last = curve.last().map_or(0.0, |(_, delay)| *delay);
    Row {
        rtt_s: job.flow.round_trip,
        algorithm: job.algorithm.name(),
        loss: job.loss,
        messages,
        delivered,
        sent_again,
        shed,
        delayed_bytes: delayed,
        late_at_end_s: (last - shortest.as_secs_f64()).max(0.0),
        curve,
    }
}

fn show_loss(loss: f64) -> String {
    if loss == 0.0 {
        "0".to_owned()
    } else {
        format!("{loss:.1e}")
    }
}

/// Formats it for people.
pub fn text(losses: &Losses) -> String {
    let heads = [
        "",
        "RTT",
        "loss",
        "messages",
        "come",
        "sent again",
        "late at most",
        "late at the end",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for row in &losses.rows {
        rows.push(vec![
            row.algorithm.to_owned(),
            show_seconds(row.rtt_s),
            show_loss(row.loss),
            show_count(row.messages),
            show_count(row.delivered),
            show_count(row.sent_again),
            show_bytes(row.delayed_bytes as f64),
            show_seconds(row.late_at_end_s),
        ]);
    }
    format!(
        "segments lost by chance of {} on a link of {} for {}, packet by packet\n{}",
        show_rate(losses.rate as f64),
        show_rate(losses.link as f64),
        show_seconds(losses.seconds),
        columns(&rows, |column| column == 0)
    )
}

/// Plots the delays.
pub fn figure(losses: &Losses) -> Figure {
    let mut panels = Vec::<Panel>::new();
    for row in &losses.rows {
        let title = format!("{} at {}", row.algorithm, show_seconds(row.rtt_s));
        if panels.last().is_none_or(|panel| panel.title != title) {
            panels.push(Panel {
                title,
                x: Axis::new("message", Unit::Bare),
                y: Axis::new("one-way delay", Unit::Si("s")),
                series: Vec::new(),
            });
        }
        if let Some(panel) = panels.last_mut() {
            panel.series.push(Series {
                name: format!("loss {}", show_loss(row.loss)),
                points: row.curve.clone(),
                ..Series::default()
            });
        }
    }
    Figure {
        title: format!("Losses of {} over TCP", show_rate(losses.rate as f64)),
        panels,
    }
}
