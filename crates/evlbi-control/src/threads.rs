//! The threads that agents and controllers work on.

use std::time::Duration;

use anyhow::{Context, Result};
use evlbi_net::run::Run;
use tokio::runtime::{Builder, Runtime};

/// How often work looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// What still waits for a disk or a host at the end is given up after this time.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads that carry out what is spawned on them until they are dropped.
#[derive(Debug)]
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Starts them.
    ///
    /// # Errors
    /// When the system has none.
    pub fn start() -> Result<Threads> {
        let mut threads = Builder::new_multi_thread();
        let threads = threads.worker_threads(2).enable_all().build();
        Ok(Threads(Some(threads.context("threads cannot be started")?)))
    }

    /// Waits for `work`, which may spawn more.
    pub fn finish<T>(&self, work: impl Future<Output = T>) -> T {
        let Some(threads) = &self.0 else {
            unreachable!("they are there until they are dropped");
        };
        threads.block_on(work)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(threads) = self.0.take() {
            threads.shutdown_timeout(PATIENCE);
        }
    }
}

/// Waits until a run is stopped.
pub async fn stopped(run: &Run) {
    while !run.is_stopped() {
        tokio::time::sleep(LOOK).await;
    }
}
