//! Controls a stream that a thread of its own sends or receives.

use std::sync::Arc;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::{Clock, Thread};
use evlbi_net::run::{Progress, Run};

use crate::control_socket::Watched;

/// Interval between two checks whether work has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time that dropped work may continue to write, and the interval at which it is checked.
const GRACE: Nanos = Nanos(500_000_000);
const GLANCE: Duration = Duration::from_millis(1);

/// A running sender or receiver. Dropping it stops it; data that a slow sink has not taken half a second later is lost.
pub struct Running<S: Watched + 'static, R> {
    run: Run,
    /// Status and controls.
    pub seen: Arc<S>,
    worker: Option<Thread<R>>,
}

impl<S: Watched + 'static, R> Running<S, R> {
    /// Takes over `worker`, which must end soon after `run` is stopped.
    pub(crate) fn new(run: Run, seen: Arc<S>, worker: Thread<R>) -> Running<S, R> {
        Running {
            run,
            seen,
            worker: Some(worker),
        }
    }

    /// Returns the status and controls, for others.
    pub fn watched(&self) -> Arc<dyn Watched> {
        Arc::<S>::clone(&self.seen)
    }

    /// Returns whether it has ended and everything is written.
    pub fn is_finished(&self) -> bool {
        self.worker.as_ref().is_none_or(Thread::is_finished)
    }

    /// Waits until it has ended and everything is written.
    ///
    /// # Panics
    /// Panics if its thread panicked.
    pub fn join(mut self) -> R {
        let worker = self.worker.take().map(Thread::join);
        worker.unwrap_or_else(|| unreachable!("only joining or dropping takes it"))
    }

    /// Stops it; a sender completes the current frame first.
    pub fn stop(&self) {
        self.run.stop();
    }
}

impl<S: Watched + 'static, R> Drop for Running<S, R> {
    fn drop(&mut self) {
        self.stop();
        if let Some(worker) = self.worker.take() {
            let clock = self.run.clock();
            let until = clock.now().plus(GRACE);
            while !worker.is_finished() && clock.now() < until {
                clock.sleep(GLANCE);
            }
            self.run.abandon();
            // The result is not needed.
            let _ = worker.wait();
        }
    }
}

/// Shows progress once a second until the work has ended; polls a last time then.
pub fn watch(
    mut progress: Progress,
    has_ended: impl Fn() -> bool,
    mut poll: impl FnMut() -> (u64, String),
    clock: &Clock,
) {
    loop {
        // Asked before the poll, so that the last poll has the final counts.
        let has_ended = has_ended();
        if progress.is_due() || has_ended {
            let (done, line) = poll();
            if has_ended {
                return;
            }
            progress.show(done, &line);
        }
        clock.sleep(POLL_INTERVAL);
    }
}
