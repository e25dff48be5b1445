//! What a thread of the data plane waits for beside time.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use super::Place;

/// What may happen to one end of a transport.
#[derive(Clone, Copy, Default)]
pub struct Events<'e> {
    pub(crate) polls: &'e [libc::pollfd],
    pub(crate) places: &'e [Arc<Place>],
}

impl<'e> Events<'e> {
    /// Nothing: only time brings something new.
    pub const NONE: Events<'static> = Events {
        polls: &[],
        places: &[],
    };

    /// What happens at places of a simulation.
    pub fn at(places: &'e [Arc<Place>]) -> Events<'e> {
        Events {
            places,
            ..Events::NONE
        }
    }

    /// What happens to descriptors, which stay open as long as this is used.
    pub fn of(polls: &'e [libc::pollfd]) -> Events<'e> {
        Events {
            polls,
            ..Events::NONE
        }
    }
}

/// One thing that may happen, to a descriptor that stays open as long as this is used, or at a place of a simulation.
pub(crate) enum Event {
    Poll([libc::pollfd; 1]),
    Place([Arc<Place>; 1]),
}

impl Event {
    /// For [`Events::of`] or [`Events::at`].
    pub fn events(&self) -> Events<'_> {
        match self {
            Event::Poll(polls) => Events::of(polls),
            Event::Place(places) => Events::at(places),
        }
    }
}

/// Several of them.
#[derive(Default)]
pub(crate) struct Several {
    polls: Vec<libc::pollfd>,
    places: Vec<Arc<Place>>,
}

impl Several {
    pub fn events(&self) -> Events<'_> {
        Events {
            polls: &self.polls,
            places: &self.places,
        }
    }
}

impl FromIterator<Event> for Several {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Several {
        let mut several = Several::default();
        for event in events {
            match event {
                Event::Poll(polls) => several.polls.extend(polls),
                Event::Place(places) => several.places.extend(places),
            }
        }
        several
    }
}

impl fmt::Debug for Events<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let polls = self.polls.iter().map(|poll| (poll.fd, poll.events));
        f.debug_list().entries(polls).finish()
    }
}

/// For [`Events::of`]: something can be read of `end`, which must stay open as long as this is used.
pub fn readable(end: &impl AsFd) -> libc::pollfd {
    poll(end, libc::POLLIN)
}

/// Something can be written to `end`, which must stay open as long as this is used.
pub(crate) fn writable(end: &impl AsFd) -> libc::pollfd {
    poll(end, libc::POLLOUT)
}

fn poll(end: &impl AsFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd: end.as_fd().as_raw_fd(),
        events,
        revents: 0,
    }
}
