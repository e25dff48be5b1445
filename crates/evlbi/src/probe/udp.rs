//! `evlbi probe udp`: points of throughput, loss and delay.

use std::path::PathBuf;

use anyhow::{Result, bail};
use evlbi_core::probe::{ClockFit, Stream};
use evlbi_core::time::Nanos;
use evlbi_net::probe::{Keep, Record, Test};
use serde::Serialize;

use super::point::{self, Direction, Known, Point};
use super::session::{self, Ends, Event, Session};
use super::{check_plots, csv, draw, finding, now, picture, show, sweep};
use crate::cli::{ProbeFormat, ProbeUdpArgs};
use crate::output;
use crate::progress::{Progress, interrupt};
use crate::units::{self, show_count, show_rate};

/// A point lasts so long where nothing else is said.
const LENGTH: Nanos = Nanos(3_000_000_000);
/// A test with a number of datagrams ends after this many times as long as they should take, and ten seconds.
const PATIENCE: u64 = 2;

/// The result of `probe udp`.
#[derive(Debug, Serialize)]
pub struct ProbeUdp {
    pub schema: &'static str,
    /// The responder as it was asked for.
    pub target: String,
    /// When it began.
    pub begun: String,
    /// How the responder's clock lies to the one here, of the last point.
    pub clock: Option<ClockFit>,
    pub points: Vec<Point>,
    /// Where sweeps begin to lose.
    pub findings: Vec<String>,
    /// Why it ended before its time.
    pub stopped: Option<String>,
}

pub fn run(args: &ProbeUdpArgs) -> Result<()> {
    let tests = tests(args)?;
    let files = [&args.records, &args.losses].into_iter().flatten();
    output::check_new(files.map(PathBuf::as_path), args.force)?;
    check_plots(&args.plot, args.force)?;
    let interrupted = interrupt();
    let mut session = Session::begin(&args.target.target())?;
    let mut result = ProbeUdp {
        schema: "evlbi.probe.udp/1",
        target: args.target.target.clone(),
        begun: now(),
        clock: None,
        points: Vec::new(),
        findings: Vec::new(),
        stopped: None,
    };
    let mut records =
        csv::Records::new(args.records.as_deref(), args.losses.as_deref(), args.limit)?;
    let mut progress = Progress::new(Some(tests.len() as u64 * 1000));
    for (number, (test, label)) in tests.iter().enumerate() {
        let length = test.duration().as_secs_f64().max(1e-3);
        let ends = session.run(test, None, &interrupted, &mut |event| {
            if let Event::Progress(now) = event {
                let done = number as f64 + (now.seconds / length).min(1.0);
                progress.show((done * 1000.0) as u64, &line(label, now));
            }
            Ok(())
        });
        let ends = match ends {
            // What was measured before is not lost.
            Err(error) if !result.points.is_empty() => {
                result.stopped = Some(output::explain(&error));
                break;
            }
            ends => ends?,
        };
        result.clock = point::clock(&ends.clock);
        for (point, kept) in points(test, &ends, result.clock) {
            records.write(number, &point, kept, result.clock.as_ref())?;
            result.points.push(point);
        }
        if let Some(stopped) = &ends.stopped {
            result.stopped = Some(stopped.clone());
            break;
        }
    }
    progress.finish();
    records.finish()?;
    result.findings = finding::of_sweep(&result.points);
    for plot in &args.plot {
        draw(
            &picture::figure(&result),
            &show::table(&result),
            &result,
            plot,
        )?;
    }
    match (args.json, args.format) {
        (true, _) | (_, ProbeFormat::Table) => output::print(args.json, &result, show::table)?,
        (_, ProbeFormat::Udpmon) => output::print(false, &result, show::udpmon)?,
        (_, ProbeFormat::Pscheduler) => {
            output::print(true, &show::pscheduler(&result), |_| String::new())?;
        }
    }
    match &result.stopped {
        Some(stopped) => bail!("not all was measured: {stopped}"),
        None => Ok(()),
    }
}

/// A test for each point, and what it is called.
fn tests(args: &ProbeUdpArgs) -> Result<Vec<(Test, String)>> {
    if args.rate.is_none() && args.spacing.is_none() {
        bail!(
            "how fast? Give a --rate, as 500M, or a --spacing, as 12.5us (0: as fast as this host can)"
        );
    }
    let duration = args.duration.map_or(LENGTH, Nanos::from);
    let streams = sweep::streams(
        &args.size,
        args.rate.as_ref(),
        args.spacing.as_ref(),
        args.burst,
        args.count,
    );
    let buffers: Vec<Option<u64>> = match args.buffer.as_slice() {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    if streams.len() * buffers.len() > sweep::MOST_POINTS {
        bail!(
            "{} points are more than {}",
            streams.len() * buffers.len(),
            sweep::MOST_POINTS
        );
    }
    let mut tests = Vec::new();
    for stream in streams {
        for buffer in &buffers {
            let test = test(args, stream, *buffer, duration)?;
            test.check()?;
            tests.push((test, label(&stream, *buffer)));
        }
    }
    Ok(tests)
}

fn test(args: &ProbeUdpArgs, stream: Stream, buffer: Option<u64>, duration: Nanos) -> Result<Test> {
    let most_time = match args.count {
        // Datagrams without a spacing are sent as fast as the host can, which is no time to reckon with.
        Some(_) => Nanos(stream.duration().0.saturating_mul(PATIENCE)).plus(Nanos(10_000_000_000)),
        None => duration,
    };
    let keep = Keep {
        skip: args.skip,
        limit: args.limit,
    };
    Ok(Test {
        there: (!args.reverse).then_some(stream),
        back: (args.reverse || args.both).then_some(stream),
        most_time,
        buffer: buffer.map(usize::try_from).transpose()?,
        join: args.burst > 1 || stream.rate().is_none(),
        dscp: args.target.dscp,
        window: None,
        bin_width: Some(Nanos::from(args.bins).0.max(1)),
        keep: args.records.is_some().then_some(keep),
        patience: args.loss_timeout.into(),
        queue: args.target.wait.into(),
    })
}

pub fn label(stream: &Stream, buffer: Option<u64>) -> String {
    let pace = match stream.rate() {
        Some(rate) => show_rate(rate),
        None => "as fast as can be".to_owned(),
    };
    let buffer = buffer.map_or(String::new(), |size| {
        format!(", buffer {}", units::show_size(size))
    });
    format!("{} bytes, {pace}{buffer}", stream.size)
}

pub fn line(label: &str, now: &session::Progress) -> String {
    let mut line = label.to_owned();
    if now.used > 0 {
        line += &format!(
            ": {} sent, {} there",
            show_count(now.used),
            show_count(now.arrived_there)
        );
    }
    if now.arrived_here > 0 {
        line += &format!(", {} here", show_count(now.arrived_here));
    }
    line
}

/// The streams of a test, with the datagrams that were kept one by one.
pub fn points<'a>(
    test: &'a Test,
    ends: &'a Ends,
    clock: Option<ClockFit>,
) -> Vec<(Point, &'a [Record])> {
    let known = |direction, stream, sender, receiver| Known {
        direction,
        stream,
        is_v6: ends.peer.is_ipv6() && ends.peer.ip().to_canonical().is_ipv6(),
        sender,
        receiver,
        clock,
    };
    let there = test.there.as_ref();
    let there = there.map(|stream| known(Direction::There, stream, &ends.here, &ends.there));
    let back = test.back.as_ref();
    let back = back.map(|stream| known(Direction::Back, stream, &ends.there, &ends.here));
    let ways = there.into_iter().chain(back);
    ways.filter_map(|known| {
        let kept = &known.receiver.listened.records;
        Some((Point::new(&known)?, kept.as_slice()))
    })
    .collect()
}
