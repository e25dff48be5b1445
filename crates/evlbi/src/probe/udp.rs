//! `evlbi probe udp`: points of throughput, loss and delay.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evlbi_core::probe::{ClockFit, Stream};
use evlbi_core::time::Nanos;
use evlbi_net::probe::{Burden, Keep, Limits, Record, Test};
use serde::Serialize;

use super::parts::Parts;
use super::point::{self, Direction, Known, Point};
use super::session::{self, Ends, Event, Session, Target};
use super::{check_plots, csv, draw, finding, now, one_way, picture, region, show, sweep};
use crate::cli::{OneWay, ProbeFormat, ProbeUdpArgs};
use crate::output;
use crate::progress::{Progress, interrupt};
use crate::units::{self, show_count, show_rate};

/// Of a test that ends with its last datagram.
const FOREVER: Nanos = Nanos(u64::MAX);
/// A point lasts so long where nothing else is said.
const LENGTH: Nanos = Nanos(3_000_000_000);

/// The result of `probe udp`.
#[derive(Debug, Serialize)]
pub struct ProbeUdp {
    pub schema: &'static str,
    /// Name of this host.
    pub host: String,
    /// What the path is called.
    pub label: Option<String>,
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
    let files = [&args.records, &args.losses, &args.out];
    let files = files.into_iter().flatten();
    output::check_new(files.map(PathBuf::as_path), args.force)?;
    check_plots(&args.plot, args.force)?;
    let interrupted = interrupt();
    let target = args.target.target();
    if args.one_way == Some(OneWay::Send) {
        return send_one_way(args, &tests, &target, &interrupted);
    }
    let mut session = match args.one_way {
        None => Some(Session::begin(&target)?),
        Some(_) => None,
    };
    let mut result = ProbeUdp {
        schema: "evlbi.probe.udp/1",
        host: evlbi_net::host::name(),
        label: args.label.clone(),
        target: args.target.target.clone(),
        begun: now(),
        clock: None,
        points: Vec::new(),
        findings: Vec::new(),
        stopped: None,
    };
    let mut records =
        csv::Records::new(args.records.as_deref(), args.losses.as_deref(), keep(args))?;
    let mut parts = Parts::begin(args.out.as_deref(), result.schema, &result.target)?;
    let mut progress = Progress::new(Some(tests.len() as u64 * 1000));
    for (number, (test, label)) in tests.iter().enumerate() {
        let length = test.duration().as_secs_f64().max(1e-3);
        let mut show = |now: &session::Progress| {
            if progress.is_due() {
                let done = number as f64 + (now.seconds / length).min(1.0);
                progress.show((done * 1000.0) as u64, &line(label, now));
            }
        };
        let ends = match &mut session {
            Some(session) => session.run(
                &within(test, session.limits()),
                &interrupted,
                &mut |event| {
                    if let Event::Progress(now) = event {
                        show(now);
                    }
                    Ok(())
                },
            ),
            None => receive_one_way(test, &target, number == 0, &interrupted, &mut show),
        };
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
            parts.add("point", &point);
            result.points.push(point);
        }
        if let Some(stopped) = &ends.stopped {
            result.stopped = Some(stopped.clone());
            break;
        }
    }
    progress.finish();
    records.finish()?;
    region::assign(&mut result.points);
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
    parts.finish(&result)?;
    match &result.stopped {
        Some(stopped) => bail!("not all was measured: {stopped}"),
        None => Ok(()),
    }
}

/// A number of datagrams may take longer than it should, but no longer than the responder allows; what should already take
/// longer is left for it to refuse.
pub fn within(test: &Test, limits: &Limits) -> Test {
    let is_unspaced = test.duration() == FOREVER;
    let is_clamped =
        test.most_time == FOREVER && (is_unspaced || test.duration() <= limits.duration);
    Test {
        most_time: if is_clamped {
            limits.duration
        } else {
            test.most_time
        },
        ..test.clone()
    }
}

/// The sending end of a path without a way back: what it sent, of each point.
fn send_one_way(
    args: &ProbeUdpArgs,
    tests: &[(Test, String)],
    target: &Target,
    interrupted: &AtomicBool,
) -> Result<()> {
    let mut progress = Progress::new(None);
    let mut sent = Vec::new();
    for (number, (test, label)) in tests.iter().enumerate() {
        let Some(stream) = &test.there else {
            continue;
        };
        if number > 0 {
            // The receiver waits for what may still come of the one before, and then listens for this one.
            std::thread::sleep(Duration::from_nanos(test.patience.0) + one_way::SILENCE * 2);
        }
        let end = one_way::send(target, test, stream, interrupted, &mut |now| {
            if progress.is_due() {
                progress.show(0, &line(label, now));
            }
        })?;
        sent.extend(end.departed);
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    progress.finish();
    let result = serde_json::json!({ "schema": "evlbi.probe.sent/1", "points": sent });
    output::print(args.json, &result, |_| {
        let lines = tests.iter().zip(&sent).map(|((_, label), departed)| {
            format!(
                "{label}: {} sent in {:.3} s",
                show_count(departed.counts.sent),
                departed.seconds
            )
        });
        lines.collect::<Vec<String>>().join("\n")
    })
}

/// The receiving end, as if there had been a responder.
fn receive_one_way(
    test: &Test,
    target: &Target,
    is_first: bool,
    interrupted: &AtomicBool,
    show: &mut dyn FnMut(&session::Progress),
) -> Result<Ends> {
    let stream = test.there.as_ref().context("nothing to receive")?;
    let [sender, receiver] = one_way::receive(target, test, stream, is_first, interrupted, show)?;
    let stopped = interrupted
        .load(Ordering::Relaxed)
        .then(|| "interrupted".to_owned());
    Ok(Ends {
        peer: one_way::address_of(&target.address)?,
        here: sender,
        there: receiver,
        clock: Vec::new(),
        requests: 0,
        stopped,
    })
}

/// A test for each point, and what it is called.
pub fn tests(args: &ProbeUdpArgs) -> Result<Vec<(Test, String)>> {
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
    let buffers = sweep::each(&args.buffer);
    if args.load_tasks == 0 && !args.load_nice.is_empty() {
        bail!("--load-nice is of competing tasks: give --load-tasks, too");
    }
    let burdens = burdens(args);
    if streams.len() * buffers.len() * burdens.len() > sweep::MOST_POINTS {
        bail!(
            "{} points are more than {}",
            streams.len() * buffers.len() * burdens.len(),
            sweep::MOST_POINTS
        );
    }
    let mut tests = Vec::new();
    for stream in streams {
        for buffer in &buffers {
            for burden in &burdens {
                let test = Test {
                    burden: *burden,
                    ..test(args, stream, *buffer, duration)?
                };
                test.check()?;
                tests.push((test, label(&stream, *buffer, *burden)));
            }
        }
    }
    Ok(tests)
}

fn test(args: &ProbeUdpArgs, stream: Stream, buffer: Option<u64>, duration: Nanos) -> Result<Test> {
    let most_time = match args.count {
        // As long as the responder allows: a host may take longer than it should.
        Some(_) => FOREVER,
        None => duration,
    };
    Ok(Test {
        there: (!args.reverse).then_some(stream),
        back: (args.reverse || args.both).then_some(stream),
        most_time,
        buffer: buffer.map(usize::try_from).transpose()?,
        join: args.burst > 1 || stream.rate().is_none(),
        dscp: args.target.dscp,
        requests: None,
        flows: None,
        delay: Nanos::default(),
        window: None,
        burden: None,
        bin_width: Some(Nanos::from(args.bins).0.max(1)),
        keep: args.records.is_some().then(|| keep(args)),
        patience: args.loss_timeout.into(),
        queue: args.target.wait.into(),
    })
}

fn keep(args: &ProbeUdpArgs) -> Keep {
    Keep {
        skip: args.skip,
        limit: args.limit,
    }
}

/// What makes the receiver's work harder: each nice value of the receiver with each of the tasks that compete with it.
fn burdens(args: &ProbeUdpArgs) -> Vec<Option<Burden>> {
    if args.load_tasks == 0 && args.receiver_nice.is_empty() {
        return vec![None];
    }
    let of_tasks = if args.load_nice.is_empty() {
        vec![0]
    } else {
        args.load_nice.clone()
    };
    let of_receiver = sweep::each(&args.receiver_nice);
    let all = of_receiver.into_iter().flat_map(|nice| {
        of_tasks.iter().map(move |tasks_nice| {
            Some(Burden {
                nice,
                tasks: args.load_tasks,
                tasks_nice: *tasks_nice,
            })
        })
    });
    all.collect()
}

fn label(stream: &Stream, buffer: Option<u64>, burden: Option<Burden>) -> String {
    let pace = match stream.rate() {
        Some(rate) => show_rate(rate),
        None => "as fast as can be".to_owned(),
    };
    let buffer = buffer.map_or(String::new(), |size| {
        format!(", buffer {}", units::show_size(size))
    });
    let burden = burden.map_or(String::new(), |burden| {
        let nice = burden
            .nice
            .map_or(String::new(), |nice| format!(", receiver nice {nice}"));
        format!("{nice}, {} tasks nice {}", burden.tasks, burden.tasks_nice)
    });
    format!("{} bytes, {pace}{buffer}{burden}", stream.size)
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
        is_v6: ends.peer.ip().to_canonical().is_ipv6(),
        sender,
        receiver,
        clock,
        burden: test.burden,
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
