//! Threads that share a virtual time. They are coroutines on one thread of the operating system: the one that called
//! [`Clock::simulate`](super::Clock::simulate), which also schedules them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use corosensei::{Coroutine, CoroutineResult, Yielder};
use evlbi_core::time::Nanos;
use parking_lot::Mutex;

use super::Events;

/// A time that is never reached.
const NEVER: u64 = u64::MAX;

/// Number of the next thread; threads that start later have higher numbers.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The simulated thread that runs on this thread.
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    /// The simulated threads that do not run now.
    static WAITING: RefCell<Vec<Waiting>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy)]
struct Current {
    number: usize,
    /// Its means to suspend itself; null for the thread that called `simulate`.
    yielder: *const Yielder<(), usize>,
}

/// A thread, sorted by number. When it waits, it yields the number of the thread to run next.
struct Waiting {
    number: usize,
    /// `None` while it runs.
    coroutine: Option<Coroutine<(), usize, usize>>,
    failed: Option<Failed>,
}

/// Handler of a thread's panic payload.
pub type Failed = Box<dyn FnOnce(Box<dyn Any + Send>)>;

/// A place of a simulation where events happen that threads wait for.
pub struct Place(AtomicU64);

impl Default for Place {
    fn default() -> Place {
        Place(AtomicU64::new(NEVER))
    }
}

impl Place {
    /// Marks an event there as happened (since `now`, unless it had happened before) or clears it.
    pub fn set(&self, has_happened: bool, now: Nanos) {
        match has_happened {
            true => _ = self.0.fetch_min(now.0, Ordering::Relaxed),
            false => self.clear(),
        }
    }

    /// Schedules an event at `at`: waiting threads continue then, or now if that time has passed.
    pub fn happens(&self, at: Nanos) {
        self.0.store(at.0, Ordering::Relaxed);
    }

    fn at(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    /// Cancels the event.
    pub fn clear(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }
}

/// Events of a simulation that need no thread, such as packets in flight. A [`Place`] next to it holds the time of the next event.
pub trait Source: Send + Sync {
    /// Processes all events that are due by `now`.
    fn advance(&self, now: Nanos);
}

/// The threads of a simulated clock, one of which runs.
#[derive(Default)]
pub struct Simulation {
    now: AtomicU64,
    /// Numbers drawn so far by [`Simulation::random`].
    drawn: AtomicU64,
    state: Mutex<State>,
    is_logged: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Default)]
struct State {
    /// In start order.
    threads: Vec<Member>,
    sources: Vec<(Arc<Place>, Weak<dyn Source>)>,
    /// End of each group's stall.
    stalls: HashMap<usize, Nanos>,
    /// Number of changes so far that another thread may be waiting for.
    steps: u64,
}

#[derive(Default)]
struct Log {
    text: String,
    running: Arc<str>,
}

struct Member {
    number: usize,
    name: Arc<str>,
    /// Group that stalls and is killed together.
    group: usize,
    wait: Wait,
}

/// Conditions that a thread waits for; any of them suffices.
struct Wait {
    until: Nanos,
    places: Vec<Arc<Place>>,
    /// End of this thread.
    thread: Option<usize>,
    /// Any step after this one.
    after: Option<u64>,
}

impl Default for Wait {
    /// Returns the wait of a thread that only waits for its turn.
    fn default() -> Wait {
        Wait {
            until: Nanos(0),
            places: Vec::new(),
            thread: None,
            after: None,
        }
    }
}

impl Wait {
    /// Clears all conditions.
    fn reset(&mut self) {
        self.places.clear();
        (self.until, self.thread, self.after) = (Nanos(NEVER), None, None);
    }
}

impl Simulation {
    pub fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    /// Returns the next number of SplitMix64 (Steele, Lea and Flood 2014), seeded with 0.
    pub fn random(&self) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mixed = drawn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Adds a source of events without a thread; `next` holds the time of its next event.
    pub fn add(&self, next: Arc<Place>, source: Weak<dyn Source>) {
        let sources = &mut self.state.lock().sources;
        sources.retain(|(_, source)| source.strong_count() > 0);
        sources.push((next, source));
    }

    fn register(&self, name: &str, group: usize) -> usize {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.state.lock().threads.push(Member {
            number,
            name: name.into(),
            group,
            wait: Wait::default(),
        });
        number
    }

    /// Starts a thread, which first runs at its turn; returns its number.
    pub fn spawn(
        self: &Arc<Simulation>,
        name: &str,
        group: usize,
        work: Box<dyn FnOnce()>,
        failed: Failed,
    ) -> usize {
        let number = self.register(name, group);
        let simulation = Arc::clone(self);
        let coroutine = Coroutine::new(move |yielder: &Yielder<(), usize>, ()| {
            CURRENT.set(Some(Current { number, yielder }));
            work();
            simulation.end(number)
        });
        let waiting = Waiting {
            number,
            coroutine: Some(coroutine),
            failed: Some(failed),
        };
        WAITING.with_borrow_mut(|all| all.push(waiting));
        number
    }

    /// Runs `work` as a thread of this simulation, and the others while it waits. Threads that have not ended by then stay suspended,
    /// as if they were killed.
    ///
    /// # Panics
    /// Panics if this thread of the operating system already runs a simulation.
    pub fn simulate<T>(&self, work: impl FnOnce() -> T) -> T {
        assert!(CURRENT.get().is_none(), "one simulation in another");
        let number = self.register("main", 0);
        self.state.lock().member(number).wait.reset();
        let _over = Over(self);
        let yielder = ptr::null();
        CURRENT.set(Some(Current { number, yielder }));
        work()
    }

    pub fn has_ended(&self, number: usize) -> bool {
        self.state.lock().has_ended(number)
    }

    /// Ends the threads of a group where they wait. Nothing on their stacks is dropped.
    ///
    /// # Panics
    /// Panics if this thread is one of them.
    pub fn kill(&self, group: usize) {
        let current = CURRENT.get().map(|current| current.number);
        let mut state = self.state.lock();
        let killed = state.threads.extract_if(.., |member| member.group == group);
        for member in killed {
            assert_ne!(Some(member.number), current, "a thread cannot kill itself");
            drop(remove(member.number));
        }
        state.steps += 1;
    }

    /// Prevents the threads of a group from continuing before `span` has passed.
    pub fn stall(&self, group: usize, span: Duration) {
        let end = self.now().plus(span.into());
        let stalls = &mut self.state.lock().stalls;
        let until = stalls.entry(group).or_default();
        *until = end.max(*until);
    }

    /// Lets the others run until `until` or until one of `events` happens; returns the time then.
    pub fn wait(&self, events: &[Events<'_>], until: Nanos) -> Nanos {
        self.pause(|wait| {
            let places = events.iter().flat_map(|events| events.places);
            wait.places.extend(places.map(Arc::clone));
            wait.until = until;
        })
    }

    /// Waits for the end of another thread.
    pub fn join(&self, thread: usize) {
        if !self.has_ended(thread) {
            self.pause(|wait| wait.thread = Some(thread));
        }
    }

    /// Waits until `is_done` returns true, or until `until`; calls `is_done` after each step of other threads. Returns its last result.
    pub fn wait_for(&self, until: Nanos, mut is_done: impl FnMut() -> bool) -> bool {
        let mut is_first = true;
        while !is_done() {
            if self.now() >= until {
                return false;
            }
            is_first = false;
            let after = self.state.lock().steps;
            self.pause(|wait| (wait.until, wait.after) = (until, Some(after)));
        }
        if !is_first {
            self.state.lock().steps += 1;
        }
        true
    }

    /// Lets others run until one of the conditions that `set` sets is met.
    ///
    /// # Panics
    /// Panics if this thread does not belong to the simulation, or no condition can ever be met.
    fn pause(&self, set: impl FnOnce(&mut Wait)) -> Nanos {
        let current = CURRENT.get().expect("a thread of the simulation");
        let mut turn = {
            let mut state = self.state.lock();
            set(&mut state.member(current.number).wait);
            self.next_turn(&mut state)
        };
        assert!(
            turn != usize::MAX,
            "nothing will happen that {:?} wait for",
            self.names()
        );
        if turn != current.number {
            if current.yielder.is_null() {
                while turn != current.number {
                    turn = self.resume(turn);
                    assert!(turn != usize::MAX, "nothing happens any more");
                }
            } else {
                // SAFETY: the yielder lives as long as its coroutine, in which this is called.
                unsafe { &*current.yielder }.suspend(turn);
            }
            CURRENT.set(Some(current));
        }
        self.now()
    }

    fn names(&self) -> Vec<Arc<str>> {
        let state = self.state.lock();
        let names = state.threads.iter().map(|it| Arc::clone(&it.name));
        names.collect()
    }

    /// Runs a thread until it waits; returns the thread to run next.
    fn resume(&self, number: usize) -> usize {
        let taken = with_waiting(number, |waiting| waiting.coroutine.take());
        let mut coroutine = taken.flatten().expect("a thread that waits");
        let resumed = catch_unwind(AssertUnwindSafe(|| coroutine.resume(())));
        CURRENT.set(None);
        match resumed {
            Ok(CoroutineResult::Yield(turn)) => {
                with_waiting(number, |waiting| waiting.coroutine = Some(coroutine));
                turn
            }
            Ok(CoroutineResult::Return(turn)) => {
                remove(number);
                turn
            }
            Err(panic) => {
                let failed = remove(number).and_then(|mut it| it.failed.take());
                let turn = self.end(number);
                if let Some(failed) = failed {
                    failed(panic);
                }
                turn
            }
        }
    }

    /// Removes a thread that has ended; returns the thread to run next.
    fn end(&self, number: usize) -> usize {
        let mut state = self.state.lock();
        state.threads.retain(|member| member.number != number);
        self.next_turn(&mut state)
    }

    /// Processes all events that precede the next wake-up of a thread. Returns the number of the thread with the earliest wake-up time;
    /// of two with the same time, the one that was started first.
    fn next_turn(&self, state: &mut State) -> usize {
        loop {
            let (moment, index) = state.first(self.now());
            let first = state.sources.iter().min_by_key(|(next, _)| next.at());
            if let Some((next, source)) = first
                && next.at() <= moment
                && next.at().0 != NEVER
            {
                self.now.fetch_max(next.at().0, Ordering::Relaxed);
                match source.upgrade() {
                    Some(source) => source.advance(self.now()),
                    None => next.clear(),
                }
                continue;
            }
            if moment.0 == NEVER {
                return usize::MAX;
            }
            self.now.fetch_max(moment.0, Ordering::Relaxed);
            let member = &mut state.threads[index];
            let number = member.number;
            let is_step = member.wait.after.is_none();
            member.wait.reset();
            if self.is_logged() {
                self.log.lock().running = Arc::clone(&member.name);
                self.log(format_args!("on"));
            }
            state.steps += u64::from(is_step);
            return number;
        }
    }

    pub fn keep_log(&self) {
        self.is_logged.store(true, Ordering::Relaxed);
    }

    pub fn is_logged(&self) -> bool {
        self.is_logged.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn log(&self, what: fmt::Arguments<'_>) {
        if self.is_logged() {
            let Log { text, running } = &mut *self.log.lock();
            let _ = writeln!(text, "{} {running}: {what}", self.now().0);
        }
    }

    pub fn take_log(&self) -> String {
        std::mem::take(&mut self.log.lock().text)
    }
}

impl State {
    fn member(&mut self, number: usize) -> &mut Member {
        let found = self.threads.binary_search_by_key(&number, |it| it.number);
        &mut self.threads[found.expect("a thread of the simulation")]
    }

    fn has_ended(&self, number: usize) -> bool {
        let found = self.threads.binary_search_by_key(&number, |it| it.number);
        found.is_err()
    }

    /// Returns the earliest wake-up time and its thread's index: of several at one time, the thread that was started first.
    fn first(&self, now: Nanos) -> (Nanos, usize) {
        let mut first = (Nanos(NEVER), 0);
        for (index, member) in self.threads.iter().enumerate() {
            let moment = self.moment(member, now);
            if moment < first.0 {
                first = (moment, index);
            }
            // No other can be sooner than now.
            if moment <= now {
                break;
            }
        }
        first
    }

    /// Returns when it continues.
    fn moment(&self, member: &Member, now: Nanos) -> Nanos {
        let stalled = self.stalls.get(&member.group).copied();
        self.wanted(member, now).max(stalled.unwrap_or_default())
    }

    /// Returns when it would continue if its group did not stall.
    fn wanted(&self, member: &Member, now: Nanos) -> Nanos {
        let wait = &member.wait;
        let is_now = wait.after.is_some_and(|step| self.steps > step)
            || wait.thread.is_some_and(|thread| self.has_ended(thread));
        if is_now {
            return now;
        }
        let places = wait.places.iter().map(|place| place.at());
        places.fold(wait.until, Nanos::min).max(now)
    }
}

impl Drop for Waiting {
    /// The stack of a killed thread is not dropped. Other threads may borrow from it, as those of a scope do, so its memory is not
    /// freed either.
    fn drop(&mut self) {
        std::mem::forget(self.coroutine.take());
    }
}

fn with_waiting<T>(number: usize, act: impl FnOnce(&mut Waiting) -> T) -> Option<T> {
    WAITING.with_borrow_mut(|all| {
        let found = all.binary_search_by_key(&number, |waiting| waiting.number);
        found.ok().map(|place| act(&mut all[place]))
    })
}

fn remove(number: usize) -> Option<Waiting> {
    WAITING.with_borrow_mut(|all| {
        let found = all.binary_search_by_key(&number, |waiting| waiting.number);
        found.ok().map(|place| all.remove(place))
    })
}

/// Ends a simulation when dropped.
struct Over<'s>(&'s Simulation);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        CURRENT.set(None);
        for member in std::mem::take(&mut self.0.state.lock().threads) {
            drop(remove(member.number));
        }
    }
}
