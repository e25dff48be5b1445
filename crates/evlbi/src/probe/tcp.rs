//! `evlbi probe tcp`: messages at a constant rate over TCP, or as much as goes, and what the kernels say of it.

mod csv;
mod diagnosis;
mod flow;
mod matrix;
mod picture;
mod show;

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use evlbi_core::probe::{ClockFit, Spacing, Stream};
use evlbi_core::rate::BitRate;
use evlbi_core::tcp::Full;
use evlbi_core::time::Nanos;
use evlbi_net::probe::{End, Files, Flows, Test, usual_sampling};
use evlbi_net::tcp::{Constant, Kept, Options};
use serde::Serialize;

pub use self::diagnosis::{held_back, steady};
use self::flow::{Flow, Knowledge};
use super::parts::Parts;
use super::point::{self, Direction, Point};
use super::session::{Ends, Event, Session};
use super::{check_plots, draw, now, sweep, udp};
use crate::cli::{Buffer, ProbeTcpArgs};
use crate::output;
use crate::progress::{Progress, interrupt};
use crate::units::show_bytes;

const SCHEMA: &str = "evlbi.probe.tcp/1";

/// The result of `probe tcp`.
#[derive(Debug, Serialize)]
pub struct ProbeTcp {
    pub schema: &'static str,
    /// Name of this host.
    pub host: String,
    /// What the path is called.
    pub label: Option<String>,
    /// The responder as it was asked for.
    pub target: String,
    /// When it began.
    pub begun: String,
    pub asked: Asked,
    /// How the responder's clock lies to the one here.
    pub clock: Option<ClockFit>,
    /// Each connection.
    pub flows: Vec<Flow>,
    /// All of a direction together.
    pub totals: Vec<Total>,
    /// The stream beside them, each way.
    pub background: Vec<Point>,
    /// What looking at the connections cost, here and there.
    pub observers: Vec<Observer>,
    /// What it comes to, in sentences.
    pub findings: Vec<String>,
    /// Why it ended before its time.
    pub stopped: Option<String>,
}

/// What was asked for, of each connection.
#[derive(Clone, Debug, Serialize)]
pub struct Asked {
    /// Bits of messages per second; none where as much was to go as can.
    pub rate: Option<u64>,
    /// Bytes of a message.
    pub message: Option<u64>,
    /// Bytes of messages that may wait before the send buffer.
    pub backlog: u64,
    /// What becomes of messages that find no room.
    pub full: Option<Full>,
    /// Seconds.
    pub duration: f64,
    /// Seconds between looks at the connections.
    pub sample: f64,
    /// The stream of UDP beside the connections.
    pub background: Option<Background>,
    /// Round trip, in seconds, by which buffers are reckoned.
    pub round_trip: f64,
}

/// A stream of UDP beside connections.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Background {
    /// Bits of payload per second.
    pub rate: BitRate,
    /// From when to when, in seconds.
    pub from: f64,
    pub to: f64,
}

/// Connections of one direction together.
#[derive(Debug, Serialize)]
pub struct Total {
    pub direction: Direction,
    /// Bits per second that the receivers took.
    pub rate: f64,
    /// How evenly the connections shared that: 1 if all got the same, 1/n if one got all (Jain, Chiu and Hawe 1984).
    pub fairness: f64,
    /// Processor time per byte, in seconds per 10^9 bytes, of senders and of receivers.
    pub cpu_seconds_per_gb: [f64; 2],
}

/// What it cost to look at the connections.
#[derive(Debug, Serialize)]
pub struct Observer {
    /// Whether this is the responder.
    pub is_far: bool,
    pub readings: usize,
    /// Times at which nobody looked, because the host was busy.
    pub missed: u64,
    /// Part of a processor.
    pub cpu: f64,
}

pub fn run(args: &ProbeTcpArgs) -> Result<()> {
    let written = [&args.samples, &args.records];
    let is_one = args.mss.len() < 2 && args.buffer.len() < 2;
    if !is_one
        && written
            .into_iter()
            .chain([&args.from, &args.into])
            .any(Option::is_some)
    {
        bail!(
            "--samples, --records, --from and --into are of one test: give one --mss and one --buffer"
        );
    }
    let here = args.into.as_ref().filter(|_| args.reverse);
    let written = written.into_iter().flatten().chain(here).chain(&args.out);
    output::check_new(written.map(PathBuf::as_path), args.force)?;
    check_plots(&args.plot, args.force)?;
    let interrupted = interrupt();
    let source = source(args)?;
    let mut session = Session::begin(&args.target.target())?;
    let sink = sink(args)?;
    session.files = Files { source, sink };
    if !is_one {
        return matrix::run(args, &mut session, &interrupted);
    }
    let asked = asked(args, session.round_trip());
    let one = (args.mss.first().copied(), args.buffer.first().copied());
    let mut parts = Parts::begin(args.out.as_deref(), SCHEMA, &args.target.target)?;
    let result = measure(args, asked, one, &mut session, &mut parts, &interrupted)?;
    if let Some(path) = &args.samples {
        csv::write_readings(path, &result.flows)?;
    }
    if let Some(path) = &args.records {
        csv::write_messages(path, &result.flows)?;
    }
    for plot in &args.plot {
        draw(
            &picture::figure(&result),
            &show::table(&result),
            &result,
            plot,
        )?;
    }
    output::print(args.json, &result, show::table)?;
    parts.finish(&result)?;
    match &result.stopped {
        Some(stopped) => bail!("not all was measured: {stopped}"),
        None => Ok(()),
    }
}

/// One test, with this length of segments and this send buffer.
fn measure(
    args: &ProbeTcpArgs,
    asked: Asked,
    (segment, buffer): (Option<u32>, Option<Buffer>),
    session: &mut Session,
    parts: &mut Parts,
    interrupted: &AtomicBool,
) -> Result<ProbeTcp> {
    let test = test(args, &asked, segment, buffer)?;
    test.check()?;
    let mut progress = Progress::new(Some((asked.duration * 1000.0) as u64));
    let begun = now();
    let ends = session.run(&test, interrupted, &mut |event| {
        let Event::Progress(now) = event else {
            return Ok(());
        };
        parts.add("progress", now);
        if progress.is_due() {
            let [given, taken] = [now.used, now.arrived_there.max(now.arrived_here)]
                .map(|bytes| show_bytes(bytes as f64));
            let line = match args.reverse {
                true => format!("{taken} here"),
                false => format!("{given} given, {taken} taken"),
            };
            progress.show((now.seconds * 1000.0) as u64, &line);
        }
        Ok(())
    });
    progress.finish();
    let ends = ends?;
    let mut result = result(args, asked, begun, &test, &ends);
    result.findings = diagnosis::findings(&result);
    Ok(result)
}

/// The file that is given here.
fn source(args: &ProbeTcpArgs) -> Result<Option<File>> {
    let path = args.from.as_ref().filter(|_| !args.reverse);
    path.map(|path| File::open(path).with_context(|| format!("cannot read {}", path.display())))
        .transpose()
}

/// The file that takes what comes here: made once there is somebody to send it, so that nothing is lost for nothing.
fn sink(args: &ProbeTcpArgs) -> Result<Option<File>> {
    let path = args.into.as_ref().filter(|_| args.reverse);
    path.map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())))
        .transpose()
}

fn asked(args: &ProbeTcpArgs, round_trip: f64) -> Asked {
    Asked {
        rate: args.rate.map(BitRate::get),
        message: args.rate.map(|_| args.message),
        backlog: args.backlog,
        full: args.rate.map(|_| args.full.into()),
        duration: args.duration.as_secs_f64(),
        sample: sample(args).as_secs_f64(),
        background: args.background.map(|rate| {
            let at = args.background_at.unwrap_or(args.duration / 3);
            let end = (at + args.background_for).min(args.duration);
            Background {
                rate,
                from: at.as_secs_f64(),
                to: end.as_secs_f64(),
            }
        }),
        round_trip,
    }
}

/// Connections in both directions.
fn connections(args: &ProbeTcpArgs) -> u64 {
    u64::from(args.streams) * if args.both { 2 } else { 1 }
}

/// How often they are looked at.
fn sample(args: &ProbeTcpArgs) -> Nanos {
    let usual = || usual_sampling(args.duration.into(), connections(args));
    args.sample.map_or_else(usual, Nanos::from)
}

fn test(
    args: &ProbeTcpArgs,
    asked: &Asked,
    segment: Option<u32>,
    buffer: Option<Buffer>,
) -> Result<Test> {
    let bytes = |buffer: Option<Buffer>| -> Result<Option<usize>> {
        Ok(match (buffer, args.rate) {
            (None, _) => None,
            (Some(Buffer::Bytes(bytes)), _) => Some(usize::try_from(bytes)?),
            (Some(Buffer::Products(times)), Some(rate)) => {
                Some((times * rate.get() as f64 / 8.0 * asked.round_trip) as usize)
            }
            (Some(Buffer::Products(_)), None) => bail!(
                "a buffer of the bandwidth-delay product needs a rate: give --rate, or the buffer in bytes"
            ),
        })
    };
    let name = |path: &PathBuf| path.display().to_string();
    let names = sweep::each(&args.algorithm);
    let all = || names.iter().cycle().take(args.streams as usize).cloned();
    let count = connections(args);
    // Records are told in one message.
    let limit = args.limit.min(1_000_000 / count);
    let messages = args.rate.map_or(0, |rate| {
        (asked.duration * rate.get() as f64 / 8.0 / args.message.max(1) as f64) as u64
    });
    let flows = Flows {
        there: if args.reverse {
            Vec::new()
        } else {
            all().collect()
        },
        back: match args.reverse || args.both {
            true => all().collect(),
            false => Vec::new(),
        },
        constant: args
            .rate
            .map(|rate| -> Result<Constant> {
                Ok(Constant {
                    rate,
                    size: usize::try_from(args.message)?,
                    backlog: args.backlog,
                    full: args.full.into(),
                })
            })
            .transpose()?,
        write: usize::try_from(args.write)?,
        copied: !args.discard,
        options: Options {
            algorithm: None,
            send_buffer: bytes(buffer)?,
            receive_buffer: bytes(args.receive_buffer)?,
            segment,
            dscp: None,
        },
        every: sample(args),
        kept: Kept {
            every: (messages / limit + 1).max(1),
            limit,
        },
        source: args.from.as_ref().filter(|_| args.reverse).map(name),
        sink: args.into.as_ref().filter(|_| !args.reverse).map(name),
    };
    if asked.background.is_some_and(|other| other.from >= other.to) {
        bail!("the --background begins after the end of the test: give an earlier --background-at");
    }
    let background = asked.background.map(|other| {
        let bytes = other.rate.get() as f64 / 8.0 * (other.to - other.from);
        let count = (bytes / args.background_size.max(1) as f64) as u64;
        Stream {
            size: args.background_size,
            spacing: Spacing::BitsPerSecond(other.rate),
            burst: 1,
            count: count.max(1),
        }
    });
    Ok(Test {
        there: background.filter(|_| !args.reverse),
        back: background.filter(|_| args.reverse || args.both),
        delay: Nanos::from_secs_f64(asked.background.map_or(0.0, |other| other.from)),
        flows: Some(flows),
        most_time: args.duration.into(),
        dscp: args.target.dscp,
        patience: Nanos::SECOND,
        queue: args.target.wait.into(),
        ..Test::default()
    })
}

fn result(args: &ProbeTcpArgs, asked: Asked, begun: String, test: &Test, ends: &Ends) -> ProbeTcp {
    let clock = point::clock(&ends.clock);
    let there = test.flows.as_ref().map_or(0, |flows| flows.there.len());
    let count = ends.here.flows.as_ref().map_or(0, |end| end.flows.len());
    let flows: Vec<Flow> = (0..count)
        .filter_map(|number| {
            let (direction, sender, receiver) = match number < there {
                true => (Direction::There, &ends.here, &ends.there),
                false => (Direction::Back, &ends.there, &ends.here),
            };
            Flow::new(&Knowledge {
                number,
                direction,
                asked: &asked,
                interval: args.interval.as_secs_f64(),
                sender,
                receiver,
                clock: clock.as_ref(),
            })
        })
        .collect();
    let totals = [Direction::There, Direction::Back]
        .into_iter()
        .filter_map(|direction| Total::new(direction, &flows))
        .collect();
    let observer = |is_far: bool, end: &End| {
        let sampled = &end.flows.as_ref()?.sampled;
        Some(Observer {
            is_far,
            readings: sampled.readings.len(),
            missed: sampled.missed,
            cpu: sampled.cpu_seconds / sampled.seconds.max(1e-9),
        })
    };
    ProbeTcp {
        schema: SCHEMA,
        host: evlbi_net::host::name(),
        label: args.label.clone(),
        target: args.target.target.clone(),
        begun,
        asked,
        clock,
        flows,
        totals,
        background: udp::points(test, ends, clock)
            .into_iter()
            .map(|(point, _)| point)
            .collect(),
        observers: [(false, &ends.here), (true, &ends.there)]
            .into_iter()
            .filter_map(|(is_far, end)| observer(is_far, end))
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
        let (sum, squares) = rates().fold((0.0, 0.0), |(sum, squares), rate| {
            (sum + rate, squares + rate * rate)
        });
        let bytes: f64 = of().map(|flow| flow.bytes as f64).sum();
        let cpu = |get: fn(&Flow) -> f64| of().map(get).sum::<f64>() / bytes.max(1.0) * 1e9;
        (count > 0).then(|| Total {
            direction,
            rate: sum,
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
