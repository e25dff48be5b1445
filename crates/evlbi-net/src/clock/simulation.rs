//! Threads that share a virtual time. They are coroutines on one thread of the system: the one that called
//! [`Clock::simulate`](super::Clock::simulate), which also decides whose turn it is.

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

/// A moment that does not come.
const NEVER: u64 = u64::MAX;

/// Each thread of a simulation has a number; one that was started later has a higher one.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The thread of a simulation that runs here.
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    /// Those that do not run now.
    static WAITING: RefCell<Vec<Waiting>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy)]
struct Current {
    number: usize,
    /// By which it lets others run; null of the one that called `simulate`.
    yielder: *const Yielder<(), usize>,
}

/// A thread, in the order of the numbers. It yields the number of the one whose turn it is when it waits.
struct Waiting {
    number: usize,
    /// None while it runs.
    coroutine: Option<Coroutine<(), usize, usize>>,
    failed: Option<Failed>,
}

/// Takes what a thread panicked with.
pub type Failed = Box<dyn FnOnce(Box<dyn Any + Send>)>;

/// Where something happens in a simulation, which a thread may wait for.
pub struct Place(AtomicU64);

impl Default for Place {
    fn default() -> Place {
        Place(AtomicU64::new(NEVER))
    }
}

impl Place {
    /// Whether something has happened there, since this moment if nothing had.
    pub fn set(&self, has_happened: bool, now: Nanos) {
        match has_happened {
            true => _ = self.0.fetch_min(now.0, Ordering::Relaxed),
            false => self.clear(),
        }
    }

    /// It happens at this moment: who waits continues then, or now if it has passed.
    pub fn happens(&self, at: Nanos) {
        self.0.store(at.0, Ordering::Relaxed);
    }

    fn at(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    /// Nothing happens there.
    pub fn clear(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }
}

/// What happens in a simulation without a thread, such as packets on their way. A [`Place`] beside it holds the moment
/// at which something happens next.
pub trait Source: Send + Sync {
    /// Lets everything happen that is due by `now`.
    fn advance(&self, now: Nanos);
}

/// The threads of a simulated clock, of which one runs.
#[derive(Default)]
pub struct Simulation {
    now: AtomicU64,
    /// Numbers of [`Simulation::random`] so far.
    drawn: AtomicU64,
    state: Mutex<State>,
    is_logged: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Default)]
struct State {
    /// In the order in which they were started.
    threads: Vec<Member>,
    sources: Vec<(Arc<Place>, Weak<dyn Source>)>,
    /// Until when the threads of a group stall.
    stalls: HashMap<usize, Nanos>,
    /// Changes so far that a thread may have made which another one waits for.
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
    /// Threads with the same one stall and are killed together.
    group: usize,
    wait: Wait,
}

/// What a thread waits for: any of this.
struct Wait {
    until: Nanos,
    places: Vec<Arc<Place>>,
    /// The end of another thread.
    thread: Option<usize>,
    /// A step after this one.
    after: Option<u64>,
}

impl Default for Wait {
    /// It waits for its turn.
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
    /// It waits for nothing.
    fn reset(&mut self) {
        self.places.clear();
        (self.until, self.thread, self.after) = (Nanos(NEVER), None, None);
    }
}

impl Simulation {
    pub fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }

    /// Steele, Lea and Flood 2014 (SplitMix64), from 0 on.
    pub fn random(&self) -> u64 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mixed = drawn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// `source` happens in the simulation beside its threads; `next` says when it does so next.
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

    /// Starts a thread, which begins when it is its turn; returns its number.
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

    /// Runs `work` as a thread of this simulation, and all others when it waits. Those that are left at its end stay where they are,
    /// as if they were killed.
    ///
    /// # Panics
    /// When this thread of the system runs a simulation already.
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

    /// Ends the threads of a group where they wait. What is on their stacks is not dropped.
    ///
    /// # Panics
    /// When this thread is one of them.
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

    /// No thread of a group continues before `span` is over.
    pub fn stall(&self, group: usize, span: Duration) {
        let end = self.now().plus(span.into());
        let stalls = &mut self.state.lock().stalls;
        let until = stalls.entry(group).or_default();
        *until = end.max(*until);
    }

    /// Lets the others run until `until`, or until one of `events` happens; returns the time then.
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

    /// Waits for what another thread does, until `until`: `is_done` is asked after each step of others. Returns what it said last.
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

    /// Lets others run until what this thread waits for happens; `set` says what that is.
    ///
    /// # Panics
    /// When this thread is not one of the simulation's, or nothing will ever happen.
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
                // SAFETY: the yielder lives as long as the coroutine that it was handed to, in which this is called.
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

    /// Runs a thread until it waits; returns whose turn it is then.
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

    /// A thread has ended; returns whose turn it is then.
    fn end(&self, number: usize) -> usize {
        let mut state = self.state.lock();
        state.threads.retain(|member| member.number != number);
        self.next_turn(&mut state)
    }

    /// Lets everything happen that comes before what a thread waits for. Returns the number of the thread whose moment comes
    /// first; of two with the same, the one that was started first.
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

    /// When a thread continues next, and its index: of several at one moment, the one that was started first.
    fn first(&self, now: Nanos) -> (Nanos, usize) {
        let mut first = (Nanos(NEVER), 0);
        for (index, member) in self.threads.iter().enumerate() {
            let moment = self.moment(member, now);
            if moment < first.0 {
                first = (moment, index);
            }
            // None is sooner than now.
            if moment <= now {
                break;
            }
        }
        first
    }

    /// When it is to continue.
    fn moment(&self, member: &Member, now: Nanos) -> Nanos {
        let stalled = self.stalls.get(&member.group).copied();
        self.wanted(member, now).max(stalled.unwrap_or_default())
    }

    /// When it would continue if its group did not stall.
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
    /// What is on the stack of a thread that was killed is not dropped. Others may borrow from it, as those of a scope do, so that its
    /// memory is not given back either.
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

/// A simulation that is over when this is dropped.
struct Over<'s>(&'s Simulation);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        CURRENT.set(None);
        for member in std::mem::take(&mut self.0.state.lock().threads) {
            drop(remove(member.number));
        }
    }
}
