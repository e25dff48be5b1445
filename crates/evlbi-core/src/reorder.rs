//! Assigns each datagram of a numbered stream its slot in the ring, and decides when slots are released.
//!
//! VLBI_UDP wrote a packet to the next free slot of its ring and moved it if its number required that (`RingMove`, EXPReS report
//! section 3.3.2). Here the number is examined first and the datagram is placed once. The rules:
//!
//! - In-order data are released at once. A gap is kept open until the newest datagram is a *window* ahead of it, or until data
//!   after it have been there for the *hold* time. A datagram for a released slot is late.
//! - The first datagram gets the first slot. Datagrams up to a window or [`BEFORE_FIRST`] before it that arrive later count, but
//!   are late. A caller that can wait gives the lowest of the first numbers to [`Reorder::begin`].
//! - A number more than a window ahead of the newest, or one that belongs to no known sequence, is [strange](Verdict::Strange):
//!   the caller decides whether it may belong to the stream at all. If so, [`Reorder::consider`] keeps it until a second one near
//!   it arrives, and it counts as arriving then. The sequence continues there: a step forward by up to `max_gap` is a gap;
//!   otherwise the sender has restarted. At the very end a gap is accepted without a second datagram.
//! - A sender that restarts at recently seen numbers looks like a series of duplicates: see [`REPEATS`]. Datagrams that arrived
//!   until it is detected count for the new sequence, as late.
//!
//! A *position* counts slots from the start of the recording and never decreases, whatever the numbers do.
//!
//! Decisions about slots belong here; [`admission`](crate::admission) decides what belongs to the stream at all.

mod hold;
mod repeat;

use std::collections::VecDeque;

use crate::account::{Account, Counters, HISTORY, Report};
use crate::time::Nanos;

use self::hold::Hold;
use self::repeat::Repeat;

pub use self::repeat::REPEATS;

/// Default maximum forward jump of the numbers that is a gap, in datagrams ([`Settings::max_gap`]).
pub const MAX_GAP: u64 = 1 << 24;
/// Maximum distance before the first number of datagrams that were sent before it.
pub const BEFORE_FIRST: u64 = 1024;
/// Number of datagrams of the known sequence after which a pending one is dropped as a stray.
const KEPT_FOR: u32 = 64;
/// Maximum window in slots, which needs 256 MB.
const MAX_WINDOW: u64 = 1 << 28;
/// Maximum distance of a gap from the first number, so that offsets do not overflow.
const FURTHEST: u64 = 1 << 62;

/// How long to wait for gaps, and which jumps are gaps.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Window in slots: at least one, and fewer than the ring has.
    pub window: u64,
    /// Time to wait since data after the gap arrived.
    pub hold: Nanos,
    /// Slots of the ring.
    pub capacity: u64,
    /// Maximum forward jump, in slots, that is a gap in the sequence and not a restart.
    pub max_gap: u64,
}

/// Action for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Copy its data to this position.
    Place(u64),
    /// Nothing: it already arrived.
    Duplicate,
    /// Nothing: its slot was released.
    Late,
    /// Nothing: the consumer has not freed its slot.
    RingFull,
    /// Nothing yet: it is far ahead or belongs to no known sequence ([`Reorder::ahead`], [`Reorder::consider`]).
    Strange,
    /// Keep a copy of it, replacing any earlier one.
    Keep,
    /// Offer the kept datagram again, then this one.
    Replay,
}

/// Event that the consumer needs besides the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This many slots are missing here; they take no space in the ring.
    Gap(u64),
    /// The sender has restarted, after a silence in which it would have sent this many slots.
    Restart(u64),
}

/// Window over the ring, and the account of what passed through it.
#[derive(Clone, Debug)]
pub struct Reorder {
    settings: Settings,
    account: Account,
    /// Number at offset 0 of the current sequence, somewhat before its first; `None` before the first.
    base: Option<u64>,
    /// Mapping of offsets to positions since the last jump.
    map: Map,
    /// Positions below are released.
    released: u64,
    /// One more than the highest position placed.
    head: u64,
    hold: Hold,
    kept: Option<Pending>,
    repeat: Repeat,
    events: VecDeque<(u64, Event)>,
    /// First number of the current sequence that was placed, and the offset below which missing numbers were listed.
    first: u64,
    listed: u64,
    /// One more than the highest offset of the current sequence that arrived, placed or not.
    heard: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Map {
    offset: u64,
    position: u64,
}

/// Pending datagram that waits for another one near it.
#[derive(Clone, Copy, Debug)]
struct Pending {
    sequence: u64,
    /// Number of duplicates of it.
    copies: u64,
    /// Number of new datagrams of the known sequence since.
    others: u32,
}

impl Reorder {
    /// Makes a window before its first datagram.
    pub fn new(mut settings: Settings) -> Reorder {
        // A gap must leave the window before the ring is full.
        let longest = settings.capacity.saturating_sub(1).clamp(1, MAX_WINDOW);
        settings.window = settings.window.clamp(1, longest);
        Reorder {
            account: Account::new(HISTORY.max(4 * settings.window)),
            base: None,
            map: Map::default(),
            released: 0,
            head: 0,
            hold: Hold::new(settings.hold),
            kept: None,
            repeat: Repeat::default(),
            events: VecDeque::new(),
            first: 0,
            listed: 0,
            heard: 0,
            settings,
        }
    }

    /// Starts a new sequence with the next datagram, as after a change of the sender's address, or at the very first datagram.
    /// `first` is its lowest number, although a later one may arrive before it. `missing`: slots that are missing since the
    /// sequence before, as far as time shows it.
    pub fn begin(&mut self, first: u64, missing: u64) {
        self.begin_at(first, first, missing);
    }

    /// Decides about the datagram with this number. The consumer has freed the positions below `freed`.
    #[inline]
    pub fn offer(&mut self, sequence: u64, freed: u64) -> Verdict {
        let Some(base) = self.base else {
            self.begin(sequence, 0);
            return self.offer(sequence, freed);
        };
        let offset = sequence.wrapping_sub(base);
        if offset >= self.beyond() {
            return Verdict::Strange;
        }
        match self.account.has_arrived(offset) {
            None => Verdict::Strange,
            Some(true) => self.seen_before(sequence, freed),
            Some(false) if self.kept.is_some() && self.kept_is_due() => Verdict::Replay,
            Some(false) => self.first_arrival(sequence, offset, freed),
        }
    }

    /// Releases what can be released at `now`, and returns the position below which everything is released.
    pub fn advance(&mut self, now: Nanos) -> u64 {
        let beyond = self.head.saturating_sub(self.settings.window);
        let expired = self.hold.expired(self.head, now).max(beyond);
        let released = self.released.max(expired);
        let from = self.offset_of(released);
        let until = self.account.arrived_until(from, self.offset_of(self.head));
        self.released = released + (until - from);
        self.released
    }

    /// Returns whether to offer the pending datagram once more at the end of the stream, because its number continues the
    /// sequence, with or without a gap. It would be the last, so no second one can arrive.
    pub fn accept_kept(&mut self) -> bool {
        let Some(kept) = self.kept else {
            return false;
        };
        let offset = self.offset(kept.sequence);
        let accepted = self.is_ahead(offset);
        if accepted {
            self.release_kept();
            self.leap(offset);
        } else {
            self.give_up_kept();
        }
        accepted
    }

    /// Counts datagrams that do not belong to the sequence.
    pub fn foreign(&mut self, count: u64) {
        self.account.foreign(count);
    }

    /// Moves to another ring, with other slots: positions restart at 0, and the account continues.
    pub fn move_to(&mut self, settings: Settings) {
        self.flush();
        let mut fresh = Reorder::new(settings);
        let history = HISTORY.max(4 * fresh.settings.window);
        self.account.remember(history);
        std::mem::swap(&mut self.account, &mut fresh.account);
        *self = fresh;
    }

    /// Releases everything at the end of the stream.
    pub fn flush(&mut self) -> u64 {
        self.give_up_kept();
        self.released = self.head;
        self.released
    }

    /// Returns the next event for the consumer and the position before which it happened.
    pub fn next_event(&mut self) -> Option<(u64, Event)> {
        self.events.pop_front()
    }

    /// Calls `run` with the first number, and one more than the last, of each run of numbers that was released without having arrived
    /// since the last call. Returns the number below which everything is released; `None` before the first datagram.
    pub fn list_missing(&mut self, mut run: impl FnMut(u64, u64)) -> Option<u64> {
        let base = self.base?;
        let until = self.offset_of(self.released);
        while self.listed < until {
            let first = self.account.arrived_until(self.listed, until);
            let end = self.account.missing_until(first, until);
            if first < end {
                run(base.wrapping_add(first), base.wrapping_add(end));
            }
            self.listed = end.max(first);
        }
        Some(base.wrapping_add(until))
    }

    /// Returns the first number of the current sequence that was placed, and one more than its highest; `None` before any.
    pub fn current(&self) -> Option<(u64, u64)> {
        let base = self.base?;
        Some((self.first, base.wrapping_add(self.offset_of(self.head))))
    }

    /// Returns one more than the highest number of the current sequence that arrived, placed or not; `None` before any.
    pub fn heard(&self) -> Option<u64> {
        self.base.map(|base| base.wrapping_add(self.heard))
    }

    /// Notes that the sender shed the numbers from `first` on below `end`, after all of them were due. A number outside the current
    /// sequence changes nothing.
    pub fn shed(&mut self, first: u64, end: u64) {
        let Some(base) = self.base else {
            return;
        };
        let [first, end] = [first, end].map(|number| number.wrapping_sub(base));
        // The first one may be before the sequence.
        let first = if first < FURTHEST { first } else { 0 };
        if end < FURTHEST && first < end {
            self.account.shed(first..end);
        }
    }

    /// Returns the current counters.
    pub fn counters(&self) -> Counters {
        self.account.counters()
    }

    /// Returns the first and the last number seen so far.
    pub fn ends(&self) -> Option<(u64, u64)> {
        self.account.ends()
    }

    /// Ends the stream and returns the complete account.
    pub fn finish(mut self) -> Report {
        self.flush();
        self.account.finish()
    }

    #[inline]
    fn first_arrival(&mut self, sequence: u64, offset: u64, freed: u64) -> Verdict {
        let slots = offset.checked_sub(self.map.offset);
        let position = slots.map(|slots| self.map.position + slots);
        let Some(position) = position.filter(|position| *position >= self.released) else {
            return self.late(sequence, offset, freed);
        };
        self.repeat.interrupt();
        self.heard = self.heard.max(offset + 1);
        if position - freed.min(position) >= self.settings.capacity {
            self.account.ring_full(offset);
            return Verdict::RingFull;
        }
        self.account.unique(offset, false);
        self.head = self.head.max(position + 1);
        Verdict::Place(position)
    }

    fn late(&mut self, sequence: u64, offset: u64, freed: u64) -> Verdict {
        if self.repeat.late(sequence, self.settings.window) {
            return self.restarted(sequence, freed);
        }
        self.account.unique(offset, true);
        Verdict::Late
    }

    fn seen_before(&mut self, sequence: u64, freed: u64) -> Verdict {
        if self.repeat.duplicate(sequence, self.settings.window) {
            return self.restarted(sequence, freed);
        }
        self.account.duplicates(1);
        Verdict::Duplicate
    }

    /// Starts a new sequence whose first numbers looked like duplicates; this number is the first that can be placed.
    #[cold]
    fn restarted(&mut self, sequence: u64, freed: u64) -> Verdict {
        let missed = std::mem::take(&mut self.repeat).duplicates;
        self.account.take_back_duplicates(missed.len() as u64);
        self.begin_at(missed.first().copied().unwrap_or(sequence), sequence, 0);
        for number in missed {
            self.account.unique(self.offset(number), true);
        }
        self.offer(sequence, freed)
    }

    /// Returns how far a strange number is ahead of the newest; `None` if it is behind it.
    pub fn ahead(&self, sequence: u64) -> Option<u64> {
        let newest = self.offset_of(self.head);
        let ahead = self.offset(sequence).checked_sub(newest);
        ahead.filter(|ahead| *ahead < FURTHEST)
    }

    /// Keeps a strange number that may belong to the stream until another one near it arrives.
    #[cold]
    pub fn consider(&mut self, sequence: u64) -> Verdict {
        if let Some(kept) = &mut self.kept {
            let before = kept.sequence;
            if before == sequence {
                kept.copies += 1;
                return Verdict::Duplicate;
            }
            if self.are_near(before, sequence) {
                self.release_kept();
                self.continue_at(before, sequence);
                return Verdict::Replay;
            }
        }
        self.give_up_kept();
        self.kept = Some(Pending {
            sequence,
            copies: 0,
            others: 0,
        });
        Verdict::Keep
    }

    fn are_near(&self, one: u64, other: u64) -> bool {
        let apart = one.wrapping_sub(other).min(other.wrapping_sub(one));
        apart < self.settings.window.max(2)
    }

    /// Continues the sequence at the first of two numbers, whichever that is.
    fn continue_at(&mut self, one: u64, other: u64) {
        let is_in_order = other.wrapping_sub(one) < FURTHEST;
        let first = if is_in_order { one } else { other };
        if self.is_ahead(self.offset(first)) {
            self.leap(self.offset(first));
        } else {
            self.begin(first, 0);
        }
    }

    /// Returns whether the sequence may continue at `offset` after a gap.
    fn is_ahead(&self, offset: u64) -> bool {
        let newest = self.offset_of(self.head);
        (newest..FURTHEST).contains(&offset) && offset - newest <= self.settings.max_gap
    }

    /// Continues the sequence at `offset`; the numbers in between get no slots.
    fn leap(&mut self, offset: u64) {
        self.repeat.interrupt();
        self.jump(Event::Gap(offset - self.offset_of(self.head)));
        self.map = Map {
            offset,
            position: self.head,
        };
    }

    /// Starts a sequence at number `first`, of which `next` is the first to be placed.
    fn begin_at(&mut self, first: u64, next: u64, missing: u64) {
        self.give_up_kept();
        if self.base.is_some() {
            self.jump(Event::Restart(missing));
        }
        let base = first.wrapping_sub(self.settings.window.min(BEFORE_FIRST));
        self.base = Some(base);
        self.map = Map {
            offset: next.wrapping_sub(base),
            position: self.head,
        };
        self.first = next;
        (self.listed, self.heard) = (self.map.offset, self.map.offset);
        self.repeat.interrupt();
        self.account.open_segment(base);
    }

    /// Releases everything placed, and adds an event after it. Events without placed data between them are joined, so that there
    /// are never many more than slots.
    fn jump(&mut self, event: Event) {
        self.released = self.head;
        let here = self.head;
        let is_restart = |(position, event): &(u64, Event)| {
            *position == here && matches!(event, Event::Restart(_))
        };
        if matches!(event, Event::Restart(_))
            && let Some(before) = self.events.len().checked_sub(2)
            && is_restart(&self.events[before])
        {
            // A gap in a sequence of which nothing was placed.
            self.events.pop_back();
        }
        match (self.events.back_mut(), event) {
            (Some((position, Event::Gap(missing))), Event::Gap(more)) if *position == here => {
                *missing = missing.saturating_add(more);
            }
            (Some(before), Event::Restart(_)) if is_restart(before) => {}
            _ => self.events.push_back((here, event)),
        }
    }

    /// Notes a new datagram of the known sequence. Returns whether to offer the pending one again because the sequence has
    /// reached it; after a while it is a stray.
    #[cold]
    fn kept_is_due(&mut self) -> bool {
        let Some(kept) = &mut self.kept else {
            return false;
        };
        kept.others += 1;
        let kept = *kept;
        let offset = self.offset(kept.sequence);
        let due = offset < self.beyond() && self.account.has_arrived(offset).is_some();
        if due {
            self.release_kept();
        } else if kept.others > KEPT_FOR {
            self.give_up_kept();
        }
        due
    }

    /// Releases the pending datagram, which is offered again.
    fn release_kept(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.account.duplicates(kept.copies);
        }
    }

    fn give_up_kept(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.account.foreign(kept.copies.saturating_add(1));
        }
    }

    fn offset(&self, sequence: u64) -> u64 {
        sequence.wrapping_sub(self.base.unwrap_or(sequence))
    }

    /// Converts a position since the last jump to an offset.
    #[inline]
    fn offset_of(&self, position: u64) -> u64 {
        self.map.offset + (position - self.map.position)
    }

    /// Returns the offset from which on offsets are too far ahead.
    #[inline]
    fn beyond(&self) -> u64 {
        self.offset_of(self.head) + self.settings.window
    }
}

#[cfg(test)]
mod tests;
