//! Use of a responder's limits by current tests and sessions, and the queue for more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::Signal;
use evlbi_wire::units::show_rate;

use super::{MAX_SESSIONS, Responder, ServeError, Served, rate_or_any};
use crate::control::Control;
use crate::endpoint::{FromClient, FromResponder, Limits, Test};
use crate::session::{ALIVE, GONE};

/// Maximum wait of a client for others' tests.
const MAX_QUEUE: Nanos = Nanos(600_000_000_000);

/// Resources used by tests and sessions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) tests: u32,
    pub(super) sessions: usize,
    /// Bits per second on the wire: inbound, and outbound.
    pub(super) rates: [f64; 2],
}

/// Used resources, and the queue in the order of requests.
#[derive(Default)]
pub(super) struct Room {
    taken: Taken,
    pub(super) waiting: VecDeque<(Arc<Signal>, Taken)>,
}

impl Room {
    /// Takes these resources, if they are free.
    fn take(&mut self, more: Taken, limits: &Limits) -> bool {
        let rates = [0, 1].map(|at| self.taken.rates[at] + more.rates[at]);
        let all = Taken {
            tests: self.taken.tests + more.tests,
            sessions: self.taken.sessions + more.sessions,
            rates,
        };
        let most = limits.rate.map_or(f64::INFINITY, |most| most.get() as f64);
        // Sums and differences of rates have rounding errors.
        let fits = rates.iter().all(|rate| *rate <= most * (1.0 + 1e-9));
        let has_room = all.tests <= limits.tests && all.sessions <= MAX_SESSIONS && fits;
        if has_room {
            self.taken = all;
        }
        has_room
    }

    /// Returns these resources.
    fn give_back(&mut self, less: Taken, limits: &Limits) {
        let all = &mut self.taken;
        all.tests -= less.tests;
        all.sessions -= less.sessions;
        for (all, less) in all.rates.iter_mut().zip(less.rates) {
            *all -= less;
        }
        if all.tests == 0 {
            all.rates = [0.0; 2];
        }
        self.serve(limits);
    }

    /// Grants waiting requests in order, until one does not fit: none is overtaken.
    fn serve(&mut self, limits: &Limits) {
        while let Some((_, more)) = self.waiting.front()
            && self.take(*more, limits)
        {
            let served = self.waiting.pop_front();
            served.inspect(|(is_there, _)| is_there.give());
        }
    }
}

impl Responder {
    /// Waits until all earlier requests have room, and the test fits alongside the others.
    pub(super) fn make_room(&self, control: &mut Control, test: &Test) -> Served<Place<'_>> {
        let more = Taken {
            tests: 1,
            sessions: 0,
            // A stream as fast as its host can is allowed only without a rate limit.
            rates: test.wire_rates().map(|rate| rate.unwrap_or(0.0)),
        };
        let place = self.ask(more);
        let clock = self.run.clock();
        let end = clock.now().plus(test.queue.min(MAX_QUEUE));
        let (mut until, mut heard) = (clock.now(), None);
        while !place.is_there.wait(clock, until) {
            let (now, reason) = (clock.now(), self.why_not(place.waits_behind()));
            if now >= end {
                return Err(ServeError::Busy(reason));
            }
            control.send(&FromResponder::Waiting { reason })?;
            // A client that is gone delays nobody behind it. Older clients are silent while they wait.
            while control.receive::<FromClient>(Duration::ZERO)?.is_some() {
                heard = Some(now);
            }
            if heard.is_some_and(|heard| now.since(heard) >= GONE.into()) {
                return Err(ServeError::GoneWaiting(GONE.as_secs()));
            }
            self.ensure_running()?;
            until = end.min(now.plus(ALIVE.into()));
        }
        self.ensure_running()?;
        Ok(place)
    }

    /// Takes these resources, or queues for them behind earlier requests.
    fn ask(&self, more: Taken) -> Place<'_> {
        let is_there = Arc::<Signal>::default();
        let mut room = self.room.lock();
        room.waiting.push_back((Arc::clone(&is_there), more));
        room.serve(&self.options.limits);
        Place {
            responder: self,
            taken: more,
            is_there,
        }
    }

    /// Takes these resources, if they are free; for sessions, which do not wait.
    pub(super) fn place(&self, more: Taken) -> Option<Place<'_>> {
        let is_taken = self.room.lock().take(more, &self.options.limits);
        is_taken.then(|| Place {
            responder: self,
            taken: more,
            is_there: Arc::default(),
        })
    }

    /// Returns the reason why a test has no room, with this many waiting before it.
    fn why_not(&self, before: usize) -> String {
        let taken = self.room.lock().taken;
        let before = match before {
            0 => String::new(),
            1 => ", and 1 test waits before this one".to_owned(),
            more => format!(", and {more} tests wait before this one"),
        };
        format!(
            "{} tests run now, which take {} to this host and {} from it{before}; it allows {} tests and {}",
            taken.tests,
            show_rate(taken.rates[0]),
            show_rate(taken.rates[1]),
            self.options.limits.tests,
            rate_or_any(self.options.limits.rate.map(|rate| rate.get() as f64))
        )
    }
}

/// Resources of a test or a session, taken or waited for, until it is dropped.
pub(super) struct Place<'a> {
    responder: &'a Responder,
    taken: Taken,
    is_there: Arc<Signal>,
}

impl Place<'_> {
    /// Returns its index in the queue, if it waits.
    fn of_waiting(&self, room: &Room) -> Option<usize> {
        let of_this = |(waiting, _): &(Arc<Signal>, _)| Arc::ptr_eq(waiting, &self.is_there);
        room.waiting.iter().position(of_this)
    }

    /// Returns how many wait before it.
    fn waits_behind(&self) -> usize {
        let room = self.responder.room.lock();
        self.of_waiting(&room).unwrap_or(0)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let limits = &self.responder.options.limits;
        let mut room = self.responder.room.lock();
        match self.of_waiting(&room) {
            // Those behind it may fit although it did not.
            Some(waits) => {
                room.waiting.remove(waits);
                room.serve(limits);
            }
            None => room.give_back(self.taken, limits),
        }
    }
}

#[cfg(test)]
mod tests {
    use evlbi_core::rate::BitRate;
    use evlbi_net::run::Run;

    use super::super::RespondOptions;
    use super::*;

    fn responder(tests: u32, rate: u64) -> Responder {
        let options = RespondOptions {
            limits: Limits {
                rate: BitRate::new(rate),
                tests,
                ..RespondOptions::default().limits
            },
            ..RespondOptions::default()
        };
        Responder::new(&options, &Run::silent())
    }

    fn test(rates: [f64; 2]) -> Taken {
        Taken {
            tests: 1,
            sessions: 0,
            rates,
        }
    }

    #[test]
    fn tests_fit_in_or_wait() {
        let responder = responder(3, 70_000_000);
        let place = |rates| responder.place(test(rates));
        let [first, second] = [0; 2].map(|_| place([30e6, 0.0]).expect("room"));
        assert!(place([30e6, 0.0]).is_none());
        assert_eq!(
            responder.why_not(0),
            "2 tests run now, which take 60.000 Mbit/s to this host and 0.000 bit/s from it; it allows 3 tests and 70.000 Mbit/s"
        );
        // There is room in the other direction; but then there are three.
        let back = place([0.0, 70e6]).expect("room");
        assert!(place([0.0, 0.0]).is_none());
        // An end frees all its resources.
        drop(first);
        drop(back);
        let third = place([40e6, 70e6]).expect("room");
        assert!(place([0.0, 1.0]).is_none());
        drop((second, third));
        assert_eq!(responder.room.lock().taken.rates, [0.0; 2]);
        assert_eq!(responder.room.lock().taken.tests, 0);
    }

    /// Rounding errors in sums and differences of rates refuse nobody.
    #[test]
    fn rounding_keeps_nobody_out() {
        let responder = responder(100, 1_000_000);
        let place = || responder.place(test([1e5, 1e6 / 3.0]));
        for _ in 0..1000 {
            let all = [0; 3].map(|_| place().expect("room"));
            assert!(place().is_none());
            drop(all);
        }
    }

    #[test]
    fn sessions_have_a_limit_of_their_own() {
        let responder = responder(1, 1_000_000);
        let session = Taken {
            sessions: 1,
            ..Taken::default()
        };
        let all: Vec<Place<'_>> = (0..MAX_SESSIONS)
            .map(|_| responder.place(session).expect("room"))
            .collect();
        assert!(responder.place(session).is_none());
        assert!(responder.place(test([0.0; 2])).is_some());
        drop(all);
        assert!(responder.place(session).is_some());
    }
}
