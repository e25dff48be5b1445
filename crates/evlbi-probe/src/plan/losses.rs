//! A constant-rate flow with random loss, for several loss fractions: figure 2.3 of the EXPReS report.

use evlbi_core::path::Loss;
use evlbi_core::time::Nanos;
use evlbi_net::file::TableError;
use evlbi_net::run::Run;
use serde::Serialize;

use super::compare::{self, Job, POINTS, Simulated, curve, show_loss};
use super::table;
use super::tcp::{PlanTcpError, PlanTcpOptions};
use crate::csv::{self, Column};
use evlbi_plot::{Axis, Figure, Panel, Unit};
use evlbi_wire::units::{show_bytes, show_count, show_rate, show_seconds};

/// A flow with random loss. Times in seconds, data in bytes.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    rtt_s: f64,
    algorithm: &'static str,
    /// Loss fraction of independently lost segments.
    loss: f64,
    messages: u64,
    delivered: u64,
    sent_again: u64,
    shed: u64,
    /// Maximum late data.
    delayed_bytes: u64,
    /// One-way delay of the last message, above the minimum.
    late_at_end_s: f64,
    /// Points: message number, and its one-way delay in seconds.
    #[serde(skip)]
    curve: Vec<(f64, f64)>,
}

/// Simulates each algorithm at each round-trip time with each loss fraction.
///
/// # Errors
/// [`PlanTcpError`] if the link is too slow, or the run is stopped.
pub fn simulate(options: &PlanTcpOptions, run: &Run) -> Result<Simulated<Row>, PlanTcpError> {
    let losses: Vec<Option<f64>> = options.loss.iter().copied().map(Some).collect();
    let mut found = compare::simulate("evlbi.plan.losses/1", options, &losses, run, row)?;
    found.seconds = Some(options.duration.as_secs_f64());
    Ok(found)
}

fn row(job: &Job) -> Row {
    let fraction = job.loss.unwrap_or(0.0);
    let length = Nanos::from_secs_f64(job.options.duration.as_secs_f64());
    let scene = job.scene(Loss::Random { fraction }, length);
    let mut curve = Vec::with_capacity(POINTS as usize);
    let outcome = scene.run(|sample| {
        curve.push((sample.message as f64, sample.delay.as_secs_f64()));
    });
    let last = curve.last().map_or(0.0, |(_, delay)| *delay);
    Row {
        rtt_s: job.flow.round_trip,
        algorithm: job.algorithm.name(),
        loss: fraction,
        messages: outcome.messages,
        delivered: outcome.delivered,
        sent_again: outcome.sent_again,
        shed: outcome.shed,
        delayed_bytes: outcome.delayed,
        late_at_end_s: (last - outcome.shortest.as_secs_f64()).max(0.0),
        curve,
    }
}

/// Formats it as text.
pub fn text(losses: &Simulated<Row>) -> String {
    let rows = losses.rows.iter().map(|row| {
        vec![
            row.algorithm.to_owned(),
            show_seconds(row.rtt_s),
            show_loss(row.loss),
            show_count(row.messages),
            show_count(row.delivered),
            show_count(row.sent_again),
            show_bytes(row.delayed_bytes as f64),
            show_seconds(row.late_at_end_s),
        ]
    });
    let heads = ",RTT,loss,messages,arrived,retrans,max. late,late at the end";
    format!(
        "random loss of segments at {} on a link of {} for {}, packet by packet\n{}",
        show_rate(losses.rate as f64),
        show_rate(losses.link as f64),
        show_seconds(losses.seconds.unwrap_or_default()),
        table(heads, rows)
    )
}

/// Plots the delays.
pub fn figure(losses: &Simulated<Row>) -> Figure {
    let title = |row: &Row| format!("{} at {}", row.algorithm, show_seconds(row.rtt_s));
    let panels = losses
        .rows
        .chunk_by(|one, other| title(one) == title(other));
    let panels = panels.map(|rows| Panel {
        title: title(&rows[0]),
        x: Axis::new("message", Unit::Bare),
        y: Axis::new("one-way delay", Unit::Si("s")),
        series: rows
            .iter()
            .map(|row| curve(format!("loss {}", show_loss(row.loss)), &row.curve))
            .collect(),
    });
    Figure {
        title: format!("Losses of {} over TCP", show_rate(losses.rate as f64)),
        panels: panels.collect(),
    }
}

/// Formats it as CSV, a row for each flow.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(losses: &Simulated<Row>) -> Result<String, TableError> {
    let columns: &[Column<Row>] = &[
        ("rtt_s", |row| row.rtt_s.to_string()),
        ("algorithm", |row| row.algorithm.to_owned()),
        ("loss", |row| row.loss.to_string()),
        ("messages", |row| row.messages.to_string()),
        ("delivered", |row| row.delivered.to_string()),
        ("sent_again", |row| row.sent_again.to_string()),
        ("shed", |row| row.shed.to_string()),
        ("delayed_bytes", |row| row.delayed_bytes.to_string()),
        ("late_at_end_s", |row| row.late_at_end_s.to_string()),
    ];
    csv::table(columns, &losses.rows)
}
