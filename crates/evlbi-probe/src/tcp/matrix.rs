//! Throughput against the length of segments and the send buffer: figure 6 of Meirosu et al.

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

/// The result of `probe tcp` with several lengths of segments or send buffers.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Matrix {
    /// Name and version of the result's JSON.
    pub schema: &'static str,
    /// Name of this host.
    pub host: String,
    /// What the path is called.
    pub label: Option<String>,
    /// The responder as it was asked for.
    pub target: String,
    /// When it began.
    pub begun: String,
    /// For each length of segments and, within it, each send buffer.
    pub points: Vec<Point>,
    /// Why it ended before its time.
    pub stopped: Option<String>,
}

/// One test.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Point {
    /// Bytes of a segment.
    pub segment: u32,
    /// Bytes of the send buffer that were asked for; none where the kernel adapts it.
    pub buffer: Option<usize>,
    /// Bytes of the send buffer that the kernel granted.
    pub granted: Option<usize>,
    /// Bits per second of all connections together.
    pub rate: f64,
    /// Segments that were sent again.
    pub sent_again: u64,
    /// Processor time of both ends, in seconds per 10^9 bytes.
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

/// One test after the other.
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
    // Of each test the point, not what comes before it.
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
                // What was measured before is not lost.
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

/// The result for people.
pub fn table(result: &Matrix) -> String {
    let heads = ["MSS", "buffer", "granted", "Mbit/s", "again", "CPU s/GB"];
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

/// The result as a picture.
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
