//! The clock that a run is given: nothing below a program asks the system for the time.

use std::time::Duration;

use evlbi_core::time::Nanos;

use crate::cpu::{self, Waiting};

/// What time it is, and how to wait.
#[derive(Clone, Debug, Default)]
pub struct Clock(());

impl Clock {
    /// The clocks of this host.
    pub fn real() -> Clock {
        Clock(())
    }

    /// The time of the monotonic clock.
    #[inline]
    pub fn now(&self) -> Nanos {
        cpu::now()
    }

    /// Nanoseconds of UTC since 1970.
    #[inline]
    pub fn utc(&self) -> u64 {
        cpu::utc()
    }

    /// Waits until `moment`; returns the time then.
    #[inline]
    pub fn wait_until(&self, moment: Nanos, waiting: Waiting) -> Nanos {
        cpu::wait_until(moment, waiting)
    }

    /// Lets `span` pass.
    pub fn sleep(&self, span: Duration) {
        std::thread::sleep(span);
    }
}
