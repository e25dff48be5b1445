//! Records how far the stream was one hold time ago.

use std::collections::VecDeque;

use crate::time::Nanos;

/// Number of notes of the progress per hold time. The wait for a gap ends late by at most this fraction of the hold time.
const NOTES: u64 = 64;

/// Notes of the progress.
#[derive(Clone, Debug)]
pub struct Hold {
    time: Nanos,
    /// Oldest first.
    notes: VecDeque<Note>,
    /// Everything below this has waited for the hold time.
    expired: u64,
}

/// The newest datagram was before `head` since `last`; the note was made at `first`.
#[derive(Clone, Copy, Debug)]
struct Note {
    first: Nanos,
    last: Nanos,
    head: u64,
}

impl Hold {
    /// Makes a record for this hold time.
    pub fn new(time: Nanos) -> Hold {
        Hold {
            time,
            notes: VecDeque::new(),
            expired: 0,
        }
    }

    /// Notes that the newest datagram is before `head` at `now`. Returns the position below which no gap is kept open, since data
    /// after it have been there for the hold time.
    pub fn expired(&mut self, head: u64, now: Nanos) -> u64 {
        let step = Nanos(self.time.0 / NOTES);
        match self.notes.back_mut() {
            Some(note) if note.head == head => {}
            Some(note) if now.since(note.first) < step => {
                note.last = now;
                note.head = head;
            }
            _ => self.notes.push_back(Note {
                first: now,
                last: now,
                head,
            }),
        }
        let is_over = |note: &mut Note| now.since(note.last) >= self.time;
        while let Some(note) = self.notes.pop_front_if(is_over) {
            self.expired = self.expired.max(note.head);
        }
        self.expired
    }
}
