//! `evlbi recv`.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::account::{self, Attribution, FreeRuns};
use evlbi_core::deframe::{self, Partial};
use evlbi_net::file::Durability;
use evlbi_net::host;
use evlbi_net::receive::{
    self, Ended, Numbering, Numbers, Opening, ReceiveOptions, ReceiveReport, Receiving,
};
use evlbi_net::socket::GrantedBuffer;
use evlbi_net::udp::{Listen, ReceiverOptions};
use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::{Gaps, SequenceGap, TimeGap};
use serde::Serialize;

use crate::cli::{FsyncChoice, PartialChoice, RecvArgs};
use crate::drain::{self, Drained, Straight};
use crate::numbering::FrameNumbers;
use crate::output;
use crate::progress::{Progress, interrupt};
use crate::recording;
use crate::sink::{self, Sink, SinkReport};
use crate::units::{show_count, show_rate, show_size};
use crate::url::Scheme;

/// Least memory of the ring.
const LEAST_RING: u64 = 64 << 20;
/// Memory of the ring where nothing is said.
const USUAL_RING: u64 = 256 << 20;
/// The window where nothing is said.
const USUAL_WINDOW: u64 = 64 << 20;
/// Bytes between two calls that force data onto the disk.
const OFTEN: u64 = 256 << 20;
/// Bytes read from a TCP stream at a time.
const TCP_BLOCK: usize = 1 << 20;
/// Intervals of loss in the result; the gaps file has all of them.
const INTERVALS_SHOWN: usize = 1000;

/// The result of `evlbi recv`. Counts are datagrams between the first and the last number seen, unless said;
/// docs/counters defines each.
#[derive(Serialize)]
pub struct RecvResult {
    schema: &'static str,
    from: String,
    to: String,
    pub expected: u64,
    pub received: u64,
    pub unique: u64,
    pub lost: u64,
    pub host_lost: u64,
    pub network_lost: u64,
    pub unattributed: u64,
    host_lost_max: u64,
    pub ring_full: u64,
    pub duplicates: u64,
    pub reordered: u64,
    pub late: u64,
    pub foreign: u64,
    foreign_size: u64,
    foreign_source: u64,
    foreign_sequence: u64,
    foreign_header: u64,
    restarts: u64,
    pub first_seq: Option<u64>,
    pub last_seq: Option<u64>,
    /// Frames in the recording.
    frames: u64,
    /// Frames in the recording that are marked invalid, by their source or because they were lost.
    invalid: u64,
    /// Frames that did not come whole: invalid, or kept in part.
    pub lost_frames: u64,
    partial_frames: u64,
    odd_headers: u64,
    ambiguous_frames: u64,
    trimmed_bytes: u64,
    format: Option<deframe::Format>,
    frame_length: Option<usize>,
    frame_rate: Option<FrameRate>,
    /// Bytes of data that arrived for the first time.
    pub bytes: u64,
    seconds: f64,
    pub rate_bps: f64,
    datagram_data: Option<usize>,
    /// Runs of consecutive lost datagrams.
    runs: Vec<Run>,
    runs_not_listed: u64,
    /// Reordering extents (RFC 4737, section 4.2), in arrivals.
    extents: Vec<Run>,
    extents_not_listed: u64,
    /// n-reordered datagrams (RFC 4737, section 5.3).
    n_reordered: Vec<Run>,
    /// Gaps between reordering discontinuities (RFC 4737, section 4.5), in arrivals.
    reordering_gaps: Vec<Run>,
    reordering_gaps_not_listed: u64,
    /// Reordering-free runs (RFC 4737, section 4.6).
    free_runs: FreeRuns,
    /// Intervals of loss in sequence numbers, the first thousand; all are in the gaps file.
    intervals: Vec<SequenceGap>,
    intervals_not_listed: u64,
    /// The first thousand runs of missing frames; all are in the gaps file.
    time_gaps: Vec<TimeGap>,
    segments: Vec<Ends>,
    segments_not_listed: u64,
    sender: Option<String>,
    first_arrival: Option<f64>,
    last_arrival: Option<f64>,
    socket_drops: u64,
    socket_drops_within: u64,
    most_joined: u64,
    buffer: Option<GrantedBuffer>,
    /// Memory of the ring, and how far a late datagram may lie behind the newest, in bytes of data; none over
    /// TCP.
    ring_bytes: Option<usize>,
    window_bytes: Option<u64>,
    host: Option<HostDelta>,
    gaps_file: Option<PathBuf>,
    cpu_seconds: f64,
    ended: Ended,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    sink: SinkReport,
}

/// So many runs (or packets) of a length (or extent).
#[derive(Serialize)]
struct Run {
    length: u64,
    count: u64,
}

/// First and last number of a sequence.
#[derive(Serialize)]
struct Ends {
    first_seq: u64,
    last_seq: u64,
}

/// What this host's own counters say of the time of the run, all programs together.
#[derive(Serialize)]
struct HostDelta {
    udp: host::Udp,
    udp6: host::Udp,
    softnet_dropped: u64,
}

/// Receives until the stream ends, the time is over or Ctrl-C.
pub fn run(args: &RecvArgs) -> Result<()> {
    let settings = settings(args)?;
    check_outputs(args)?;
    // From here on Ctrl-C ends with everything written.
    interrupt();
    let result = if args.from.scheme == Scheme::Tcp {
        receive_tcp(args, settings)?
    } else {
        receive_datagrams(args, settings)?
    };
    output::print(args.json, &result, text)?;
    if let (Some(length), Some(deframe::Format::Raw)) = (args.frame, result.format) {
        eprintln!(
            "evlbi: no frames of --frame {length} bytes were found, so the data was recorded as it came; leave --frame out to have the length learnt"
        );
    }
    if result.foreign_header > 0 {
        eprintln!(
            "evlbi: {} datagrams were of a station, thread or time that was not there when the stream began, and are not recorded",
            show_count(result.foreign_header)
        );
    }
    if let Some(error) = result.error.as_ref().or(result.sink.write_error.as_ref()) {
        bail!("{error}");
    }
    if result
        .sink
        .check
        .as_ref()
        .is_some_and(|check| check.corrupted > 0)
    {
        bail!("the test pattern did not arrive as it was sent");
    }
    Ok(())
}

/// What is known beforehand of the frames of a stream.
pub fn settings(args: &RecvArgs) -> Result<deframe::Settings> {
    let frame_rate = match args.frame_rate {
        Some(rate) => {
            Some(FrameRate::new(rate).ok_or_else(|| anyhow!("--frame-rate is at least 1"))?)
        }
        None => None,
    };
    Ok(deframe::Settings {
        frame_length: args.frame,
        frame_rate,
        partial: match args.partial {
            PartialChoice::Invalid => Partial::Whole,
            PartialChoice::Keep => Partial::Keep,
        },
        reference: recording::now(),
        ..deframe::Settings::default()
    })
}

/// Nothing that is there already may be lost, whatever the files are called.
fn check_outputs(args: &RecvArgs) -> Result<()> {
    let recording = match args.to.as_str() {
        "null" | "check" => None,
        to if to.contains('{') => {
            if let Some(file) = sink::split_there(to)
                && !args.force
            {
                bail!(
                    "{} exists and may be one of the files that {to} is split into; give --force to overwrite it",
                    file.display()
                );
            }
            None
        }
        to => Some(Path::new(to)),
    };
    let gaps = gaps_path(args);
    output::check_new(recording.into_iter().chain(gaps.as_deref()), args.force)
}

/// Opened once the sockets are: a port in use must not cost an older recording.
fn open_sink(args: &RecvArgs) -> Result<Sink> {
    Sink::open(&args.to, durability(args.fsync))
}

/// In one piece, so that a program that waits for the line reads all of it.
pub fn say_listening(address: SocketAddr) {
    let line = format!("listening on {address}\n");
    eprint!("{line}");
}

fn durability(choice: FsyncChoice) -> Durability {
    match choice {
        FsyncChoice::None => Durability::Kernel,
        FsyncChoice::End => Durability::End,
        FsyncChoice::Often => Durability::Every(OFTEN),
    }
}

fn receive_datagrams(args: &RecvArgs, settings: deframe::Settings) -> Result<RecvResult> {
    let before = host::Counters::read().ok();
    let options = options(args, settings.frame_rate)?;
    let sizes = (options.ring, options.window);
    let (receiving, opening) = receive::start(options)?;
    let sink = open_sink(args)?;
    for address in receiving.addresses() {
        say_listening(*address);
    }
    if let Some(remedy) = receiving.buffer().and_then(|buffer| buffer.remedy.as_ref()) {
        eprintln!("evlbi: {remedy}");
    }
    let (report, drained) = watch(args, receiving, opening, settings, sink)?;
    let host = before.and_then(|before| {
        let delta = host::Counters::read().ok()?.since(&before);
        Some(HostDelta {
            softnet_dropped: delta.softnet.iter().map(|core| core.dropped).sum(),
            udp: delta.udp,
            udp6: delta.udp6,
        })
    });
    finish(args, report, drained, host, Some(sizes))
}

/// How a stream is received.
pub fn options(args: &RecvArgs, frame_rate: Option<FrameRate>) -> Result<ReceiveOptions> {
    let numbering: Box<dyn Numbering> = match args.from.scheme {
        Scheme::Pudp => Box::new(FrameNumbers::new(frame_rate)),
        _ => Box::new(Numbers),
    };
    let listen = args
        .from
        .addresses()
        .map_err(|error| anyhow!(error))?
        .into_iter()
        .map(|address| Listen {
            address,
            source: args.from.source,
            interface: args.from.interface.clone(),
        })
        .collect();
    let mut socket = ReceiverOptions {
        join: !args.no_gro,
        stamps: true,
        ..ReceiverOptions::default()
    };
    if let Some(buffer) = args.host.buffer {
        socket.buffer = usize::try_from(buffer)?;
    }
    let (ring, window) = match (args.ring, args.window) {
        (Some(ring), window) => (ring, window.unwrap_or(USUAL_WINDOW.min(ring / 4))),
        (None, window) => {
            let window = window.unwrap_or(USUAL_WINDOW);
            (window.saturating_mul(4).max(USUAL_RING), window)
        }
    };
    if ring < LEAST_RING {
        bail!(
            "--ring is at least {}; {} were asked for",
            show_size(LEAST_RING),
            show_size(ring)
        );
    }
    if window > ring / 4 * 3 {
        bail!(
            "a --window of {} needs a --ring of a third more, or none given; {} were asked for",
            show_size(window),
            show_size(ring)
        );
    }
    Ok(ReceiveOptions {
        listen,
        socket,
        numbering,
        window,
        hold: args.hold,
        ring: usize::try_from(ring)?,
        idle: args.idle,
        duration: args.duration,
        source: args.source,
        cpu: args.host.cpu,
        priority: args.host.priority,
    })
}

/// Empties the ring in a thread of its own and shows what happens, until the receiver ends.
fn watch(
    args: &RecvArgs,
    receiving: Receiving,
    opening: Opening,
    settings: deframe::Settings,
    sink: Sink,
) -> Result<(ReceiveReport, Drained)> {
    let interrupted = interrupt();
    let live = receiving.live();
    let stop = receiving.stop_switch();
    let start = Instant::now();
    let drainer = std::thread::Builder::new()
        .name("sink".into())
        .spawn(move || drain::all(opening, settings, sink))?;
    let total = args.duration.map(|duration| duration.as_millis() as u64);
    let mut progress = Progress::new(total);
    let mut before = (0, Instant::now());
    while !receiving.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
        if interrupted.load(Ordering::Relaxed) {
            stop.store(true, Ordering::Relaxed);
        }
        if progress.is_due() {
            let seen = live.lock().map_or_else(
                |poisoned| poisoned.into_inner().clone(),
                |live| live.clone(),
            );
            let rate = (seen.bytes - before.0) as f64 * 8.0 / before.1.elapsed().as_secs_f64();
            before = (seen.bytes, Instant::now());
            progress.show(start.elapsed().as_millis() as u64, &line(&seen, rate));
        }
    }
    progress.finish();
    match drainer.join() {
        Ok(drained) => Ok((receiving.join(), drained)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn line(live: &receive::Live, rate: f64) -> String {
    let counters = &live.counters;
    if counters.received == 0 {
        return "waiting for a stream".into();
    }
    let share = counters.lost as f64 * 100.0 / counters.expected.max(1) as f64;
    format!(
        "{}  lost {} ({share:.3} %)  ring {:.0} %{}",
        show_rate(rate),
        show_count(counters.lost),
        live.ring_fill * 100.0,
        if live.streaming { "" } else { "  silent" },
    )
}

/// The raw stream over TCP: nothing is lost or out of order on the way, so it goes straight to the sink.
fn receive_tcp(args: &RecvArgs, settings: deframe::Settings) -> Result<RecvResult> {
    let address = args.from.addresses().map_err(|error| anyhow!(error))?[0];
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    let sink = open_sink(args)?;
    say_listening(listener.local_addr()?);
    let interrupted = interrupt();
    let start = Instant::now();
    let over = || {
        interrupted.load(Ordering::Relaxed)
            || args
                .duration
                .is_some_and(|duration| start.elapsed() >= duration)
    };
    let mut straight = Straight::new(settings, sink);
    let mut stream = Tcp::default();
    let mut progress = Progress::new(args.duration.map(|duration| duration.as_millis() as u64));
    let connection = loop {
        match listener.accept() {
            Ok((connection, sender)) => {
                stream.sender = Some(sender.to_string());
                break Some(connection);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot accept a connection"),
        }
        if over() {
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let read = match connection {
        Some(connection) => stream.read(connection, args.idle, &over, &mut straight, &mut progress),
        None => Ok(None),
    };
    progress.finish();
    let (ended, error) = match read {
        Err(error) => (
            Ended::Failed,
            Some(format!("the connection failed: {error}; what came is kept")),
        ),
        Ok(Some(ended)) => (ended, None),
        Ok(None) if interrupted.load(Ordering::Relaxed) => (Ended::Stopped, None),
        Ok(None) => (Ended::Duration, None),
    };
    let report = ReceiveReport {
        account: account::Report::default(),
        attribution: account::attribute(0, 0, 0, 1),
        foreign_size: 0,
        foreign_source: 0,
        foreign_header: 0,
        sender: None,
        datagram_data: None,
        bytes: stream.bytes,
        seconds: stream.seconds,
        first_arrival: None,
        last_arrival: None,
        socket_drops: 0,
        socket_drops_within: 0,
        most_joined: 0,
        buffer: None,
        ring_slots: 0,
        cpu_seconds: 0.0,
        ended,
        error,
    };
    let mut result = finish(args, report, straight.finish(), None, None)?;
    result.sender = stream.sender;
    Ok(result)
}

/// A stream of bytes on its way from a connection to a sink.
#[derive(Default)]
struct Tcp {
    sender: Option<String>,
    buffer: Vec<u8>,
    filled: usize,
    bytes: u64,
    seconds: f64,
}

impl Tcp {
    /// Reads until the sender closes the connection, it is silent for too long, or it is `over`. Says which of
    /// the first two it was.
    fn read(
        &mut self,
        mut connection: TcpStream,
        idle: Option<Duration>,
        over: &dyn Fn() -> bool,
        straight: &mut Straight,
        progress: &mut Progress,
    ) -> std::io::Result<Option<Ended>> {
        connection.set_nonblocking(false)?;
        connection.set_read_timeout(Some(Duration::from_millis(100)))?;
        let start = Instant::now();
        let mut last = start;
        let mut shown = 0;
        let ended = loop {
            if self.buffer.len() < self.filled + TCP_BLOCK {
                self.buffer.resize(self.filled + TCP_BLOCK, 0);
            }
            match connection.read(&mut self.buffer[self.filled..]) {
                Ok(0) => break Ok(Some(Ended::Closed)),
                Ok(count) => {
                    last = Instant::now();
                    self.filled += count;
                    self.bytes += count as u64;
                    self.pass_on(straight, false);
                }
                Err(error) if is_wait(&error) => {}
                Err(error) => break Err(error),
            }
            if over() {
                break Ok(None);
            }
            if idle.is_some_and(|idle| last.elapsed() >= idle) {
                break Ok(Some(Ended::Idle));
            }
            if progress.is_due() {
                let rate = (self.bytes - shown) as f64 * 8.0;
                shown = self.bytes;
                progress.show(start.elapsed().as_millis() as u64, &show_rate(rate));
            }
        };
        self.seconds = last.duration_since(start).as_secs_f64();
        self.pass_on(straight, true);
        ended
    }

    fn pass_on(&mut self, straight: &mut Straight, ended: bool) {
        let taken = straight.take(&self.buffer[..self.filled], ended);
        self.buffer.copy_within(taken..self.filled, 0);
        self.filled -= taken;
    }
}

fn is_wait(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock
            | std::io::ErrorKind::TimedOut
            | std::io::ErrorKind::Interrupted
    )
}

/// Writes the gaps beside the recording and puts the result together.
fn finish(
    args: &RecvArgs,
    report: ReceiveReport,
    drained: Drained,
    host: Option<HostDelta>,
    sizes: Option<(usize, u64)>,
) -> Result<RecvResult> {
    let ReceiveReport { account, .. } = report;
    let sequence: Vec<SequenceGap> = account
        .segments
        .iter()
        .flat_map(|segment| segment.intervals.iter().copied())
        .collect();
    let gaps_file = gaps_path(args);
    let mut drained = drained;
    if args.to.contains('{') {
        // The places are those in the stream, which lies in several files.
        for gap in &mut drained.gaps {
            gap.first_byte = None;
        }
    }
    if let Some(path) = &gaps_file {
        let gaps = Gaps {
            file: drained
                .sink
                .files
                .first()
                .map(|file| file.path.display().to_string()),
            frame_rate: drained.frame_rate,
            frame_length: drained.layout.map(|layout| layout.frame_length),
            sequence: sequence.clone(),
            time: drained.gaps.clone(),
            ..Gaps::default()
        };
        if let Err(error) = output::write_json(path, &gaps) {
            drained
                .sink
                .write_error
                .get_or_insert(output::explain(&error));
        }
    }
    let Attribution {
        host_lost,
        network_lost,
        unattributed,
        host_lost_max,
    } = report.attribution;
    let counters = account.counters;
    let counts = drained.counts;
    Ok(RecvResult {
        schema: "evlbi.recv/1",
        from: args.from.to_string(),
        to: args.to.clone(),
        expected: counters.expected,
        received: counters.received,
        unique: counters.unique,
        lost: counters.lost,
        host_lost,
        network_lost,
        unattributed,
        host_lost_max,
        ring_full: counters.ring_full,
        duplicates: counters.duplicates,
        reordered: counters.reordered,
        late: counters.late,
        foreign: report.foreign_size
            + report.foreign_source
            + report.foreign_header
            + counters.foreign_sequence,
        foreign_size: report.foreign_size,
        foreign_source: report.foreign_source,
        foreign_sequence: counters.foreign_sequence,
        foreign_header: report.foreign_header,
        restarts: counters.restarts,
        first_seq: account.segments.first().map(|segment| segment.first_seq),
        last_seq: account.segments.last().map(|segment| segment.last_seq),
        frames: counts.frames,
        invalid: counts.source_invalid + counts.lost_frames,
        lost_frames: counts.lost_frames + counts.partial,
        partial_frames: counts.partial,
        odd_headers: counts.odd_headers,
        ambiguous_frames: counts.ambiguous,
        trimmed_bytes: counts.trimmed_bytes,
        format: drained.format,
        frame_length: drained.layout.map(|layout| layout.frame_length),
        frame_rate: drained.frame_rate,
        bytes: report.bytes,
        seconds: report.seconds,
        rate_bps: if report.seconds > 0.0 {
            report.bytes as f64 * 8.0 / report.seconds
        } else {
            0.0
        },
        datagram_data: report.datagram_data,
        runs: runs(&account.runs),
        runs_not_listed: account.runs_not_listed,
        extents: runs(&account.extents),
        extents_not_listed: account.extents_not_listed,
        n_reordered: runs(&account.n_reordered),
        reordering_gaps: runs(&account.reordering_gaps),
        reordering_gaps_not_listed: account.reordering_gaps_not_listed,
        free_runs: account.free_runs,
        intervals: sequence.iter().take(INTERVALS_SHOWN).copied().collect(),
        intervals_not_listed: account.intervals_not_listed
            + sequence.len().saturating_sub(INTERVALS_SHOWN) as u64,
        time_gaps: drained.gaps.into_iter().take(INTERVALS_SHOWN).collect(),
        segments: account
            .segments
            .iter()
            .map(|segment| Ends {
                first_seq: segment.first_seq,
                last_seq: segment.last_seq,
            })
            .collect(),
        segments_not_listed: account.segments_not_listed,
        sender: report.sender.map(|sender| sender.to_string()),
        first_arrival: report.first_arrival,
        last_arrival: report.last_arrival,
        socket_drops: report.socket_drops,
        socket_drops_within: report.socket_drops_within,
        most_joined: report.most_joined,
        buffer: report.buffer,
        ring_bytes: sizes.map(|(ring, _)| ring),
        window_bytes: sizes.map(|(_, window)| window),
        host,
        gaps_file,
        cpu_seconds: report.cpu_seconds,
        ended: report.ended,
        error: report.error,
        sink: drained.sink,
    })
}

fn gaps_path(args: &RecvArgs) -> Option<PathBuf> {
    args.gaps.clone().or_else(|| {
        let recording = Sink::recording(&args.to)?;
        let is_device = recording.exists() && !recording.is_file();
        (!is_device).then(|| output::gaps_beside(&recording))
    })
}

fn runs(histogram: &std::collections::BTreeMap<u64, u64>) -> Vec<Run> {
    histogram
        .iter()
        .map(|(&length, &count)| Run { length, count })
        .collect()
}

fn describe(format: deframe::Format, result: &RecvResult) -> String {
    let name = match format {
        deframe::Format::Vdif => "VDIF",
        deframe::Format::Mark5b => "Mark 5B",
        deframe::Format::Raw => return "raw data, no frames found in it".into(),
    };
    let length = result.frame_length.unwrap_or(0);
    match result.frame_rate {
        Some(rate) => format!("{name}, frames of {length} bytes, {} a second", rate.get()),
        None => format!("{name}, frames of {length} bytes, at a rate not known"),
    }
}

fn text(result: &RecvResult) -> String {
    let share = |count: u64| match result.expected {
        0 => String::new(),
        expected => format!(" ({:.4} %)", count as f64 * 100.0 / expected as f64),
    };
    let mut pairs = vec![
        (
            "expected",
            format!("{} datagrams", show_count(result.expected)),
        ),
        ("unique", show_count(result.unique)),
        (
            "lost",
            format!("{}{}", show_count(result.lost), share(result.lost)),
        ),
        (
            "  in this host",
            format!(
                "{} (ring full {})",
                show_count(result.host_lost),
                show_count(result.ring_full)
            ),
        ),
        ("  in the network", show_count(result.network_lost)),
        ("  unattributed", show_count(result.unattributed)),
        ("duplicates", show_count(result.duplicates)),
        ("reordered", show_count(result.reordered)),
        ("late", show_count(result.late)),
        ("foreign", show_count(result.foreign)),
        (
            "data",
            format!(
                "{} bytes in {:.3} s: {}",
                show_count(result.bytes),
                result.seconds,
                show_rate(result.rate_bps)
            ),
        ),
        (
            "frames",
            format!(
                "{}, of which lost {}, invalid {}",
                show_count(result.frames),
                show_count(result.lost_frames),
                show_count(result.invalid)
            ),
        ),
    ];
    if let Some(format) = result.format {
        pairs.push(("format", describe(format, result)));
    }
    if let Some(buffer) = &result.buffer {
        pairs.push((
            "socket buffer",
            format!(
                "{} asked for, {} granted",
                show_size(buffer.asked as u64),
                show_size(buffer.granted as u64)
            ),
        ));
    }
    if let Some(check) = &result.sink.check {
        pairs.push((
            "check",
            format!(
                "{} good, {} corrupted",
                show_count(check.good),
                show_count(check.corrupted)
            ),
        ));
    }
    for file in &result.sink.files {
        pairs.push((
            "file",
            format!("{}, {} bytes", file.path.display(), show_count(file.bytes)),
        ));
    }
    if result.sink.unwritten_bytes > 0 {
        pairs.push((
            "not written",
            format!("{} bytes", show_count(result.sink.unwritten_bytes)),
        ));
    }
    if let Some(path) = &result.gaps_file {
        pairs.push(("gaps", path.display().to_string()));
    }
    output::lines(&pairs)
}
