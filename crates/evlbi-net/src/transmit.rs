//! The sending threads: frames of many flows leave at their times, cut into datagrams, some of which are shed.
//!
//! One thread paces all flows of a host ([`run`]). Only headers are copied: the kernel takes the payload from the source's memory.
//!
//! This module contains what every flow needs at its departure. Add further [`Source`]s of frames in memory here.

mod flow;
mod source;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evlbi_core::pace::Slips;
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Shed, ShedReport};
use evlbi_core::time::Nanos;
use parking_lot::Mutex;
use serde::Serialize;

pub use flow::{Clock, Flow, FlowOptions};
pub use source::{FileSource, LoopSource, PatternSource};

use crate::clock::Events;
use crate::cpu;
use crate::run::Run;
use crate::udp::SendCounts;

use self::flow::Next;

/// Interval at which the thread checks whether to stop.
const NAP: Nanos = Nanos(50_000_000);
/// Time before a departure in which a flow does not wait for reports.
const SOON: Nanos = Nanos(2_000_000);

/// A source of frames.
pub trait Source: Send {
    /// Returns the next frames, as many as are in memory; none at the end.
    ///
    /// # Errors
    /// Returns the error of the file or generator behind it.
    fn frames(&mut self) -> io::Result<Frames<'_>>;

    /// Marks this many bytes of what [`Source::frames`] returned as sent: whole frames.
    fn consume(&mut self, bytes: usize);
}

/// Successive whole frames.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// Their bytes.
    pub bytes: &'a [u8],
    /// Number of frames by which to advance the time in each of their headers, for a source that repeats.
    pub shift: i64,
}

/// Snapshot of a flow's counters, in datagrams unless noted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Sequence numbers used: sent, shed and not sent.
    pub offered: u64,
    /// Accepted by the kernel.
    pub sent: u64,
    /// Shed; their sequence numbers are used up.
    pub shed: u64,
    /// Sent with replacement content instead of shed data.
    pub replaced: u64,
    /// Meant to be sent, but dropped in this host.
    pub not_sent: u64,
    /// Frames that the source provided.
    pub frames: u64,
    /// Bytes of data sent, without the headers of the transport.
    pub bytes: u64,
    /// Bytes of data sent or shed: the progress through the source.
    pub offset: u64,
    /// Delay behind its schedule, including the time that it gave up.
    pub behind: Nanos,
    /// Time given up because the sender could not keep up.
    pub slips: Slips,
    /// Frames whose time could not be followed.
    pub time_jumps: u64,
}

/// Counters of a flow for its watchers, and their requests for changes.
#[derive(Debug, Default)]
pub struct Sent {
    shown: Mutex<Snapshot>,
    /// Checked before each train: no lock is taken unless there is a change.
    has_change: AtomicBool,
    change: Mutex<Change>,
}

/// A change from the next train on.
#[derive(Debug, Default)]
pub struct Change {
    /// The rate, and the maximum burst in datagrams; for flows that have a rate.
    pub rate: Option<(BitRate, u32)>,
    /// New shedding policy.
    pub shed: Option<Shed>,
    /// Whether a flow under SafeUDP that has stopped tries again.
    pub rearm: bool,
}

/// Report on a flow. Counts are datagrams unless noted.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SendReport {
    /// All counters.
    #[serde(skip)]
    pub live: Snapshot,
    /// First sequence number used; `None` if the transport has none.
    pub first_seq: Option<u64>,
    /// Last sequence number used.
    pub last_seq: Option<u64>,
    /// Seconds from the first departure to the end of the last train's time.
    pub seconds: f64,
    /// Bits of data per second over that time.
    pub rate_bps: f64,
    /// Length of the data in each datagram, in bytes.
    pub datagram_data: usize,
    /// Planned burst, in datagrams.
    pub burst: u32,
    /// Delay of trains against the schedule, in microseconds.
    pub lateness_us: Lateness,
    /// Time given up because the sender could not keep up.
    pub slips: Slips,
    /// Final delay behind its schedule in seconds, including the time that it gave up.
    pub behind_seconds: f64,
    /// Counters of shedding, in its own units.
    pub shedding: ShedReport,
    /// Counters of earlier shedding policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shedding_before: Vec<ShedReport>,
    /// Counters of the sockets.
    pub socket: SendCounts,
    /// Reason for an early end: the error of a source that cannot be read, or of a broken socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Delay of trains against the schedule.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lateness {
    /// Mean delay.
    pub mean: f64,
    /// Maximum delay.
    pub max: f64,
}

/// Sends all flows until their sources end or the run is stopped, and completes frames that were started. Returns their reports in
/// order. A flow that fails does not stop the others: its report contains the reason.
pub fn run(mut flows: Vec<Flow>, run: &Run) -> Vec<SendReport> {
    if let Err(error) = cpu::sharpen_timers() {
        tracing::warn!("cannot set the timer slack: {error}; departures will be less exact");
    }
    let clock = run.clock();
    loop {
        let now = clock.now();
        let mut wake = now.plus(NAP);
        let mut first: Option<(Nanos, usize)> = None;
        let (mut is_over, mut waits, mut hears) = (true, false, false);
        for (number, flow) in flows.iter_mut().enumerate() {
            match flow.next(now, run) {
                Next::Train(departure) => {
                    if first.is_none_or(|(earliest, _)| departure < earliest) {
                        first = Some((departure, number));
                    }
                }
                Next::At(moment) => wake = wake.min(moment),
                Next::Event => waits = true,
                Next::Over => continue,
            }
            wake = flow.drive_at().map_or(wake, |moment| wake.min(moment));
            hears |= flow.hears();
            is_over = false;
        }
        if is_over {
            break;
        }
        let first = first.filter(|(departure, _)| *departure <= wake);
        // Before a departure that comes soon, exact spacing matters more than a report.
        waits |= hears && first.is_none_or(|(departure, _)| departure.since(now) >= SOON);
        let (until, waiting) = match first {
            Some((departure, number)) => (departure, flows[number].waiting()),
            None => (wake, cpu::Waiting::Sleep),
        };
        if waits {
            let events: Vec<Events<'_>> = flows.iter().flat_map(Flow::events).collect();
            clock.wait(&events, until, waiting);
            flows.iter_mut().for_each(Flow::listen);
        } else {
            clock.wait_until(until, waiting);
        }
        match first {
            // A flow that waited for an event may be due earlier.
            Some((departure, number)) if !waits || clock.now() >= departure => {
                flows[number].send_train(run);
            }
            Some(_) => {}
            None => flows.iter_mut().for_each(|flow| flow.heed(clock.now())),
        }
    }
    let now = clock.now();
    flows
        .into_iter()
        .map(|flow| flow.finish(now, run))
        .collect()
}

impl Sent {
    /// Creates shared counters, all 0.
    pub fn new() -> Arc<Sent> {
        Arc::new(Sent::default())
    }

    /// Returns the counters after the last train.
    pub fn last(&self) -> Snapshot {
        *self.shown.lock()
    }

    /// Requests a change of the flow from its next train on.
    pub fn change(&self, change: Change) {
        let mut waiting = self.change.lock();
        waiting.rate = change.rate.or(waiting.rate);
        waiting.shed = change.shed.or(waiting.shed.take());
        waiting.rearm |= change.rearm;
        self.has_change.store(true, Ordering::Release);
    }

    /// Takes the requested change, once.
    fn take_change(&self) -> Option<Change> {
        if !self.has_change.load(Ordering::Relaxed) {
            return None;
        }
        let mut waiting = self.change.lock();
        self.has_change.store(false, Ordering::Relaxed);
        Some(std::mem::take(&mut *waiting))
    }
}
