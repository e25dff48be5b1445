//! What the kernel says of this host's clock: whether something keeps it to UTC, and how far it may be off.

use std::io;
use std::mem;
use std::time::Duration;

use crate::cpu::succeed;

/// The state of the system's clock (adjtimex(2)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Whether a program keeps it and has told the kernel so.
    pub synchronised: bool,
    /// How far it is off, as that program estimates.
    pub estimated_error: Duration,
    /// How far it may be off at most.
    pub largest_error: Duration,
    /// How many parts of a million its frequency is corrected by.
    pub frequency_ppm: f64,
}

impl Clock {
    /// Asks the kernel; changes nothing.
    ///
    /// # Errors
    /// What the kernel says; some sandboxes forbid the question.
    pub fn read() -> io::Result<Clock> {
        // SAFETY: the structure is plain data for which all zeroes are valid; modes 0 asks only.
        let mut answer: libc::timex = unsafe { mem::zeroed() };
        // SAFETY: the pointer is to the structure, exclusively borrowed.
        succeed(unsafe { libc::adjtimex(&raw mut answer) })?;
        let micros = |value: libc::c_long| Duration::from_micros(value.try_into().unwrap_or(0));
        Ok(Clock {
            synchronised: answer.status & libc::STA_UNSYNC == 0,
            estimated_error: micros(answer.esterror),
            largest_error: micros(answer.maxerror),
            // In parts of a million with 16 bits behind the point.
            frequency_ppm: answer.freq as f64 / 65_536.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evlbi_testkit::need::{Kind, skip};

    #[test]
    fn the_kernel_tells_of_its_clock() {
        match Clock::read() {
            Ok(clock) => {
                assert!(clock.frequency_ppm.abs() <= 500.0);
                assert!(clock.synchronised || clock.largest_error > Duration::ZERO);
            }
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                skip(Kind::Tool, "the state of the clock (adjtimex)");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
