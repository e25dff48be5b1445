//! Waiting for what another process or the kernel does. It is the only place where tests ask a clock: a watchdog, which no
//! busy machine comes near, ends the wait for what never happens.
#![allow(clippy::disallowed_methods, reason = "the watchdog of all tests")]

use std::time::{Duration, Instant};

/// How long anything may take. Longer than a machine with many neighbours needs for anything here.
pub const WATCHDOG: Duration = Duration::from_secs(120);

const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `is_so`.
///
/// # Panics
/// With `what`, when it is not so within [`WATCHDOG`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some(what, || is_so().then_some(()));
}

/// Waits until `look` finds something, and returns it.
///
/// # Panics
/// With `what`, when it finds nothing within [`WATCHDOG`].
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
