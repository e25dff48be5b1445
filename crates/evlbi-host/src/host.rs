//! What is asked of this host for a thread that moves data.

use std::io;

use evlbi_net::cpu::{self, Waiting};
use thiserror::Error;

/// What this host refuses a thread.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// It may not be bound to the processor, or there is no such one.
    #[error("cannot pin to processor {cpu}")]
    Pin {
        /// Number of the processor.
        cpu: usize,
        /// What the kernel says.
        source: io::Error,
    },
    /// It may not have the priority.
    #[error("cannot set real-time priority {priority}")]
    Priority {
        /// Real-time priority, 1 to 99.
        priority: u8,
        /// What the kernel says.
        source: io::Error,
    },
}

/// Where the thread runs, and the memory of its sockets. By default the host decides.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Processor to run on.
    pub cpu: Option<usize>,
    /// Real-time priority (SCHED_FIFO), 1 to 99.
    pub priority: Option<u8>,
    /// Socket buffer to ask for, in bytes.
    pub buffer: Option<u64>,
}

impl HostOptions {
    /// Readies the current thread.
    ///
    /// # Errors
    /// When this host refuses the processor or the priority.
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
