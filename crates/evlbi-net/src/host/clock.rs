//! State of this host's clock as the kernel reports it: whether something keeps it to UTC, and its maximum error.

use std::io;
use std::mem;
use std::time::Duration;

use crate::cpu::succeed;

/// The state of the system's clock (adjtimex(2)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    /// Whether a program disciplines it and has reported that to the kernel.
    pub synchronised: bool,
    /// Error, as that program estimates it.
    pub estimated_error: Duration,
    /// Maximum error.
    pub max_error: Duration,
    /// Frequency correction, in parts per million.
    pub frequency_ppm: f64,
}

impl Clock {
    /// Reads the kernel's state; changes nothing.
    ///
    /// # Errors
    /// Returns the kernel's error; some sandboxes forbid the call.
    pub fn read() -> io::Result<Clock> {
        // SAFETY: the structure is plain data for which all zeroes are valid; modes 0 only reads.
        let mut answer: libc::timex = unsafe { mem::zeroed() };
        // SAFETY: the pointer is to the structure, exclusively borrowed.
        succeed(unsafe { libc::adjtimex(&raw mut answer) })?;
        let micros = |value: libc::c_long| Duration::from_micros(value.try_into().unwrap_or(0));
        Ok(Clock {
            synchronised: answer.status & libc::STA_UNSYNC == 0,
            estimated_error: micros(answer.esterror),
            max_error: micros(answer.maxerror),
            // In parts per million, with 16 fractional bits.
            frequency_ppm: answer.freq as f64 / 65_536.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evlbi_testkit::need::{Kind, skip};

    #[test]
    fn the_kernel_reports_its_clock() {
        match Clock::read() {
            Ok(clock) => {
                assert!(clock.frequency_ppm.abs() <= 500.0);
                assert!(clock.synchronised || clock.max_error > Duration::ZERO);
            }
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                skip(Kind::Tool, "the state of the clock (adjtimex)");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
