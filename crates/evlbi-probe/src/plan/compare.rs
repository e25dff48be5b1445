//! One loss for each algorithm, packet by packet: figure 2.6 of the EXPReS report, with its buffers and times.

use std::sync::atomic::{AtomicUsize, Ordering};

use evlbi_core::path::{ETHERNET_OVERHEAD, Law, Loss, Shape};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::file::TableError;
use evlbi_net::run::Run;
use evlbi_trace::tcp::{Algorithm, Cbr, Counting, Full, Scene};
use parking_lot::Mutex;
use serde::Serialize;

use super::table;
use super::tcp::{PlanTcpError, PlanTcpOptions, algorithms, flow, wire};
use crate::csv::{self, Column, cell};
use evlbi_plot::{Axis, Figure, Panel, Series, Unit};
use evlbi_wire::units::{show_bytes, show_rate, show_seconds};

/// Time of the loss, when the flow has settled.
const LOST_AT: Nanos = Nanos(1_000_000_000);
/// Factor by which a simulation is longer than the predicted catch-up time; [`MARGIN`] is added.
const LONGER: f64 = 1.5;
const MARGIN: f64 = 20.0;
/// Number of points of a curve.
pub(super) const POINTS: u64 = 2000;
/// Default rate of the path, that of the report.
const LINK: u64 = 1_000_000_000;
/// Queue before the path, in bytes: the host's own NIC does not drop.
const QUEUE: u64 = 1 << 40;

/// Result of a simulation. Times in seconds, data in bytes.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Simulated<R> {
    schema: &'static str,
    /// Payload of each flow, in bits per second.
    pub rate: u64,
    mss: u32,
    acks: u32,
    /// Rate of the narrowest link on the wire, in bits per second.
    pub link: u64,
    /// Length of each flow, if all have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// A row for each round-trip time and algorithm, and each loss fraction if there are several.
    pub rows: Vec<R>,
}

/// A flow and the effect of one loss. Times in seconds, data in bytes.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    rtt_s: f64,
    algorithm: &'static str,
    /// Time until the window has its size before the loss.
    recovery_s: Option<f64>,
    /// Maximum late data.
    delayed_bytes: u64,
    /// Time until messages are on time again; 0 if none was late.
    timely_s: Option<f64>,
    /// Maximum data held by the sender.
    held_bytes: u64,
    sent_again: u64,
    shed: u64,
    /// Recovery time and delayed data, by the algorithm's equations or steps. None of BBR, which a loss alone costs nothing.
    expected_recovery_s: Option<f64>,
    expected_delayed_bytes: Option<f64>,
    /// Points: message number after the loss, and its one-way delay in seconds.
    #[serde(skip)]
    curve: Vec<(f64, f64)>,
}

/// A flow to simulate.
pub(super) struct Job<'a> {
    pub options: &'a PlanTcpOptions,
    link: u64,
    pub flow: Cbr,
    pub algorithm: Algorithm,
    /// Random loss fraction; `None` for a single loss.
    pub loss: Option<f64>,
}

/// Simulates one loss of each algorithm at each round-trip time.
///
/// # Errors
/// [`PlanTcpError`] if the link is too slow, or the run is stopped.
pub fn compare(options: &PlanTcpOptions, run: &Run) -> Result<Simulated<Row>, PlanTcpError> {
    simulate("evlbi.plan.compare/1", options, &[None], run, row)
}

pub(super) fn show_loss(loss: f64) -> String {
    match loss {
        0.0 => "0".to_owned(),
        loss => format!("{loss:.1e}"),
    }
}

/// Simulates each algorithm at each round-trip time with each of the losses.
pub(super) fn simulate<R: Send>(
    schema: &'static str,
    options: &PlanTcpOptions,
    losses: &[Option<f64>],
    run: &Run,
    row: impl Fn(&Job) -> R + Sync,
) -> Result<Simulated<R>, PlanTcpError> {
    let link = options.link.map_or(LINK, BitRate::get);
    let mut jobs = Vec::new();
    for round_trip in &options.rtt {
        let flow = flow(options, *round_trip, Some(link))?;
        for algorithm in algorithms(options) {
            jobs.extend(losses.iter().map(|loss| Job {
                options,
                link,
                flow,
                algorithm: *algorithm,
                loss: *loss,
            }));
        }
    }
    Ok(Simulated {
        schema,
        rate: options.rate.get(),
        mss: options.mss,
        acks: options.acks,
        link,
        seconds: None,
        rows: queue(&jobs, run, row)?,
    })
}

/// Works through jobs, one on each CPU. Returns their results in the order of the jobs.
///
/// # Errors
/// If the run is stopped before the end.
fn queue<R: Send>(
    jobs: &[Job],
    run: &Run,
    work: impl Fn(&Job) -> R + Sync,
) -> Result<Vec<R>, PlanTcpError> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new((Vec::new(), run.progress(Some(jobs.len() as u64))));
    let work_through = || {
        while !run.is_stopped() {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(place) else {
                return;
            };
            let result = work(job);
            let mut found = found.lock();
            let (results, progress) = &mut *found;
            results.push((place, result));
            progress.show(results.len() as u64, &job.name());
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // This thread does jobs, too.
    let others = processors.min(jobs.len()).saturating_sub(1);
    let others = if run.clock().is_real() { others } else { 0 };
    std::thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(work_through);
        }
        work_through();
    });
    let (mut results, _) = found.into_inner();
    if results.len() < jobs.len() {
        return Err(PlanTcpError::Interrupted);
    }
    results.sort_by_key(|(place, _)| *place);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

fn row(job: &Job) -> Row {
    let needs = job.flow.needs(job.algorithm);
    let after = needs.drain.unwrap_or(2.0 * needs.recovery) * LONGER + MARGIN;
    let probe = job.algorithm.probe_interval();
    // A probe makes messages late, too, which is not an effect of the loss.
    let length = probe.unwrap_or(LOST_AT.plus(Nanos::from_secs_f64(after)));
    let scene = job.scene(Loss::At([LOST_AT].into()), length);
    let mut curve = Vec::new();
    let mut first = None;
    let outcome = scene.run(|sample| {
        if sample.at >= LOST_AT {
            let first = *first.get_or_insert(sample.message);
            let place = (sample.message - first) as f64;
            curve.push((place, sample.delay.as_secs_f64()));
        }
    });
    let since = |at: Option<Nanos>| Some(at?.since(outcome.reduced_at?).as_secs_f64());
    // Later messages are on time.
    if let Some(timely) = outcome.timely_from {
        let part = timely.since(LOST_AT).as_secs_f64() / length.since(LOST_AT).as_secs_f64();
        curve.truncate((curve.len() as f64 * (part * 1.1).min(1.0)) as usize + 1);
    }
    Row {
        rtt_s: job.flow.round_trip,
        algorithm: job.algorithm.name(),
        recovery_s: since(outcome.regained_at),
        delayed_bytes: outcome.delayed,
        timely_s: match outcome.late_from {
            Some(_) => since(outcome.timely_from),
            None => Some(0.0),
        },
        held_bytes: outcome.held,
        sent_again: outcome.sent_again,
        shed: outcome.shed,
        expected_recovery_s: probe.is_none().then_some(needs.recovery),
        expected_delayed_bytes: probe.is_none().then_some(needs.delayed),
        curve,
    }
}

impl Job<'_> {
    fn name(&self) -> String {
        let loss = self
            .loss
            .map(|loss| format!(" with a loss of {}", show_loss(loss)));
        format!(
            "{} at {}{}",
            self.algorithm,
            show_seconds(self.flow.round_trip),
            loss.unwrap_or_default()
        )
    }

    /// Returns the flow with a sufficient window, over the link and with this loss.
    pub fn scene(&self, loss: Loss, length: Nanos) -> Scene {
        let (options, flow) = (self.options, &self.flow);
        let delay = Law::Delay {
            delay: Nanos::from_secs_f64(flow.round_trip / 2.0),
            jitter: Nanos::default(),
            shape: Shape::Normal,
            reorders: false,
        };
        // A packet takes time on the path, too, for which the window must suffice.
        let wire = wire(options) as f64 * 8.0 / self.link as f64;
        let needed = flow.rate / 8.0 * (flow.round_trip + wire) / flow.segment;
        Scene {
            rate: options.rate,
            segment: options.mss,
            algorithm: self.algorithm,
            counting: match options.acks {
                1 => Counting::Segments,
                _ => Counting::Acks,
            },
            per_ack: f64::from(options.acks.max(2)),
            buffer: options.buffer.unwrap_or(u64::MAX),
            full: Full::Block,
            window: Some(needed.ceil() + f64::from(options.acks.max(2))),
            there: vec![
                Law::Rate {
                    rate: BitRate::new(self.link).unwrap_or(options.rate),
                    buffer: QUEUE,
                    overhead: ETHERNET_OVERHEAD,
                    mark: None,
                },
                delay.clone(),
                Law::Loss(loss),
            ],
            back: vec![delay],
            seed: 1,
            length,
            every: Nanos(length.0 / POINTS),
        }
    }
}

/// Formats it as text.
pub fn text(comparison: &Simulated<Row>) -> String {
    let show_time = |time: f64| format!("{time:.2} s");
    let seconds = |time: Option<f64>| time.map_or("never".into(), show_time);
    let rows = comparison.rows.iter().map(|row| {
        vec![
            row.algorithm.to_owned(),
            show_seconds(row.rtt_s),
            seconds(row.recovery_s),
            row.expected_recovery_s.map_or_else(String::new, show_time),
            show_bytes(row.delayed_bytes as f64),
            row.expected_delayed_bytes
                .map_or_else(String::new, show_bytes),
            seconds(row.timely_s),
            show_bytes(row.held_bytes as f64),
        ]
    });
    let heads = ",RTT,recovery,(calc.),delayed,(calc.),on time after,held";
    let has_bbr = comparison
        .rows
        .iter()
        .any(|row| row.expected_recovery_s.is_none());
    format!(
        "one segment lost of {} on a link of {}, packet by packet; (calc.): by the algorithm's equations or steps\n{}{}",
        show_rate(comparison.rate as f64),
        show_rate(comparison.link as f64),
        table(heads, rows),
        match has_bbr {
            true =>
                "\nbbr: the effect of the loss alone; without --compare, that of its probes of the round-trip time",
            false => "",
        }
    )
}

/// Plots the delays.
pub fn figure(comparison: &Simulated<Row>) -> Figure {
    let mut round_trips: Vec<f64> = comparison.rows.iter().map(|row| row.rtt_s).collect();
    round_trips.dedup();
    let panels = round_trips.into_iter().map(|round_trip| Panel {
        title: format!("one-way delay at {}", show_seconds(round_trip)),
        x: Axis {
            log: true,
            ..Axis::new("message after the loss", Unit::Bare)
        },
        y: Axis::new("delay", Unit::Si("s")),
        series: (comparison.rows.iter())
            .filter(|row| row.rtt_s == round_trip)
            .map(|row| curve(row.algorithm.to_owned(), &row.curve))
            .collect(),
    });
    Figure {
        title: format!("One loss of {} over TCP", show_rate(comparison.rate as f64)),
        panels: panels.collect(),
    }
}

/// Returns the delays of a flow as a curve.
pub(super) fn curve(name: String, points: &[(f64, f64)]) -> Series {
    Series {
        name,
        points: points.to_vec(),
        ..Series::default()
    }
}

/// Formats it as CSV, a row for each flow.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(comparison: &Simulated<Row>) -> Result<String, TableError> {
    let columns: &[Column<Row>] = &[
        ("rtt_s", |row| row.rtt_s.to_string()),
        ("algorithm", |row| row.algorithm.to_owned()),
        ("recovery_s", |row| cell(row.recovery_s)),
        ("delayed_bytes", |row| row.delayed_bytes.to_string()),
        ("timely_s", |row| cell(row.timely_s)),
        ("held_bytes", |row| row.held_bytes.to_string()),
        ("sent_again", |row| row.sent_again.to_string()),
        ("shed", |row| row.shed.to_string()),
        ("expected_recovery_s", |row| cell(row.expected_recovery_s)),
        ("expected_delayed_bytes", |row| {
            cell(row.expected_delayed_bytes)
        }),
    ];
    csv::table(columns, &comparison.rows)
}
