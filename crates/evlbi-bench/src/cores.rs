//! How far apart the processors are: a virtual machine's may share a cache in one second and not in the
//! next, and what crosses from one to the other then takes several times as long.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Nanoseconds for a cache line there and back, below which two processors share a cache.
const NEAR: f64 = 150.0;
const EXCHANGES: u32 = 100_000;
/// How often a run is repeated whose processors did not stay near each other.
const TRIES: usize = 4;
/// How long all runs of a bench together wait for them to be so, in half seconds: some machines' never are.
static TIMEOUT: AtomicUsize = AtomicUsize::new(120);

/// Nanoseconds for a cache line to go from one thread's processor to another's and back.
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

/// A run during which the processors were near each other, if there is one among several; else the last.
/// With it, the longer of the round trips before and after.
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
