//! Tests of TCP: messages at a constant rate, or as fast as possible, with samples of the kernels' state (`evlbi probe tcp`).
//!
//! Options, results, text and plots of a TCP test belong here.

mod csv;
mod diagnosis;
mod flow;
pub mod matrix;
pub mod picture;
pub mod show;

use std::fs::File;
use std::io;
use std::num::TryFromIntError;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::file::{OutputError, TableError, check_new};
use evlbi_net::run::Run;
use evlbi_net::tcp::{Constant, Kept, Options};
use evlbi_trace::tcp::Full;
use serde::Serialize;
use smart_default::SmartDefault;

use crate::endpoint::{EndpointReport, Files, Flows, Test, TestError, default_sampling};
use crate::measure::{ClockFit, Spacing, Stream};

pub(crate) use self::diagnosis::{held_back, parts, steady};
pub use self::flow::{Flow, Messages, Stage};
use self::matrix::Matrix;
use super::direction::Direction;
use super::parts::{Measured, Parts, WriteError};
use super::point::{self, Point};
use super::session::{Event, Session, SessionError, Target, TestReport};
use super::{now, sweep, udp};
use evlbi_wire::units::{self, show_bytes};

const SCHEMA: &str = "evlbi.probe.tcp/1";

/// Connections to test.
#[derive(Clone, Debug, SmartDefault)]
pub struct ProbeTcpOptions {
    /// The responder.
    pub target: Target,
    /// Rate of messages on each connection, in bits per second; `None` sends as fast as TCP accepts.
    pub rate: Option<BitRate>,
    /// Bytes of a message.
    #[default(1448)]
    pub message: u64,
    /// Length of a test.
    #[default(Duration::from_secs(10))]
    pub duration: Duration,
    /// Connections at once, in each direction.
    #[default(1)]
    pub streams: u32,
    /// Congestion control algorithms, which the connections take in turn; empty for the hosts' default.
    pub algorithm: Vec<String>,
    /// Send buffers to test one after another; empty lets the kernel adapt it.
    pub buffer: Vec<Buffer>,
    /// Receive buffer.
    pub receive_buffer: Option<Buffer>,
    /// Maximum segment sizes in bytes to test with each buffer; empty for that of the path.
    pub mss: Vec<u32>,
    /// Bytes of messages that may wait for room in the send buffer.
    pub backlog: u64,
    /// Treatment of messages that find no room.
    pub full: Full,
    /// Bytes per write, without a rate.
    #[default(256 << 10)]
    pub write: u64,
    /// Whether the receiver's kernel drops the data, which saves a copy.
    pub discard: bool,
    /// File to send; with `reverse` one of the responder's.
    pub from: Option<PathBuf>,
    /// File of the responder to write to; with `reverse` a local one.
    pub into: Option<PathBuf>,
    /// Whether the responder sends.
    pub reverse: bool,
    /// Whether both hosts send at once.
    pub both: bool,
    /// Rate of a UDP stream next to the connections.
    pub background: Option<BitRate>,
    /// UDP payload of its datagrams in bytes.
    #[default(1472)]
    pub background_size: usize,
    /// Its start; `None` for a third of the test's length.
    pub background_at: Option<Duration>,
    /// Its length.
    #[default(Duration::from_secs(2))]
    pub background_for: Duration,
    /// Interval between samples of the kernels' state; `None` for 10 ms, and more in long tests.
    pub sample: Option<Duration>,
    /// Averaging time of the throughput.
    #[default(Duration::from_secs(1))]
    pub interval: Duration,
    /// Name of the path in results.
    pub label: Option<String>,
    /// CSV file of the kernels' state.
    pub samples: Option<PathBuf>,
    /// CSV file of departures and arrivals of messages.
    pub records: Option<PathBuf>,
    /// Maximum number of messages that are recorded one by one, for each connection.
    #[default(100_000)]
    pub limit: u64,
    /// File for each part of the result as soon as it is known, a JSON object per line.
    pub out: Option<PathBuf>,
    /// Whether to overwrite files.
    pub force: bool,
}

/// Requested buffer size: bytes, e.g. `160M`, or `bdp`, `2bdp`, `0.5bdp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Buffer {
    /// In bytes.
    Bytes(u64),
    /// A multiple of the bandwidth-delay product.
    Products(f64),
}

impl FromStr for Buffer {
    type Err = String;

    fn from_str(text: &str) -> Result<Buffer, String> {
        let Some(times) = text.strip_suffix("bdp") else {
            return Ok(Buffer::Bytes(units::size(text)?));
        };
        let times = if times.is_empty() { "1" } else { times };
        let times = times.parse().ok();
        let times = times.filter(|times| (0.01..=1e6).contains(times));
        times.map(Buffer::Products).ok_or_else(|| {
            format!("invalid buffer `{text}`: give bytes, e.g. 160M, or bdp, 2bdp, 0.5bdp")
        })
    }
}

/// Reason why connections cannot be tested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeTcpError {
    /// Files of a single test are requested, and there are several segment lengths or buffers.
    #[error("the requested files need a single test, and there are several")]
    NotOne,
    /// A buffer is given in bandwidth-delay products, and there is no rate.
    #[error("a buffer of the bandwidth-delay product needs a rate")]
    NoRate,
    /// The UDP stream in the background would start too late.
    #[error("the background stream starts after the end of the test")]
    LateBackground,
    /// A size is more than this host can address.
    #[error("{0}")]
    Size(#[from] TryFromIntError),
    /// The file to send cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A test is invalid, or exceeds the responder's limits.
    #[error("{0}")]
    Test(#[from] TestError),
    /// A file must not be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// A CSV file cannot be written.
    #[error("{0}")]
    Table(#[from] TableError),
    /// The file of the result, or of received data, cannot be written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// The responder cannot be reached, or a test in the session failed.
    #[error("{0}")]
    Session(#[from] SessionError),
}

type Result<T, E = ProbeTcpError> = std::result::Result<T, E>;

/// The result of `probe tcp`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeTcp {
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
    /// The requested test.
    pub asked: Asked,
    /// Offset and skew of the responder's clock.
    pub clock: Option<ClockFit>,
    /// The connections.
    pub flows: Vec<Flow>,
    /// Totals of each direction.
    pub totals: Vec<Total>,
    /// The background stream, in each direction.
    pub background: Vec<Point>,
    /// Cost of sampling the connections, at each endpoint.
    pub observers: Vec<Observer>,
    /// Findings, in sentences.
    pub findings: Vec<String>,
    /// Reason for an early end.
    pub stopped: Option<String>,
}

/// Requested test of each connection.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Asked {
    /// Rate of messages, in bits per second; `None` for as fast as possible.
    pub rate: Option<u64>,
    /// Bytes of a message.
    pub message: Option<u64>,
    /// Bytes of messages that may wait for room in the send buffer.
    pub backlog: u64,
    /// Treatment of messages that find no room.
    pub full: Option<Full>,
    /// Length, in seconds.
    pub duration: f64,
    /// Interval between samples of the connections, in seconds.
    pub sample: f64,
    /// The UDP stream in the background.
    pub background: Option<Background>,
    /// Round-trip time for calculating buffers, in seconds.
    pub round_trip: f64,
}

/// A UDP stream in the background.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Background {
    /// Bits of payload per second.
    pub rate: BitRate,
    /// Start, in seconds since the start of the test.
    pub from: f64,
    /// End, in seconds since the start of the test.
    pub to: f64,
}

/// Total of the connections of one direction.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Total {
    /// The direction.
    pub direction: Direction,
    /// Bits per second that the receivers read.
    pub rate: f64,
    /// Fairness of the shares: 1 if all connections got the same, 1/n if one got all (Jain, Chiu and Hawe 1984).
    pub fairness: f64,
    /// CPU time of senders and of receivers, in seconds per 10^9 bytes.
    pub cpu_seconds_per_gb: [f64; 2],
}

/// Cost of sampling the connections.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Observer {
    /// Whether this is the responder.
    pub is_far: bool,
    /// Samples that are kept.
    pub readings: usize,
    /// Samples that were missed, because the host was busy.
    pub missed: u64,
    /// Fraction of a CPU.
    pub cpu: f64,
}

/// Result of [`probe`].
#[derive(Debug)]
pub enum Tested {
    /// A single test.
    One(Measured<Box<ProbeTcp>>),
    /// Several segment lengths or send buffers.
    Matrix(Measured<Matrix>),
}

/// Tests connections until all is measured or the run is stopped.
///
/// # Errors
/// [`ProbeTcpError`] if the options are inconsistent, a file cannot be read or written, or nothing could be measured.
pub fn probe(options: &ProbeTcpOptions, run: &Run) -> Result<Tested> {
    let (samples, records, out) = (&options.samples, &options.records, &options.out);
    let (from, into) = (&options.from, &options.into);
    let is_one = options.mss.len() < 2 && options.buffer.len() < 2;
    let mut of_one = [samples, records, from, into].into_iter();
    if !is_one && of_one.any(Option::is_some) {
        return Err(ProbeTcpError::NotOne);
    }
    let mut buffers = options.buffer.iter().chain(&options.receive_buffer);
    if options.rate.is_none() && buffers.any(|buffer| matches!(buffer, Buffer::Products(_))) {
        return Err(ProbeTcpError::NoRate);
    }
    let here = into.as_ref().filter(|_| options.reverse);
    let written = samples.iter().chain(records).chain(here).chain(out);
    check_new(written.map(PathBuf::as_path), options.force)?;
    let source = from.as_ref().filter(|_| !options.reverse);
    let source = source.map(|path| open(path)).transpose()?;
    let mut session = Session::begin(&options.target, run)?;
    // Created once there is a sender, so that nothing is overwritten in vain.
    let sink = here.map(|path| create(path)).transpose()?;
    session.files = Files { source, sink };
    if !is_one {
        return Ok(Tested::Matrix(matrix::probe(options, &mut session, run)?));
    }
    let segment = options.mss.first().copied();
    let buffer = options.buffer.first().copied();
    let mut parts = Parts::begin(out.as_deref(), SCHEMA, &options.target.address, run)?;
    let result = measure(options, segment, buffer, &mut session, &mut parts, run)?;
    if let Some(path) = samples {
        csv::write_readings(path, &result.flows)?;
    }
    if let Some(path) = records {
        csv::write_messages(path, &result.flows)?;
    }
    Ok(Tested::One(parts.finish(Box::new(result))))
}

/// Runs one test with this segment length and this send buffer.
fn measure(
    options: &ProbeTcpOptions,
    segment: Option<u32>,
    buffer: Option<Buffer>,
    session: &mut Session,
    parts: &mut Parts,
    run: &Run,
) -> Result<ProbeTcp> {
    let asked = asked(options, session.round_trip());
    let test = test(options, &asked, segment, buffer)?;
    test.check()?;
    let mut progress = run.progress(Some((asked.duration * 1000.0) as u64));
    let begun = now(run);
    let ends = session.run(&test, run, &mut |event| {
        let Event::Progress(now) = event else {
            return Ok(());
        };
        parts.add("progress", now);
        if progress.is_due() {
            let [given, taken] = [now.used, now.arrived_there.max(now.arrived_here)]
                .map(|bytes| show_bytes(bytes as f64));
            let line = match options.reverse {
                true => format!("{taken} received"),
                false => format!("{given} sent, {taken} received"),
            };
            progress.show((now.seconds * 1000.0) as u64, &line);
        }
        Ok(())
    })?;
    let mut result = result(options, asked, begun, &test, &ends);
    result.findings = diagnosis::findings(&result);
    Ok(result)
}

/// Opens a local file to send.
fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| ProbeTcpError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Creates a local file for received data.
fn create(path: &Path) -> Result<File, WriteError> {
    File::create(path).map_err(|source| WriteError {
        path: path.to_owned(),
        source,
    })
}

fn asked(options: &ProbeTcpOptions, round_trip: f64) -> Asked {
    Asked {
        rate: options.rate.map(BitRate::get),
        message: options.rate.map(|_| options.message),
        backlog: options.backlog,
        full: options.rate.map(|_| options.full),
        duration: options.duration.as_secs_f64(),
        sample: sample(options).as_secs_f64(),
        background: options.background.map(|rate| {
            let at = options.background_at.unwrap_or(options.duration / 3);
            let end = (at + options.background_for).min(options.duration);
            Background {
                rate,
                from: at.as_secs_f64(),
                to: end.as_secs_f64(),
            }
        }),
        round_trip,
    }
}

/// Returns the number of connections in both directions.
fn connections(options: &ProbeTcpOptions) -> u64 {
    u64::from(options.streams) * if options.both { 2 } else { 1 }
}

/// Returns the interval between samples.
fn sample(options: &ProbeTcpOptions) -> Nanos {
    let usual = || default_sampling(options.duration.into(), connections(options));
    options.sample.map_or_else(usual, Nanos::from)
}

fn test(
    options: &ProbeTcpOptions,
    asked: &Asked,
    segment: Option<u32>,
    buffer: Option<Buffer>,
) -> Result<Test> {
    let bytes = |buffer: Option<Buffer>| -> Result<Option<usize>> {
        Ok(match (buffer, options.rate) {
            (None, _) => None,
            (Some(Buffer::Bytes(bytes)), _) => Some(usize::try_from(bytes)?),
            (Some(Buffer::Products(times)), Some(rate)) => {
                Some((times * rate.get() as f64 / 8.0 * asked.round_trip) as usize)
            }
            (Some(Buffer::Products(_)), None) => return Err(ProbeTcpError::NoRate),
        })
    };
    let name = |path: &PathBuf| path.display().to_string();
    let laws = sweep::each(&options.algorithm).into_iter().cycle();
    let laws: Vec<Option<String>> = laws.take(options.streams as usize).collect();
    let flows = |are_asked_for: bool| match are_asked_for {
        true => laws.clone(),
        false => Vec::new(),
    };
    let size = usize::try_from(options.message)?;
    let count = connections(options);
    // Records are sent in one message.
    let limit = options.limit.min(1_000_000 / count);
    let messages = options.rate.map_or(0, |rate| {
        (asked.duration * rate.get() as f64 / 8.0 / options.message.max(1) as f64) as u64
    });
    let flows = Flows {
        there: flows(!options.reverse),
        back: flows(options.reverse || options.both),
        constant: options.rate.map(|rate| Constant {
            rate,
            size,
            backlog: options.backlog,
            full: options.full,
        }),
        write: usize::try_from(options.write)?,
        copied: !options.discard,
        options: Options {
            send_buffer: bytes(buffer)?,
            receive_buffer: bytes(options.receive_buffer)?,
            segment,
            ..Options::default()
        },
        every: sample(options),
        kept: Kept {
            every: (messages / limit + 1).max(1),
            limit,
        },
        source: options.from.as_ref().filter(|_| options.reverse).map(name),
        sink: options.into.as_ref().filter(|_| !options.reverse).map(name),
    };
    if asked.background.is_some_and(|other| other.from >= other.to) {
        return Err(ProbeTcpError::LateBackground);
    }
    let background = asked.background.map(|other| {
        let bytes = other.rate.get() as f64 / 8.0 * (other.to - other.from);
        let count = (bytes / options.background_size.max(1) as f64) as u64;
        Stream {
            size: options.background_size,
            spacing: Spacing::BitsPerSecond(other.rate),
            burst: 1,
            count: count.max(1),
        }
    });
    Ok(Test {
        there: background.filter(|_| !options.reverse),
        back: background.filter(|_| options.reverse || options.both),
        delay: Nanos::from_secs_f64(asked.background.map_or(0.0, |other| other.from)),
        flows: Some(flows),
        max_time: options.duration.into(),
        ..options.target.test()
    })
}

fn result(
    options: &ProbeTcpOptions,
    asked: Asked,
    begun: String,
    test: &Test,
    ends: &TestReport,
) -> ProbeTcp {
    let clock = point::clock(&ends.clock);
    let there = test.flows.as_ref().map_or(0, |flows| flows.there.len());
    let count = ends.here.flows.as_ref().map_or(0, |end| end.flows.len());
    let interval = options.interval.as_secs_f64();
    let flows = (0..count).filter_map(|number| {
        let direction = match number < there {
            true => Direction::There,
            false => Direction::Back,
        };
        Flow::new(number, direction, &asked, interval, ends, clock.as_ref())
    });
    let flows: Vec<Flow> = flows.collect();
    let totals = Direction::BOTH.map(|direction| Total::new(direction, &flows));
    let observer = |(is_far, end): (bool, &EndpointReport)| {
        let sampled = &end.flows.as_ref()?.sampled;
        Some(Observer {
            is_far,
            readings: sampled.readings.len(),
            missed: sampled.missed,
            cpu: sampled.cpu_seconds / sampled.seconds.max(1e-9),
        })
    };
    let background = udp::points(test, ends, clock).into_iter();
    ProbeTcp {
        schema: SCHEMA,
        host: evlbi_net::host::name(),
        label: options.label.clone(),
        target: options.target.address.clone(),
        begun,
        asked,
        clock,
        flows,
        totals: totals.into_iter().flatten().collect(),
        background: background.map(|(point, _)| point).collect(),
        observers: [(false, &ends.here), (true, &ends.there)]
            .into_iter()
            .filter_map(observer)
            .collect(),
        findings: Vec::new(),
        stopped: ends.stopped.clone(),
    }
}

impl Total {
    fn new(direction: Direction, flows: &[Flow]) -> Option<Total> {
        let of = || flows.iter().filter(|flow| flow.direction == direction);
        let count = of().count();
        let rates = || of().map(|flow| flow.rate);
        let sum: f64 = rates().sum();
        let squares: f64 = rates().map(|rate| rate * rate).sum();
        let bytes: f64 = of().map(|flow| flow.bytes as f64).sum();
        // Some connections end before the others, which then have the path to themselves.
        let seconds = of().map(|flow| flow.seconds).fold(1e-9, f64::max);
        let cpu = |get: fn(&Flow) -> f64| of().map(get).sum::<f64>() / bytes.max(1.0) * 1e9;
        (count > 0).then(|| Total {
            direction,
            rate: bytes * 8.0 / seconds,
            fairness: match squares > 0.0 {
                true => sum * sum / (count as f64 * squares),
                false => 1.0,
            },
            cpu_seconds_per_gb: [
                cpu(|flow| flow.sender_cpu_seconds),
                cpu(|flow| flow.receiver_cpu_seconds),
            ],
        })
    }
}
