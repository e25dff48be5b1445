//! Requests and replies: round-trip times and one-way delays by length of the messages (`evlbi probe latency`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use evlbi_core::account::{Distribution, Summary};
use evlbi_core::time::Nanos;
use evlbi_net::file::{OutputError, TableError, check_new};
use evlbi_net::run::Run;
use evlbi_plot::{Axis, Figure, Series, Unit};
use evlbi_wire::units::{show_count, show_seconds};
use serde::Serialize;
use serde_json::{Value, json};
use smart_default::SmartDefault;

use super::csv::{Column, of, table};
use super::parts::{Measured, Parts, WriteError};
use super::picture::{MAX_HISTOGRAMS, dots, log_axis, panel};
use super::session::{Event, Session, SessionError, Target};
use super::sweep::Sizes;
use super::{now, point};
use crate::endpoint::{Listened, Requests, Test};
use crate::measure::ClockFit;

/// Minimum request whose reply is no longer, in bytes.
const MIN: usize = 48;

/// Requests to send.
#[derive(Clone, Debug, SmartDefault)]
pub struct ProbeLatencyOptions {
    /// The responder.
    pub target: Target,
    /// UDP payload of the messages in bytes.
    #[default(Sizes(vec![64]))]
    pub size: Sizes,
    /// Number of requests of each length.
    #[default(1000)]
    pub count: u64,
    /// Time from one request to the next.
    #[default(Duration::from_millis(5))]
    pub interval: Duration,
    /// Timeout for a reply.
    #[default(Duration::from_secs(1))]
    pub loss_timeout: Duration,
    /// Width of the bins of histograms.
    #[default(Duration::from_micros(1))]
    pub bins: Duration,
    /// File for each part of the result as soon as it is known, a JSON object per line.
    pub out: Option<PathBuf>,
    /// Whether to overwrite files.
    pub force: bool,
}

/// Reason why round-trip times cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeLatencyError {
    /// A request of this many bytes is shorter than a reply.
    #[error("request of {0} bytes too short: the minimum is {MIN}")]
    Short(usize),
    /// A file must not be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The file of the result cannot be written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// The responder cannot be reached, or a test in the session failed.
    #[error("{0}")]
    Session(#[from] SessionError),
}

/// The result of `probe latency`.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeLatency {
    /// Name and version of the result's JSON.
    pub schema: &'static str,
    /// The responder, as given in the options.
    pub target: String,
    /// Start, in UTC (RFC 3339).
    pub begun: String,
    /// Offset and skew of the responder's clock, from all round trips.
    pub clock: Option<ClockFit>,
    /// The lengths of messages, in the given order.
    pub points: Vec<Size>,
    /// Cost of a byte in both directions together, from the minimum round-trip time of each length.
    pub slope: Option<Slope>,
    /// Reason for an early end; `None` for a complete test.
    pub stopped: Option<String>,
}

/// Requests of one length. Times are in nanoseconds.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Size {
    /// UDP payload of request and reply in bytes.
    pub size: usize,
    /// Requests that left.
    pub sent: u64,
    /// Requests of these that were answered within the loss timeout.
    pub received: u64,
    /// Of the sent, those not answered in time.
    pub lost: u64,
    /// Replies beyond the first to a request.
    pub duplicates: u64,
    /// Replies that arrived after the reply to a later request.
    pub reordered: u64,
    /// Round-trip times (RFC 2681), without the processing time of the responder.
    pub round_trip: Option<Summary>,
    /// Outbound delays (RFC 7679), corrected by the estimated clock offset.
    pub there: Option<Summary>,
    /// Return delays.
    pub back: Option<Summary>,
}

/// A straight line through the minimum round-trip times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Slope {
    /// Nanoseconds that each byte adds to a round trip.
    pub per_byte: f64,
    /// Its standard error; `None` for two lengths.
    pub error: Option<f64>,
    /// Round-trip time of zero bytes, in nanoseconds.
    pub at_zero: f64,
}

/// Measures round-trip times, length by length, until all are measured or the run is stopped.
///
/// # Errors
/// [`ProbeLatencyError`] if a request is too short, a file cannot be written, or nothing could be measured.
pub fn probe(
    options: &ProbeLatencyOptions,
    run: &Run,
) -> Result<Measured<ProbeLatency>, ProbeLatencyError> {
    check_new(options.out.as_deref(), options.force)?;
    if let Some(short) = options.size.0.iter().find(|size| **size < MIN) {
        return Err(ProbeLatencyError::Short(*short));
    }
    let apart = Nanos::from(options.interval);
    let test = Test {
        max_time: Nanos(apart.0.saturating_mul(options.count)).plus(Nanos::SECOND),
        timeout: options.loss_timeout.into(),
        ..options.target.test()
    };
    let mut session = Session::begin(&options.target, run)?;
    let mut result = ProbeLatency {
        schema: "evlbi.probe.latency/1",
        target: options.target.address.clone(),
        begun: now(run),
        ..ProbeLatency::default()
    };
    let mut progress = run.progress(Some(options.count * options.size.0.len() as u64));
    let mut parts = Parts::begin(options.out.as_deref(), result.schema, &result.target, run)?;
    let bins = Nanos::from(options.bins).0.max(1);
    let mut measured = Vec::new();
    for (number, size) in options.size.0.iter().enumerate() {
        let test = Test {
            requests: Some(Requests {
                count: options.count,
                size: *size,
                apart,
            }),
            ..test.clone()
        };
        let ends = session.run(&test, run, &mut |event| {
            if let Event::Progress(now) = event {
                let done = number as u64 * options.count + now.used.min(options.count);
                progress.show(done, &format!("{size} bytes"));
            }
            Ok(())
        });
        let ends = match ends {
            Err(error) if number > 0 => {
                result.stopped = Some(run.explain(&error));
                break;
            }
            ends => ends?,
        };
        let mut here = ends.here.listened;
        // A reply that arrives after the timeout is lost.
        let timeout = i64::try_from(test.timeout.0).unwrap_or(i64::MAX);
        here.round_trips
            .retain(|trip| trip.times.round_trip() <= timeout);
        // Without one-way delays: they need the clock offset from all round trips, at the end.
        parts.add("point", &of_size(*size, &here, ends.requests, None, bins));
        measured.push((*size, here, ends.requests));
        if let Some(stopped) = ends.stopped {
            result.stopped = Some(stopped);
            break;
        }
    }
    result.clock = point::clock(measured.iter().flat_map(|(_, heard, _)| &heard.round_trips));
    let clock = result.clock.as_ref();
    let points = measured
        .iter()
        .map(|(size, heard, sent)| of_size(*size, heard, *sent, clock, bins));
    result.points = points.collect();
    result.slope = slope(&result.points);
    Ok(parts.finish(result))
}

fn of_size(size: usize, heard: &Listened, sent: u64, clock: Option<&ClockFit>, bins: u64) -> Size {
    let [mut round_trip, mut there, mut back] = [0; 3].map(|_| Distribution::new(Some(bins)));
    let (mut reordered, mut next) = (0, 0);
    for trip in &heard.round_trips {
        round_trip.add(trip.times.round_trip());
        if let Some(clock) = clock {
            there.add(clock.there(&trip.times).round() as i64);
            back.add(clock.back(&trip.times).round() as i64);
        }
        if trip.sequence < next {
            reordered += 1;
        } else {
            next = trip.sequence + 1;
        }
    }
    let received = heard.round_trips.len() as u64;
    Size {
        size,
        sent,
        received,
        lost: sent.saturating_sub(received),
        duplicates: heard.repeated_replies,
        reordered,
        round_trip: round_trip.summary().map(Summary::with_tables),
        there: there.summary().map(Summary::with_tables),
        back: back.summary().map(Summary::with_tables),
    }
}

/// Fits a line through the minimum round-trip times by least squares; `None` for a single length.
fn slope(points: &[Size]) -> Option<Slope> {
    let shortest = |point: &Size| Some((point.size as f64, point.round_trip.as_ref()?.min as f64));
    let all: Vec<(f64, f64)> = points.iter().filter_map(shortest).collect();
    let n = all.len() as f64;
    let sum = |of: &dyn Fn(f64, f64) -> f64| all.iter().map(|(x, y)| of(*x, *y)).sum::<f64>();
    let (x, y) = (sum(&|x, _| x) / n, sum(&|_, y| y) / n);
    let spread = sum(&|at, _| (at - x).powi(2));
    if all.len() < 2 || spread == 0.0 {
        return None;
    }
    let per_byte = sum(&|at, trip| (at - x) * (trip - y)) / spread;
    let at_zero = y - per_byte * x;
    let squares = sum(&|at, trip| (trip - at_zero - per_byte * at).powi(2));
    Some(Slope {
        per_byte,
        error: (all.len() > 2).then(|| (squares / (n - 2.0) / spread).sqrt()),
        at_zero,
    })
}

/// Formats the result as text.
pub fn text(result: &ProbeLatency) -> String {
    let mut lines = vec!["bytes      sent   lost    dup  reord         RTT: min       median          p99        p99.9 outbound: min   return: min".to_owned()];
    let micro = |time: i64| format!("{:.3} us", time as f64 * 1e-3);
    let time = |value: Option<i64>| value.map_or("-".to_owned(), micro);
    for point in &result.points {
        let trip = point.round_trip.as_ref();
        lines.push(format!(
            "{:>5} {:>9} {:>6} {:>6} {:>6} {:>16} {:>12} {:>12} {:>12} {:>13} {:>13}",
            point.size,
            show_count(point.sent),
            show_count(point.lost),
            show_count(point.duplicates),
            show_count(point.reordered),
            time(trip.map(|trip| trip.min)),
            time(trip.map(|trip| trip.median)),
            time(trip.map(|trip| trip.p99)),
            time(trip.map(|trip| trip.p999)),
            time(point.there.as_ref().map(|way| way.min)),
            time(point.back.as_ref().map(|way| way.min)),
        ));
    }
    if let Some(slope) = &result.slope {
        let error = slope.error.map(|error| format!(" +- {error:.3}"));
        let error = error.unwrap_or_default();
        lines.push(format!(
            "each byte adds {:.3}{error} ns to the round trip; without any it takes {}",
            slope.per_byte,
            show_seconds(slope.at_zero * 1e-9)
        ));
    }
    lines.extend(result.clock.as_ref().map(super::show::clock));
    lines.join("\n")
}

/// Plots the result.
pub fn figure(result: &ProbeLatency) -> Figure {
    let curve = |name: &str, get: fn(&Summary) -> i64| {
        let place = |point: &Size| {
            let time = get(point.round_trip.as_ref()?) as f64 * 1e-9;
            Some((point.size as f64, time))
        };
        Series {
            name: name.to_owned(),
            points: result.points.iter().filter_map(place).collect(),
            ..Series::default()
        }
    };
    let histograms = result.points.iter().filter_map(|point| {
        let bins = &point.round_trip.as_ref()?.bins;
        Some(dots(format!("{} B", point.size), bins, 1e-9))
    });
    let histograms = histograms.take(MAX_HISTOGRAMS).collect();
    let mut panels = Vec::new();
    if result.points.len() > 1 {
        let title = "round trips against the length of the message";
        let curves = vec![
            curve("min", |trip| trip.min),
            curve("median", |trip| trip.median),
            curve("p99", |trip| trip.p99),
        ];
        let length = Axis::new("UDP payload (bytes)", Unit::Bare);
        let time = Axis::new("round trip", Unit::Si("s"));
        panels.push(panel(title, length, time, curves));
    }
    let time = Axis::new("time", Unit::Si("s"));
    let requests = log_axis("requests", Unit::Bare);
    panels.push(panel("round trips", time, requests, histograms));
    Figure {
        title: format!("Round trips to {} at {}", result.target, result.begun),
        panels,
    }
}

/// Converts the outbound delays to the format of pScheduler's latency tests; times in milliseconds.
pub fn pscheduler(result: &ProbeLatency, bins: u64) -> Value {
    let sum = |get: fn(&Size) -> u64| result.points.iter().map(get).sum::<u64>();
    let mut histogram: BTreeMap<u64, u64> = BTreeMap::new();
    let ways = result.points.iter().flat_map(|point| &point.there);
    for (begin, count) in ways.flat_map(|way| &way.bins) {
        *histogram.entry(begin / bins).or_default() += count;
    }
    let histogram: serde_json::Map<String, Value> = histogram
        .into_iter()
        .map(|(bin, count)| (format!("{:.6}", (bin * bins) as f64 * 1e-6), json!(count)))
        .collect();
    json!({
        "schema": 1,
        "succeeded": result.stopped.is_none(),
        "error": result.stopped,
        "packets-sent": sum(|point| point.sent),
        "packets-received": sum(|point| point.received),
        "packets-lost": sum(|point| point.lost),
        "packets-duplicated": sum(|point| point.duplicates),
        "packets-reordered": sum(|point| point.reordered),
        "max-clock-error": result.clock.as_ref().map(|clock| clock.error * 1e-6),
        "histogram-latency": histogram,
        "histogram-ttl": {},
    })
}

/// Formats the result as CSV, a row for each length of messages.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(result: &ProbeLatency) -> Result<String, TableError> {
    let columns: &[Column<Size>] = &[
        ("size_bytes", |size| size.size.to_string()),
        ("sent", |size| size.sent.to_string()),
        ("received", |size| size.received.to_string()),
        ("lost", |size| size.lost.to_string()),
        ("duplicates", |size| size.duplicates.to_string()),
        ("reordered", |size| size.reordered.to_string()),
        ("round_trip_min_ns", |size| {
            of(size.round_trip.as_ref(), |all| all.min as f64)
        }),
        ("round_trip_mean_ns", |size| {
            of(size.round_trip.as_ref(), |all| all.mean)
        }),
        ("round_trip_median_ns", |size| {
            of(size.round_trip.as_ref(), |all| all.median as f64)
        }),
        ("round_trip_p99_ns", |size| {
            of(size.round_trip.as_ref(), |all| all.p99 as f64)
        }),
        ("round_trip_max_ns", |size| {
            of(size.round_trip.as_ref(), |all| all.max as f64)
        }),
        ("there_min_ns", |size| {
            of(size.there.as_ref(), |all| all.min as f64)
        }),
        ("there_median_ns", |size| {
            of(size.there.as_ref(), |all| all.median as f64)
        }),
        ("back_min_ns", |size| {
            of(size.back.as_ref(), |all| all.min as f64)
        }),
        ("back_median_ns", |size| {
            of(size.back.as_ref(), |all| all.median as f64)
        }),
    ];
    table(columns, &result.points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::RoundTrip;
    use crate::measure::Exchange;

    #[test]
    fn a_byte_has_a_price() {
        let trip = |sequence: u64, size: u64| RoundTrip {
            sequence,
            times: Exchange {
                departed: sequence * 1_000_000,
                arrived: sequence * 1_000_000 + 50_000 + 4 * size,
                replied: sequence * 1_000_000 + 60_000 + 4 * size,
                returned: sequence * 1_000_000 + 110_000 + 8 * size,
            },
        };
        let points: Vec<Size> = [64, 500, 1472]
            .map(|size| {
                let heard = Listened {
                    round_trips: [0, 2, 1, 3].map(|at| trip(at, size)).to_vec(),
                    ..Listened::default()
                };
                of_size(size as usize, &heard, 4, None, 1000)
            })
            .into();
        assert_eq!((points[0].received, points[0].reordered), (4, 1));
        let slope = slope(&points).unwrap();
        assert!((slope.per_byte - 8.0).abs() < 1e-9 && slope.error.unwrap() < 1e-6);
        assert!((slope.at_zero - 100_000.0).abs() < 1e-6);
        assert_eq!(super::slope(&points[..1]), None);
    }
}
