//! Samples the state of connections regularly: web100 needed a patched kernel for this, Linux now reports it itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evlbi_core::time::Nanos;
use evlbi_trace::tcp::Reading;
use serde::{Deserialize, Serialize};

use super::{Connection, Progress};
use crate::clock::{Clock, Thread};
use crate::cpu::{self, Waiting};

/// Maximum number of samples that an endpoint keeps.
pub const MAX_SAMPLES: u64 = 200_000;
/// Interval at which the thread checks whether to continue.
const POLL_INTERVAL: Nanos = Nanos(20_000_000);

/// Samples, and the cost of sampling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Samples in order of time.
    pub readings: Vec<Reading>,
    /// Seconds during which connections were sampled.
    pub seconds: f64,
    /// CPU time of sampling, in seconds.
    pub cpu_seconds: f64,
    /// Number of samples missed because this host was busy.
    pub missed: u64,
}

/// Samples connections at this interval, in a thread of its own, until all work on them has ended or was given up. At most
/// [`MAX_SAMPLES`] samples are kept; later ones count as missed.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub fn begin_sampling(
    connections: &[Arc<Connection>],
    every: Nanos,
    progress: &Arc<Progress>,
    clock: &Clock,
) -> io::Result<Thread<Sampled>> {
    let connections = connections.to_vec();
    let (progress, own) = (Arc::clone(progress), clock.clone());
    clock.spawn("sample", move || {
        sample(&connections, every.max(Nanos(1000)), &progress, &own)
    })
}

fn sample(
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

/// Returns the kernel's present state of connections.
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
