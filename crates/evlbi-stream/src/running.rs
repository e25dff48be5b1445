//! A stream that is being sent or received by a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::{Clock, Thread};
use evlbi_net::run::{Progress, Run};

use crate::control_socket::Watched;

/// Time between two looks at whether work has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long what is dropped may still write, and how often it is looked at.
const GRACE: Nanos = Nanos(500_000_000);
const GLANCE: Duration = Duration::from_millis(1);

/// A sender or a receiver at work. Dropping it ends that; what a slow sink has not taken half a second later is lost.
pub struct Running<S: Watched + 'static, R> {
    run: Run,
    /// What is seen of it.
    pub seen: Arc<S>,
    worker: Option<Thread<R>>,
}

impl<S: Watched + 'static, R> Running<S, R> {
    /// `worker` ends soon after `run` is stopped.
    pub(crate) fn new(run: Run, seen: Arc<S>, worker: Thread<R>) -> Running<S, R> {
        Running {
            run,
            seen,
            worker: Some(worker),
        }
    }

    /// Returns what others see of it while it lasts, and change.
    pub fn watched(&self) -> Arc<dyn Watched> {
        Arc::<S>::clone(&self.seen)
    }

    /// Whether it has ended and everything is written.
    pub fn is_finished(&self) -> bool {
        self.worker.as_ref().is_none_or(Thread::is_finished)
    }

    /// Waits until it has ended and everything is written.
    ///
    /// # Panics
    /// When its thread did.
    pub fn join(mut self) -> R {
        let worker = self.worker.take().map(Thread::join);
        worker.unwrap_or_else(|| unreachable!("it is there until it is joined or dropped"))
    }

    /// Ends it: a sender when the frame that was begun is whole.
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
            // Nobody wants to know what came of it.
            let _ = worker.wait();
        }
    }
}

/// Looks once a second at work and shows how far it is with a line about it; looks a last time when it has ended.
pub fn watch(
    mut progress: Progress,
    has_ended: impl Fn() -> bool,
    mut look: impl FnMut() -> (u64, String),
    clock: &Clock,
) {
    loop {
        // Asked before the look: then the counts of the last one are the last.
        let has_ended = has_ended();
        if progress.is_due() || has_ended {
            let (done, line) = look();
            if has_ended {
                return;
            }
            progress.show(done, &line);
        }
        clock.sleep(POLL_INTERVAL);
    }
}
