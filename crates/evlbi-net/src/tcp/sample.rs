//! Looks at connections regularly: what web100 did with a patched kernel, Linux tells by itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evlbi_core::time::Nanos;
use evlbi_trace::tcp::Reading;
use serde::{Deserialize, Serialize};

use super::{Connection, Progress};
use crate::clock::{Clock, Thread};
use crate::cpu::{self, Waiting};

/// Samples that an end keeps, at most.
pub const MAX_SAMPLES: u64 = 200_000;
/// Longest time between looks at whether to go on.
const POLL_INTERVAL: Nanos = Nanos(20_000_000);

/// What was seen, and what looking cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// In the order of time.
    pub readings: Vec<Reading>,
    /// Seconds for which connections were looked at.
    pub seconds: f64,
    /// Processor time of that, in seconds.
    pub cpu_seconds: f64,
    /// Times at which nobody looked, because this host was busy.
    pub missed: u64,
}

/// Looks at connections as often as this, in a thread of its own, until all that is done with them is over or given up. At most
/// [`MAX_SAMPLES`] readings are kept; times beyond are missed.
///
/// # Errors
/// When there cannot be a thread.
pub fn begin_sampling(
    connections: &[Arc<Connection>],
    every: Nanos,
    progress: &Arc<Progress>,
    clock: &Clock,
) -> io::Result<Thread<Sampled>> {
    let connections = connections.to_vec();
    let (progress, own) = (Arc::clone(progress), clock.clone());
    clock.spawn("sample", move || {
        look(&connections, every.max(Nanos(1000)), &progress, &own)
    })
}

fn look(
    connections: &[Arc<Connection>],
    every: Nanos,
    progress: &Progress,
    clock: &Clock,
) -> Sampled {
    let _ = cpu::sharpen_timers();
    let (begun, cpu_before) = (clock.now(), clock.thread_time());
    let mut sampled = Sampled::default();
    let mut due = begun;
    loop {
        let is_last = progress.is_over();
        if sampled.readings.len() + connections.len() > MAX_SAMPLES as usize {
            sampled.missed += 1;
        } else {
            sampled.readings.extend(readings(connections, clock));
        }
        if is_last {
            break;
        }
        due = due.plus(every);
        let late = clock.now().since(due).0 / every.0;
        sampled.missed += late;
        due = due.plus(Nanos(late.saturating_mul(every.0)));
        while clock.now() < due && !progress.is_over() {
            clock.wait_until(due.min(clock.now().plus(POLL_INTERVAL)), Waiting::Sleep);
        }
    }
    sampled.seconds = clock.now().since(begun).as_secs_f64();
    sampled.cpu_seconds = clock.thread_time().since(cpu_before).as_secs_f64();
    sampled
}

/// What the kernel says of connections at this moment.
pub fn readings(connections: &[Arc<Connection>], clock: &Clock) -> Vec<Reading> {
    let all = connections.iter().enumerate();
    all.filter_map(|(number, connection)| {
        Some(Reading {
            at: clock.utc(),
            connection: number as u32,
            backlog: connection.backlog.load(Ordering::Relaxed),
            info: connection.stream.info().ok()?,
        })
    })
    .collect()
}
