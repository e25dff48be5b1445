//! Threads that share a virtual time.

use std::cell::Cell;
use std::fmt::{self, Write};
use std::sync::Arc;

use evlbi_core::time::Nanos;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::transport::Events;

thread_local! {
    /// The number of this thread in its simulation.
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Something in a simulation that happens to a thread that waits for it.
pub trait Place: Send + Sync {
    /// When it happens next, as far as is known; a moment that has passed is now.
    fn next(&self) -> Option<Nanos>;
}

/// The threads of a simulated clock, of which one runs.
pub struct Simulation {
    utc: u64,
    state: Mutex<State>,
    turn: Condvar,
}

#[derive(Default)]
struct State {
    now: Nanos,
    threads: Vec<Member>,
    running: Option<usize>,
    log: String,
}

struct Member {
    name: String,
    wait: Wait,
}

/// What a thread waits for.
enum Wait {
    /// It runs.
    Runs,
    /// The moment, or one of the places before.
    Until(Nanos, Vec<Arc<dyn Place>>),
    Ended,
}

impl Simulation {
    pub fn new(utc: u64) -> Simulation {
        Simulation {
            utc,
            state: Mutex::default(),
            turn: Condvar::new(),
        }
    }

    pub fn now(&self) -> Nanos {
        self.state.lock().now
    }

    pub fn utc(&self) -> u64 {
        self.utc + self.now().0
    }

    /// Gives a thread its number; it begins at this moment, when it is its turn.
    pub fn register(&self, name: &str) -> usize {
        let mut state = self.state.lock();
        let now = state.now;
        state.threads.push(Member {
            name: name.to_owned(),
            wait: Wait::Until(now, Vec::new()),
        });
        state.threads.len() - 1
    }

    /// A thread that was registered will not begin.
    pub fn forget(&self, number: usize) {
        self.state.lock().threads[number].wait = Wait::Ended;
    }

    /// This thread is the one with this number. Waits for its turn; it ends when what is returned is dropped.
    pub fn enter(self: &Arc<Simulation>, number: usize) -> Ends {
        NUMBER.set(Some(number));
        let mut state = self.state.lock();
        if state.running.is_none() {
            state.pass_on();
            self.turn.notify_all();
        }
        self.await_turn(&mut state, number);
        Ends(Arc::clone(self), number)
    }

    pub fn has_ended(&self, number: usize) -> bool {
        matches!(self.state.lock().threads[number].wait, Wait::Ended)
    }

    /// Lets the others run until `moment`, or until one of `events` happens; returns the time then.
    ///
    /// # Panics
    /// When this thread is none of the simulation's.
    pub fn wait(&self, events: &[Events<'_>], moment: Nanos) -> Nanos {
        let number = NUMBER.get().expect("a thread of the simulation");
        let places = events.iter().flat_map(|events| events.places);
        let mut state = self.state.lock();
        state.threads[number].wait = Wait::Until(moment, places.map(Arc::clone).collect());
        state.pass_on();
        if state.running != Some(number) {
            self.turn.notify_all();
        }
        self.await_turn(&mut state, number);
        state.now
    }

    fn await_turn(&self, state: &mut MutexGuard<'_, State>, number: usize) {
        let waits = |state: &mut State| state.running != Some(number);
        self.turn.wait_while(state, waits);
    }

    pub fn log(&self, what: fmt::Arguments<'_>) {
        let state = &mut *self.state.lock();
        let running = state.running.map(|number| &state.threads[number]);
        let name = running.map_or("", |member| &member.name);
        let _ = writeln!(state.log, "{} {name}: {what}", state.now.0);
    }

    pub fn take_log(&self) -> String {
        std::mem::take(&mut self.state.lock().log)
    }
}

impl State {
    /// It is the turn of the thread whose moment comes first.
    fn pass_on(&mut self) {
        let moment = |member: &Member| match &member.wait {
            Wait::Runs | Wait::Ended => None,
            Wait::Until(moment, places) => {
                let next = places.iter().filter_map(|place| place.next()).min();
                Some(next.map_or(*moment, |next| next.min(*moment)))
            }
        };
        let members = self.threads.iter().enumerate();
        let next = members
            .filter_map(|(number, member)| Some((moment(member)?, number)))
            .min();
        self.running = next.map(|(_, number)| number);
        if let Some((moment, number)) = next {
            self.now = self.now.max(moment);
            let member = &mut self.threads[number];
            member.wait = Wait::Runs;
            let _ = writeln!(self.log, "{} {}: on", self.now.0, member.name);
        }
    }
}

/// A thread that has its turn; dropped, it has ended.
pub struct Ends(Arc<Simulation>, usize);

impl Drop for Ends {
    fn drop(&mut self) {
        let Ends(simulation, number) = self;
        let mut state = simulation.state.lock();
        state.threads[*number].wait = Wait::Ended;
        state.pass_on();
        simulation.turn.notify_all();
        NUMBER.set(None);
    }
}
