//! A flow of constant bit rate whose segments are lost by chance, for several parts of loss: the EXPReS report's figure 2.3.

use anyhow::Result;
use evlbi_core::path::Loss;
use evlbi_core::tcp::{Algorithm, Cbr, Outcome};
use evlbi_core::time::Nanos;
use serde::Serialize;

use super::compare::{LINK, POINTS, queue, scene};
use super::tcp::{algorithms, flow};
use crate::cli::PlanTcpArgs;
use crate::cli::plots;
use crate::output::{self, columns};
use crate::plot::{Axis, Figure, Panel, Series, Unit};
use crate::units::{show_bytes, show_count, show_rate, show_seconds};

/// Times in seconds, data in bytes.
#[derive(Debug, Serialize)]
struct Losses {
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

pub fn run(args: &PlanTcpArgs) -> Result<()> {
    plots::check(&args.plot, args.force)?;
    let link = args.link.map_or(LINK, evlbi_core::rate::BitRate::get);
    let mut jobs = Vec::new();
    for round_trip in &args.rtt {
        let flow = flow(args, *round_trip, Some(link))?;
        for algorithm in algorithms(args) {
            jobs.extend(args.loss.iter().map(|loss| Job {
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
    let losses = Losses {
        schema: "evlbi.plan.losses/1",
        rate: args.rate.get(),
        mss: args.mss,
        acks: args.acks,
        link,
        seconds: args.duration.as_secs_f64(),
        rows: queue(&jobs, name, |job| row(args, link, job)),
    };
    plots::draw(&args.plot, &losses, figure, text)?;
    output::print(args.json, &losses, text)
}

fn row(args: &PlanTcpArgs, link: u64, job: &Job) -> Row {
    let length = Nanos::from_secs_f64(args.duration.as_secs_f64());
    let loss = Loss::Random { fraction: job.loss };
    let scene = scene(args, link, &job.flow, job.algorithm, loss, length);
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

fn text(losses: &Losses) -> String {
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

fn figure(losses: &Losses) -> Figure {
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
