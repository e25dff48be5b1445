//! Throughput, loss and delay of UDP streams (`evlbi probe udp`).

use std::num::TryFromIntError;
use std::path::PathBuf;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::file::{OutputError, TableError, check_new};
use evlbi_net::run::Run;
use evlbi_wire::units::{self, show_count, show_rate};
use serde::Serialize;
use smart_default::SmartDefault;

use super::direction::Direction;
use super::one_way::OneWayError;
use super::parts::{Measured, Parts, WriteError};
use super::point::{self, Point};
use super::session::{self, Event, Session, SessionError, Target, TestReport};
use super::sweep::{self, Rates, Sizes, Spacings};
use super::{csv, finding, now, one_way, pause, region};
use crate::endpoint::{Burden, Departed, Keep, Limits, Test, TestError};
use crate::measure::{ClockFit, Record, Stream};

/// Length of a test that ends with its last datagram.
const FOREVER: Nanos = Nanos(u64::MAX);
/// Default length of a point.
const LENGTH: Nanos = Nanos(3_000_000_000);

/// Points to measure: one for each size, pace, buffer and burden.
#[derive(Clone, Debug, SmartDefault)]
pub struct ProbeUdpOptions {
    /// The responder; with `one_way` the address to send to, or to receive at.
    pub target: Target,
    /// UDP payload of the datagrams in bytes.
    #[default(Sizes(vec![1472]))]
    pub size: Sizes,
    /// Bits of UDP payload per second.
    pub rate: Option<Rates>,
    /// Time from one burst to the next, instead of a rate. Zero sends as fast as the host can.
    pub spacing: Option<Spacings>,
    /// Datagrams back to back.
    #[default(1)]
    pub burst: u32,
    /// Length of each point; 3 s if neither this nor a count is given.
    pub duration: Option<Duration>,
    /// Number of datagrams of each point, instead of a length.
    pub count: Option<u64>,
    /// Whether the responder sends.
    pub reverse: bool,
    /// Whether both hosts send at once.
    pub both: bool,
    /// Name of the path in results.
    pub label: Option<String>,
    /// Whether to receive what [`send_one_way`] sends, without a responder and a return path.
    pub one_way: bool,
    /// Receive buffers to ask for, in bytes; empty for the default one.
    pub buffer: Vec<u64>,
    /// Threads that compete with the receiver for CPU time.
    pub load_tasks: u32,
    /// Nice values of these threads.
    pub load_nice: Vec<i8>,
    /// Nice values of the receiver.
    pub receiver_nice: Vec<i8>,
    /// Width of the bins of histograms of time.
    #[default(Duration::from_micros(1))]
    pub bins: Duration,
    /// Time after which a missing datagram counts as lost (RFC 7680).
    #[default(Duration::from_secs(1))]
    pub loss_timeout: Duration,
    /// CSV file of all datagrams.
    pub records: Option<PathBuf>,
    /// CSV file of all runs of loss.
    pub losses: Option<PathBuf>,
    /// Number of arrivals, and of datagrams for losses, that these files skip first.
    pub skip: u64,
    /// Maximum number of lines of each file for each point.
    #[default(100_000)]
    pub limit: u64,
    /// File for each part of the result as soon as it is known, a JSON object per line.
    pub out: Option<PathBuf>,
    /// Whether to overwrite files.
    pub force: bool,
}

/// Reason why points cannot be measured, or sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeUdpError {
    /// Neither a rate nor a spacing is given.
    #[error("neither a rate nor a spacing is given")]
    NoPace,
    /// There are nice values of competing tasks, and no such tasks.
    #[error("nice values of competing tasks without such tasks")]
    NoTasks,
    /// There are too many points.
    #[error("{0} points exceed the maximum of {max}", max = sweep::MAX_POINTS)]
    TooMany(usize),
    /// A buffer is longer than this host can address.
    #[error("{0}")]
    Buffer(#[from] TryFromIntError),
    /// A test is invalid, or exceeds the responder's limits.
    #[error("{0}")]
    Test(#[from] TestError),
    /// A file must not be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// A CSV file cannot be written.
    #[error("{0}")]
    Table(#[from] TableError),
    /// The file of the result cannot be written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// The responder cannot be reached, or a test in the session failed.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// An endpoint of a one-way test failed.
    #[error("{0}")]
    OneWay(#[from] OneWayError),
}

/// The result of `probe udp`.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeUdp {
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
    /// Offset and skew of the responder's clock, from the last point.
    pub clock: Option<ClockFit>,
    /// The points, in the order of measurement; of a test in both directions the outbound one first.
    pub points: Vec<Point>,
    /// Rates at which sweeps start to lose.
    pub findings: Vec<String>,
    /// Reason for an early end.
    pub stopped: Option<String>,
}

/// Measures a path, point by point, until all are measured or the run is stopped.
///
/// # Errors
/// [`ProbeUdpError`] if the options are inconsistent, a file cannot be written, or nothing could be measured.
pub fn probe(options: &ProbeUdpOptions, run: &Run) -> Result<Measured<ProbeUdp>, ProbeUdpError> {
    let tests = tests(options)?;
    let files = [&options.records, &options.losses, &options.out];
    let files = files.into_iter().flatten();
    check_new(files.map(PathBuf::as_path), options.force)?;
    let target = &options.target;
    let session = (!options.one_way).then(|| Session::begin(target, run));
    let mut session = session.transpose()?;
    let mut result = ProbeUdp {
        schema: "evlbi.probe.udp/1",
        host: evlbi_net::host::name(),
        label: options.label.clone(),
        target: target.address.clone(),
        begun: now(run),
        ..ProbeUdp::default()
    };
    let (datagrams, losses) = (options.records.as_deref(), options.losses.as_deref());
    let mut records = csv::Records::new(datagrams, losses, keep(options))?;
    let mut parts = Parts::begin(options.out.as_deref(), result.schema, &result.target, run)?;
    let mut progress = run.progress(Some(tests.len() as u64 * 1000));
    for (number, (test, label)) in tests.iter().enumerate() {
        let length = test.duration().as_secs_f64().max(1e-3);
        let mut show = |now: &session::Progress| {
            if progress.is_due() {
                let done = number as f64 + (now.seconds / length).min(1.0);
                progress.show((done * 1000.0) as u64, &line(label, now));
            }
        };
        let ends = match &mut session {
            Some(session) => {
                let test = within(test, session.limits());
                session
                    .run(&test, run, &mut |event| {
                        if let Event::Progress(now) = event {
                            show(now);
                        }
                        Ok(())
                    })
                    .map_err(ProbeUdpError::from)
            }
            None => Ok(one_way::receive(target, test, number == 0, run, &mut show)?),
        };
        let ends = match ends {
            // Keep the points measured before.
            Err(error) if !result.points.is_empty() => {
                result.stopped = Some(run.explain(&error));
                break;
            }
            ends => ends?,
        };
        result.clock = point::clock(&ends.clock);
        for (point, kept) in points(test, &ends, result.clock) {
            records.write(number, &point, kept, result.clock.as_ref())?;
            parts.add("point", &point);
            result.points.push(point);
        }
        result.stopped = ends.stopped;
        if result.stopped.is_some() {
            break;
        }
    }
    records.finish()?;
    region::assign(&mut result.points);
    result.findings = finding::of_sweep(&result.points);
    Ok(parts.finish(result))
}

/// Allows a test with a count of datagrams to take longer than calculated, up to the responder's limit. The responder refuses a test whose
/// calculated length exceeds it.
pub fn within(test: &Test, limits: &Limits) -> Test {
    let mut test = test.clone();
    let takes_as_long = test.duration() == FOREVER || test.duration() <= limits.duration;
    if test.max_time == FOREVER && takes_as_long {
        test.max_time = limits.duration;
    }
    test
}

/// Result of a one-way sender: its counts for each point.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sent {
    schema: &'static str,
    points: Vec<Departed>,
    #[serde(skip)]
    labels: Vec<String>,
}

impl Sent {
    /// Formats it as text.
    pub fn text(&self) -> String {
        let lines = self
            .labels
            .iter()
            .zip(&self.points)
            .map(|(label, departed)| {
                let (sent, seconds) = (show_count(departed.counts.sent), departed.seconds);
                format!("{label}: {sent} sent in {seconds:.3} s")
            });
        lines.collect::<Vec<String>>().join("\n")
    }

    /// Formats it as CSV, a row for each point.
    ///
    /// # Errors
    /// [`TableError`] if a row has no form in CSV.
    pub fn csv(&self) -> Result<String, TableError> {
        let columns: &[csv::Column<(&String, &Departed)>] = &[
            ("point", |(label, _)| (*label).clone()),
            ("sent", |(_, departed)| departed.counts.sent.to_string()),
            ("not_sent", |(_, departed)| {
                departed.counts.not_sent().to_string()
            }),
            ("duration_s", |(_, departed)| departed.seconds.to_string()),
        ];
        csv::table(columns, self.labels.iter().zip(&self.points))
    }
}

/// Sends the points to a [`probe`] with `one_way`.
///
/// # Errors
/// [`ProbeUdpError`] if the options are inconsistent, or nothing can be sent.
pub fn send_one_way(options: &ProbeUdpOptions, run: &Run) -> Result<Sent, ProbeUdpError> {
    let tests = tests(options)?;
    let mut progress = run.progress(None);
    let mut points = Vec::new();
    for (number, (test, label)) in tests.iter().enumerate() {
        let Some(stream) = &test.there else {
            continue;
        };
        if number > 0 {
            // The receiver waits for late datagrams of the previous stream, and then listens for this one.
            let timeout = Duration::from_nanos(test.timeout.0);
            pause(timeout + one_way::SILENCE * 2, run);
        }
        let end = one_way::send(&options.target, test, stream, run, &mut |now| {
            if progress.is_due() {
                progress.show(0, &line(label, now));
            }
        })?;
        points.extend(end.departed);
        if run.is_stopped() {
            break;
        }
    }
    Ok(Sent {
        schema: "evlbi.probe.sent/1",
        points,
        labels: tests.into_iter().map(|(_, label)| label).collect(),
    })
}

/// Returns a test for each point, with its name.
///
/// # Errors
/// [`ProbeUdpError`] if the options are inconsistent.
pub fn tests(options: &ProbeUdpOptions) -> Result<Vec<(Test, String)>, ProbeUdpError> {
    if options.rate.is_none() && options.spacing.is_none() {
        return Err(ProbeUdpError::NoPace);
    }
    let max_time = match options.count {
        // Up to the responder's limit: a host may take longer than calculated.
        Some(_) => FOREVER,
        None => options.duration.map_or(LENGTH, Nanos::from),
    };
    let streams = sweep::streams(
        &options.size,
        options.rate.as_ref(),
        options.spacing.as_ref(),
        options.burst,
        options.count,
    );
    let buffers = sweep::each(&options.buffer);
    if options.load_tasks == 0 && !options.load_nice.is_empty() {
        return Err(ProbeUdpError::NoTasks);
    }
    let burdens = burdens(options);
    let points = streams.len() * buffers.len() * burdens.len();
    if points > sweep::MAX_POINTS {
        return Err(ProbeUdpError::TooMany(points));
    }
    let mut tests = Vec::new();
    for stream in streams {
        for buffer in &buffers {
            for burden in &burdens {
                let test = Test {
                    there: (!options.reverse).then_some(stream),
                    back: (options.reverse || options.both).then_some(stream),
                    max_time,
                    buffer: buffer.map(usize::try_from).transpose()?,
                    join: options.burst > 1 || stream.rate().is_none(),
                    burden: *burden,
                    bin_width: Some(Nanos::from(options.bins).0.max(1)),
                    keep: options.records.is_some().then(|| keep(options)),
                    timeout: options.loss_timeout.into(),
                    ..options.target.test()
                };
                test.check()?;
                tests.push((test, label(&stream, *buffer, *burden)));
            }
        }
    }
    Ok(tests)
}

fn keep(options: &ProbeUdpOptions) -> Keep {
    Keep {
        skip: options.skip,
        limit: options.limit,
    }
}

/// Returns the extra loads of the receiver: each of its nice values with each set of competing tasks.
fn burdens(options: &ProbeUdpOptions) -> Vec<Option<Burden>> {
    if options.load_tasks == 0 && options.receiver_nice.is_empty() {
        return vec![None];
    }
    let mut all = Vec::new();
    for nice in sweep::each(&options.receiver_nice) {
        for tasks_nice in sweep::each(&options.load_nice) {
            all.push(Some(Burden {
                nice,
                tasks: options.load_tasks,
                tasks_nice: tasks_nice.unwrap_or(0),
            }));
        }
    }
    all
}

fn label(stream: &Stream, buffer: Option<u64>, burden: Option<Burden>) -> String {
    let pace = stream
        .rate()
        .map_or("as fast as possible".to_owned(), show_rate);
    let mut label = format!("{} bytes, {pace}", stream.size);
    if let Some(size) = buffer {
        label += &format!(", buffer {}", units::show_size(size));
    }
    if let Some(burden) = burden {
        if let Some(nice) = burden.nice {
            label += &format!(", receiver nice {nice}");
        }
        label += &format!(", {} tasks nice {}", burden.tasks, burden.tasks_nice);
    }
    label
}

pub(crate) fn line(label: &str, now: &session::Progress) -> String {
    let mut line = label.to_owned();
    if now.used > 0 {
        let [used, there] = [now.used, now.arrived_there].map(show_count);
        line += &format!(": {used} sent, {there} received remotely");
    }
    if now.arrived_here > 0 {
        line += &format!(", {} received locally", show_count(now.arrived_here));
    }
    line
}

/// Returns the points of a test's streams, with the datagrams that were kept one by one.
pub(crate) fn points<'a>(
    test: &'a Test,
    ends: &'a TestReport,
    clock: Option<ClockFit>,
) -> Vec<(Point, &'a [Record])> {
    let ways = [
        (Direction::There, &test.there),
        (Direction::Back, &test.back),
    ];
    let point = |(direction, stream): (Direction, &Option<Stream>)| {
        let mut point = Point::new(direction, stream.as_ref()?, test.burden, ends, clock)?;
        point.finding = finding::of_point(&point);
        let (_, receiver) = direction.ends(&ends.here, &ends.there);
        Some((point, receiver.listened.records.as_slice()))
    };
    ways.into_iter().filter_map(point).collect()
}
