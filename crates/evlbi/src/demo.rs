//! The demonstration: simulated stations stream in real time over loopback through a lossy relay into
//! recordings, and every number of the relay's truth is held against the receivers' accounts.

mod page;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::deframe::{self, Deframer, FrameState, Wanted};
use evlbi_core::pace::{ByTime, train_length};
use evlbi_core::path::Impairment;
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Policy, Replace, Shed, Stream};
use evlbi_core::time::Nanos;
use evlbi_fx::quantise::VanVleck;
use evlbi_fx::sky::{SkyPlan, StationPlan};
use evlbi_net::clock::Thread;
use evlbi_net::file::Durability;
use evlbi_net::receive::{self, Numbers, ReceiveOptions, ReceiveReport, Receiving};
use evlbi_net::relay::{Relay, RelayFlow, RelayReport};
use evlbi_net::run::{Run, explain};
use evlbi_net::sim::Host;
use evlbi_net::transmit::{self, Clock, Flow, FlowOptions, SendReport, Sent};
use evlbi_net::transport::{InOptions, Local, OutOptions, Url};
use evlbi_wire::time::FrameRate;
use serde::Serialize;

pub use self::page::Page;
use evlbi_correlate::{CorrelateOptions, Hertz, Recordings, Stretch};
use evlbi_stream::control_socket::Rate;
use evlbi_stream::counters::Counted;
use evlbi_stream::drain::{self, Drained};
use evlbi_stream::recording::{self, Blocks};
use evlbi_stream::running;
use evlbi_stream::sink::{self, Files};
use evlbi_stream::source::{self, Input};
use evlbi_wire::units::{show_count, show_rate};

/// Bit rate of a station where none is asked for.
const RATE: BitRate = BitRate::new(256_000_000).unwrap();
/// Payload of a frame in bytes; with its header it fits a jumbo frame of Ethernet.
const PAYLOAD: usize = 8000;
/// Samples in a frame: four of two bits in a byte.
const SAMPLES: u64 = PAYLOAD as u64 * 4;
/// Rounds of noise in a second: each round is made beforehand and sent again and again.
const ROUNDS: u64 = 4;
/// Packets that overtake one that is held back.
const DISTANCE: u32 = 4;
/// When the stations begin, from now.
const SOON: Nanos = Nanos(100_000_000);
/// How long the kernel may still be passing on what the relay sent last.
const SETTLING: Duration = Duration::from_millis(500);
/// Seconds of the recordings that are correlated.
const CORRELATED: f64 = 4.0;
const STATIONS: [&str; 16] = [
    "Ef", "Jb", "On", "Mc", "Tr", "Wb", "Nt", "Hh", "Ys", "Sv", "Zc", "Bd", "Ur", "Sh", "Ir", "Cm",
];

/// What the stations stream, and what the relay does to it.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Number of stations, 1 to 16.
    pub stations: u32,
    /// Bit rate of each station's data.
    pub rate: BitRate,
    /// How long they stream.
    pub duration: Duration,
    /// Fraction of the packets that the relay loses.
    pub loss: f64,
    /// Fraction that it sends twice.
    pub duplicate: f64,
    /// Fraction that it holds back behind later ones.
    pub reorder: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Directory for the recordings; they are not kept if none.
    pub out: Option<PathBuf>,
    /// Whether stations are shown on a page that stream to a live correlator meanwhile.
    pub page: bool,
    /// Whether that page is to stay, so that nothing is done without it.
    pub keep: bool,
}

impl Default for DemoOptions {
    fn default() -> DemoOptions {
        DemoOptions {
            stations: 3,
            rate: RATE,
            duration: Duration::from_secs(20),
            loss: 0.01,
            duplicate: 0.001,
            reorder: 0.001,
            seed: 1,
            out: None,
            page: false,
            keep: false,
        }
    }
}

/// The result of `evlbi demo`.
#[derive(Serialize)]
pub struct DemoResult {
    schema: &'static str,
    stations: Vec<StationResult>,
    /// Every number below was compared, and all of them agree.
    pub accounting_agrees: bool,
    /// The fringes of the first seconds of the recordings.
    baselines: Vec<BaselineCheck>,
    rate_bps: f64,
    seconds: f64,
    impairment: Impairment,
    seed: u64,
    directory: Option<PathBuf>,
    /// Whether Ctrl-C came before the stations were done.
    interrupted: bool,
}

/// A baseline of the recordings: what the plan and the losses let expect, and what the correlator finds.
#[derive(Serialize)]
struct BaselineCheck {
    stations: [String; 2],
    amplitude_expected: f64,
    amplitude_found: f64,
    weight_expected: f64,
    weight_found: f64,
    snr_expected: f64,
    snr_found: f64,
}

/// One station, from its sender to its recording.
#[derive(Serialize)]
struct StationResult {
    station: String,
    checks: Vec<Check>,
    sent: Counted<SendReport>,
    relay: RelayReport,
    received: Counted<ReceiveReport>,
    recording: RecordingReport,
}

/// A number known in two places.
#[derive(Serialize)]
struct Check {
    what: &'static str,
    truth: u64,
    found: u64,
    /// How far they may differ: by as many datagrams as the sockets dropped of which nobody knows which
    /// they were. Zero where nothing was dropped.
    within: u64,
    agrees: bool,
}

/// What is found in the recording when it is read again.
#[derive(Default, Serialize)]
struct RecordingReport {
    #[serde(skip)]
    file: PathBuf,
    /// Its name, if it is kept.
    path: Option<PathBuf>,
    bytes: u64,
    frames: u64,
    invalid: u64,
    /// Frames whose time is not one frame after the one before.
    out_of_step: u64,
}

/// Runs the demonstration. Its page, where one was wanted and can be shown, ends with what is returned.
///
/// # Errors
/// When the stations cannot stream, or were stopped before they did.
pub fn demonstrate(options: &DemoOptions, run: &Run) -> Result<(DemoResult, Option<Page>)> {
    if options.duration.is_zero() {
        bail!("--duration is how long the stations stream; give more than zero");
    }
    let temporary;
    let directory = match &options.out {
        Some(directory) => {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
            directory.as_path()
        }
        None => {
            temporary = Temporary::new("demo")?;
            &temporary.0
        }
    };
    let page = match options.page.then(|| Page::start(options, run)).transpose() {
        Ok(page) => page,
        Err(error) if options.keep => return Err(error.context("the page cannot be shown")),
        Err(error) => {
            let why = explain(error.as_ref());
            run.say(format_args!("the page cannot be shown: {why}"));
            None
        }
    };
    let count = options.stations;
    run.line(format_args!("making the noise of {count} stations"));
    let stations = make_stations(options, run)?;
    let impairment = Impairment {
        loss: options.loss,
        duplicate: options.duplicate,
        reorder: options.reorder,
        distance: DISTANCE,
    };
    if run.is_stopped() {
        bail!("interrupted before the stations streamed");
    }
    let frame_rate = stations.first().and_then(|(_, input)| input.frame_rate);
    let frame_rate = frame_rate.context("no stations")?;
    let streamed = stream(options, stations, impairment, directory, run)?;
    let result = compare(options, streamed, frame_rate, impairment, run)?;
    Ok((result, page))
}

/// A directory that goes when the program ends.
struct Temporary(PathBuf);

impl Temporary {
    fn new(what: &str) -> Result<Temporary> {
        let path = std::env::temp_dir().join(format!("evlbi-{what}-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The stations' noise, made beforehand.
fn make_stations(options: &DemoOptions, run: &Run) -> Result<Vec<(String, Input)>> {
    let frame_length = PAYLOAD as u64 + 32;
    let per_round = (options.rate.get() / (8 * frame_length * ROUNDS)).max(1);
    let frame_rate = per_round * ROUNDS;
    if frame_rate >= 1 << 24 {
        let rate = options.rate;
        bail!("--rate {rate} is more than VDIF frames can be numbered for");
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
    // All of them begin before the first is joined.
    let makers = makers.collect::<io::Result<Vec<Thread<_>>>>()?;
    makers.into_iter().map(Thread::join).collect()
}

/// Everything that came of a station's stream.
struct Streamed {
    name: String,
    sent: SendReport,
    relay: RelayReport,
    received: ReceiveReport,
    drained: Drained,
}

/// One station's receiving end.
struct Sinked {
    name: String,
    receiving: Receiving,
    drainer: Thread<Drained>,
}

fn stream(
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
    // Receivers take what their sockets hold, and end. No silence ends them, because a busy host may hold up the stations for any time.
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
        with: InOptions {
            // So that drops of the socket count single datagrams.
            single: true,
            ..InOptions::default()
        },
        numbering: Box::new(Numbers),
        wanted: Wanted::default(),
        window: 16 << 20,
        // A relay that is held up makes nothing late.
        hold: Duration::from_secs(60),
        ring: 64 << 20,
        idle: None,
        duration: None,
        cpu: None,
        priority: None,
    };
    // What the relay still passes on when the run is stopped is received.
    let run = run.apart();
    let (receiving, opening) = receive::start(asked, &run)?;
    let path = directory.join(format!("{name}.vdif"));
    let sink = sink::open(
        path.to_str().context("the directory's name is not UTF-8")?,
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

/// The URL of an address of the run's host, or of any that is free.
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
    let (source, _) = input.into_source(frame_length, 1, run.clock())?;
    let options = FlowOptions {
        frame_length,
        datagram_data: frame_length,
        vdif: true,
        frame_rate: Some(frame_rate),
        sequence: Some(0),
        stream: None,
        clock,
        start,
        end: None,
        // Several stations share a thread: better asleep than exact to the microsecond.
        burst: train_length(interval).max(2),
        shed: Shed::new(Policy::None, 0, &stream)?,
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

fn compare(
    options: &DemoOptions,
    streamed: Vec<Streamed>,
    frame_rate: FrameRate,
    impairment: Impairment,
    run: &Run,
) -> Result<DemoResult> {
    let interrupted = run.is_stopped();
    let mut stations = Vec::new();
    for streamed in streamed {
        let recording = read_again(&streamed.drained, frame_rate, options.out.is_some())?;
        stations.push(StationResult {
            checks: checks(&streamed, &recording),
            station: streamed.name,
            sent: streamed.sent.into(),
            relay: streamed.relay,
            received: streamed.received.into(),
            recording,
        });
    }
    let seconds = stations.iter().map(|station| station.sent.seconds);
    let mut checks = stations.iter().flat_map(|station| &station.checks);
    Ok(DemoResult {
        schema: "evlbi.demo/1",
        accounting_agrees: checks.all(|check| check.agrees),
        rate_bps: stations.iter().map(|station| station.sent.rate_bps).sum(),
        seconds: seconds.fold(0.0, f64::max),
        impairment,
        baselines: match interrupted {
            true => Vec::new(),
            false => correlate(&stations, frame_rate, run)?,
        },
        interrupted,
        seed: options.seed,
        directory: options.out.clone(),
        stations,
    })
}

/// Correlates the recordings, if there are two of which something arrived.
fn correlate(
    stations: &[StationResult],
    frame_rate: FrameRate,
    run: &Run,
) -> Result<Vec<BaselineCheck>> {
    let arrived = |station: &&StationResult| station.recording.frames > station.recording.invalid;
    let arrived: Vec<&StationResult> = stations.iter().filter(arrived).collect();
    if arrived.len() < 2 {
        return Ok(Vec::new());
    }
    run.line(format_args!("correlating the recordings"));
    let paths: Vec<String> = arrived
        .iter()
        .filter_map(|station| Some(station.recording.file.to_str()?.to_owned()))
        .collect();
    let options = CorrelateOptions {
        sample_rate: Some(Hertz(f64::from(frame_rate.get()) * SAMPLES as f64)),
        stretch: Stretch::First(CORRELATED),
        ..CorrelateOptions::default()
    };
    let recordings = Recordings::open(&paths, &options, run)?;
    let found = evlbi_correlate::correlate(&recordings, &options, run, &mut ())?;
    if found.interrupted {
        return Ok(Vec::new());
    }
    let Some(codec) = recordings.layout(0).map(|layout| layout.codec) else {
        return Ok(Vec::new());
    };
    let amplitude = VanVleck::between(codec, codec).correlated(SkyPlan::default().correlation);
    let whole = |name: &str| {
        let station = arrived.iter().find(|station| station.station == name);
        station.map_or(0.0, |station| {
            1.0 - station.recording.invalid as f64 / station.recording.frames as f64
        })
    };
    let baselines = found.fringes().into_iter().map(|baseline| {
        let weight: f64 = baseline.stations.iter().map(|name| whole(name)).product();
        BaselineCheck {
            amplitude_expected: amplitude,
            amplitude_found: baseline.amplitude.valid,
            weight_expected: weight,
            weight_found: baseline.weight,
            snr_expected: amplitude * (weight * found.parts() as f64).sqrt(),
            snr_found: baseline.snr,
            stations: baseline.stations,
        }
    });
    Ok(baselines.collect())
}

/// Every number that is known in two places, those of the sockets included.
///
/// A datagram that a socket dropped makes a loss, or takes the duplicate away that it would have been; at
/// the very beginning or end of the stream nobody misses it. So the sum of these is exact, and duplicates
/// and reordering agree within the number of drops.
fn checks(streamed: &Streamed, recording: &RecordingReport) -> Vec<Check> {
    let (sent, relay, received) = (&streamed.sent, &streamed.relay, &streamed.received);
    let truth = &relay.truth;
    let counters = &received.account.counters;
    let before_the_path = relay.socket_drops + sent.live.not_sent;
    let behind_the_path = relay.not_sent + received.live.socket_drops + counters.ring_full;
    let unknown = before_the_path + behind_the_path;
    let near = |what, truth: u64, found: u64, within| Check {
        what,
        truth,
        found,
        within,
        agrees: truth.abs_diff(found) <= within,
    };
    let equal = |what, truth, found| near(what, truth, found, 0);
    let between = sent.live.offered - truth.lost_before - truth.lost_after;
    let missed = between.saturating_sub(counters.expected);
    let not_doubled = truth.duplicates.saturating_sub(counters.duplicates);
    let (live, attribution) = (&received.live, &received.attribution);
    let in_sockets = live
        .socket_drops_within
        .min(counters.lost - counters.ring_full);
    let lost_frames = streamed.drained.frames.counts.lost_frames;
    let mut checks = vec![
        equal(
            "sent = entered the relay + dropped before",
            sent.live.offered,
            truth.offered + before_the_path,
        ),
        equal(
            "left the relay = received + dropped behind",
            truth.delivered + truth.duplicates,
            counters.received - counters.ring_full + behind_the_path,
        ),
        near(
            "expected = sent - lost before the first and after the last",
            between,
            counters.expected,
            unknown,
        ),
        equal(
            "expected = unique + lost",
            counters.expected,
            counters.unique + counters.lost,
        ),
        equal(
            "lost by the path + dropped = lost (+ not doubled, not missed)",
            truth.lost + unknown,
            counters.lost + not_doubled + missed,
        ),
        equal(
            "dropped at the socket + ring full = lost in this host",
            in_sockets + counters.ring_full,
            attribution.host_lost,
        ),
        equal(
            "lost = in this host + in the network + unattributed",
            counters.lost,
            attribution.host_lost + attribution.network_lost + attribution.unattributed,
        ),
        near("duplicates", truth.duplicates, counters.duplicates, unknown),
        near("reordered", truth.reordered, counters.reordered, unknown),
        equal("foreign", 0, live.foreign() + relay.foreign),
        equal(
            "datagrams lost + late = frames lost",
            counters.lost + counters.late,
            lost_frames,
        ),
        equal(
            "expected = frames in the recording",
            counters.expected,
            recording.frames,
        ),
        equal(
            "frames lost = invalid frames in the recording",
            lost_frames,
            recording.invalid,
        ),
        equal(
            "frames out of step in the recording",
            0,
            recording.out_of_step,
        ),
    ];
    if unknown == 0 {
        let runs = |runs: &BTreeMap<u64, u64>| runs.values().sum();
        checks.push(Check {
            what: "runs of loss, length by length",
            truth: runs(&truth.runs),
            found: runs(&received.account.runs),
            within: 0,
            agrees: truth.runs == received.account.runs,
        });
    }
    checks
}

/// Reads a recording again, as anyone else would.
fn read_again(drained: &Drained, frame_rate: FrameRate, keep: bool) -> Result<RecordingReport> {
    let Some(file) = drained.sink.files.first() else {
        return Ok(RecordingReport::default());
    };
    let mut report = RecordingReport {
        file: file.path.clone(),
        path: keep.then(|| file.path.clone()),
        bytes: file.bytes,
        ..RecordingReport::default()
    };
    let mut deframer = Deframer::new(deframe::Settings {
        frame_rate: Some(frame_rate),
        ..deframe::Settings::default()
    });
    let mut last = None;
    Blocks::new(recording::open(&file.path)?, file.bytes).walk(&mut deframer, |chunk| {
        for frame in chunk.frames {
            report.frames += 1;
            report.invalid += u64::from(frame.state == FrameState::SourceInvalid);
            let index = frame.time.map(|time| time.index(frame_rate));
            let in_step = last.is_none_or(|last: i64| index == Some(last + 1));
            report.out_of_step += u64::from(!in_step);
            last = index;
        }
    })?;
    Ok(report)
}

/// The same for people.
pub fn text(result: &DemoResult) -> String {
    let mut shown = String::new();
    for station in &result.stations {
        shown += &format!("{}\n", station.station);
        for check in &station.checks {
            shown += &format!(
                "  {:<60} {:>12} {} {:>12}\n",
                check.what,
                show_count(check.truth),
                match (check.agrees, check.truth == check.found) {
                    (true, true) => "=",
                    (true, false) => "≈",
                    (false, _) => "≠",
                },
                show_count(check.found),
            );
        }
    }
    if !result.baselines.is_empty() {
        let found = "found";
        shown += &format!(
            "\n{:<10} {:>18} {found:>9} {:>18} {found:>9} {:>14} {found:>9}\n",
            "baseline", "amplitude expected", "weight expected", "SNR expected",
        );
    }
    for baseline in &result.baselines {
        shown += &format!(
            "{:<10} {:>18.5} {:>9.5} {:>18.5} {:>9.5} {:>14.1} {:>9.1}\n",
            baseline.stations.join("-"),
            baseline.amplitude_expected,
            baseline.amplitude_found,
            baseline.weight_expected,
            baseline.weight_found,
            baseline.snr_expected,
            baseline.snr_found,
        );
    }
    let stations = result.stations.iter();
    let count: usize = stations.map(|station| station.checks.len()).sum();
    shown += &format!(
        "\n{} stations, {} for {:.1} s. ",
        result.stations.len(),
        show_rate(result.rate_bps),
        result.seconds
    );
    let dropped = result.stations.iter().map(|station| {
        station.relay.socket_drops + station.relay.not_sent + station.received.live.socket_drops
    });
    let dropped: u64 = dropped.sum();
    if dropped > 0 {
        shown += &format!(
            "This host's sockets dropped {} datagrams: numbers marked ≈ agree within that. ",
            show_count(dropped)
        );
    }
    shown
        + &match result.accounting_agrees {
            true => {
                format!(
                    "All {count} numbers of the relay's truth and the receivers' accounts agree."
                )
            }
            false => "Some numbers do not agree (marked ≠).".to_owned(),
        }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use evlbi_net::clock::Clock as Time;
    use evlbi_net::sim::Network;
    use evlbi_testkit::Room;
    use serde_json::Value;

    use super::*;

    /// One of which nothing arrives ends all the same, and says so.
    #[test]
    fn nothing_may_arrive() {
        let room = Room::new();
        let clock = Time::simulated(1_800_000_000 * Nanos::SECOND.0);
        let network = Network::new(&clock, &[], 9000, 1);
        let options = DemoOptions {
            stations: 1,
            rate: BitRate::new(8_000_000).unwrap(),
            duration: Duration::from_secs(1),
            loss: 1.0,
            out: Some(room.folder().to_owned()),
            ..DemoOptions::default()
        };
        let run = Run::silent().on(&network.near(1));
        let (result, _) = clock.simulate(|| demonstrate(&options, &run)).unwrap();
        let result = serde_json::to_value(&result).unwrap();
        let station = &result["stations"][0];
        let sent = of(station, "/sent/sent");
        assert!(sent > 0 && of(station, "/relay/truth/offered") == sent);
        assert_eq!(of(station, "/received/received"), 0);
        assert_eq!(of(station, "/recording/frames"), 0);
    }

    /// What a demonstration says.
    fn of(result: &Value, at: &str) -> u64 {
        result.pointer(at).unwrap().as_u64().unwrap()
    }

    /// The numbers that were sent to each port, in order.
    fn sent_to(log: &str) -> BTreeMap<SocketAddr, Vec<u64>> {
        let mut sent = BTreeMap::<SocketAddr, Vec<u64>>::new();
        for line in log.lines() {
            let Some((_, what)) = line.split_once(" sends ") else {
                continue;
            };
            let (number, _) = what.split_once(',').unwrap();
            let (_, to) = what.rsplit_once(' ').unwrap();
            let numbers = sent.entry(to.parse().unwrap()).or_default();
            numbers.push(number.parse().unwrap());
        }
        sent
    }

    /// All numbers of a demonstration in virtual time are those of the network's log, whatever the relay does.
    #[test]
    fn all_numbers_agree_in_virtual_time() {
        for seed in 0..3 {
            let clock = Time::simulated(1_800_000_000 * Nanos::SECOND.0);
            clock.keep_log();
            let network = Network::new(&clock, &[], 9000, seed);
            let options = DemoOptions {
                stations: 2,
                rate: BitRate::new(8_000_000).unwrap(),
                duration: Duration::from_secs(3),
                loss: 0.02 * (seed + 1) as f64,
                duplicate: 0.01,
                reorder: 0.02,
                seed,
                ..DemoOptions::default()
            };
            let run = Run::silent().on(&network.near(1));
            let (result, _) = clock.simulate(|| demonstrate(&options, &run)).unwrap();
            assert!(result.accounting_agrees && !result.interrupted, "{seed}");
            let result = serde_json::to_value(&result).unwrap();
            let stations = result["stations"].as_array().unwrap();
            // What a relay receives is whole and in order; ports are given in the stations' order.
            let is_whole = |numbers: &Vec<u64>| numbers.iter().copied().eq(0..numbers.len() as u64);
            let ports = sent_to(&clock.take_log()).into_values();
            let (before, behind): (Vec<_>, Vec<_>) = ports.partition(is_whole);
            assert_eq!([before.len(), behind.len()], [stations.len(); 2]);
            for ((station, before), behind) in stations.iter().zip(before).zip(behind) {
                let (mut came, mut reordered) = (BTreeSet::new(), 0);
                for number in &behind {
                    let is_late = came.last().is_some_and(|last| last > number);
                    reordered += u64::from(came.insert(*number) && is_late);
                }
                let expected = came.last().unwrap() - came.first().unwrap() + 1;
                let (received, unique) = (behind.len() as u64, came.len() as u64);
                let lost = expected - unique;
                for (at, number) in [
                    ("/sent/offered", before.len() as u64),
                    ("/relay/truth/delivered", unique),
                    ("/received/received", received),
                    ("/received/unique", unique),
                    ("/received/duplicates", received - unique),
                    ("/received/reordered", reordered),
                    ("/received/expected", expected),
                    ("/received/lost", lost),
                    ("/received/network_lost", lost),
                    ("/recording/frames", expected),
                    ("/recording/invalid", lost),
                    ("/recording/out_of_step", 0),
                ] {
                    assert_eq!(of(station, at), number, "{seed}: {at}");
                }
                assert!(lost > 0 && reordered > 0 && received > unique, "{seed}");
            }
        }
    }
}
