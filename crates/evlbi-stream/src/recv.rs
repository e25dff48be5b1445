//! Receives a stream and records it, with what was lost marked in time.
//!
//! Here belong options and result of receiving. The thread that receives is in [`evlbi_net::receive`], where data go is in
//! [`sink`].

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
use crate::sink::{self, Files, SinkError};
use evlbi_host::host::HostOptions;
use evlbi_wire::units::show_size;

/// Least memory of the ring.
const MIN_RING: u64 = 16 << 20;
/// Memory of the ring where nothing is said.
const DEFAULT_RING: u64 = 256 << 20;
/// Memory of the ring of a stream of bytes where nothing is said: nothing of it comes late or is dropped, and the less memory, the
/// more of it is in the processor's caches.
const STREAM_RING: u64 = 8 << 20;
/// The window where nothing is said.
const DEFAULT_WINDOW: u64 = 64 << 20;
/// Time to wait for a missing datagram by default.
const HOLD: Duration = Duration::from_millis(100);
/// How often the files beside the recording are written.
const INTERVAL: Nanos = Nanos::SECOND;

/// Why a stream is not received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// An option has no effect on the transport.
    #[error("{0}")]
    NotHonoured(#[from] NotHonoured),
    /// So little memory is no ring.
    #[error(
        "a ring is at least {}{}; {} were asked for",
        show_size(*least),
        if *is_for_frames { " for frames of that length" } else { "" },
        show_size(*asked)
    )]
    SmallRing {
        /// Least memory, in bytes.
        least: u64,
        /// Memory that was asked for, in bytes.
        asked: u64,
        /// Whether it is the length of the frames that needs so much.
        is_for_frames: bool,
    },
    /// The window leaves no room in the ring.
    #[error(
        "a window of {} needs a ring of a third more, or none given; {} were asked for",
        show_size(*window),
        show_size(*ring)
    )]
    WideWindow {
        /// How far a late datagram may lie behind the newest, in bytes.
        window: u64,
        /// Memory of the ring, in bytes.
        ring: u64,
    },
    /// More memory than this host can address.
    #[error("{0}")]
    TooLarge(#[from] TryFromIntError),
    /// A file that is there may be one of those that the stream is split into.
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
    /// A receiver that was killed left a recording there, and those of all other names.
    #[error("no name is free beside {}", .0.display())]
    NoName(PathBuf),
    /// A file beside the recording exists, or the recording does.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The recording cannot be made.
    #[error("{0}")]
    Sink(#[from] SinkError),
    /// The transport cannot be opened, or there is no memory for the ring.
    #[error("{0}")]
    Receive(#[from] ReceiveError),
    /// The system gives no thread.
    #[error("{0}")]
    Thread(#[from] io::Error),
}

/// How a stream is received, and where it is recorded. By default it is not recorded.
#[derive(Clone, Debug)]
pub struct RecvOptions {
    /// Where to listen.
    pub from: Url,
    /// A path, which may hold `{station}` and `{thread}`, or `null` or `check`.
    pub to: String,
    /// How far a late datagram may lie behind the newest and still be placed, in bytes of data.
    pub window: Option<u64>,
    /// How long a missing datagram is waited for.
    pub hold: Option<Duration>,
    /// Longest gap that is filled.
    pub fill: Duration,
    /// Memory of the ring, in bytes.
    pub ring: Option<u64>,
    /// End after this time without a datagram, counted from the first one.
    pub idle: Option<Duration>,
    /// End this long after the start.
    pub duration: Option<Duration>,
    /// Where the gaps are written; beside the recording if none.
    pub gaps: Option<PathBuf>,
    /// Whether recordings that exist are overwritten.
    pub force: bool,
    /// Length of a frame in bytes, where it is known.
    pub frame: Option<usize>,
    /// Frames per second of a thread, where it is known.
    pub frame_rate: Option<FrameRate>,
    /// What becomes of a frame that misses some of its datagrams.
    pub partial: Partial,
    /// The only address to take datagrams from.
    pub source: Option<IpAddr>,
    /// When what was written is forced to the disk.
    pub durability: Durability,
    /// Whether the kernel may join datagrams.
    pub join: bool,
    /// The receiving thread and its sockets.
    pub host: HostOptions,
}

impl Default for RecvOptions {
    fn default() -> RecvOptions {
        RecvOptions {
            from: Url::anywhere(),
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
            durability: Durability::End,
            join: true,
            host: HostOptions::default(),
        }
    }
}

/// A stream that is being received and recorded.
pub type Receiving = Running<Seen, RecvResult>;

/// Begins to receive a stream: until it ends, its time is over, or `run` is stopped. Only the reader of a named pipe is waited
/// for before. A limit on file sizes (`ulimit -f`) is an error of the recording only after
/// [`report_size_limits`](evlbi_net::file::report_size_limits); else it ends the process.
///
/// # Errors
/// When the options do not fit together, or the recording exists, or a socket, a file or memory cannot be had.
pub fn receive(options: &RecvOptions, run: &Run) -> Result<Receiving, RecvError> {
    let asked = receive_options(options)?;
    let settings = settings(options, run.clock());
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
    // Opened once the sockets are: a port in use must not cost an older recording. The recording is over when the run is stopped.
    let files = Files {
        durability: options.durability,
        force: options.force,
        run: receiving.run().clone(),
    };
    let sink = sink::open(&options.to, files)?;
    receiving
        .local()
        .iter()
        .for_each(|local| run.listens(local));
    if let Some(remedy) = receiving.buffer().and_then(|buffer| buffer.remedy.as_ref()) {
        run.warn(format_args!("{remedy}"));
    }
    let shown: Arc<Mutex<Shown>> = Arc::default();
    let drainer = run.clock().spawn("sink", {
        let (shown, run) = (Arc::clone(&shown), run.clone());
        move || drain::watched(&opening, settings, sink, &shown, &run)
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
            let result = finish(&options, receiving.join(), drained, host, sizes);
            written(&options, result, left)
        }
    })?;
    Ok(Running::new(run, seen, worker))
}

/// The result at the end, which stands beside the recording too, if there is one.
fn written(options: &RecvOptions, mut result: RecvResult, left: Option<PathBuf>) -> RecvResult {
    result.left_unfinished = left;
    if result.is_empty() {
        if names::remove_empty(options) {
            result.sink.files.clear();
            result.gaps_file = None;
        }
    } else if let Some(path) = names::result_path(options)
        && let Err(error) = replace_json(&path, &result)
    {
        let write_error = &mut result.sink.write_error;
        write_error.get_or_insert(explain(&error));
    }
    result
}

/// Returns what is known beforehand of the frames of a stream, which come by this clock.
pub fn settings(options: &RecvOptions, clock: &Clock) -> deframe::Settings {
    deframe::Settings {
        frame_length: options.frame,
        frame_rate: options.frame_rate,
        fill: options.fill,
        partial: options.partial,
        reference: clock.second(),
        ..deframe::Settings::default()
    }
}

/// Returns how a stream is received.
///
/// # Errors
/// When ring and window do not fit together, or the transport has no use for an option.
pub fn receive_options(options: &RecvOptions) -> Result<ReceiveOptions, RecvError> {
    let RecvOptions { from, host, .. } = options;
    let with = InOptions {
        buffer: host.buffer.map(usize::try_from).transpose()?,
        single: !options.join,
        only: options.source,
        window: options.window,
        hold: options.hold,
    };
    with.check(from)?;
    let service = from.transport().service();
    let numbering: Box<dyn Numbering> = match service.numbers {
        transport::Numbers::FromFrames => Box::new(FrameNumbers::new(options.frame_rate)),
        _ => Box::new(Numbers),
    };
    let (usual_window, usual_ring) = match service.carries {
        Carries::Datagrams => (DEFAULT_WINDOW, DEFAULT_RING),
        Carries::Bytes => (STREAM_RING / 4, STREAM_RING),
    };
    let most_usual = |ring| usual_window.min(ring / 4);
    let window = (options.window).unwrap_or(options.ring.map_or(usual_window, most_usual));
    // One part is looked at while the other fills.
    let settings = deframe::Settings {
        frame_length: options.frame,
        ..deframe::Settings::default()
    };
    let for_frames = (settings.left_in_a_span() as u64).saturating_mul(2);
    let usual_ring = window.saturating_mul(4).max(usual_ring).max(for_frames);
    let ring = options.ring.unwrap_or(usual_ring);
    for (least, is_for_frames) in [(MIN_RING, false), (for_frames, true)] {
        let is_asked = is_for_frames || options.ring.is_some();
        if is_asked && ring < least {
            return Err(RecvError::SmallRing {
                least,
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
