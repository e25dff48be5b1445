//! Throughput against segment length and send buffer: figure 6 of Meirosu et al.

use evlbi_net::file::TableError;
use evlbi_net::run::Run;
use evlbi_plot::{Axis, Figure, Series, Unit, columns};
use evlbi_wire::units::show_bytes;
use serde::Serialize;

use super::super::csv::{Column, cell};
use super::super::parts::{Measured, Parts};
use super::super::picture::{log_axis, panel};
use super::super::session::Session;
use super::super::{now, sweep};
use super::{ProbeTcp, ProbeTcpError, ProbeTcpOptions, measure};

/// The result of `probe tcp` with several segment lengths or send buffers.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Matrix {
    /// Name and version of the result's JSON.
    pub schema: &'static str,
    /// Name of this host.
    pub host: String,
    /// Name of the path.
    pub label: Option<String>,
    /// The responder, as given in the options.
    pub target: String,
    /// Start, in UTC.
    pub begun: String,
    /// A point for each segment length and, within it, each send buffer.
    pub points: Vec<Point>,
    /// Reason for an early end.
    pub stopped: Option<String>,
}

/// One test.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Point {
    /// Payload of a segment, in bytes.
    pub segment: u32,
    /// Requested send buffer, in bytes; `None` if the kernel adapts it.
    pub buffer: Option<usize>,
    /// Send buffer that the kernel granted, in bytes.
    pub granted: Option<usize>,
    /// Total of all connections, in bits per second.
    pub rate: f64,
    /// Retransmitted segments.
    pub sent_again: u64,
    /// CPU time of both endpoints, in seconds per 10^9 bytes.
    pub cpu_seconds_per_gb: f64,
}

impl Point {
    fn new(result: &ProbeTcp) -> Option<Point> {
        let first = result.flows.first()?;
        let buffer = first.send_buffer.as_ref();
        let sent_again = result.flows.iter().map(|flow| u64::from(flow.sent_again));
        let cpu = result
            .totals
            .iter()
            .flat_map(|total| total.cpu_seconds_per_gb);
        Some(Point {
            segment: first.segment,
            buffer: buffer.map(|buffer| buffer.asked),
            granted: buffer.map(|buffer| buffer.granted),
            rate: result.totals.iter().map(|total| total.rate).sum(),
            sent_again: sent_again.sum(),
            cpu_seconds_per_gb: cpu.sum(),
        })
    }
}

/// Runs the tests one after another.
pub(super) fn probe(
    options: &ProbeTcpOptions,
    session: &mut Session,
    run: &Run,
) -> Result<Measured<Matrix>, ProbeTcpError> {
    let mut result = Matrix {
        schema: "evlbi.probe.tcp.matrix/1",
        host: evlbi_net::host::name(),
        label: options.label.clone(),
        target: options.target.address.clone(),
        begun: now(run),
        points: Vec::new(),
        stopped: None,
    };
    let mut parts = Parts::begin(options.out.as_deref(), result.schema, &result.target, run)?;
    // The file has only the point of each test, not the test's own parts.
    let mut none = Parts::begin(None, result.schema, &result.target, run)?;
    'all: for segment in sweep::each(&options.mss) {
        for buffer in sweep::each(&options.buffer) {
            match measure(options, segment, buffer, session, &mut none, run) {
                Ok(measured) => {
                    let point = Point::new(&measured);
                    point.iter().for_each(|point| parts.add("point", point));
                    result.points.extend(point);
                    if measured.stopped.is_some() {
                        result.stopped = measured.stopped;
                        break 'all;
                    }
                }
                // Keep the points measured before.
                Err(error) if !result.points.is_empty() => {
                    result.stopped = Some(run.explain(&error));
                    break 'all;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(parts.finish(result))
}

/// Formats the result as text.
pub fn table(result: &Matrix) -> String {
    let heads = ["MSS", "buffer", "granted", "Mbit/s", "retrans", "CPU s/GB"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let bytes =
        |bytes: Option<usize>| bytes.map_or("-".to_owned(), |bytes| show_bytes(bytes as f64));
    rows.extend(result.points.iter().map(|point| {
        vec![
            point.segment.to_string(),
            bytes(point.buffer),
            bytes(point.granted),
            format!("{:.3}", point.rate * 1e-6),
            point.sent_again.to_string(),
            format!("{:.3}", point.cpu_seconds_per_gb),
        ]
    }));
    columns(&rows, |_| false)
}

/// Plots the result.
pub fn figure(result: &Matrix) -> Figure {
    let mut segments: Vec<u32> = result.points.iter().map(|point| point.segment).collect();
    segments.dedup();
    let curve = |segment: u32| Series {
        name: format!("segments of {segment} bytes"),
        points: result
            .points
            .iter()
            .filter(|point| point.segment == segment)
            .filter_map(|point| Some((point.buffer? as f64, point.rate)))
            .collect(),
        ..Series::default()
    };
    Figure {
        title: format!("TCP to {} at {}", result.target, result.begun),
        panels: vec![panel(
            "throughput against the send buffer",
            log_axis("send buffer (bytes)", Unit::Bare),
            Axis::new("received", Unit::Si("bit/s")),
            segments.into_iter().map(curve).collect(),
        )],
    }
}

/// Formats the tests as CSV, a row each.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(result: &Matrix) -> Result<String, TableError> {
    let columns: &[Column<Point>] = &[
        ("segment_bytes", |point| point.segment.to_string()),
        ("buffer_bytes", |point| cell(point.buffer)),
        ("granted_bytes", |point| cell(point.granted)),
        ("rate_bps", |point| point.rate.to_string()),
        ("sent_again", |point| point.sent_again.to_string()),
        ("cpu_s_per_gb", |point| point.cpu_seconds_per_gb.to_string()),
    ];
    super::super::csv::table(columns, &result.points)
}
