//! Distances of CPUs: those of a virtual machine may share a cache in one second and not in the next, and data then takes several times
//! as long from one to the other.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Round-trip time of a cache line, in nanoseconds, below which two CPUs share a cache.
const NEAR: f64 = 150.0;
const EXCHANGES: u32 = 100_000;
/// Maximum attempts for a run during which the CPUs stay near each other.
const TRIES: usize = 4;
/// Total time for which all runs of a bench wait for that, in half seconds: on some machines it never happens.
static TIMEOUT: AtomicUsize = AtomicUsize::new(120);

/// Returns the round-trip time of a cache line between the CPUs of two threads, in nanoseconds.
pub fn round_trip() -> f64 {
    let line = AtomicU32::new(0);
    let wait_for = |value| {
        while line.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    let elapsed = thread::scope(|scope| {
        scope.spawn(|| {
            for exchange in 0..EXCHANGES {
                wait_for(2 * exchange + 1);
                line.store(2 * exchange + 2, Ordering::Release);
            }
        });
        let start = Instant::now();
        for exchange in 0..EXCHANGES {
            line.store(2 * exchange + 1, Ordering::Release);
            wait_for(2 * exchange + 2);
        }
        start.elapsed()
    });
    elapsed.as_nanos() as f64 / f64::from(EXCHANGES)
}

/// Returns a run during which the CPUs were near each other, if there is one among several attempts; else the last run. Also returns
/// the longer of the round-trip times before and after it.
pub fn near<T>(mut run: impl FnMut() -> Result<T>) -> Result<(T, f64)> {
    let mut tries = TRIES;
    loop {
        let before = round_trip();
        let patience = TIMEOUT.load(Ordering::Relaxed);
        if before >= NEAR && patience > 0 {
            TIMEOUT.store(patience - 1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(500));
            continue;
        }
        let result = run()?;
        let apart = before.max(round_trip());
        tries -= 1;
        if apart < NEAR || tries == 0 || patience == 0 {
            return Ok((result, apart));
        }
    }
}
