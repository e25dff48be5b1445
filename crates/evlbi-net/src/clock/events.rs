//! Events that a thread of the data plane waits for, in addition to time.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use super::Place;

/// Events at one end of a transport.
#[derive(Clone, Copy, Default)]
pub struct Events<'e> {
    pub(crate) polls: &'e [libc::pollfd],
    pub(crate) places: &'e [Arc<Place>],
}

impl<'e> Events<'e> {
    /// No events: only time passes.
    pub const NONE: Events<'static> = Events {
        polls: &[],
        places: &[],
    };

    /// Returns the events at places of a simulation.
    pub fn at(places: &'e [Arc<Place>]) -> Events<'e> {
        Events {
            places,
            ..Events::NONE
        }
    }

    /// Returns the events of descriptors, which must stay open while this is used.
    pub fn of(polls: &'e [libc::pollfd]) -> Events<'e> {
        Events {
            polls,
            ..Events::NONE
        }
    }
}

/// One event: at a descriptor, which must stay open while this is used, or at a place of a simulation.
pub(crate) enum Event {
    Poll([libc::pollfd; 1]),
    Place([Arc<Place>; 1]),
}

impl Event {
    /// Returns the event for [`Events::of`] or [`Events::at`].
    pub fn events(&self) -> Events<'_> {
        match self {
            Event::Poll(polls) => Events::of(polls),
            Event::Place(places) => Events::at(places),
        }
    }
}

/// Several events.
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

/// Returns a poll for [`Events::of`] that is ready when `end` can be read; `end` must stay open while it is used.
pub fn readable(end: &impl AsFd) -> libc::pollfd {
    poll(end, libc::POLLIN)
}

/// Returns a poll that is ready when `end` can be written to; `end` must stay open while it is used.
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
