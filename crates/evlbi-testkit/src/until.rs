//! Waiting for another process or the kernel. Only here do tests ask a clock: a watchdog, far beyond what a busy machine needs, ends
//! the wait for something that never happens.
#![allow(clippy::disallowed_methods, reason = "the watchdog of all tests")]

use std::time::{Duration, Instant};

/// Timeout for anything: longer than a machine with many neighbours needs.
pub const WATCHDOG: Duration = Duration::from_secs(120);

const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `is_so` returns true.
///
/// # Panics
/// Panics with `what` if that does not happen within [`WATCHDOG`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some(what, || is_so().then_some(()));
}

/// Waits until `look` returns something, and returns it.
///
/// # Panics
/// Panics with `what` if it returns nothing within [`WATCHDOG`].
#[track_caller]
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            begun.elapsed() < WATCHDOG,
            "still waiting after {} s: {what}",
            WATCHDOG.as_secs()
        );
        std::thread::sleep(PAUSE);
    }
}
