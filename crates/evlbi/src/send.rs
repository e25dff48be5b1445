//! `evlbi send`.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::pace::{ByRate, train_length};
use evlbi_core::packetise::{Family, Rule, payload_length};
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{self, Policy, Replace, Shed, Stream, wire_bytes, wire_bytes_of_segment};
use evlbi_core::time::Nanos;
use evlbi_net::cpu::{self, Waiting};
use evlbi_net::run::Run;
use evlbi_net::transmit::{self, Clock, Flow, FlowOptions, Outlet, SendReport, Sent};
use evlbi_net::udp::{MAX_SEGMENTS, Sender, SenderOptions};
use evlbi_wire::{fill, vtp};
use parking_lot::Mutex;
use serde::Serialize;

use crate::cli::{Burst, CutRule, SendArgs, SendReplace, UnitChoice};
use crate::host::HostOptions;
use crate::output;
use crate::progress::{Progress, interrupt};
use crate::recording;
use crate::source::Input;
use crate::steer;
use crate::units::{show_count, show_rate};
use crate::url::{Scheme, Url};

/// From making ready to the first departure.
const WAIT_FOR_START: Nanos = Nanos(20_000_000);
/// Random bytes of which each replaced datagram takes a piece of its own.
const RANDOM_BYTES: usize = 1 << 20;

/// A sender that is behind its schedule by so much says so while it sends.
const SHOWN_BEHIND: Nanos = Nanos(100_000_000);
/// A sender that falls short of its rate by more than this part says so at its end.
const SHORT: f64 = 0.01;

/// The result of `evlbi send`.
#[derive(Serialize)]
pub struct SendResult {
    schema: &'static str,
    source: String,
    to: String,
    /// MTU that the datagrams were made for, in bytes.
    mtu: Option<usize>,
    /// Bit rate asked for; none for --max.
    rate_asked_bps: Option<u64>,
    /// What was asked before, of a rate that was changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rates_before_bps: Vec<u64>,
    /// Bytes before the first whole frame of the file, which were not sent.
    leading_bytes: u64,
    /// Bytes at the end of the file that are no whole frame and were not sent.
    truncated_bytes: u64,
    /// Bytes of fill pattern that completed the last datagram of raw data.
    padded_bytes: u64,
    #[serde(flatten)]
    report: SendReport,
}

/// Sends until the source ends, the time is over or Ctrl-C.
pub fn run(args: &SendArgs) -> Result<()> {
    let prepared = prepare(args)?;
    let (mtu, padded) = (prepared.mtu, prepared.padded);
    let rates = Arc::clone(&prepared.rates);
    let (leading, truncated) = (prepared.leading, prepared.truncated);
    for (end, bytes) in [("first", leading), ("last", truncated)] {
        if bytes > 0 {
            say!(
                "evlbi: the {end} {bytes} bytes of {} are no whole frame and are not sent",
                args.source
            );
        }
    }
    let report = transmit_shown(prepared, args)?;
    let mut rates = rates.lock().clone();
    let result = SendResult {
        schema: "evlbi.send/1",
        source: args.source.clone(),
        to: args.to.to_string(),
        mtu,
        rate_asked_bps: rates.pop(),
        rates_before_bps: rates,
        leading_bytes: leading,
        truncated_bytes: truncated,
        padded_bytes: if args.to.scheme == Scheme::Tcp {
            0
        } else {
            padded
        },
        report,
    };
    output::print(args.json, &result, text)?;
    match result.report.error {
        Some(error) => bail!("sending to {} ended early: {error}", args.to),
        None => Ok(()),
    }
}

fn check_fit(policy: &Policy, replace: SendReplace) -> Result<()> {
    if matches!(policy, Policy::Fit(_)) && !matches!(replace, SendReplace::Nothing) {
        bail!(
            "fit: makes room only if nothing is sent in the place of what is shed; leave --replace out"
        );
    }
    Ok(())
}

/// A flow that is ready to go.
struct Prepared {
    flow: Flow,
    sent: Arc<Sent>,
    total: Option<u64>,
    mtu: Option<usize>,
    /// The rates that were asked for, one after the other.
    rates: Arc<Mutex<Vec<u64>>>,
    leading: u64,
    truncated: u64,
    padded: u64,
    /// Data of a datagram in bytes.
    datagram_data: usize,
}

fn prepare(args: &SendArgs) -> Result<Prepared> {
    check_fit(&args.shed, args.replace)?;
    let input = Input::open(&args.source, args.frame_rate, args.rate)?;
    let plain = matches!(args.cut, CutRule::Plain) || input.frame_length().is_none();
    let (clock, rate) = clock(args, &input, plain)?;
    let total = input
        .length()
        .map(|length| length.saturating_mul(args.repeat));
    let (mut outlets, segment) = connect(args, total)?;
    let (mtu, unit, datagram_data) = cut(args, &input, &outlets, plain)?;
    let (leading, truncated) = (input.leading(), input.truncated());
    let stream = Stream {
        rate,
        unit_bytes: match args.unit {
            UnitChoice::Frame => unit as u64,
            UnitChoice::Packet => datagram_data as u64,
        },
        wire_bytes: {
            let family = family(args.to.addresses().map_err(|e| anyhow!(e))?[0]);
            let datagram = match args.to.scheme {
                Scheme::Udp => wire_bytes(datagram_data + vtp::HEADER_LEN, family),
                Scheme::Pudp => wire_bytes(datagram_data, family),
                Scheme::Tcp => {
                    let whole = wire_bytes_of_segment(segment, family) * datagram_data as u64;
                    whole.div_ceil(segment as u64)
                }
            };
            match args.unit {
                UnitChoice::Frame => datagram * (unit / datagram_data) as u64,
                UnitChoice::Packet => datagram,
            }
        },
        // Data cut as bytes has no threads and times to choose by.
        threads: if plain { Vec::new() } else { threads(&input) },
        frame_rate: input.frame_rate().filter(|_| !plain),
    };
    let shed = Shed::new(args.shed.clone(), args.seed, &stream)?;
    let burst = burst(args.burst, rate, datagram_data);
    let vdif = input.is_vdif() && !plain;
    if plain && input.is_vdif() && args.repeat > 1 {
        bail!("frames cut as bytes cannot be re-timed; repeat without --cut plain");
    }
    let frame_rate = input.frame_rate();
    let key = input.keys().first().copied().unwrap_or_default();
    let first = shed::Unit::new(key, None, &[]);
    let (source, padded) = input.into_source(unit, args.repeat)?;
    let start = start(args.start);
    let sent = Sent::new();
    let rates = Arc::new(Mutex::new(rate.map(BitRate::get).into_iter().collect()));
    let mut changes = Changes {
        rates: Arc::clone(&rates),
        sent: Arc::clone(&sent),
        stream,
        policy: args.shed.clone(),
        replace: args.replace,
        seed: args.seed,
        burst: args.burst,
        datagram_data,
        has_rate: args.rate.is_some(),
    };
    changes.tell();
    steer::on_change(move |change| changes.take(change).map_err(|why| output::explain(&why)));
    let flow = Flow::new(
        source,
        std::mem::take(&mut outlets),
        FlowOptions {
            frame_length: unit,
            datagram_data,
            vdif,
            frame_rate,
            sequence: (args.to.scheme == Scheme::Udp).then_some(args.sequence),
            clock,
            start,
            end: args.duration.map(|duration| start.plus(duration.into())),
            burst,
            shed,
            shed_packets: args.unit == UnitChoice::Packet,
            replace: Replace::from(args.replace),
            replacement: replacement(args.replace, args.seed, first, datagram_data),
        },
        Arc::clone(&sent),
    )?;
    Ok(Prepared {
        flow,
        sent,
        total,
        mtu,
        rates,
        leading,
        truncated,
        padded,
        datagram_data,
    })
}

/// What has to be known to change a flow while it is sent.
struct Changes {
    rates: Arc<Mutex<Vec<u64>>>,
    sent: Arc<Sent>,
    stream: Stream,
    policy: Policy,
    replace: SendReplace,
    seed: u64,
    burst: Burst,
    datagram_data: usize,
    /// It leaves at a rate that was asked for, not by the times of its frames.
    has_rate: bool,
}

impl Changes {
    fn take(&mut self, change: &steer::Change) -> Result<()> {
        let rate: Option<BitRate> = change.rate.as_deref().map(str::parse).transpose()?;
        if rate.is_some() && !self.has_rate {
            bail!(
                "only a flow that was started with a --rate has one to change; this one leaves by the times in its frames, or as fast as it can"
            );
        }
        let policy = match &change.shed {
            Some(text) => text.parse()?,
            None => self.policy.clone(),
        };
        check_fit(&policy, self.replace)?;
        let stream = Stream {
            rate: rate.or(self.stream.rate),
            ..self.stream.clone()
        };
        // What fits depends on the rate.
        let is_new = change.shed.is_some() || matches!(policy, Policy::Fit(_));
        let shed = is_new
            .then(|| Shed::new(policy.clone(), self.seed, &stream))
            .transpose()?;
        let burst = burst(self.burst, rate, self.datagram_data);
        self.sent.change(transmit::Change {
            rate: rate.map(|rate| (ByRate::new(rate), burst)),
            shed,
        });
        if let Some(rate) = rate {
            let mut rates = self.rates.lock();
            rates.push(rate.get());
        }
        (self.policy, self.stream) = (policy, stream);
        self.tell();
        Ok(())
    }

    fn tell(&self) {
        steer::tell(|status| {
            let sending = status.sending.get_or_insert_default();
            sending.rate_asked_bps = self.stream.rate.map(BitRate::get);
            sending.shed_policy = self.policy.to_string();
        });
    }
}

/// When the first frame leaves.
fn start(asked: Option<jiff::Timestamp>) -> Nanos {
    let soon = cpu::now().plus(WAIT_FOR_START);
    let Some(asked) = asked else {
        return soon;
    };
    let ahead = asked.as_nanosecond() - i128::from(cpu::utc());
    match u64::try_from(ahead) {
        Ok(ahead) => cpu::now().plus(Nanos(ahead)).max(soon),
        Err(_) => {
            say!("evlbi: warning: --start {asked} is over, so the data leaves at once");
            soon
        }
    }
}

/// What sets the times, and the bit rate that comes of it.
fn clock(args: &SendArgs, input: &Input, plain: bool) -> Result<(Clock, Option<BitRate>)> {
    if args.max {
        return Ok((Clock::None, None));
    }
    if let Some(rate) = args.rate {
        return Ok((Clock::Rate(ByRate::new(rate)), Some(rate)));
    }
    let unknown = || match input.frame_length() {
        Some(_) => anyhow!(
            "the frame rate of {} cannot be told, so not when its frames are due: give --frame-rate N, or a --rate, or --max",
            args.source
        ),
        None => anyhow!(
            "{} is raw data (no frames of VDIF or Mark 5B are in it), which has no times: give a --rate, or --max",
            args.source
        ),
    };
    let frame_rate = input.frame_rate().ok_or_else(unknown)?;
    let rate = input.rate().ok_or_else(unknown)?;
    let clock = if plain || !input.is_vdif() {
        Clock::Rate(ByRate::new(rate))
    } else {
        Clock::Time(recording::by_time(frame_rate, input.keys()))
    };
    Ok((clock, Some(rate)))
}

/// What it leaves by, and the length of a segment in bytes where that is TCP.
fn connect(args: &SendArgs, total: Option<u64>) -> Result<(Vec<Outlet>, usize)> {
    let addresses = args.to.addresses().map_err(|error| anyhow!(error))?;
    if args.to.scheme == Scheme::Tcp {
        let connection = TcpStream::connect(addresses[0])
            .with_context(|| format!("cannot connect to {}", args.to))?;
        connection.set_nodelay(true)?;
        let segment = socket2::SockRef::from(&connection).tcp_mss()? as usize;
        let outlet = Outlet::tcp(connection, total.unwrap_or(u64::MAX))?;
        return Ok((vec![outlet], segment.max(1)));
    }
    let outlets = addresses
        .into_iter()
        .map(|address| open_sender(address, &args.to, args).map(Outlet::Udp));
    Ok((outlets.collect::<Result<_>>()?, 0))
}

fn open_sender(address: SocketAddr, url: &Url, args: &SendArgs) -> Result<Sender> {
    let mut options = SenderOptions {
        interface: url.interface.clone(),
        hops: url.ttl.and_then(|ttl| u8::try_from(ttl).ok()),
        max_segments: if args.no_gso { 1 } else { MAX_SEGMENTS },
        ..SenderOptions::default()
    };
    if let Some(buffer) = args.host.buffer {
        options.buffer = usize::try_from(buffer)?;
    }
    let sender = Sender::connect(address, &options)?;
    if let Some(remedy) = &sender.buffer().remedy {
        tracing::info!("send buffer: {remedy}");
    }
    Ok(sender)
}

fn family(address: SocketAddr) -> Family {
    if address.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    }
}

/// The MTU, the unit in which the source is read, and the data of a datagram.
fn cut(
    args: &SendArgs,
    input: &Input,
    outlets: &[Outlet],
    plain: bool,
) -> Result<(Option<usize>, usize, usize)> {
    let header = match args.to.scheme {
        Scheme::Udp => vtp::HEADER_LEN,
        Scheme::Pudp => 0,
        Scheme::Tcp => {
            let unit = input.frame_length().unwrap_or(8192);
            return Ok((None, unit, unit));
        }
    };
    let Some(Outlet::Udp(sender)) = outlets.first() else {
        bail!("no socket to send by");
    };
    let mtu = match args.mtu {
        Some(mtu) => mtu,
        None => sender
            .path_mtu()
            .context("cannot ask for the MTU of the route; give --mtu")?,
    };
    let family = family(sender.destination());
    if !plain {
        let frame = input.frame_length().unwrap_or(0);
        let data = payload_length(frame, mtu, family, header, Rule::Frames)?;
        if header == 0 && data < frame {
            bail!(
                "pudp:// carries whole frames, and {frame} bytes do not fit an MTU of {mtu}: without sequence numbers fragments cannot be put in order; use udp:// or a larger --mtu"
            );
        }
        return Ok((Some(mtu), frame, data));
    }
    let data = payload_length(8, mtu, family, header, Rule::Plain)?;
    Ok((Some(mtu), data, data))
}

fn threads(input: &Input) -> Vec<u16> {
    let mut threads: Vec<u16> = input.keys().iter().map(|key| key.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    threads
}

fn burst(choice: Burst, rate: Option<BitRate>, datagram: usize) -> u32 {
    match (choice, rate) {
        (Burst::Fixed(count), _) => count,
        (Burst::Auto, Some(rate)) => train_length(ByRate::new(rate).due(datagram as u64)),
        (Burst::Auto, None) => evlbi_core::pace::LONGEST_TRAIN,
    }
}

fn replacement(replace: SendReplace, seed: u64, first: shed::Unit, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    match replace {
        SendReplace::Nothing => bytes.clear(),
        SendReplace::Fill => fill::make(&mut bytes),
        SendReplace::Random => {
            bytes.resize(RANDOM_BYTES + length, 0);
            first.fill_random(seed, 0, &mut bytes);
        }
    }
    bytes
}

fn transmit_shown(prepared: Prepared, args: &SendArgs) -> Result<SendReport> {
    let stop = Run::silent();
    let interrupted = interrupt();
    let Prepared {
        flow,
        sent,
        total,
        datagram_data,
        ..
    } = prepared;
    let host = HostOptions::from(args.host.clone());
    let thread_stop = stop.clone();
    let worker = std::thread::Builder::new().name("transmit".into()).spawn(
        move || -> Result<SendReport> {
            host.ready_thread(Waiting::SleepThenSpin)?;
            transmit::run(vec![flow], &thread_stop)
                .into_iter()
                .next()
                .context("the flow left no report")
        },
    )?;
    steer::on_status({
        let sent = Arc::clone(&sent);
        move || tell(&sent, datagram_data, None)
    });
    let mut progress = Progress::new(total);
    let mut before = (0u64, std::time::Instant::now());
    let mut rate = 0.0;
    loop {
        // Looked at once more when it has ended: then the counts are the last.
        let has_ended = worker.is_finished();
        if interrupted.load(Ordering::Relaxed) {
            stop.stop();
        }
        if progress.is_due() || has_ended {
            let offset = sent.offset.load(Ordering::Relaxed);
            let datagrams = sent.datagrams.load(Ordering::Relaxed);
            let data = datagrams * datagram_data as u64;
            if !has_ended {
                rate = (data - before.0) as f64 * 8.0 / before.1.elapsed().as_secs_f64();
                before = (data, std::time::Instant::now());
            }
            tell(&sent, datagram_data, Some(rate));
            if has_ended {
                break;
            }
            let datagrams = show_count(datagrams);
            let mut line = format!("{}  {datagrams} datagrams", show_rate(rate));
            let behind = Nanos(sent.behind.load(Ordering::Relaxed));
            if behind >= SHOWN_BEHIND {
                line += &format!("  {:.1} s behind", behind.as_secs_f64());
            }
            progress.show(offset, &line);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    progress.finish();
    match worker.join() {
        Ok(report) => report,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Writes down what has been sent, at the rate of before if none is given.
fn tell(sent: &Sent, datagram_data: usize, rate: Option<f64>) {
    steer::tell(|status| {
        let sending = status.sending.get_or_insert_default();
        sending.rate_bps = rate.unwrap_or(sending.rate_bps);
        sending.offered = sent.offered.load(Ordering::Relaxed);
        sending.sent = sent.datagrams.load(Ordering::Relaxed);
        sending.shed = sent.shed.load(Ordering::Relaxed);
        sending.not_sent = sent.not_sent.load(Ordering::Relaxed);
        sending.bytes = sending.sent * datagram_data as u64;
        sending.behind_s = Nanos(sent.behind.load(Ordering::Relaxed)).as_secs_f64();
        sending.slips = sent.slips.load(Ordering::Relaxed);
    });
}

fn text(result: &SendResult) -> String {
    let report = &result.report;
    let policies = report.shedding_before.iter().chain([&report.shedding]);
    let policies = policies.map(|shed| format!("{}: {:.4} %", shed.policy, shed.fraction * 100.0));
    let mut pairs = vec![
        (
            "sent",
            format!(
                "{} datagrams of {} bytes of data",
                show_count(report.sent),
                report.datagram_data
            ),
        ),
        (
            "shed",
            format!(
                "{} datagrams, {}",
                show_count(report.shed),
                policies.collect::<Vec<String>>().join(", then ")
            ),
        ),
        (
            "not sent",
            format!(
                "{} datagrams dropped in this host",
                show_count(report.not_sent)
            ),
        ),
        (
            "data",
            format!(
                "{} bytes in {:.3} s",
                show_count(report.bytes),
                report.seconds
            ),
        ),
        ("rate", rate(result)),
        (
            "departures",
            format!(
                "{} back to back; late by {:.1} us on average, {:.1} us at most",
                report.burst, report.lateness_us.mean, report.lateness_us.max
            ),
        ),
    ];
    if let Some(short) = short(report) {
        pairs.push(("behind", short));
    }
    if let (Some(first), Some(last)) = (report.first_seq, report.last_seq) {
        pairs.push(("sequence", format!("{first} to {last}")));
    }
    if report.slips.count > 0 {
        pairs.push((
            "slipped",
            format!(
                "{} times, {:.3} s given up",
                report.slips.count, report.slips.seconds
            ),
        ));
    }
    if report.socket.refused > 0 {
        pairs.push((
            "refused",
            format!(
                "{} answers that nobody listens there",
                show_count(report.socket.refused)
            ),
        ));
    }
    output::lines(&pairs)
}

/// The rate that was sent, and the one that was asked for.
fn rate(result: &SendResult) -> String {
    let sent = show_rate(result.report.rate_bps);
    match result.rate_asked_bps {
        Some(asked) => format!("{sent} sent, {} asked for", show_rate(asked as f64)),
        None => format!("{sent} sent, as much as goes asked for"),
    }
}

/// How far the sender fell short of its schedule, if it did. What was shed on purpose is no part of that.
fn short(report: &SendReport) -> Option<String> {
    let part = report.behind_seconds / report.seconds.max(1e-9);
    (part > SHORT).then(|| {
        format!(
            "{:.3} s at the end, {:.1} % of the data that were due: this host or the connection could not keep up",
            report.behind_seconds,
            part * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use evlbi_net::transmit::{Frames, PatternSource, Source};
    use evlbi_wire::time::FrameRate;

    /// The first frames of a pattern: the flow ends with them, however long this process is kept from the processor.
    struct Few(PatternSource, usize);

    impl Source for Few {
        fn frames(&mut self) -> std::io::Result<Frames<'_>> {
            let frames = self.0.frames()?;
            Ok(Frames {
                bytes: &frames.bytes[..self.1.min(frames.bytes.len())],
                ..frames
            })
        }

        fn consume(&mut self, bytes: usize) {
            self.0.consume(bytes);
            self.1 -= bytes;
        }
    }

    /// What is said of a flow of 1 Mbit/s, 10 frames long, that should have begun so long ago.
    fn said_of_one_that_is_late(late: Nanos) -> SendResult {
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = nobody.local_addr().unwrap();
        let sender = Sender::connect(to, &SenderOptions::default()).unwrap();
        let frame_rate = FrameRate::new(100).unwrap();
        let rate = BitRate::new(1_000_000).unwrap();
        let source = PatternSource::new(72, 0, frame_rate, 1 << 20).unwrap();
        let source = Few(source, 10 * 72);
        let start = Nanos(cpu::now().0 - late.0);
        let stream = Stream {
            rate: Some(rate),
            unit_bytes: 72,
            wire_bytes: 72,
            threads: Vec::new(),
            frame_rate: Some(frame_rate),
        };
        let options = FlowOptions {
            frame_length: 72,
            datagram_data: 72,
            vdif: true,
            frame_rate: Some(frame_rate),
            sequence: Some(0),
            clock: Clock::Rate(ByRate::new(rate)),
            start,
            end: None,
            burst: 1,
            shed: Shed::new(Policy::None, 1, &stream).unwrap(),
            shed_packets: false,
            replace: Replace::Nothing,
            replacement: Vec::new(),
        };
        let outlets = vec![Outlet::Udp(sender)];
        let sent = Sent::new();
        let flow = Flow::new(Box::new(source), outlets, options, Arc::clone(&sent)).unwrap();
        let report = transmit::run(vec![flow], &Run::silent()).remove(0);
        assert_eq!(sent.slips.load(Ordering::Relaxed), report.slips.count);
        SendResult {
            schema: "evlbi.send/1",
            source: String::new(),
            to: String::new(),
            mtu: None,
            rate_asked_bps: Some(rate.get()),
            rates_before_bps: Vec::new(),
            leading_bytes: 0,
            truncated_bytes: 0,
            padded_bytes: 0,
            report,
        }
    }

    #[test]
    fn a_rate_that_is_missed_is_said() {
        // Less than the second that is given up, and more.
        let result = said_of_one_that_is_late(Nanos(900_000_000));
        let report = &result.report;
        assert!(report.behind_seconds > 0.1, "{report:?}");
        assert!(report.lateness_us.max >= 900_000.0, "{report:?}");
        let text = text(&result);
        assert!(text.contains("sent, 1.000 Mbit/s asked for"), "{text}");
        assert!(text.contains("s at the end"), "{text}");

        let report = said_of_one_that_is_late(Nanos(5_000_000_000)).report;
        assert!(
            report.slips.count >= 1 && report.slips.seconds >= 5.0,
            "{report:?}"
        );
        assert!(report.behind_seconds >= 5.0, "{report:?}");
    }
}
