//! The threads that agents and controllers work on.

use std::io;
use std::time::Duration;

use evlbi_net::run::Run;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};

/// How often work looks whether it is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// What still waits for a disk or a host at the end is given up after this time.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The system has no threads to give.
#[derive(Debug, Error)]
#[error("threads cannot be started")]
pub struct ThreadsError(#[source] io::Error);

/// Threads that carry out what is spawned on them until they are dropped.
#[derive(Debug)]
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Starts two threads.
    ///
    /// # Errors
    /// When the system has none.
    pub fn start() -> Result<Threads, ThreadsError> {
        let mut threads = Builder::new_multi_thread();
        let threads = threads.worker_threads(2).enable_all().build();
        Ok(Threads(Some(threads.map_err(ThreadsError)?)))
    }

    /// Carries out `work`, which may spawn more, and returns what comes of it.
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
