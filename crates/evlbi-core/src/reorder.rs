//! Where each datagram of a numbered stream belongs in the ring, and when its place is handed on.
//!
//! VLBI_UDP wrote a packet to the next free place of its ring and moved it when its number said otherwise
//! (`RingMove`, EXPReS report section 3.3.2). Here the number is looked at first and the datagram is
//! placed once. The rules:
//!
//! - What has come without a hole before it is handed on at once. A hole is waited for until the newest
//!   datagram is a *window* ahead of it, or until something after it has been there for the *hold* time.
//!   What comes for a place that was handed on is late.
//! - The first datagram has the first place. Those before it, up to a window or [`BEFORE_FIRST`], that come
//!   after it count, but are late: whoever can wait gives the lowest of the first numbers to
//!   [`Reorder::begin`].
//! - A number more than a window ahead of the newest, or one that belongs to nothing known, is [strange](Verdict::Strange):
//!   the caller decides whether it may belong to the stream at all. If so, [`Reorder::consider`] keeps it until a second
//!   one near it comes, and it counts as arriving then. The sequence goes on there: forward by up to `max_gap` it is a gap, else
//!   the sender has begun again. At the very end a gap is believed without a second one.
//! - A sender that begins again at numbers that were seen a short while ago looks like a series of
//!   duplicates: see [`REPEATS`]. What came until then is accounted to the new sequence, as late.
//!
//! A *position* counts slots from the beginning of the recording and never goes back, whatever the numbers
//! do.
//!
//! Here belongs what decides about places; what belongs to the stream at all is decided in [`admission`](crate::admission).

mod hold;
mod repeat;

use std::collections::VecDeque;

use crate::account::{Account, Counters, HISTORY, Report};
use crate::time::Nanos;

use self::hold::Hold;
use self::repeat::Repeat;

pub use self::repeat::REPEATS;

/// Longest jump of the numbers forward that is taken for a gap, in datagrams ([`Settings::max_gap`]).
pub const MAX_GAP: u64 = 1 << 24;
/// How far before the first number others may lie that were sent before it.
pub const BEFORE_FIRST: u64 = 1024;
/// Datagrams of the known sequence after which a kept one is given up as a stray.
const KEPT_FOR: u32 = 64;
/// Longest window in slots, for which 256 MB are needed.
const MAX_WINDOW: u64 = 1 << 28;
/// No gap leads further from the first number, so that offsets do not overflow.
const FURTHEST: u64 = 1 << 62;

/// How long holes are waited for, and what is taken for a gap.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Slots: at least one, and fewer than those of the ring.
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
    /// Nothing yet: it is far ahead or of no sequence known ([`Reorder::ahead`], [`Reorder::consider`]).
    Strange,
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
    /// The sender has begun again, after a silence in which it would have sent so many slots.
    Restart(u64),
}

/// The window over the ring, and the account of what came through it.
#[derive(Clone, Debug)]
pub struct Reorder {
    settings: Settings,
    account: Account,
    /// Number at offset 0 of the current sequence, somewhat before its first; `None` before the first.
    base: Option<u64>,
    /// Where offsets lie in the ring since the last jump.
    map: Map,
    /// Positions below are handed on.
    handed: u64,
    /// One more than the highest position placed.
    head: u64,
    hold: Hold,
    kept: Option<Pending>,
    repeat: Repeat,
    events: VecDeque<(u64, Event)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Map {
    offset: u64,
    position: u64,
}

/// A datagram that waits for another one near it.
#[derive(Clone, Copy, Debug)]
struct Pending {
    sequence: u64,
    /// How often it came again.
    copies: u64,
    /// New datagrams of the known sequence that came since.
    others: u32,
}

impl Reorder {
    /// A window before its first datagram.
    pub fn new(mut settings: Settings) -> Reorder {
        // A hole must fall out of the window before the ring is full.
        let longest = settings.capacity.saturating_sub(1).clamp(1, MAX_WINDOW);
        settings.window = settings.window.clamp(1, longest);
        Reorder {
            account: Account::new(HISTORY.max(4 * settings.window)),
            base: None,
            map: Map::default(),
            handed: 0,
            head: 0,
            hold: Hold::new(settings.hold),
            kept: None,
            repeat: Repeat::default(),
            events: VecDeque::new(),
            settings,
        }
    }

    /// The next datagram begins a sequence of its own, as after a change of the sender's address, or the very
    /// first one. `first` is its lowest number, although a later one may come before it. `missing`: slots that would have come since
    /// the sequence before, as far as time shows it.
    pub fn begin(&mut self, first: u64, missing: u64) {
        self.begin_at(first, first, missing);
    }

    /// Where the datagram with this number goes. `freed`: positions below it were freed by the consumer.
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

    /// Hands on what can be handed on at `now`; all positions below the result are.
    pub fn advance(&mut self, now: Nanos) -> u64 {
        let beyond = self.head.saturating_sub(self.settings.window);
        let waited_for = self.hold.expired(self.head, now).max(beyond);
        let handed = self.handed.max(waited_for);
        let from = self.offset_of(handed);
        let until = self.account.arrived_until(from, self.offset_of(self.head));
        self.handed = handed + (until - from);
        self.handed
    }

    /// The stream has ended: whether to offer the kept datagram once more, because its number goes on from the
    /// others', if not without a gap. It would be the last, and no second one can come.
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

    /// Datagrams came that do not belong to the sequence.
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
    fn first_arrival(&mut self, sequence: u64, offset: u64, freed: u64) -> Verdict {
        let slots = offset.checked_sub(self.map.offset);
        let position = slots.map(|slots| self.map.position + slots);
        let Some(position) = position.filter(|position| *position >= self.handed) else {
            return self.late(sequence, offset, freed);
        };
        self.repeat.interrupt();
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
            return self.begun_again(sequence, freed);
        }
        self.account.unique(offset, true);
        Verdict::Late
    }

    fn seen_before(&mut self, sequence: u64, freed: u64) -> Verdict {
        if self.repeat.duplicate(sequence, self.settings.window) {
            return self.begun_again(sequence, freed);
        }
        self.account.duplicates(1);
        Verdict::Duplicate
    }

    /// What looked like duplicates are the first numbers of a new sequence, and this one is the first that can
    /// be placed.
    #[cold]
    fn begun_again(&mut self, sequence: u64, freed: u64) -> Verdict {
        let missed = std::mem::take(&mut self.repeat).duplicates;
        self.account.take_back_duplicates(missed.len() as u64);
        self.begin_at(missed.first().copied().unwrap_or(sequence), sequence, 0);
        for number in missed {
            self.account.unique(self.offset(number), true);
        }
        self.offer(sequence, freed)
    }

    /// How far a strange number is ahead of the newest; `None` of one behind it.
    pub fn ahead(&self, sequence: u64) -> Option<u64> {
        let newest = self.offset_of(self.head);
        let ahead = self.offset(sequence).checked_sub(newest);
        ahead.filter(|ahead| *ahead < FURTHEST)
    }

    /// A strange number that may belong to the stream: kept until another one near it comes.
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
                self.go_on_at(before, sequence);
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

    /// The sequence goes on at two numbers, whichever is first.
    fn go_on_at(&mut self, one: u64, other: u64) {
        let is_in_order = other.wrapping_sub(one) < FURTHEST;
        let first = if is_in_order { one } else { other };
        if self.is_ahead(self.offset(first)) {
            self.leap(self.offset(first));
        } else {
            self.begin(first, 0);
        }
    }

    /// Whether the sequence may go on at `offset` after a gap.
    fn is_ahead(&self, offset: u64) -> bool {
        let newest = self.offset_of(self.head);
        (newest..FURTHEST).contains(&offset) && offset - newest <= self.settings.max_gap
    }

    /// The sequence goes on at `offset`; what lies between gets no place.
    fn leap(&mut self, offset: u64) {
        self.repeat.interrupt();
        self.jump(Event::Gap(offset - self.offset_of(self.head)));
        self.map = Map {
            offset,
            position: self.head,
        };
    }

    /// A sequence begins with number `first`, of which `next` is the first to be placed.
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
        self.repeat.interrupt();
        self.account.open_segment(base);
    }

    /// Everything placed is handed on, and something happens behind it. Events behind which nothing was placed
    /// are joined, so that there are never many more than slots.
    fn jump(&mut self, event: Event) {
        self.handed = self.head;
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

    /// A new datagram of the known sequence has come. Whether the kept one is to be offered again, because
    /// the sequence has come up to it; else it is a stray after a while.
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

    /// The kept datagram is offered again.
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

    /// The offset of a position since the last jump.
    #[inline]
    fn offset_of(&self, position: u64) -> u64 {
        self.map.offset + (position - self.map.position)
    }

    /// Offsets from here on are too far ahead.
    #[inline]
    fn beyond(&self) -> u64 {
        self.offset_of(self.head) + self.settings.window
    }
}

#[cfg(test)]
mod tests;
