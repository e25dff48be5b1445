//! The receiving thread: moves datagrams from the sockets to their places in the ring, and counts them.
//!
//! It never waits for the consumer, and nothing that arrives can stop it. For each batch of the transport it admits what belongs to the
//! stream, asks the window for its place, copies it there, and releases what is complete. A byte stream is read directly to its place
//! in the ring, and is not read while the ring is full.
//!
//! This module contains what every stream needs on arrival. What one transport needs is in [`transport`](crate::transport); decisions
//! about a datagram are in `evlbi-core`.

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
use crate::safe::{Key, ReceivedSafely, SafeReceiving};
use crate::socket::GrantedBuffer;
use crate::transport::{InOptions, Incoming, Local, OpenError, Peer, Url};

pub use evlbi_core::admission::{Numbering, Numbers, Refused};

/// Time without a datagram after which the thread waits in the kernel.
const QUIET: Nanos = Nanos(2_000_000);
/// Maximum wait there, so that the thread notices a stop.
const MAX_WAIT: Duration = Duration::from_millis(10);

/// Interval at which watchers get new counters.
const SHOW: Nanos = Nanos(100_000_000);

/// Options for receiving a stream.
pub struct ReceiveOptions {
    /// URL to listen on.
    pub from: Url,
    /// Options of the transport.
    pub with: InOptions,
    /// Secret of a flow under SafeUDP, to which reports are sent.
    pub safe: Option<Key>,
    /// Source of the datagrams' sequence numbers.
    pub numbering: Box<dyn Numbering>,
    /// Known properties of the frames.
    pub wanted: Wanted,
    /// Maximum distance of a late datagram behind the newest, in bytes of data.
    pub window: u64,
    /// Maximum wait for a missing datagram.
    pub hold: Duration,
    /// Ring size in bytes.
    pub ring: usize,
    /// Time without a datagram after which the receiver ends, counted from the first datagram.
    pub idle: Option<Duration>,
    /// Time after the start at which the receiver ends.
    pub duration: Option<Duration>,
    /// Core to run on.
    pub cpu: Option<usize>,
    /// Real-time priority.
    pub priority: Option<u8>,
}

/// Reason why a stream cannot be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The transport cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The ring cannot be allocated.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The thread cannot be started.
    #[error("cannot start the receiving thread: {0}")]
    Thread(std::io::Error),
}

/// A stream that is being received. Dropping it ends the receiver.
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
    /// Location of the losses, as far as known yet.
    pub attribution: Attribution,
    /// Datagrams of another length than the stream's.
    pub foreign_size: u64,
    /// Datagrams from other senders.
    pub foreign_source: u64,
    /// Datagrams with the stream's sender and length whose headers give them no place in it.
    pub foreign_header: u64,
    /// Refused byte streams, without frames or in addition to the received one.
    pub refused_connections: u64,
    /// Pending datagrams: not yet known whether they belong to the stream.
    pub undecided: u64,
    /// Bytes of data that arrived for the first time.
    pub bytes: u64,
    /// Fraction of the ring that waits for its consumer.
    pub ring_fill: f64,
    /// Messages that the sockets dropped, as counted by the kernel.
    pub socket_drops: u64,
    /// Those dropped between the first and the last received datagram.
    pub socket_drops_within: u64,
    /// Whether a stream is being received.
    pub streaming: bool,
    /// Seconds in which a reliable stream was not read because the ring was full.
    pub ring_waits: f64,
    /// State of a flow under SafeUDP.
    pub safe: Option<ReceivedSafely>,
}

impl Snapshot {
    /// Returns how many datagrams did not belong to the stream.
    pub fn foreign(&self) -> u64 {
        let of_stream = self.foreign_header + self.counters.foreign_sequence;
        self.foreign_size + self.foreign_source + of_stream
    }
}

/// Timeout for the receiving thread to publish its counters; it polls at least every 20 ms.
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
    /// Number of times that the receiving thread has published its counters.
    times: u64,
    is_last: bool,
}

impl Watch {
    /// Returns the counters, which are at most 100 ms old.
    pub fn last(&self) -> Snapshot {
        self.shown.lock().live.clone()
    }

    /// Returns whether the receiver has ended: these counters are final.
    pub fn has_ended(&self) -> bool {
        self.shown.lock().is_last
    }

    /// Makes the receiving threads of these receivers publish their counters, all at the same time, so that [`last`](Watch::last)
    /// returns current ones. Waits at most 0.5 s for a thread that does not run.
    pub fn refresh<'a>(watches: impl IntoIterator<Item = &'a Arc<Watch>>, clock: &Clock) {
        let asked: Vec<(&Arc<Watch>, u64)> = watches
            .into_iter()
            .map(|watch| (watch, watch.ask()))
            .collect();
        let deadline = clock.now().plus(MAX_ANSWER);
        for (watch, before) in asked {
            // In time or not, the latest counters are shown.
            watch.wait(deadline, clock, move |shown| {
                shown.times != before || shown.is_last
            });
        }
    }

    /// Requests new counters; returns how often counters were published before.
    fn ask(&self) -> u64 {
        let shown = self.shown.lock();
        self.is_asked.store(true, Ordering::Relaxed);
        shown.times
    }

    fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Publishes new counters, unless a watcher holds the lock. Returns whether it did.
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

    /// Waits for the receiver's end, at most until `moment`. Returns whether it has ended.
    pub fn wait_for_end(&self, moment: Nanos, clock: &Clock) -> bool {
        self.wait(moment, clock, |shown| shown.is_last);
        self.has_ended()
    }

    /// Waits until `is` holds for the published counters, at most until `moment`.
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

/// Reason for a receiver's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// Nothing arrived for the idle time.
    Idle,
    /// The duration was over.
    Duration,
    /// The sender closed the connection.
    Closed,
    /// It was stopped.
    #[default]
    Stopped,
    /// The socket failed.
    Failed,
}

/// Report on a received stream.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReceiveReport {
    /// Arrivals and losses.
    pub account: account::Report,
    /// Location of the losses.
    pub attribution: Attribution,
    /// All counters.
    #[serde(skip)]
    pub live: Snapshot,
    /// Senders that were refused because another one sent the stream, or because they sent no stream.
    pub refused: Vec<Refused>,
    /// Sender of the stream.
    pub sender: Option<Peer>,
    /// Length of the data in each datagram, in bytes.
    pub datagram_data: Option<usize>,
    /// Seconds from the first to the last datagram of the stream.
    pub seconds: f64,
    /// Time at which the kernel received the first datagram of the stream, in seconds since 1970.
    pub first_arrival: Option<f64>,
    /// Time at which the kernel received the last one.
    pub last_arrival: Option<f64>,
    /// Maximum number of datagrams joined into one message.
    pub most_joined: u64,
    /// The receive buffer.
    pub buffer: Option<GrantedBuffer>,
    /// Number of slots of the ring.
    pub ring_slots: u64,
    /// CPU time of the receiving thread, in seconds.
    pub cpu_seconds: f64,
    /// Reason for the end.
    pub ended: Ended,
    /// The socket's error, if it failed.
    pub error: Option<String>,
}

/// Opens the transport and starts the receiving thread, which ends when `run` is stopped.
///
/// # Errors
/// Returns [`ReceiveError`] if the transport cannot be opened or the ring cannot be allocated.
pub fn start(options: ReceiveOptions, run: &Run) -> Result<(Receiving, Opening), ReceiveError> {
    // Memory first: half a gibibyte takes a second, and what arrived in that time would overflow the sockets.
    let reserve = match run.clock().is_real() {
        true => Reserve::new(options.ring)?,
        false => Reserve::untouched(options.ring)?,
    };
    let run = run.part();
    let incoming = options.from.open_in(&options.with, &run)?;
    let local = incoming.local();
    let safe = options.safe.clone();
    let safe = safe.map(|key| SafeReceiving::open(&options.from, &local, key, &run));
    let safe = safe.transpose()?;
    let buffer = incoming.buffer().cloned();
    let watch = Arc::new(Watch::default());
    let (to_consumer, consumer) = mpsc::channel();
    let work = thread::Work {
        service: options.from.transport().service(),
        options,
        incoming,
        safe,
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

/// The consumer's end of the ring, which exists once a stream has started and its datagram size is known. A stream with another
/// datagram size gets a ring of its own.
pub struct Opening {
    rings: mpsc::Receiver<(Consumer<Event>, u64)>,
    clock: Clock,
}

impl Opening {
    /// Waits for the next ring. Also returns the number of bytes missing since the end of the previous one, which the caller must drop.
    /// `None` if the receiver ended without another ring.
    pub fn next(&self) -> Option<(Consumer<Event>, u64)> {
        self.clock.receive(&self.rings)
    }
}

impl Receiving {
    /// Returns where it listens, including port numbers chosen by the kernel.
    pub fn local(&self) -> &[Local] {
        &self.local
    }

    /// Returns the requested and the granted receive buffer.
    pub fn buffer(&self) -> Option<&GrantedBuffer> {
        self.buffer.as_ref()
    }

    /// Returns the receiver's counters, for other threads to watch.
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Returns the receiver's part of the run: stopping it ends the receiver, and it is stopped when the receiver ends.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Ends the receiver.
    pub fn stop(&self) {
        self.run.stop();
    }

    /// Returns whether the receiver has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(Thread::is_finished)
    }

    /// Waits for the receiver's end.
    ///
    /// # Panics
    /// Panics if the receiving thread did.
    pub fn join(mut self) -> ReceiveReport {
        self.handle.take().map(Thread::join).unwrap_or_default()
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.stop();
        if let Some(handle) = self.handle.take() {
            // Nobody needs its report.
            let _ = handle.wait();
        }
    }
}

/// Waits until one of `incoming` may have data: naps if the last data arrived a moment ago, since more is expected soon, and otherwise
/// waits for an event. Every wait is short enough to notice a stop.
pub fn rest(incoming: &[&dyn Incoming], clock: &Clock, last: Nanos) {
    let now = clock.now();
    if clock.is_real() && now.since(last) <= QUIET {
        clock.wait_until(now.plus(NAP.into()), Waiting::Sleep);
    } else {
        let events: Vec<Events<'_>> = incoming.iter().map(|one| one.events()).collect();
        clock.wait(&events, now.plus(MAX_WAIT.into()), Waiting::Sleep);
    }
}

/// Result of one poll of the transport.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    /// There was nothing.
    is_empty: bool,
    /// Bytes that it took from the backlog.
    taken: u64,
    /// Number of datagrams, or reads.
    count: u32,
    /// Some of it looks like the start of a stream.
    is_heard: bool,
    /// Some of it belongs to the stream.
    is_stream: bool,
    /// The sender has sent everything.
    is_closed: bool,
}
