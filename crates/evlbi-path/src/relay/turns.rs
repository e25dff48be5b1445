//! When a thread of a relay works, sleeps and spins, and whether it has priority over all other threads.

use std::io;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::{self, Clock, pollfd};
use evlbi_net::cpu;

/// Maximum sleep of a thread.
const NAP: Nanos = Nanos(50_000_000);
/// Maximum lateness that counts as wake-up time; a longer one has another cause.
const MAX_LATE: Nanos = Nanos(150_000);
/// Spin time between two polls of the hosts.
const SPIN_STEP: Nanos = Nanos(2_000);
/// Divisor of [`WINDOW`] for the maximum time spent spinning.
const SPIN_SHARE: u64 = 4;
/// Time window for the fractions of work and spinning.
const WINDOW: Nanos = Nanos(10_000_000);
/// Percentage of work in a window above which a thread takes turns with the hosts' own threads, which would otherwise starve, until it
/// falls below [`LITTLE_WORK`]. Not if a cell has a rate, which must be kept.
const MUCH_WORK: u64 = 40;
const LITTLE_WORK: u64 = 25;
/// Maximum work without a break.
const AT_A_STRETCH: Nanos = Nanos(1_000_000);
/// Length of a break.
const BREAK: Duration = Duration::from_micros(50);
/// Priority among real-time threads.
const PRIORITY: u8 = 10;

/// Time accounting of a thread, from its start.
#[derive(Default)]
pub struct Turns {
    start: Nanos,
    /// Typical wake-up delay, and its scatter.
    late: Nanos,
    scatter: Nanos,
    /// Time spun and slept in this window.
    spun: Nanos,
    asleep: Nanos,
    since: Nanos,
    /// Time of its last sleep.
    slept: Nanos,
    /// Whether it keeps priority however much it works.
    always: bool,
    /// Whether it may have priority over all other threads, and whether it has.
    may_be_first: bool,
    is_first: bool,
    /// Time with priority, out of the observed time.
    was_first: Nanos,
    looked_at: Nanos,
}

impl Turns {
    /// Creates the accounting of the current thread, which gets priority if allowed: `always`, or while there is time for others.
    pub fn new(always: bool) -> Turns {
        if let Err(error) = cpu::sharpen_timers() {
            tracing::debug!("cannot set the timer slack: {error}");
        }
        // It sleeps whenever it can, so the kernel's limit on real-time threads is far away.
        let is_first = be_first().is_ok();
        Turns {
            start: Clock::real().now(),
            always,
            may_be_first: is_first,
            is_first,
            ..Turns::default()
        }
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Nanos {
        Clock::real().now().since(self.start)
    }

    /// Returns the fraction of the time in which it had priority over all threads.
    pub fn share_first(&self) -> f64 {
        self.was_first.as_secs_f64() / self.looked_at.as_secs_f64().max(1e-9)
    }

    /// Pauses after work: others need the CPU too, and the kernel stops real-time threads that leave them nothing.
    pub fn pause(&mut self) {
        if self.is_first && self.now().since(self.slept) > AT_A_STRETCH {
            Clock::real().sleep(BREAK);
            self.slept = self.now();
        }
    }

    /// Keeps priority only while there is time for the others.
    pub fn take(&mut self) {
        let now = self.now();
        let window = now.since(self.since);
        if window < WINDOW {
            return;
        }
        self.looked_at = self.looked_at.plus(window);
        if self.is_first {
            self.was_first = self.was_first.plus(window);
        }
        let work = 100 * window.since(self.spun.plus(self.asleep)).0 / window.0;
        (self.spun, self.asleep, self.since) = (Nanos(0), Nanos(0), now);
        if self.is_first && !self.always && work > MUCH_WORK {
            self.is_first = cpu::set_ordinary().is_err();
        } else if self.may_be_first && !self.is_first && work < LITTLE_WORK {
            self.is_first = be_first().is_ok();
        }
    }

    /// Sleeps until `next`, or until one of the descriptors is readable. It learns how long waking takes, sleeps shorter by that time
    /// and spins for the rest, as long as spinning takes less than its fraction of the window.
    pub fn nap(&mut self, next: Option<Nanos>, polled: &mut [pollfd]) {
        let before = self.now();
        let until = next.map_or(NAP, |next| next.since(before));
        let until = Nanos(until.0.min(NAP.0));
        let may_spin = self.spun.0 < WINDOW.0 / SPIN_SHARE;
        let lead = Nanos(u64::from(may_spin) * (self.late.0 + 2 * self.scatter.0));
        if until <= lead {
            // Only briefly: frames are polled in between.
            let end = self.now().plus(SPIN_STEP);
            while self.now() < end {}
            self.spun = self.spun.plus(SPIN_STEP);
            return;
        }
        let asleep = Nanos(until.0 - lead.0);
        // A signal may end it early: the clock is read next.
        let is_ready = clock::poll(polled, Duration::from_nanos(asleep.0)).unwrap_or(false);
        self.slept = self.now();
        let slept = self.slept.since(before);
        self.asleep = self.asleep.plus(slept);
        if is_ready {
            return;
        }
        // A much longer delay is caused by the machine, not by waking up.
        let over = slept.since(asleep).0.min(MAX_LATE.0);
        self.scatter.0 = (15 * self.scatter.0 + over.abs_diff(self.late.0)) / 16;
        self.late.0 = (15 * self.late.0 + over) / 16;
    }
}

fn be_first() -> io::Result<()> {
    cpu::set_real_time(PRIORITY, cpu::Waiting::Sleep)
}
