//! The receiving thread: datagrams from the sockets to their places in the ring, counted on the way.
//!
//! It never waits for whoever empties the ring, and nothing that arrives can stop it. The sequence of its
//! work: take a batch from the transport, admit what belongs to the stream, ask the window
//! where it goes, copy it there, hand on what is complete. A stream of bytes is read to its place in the ring, and not read while
//! there is no room.
//!
//! Here belongs what every stream needs at its arrival. What one transport needs is in [`transport`](crate::transport); what is decided of
//! a datagram, in `evlbi-core`.

mod bytes;
mod datagrams;
mod thread;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use evlbi_core::account::{self, Attribution};
use evlbi_core::deframe::Wanted;
use evlbi_core::reorder::Event;
use evlbi_core::time::Nanos;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;

use crate::clock::{Clock, Events, Thread};
use crate::cpu::{NAP, Waiting};
use crate::ring::{Consumer, Reserve, RingError};
use crate::run::Run;
use crate::socket::GrantedBuffer;
use crate::transport::{InOptions, Incoming, Local, OpenError, Peer, Url};

pub use evlbi_core::admission::{Numbering, Numbers, Refused};

/// Time without a datagram after which it is waited for in the kernel.
const QUIET: Nanos = Nanos(2_000_000);
/// Longest wait there, so that a stop is heard.
const MAX_WAIT: Duration = Duration::from_millis(10);

/// How often whoever watches sees something new.
const SHOW: Nanos = Nanos(100_000_000);

/// How a stream is received.
pub struct ReceiveOptions {
    /// Where to listen.
    pub from: Url,
    /// What is asked of the transport.
    pub with: InOptions,
    /// Where a datagram's number comes from.
    pub numbering: Box<dyn Numbering>,
    /// What is known of the frames.
    pub wanted: Wanted,
    /// How far behind the newest datagram a late one may be and still be placed, in bytes of data.
    pub window: u64,
    /// How long a missing datagram is waited for.
    pub hold: Duration,
    /// Memory of the ring in bytes.
    pub ring: usize,
    /// End after this time without a datagram, counted from the first.
    pub idle: Option<Duration>,
    /// End this long after the start.
    pub duration: Option<Duration>,
    /// Processor to run on.
    pub cpu: Option<usize>,
    /// Real-time priority.
    pub priority: Option<u8>,
}

/// Why a stream cannot be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The transport cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no memory for the ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// No thread can be started.
    #[error("cannot start the receiving thread: {0}")]
    Thread(std::io::Error),
}

/// A stream that is being received. Dropping it ends that.
pub struct Receiving {
    handle: Option<Thread<ReceiveReport>>,
    run: Run,
    watch: Arc<Watch>,
    local: Vec<Local>,
    buffer: Option<GrantedBuffer>,
}

/// Snapshot of a receiver's counters.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Arrivals and losses.
    pub counters: account::Counters,
    /// Where the lost were lost, as far as it is known yet.
    pub attribution: Attribution,
    /// Datagrams of another length than the stream's.
    pub foreign_size: u64,
    /// Datagrams from other senders.
    pub foreign_source: u64,
    /// Datagrams of the stream's sender and length whose headers give them no place in it.
    pub foreign_header: u64,
    /// Streams of bytes that were none of frames, beside the one that was received.
    pub refused_connections: u64,
    /// Datagrams that are kept until it is known whether they are the stream's.
    pub undecided: u64,
    /// Bytes of data that arrived for the first time.
    pub bytes: u64,
    /// Share of the ring that waits for its consumer.
    pub ring_fill: f64,
    /// Messages that the sockets dropped, as the kernel counts.
    pub socket_drops: u64,
    /// Those of them between the first and the last datagram that was received.
    pub socket_drops_within: u64,
    /// Whether a stream is there.
    pub streaming: bool,
    /// Seconds in which a reliable stream was not read, since the ring was full.
    pub ring_waits: f64,
}

impl Snapshot {
    /// Returns how many datagrams arrived that are none of the stream's.
    pub fn foreign(&self) -> u64 {
        let of_stream = self.foreign_header + self.counters.foreign_sequence;
        self.foreign_size + self.foreign_source + of_stream
    }
}

/// Longest wait for the receiving thread to write its counters down; it looks at least every 20 ms.
const MAX_ANSWER: Nanos = Nanos(500_000_000);

/// The counters of a receiver, for threads that watch it. The receiving thread never waits for them.
#[derive(Debug, Default)]
pub struct Watch {
    shown: Mutex<Shown>,
    has_shown: Condvar,
    is_asked: AtomicBool,
}

#[derive(Debug, Default)]
struct Shown {
    live: Snapshot,
    /// How often the receiving thread has written its counters down.
    times: u64,
    is_last: bool,
}

impl Watch {
    /// Returns the counters as they were at most 100 ms ago.
    pub fn last(&self) -> Snapshot {
        self.shown.lock().live.clone()
    }

    /// Whether the receiver has ended: these counters are the last.
    pub fn has_ended(&self) -> bool {
        self.shown.lock().is_last
    }

    /// Has the receiving threads of these receivers write their counters down, all at once: those of [`last`](Watch::last) are
    /// then of this moment. A thread that does not run is given half a second.
    pub fn refresh<'a>(watches: impl IntoIterator<Item = &'a Arc<Watch>>, clock: &Clock) {
        let asked: Vec<(&Arc<Watch>, u64)> = watches
            .into_iter()
            .map(|watch| (watch, watch.ask()))
            .collect();
        let deadline = clock.now().plus(MAX_ANSWER);
        for (watch, before) in asked {
            // In time or not: what is there is shown.
            watch.wait(deadline, clock, move |shown| {
                shown.times != before || shown.is_last
            });
        }
    }

    /// Asks for new counters; returns how often some were written down before.
    fn ask(&self) -> u64 {
        let shown = self.shown.lock();
        self.is_asked.store(true, Ordering::Relaxed);
        shown.times
    }

    fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Takes new counters, unless a watcher looks at this moment. Returns whether it took them.
    fn try_show(&self, live: impl FnOnce() -> Snapshot) -> bool {
        let Some(mut shown) = self.shown.try_lock() else {
            return false;
        };
        self.is_asked.store(false, Ordering::Relaxed);
        shown.live = live();
        shown.times += 1;
        self.has_shown.notify_all();
        true
    }

    /// Waits for the receiver's end, no longer than until `moment`. Returns whether it has ended.
    pub fn wait_for_end(&self, moment: Nanos, clock: &Clock) -> bool {
        self.wait(moment, clock, |shown| shown.is_last);
        self.has_ended()
    }

    /// Waits until `is` so of what is shown, no longer than until `moment`.
    fn wait(&self, moment: Nanos, clock: &Clock, is: impl Fn(&Shown) -> bool) {
        if !clock.is_real() {
            clock.wait_for(moment, Duration::ZERO, || is(&self.shown.lock()));
            return;
        }
        let span = Duration::from_nanos(moment.since(clock.now()).0);
        let is_not = |shown: &mut Shown| !is(shown);
        let mut shown = self.shown.lock();
        self.has_shown.wait_while_for(&mut shown, is_not, span);
    }

    fn show_last(&self, live: Snapshot) {
        let mut shown = self.shown.lock();
        shown.live = live;
        shown.is_last = true;
        self.has_shown.notify_all();
    }
}

/// Why a receiver ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// Nothing came for the idle time.
    Idle,
    /// The time was over.
    Duration,
    /// The sender closed the connection.
    Closed,
    /// It was told to.
    #[default]
    Stopped,
    /// The socket failed.
    Failed,
}

/// What became of a received stream.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReceiveReport {
    /// Arrivals and losses.
    pub account: account::Report,
    /// Where the lost were lost.
    pub attribution: Attribution,
    /// All counters.
    #[serde(skip)]
    pub live: Snapshot,
    /// Senders that were refused beside the stream, or because no stream came of what they sent.
    pub refused: Vec<Refused>,
    /// Who sent the stream.
    pub sender: Option<Peer>,
    /// Length of the data in each datagram in bytes.
    pub datagram_data: Option<usize>,
    /// From the first to the last datagram of the stream.
    pub seconds: f64,
    /// When the kernel received the first datagram of the stream, seconds since 1970.
    pub first_arrival: Option<f64>,
    /// When it received the last.
    pub last_arrival: Option<f64>,
    /// Most datagrams that came as one message.
    pub most_joined: u64,
    /// The receive buffer.
    pub buffer: Option<GrantedBuffer>,
    /// Slots of the ring.
    pub ring_slots: u64,
    /// Processor time of the receiving thread in seconds.
    pub cpu_seconds: f64,
    /// Why it ended.
    pub ended: Ended,
    /// What the socket said if it failed.
    pub error: Option<String>,
}

/// Opens the transport and starts the receiving thread, which ends when `run` is stopped.
///
/// # Errors
/// [`ReceiveError`] when the transport or the ring's memory cannot be had.
pub fn start(options: ReceiveOptions, run: &Run) -> Result<(Receiving, Opening), ReceiveError> {
    // The memory first: it takes a second for half a gibibyte, and what came meanwhile would overrun
    // the sockets.
    let reserve = match run.clock().is_real() {
        true => Reserve::new(options.ring)?,
        false => Reserve::untouched(options.ring)?,
    };
    let run = run.part();
    let incoming = options.from.open_in(&options.with, &run)?;
    let local = incoming.local();
    let buffer = incoming.buffer().cloned();
    let watch = Arc::new(Watch::default());
    let (to_consumer, consumer) = mpsc::channel();
    let work = thread::Work {
        service: options.from.transport().service(),
        options,
        incoming,
        reserve,
        to_consumer,
        run: run.clone(),
        watch: Arc::clone(&watch),
        started: run.clock().now(),
    };
    let handle = run.clock().spawn("receive", move || thread::run(work));
    let handle = handle.map_err(ReceiveError::Thread)?;
    let receiving = Receiving {
        handle: Some(handle),
        run: run.clone(),
        watch,
        local,
        buffer,
    };
    let opening = Opening {
        rings: consumer,
        clock: run.clock().clone(),
    };
    Ok((receiving, opening))
}

/// The ring's other end, which is there once a stream has begun and the size of its datagrams is known. A stream of another size
/// has a ring of its own.
pub struct Opening {
    rings: mpsc::Receiver<(Consumer<Event>, u64)>,
    clock: Clock,
}

impl Opening {
    /// Waits for the next ring, and how many bytes would have come since the end of the one before, which must be dropped. `None`
    /// when the receiver ended without one.
    pub fn next(&self) -> Option<(Consumer<Event>, u64)> {
        self.clock.receive(&self.rings)
    }
}

impl Receiving {
    /// Where it listens, port numbers chosen by the kernel included.
    pub fn local(&self) -> &[Local] {
        &self.local
    }

    /// The receive buffer asked for and granted.
    pub fn buffer(&self) -> Option<&GrantedBuffer> {
        self.buffer.as_ref()
    }

    /// Returns the receiver's counters, for other threads to watch.
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// The part of the run that the receiver is: stopping it ends the receiver, and it is stopped at the receiver's end.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Ends the receiver.
    pub fn stop(&self) {
        self.run.stop();
    }

    /// Whether the receiver has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(Thread::is_finished)
    }

    /// Waits for the receiver's end.
    ///
    /// # Panics
    /// When the receiving thread did.
    pub fn join(mut self) -> ReceiveReport {
        self.handle.take().map(Thread::join).unwrap_or_default()
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.stop();
        if let Some(handle) = self.handle.take() {
            // Nobody wants to know what came of it.
            let _ = handle.wait();
        }
    }
}

/// Waits until one of `incoming` may have something: naps where the last came a moment ago, as the next is near, and else waits for it.
/// No rest is so long that a stop would not be heard.
pub fn rest(incoming: &[&dyn Incoming], clock: &Clock, last: Nanos) {
    let now = clock.now();
    if clock.is_real() && now.since(last) <= QUIET {
        clock.wait_until(now.plus(NAP.into()), Waiting::Sleep);
    } else {
        let events: Vec<Events<'_>> = incoming.iter().map(|one| one.events()).collect();
        clock.wait(&events, now.plus(MAX_WAIT.into()), Waiting::Sleep);
    }
}

/// What came of one look at the transport.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    /// Nothing was there.
    is_empty: bool,
    /// Bytes that it took of what waited.
    taken: u64,
    /// Datagrams, or reads.
    count: u32,
    /// Some of it looks like a stream that begins.
    is_heard: bool,
    /// Some of it is the stream's.
    is_stream: bool,
    /// The sender has sent all.
    is_closed: bool,
}
