//! The clock that a run is given. The threads of senders and receivers, and their transports, take the time from it and wait by it.
//!
//! A *simulated* clock is shared by threads of which one runs at a time: when it waits, the one with the earliest moment continues (of
//! two with the same, the one that was started first), and the time is that moment. So whole systems run in virtual time, as fast
//! as they can, and twice alike. All their threads are started by [`Clock::spawn`] and wait by the clock alone.

use std::fmt;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use evlbi_core::time::Nanos;

use crate::cpu::{self, Waiting};
use crate::transport::Events;

use self::simulation::Simulation;

mod simulation;

pub use self::simulation::Place;

/// Most descriptors in one wait. With more of them, the wait ends sooner.
const MOST_POLLS: usize = 128;
/// And this soon.
const NAP: Duration = Duration::from_millis(1);
/// Time between two looks at another thread, in virtual time.
const LOOK: Duration = Duration::from_millis(1);

/// What time it is, and how to wait. Its clones are the same clock.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Simulation>>);

impl Clock {
    /// The clocks of this host.
    pub fn real() -> Clock {
        Clock(None)
    }

    /// A simulated clock, for [`Clock::simulate`]; `utc`: nanoseconds of UTC since 1970 at its beginning.
    pub fn simulated(utc: u64) -> Clock {
        Clock(Some(Arc::new(Simulation::new(utc))))
    }

    /// Whether it shows the time of this host.
    pub fn is_real(&self) -> bool {
        self.0.is_none()
    }

    /// The time of the monotonic clock.
    #[inline]
    pub fn now(&self) -> Nanos {
        match &self.0 {
            None => cpu::now(),
            Some(simulation) => simulation.now(),
        }
    }

    /// Nanoseconds of UTC since 1970.
    #[inline]
    pub fn utc(&self) -> u64 {
        match &self.0 {
            None => cpu::utc(),
            Some(simulation) => simulation.utc(),
        }
    }

    /// Waits until `moment`; returns the time then.
    #[inline]
    pub fn wait_until(&self, moment: Nanos, waiting: Waiting) -> Nanos {
        match &self.0 {
            None => cpu::wait_until(moment, waiting),
            Some(simulation) => simulation.wait(&[], moment),
        }
    }

    /// Waits for one of `events`, or until `moment`.
    pub fn wait(&self, events: &[Events<'_>], moment: Nanos, waiting: Waiting) {
        if let Some(simulation) = &self.0 {
            simulation.wait(events, moment);
            return;
        }
        let mut polls = [libc::pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        }; MOST_POLLS];
        let all = events.iter().flat_map(|events| events.polls);
        let count = polls
            .iter_mut()
            .zip(all)
            .map(|(poll, it)| *poll = *it)
            .count();
        if count == 0 {
            cpu::wait_until(moment, waiting);
            return;
        }
        let span = Duration::from_nanos(moment.since(cpu::now()).0);
        let span = if count == MOST_POLLS {
            span.min(NAP)
        } else {
            span
        };
        // What is wrong shows when it is read or written.
        if poll(&mut polls[..count], span).is_err() {
            std::thread::sleep(span.min(NAP));
        }
    }

    /// Lets `span` pass.
    pub fn sleep(&self, span: Duration) {
        match &self.0 {
            None => std::thread::sleep(span),
            Some(simulation) => {
                simulation.wait(&[], simulation.now().plus(span.into()));
            }
        }
    }

    /// Waits for what another thread sends; none when it is gone.
    pub fn receive<T>(&self, from: &mpsc::Receiver<T>) -> Option<T> {
        if self.0.is_none() {
            return from.recv().ok();
        }
        loop {
            match from.try_recv() {
                Ok(received) => return Some(received),
                Err(mpsc::TryRecvError::Disconnected) => return None,
                Err(mpsc::TryRecvError::Empty) => self.sleep(LOOK),
            }
        }
    }

    /// Starts a thread that lives by this clock.
    ///
    /// # Errors
    /// When the system has none to give.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Thread<T>> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        let clock = self.clone();
        let number = clock.0.as_ref().map(|it| it.register(name));
        let simulated = clock.0.clone().zip(number);
        let handle = thread.spawn(move || {
            let _ends = simulated.map(|(simulation, number)| simulation.enter(number));
            work()
        });
        if let (Err(_), Some(simulation), Some(number)) = (&handle, &clock.0, number) {
            simulation.forget(number);
        }
        Ok(Thread {
            handle: handle?,
            clock,
            number,
        })
    }

    /// Runs `work` on this thread in the time of a simulated clock; a real one just runs it.
    pub fn simulate<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(simulation) = &self.0 else {
            return work();
        };
        let number = simulation.register("main");
        let _ends = simulation.enter(number);
        work()
    }

    /// Writes down what happens now, if the clock is simulated: two runs of the same system write the same.
    #[inline]
    pub fn log(&self, what: fmt::Arguments<'_>) {
        if let Some(simulation) = &self.0 {
            simulation.log(what);
        }
    }

    /// What was written down, a line for each event; nothing of a real clock.
    pub fn take_log(&self) -> String {
        self.0.as_ref().map_or_else(String::new, |it| it.take_log())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            None => "Clock::real",
            Some(_) => "Clock::simulated",
        })
    }
}

/// A thread that lives by a clock.
#[derive(Debug)]
pub struct Thread<T> {
    handle: JoinHandle<T>,
    clock: Clock,
    number: Option<usize>,
}

impl<T> Thread<T> {
    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        match (&self.clock.0, self.number) {
            (Some(simulation), Some(number)) => simulation.has_ended(number),
            _ => self.handle.is_finished(),
        }
    }

    /// Waits for its end; if it panicked, so does this.
    pub fn join(self) -> T {
        let ended = self.wait();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn wait(self) -> std::thread::Result<T> {
        if self.number.is_some() {
            while !self.is_finished() {
                self.clock.sleep(LOOK);
            }
        }
        self.handle.join()
    }
}

/// Waits for one of `polls`, at most for `span`; says whether one came.
pub(crate) fn poll(polls: &mut [libc::pollfd], span: Duration) -> io::Result<bool> {
    let time = libc::timespec {
        tv_sec: span.as_secs() as libc::time_t,
        tv_nsec: span.subsec_nanos().into(),
    };
    // SAFETY: the first pointer and the count describe `polls`, exclusively borrowed; the time lives through the call; no signal
    // mask is given.
    let ready = unsafe {
        libc::ppoll(
            polls.as_mut_ptr(),
            polls.len() as libc::nfds_t,
            &raw const time,
            std::ptr::null(),
        )
    };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn virtual_time_passes_as_threads_wait() {
        let clock = Clock::simulated(7);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let times = clock.simulate(|| {
            let threads: Vec<Thread<Nanos>> = [3, 1, 2]
                .into_iter()
                .map(|seconds| {
                    let (own, seen) = (clock.clone(), Arc::clone(&seen));
                    let work = move || {
                        own.sleep(SECOND * seconds * 3600);
                        seen.lock().unwrap().push(seconds);
                        own.log(format_args!("slept {seconds}"));
                        own.now()
                    };
                    clock.spawn("sleeper", work).unwrap()
                })
                .collect();
            threads.into_iter().map(Thread::join).collect::<Vec<_>>()
        });
        assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
        let hours = |hours: u64| Nanos(hours * 3600 * Nanos::SECOND.0);
        assert_eq!(times, [hours(3), hours(1), hours(2)]);
        assert_eq!(clock.utc(), 7 + clock.now().0);
        assert!(clock.take_log().contains("sleeper: slept 3"));
    }

    #[test]
    fn of_two_moments_that_are_equal_the_first_thread_goes_on() {
        let run = || {
            let clock = Clock::simulated(0);
            clock.simulate(|| {
                let threads: Vec<Thread<()>> = (0..4)
                    .map(|number| {
                        let own = clock.clone();
                        let work = move || {
                            for step in 0..50 {
                                own.sleep(Duration::from_millis(1 + step % (number + 1)));
                                own.log(format_args!("{number} {step}"));
                            }
                        };
                        clock.spawn("worker", work).unwrap()
                    })
                    .collect();
                threads.into_iter().for_each(Thread::join);
            });
            clock.take_log()
        };
        let first = run();
        assert_eq!(
            first
                .lines()
                .filter(|line| line.contains("worker: ") && !line.ends_with("on"))
                .count(),
            200
        );
        for _ in 0..20 {
            assert_eq!(run(), first);
        }
    }

    #[test]
    fn a_real_clock_starts_threads_too() {
        let clock = Clock::real();
        let own = clock.clone();
        let thread = clock.spawn("real", move || own.now()).unwrap();
        assert!(thread.join() <= clock.now());
        assert_eq!(clock.simulate(|| 3), 3);
        assert_eq!(clock.take_log(), "");
    }
}
