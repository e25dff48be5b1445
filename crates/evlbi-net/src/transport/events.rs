//! What a thread of the data plane waits for beside time.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use crate::clock::Place;

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
