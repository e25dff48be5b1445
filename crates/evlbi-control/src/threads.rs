//! Threads of agents and controllers.

use std::io;
use std::time::Duration;

use evlbi_net::run::Run;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};

/// Interval between checks whether the run is stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout at the end for work that still waits for a disk or a host.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Error: the system cannot start threads.
#[derive(Debug, Error)]
#[error("cannot start threads")]
pub struct ThreadsError(#[source] io::Error);

/// Threads that run spawned tasks until they are dropped.
#[derive(Debug)]
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Starts two threads.
    ///
    /// # Errors
    /// Returns [`ThreadsError`] if the system cannot start threads.
    pub fn start() -> Result<Threads, ThreadsError> {
        let mut threads = Builder::new_multi_thread();
        let threads = threads.worker_threads(2).enable_all().build();
        Ok(Threads(Some(threads.map_err(ThreadsError)?)))
    }

    /// Runs `work`, which may spawn tasks, and returns its output.
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
            threads.shutdown_timeout(TIMEOUT);
        }
    }
}

/// Waits until a run is stopped, within 50 ms.
pub async fn stopped(run: &Run) {
    while !run.is_stopped() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
