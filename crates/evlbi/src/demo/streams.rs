//! The streams of the demonstration: the stations' noise, sent through the relay into a recording.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::deframe::{self, Wanted};
use evlbi_core::pace::{ByTime, train_length};
use evlbi_core::path::Impairment;
use evlbi_core::shed::{Policy, Replace, Shed, Stream};
use evlbi_core::time::Nanos;
use evlbi_fx::sky::{SkyPlan, StationPlan};
use evlbi_net::clock::Thread;
use evlbi_net::file::Durability;
use evlbi_net::receive::{self, Numbers, ReceiveOptions, ReceiveReport, Receiving};
use evlbi_net::relay::{Relay, RelayFlow, RelayReport};
use evlbi_net::run::Run;
use evlbi_net::sim::Host;
use evlbi_net::transmit::{self, Clock, Flow, FlowOptions, SendReport, Sent};
use evlbi_net::transport::{InOptions, Local, OutOptions, Url};
use evlbi_stream::control_socket::Rate;
use evlbi_stream::drain::{self, Drained};
use evlbi_stream::running;
use evlbi_stream::selection::Selection;
use evlbi_stream::sink::{self, Files};
use evlbi_stream::source::{self, Input};
use evlbi_wire::units::{show_count, show_rate};

use super::{DemoOptions, PAYLOAD, SAMPLES, STATIONS};
use crate::status::Usage;

/// Rounds of noise per second; a round is generated in advance and sent in a loop.
const ROUNDS: u64 = 4;
/// Delay until the stations start.
const SOON: Nanos = Nanos(100_000_000);
/// Time for the kernel to deliver the last datagrams of the relay.
const SETTLING: Duration = Duration::from_millis(500);

/// Generates the stations' noise in advance.
pub(super) fn make_stations(options: &DemoOptions, run: &Run) -> Result<Vec<(String, Input)>> {
    let frame_length = PAYLOAD as u64 + 32;
    let per_round = (options.rate.get() / (8 * frame_length * ROUNDS)).max(1);
    let frame_rate = per_round * ROUNDS;
    if frame_rate >= 1 << 24 {
        let rate = options.rate;
        bail!(Usage(format!(
            "--rate {rate} is more than VDIF frames can be numbered for"
        )));
    }
    let names = &STATIONS[..options.stations as usize];
    let plan = SkyPlan {
        start: run.clock().second(),
        duration: 1.0 / ROUNDS as f64,
        seed: options.seed,
        sample_rate: (frame_rate * SAMPLES) as f64,
        payload: PAYLOAD,
        stations: names.iter().map(|name| StationPlan::new(name)).collect(),
        ..SkyPlan::default()
    };
    let frames = (options.duration.as_secs_f64() * frame_rate as f64).ceil() as u64;
    let makers = plan.stations()?.into_iter().map(|station| {
        run.clock().spawn("sky", move || {
            let input = source::simulate(&station)?.lasting(frames * frame_length);
            Ok((station.name().to_string(), input))
        })
    });
    // All of them start before the first is joined.
    let makers = makers.collect::<io::Result<Vec<Thread<_>>>>()?;
    makers.into_iter().map(Thread::join).collect()
}

/// Everything known about a station's stream.
pub(super) struct Streamed {
    pub(super) name: String,
    pub(super) sent: SendReport,
    pub(super) relay: RelayReport,
    pub(super) received: ReceiveReport,
    pub(super) drained: Drained,
}

/// One station's receiver.
struct Sinked {
    name: String,
    receiving: Receiving,
    drainer: Thread<Drained>,
}

pub(super) fn stream(
    options: &DemoOptions,
    stations: Vec<(String, Input)>,
    impairment: Impairment,
    directory: &Path,
    run: &Run,
) -> Result<Vec<Streamed>> {
    let mut receivers = Vec::new();
    let mut relay = Vec::new();
    let mut flows = Vec::new();
    let mut sent = Vec::new();
    let start = run.clock().now().plus(SOON);
    for (number, (name, input)) in (0u64..).zip(stations) {
        let receiver = receiver(name, directory, run)?;
        let Some(Local::Socket(to)) = receiver.receiving.local().first().cloned() else {
            bail!("a receiver has no address");
        };
        let (at, to) = (url(None, run)?, url(Some(to), run)?);
        let seed = options.seed.wrapping_add(1 + number);
        let flow = RelayFlow::new(&at, &to, impairment, seed, run)?;
        let Some(Local::Socket(address)) = flow.local().first().cloned() else {
            bail!("the relay has no address");
        };
        let progress = Sent::new();
        flows.push(sender(address, input, start, &progress, run)?);
        sent.push(progress);
        relay.push(flow);
        receivers.push(receiver);
    }
    let relay = Relay::start(relay, run.clock())?;
    let sent = transmit_shown(options, flows, &sent, &receivers, run)?;
    let relayed = relay.finish()?;
    if let Some(error) = sent.iter().find_map(|report| report.error.as_ref()) {
        bail!("a station could not send any more: {error}");
    }
    // Receivers drain their sockets and end. Silence does not end them, because a busy host may stall the stations for any time.
    run.clock().sleep(SETTLING);
    for receiver in &receivers {
        receiver.receiving.stop();
    }
    let streamed = receivers.into_iter().zip(sent).zip(relayed);
    let streamed = streamed.map(|((receiver, sent), relay)| Streamed {
        name: receiver.name,
        sent,
        relay,
        received: receiver.receiving.join(),
        drained: receiver.drainer.join(),
    });
    Ok(streamed.collect())
}

fn receiver(name: String, directory: &Path, run: &Run) -> Result<Sinked> {
    let asked = ReceiveOptions {
        from: url(None, run)?,
        safe: None,
        with: InOptions {
            // Makes the socket's drop counter count single datagrams.
            single: true,
            ..InOptions::default()
        },
        numbering: Box::new(Numbers),
        wanted: Wanted::default(),
        window: 16 << 20,
        // A stalled relay makes nothing late.
        hold: Duration::from_secs(60),
        ring: 64 << 20,
        idle: None,
        duration: None,
        cpu: None,
        priority: None,
    };
    // Datagrams that the relay forwards after the run was stopped are still received.
    let run = run.apart();
    let (receiving, opening) = receive::start(asked, &run)?;
    let path = directory.join(format!("{name}.vdif"));
    let sink = sink::open(
        path.to_str().context("the directory's name is not UTF-8")?,
        &Selection::default(),
        Files {
            durability: Durability::Kernel,
            force: true,
            run: run.clone(),
        },
    )?;
    let clock = run.clock().clone();
    let drainer = clock.spawn("sink", move || {
        let settings = deframe::Settings::default();
        drain::all(&opening, settings, sink, &run)
    })?;
    Ok(Sinked {
        name,
        receiving,
        drainer,
    })
}

/// Returns the URL of an address of the run's host, or of any free one.
fn url(address: Option<SocketAddr>, run: &Run) -> Result<Url> {
    let host = run.host().map(Host::address);
    let host = host.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let address = address.unwrap_or(SocketAddr::new(host, 0));
    match run.host() {
        Some(host) => Ok(host.network().to(address)),
        None => format!("udp://{address}")
            .parse()
            .map_err(|error: String| anyhow!(error)),
    }
}

fn sender(to: SocketAddr, input: Input, start: Nanos, sent: &Arc<Sent>, run: &Run) -> Result<Flow> {
    let to = url(Some(to), run)?;
    let outlet = to.open_out(&OutOptions::default(), run)?;
    let frame_length = input
        .frame_length
        .context("a simulated station has frames")?;
    let frame_rate = input.frame_rate.context("a simulated station has times")?;
    let rate = input.rate().context("a simulated station has a rate")?;
    let clock = Clock::Time(ByTime::new(frame_rate, input.keys.len()));
    let stream = Stream {
        rate: Some(rate),
        unit_bytes: frame_length as u64,
        wire_bytes: frame_length as u64,
        threads: vec![0],
        frame_rate: Some(frame_rate),
    };
    let interval = rate.due(frame_length as u64);
    let (source, _) = input.into_source(frame_length, 1, run)?;
    let options = FlowOptions {
        to: to.to_string(),
        frame_length,
        datagram_data: frame_length,
        vdif: true,
        frame_rate: Some(frame_rate),
        sequence: Some(0),
        stream: None,
        clock,
        start,
        end: None,
        // Several stations share a thread: sleeping matters more than precision to the microsecond.
        burst: train_length(interval).max(2),
        shed: Shed::new(Policy::None, 0, &stream)?,
        safe: None,
        shed_packets: false,
        replace: Replace::Nothing,
        replacement: Vec::new(),
    };
    Ok(Flow::new(source, outlet, options, Arc::clone(sent))?)
}

fn transmit_shown(
    options: &DemoOptions,
    flows: Vec<Flow>,
    sent: &[Arc<Sent>],
    receivers: &[Sinked],
    run: &Run,
) -> Result<Vec<SendReport>> {
    let worker = run.clock().spawn("transmit", {
        let run = run.clone();
        move || transmit::run(flows, &run)
    })?;
    let progress = run.progress(Some(options.duration.as_millis() as u64));
    let start = run.clock().now();
    let mut rate = Rate::from(start);
    running::watch(
        progress,
        || worker.is_finished(),
        || {
            let now = run.clock().now();
            let offset = sent.iter().map(|sent| sent.last().offset).sum();
            let (mut lost, mut expected) = (0, 0);
            for receiver in receivers {
                let counters = receiver.receiving.watch().last().counters;
                lost += counters.lost;
                expected += counters.expected;
            }
            let share = lost as f64 * 100.0 / f64::max(expected as f64, 1.0);
            let line = format!(
                "{} stations  {}  lost {} ({share:.3} %)",
                sent.len(),
                show_rate(rate.of(offset, now)),
                show_count(lost)
            );
            (now.since(start).0 / 1_000_000, line)
        },
        run.clock(),
    );
    Ok(worker.join())
}
