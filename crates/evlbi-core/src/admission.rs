//! Decides which datagrams belong to the stream, and where they go.
//!
//! Anything may arrive at an open port: a port scan, the rest of an older stream, a second station, forged datagrams. The rules:
//!
//! - A *flow* is a sender, a datagram length and consecutive numbers. One flow is the *live* stream; all others are *candidates*,
//!   whose datagrams are pending for a while and change nothing.
//! - A candidate can become the stream when [`ENOUGH`] of its datagrams have consecutive numbers and contain *valid frames*:
//!   headers of VDIF, Mark 5B or Mark 4 where its frames start. A candidate without frames needs [`RAW_ENOUGH`].
//! - It replaces the live stream in two cases. Either the live stream was silent for [`SILENCE`] and [`ENOUGH`] of the
//!   candidate's datagrams arrived since; of several candidates, the one that started first wins, so that each follows the one
//!   before it. Or the candidate's frames have headers, while the last 64 datagrams of the live stream in which a frame starts
//!   contained none, or none ever did. A live stream with valid frames is only replaced by another one with valid frames. Of two
//!   with valid frames, the one that was recorded first replaces the other when it returns.
//! - The numbers of the live stream may jump forward by [`MIN_JUMP`]; or by 1.5 times the count of the busiest second so far, for
//!   each second of the silence and two more. Such a jump is a gap. A datagram beyond it, or before everything that is
//!   remembered, belongs to a candidate, even if it is from the live stream's sender: the sender has restarted.
//! - A flow with fewer datagrams is decided at the end, if nothing else became the stream; before, if its sender can be trusted and has
//!   announced it ([`Admission::announce`]).
//!
//! A replacement is a sequence of its own ([`Reorder::begin`]); with datagrams of another length it needs other slots
//! ([`Begins`]).
//!
//! New rules about what belongs to the stream belong here, each tested with the attack or accident that it is for.

mod candidate;
mod flow;
mod frames;
mod live;
mod numbering;
mod pace;
mod streams;

use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::Duration;

use crate::account::{Counters, Report};
use crate::deframe::Wanted;
use crate::peer::Peer;
use crate::reorder::{Event, Reorder, Settings as Window};
use crate::time::Nanos;

use self::candidate::{Candidate, MAX_SEARCHED};
use self::flow::Flow;
use self::live::Live;
use self::pace::Pace;

pub use self::candidate::{ENOUGH, RAW_ENOUGH};
pub use self::flow::Arrival;
pub use self::numbering::{Numbering, Numbers};
pub use self::pace::MIN_JUMP;
pub use self::streams::{Dismissed, ENOUGH_BYTES, Streams};

/// Minimum silence of the live stream before another may replace it.
pub const SILENCE: Nanos = Nanos(300_000_000);
/// Maximum number of candidates that are remembered at the same time.
const MAX_CANDIDATES: usize = 256;
/// Maximum number of recorded flows that may reclaim the stream.
const MAX_RECORDED: usize = 16;
/// Maximum number of refused senders that are listed.
const MAX_REFUSED: usize = 64;
/// Time for enough datagrams of a stream that its sender has announced.
pub const SLOW: Nanos = Nanos::SECOND;
/// Silence after which a candidate is forgotten.
pub const FORGOTTEN: Nanos = Nanos(2_000_000_000);
/// Interval in which at most [`MAX_SEARCHED`] bytes of candidates are searched for frames: the search delays the receiver.
const SPELL: Nanos = Nanos(50_000_000);
/// Maximum jump for the window: any jump that admission allows is a gap.
const ANY_GAP: u64 = 1 << 61;

/// Settings of a receiver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Accepts only this host.
    pub only: Option<IpAddr>,
    /// Number of ports.
    pub ports: usize,
    /// Maximum distance of a late datagram behind the newest at which it is still placed, in bytes of data.
    pub window: u64,
    /// Time to wait for a missing datagram.
    pub hold: Nanos,
    /// Maximum memory for pending datagrams, in bytes.
    pub kept: usize,
    /// Known properties of the frames.
    pub wanted: Wanted,
}

/// Outcome for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It belongs to the stream.
    Stream,
    /// It is pending.
    Pending {
        /// It looks like the start of a stream: two or more have consecutive numbers, or it contains whole frames.
        promising: bool,
    },
    /// It was refused, and counted.
    Foreign,
    /// It starts a stream: [`Admission::beginning`].
    Begins,
}

/// Stream that is about to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begins {
    /// Bytes of data in each datagram.
    pub data: usize,
    /// Whether it needs slots of another length than the stream before, in a new ring.
    pub resized: bool,
    /// Estimated bytes of data missing since the last datagram of the live stream.
    pub missing: u64,
}

/// Sender whose datagrams were refused while another's were the stream.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refused {
    /// Sender.
    pub sender: Peer,
    /// Number of refused datagrams.
    pub datagrams: u64,
    /// Whether they contained valid frames, so that perhaps they should be recorded.
    pub frames: bool,
}

/// Receiver state that decides what belongs to the stream, and where it goes.
pub struct Admission {
    settings: Settings,
    /// Numbering of new streams.
    template: Box<dyn Numbering>,
    live: Option<Live>,
    /// Window over the ring, from the first stream on.
    reorder: Option<Reorder>,
    /// Candidate that has won and waits for its slots.
    winner: Option<Candidate>,
    candidates: Vec<Candidate>,
    /// Recorded flows with valid frames, the first one first.
    recorded: Vec<Flow>,
    /// When the sockets were last emptied.
    read: Nanos,
    /// Number of datagrams that arrived so far.
    arrivals: u64,
    judged: Judged,
    tally: Tally,
    bytes: Bytes,
    /// When the kernel received the first and the last datagram of the stream, since 1970.
    stamps: [Option<Duration>; 2],
}

/// Bytes of data, without duplicates.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    before: u64,
    /// Number of datagrams that arrived before those of the current length.
    datagrams: u64,
}

/// Bytes searched for frames, and the start of that interval.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    begun: Nanos,
    bytes: usize,
}

/// Refused datagrams.
#[derive(Clone, Debug, Default)]
struct Tally {
    size: u64,
    source: u64,
    header: u64,
    /// Datagrams of a stream whose ring was not free.
    overflow: u64,
    refused: Vec<Refused>,
}

impl Admission {
    /// Makes the state before any datagram.
    pub fn new(settings: Settings, numbering: Box<dyn Numbering>) -> Admission {
        Admission {
            settings,
            template: numbering,
            live: None,
            reorder: None,
            winner: None,
            candidates: Vec::new(),
            recorded: Vec::new(),
            read: Nanos(0),
            arrivals: 0,
            judged: Judged::default(),
            tally: Tally::default(),
            bytes: Bytes::default(),
            stamps: [None; 2],
        }
    }

    /// Takes a datagram that was read from the kernel at `now`. The consumer has freed all positions of the ring below `freed`.
    /// `place` copies data to its position.
    #[inline]
    pub fn take(
        &mut self,
        arrival: &Arrival<'_>,
        now: Nanos,
        freed: u64,
        place: &mut impl FnMut(u64, &[u8]),
    ) -> Taken {
        self.arrivals += 1;
        self.hear(arrival, self.arrivals, now, freed, place)
    }

    /// Takes the datagram that arrived as number `order` of all.
    #[inline]
    fn hear(
        &mut self,
        arrival: &Arrival<'_>,
        order: u64,
        now: Nanos,
        freed: u64,
        place: &mut impl FnMut(u64, &[u8]),
    ) -> Taken {
        if let (Some(live), Some(reorder)) = (&mut self.live, &mut self.reorder)
            && live.take(reorder, arrival, (self.read, now), freed, place)
        {
            let [first, last] = &mut self.stamps;
            *first = first.or(arrival.stamp);
            *last = arrival.stamp.or(*last);
            live.newest = order;
            return Taken::Stream;
        }
        self.take_other(arrival, order, now)
    }

    /// Notes that the sockets were emptied at `now`, which may be in the past. A stream that waited for a silence may start:
    /// [`Admission::beginning`].
    pub fn tick(&mut self, now: Nanos) {
        self.read = now;
        if self.candidates.is_empty() || self.winner.is_some() {
            return;
        }
        self.claim_live();
        let silence = |live: &Live| now.since(live.flow.last);
        let silence = self.live.as_ref().map_or(Nanos(u64::MAX), silence);
        for place in 0..self.candidates.len() {
            self.judge(place, now);
        }
        if let Some(best) = self.best(|candidate| self.may_take_over(candidate, silence)) {
            self.win(best);
            return;
        }
        if self.live.is_none() {
            return;
        }
        for place in (0..self.candidates.len()).rev() {
            if now.since(self.candidates[place].flow.last) >= FORGOTTEN {
                let candidate = self.candidates.swap_remove(place);
                self.refuse_all(candidate);
            }
        }
    }

    /// Notes the end of input. A stream may start with few datagrams: [`Admission::beginning`].
    pub fn end(&mut self, now: Nanos) {
        self.tick(now);
        if self.live.is_some() || self.winner.is_some() {
            return;
        }
        let (template, wanted) = (&*self.template, self.settings.wanted);
        for candidate in &mut self.candidates {
            candidate.may_be_all(template, wanted);
        }
        if let Some(best) = self.best(|candidate| candidate.known.is_some()) {
            self.win(best);
        }
    }

    /// Notes what a sender whose word can be trusted has said at `now`: that it has offered the numbers from `first` on below `end`, and
    /// whether these were all. So a few datagrams with such numbers are a stream, if no more come for [`SLOW`]:
    /// [`Admission::beginning`].
    pub fn announce(&mut self, (first, end): (u64, u64), is_all: bool, now: Nanos) {
        if self.live.is_some() || self.winner.is_some() {
            return;
        }
        let offered = end.wrapping_sub(first);
        let is_it = |candidate: &Candidate| {
            let (newest, kept) = (candidate.newest, candidate.kept.front());
            newest.is_some_and(|number| number.wrapping_sub(first) < offered)
                && kept.is_some_and(|kept| is_all || now.since(kept.at) >= SLOW)
        };
        let (template, wanted) = (&*self.template, self.settings.wanted);
        for candidate in self.candidates.iter_mut().filter(|it| is_it(it)) {
            candidate.may_be_all(template, wanted);
        }
        if let Some(best) = self.best(|candidate| is_it(candidate) && candidate.known.is_some()) {
            self.win(best);
        }
    }

    /// Returns the stream that is about to start.
    pub fn beginning(&self) -> Option<Begins> {
        let winner = self.winner.as_ref()?;
        let data = winner.known.as_ref()?.data;
        let resized = self.live.as_ref().is_none_or(|live| live.data != data);
        let missing = match (&self.live, winner.kept.front()) {
            (Some(live), Some(first)) => live.missing_until(first.at),
            _ => 0,
        };
        Some(Begins {
            data,
            resized,
            missing,
        })
    }

    /// Ends the live stream, because another one with other slots starts, and releases everything up to the returned position.
    pub fn close(&mut self) -> u64 {
        let Some(reorder) = &mut self.reorder else {
            return 0;
        };
        if let Some(live) = self.live.take() {
            let unique = reorder.counters().unique;
            self.bytes.before += (unique - self.bytes.datagrams) * live.data as u64;
            self.bytes.datagrams = unique;
        }
        reorder.flush()
    }

    /// Starts the stream, in a ring of `capacity` slots.
    pub fn begin(&mut self, capacity: u64, freed: u64, place: &mut impl FnMut(u64, &[u8])) {
        let missing = self.beginning().map_or(0, |begins| begins.missing);
        let Some(mut winner) = self.winner.take() else {
            return;
        };
        let Some((lowest, known)) = winner.lowest().zip(winner.known.take()) else {
            self.refuse_all(winner);
            return;
        };
        let window = Window {
            window: (self.settings.window / known.data as u64).clamp(2, capacity * 3 / 4 + 2),
            hold: self.settings.hold,
            capacity,
            max_gap: ANY_GAP,
        };
        let is_closed = self.live.is_none();
        if let Some(reorder) = self.reorder.as_mut().filter(|_| is_closed) {
            reorder.move_to(window);
        }
        let reorder = self.reorder.get_or_insert_with(|| Reorder::new(window));
        reorder.begin(lowest, missing / known.data as u64);
        self.live = Some(Live {
            flow: winner.flow,
            numbering: known.numbering,
            frames: known.frames,
            sample: Vec::new(),
            sample_at: 0,
            is_raw: false,
            wanted: self.settings.wanted,
            pace: Pace::default(),
            data: known.data,
            kept: Vec::new(),
            count: 0,
            newest: 0,
            begun: winner.kept.front().map_or(Nanos(0), |kept| kept.at),
        });
        self.claim_live();
        for kept in std::mem::take(&mut winner.kept) {
            self.hear(&kept.arrival(), kept.order, kept.at, freed, place);
        }
    }

    /// Releases what can be released at `now`, and returns the position up to which everything is released.
    pub fn advance(&mut self, now: Nanos) -> u64 {
        let reorder = self.reorder.as_mut();
        reorder.map_or(0, |reorder| reorder.advance(now))
    }

    /// Returns the next event for the consumer and the position before which it happened.
    pub fn next_event(&mut self) -> Option<(u64, Event)> {
        self.reorder.as_mut()?.next_event()
    }

    /// Ends the input: pending datagrams of the stream may have been its last, and datagrams that became no stream are refused.
    /// Releases everything up to the returned position.
    pub fn finish(&mut self, freed: u64, place: &mut impl FnMut(u64, &[u8])) -> u64 {
        let candidates = std::mem::take(&mut self.candidates);
        if let Some(winner) = self.winner.take() {
            self.tally.source += std::mem::take(&mut self.tally.overflow);
            self.refuse_all(winner);
        }
        for candidate in candidates {
            self.refuse_all(candidate);
        }
        let Some(reorder) = &mut self.reorder else {
            return 0;
        };
        if let Some(live) = &mut self.live
            && reorder.accept_kept()
        {
            live.replay(reorder, freed, place);
        }
        reorder.flush()
    }

    /// Lists what was released without having arrived, as [`Reorder::list_missing`] does. Returns the first number of the current
    /// sequence, one more than its highest, and the number below which everything is released; `None` before a stream.
    pub fn list_missing(&mut self, run: impl FnMut(u64, u64)) -> Option<(u64, u64, u64)> {
        let reorder = self.reorder.as_mut()?;
        let released = reorder.list_missing(run)?;
        let (first, end) = reorder.current()?;
        Some((first, end, released))
    }

    /// Returns when the sockets were empty for the last time, as of [`Admission::tick`].
    pub fn emptied(&self) -> Nanos {
        self.read
    }

    /// Returns one more than the highest number of the current sequence that arrived, whether or not there was room; `None` before a
    /// stream.
    pub fn heard(&self) -> Option<u64> {
        self.reorder.as_ref()?.heard()
    }

    /// Notes that the sender shed the numbers from `first` on below `end`, after all of them were due.
    pub fn shed(&mut self, first: u64, end: u64) {
        if let Some(reorder) = &mut self.reorder {
            reorder.shed(first, end);
        }
    }

    /// Returns the current counters.
    pub fn counters(&self) -> Counters {
        let reorder = self.reorder.as_ref();
        reorder.map(Reorder::counters).unwrap_or_default()
    }

    /// Returns the bytes of data, without duplicates.
    pub fn bytes(&self) -> u64 {
        let data = self.live.as_ref().map_or(0, |live| live.data as u64);
        let unique = self.counters().unique.saturating_sub(self.bytes.datagrams);
        self.bytes.before + unique * data
    }

    /// Returns the account, after everything is released.
    pub fn report(self) -> Report {
        self.reorder.map_or_else(Report::default, Reorder::finish)
    }

    /// Returns the number of pending datagrams.
    pub fn undecided(&self) -> u64 {
        let candidates = self.candidates.iter().chain(&self.winner);
        let counts = candidates.map(|candidate| candidate.kept.len() as u64);
        counts.sum()
    }

    /// Returns the sender of the stream.
    pub fn sender(&self) -> Option<Peer> {
        self.live.as_ref()?.flow.sender()
    }

    /// Returns the bytes of data in each datagram of the stream.
    pub fn data(&self) -> Option<usize> {
        self.live.as_ref().map(|live| live.data)
    }

    /// Returns the number of refused datagrams of another length than the stream's.
    pub fn foreign_size(&self) -> u64 {
        self.tally.size
    }

    /// Returns the number of refused datagrams of other senders.
    pub fn foreign_source(&self) -> u64 {
        self.tally.source
    }

    /// Returns the number of datagrams of the stream's sender and length whose headers give them no place in it.
    pub fn foreign_header(&self) -> u64 {
        self.tally.header
    }

    /// Returns the senders that were refused while there was a stream, or that did not become one; at most 64 are listed.
    pub fn refused(&self) -> &[Refused] {
        &self.tally.refused
    }

    /// Returns when the kernel received the first and the last datagram of the stream, since 1970.
    pub fn stamps(&self) -> [Option<Duration>; 2] {
        self.stamps
    }

    /// Takes a datagram that does not belong to the live stream.
    #[cold]
    fn take_other(&mut self, arrival: &Arrival<'_>, order: u64, now: Nanos) -> Taken {
        let host = arrival.source.ip();
        if self.settings.only.is_some_and(|only| host != Some(only)) {
            self.tally.source += 1;
            return Taken::Foreign;
        }
        let number = self.template.alone(arrival.bytes);
        let read = self.read;
        if let Some(winner) = &mut self.winner
            && winner.may_have(arrival, number)
        {
            if winner.bytes >= self.settings.kept {
                // The winner's ring is not free yet, since the consumer is slow. A datagram skipped here is lost, and counted by
                // its number.
                self.tally.overflow += 1;
                return Taken::Pending { promising: true };
            }
            winner.keep(arrival, order, number, None, read, now);
            return Taken::Pending { promising: true };
        }
        if let Some(live) = &mut self.live
            && live.flow.may_have(arrival)
        {
            // It may be from a thread that starts.
            live.numbering.heard(arrival.bytes);
        }
        self.claim_live();
        let live = self.live.as_ref().map(|live| live.newest);
        let mut candidates = self.candidates.iter();
        let place = candidates.position(|candidate| candidate.may_have(arrival, number));
        let place = place.unwrap_or_else(|| {
            let candidate = Candidate::new(arrival, self.settings.ports);
            self.candidates.push(candidate);
            self.candidates.len() - 1
        });
        let given_up = self.candidates[place].keep(arrival, order, number, live, read, now);
        self.refuse(place, given_up);
        self.judge(place, now);
        let place = self.limit(place);
        let candidate = &self.candidates[place];
        let is_in_order = self.settings.ports == 1 && arrival.stamp.is_some();
        let silence = self.live.as_ref().map_or(Nanos(u64::MAX), |live| {
            if is_in_order {
                live.flow.silence_before(arrival.stamp, read, now)
            } else {
                // The live stream's datagrams may still be in the sockets.
                read.since(live.flow.last)
            }
        });
        if self.winner.is_none() && self.may_take_over(candidate, silence) {
            // A candidate that arrived before is recorded before, this one after it.
            let best = self.best(|candidate| self.may_take_over(candidate, silence));
            self.win(best.unwrap_or(place));
            return match self.winner {
                Some(_) => Taken::Begins,
                None => Taken::Foreign,
            };
        }
        let promising = self.live.is_none() && candidate.is_promising(&*self.template);
        Taken::Pending { promising }
    }

    fn judge(&mut self, place: usize, now: Nanos) {
        let candidate = &mut self.candidates[place];
        if !candidate.is_due() {
            return;
        }
        if now.since(self.judged.begun) >= SPELL {
            self.judged = Judged {
                begun: now,
                bytes: 0,
            };
        }
        let searched = candidate.bytes.min(MAX_SEARCHED);
        if self.judged.bytes > 0 && self.judged.bytes + searched > MAX_SEARCHED {
            return;
        }
        self.judged.bytes += searched;
        let given_up = candidate.judge(&*self.template, self.settings.wanted, false);
        self.refuse(place, given_up);
    }

    /// Returns whether a candidate may replace the live stream, which was silent for `silence`.
    fn may_take_over(&self, candidate: &Candidate, silence: Nanos) -> bool {
        if !candidate.is_ready() {
            return false;
        }
        let Some(live) = &self.live else {
            return true;
        };
        // Datagrams that arrived alongside the live stream do not follow it.
        let is_alone = candidate.is_alone_since(live.newest);
        let is_silent = is_alone && silence >= SILENCE;
        let has_more_claim = || self.claim(&candidate.flow) < self.claim(&live.flow);
        match (&live.frames, candidate.has_frames()) {
            (None, true) => live.is_raw || is_alone,
            (None, false) => is_silent,
            (Some(_), false) => false,
            (Some(_), true) => is_silent || live.is_raw || has_more_claim(),
        }
    }

    /// Lets a live stream with frames reclaim the stream later.
    fn claim_live(&mut self) {
        let Some(live) = self.live.as_ref().filter(|live| live.frames.is_some()) else {
            return;
        };
        let is_new = self.claim(&live.flow) == self.recorded.len();
        if is_new && self.recorded.len() < MAX_RECORDED {
            self.recorded.push(live.flow.clone());
        }
    }

    /// Returns the rank of a flow among the recorded ones.
    fn claim(&self, flow: &Flow) -> usize {
        let is_same = |recorded: &Flow| recorded.has_sender_of(flow);
        let place = self.recorded.iter().position(is_same);
        place.unwrap_or(self.recorded.len())
    }

    /// Returns the best of the candidates for which `may` is true: with frames, then with an earlier claim. The first stream is
    /// the one with the most datagrams; a later one is the one that started first.
    fn best(&self, may: impl Fn(&Candidate) -> bool) -> Option<usize> {
        let worth = |candidate: &Candidate| {
            let claim = Reverse(self.claim(&candidate.flow));
            let rank = match &self.live {
                None => candidate.kept.len() as u64,
                Some(_) => u64::MAX - candidate.begun(),
            };
            (candidate.has_frames(), claim, rank)
        };
        let places = (0..self.candidates.len()).filter(|place| may(&self.candidates[*place]));
        places.max_by_key(|place| worth(&self.candidates[*place]))
    }

    fn win(&mut self, place: usize) {
        let candidate = self.candidates.swap_remove(place);
        if candidate.lowest().is_some() {
            self.winner = Some(candidate);
        } else {
            self.refuse_all(candidate);
        }
    }

    /// Limits the pending datagrams: candidates without frames that were silent for longest are removed first. Returns the new
    /// index of the candidate at `place`.
    fn limit(&mut self, mut place: usize) -> usize {
        let kept = |candidates: &[Candidate]| -> usize {
            candidates.iter().map(|candidate| candidate.bytes).sum()
        };
        let mut bytes = kept(&self.candidates);
        while self.candidates.len() > MAX_CANDIDATES || bytes > self.settings.kept {
            let others = self.candidates.iter().enumerate();
            let others = others.filter(|(other, _)| *other != place);
            let worst = others.min_by_key(|(_, other)| (other.has_frames(), other.flow.last));
            let worst = worst.map(|(worst, _)| worst);
            let Some(worst) = worst else {
                // It is the only one: drop its oldest datagram.
                if !self.candidates[place].give_up_oldest() {
                    break;
                }
                self.refuse(place, 1);
                bytes = kept(&self.candidates);
                continue;
            };
            let last = self.candidates.len() - 1;
            let candidate = self.candidates.swap_remove(worst);
            if place == last {
                place = worst;
            }
            bytes -= candidate.bytes;
            self.refuse_all(candidate);
        }
        place
    }

    fn refuse_all(&mut self, mut candidate: Candidate) {
        let count = candidate.give_up();
        self.count_refused(&candidate, count);
    }

    fn refuse(&mut self, place: usize, count: u64) {
        let candidates = std::mem::take(&mut self.candidates);
        if let Some(candidate) = candidates.get(place) {
            self.count_refused(candidate, count);
        }
        self.candidates = candidates;
    }

    fn count_refused(&mut self, candidate: &Candidate, count: u64) {
        if count == 0 {
            return;
        }
        let (flow, frames) = (&candidate.flow, candidate.has_frames());
        let tally = &mut self.tally;
        let live = self.live.as_ref().map(|live| &live.flow);
        let is_of_length = live.is_none_or(|live| live.length == flow.length);
        if live.is_some_and(|live| is_of_length && live.has_sender_of(flow)) {
            match &mut self.reorder {
                Some(reorder) if candidate.newest.is_some() => reorder.foreign(count),
                _ => tally.header += count,
            }
            return;
        }
        match is_of_length {
            true => tally.source += count,
            false => tally.size += count,
        }
        let Some(sender) = flow.sender() else {
            return;
        };
        let mut refused = tally.refused.iter_mut();
        if let Some(refused) = refused.find(|listed| listed.sender == sender) {
            refused.datagrams += count;
            refused.frames |= frames;
        } else if tally.refused.len() < MAX_REFUSED {
            tally.refused.push(Refused {
                sender,
                datagrams: count,
                frames,
            });
        }
    }
}

#[cfg(test)]
mod tests;
