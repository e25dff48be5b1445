//! What is asked of this host for a thread that moves data.

use anyhow::{Context, Result};
use evlbi_net::cpu::{self, Waiting};

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
    pub fn ready_thread(&self, waiting: Waiting) -> Result<()> {
        if let Some(core) = self.cpu {
            cpu::pin(core).with_context(|| format!("cannot pin to processor {core}"))?;
        }
        if let Some(priority) = self.priority {
            cpu::set_real_time(priority, waiting)
                .with_context(|| format!("cannot set real-time priority {priority}"))?;
        }
        Ok(())
    }
}
