//! Settings of this host for a thread that moves data.

use std::io;

use evlbi_net::cpu::{self, Waiting};
use thiserror::Error;

/// A setting that this host refuses.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The thread may not run on this CPU, or there is no such CPU.
    #[error("cannot pin to processor {cpu}")]
    Pin {
        /// Number of the CPU.
        cpu: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// The thread may not have this priority.
    #[error("cannot set real-time priority {priority}")]
    Priority {
        /// Real-time priority, 1 to 99.
        priority: u8,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Core and priority of the thread, and size of its socket buffers. By default the host decides.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// CPU to run on.
    pub cpu: Option<usize>,
    /// Real-time priority (SCHED_FIFO), 1 to 99.
    pub priority: Option<u8>,
    /// Socket buffer to request, in bytes.
    pub buffer: Option<u64>,
}

impl HostOptions {
    /// Applies the settings to the current thread.
    ///
    /// # Errors
    /// Returns an error if this host refuses the CPU or the priority.
    pub fn ready_thread(&self, waiting: Waiting) -> Result<(), HostError> {
        if let Some(cpu) = self.cpu {
            cpu::pin(cpu).map_err(|source| HostError::Pin { cpu, source })?;
        }
        if let Some(priority) = self.priority {
            cpu::set_real_time(priority, waiting)
                .map_err(|source| HostError::Priority { priority, source })?;
        }
        Ok(())
    }
}
