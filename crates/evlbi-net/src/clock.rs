//! The clock of a run. The threads of senders and receivers, and their transports, read the time and wait only through it.
//!
//! Threads that share a *simulated* clock run one at a time. When one waits, the thread with the earliest wake-up time continues (of
//! two with the same time, the one that was started first), and the clock jumps to that time. So whole systems run in virtual time, as
//! fast as the CPU allows, and two runs are identical. These are not threads of the operating system: [`Clock::spawn`] starts them,
//! they wait only by the clock, and they run on the thread that called [`Clock::simulate`].
//!
//! Add further kinds of events to wait for here, never another way to wait.
#![allow(clippy::disallowed_methods, reason = "this is the clock")]

use std::any::Any;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

use evlbi_core::time::Nanos;
use parking_lot::{Condvar, Mutex};

use self::simulation::Simulation;
use crate::cpu::{self, Waiting};

pub(crate) mod events;
mod simulation;

pub use self::events::{Events, readable};
pub use self::simulation::{Place, Source};
pub use libc::pollfd;

/// Maximum number of descriptors in one wait. With more, the wait ends after [`NAP`] at the latest.
const MAX_POLLS: usize = 128;
/// Maximum wait with more descriptors, and after a failed poll.
const NAP: Duration = Duration::from_millis(1);

/// A source of time and a way to wait. Clones are the same clock.
#[derive(Clone, Default)]
pub struct Clock(Option<Simulated>);

/// The clock of a simulated host.
#[derive(Clone)]
struct Simulated {
    simulation: Arc<Simulation>,
    utc: Arc<Utc>,
}

/// UTC of a simulated host.
#[derive(Default)]
struct Utc {
    /// Nanoseconds since 1970 at the start of the simulation.
    begins: AtomicI64,
    /// Nanoseconds gained per second.
    drift: AtomicI64,
}

impl Clock {
    /// Returns the clock of this host.
    pub fn real() -> Clock {
        Clock(None)
    }

    /// Creates a simulated clock for [`Clock::simulate`]; `utc` is its UTC at the start, in nanoseconds since 1970.
    pub fn simulated(utc: u64) -> Clock {
        Clock(Some(Simulated {
            simulation: Arc::default(),
            utc: Utc::new(utc.cast_signed()),
        }))
    }

    /// Returns the same simulated clock for another host, with a UTC of its own. A real clock is returned unchanged.
    #[must_use]
    pub fn of_host(&self) -> Clock {
        Clock(self.0.as_ref().map(|it| Simulated {
            simulation: Arc::clone(&it.simulation),
            utc: Utc::new(it.utc.begins.load(Ordering::Relaxed)),
        }))
    }

    /// Advances the UTC of a simulated host by this many nanoseconds.
    pub fn step(&self, nanoseconds: i64) {
        if let Some(Simulated { utc, .. }) = &self.0 {
            utc.begins.fetch_add(nanoseconds, Ordering::Relaxed);
        }
    }

    /// Makes the UTC of a simulated host gain this many nanoseconds per second.
    pub fn drift(&self, nanoseconds: i64) {
        if let Some(Simulated { utc, .. }) = &self.0 {
            utc.drift.store(nanoseconds, Ordering::Relaxed);
        }
    }

    /// Kills the threads of a simulated host. They never continue and nothing on their stacks is dropped: memory is not freed and files
    /// stay open.
    ///
    /// # Panics
    /// Panics if this thread is one of them.
    pub fn kill(&self) {
        if let Some(it) = &self.0 {
            it.simulation.kill(it.group());
        }
    }

    /// Stalls the threads of a simulated host for `span`. What arrives in that time waits for them.
    pub fn stall(&self, span: Duration) {
        if let Some(it) = &self.0 {
            it.simulation.stall(it.group(), span);
        }
    }

    /// Returns whether this is the real clock of this host.
    pub fn is_real(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the time of the monotonic clock.
    #[inline]
    pub fn now(&self) -> Nanos {
        match &self.0 {
            None => cpu::now(),
            Some(it) => it.simulation.now(),
        }
    }

    /// Returns UTC in nanoseconds since 1970.
    #[inline]
    pub fn utc(&self) -> u64 {
        match &self.0 {
            None => cpu::utc(),
            Some(it) => it.utc.at(it.simulation.now()),
        }
    }

    /// Returns the CPU time of the current thread; 0 for a simulated one.
    pub fn thread_time(&self) -> Nanos {
        match &self.0 {
            None => cpu::thread_time(),
            Some(_) => Nanos(0),
        }
    }

    /// Returns an unpredictable number; in a simulation, the next number of a fixed sequence.
    pub fn random(&self) -> u64 {
        match &self.0 {
            None => rand::random(),
            Some(it) => it.simulation.random(),
        }
    }

    /// Returns UTC in whole seconds since 1970.
    pub fn second(&self) -> i64 {
        (self.utc() / Nanos::SECOND.0) as i64
    }

    /// Waits until `moment`; returns the time afterwards.
    #[inline]
    pub fn wait_until(&self, moment: Nanos, waiting: Waiting) -> Nanos {
        match &self.0 {
            None => cpu::wait_until(moment, waiting),
            Some(it) => it.simulation.wait(&[], moment),
        }
    }

    /// Waits for one of `events`, or until `moment`.
    pub fn wait(&self, events: &[Events<'_>], moment: Nanos, waiting: Waiting) {
        if let Some(it) = &self.0 {
            it.simulation.wait(events, moment);
            return;
        }
        let mut polls = [pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        }; MAX_POLLS];
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
        let span = if count == MAX_POLLS {
            span.min(NAP)
        } else {
            span
        };
        // An error shows at the next read or write.
        if poll(&mut polls[..count], span).is_err() {
            std::thread::sleep(span.min(NAP));
        }
    }

    /// Waits until `is_done` returns true, or until `moment`. Polls every `interval`; in virtual time, after each step of another
    /// thread. Returns the last result of `is_done`.
    pub fn wait_for(
        &self,
        moment: Nanos,
        interval: Duration,
        mut is_done: impl FnMut() -> bool,
    ) -> bool {
        if let Some(it) = &self.0 {
            return it.simulation.wait_for(moment, is_done);
        }
        while !is_done() {
            let left = moment.since(cpu::now());
            if left == Nanos(0) {
                return false;
            }
            std::thread::sleep(interval.min(Duration::from_nanos(left.0)));
        }
        true
    }

    /// Sleeps for `span`.
    pub fn sleep(&self, span: Duration) {
        match &self.0 {
            None => std::thread::sleep(span),
            Some(it) => {
                let now = it.simulation.now();
                it.simulation.wait(&[], now.plus(span.into()));
            }
        }
    }

    /// Waits for a message from another thread; `None` if that thread has ended.
    pub fn receive<T>(&self, from: &mpsc::Receiver<T>) -> Option<T> {
        match self.0 {
            None => from.recv().ok(),
            Some(_) => self.receive_by(from, Nanos(u64::MAX)).ok(),
        }
    }

    /// Waits until `moment` for a message from another thread.
    ///
    /// # Errors
    /// Returns an error if none arrived in time, or the other thread has ended.
    pub fn receive_by<T>(
        &self,
        from: &mpsc::Receiver<T>,
        moment: Nanos,
    ) -> Result<T, mpsc::RecvTimeoutError> {
        use mpsc::{RecvTimeoutError, TryRecvError};
        let Some(it) = &self.0 else {
            return from.recv_timeout(Duration::from_nanos(moment.since(cpu::now()).0));
        };
        let mut received = Err(RecvTimeoutError::Timeout);
        it.simulation.wait_for(moment, || {
            received = from.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            });
            !matches!(received, Err(RecvTimeoutError::Timeout))
        });
        received
    }

    /// Starts a thread that waits by this clock.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Thread<T>> {
        let Some(it) = &self.0 else {
            let thread = std::thread::Builder::new().name(name.to_owned());
            return Ok(Thread(Kind::Real(thread.spawn(work)?)));
        };
        let ended = Arc::new(Mutex::new(None));
        let [done, failed] = [0; 2].map(|_| Arc::clone(&ended));
        let number = it.simulation.spawn(
            name,
            it.group(),
            Box::new(move || *done.lock() = Some(Ok(work()))),
            Box::new(move |panic| *failed.lock() = Some(Err(panic))),
        );
        Ok(Thread(Kind::Simulated {
            simulation: Arc::clone(&it.simulation),
            number,
            ended,
        }))
    }

    /// Runs `work` on this thread in the time of a simulated clock; with a real clock, just calls it. Simulated threads that have not
    /// ended by then do not continue.
    pub fn simulate<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.0 {
            None => work(),
            Some(it) => it.simulation.simulate(work),
        }
    }

    /// Adds a source of events without a thread; `next` holds the time of its next event.
    pub fn add(&self, next: Arc<Place>, source: Weak<dyn Source>) {
        if let Some(it) = &self.0 {
            it.simulation.add(next, source);
        }
    }

    /// Starts to log the events of a simulation.
    pub fn keep_log(&self) {
        if let Some(it) = &self.0 {
            it.simulation.keep_log();
        }
    }

    /// Returns whether a log is kept.
    pub fn is_logged(&self) -> bool {
        self.0.as_ref().is_some_and(|it| it.simulation.is_logged())
    }

    /// Logs an event, if a log is kept. Two runs of the same system write identical logs.
    #[inline]
    pub fn log(&self, what: fmt::Arguments<'_>) {
        if let Some(it) = &self.0 {
            it.simulation.log(what);
        }
    }

    /// Returns the log so far, one line per event; empty for a real clock.
    pub fn take_log(&self) -> String {
        let simulated = self.0.as_ref();
        simulated.map_or_else(String::new, |it| it.simulation.take_log())
    }
}

impl Simulated {
    /// Returns the group of this host's threads.
    fn group(&self) -> usize {
        Arc::as_ptr(&self.utc).addr()
    }
}

impl Utc {
    fn new(begins: i64) -> Arc<Utc> {
        Arc::new(Utc {
            begins: AtomicI64::new(begins),
            ..Utc::default()
        })
    }

    fn at(&self, now: Nanos) -> u64 {
        // A 128-bit division is slow, and most clocks do not drift.
        let drift = i128::from(self.drift.load(Ordering::Relaxed));
        let gained = match drift {
            0 => 0,
            _ => i128::from(now.0) * drift / i128::from(Nanos::SECOND.0),
        };
        let utc = i128::from(self.begins.load(Ordering::Relaxed)) + i128::from(now.0) + gained;
        u64::try_from(utc).unwrap_or(0)
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

/// A signal that one thread gives and another waits for.
#[derive(Default)]
pub struct Signal {
    is_given: Mutex<bool>,
    given: Condvar,
    places: [Arc<Place>; 1],
}

impl Signal {
    /// Gives the signal.
    pub fn give(&self) {
        *self.is_given.lock() = true;
        self.given.notify_all();
        self.places[0].happens(Nanos(0));
    }

    /// Waits for the signal until `moment`; returns whether it was given.
    pub fn wait(&self, clock: &Clock, moment: Nanos) -> bool {
        let mut is_given = self.is_given.lock();
        if !*is_given && !clock.is_real() {
            drop(is_given);
            clock.wait(&[Events::at(&self.places)], moment, Waiting::Sleep);
            return *self.is_given.lock();
        }
        while !*is_given && cpu::now() < moment {
            let left = Duration::from_nanos(moment.since(cpu::now()).0);
            self.given.wait_for(&mut is_given, left);
        }
        *is_given
    }
}

/// A thread that waits by a clock.
#[derive(Debug)]
pub struct Thread<T>(Kind<T>);

enum Kind<T> {
    Real(JoinHandle<T>),
    Simulated {
        simulation: Arc<Simulation>,
        number: usize,
        ended: Arc<Mutex<Option<std::thread::Result<T>>>>,
    },
}

impl<T> fmt::Debug for Kind<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Real(handle) => handle.fmt(f),
            Kind::Simulated { number, .. } => write!(f, "simulated thread {number}"),
        }
    }
}

impl<T> Thread<T> {
    /// Returns whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Kind::Real(handle) => handle.is_finished(),
            Kind::Simulated {
                simulation, number, ..
            } => simulation.has_ended(*number),
        }
    }

    /// Waits for the thread's end; panics if the thread panicked.
    pub fn join(self) -> T {
        let ended = self.wait();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Waits for the thread's end.
    ///
    /// # Errors
    /// Returns the payload of its panic.
    pub fn wait(self) -> std::thread::Result<T> {
        match self.0 {
            Kind::Real(handle) => handle.join(),
            Kind::Simulated {
                simulation,
                number,
                ended,
            } => {
                simulation.join(number);
                let cut_off = || Err(Box::new("the simulation ended") as Box<dyn Any + Send>);
                ended.lock().take().unwrap_or_else(cut_off)
            }
        }
    }
}

/// Waits for one of `polls`, for at most `span`; returns whether one is ready.
pub fn poll(polls: &mut [pollfd], span: Duration) -> io::Result<bool> {
    let time = libc::timespec {
        tv_sec: span.as_secs() as libc::time_t,
        tv_nsec: span.subsec_nanos().into(),
    };
    // SAFETY: the first pointer and the count describe `polls`, exclusively borrowed; the timespec lives through the call; no signal
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
        clock.keep_log();
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
    fn of_two_equal_times_the_first_thread_continues() {
        let run = || {
            let clock = Clock::simulated(0);
            clock.keep_log();
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
    fn threads_of_a_host_that_stalls_continue_at_its_end() {
        let clock = Clock::simulated(0);
        let seen = clock.simulate(|| {
            let hosts = [clock.of_host(), clock.of_host()];
            let sleepers = hosts.clone().map(|own| {
                let named = own.clone();
                let work = move || {
                    [0; 4].map(|_| {
                        own.sleep(SECOND);
                        own.now().as_secs_f64()
                    })
                };
                named.spawn("sleeper", work).unwrap()
            });
            clock.sleep(SECOND / 2);
            hosts[0].stall(SECOND * 2);
            // Of two stalls, the longer one counts.
            hosts[0].stall(SECOND);
            sleepers.map(Thread::join)
        });
        assert_eq!(seen, [[2.5, 3.5, 4.5, 5.5], [1.0, 2.0, 3.0, 4.0]]);
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

    #[test]
    fn hosts_have_clocks_of_their_own() {
        let clock = Clock::simulated(1000);
        let (one, other) = (clock.of_host(), clock.of_host());
        one.step(-400);
        other.drift(1_000_000);
        clock.simulate(|| clock.sleep(SECOND * 10));
        let now = 10 * Nanos::SECOND.0;
        assert_eq!(clock.utc(), 1000 + now);
        assert_eq!(one.utc(), 600 + now);
        assert_eq!(other.utc(), 1000 + now + 10_000_000);
        assert_eq!([one.now(), other.now()], [clock.now(); 2]);
    }

    /// One thread sees at once what another did, and a signal wakes the thread that waits for it.
    #[test]
    fn threads_see_what_others_do() {
        for clock in [Clock::simulated(0), Clock::real()] {
            let seen = clock.simulate(|| {
                let (tell, told) = mpsc::channel();
                let signal = Arc::<Signal>::default();
                let (own, given) = (clock.clone(), Arc::clone(&signal));
                let working = clock.spawn("work", move || {
                    own.sleep(Duration::from_millis(3));
                    tell.send(own.now()).unwrap();
                    own.sleep(Duration::from_millis(3));
                    given.give();
                    own.now()
                });
                let none = clock.receive_by(&told, clock.now().plus(Nanos(1)));
                assert_eq!(none, Err(mpsc::RecvTimeoutError::Timeout));
                assert!(!signal.wait(&clock, clock.now().plus(Nanos(1))));
                let sent = clock.receive(&told).unwrap();
                let received = clock.now();
                assert!(signal.wait(&clock, Nanos(u64::MAX)));
                let given = working.unwrap().join();
                assert!(received >= sent && clock.now() >= given);
                [received.since(sent), clock.now().since(given)]
            });
            assert!(clock.is_real() || seen == [Nanos(0); 2], "{seen:?}");
        }
    }

    #[test]
    fn joining_a_thread_that_panicked_returns_its_panic() {
        let clock = Clock::simulated(0);
        let ended = clock.simulate(|| {
            let fails = || panic!("as it should");
            clock.spawn("fails", fails).unwrap().wait()
        });
        let said = ended.unwrap_err();
        assert_eq!(said.downcast_ref(), Some(&"as it should"));
    }
}
