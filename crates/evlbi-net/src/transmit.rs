//! The sending threads' work: frames of many flows leave at their times, cut into datagrams, some of
//! them shed on purpose.
//!
//! One thread paces all flows of a host ([`run`]). Nothing is copied but headers: the payload goes to
//! the kernel from where the source holds it.
//!
//! Here belongs what every flow needs at its departure, and a further [`Source`] of frames in memory.

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

/// Longest wait between two looks at whether to stop.
const NAP: Nanos = Nanos(50_000_000);

/// Where frames come from.
pub trait Source: Send {
    /// The frames that come next, as many as lie in memory; none at the end.
    ///
    /// # Errors
    /// What the file or generator behind it says.
    fn frames(&mut self) -> io::Result<Frames<'_>>;

    /// So many bytes of what [`Source::frames`] showed have left: whole frames.
    fn consume(&mut self, bytes: usize);
}

/// Whole frames, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// Their bytes.
    pub bytes: &'a [u8],
    /// By how many frames the time in each of their headers is to be moved on, as a source does that is
    /// repeated.
    pub shift: i64,
}

/// Snapshot of a flow's counters, in datagrams unless said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Sequence numbers used: sent, shed and not sent.
    pub offered: u64,
    /// Accepted by the kernel.
    pub sent: u64,
    /// Left out on purpose; their sequence numbers are used up.
    pub shed: u64,
    /// Sent with other content in the place of shed data.
    pub replaced: u64,
    /// Meant to be sent, and dropped in this host.
    pub not_sent: u64,
    /// Frames that the source gave.
    pub frames: u64,
    /// Bytes of data sent, without the headers of the transport.
    pub bytes: u64,
    /// Bytes of data that left or were shed: how far the source is through.
    pub offset: u64,
    /// How far it is behind its schedule, what it gave up included.
    pub behind: Nanos,
    /// Time given up because the sender could not keep up.
    pub slips: Slips,
    /// Frames whose time could not be followed.
    pub time_jumps: u64,
}

/// What a flow has sent so far, for whoever watches it, and what that wants to be otherwise.
#[derive(Debug, Default)]
pub struct Sent {
    shown: Mutex<Snapshot>,
    /// Looked at before each train: no lock while nothing is to change.
    has_change: AtomicBool,
    change: Mutex<Change>,
}

/// What is to be otherwise from the next train on.
#[derive(Debug, Default)]
pub struct Change {
    /// The rate, and the most datagrams back to back; of flows that have a rate.
    pub rate: Option<(BitRate, u32)>,
    /// What is left out.
    pub shed: Option<Shed>,
}

/// What became of a flow. Counts are datagrams unless said.
#[derive(Clone, Debug, Serialize)]
pub struct SendReport {
    /// All counters.
    #[serde(skip)]
    pub live: Snapshot,
    /// First sequence number used; none where the transport has none.
    pub first_seq: Option<u64>,
    /// Last sequence number used.
    pub last_seq: Option<u64>,
    /// From the first departure to the end of the last train's time.
    pub seconds: f64,
    /// Bits of data per second over that time.
    pub rate_bps: f64,
    /// Length of the data in each datagram in bytes.
    pub datagram_data: usize,
    /// Datagrams that left back to back, as planned.
    pub burst: u32,
    /// How much later than by the schedule trains left, in microseconds.
    pub lateness_us: Lateness,
    /// Time given up because the sender could not keep up.
    pub slips: Slips,
    /// How far it was behind its schedule at its end in seconds, what it gave up included.
    pub behind_seconds: f64,
    /// What shedding did, in its own units.
    pub shedding: ShedReport,
    /// What it did before its policy was changed, each time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shedding_before: Vec<ShedReport>,
    /// What the sockets say.
    pub socket: SendCounts,
    /// Why it ended early: what a source says that cannot be read, or a socket that is of no more use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How much later than by the schedule trains left.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lateness {
    /// On average.
    pub mean: f64,
    /// At most.
    pub max: f64,
}

/// Sends all flows until their sources end or the run is stopped, and then what completes a frame that was begun; returns
/// their reports in order. A flow that fails does not stop the others: its report says why.
pub fn run(mut flows: Vec<Flow>, run: &Run) -> Vec<SendReport> {
    if let Err(error) = cpu::sharpen_timers() {
        tracing::warn!("cannot set the timer slack: {error}; departures will be less exact");
    }
    let clock = run.clock();
    loop {
        let is_stopped = run.is_stopped();
        let now = clock.now();
        let mut wake = now.plus(NAP);
        let mut first: Option<(Nanos, usize)> = None;
        let (mut is_over, mut waits) = (true, false);
        for (number, flow) in flows.iter_mut().enumerate() {
            match flow.next(now, is_stopped) {
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
            is_over = false;
        }
        if is_over {
            break;
        }
        let first = first.filter(|(departure, _)| *departure <= wake);
        let (until, waiting) = match first {
            Some((departure, number)) => (departure, flows[number].waiting()),
            None => (wake, cpu::Waiting::Sleep),
        };
        if waits {
            let events: Vec<Events<'_>> = flows.iter().map(Flow::events).collect();
            clock.wait(&events, until, waiting);
        } else {
            clock.wait_until(until, waiting);
        }
        match first {
            // What waited for an event may be due before.
            Some((departure, number)) if !waits || clock.now() >= departure => {
                flows[number].send_train(run);
            }
            Some(_) => {}
            None => flows.iter_mut().for_each(|flow| flow.heed(clock.now())),
        }
    }
    let now = clock.now();
    flows.into_iter().map(|flow| flow.finish(now)).collect()
}

impl Sent {
    /// Shared counters at zero.
    pub fn new() -> Arc<Sent> {
        Arc::new(Sent::default())
    }

    /// Returns the counters as they were after the last train.
    pub fn last(&self) -> Snapshot {
        *self.shown.lock()
    }

    /// Has the flow change from its next train on.
    pub fn change(&self, change: Change) {
        let mut waiting = self.change.lock();
        waiting.rate = change.rate.or(waiting.rate);
        waiting.shed = change.shed.or(waiting.shed.take());
        self.has_change.store(true, Ordering::Release);
    }

    /// What is to change, once.
    fn take_change(&self) -> Option<Change> {
        if !self.has_change.load(Ordering::Relaxed) {
            return None;
        }
        let mut waiting = self.change.lock();
        self.has_change.store(false, Ordering::Relaxed);
        Some(std::mem::take(&mut *waiting))
    }
}
