//! Receives a stream and records it; lost frames become invalid frames with the right timestamps.
//!
//! Put here options and results of receiving. The receiving thread is in [`evlbi_net::receive`]; [`sink`] stores the data.

mod names;
mod result;
mod seen;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::num::TryFromIntError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::deframe::{self, Partial, Wanted};
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::file::{Durability, OutputError, replace_json};
use evlbi_net::receive::{self, Numbering, Numbers, ReceiveError, ReceiveOptions};
use evlbi_net::run::{Run, explain};
use evlbi_net::safe::Key;
use evlbi_net::transport::{self, Carries, InOptions, NotHonoured, Url};
use evlbi_wire::time::FrameRate;
use parking_lot::Mutex;
use thiserror::Error;

use self::result::{Beside, HostDelta, finish};

pub use self::result::{RecvResult, text};
pub use self::seen::{Seen, nothing_but};
use crate::drain::{self, Shown};
use crate::numbering::FrameNumbers;
use crate::running::Running;
use crate::selection::{Selection, SelectionError};
use crate::sink::{self, Files, SinkError};
use evlbi_host::host::HostOptions;
use evlbi_wire::units::{self, show_size};

/// Minimum ring size, in bytes.
const MIN_RING: u64 = 16 << 20;
/// Default ring size, in bytes.
const DEFAULT_RING: u64 = 256 << 20;
/// Default ring size for a byte stream, in bytes. Nothing in a byte stream arrives late or is dropped, and a smaller ring fits the CPU's
/// caches better.
const STREAM_RING: u64 = 8 << 20;
/// Default reorder window, in bytes.
const DEFAULT_WINDOW: u64 = 64 << 20;
/// Default time to wait for a missing datagram.
const HOLD: Duration = Duration::from_millis(100);
/// Maximum time to wait for a missing datagram under SafeUDP: the sender takes two seconds without progress for a failure.
const MAX_SAFE_HOLD: Duration = Duration::from_secs(1);
/// Interval at which the files next to the recording are written.
const INTERVAL: Nanos = Nanos::SECOND;

/// Reasons why a stream cannot be received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// An option has no effect on the transport.
    #[error("{0}")]
    NotHonoured(#[from] NotHonoured),
    /// The ring is too small.
    #[error(
        "a ring of {} is too small{}: the minimum is {}",
        show_size(*asked),
        if *is_for_frames { " for frames of that length" } else { "" },
        show_size(*min)
    )]
    SmallRing {
        /// Minimum ring size, in bytes.
        min: u64,
        /// Requested ring size, in bytes.
        asked: u64,
        /// Whether the frame length requires this minimum.
        is_for_frames: bool,
    },
    /// The window does not fit the ring.
    #[error(
        "a window of {} does not fit a ring of {}, which must be a third larger",
        show_size(*window),
        show_size(*ring)
    )]
    WideWindow {
        /// Reorder window, in bytes.
        window: u64,
        /// Ring size, in bytes.
        ring: u64,
    },
    /// Under SafeUDP, the sender would take what waits for a failure.
    #[error(
        "reports cannot wait {} for a missing datagram, {} at most",
        units::span(*.0),
        units::span(MAX_SAFE_HOLD)
    )]
    SafeHold(Duration),
    /// The settings of the address are not valid.
    #[error("in {input}")]
    Selection {
        /// Address and settings.
        input: String,
        /// Reason.
        source: SelectionError,
    },
    /// The size exceeds the address space of this host.
    #[error("{0}")]
    TooLarge(#[from] TryFromIntError),
    /// An existing file may be one that the stream is split into.
    #[error(
        "{} exists and may be one of the files that {to} is split into",
        path.display()
    )]
    MayExist {
        /// Path of the file.
        path: PathBuf,
        /// The template of the files.
        to: String,
    },
    /// Killed receivers left recordings under this name and all its numbered variants.
    #[error("no free name next to {}", .0.display())]
    NoName(PathBuf),
    /// The recording, or a file next to it, exists.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The recording cannot be created.
    #[error("{0}")]
    Sink(#[from] SinkError),
    /// The transport cannot be opened, or the ring cannot be allocated.
    #[error("{0}")]
    Receive(#[from] ReceiveError),
    /// The system cannot start a thread.
    #[error("{0}")]
    Thread(#[from] io::Error),
}

/// Options of [`receive()`]. By default the stream is not recorded.
#[derive(Clone, Debug)]
pub struct RecvOptions {
    /// Transport and address to listen on.
    pub from: Url,
    /// Stations and threads of the stream to record, and its year.
    pub selection: Selection,
    /// A path, which may contain `{station}`, `{thread}` and `{channel}`, or `null` or `check`.
    pub to: String,
    /// Reorder window: maximum distance of a late datagram behind the newest, in bytes of data.
    pub window: Option<u64>,
    /// Time to wait for a missing datagram before its gap is filled.
    pub hold: Option<Duration>,
    /// Maximum length of a gap that is filled.
    pub fill: Duration,
    /// Ring size, in bytes.
    pub ring: Option<u64>,
    /// Stop after this time without a datagram, counted from the first one.
    pub idle: Option<Duration>,
    /// Stop this long after the start.
    pub duration: Option<Duration>,
    /// Path of the gaps file; `None` for a file next to the recording.
    pub gaps: Option<PathBuf>,
    /// Whether existing recordings are overwritten.
    pub force: bool,
    /// Length of a frame in bytes; `None` to detect it.
    pub frame: Option<usize>,
    /// Frames per second of a thread; `None` to detect it.
    pub frame_rate: Option<FrameRate>,
    /// Treatment of a frame with missing datagrams.
    pub partial: Partial,
    /// The only address from which datagrams are accepted.
    pub source: Option<IpAddr>,
    /// Secret of SafeUDP, to whose messages this receiver answers; `None` for no reports.
    pub safe: Option<Key>,
    /// When written data is forced to the disk.
    pub durability: Durability,
    /// Whether the kernel may join datagrams.
    pub join: bool,
    /// Settings of the receiving thread and its sockets.
    pub host: HostOptions,
}

impl Default for RecvOptions {
    fn default() -> RecvOptions {
        RecvOptions {
            from: Url::anywhere(),
            selection: Selection::default(),
            to: "null".into(),
            window: None,
            hold: None,
            fill: Duration::from_secs(10),
            ring: None,
            idle: None,
            duration: None,
            gaps: None,
            force: false,
            frame: None,
            frame_rate: None,
            partial: Partial::Whole,
            source: None,
            safe: None,
            durability: Durability::End,
            join: true,
            host: HostOptions::default(),
        }
    }
}

impl RecvOptions {
    /// Returns the address with its settings.
    fn input(&self) -> String {
        self.selection.written(&self.from.to_string())
    }
}

/// A stream that is being received and recorded.
pub type Receiving = Running<Seen, RecvResult>;

/// Starts to receive a stream until it ends, its time is over, or `run` is stopped. Blocks only until a named pipe has a reader. A limit on
/// file sizes (`ulimit -f`) becomes an error of the recording only after [`report_size_limits`](evlbi_net::file::report_size_limits);
/// otherwise it kills the process.
///
/// # Errors
/// Returns an error if options conflict, the recording exists, or a socket, a file or memory cannot be obtained.
pub fn receive(options: &RecvOptions, run: &Run) -> Result<Receiving, RecvError> {
    let asked = receive_options(options)?;
    let mut settings = settings(options, run.clock());
    let selected = match sink::has_channels(&options.to) {
        true => options.selection.key().map(|_| options.selection.part()),
        false => options.selection.streams(),
    };
    settings.selected = selected.map_err(|source| RecvError::Selection {
        input: options.input(),
        source,
    })?;
    let (options, left) = names::with_free_names(options)?;
    names::check_outputs(&options)?;
    if let Some(left) = &left {
        run.say(format_args!(
            "{} was left unfinished by a receiver that was killed, and is kept; recording to {}",
            left.display(),
            options.to
        ));
    }
    let run = run.part();
    let before = run.counters().ok();
    let honours = asked.from.transport().service().honours;
    let sizes = (asked.ring, honours.window.then_some(asked.window));
    let (receiving, opening) = receive::start(asked, &run)?;
    // Opened after the sockets: a port in use must not cost an older recording. The recording is over when the run is stopped.
    let files = Files {
        durability: options.durability,
        force: options.force,
        run: receiving.run().clone(),
    };
    let sink = sink::open(&options.to, &options.selection, files)?;
    receiving
        .local()
        .iter()
        .for_each(|local| run.listens(local));
    if let Some(buffer) = receiving.buffer()
        && let Some(remedy) = &buffer.remedy
    {
        let [granted, asked] = [buffer.granted, buffer.asked].map(|bytes| show_size(bytes as u64));
        run.warn(format_args!(
            "the socket buffer is {granted}, {asked} were requested, so short stalls of this host lose datagrams: {remedy}"
        ));
    }
    let shown: Arc<Mutex<Shown>> = Arc::default();
    let drainer = run.clock().spawn("sink", {
        let (shown, run) = (Arc::clone(&shown), run.clone());
        let selection = options.selection.clone();
        move || drain::watched(&opening, settings, &selection, sink, &shown, &run)
    })?;
    let watch = receiving.watch();
    let local = receiving.local().to_vec();
    let seen = Arc::new(Seen::new(Arc::clone(&watch), options.clone(), local, &run));
    let worker = run.clock().spawn("record", {
        let (seen, run) = (Arc::clone(&seen), run.clone());
        move || {
            let mut beside = Beside::default();
            loop {
                beside.write(&options, seen.status(), &shown.lock());
                let next = run.clock().now().plus(INTERVAL);
                if watch.wait_for_end(next, run.clock()) || receiving.is_finished() {
                    break;
                }
            }
            let drained = drainer.join();
            let host = before.and_then(|before| HostDelta::since(&before, &run));
            let result = finish(&options, receiving.join(), drained, host, sizes, &run);
            written(&options, result, left)
        }
    })?;
    Ok(Running::new(run, seen, worker))
}

/// Completes the result, and writes it next to the recording if there is one.
fn written(options: &RecvOptions, mut result: RecvResult, left: Option<PathBuf>) -> RecvResult {
    result.left_unfinished = left;
    if (result.is_empty() || result.error.is_some()) && names::remove_empty(options) {
        result.sink.files.clear();
        result.gaps_file = None;
    } else if !result.is_empty()
        && let Some(path) = names::result_path(options)
        && let Err(error) = replace_json(&path, &result)
    {
        let write_error = &mut result.sink.write_error;
        write_error.get_or_insert(explain(&error));
    }
    result
}

/// Returns the known settings of a stream's frames, which arrive by this clock.
pub fn settings(options: &RecvOptions, clock: &Clock) -> deframe::Settings {
    deframe::Settings {
        frame_length: options.frame,
        frame_rate: options.frame_rate,
        fill: options.fill,
        partial: options.partial,
        latest: options.selection.read_at(clock.second()),
        ..deframe::Settings::default()
    }
}

/// Returns the options of the receiving thread.
///
/// # Errors
/// Returns an error if window and ring do not fit, or an option has no effect on the transport.
pub fn receive_options(options: &RecvOptions) -> Result<ReceiveOptions, RecvError> {
    let RecvOptions { from, host, .. } = options;
    let with = InOptions {
        buffer: host.buffer.map(usize::try_from).transpose()?,
        single: !options.join,
        only: options.source,
        window: options.window,
        hold: options.hold,
        marks: options.safe.is_some(),
    };
    with.check(from)?;
    let service = from.transport().service();
    let numbering: Box<dyn Numbering> = match service.numbers {
        transport::Numbers::FromFrames => Box::new(FrameNumbers::new(options.frame_rate)),
        _ => Box::new(Numbers),
    };
    let (default_window, default_ring) = match service.carries {
        Carries::Datagrams => (DEFAULT_WINDOW, DEFAULT_RING),
        Carries::Bytes => (STREAM_RING / 4, STREAM_RING),
    };
    if let (Some(hold), Some(_)) = (options.hold, &options.safe)
        && hold > MAX_SAFE_HOLD
    {
        return Err(RecvError::SafeHold(hold));
    }
    let within = |ring| default_window.min(ring / 4);
    let window = (options.window).unwrap_or(options.ring.map_or(default_window, within));
    // The deframer examines one part while the other fills.
    let settings = deframe::Settings {
        frame_length: options.frame,
        ..deframe::Settings::default()
    };
    let for_frames = (settings.left_in_a_span() as u64).saturating_mul(2);
    let default_ring = window.saturating_mul(4).max(default_ring).max(for_frames);
    let ring = options.ring.unwrap_or(default_ring);
    for (min, is_for_frames) in [(MIN_RING, false), (for_frames, true)] {
        let is_asked = is_for_frames || options.ring.is_some();
        if is_asked && ring < min {
            return Err(RecvError::SmallRing {
                min,
                asked: ring,
                is_for_frames,
            });
        }
    }
    if window > ring / 4 * 3 {
        return Err(RecvError::WideWindow { window, ring });
    }
    Ok(ReceiveOptions {
        from: from.clone(),
        safe: options.safe.clone(),
        with,
        numbering,
        wanted: Wanted {
            format: None,
            frame_length: options.frame,
        },
        window,
        hold: options.hold.unwrap_or(HOLD),
        ring: usize::try_from(ring)?,
        idle: options.idle,
        duration: options.duration,
        cpu: host.cpu,
        priority: host.priority,
    })
}
