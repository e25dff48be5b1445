//! Where each datagram of a numbered stream belongs in the ring, and when its place is handed on.
//!
//! VLBI_UDP wrote a packet to the next free place of its ring and moved it when its number said otherwise
//! (`RingMove`, EXPReS report section 3.3.2). Here the number is looked at first and the datagram is
//! placed once. The rules:
//!
//! - What has come without a hole before it is handed on at once. A hole is waited for until the newest
//!   datagram is a *window* ahead of it, or until something after it has been there for the *hold* time.
//!   What comes for a place that was handed on is late.
//! - A number more than a window ahead of the newest, or one that belongs to nothing known, may be a stray
//!   datagram. It is kept until a second one near it comes. Then the sequence goes on there: forward by up to
//!   `max_gap` it is a gap, else the sender has begun again.
//! - A sender that begins again at numbers that were seen a short while ago looks like a series of
//!   duplicates: after [`REPEATS`] of them in a row, each the successor of the last and nothing new in between,
//!   it is taken for a restart.
//!
//! A *position* counts slots from the beginning of the recording and never goes back, whatever the numbers
//! do.

use std::collections::VecDeque;

use crate::account::{Account, Counters, Report};
use crate::time::Nanos;

/// Duplicates in straight order that are taken for a restart of the sender.
pub const REPEATS: u32 = 64;
/// Datagrams of the known sequence after which a kept one is given up as a stray.
const KEPT_FOR: u32 = 64;
/// Moments within the hold time at which the progress is noted.
const NOTES: u64 = 64;

/// How long holes are waited for, and what is taken for a gap.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Slots.
    pub window: u64,
    /// Time since something after the hole came.
    pub hold: Nanos,
    /// Slots of the ring.
    pub capacity: u64,
    /// Longest jump forward, in slots, that is a gap in the sequence and no restart.
    pub max_gap: u64,
}

/// What to do with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Copy its data to this position.
    Place(u64),
    /// Nothing: it was there already.
    Duplicate,
    /// Nothing: its place was handed on.
    Late,
    /// Nothing: the consumer has not freed its place.
    RingFull,
    /// Keep a copy of it, in the place of one that was kept before.
    Keep,
    /// Offer the kept datagram again, then this one.
    Replay,
}

/// What the consumer has to know beside the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// So many slots are missing here that have no place in the ring.
    Gap(u64),
    /// The sender has begun again.
    Restart,
}

/// The window over the ring, and the account of what came through it.
#[derive(Clone, Debug)]
pub struct Reorder {
    settings: Settings,
    account: Account,
    /// Number at offset 0 of the current sequence; `None` before the first and when told to restart.
    base: Option<u64>,
    /// Where offsets lie in the ring since the last jump.
    map: Map,
    /// Positions below are handed on.
    handed: u64,
    /// One more than the highest position placed.
    head: u64,
    /// How far the stream was, and when; oldest first.
    notes: VecDeque<Note>,
    /// Below this everything has waited for the hold time.
    expired: u64,
    kept: Option<Kept>,
    repeat: Repeat,
    events: VecDeque<(u64, Event)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Map {
    offset: u64,
    position: u64,
}

/// The newest datagram was before `head` until `last`; the note was begun at `first`.
#[derive(Clone, Copy, Debug)]
struct Note {
    first: Nanos,
    last: Nanos,
    head: u64,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    sequence: u64,
    others: u32,
}

/// Duplicates in straight order.
#[derive(Clone, Copy, Debug, Default)]
struct Repeat {
    next: u64,
    count: u32,
}

impl Reorder {
    /// A window before its first datagram.
    pub fn new(settings: Settings) -> Reorder {
        Reorder {
            settings,
            account: Account::new(),
            base: None,
            map: Map::default(),
            handed: 0,
            head: 0,
            notes: VecDeque::new(),
            expired: 0,
            kept: None,
            repeat: Repeat::default(),
            events: VecDeque::new(),
        }
    }

    /// The next datagram begins a sequence of its own, as after a change of the sender's address. At the
    /// very beginning: the first number is `first`, although a later one may come before it.
    pub fn begin(&mut self, first: u64) {
        self.give_up_kept();
        if self.base.is_some() {
            self.jump_to_head(Event::Restart);
        }
        self.map = Map {
            offset: 0,
            position: self.head,
        };
        self.base = Some(first);
        self.repeat = Repeat::default();
        self.account.open_segment(first);
    }

    /// Where the datagram with this number goes. `freed`: positions below it were freed by the consumer.
    #[inline]
    pub fn offer(&mut self, sequence: u64, freed: u64) -> Verdict {
        let Some(base) = self.base else {
            self.begin(sequence);
            return self.offer(sequence, freed);
        };
        let offset = sequence.wrapping_sub(base);
        let newest = self.map.offset + (self.head - self.map.position);
        if offset >= newest.saturating_add(self.settings.window).max(1) {
            return self.strange(sequence, offset);
        }
        match self.account.has_arrived(offset) {
            None => self.strange(sequence, offset),
            Some(true) => self.seen_before(sequence),
            Some(false) => self.first_arrival(offset, freed),
        }
    }

    /// Hands on what can be handed on at `now`; all positions below the result are.
    pub fn advance(&mut self, now: Nanos) -> u64 {
        self.note(now);
        let mut handed = self
            .handed
            .max(self.expired)
            .max(self.head.saturating_sub(self.settings.window));
        while handed < self.head && self.account.has_arrived(self.offset_of(handed)) == Some(true) {
            handed += 1;
        }
        self.handed = handed;
        handed
    }

    /// The stream has ended: everything is handed on.
    pub fn flush(&mut self) -> u64 {
        self.give_up_kept();
        self.handed = self.head;
        self.handed
    }

    /// The next event for the consumer and the position before which it happened.
    pub fn next_event(&mut self) -> Option<(u64, Event)> {
        self.events.pop_front()
    }

    /// The counters now.
    pub fn counters(&self) -> Counters {
        self.account.counters()
    }

    /// First and last number seen so far.
    pub fn ends(&self) -> Option<(u64, u64)> {
        self.account.ends()
    }

    /// The stream has ended: everything that was counted.
    pub fn finish(mut self) -> Report {
        self.flush();
        self.account.finish()
    }

    #[inline]
    fn first_arrival(&mut self, offset: u64, freed: u64) -> Verdict {
        self.usual();
        let position = offset
            .checked_sub(self.map.offset)
            .map(|slots| self.map.position + slots)
            .filter(|position| *position >= self.handed);
        let Some(position) = position else {
            self.account.unique(offset, true);
            return Verdict::Late;
        };
        if position - freed.min(position) >= self.settings.capacity {
            self.account.ring_full(offset);
            return Verdict::RingFull;
        }
        self.account.unique(offset, false);
        self.head = self.head.max(position + 1);
        Verdict::Place(position)
    }

    /// A number of the known sequence that is new: what was unusual before was a stray.
    #[inline]
    fn usual(&mut self) {
        self.repeat.count = 0;
        if let Some(kept) = &mut self.kept {
            kept.others += 1;
            if kept.others > KEPT_FOR {
                self.give_up_kept();
            }
        }
    }

    fn seen_before(&mut self, sequence: u64) -> Verdict {
        let follows = self.repeat.count > 0 && sequence == self.repeat.next;
        self.repeat = Repeat {
            next: sequence.wrapping_add(1),
            count: if follows { self.repeat.count + 1 } else { 1 },
        };
        if self.repeat.count > REPEATS {
            self.begin(sequence);
            return self.offer(sequence, self.head);
        }
        self.account.duplicate();
        Verdict::Duplicate
    }

    /// A number that does not fit: kept until another one near it comes.
    #[cold]
    fn strange(&mut self, sequence: u64, offset: u64) -> Verdict {
        let near = self.kept.is_some_and(|kept| {
            let apart = sequence
                .wrapping_sub(kept.sequence)
                .min(kept.sequence.wrapping_sub(sequence));
            (1..self.settings.window.max(2)).contains(&apart)
        });
        if !near {
            self.give_up_kept();
            self.kept = Some(Kept {
                sequence,
                others: 0,
            });
            return Verdict::Keep;
        }
        let before = self.kept.take().map_or(sequence, |kept| kept.sequence);
        let other = before.wrapping_sub(self.base.unwrap_or(0));
        self.go_on_at(sequence, offset, before, other);
        Verdict::Replay
    }

    /// The sequence goes on at two numbers, whichever is first.
    fn go_on_at(&mut self, sequence: u64, offset: u64, before: u64, other: u64) {
        let newest = self.map.offset + (self.head - self.map.position);
        let first = offset.min(other);
        if first >= newest && first - newest <= self.settings.max_gap {
            self.jump_to_head(Event::Gap(first - newest));
            self.map = Map {
                offset: first,
                position: self.head,
            };
        } else {
            let backward = sequence.wrapping_sub(before) > u64::MAX / 2;
            self.begin(if backward { sequence } else { before });
        }
    }

    /// Everything placed is handed on, and something happens behind it.
    fn jump_to_head(&mut self, event: Event) {
        self.handed = self.head;
        self.events.push_back((self.head, event));
    }

    fn give_up_kept(&mut self) {
        if self.kept.take().is_some() {
            self.account.foreign();
        }
    }

    fn offset_of(&self, position: u64) -> u64 {
        self.map.offset + (position.saturating_sub(self.map.position))
    }

    /// Notes how far the stream is at `now`, and finds how far it was a hold time ago.
    fn note(&mut self, now: Nanos) {
        let step = Nanos(self.settings.hold.0 / NOTES);
        match self.notes.back_mut() {
            Some(note) if note.head == self.head => {}
            Some(note) if now.since(note.first) < step => {
                note.last = now;
                note.head = self.head;
            }
            _ => self.notes.push_back(Note {
                first: now,
                last: now,
                head: self.head,
            }),
        }
        while let Some(note) = self.notes.front()
            && now.since(note.last) >= self.settings.hold
        {
            // Something after every hole below has been there for so long.
            self.expired = self.expired.max(note.head);
            self.notes.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
