//! What a receiver takes for its stream, and where its datagrams go.
//!
//! Anything may arrive at an open port: a port scan, the rest of an older stream, a second station, forged datagrams. The rules:
//!
//! - A *flow* is a sender, a length of datagrams and consecutive numbers. One of them is the *live* stream; all others are
//!   *candidates*, whose datagrams are kept for a while and change nothing.
//! - A candidate can become the stream when [`ENOUGH`] of its datagrams number on and hold *valid frames*: headers of VDIF or
//!   Mark 5B where its frames begin. One without frames needs [`RAW_ENOUGH`].
//! - It takes the live stream's place when that has been silent for [`SILENCE`] and [`ENOUGH`] of its own came since (of several, the
//!   one that began first, so that each follows the one before it), or when the last 64 datagrams of the live stream in which a frame
//!   begins held no header, or never any, while its own do. A live stream with valid frames gives way to such a one only. Of two with
//!   valid frames, the one that was recorded first gets its place back when it returns.
//! - The numbers of the live stream may jump forward by [`MIN_JUMP`], or by half as many again as came in the busiest second so far
//!   for each second of the silence and two more: that is a gap. Beyond, and behind all that is remembered, a datagram belongs to a
//!   candidate, although its sender is the live stream's: a sender that began again.
//! - Of fewer datagrams than needed it is decided at the end, if nothing else became the stream.
//!
//! What took the place of something else is a sequence of its own ([`Reorder::begin`]); with datagrams of another length it needs
//! other slots ([`Begins`]).
//!
//! Here belongs a further rule of what is the stream, with the attack or accident that it is for as its test.

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

/// How long the live stream must be silent before another may take its place.
pub const SILENCE: Nanos = Nanos(300_000_000);
/// Candidates that are remembered at the same time.
const MAX_CANDIDATES: usize = 256;
/// Flows that were recorded and have a claim to come back.
const MAX_RECORDED: usize = 16;
/// Senders that were refused and are listed.
const MAX_REFUSED: usize = 64;
/// A candidate is given up after this silence.
pub const FORGOTTEN: Nanos = Nanos(2_000_000_000);
/// Time in which no more than [`MAX_SEARCHED`] bytes of candidates are searched for frames: the search keeps the receiver.
const SPELL: Nanos = Nanos(50_000_000);
/// A jump that admission allows is a gap for the window.
const ANY_GAP: u64 = 1 << 61;

/// What is listened to, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Hear this host only.
    pub only: Option<IpAddr>,
    /// How many ports are listened to.
    pub ports: usize,
    /// How far behind the newest datagram a late one may be and still be placed, in bytes of data.
    pub window: u64,
    /// Time to wait for a missing datagram.
    pub hold: Nanos,
    /// Limit on the memory that candidates keep.
    pub kept: usize,
    /// What is known of the frames.
    pub wanted: Wanted,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It belongs to the stream.
    Stream,
    /// It is kept for now; `promising`: it looks like one of a stream that begins.
    Pending {
        /// Two or more number on, or it holds whole frames.
        promising: bool,
    },
    /// It is refused, and counted.
    Foreign,
    /// A stream begins with it: [`Admission::beginning`].
    Begins,
}

/// A stream that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begins {
    /// Bytes of data in each of its datagrams.
    pub data: usize,
    /// It needs slots of another length than the stream before it, in a ring of its own.
    pub resized: bool,
    /// Bytes of data that would have come since the live stream's last.
    pub missing: u64,
}

/// A sender whose datagrams were refused while another's were the stream.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Refused {
    /// Who sent them.
    pub sender: Peer,
    /// How many.
    pub datagrams: u64,
    /// Whether they held valid frames: something that ought to be recorded, perhaps.
    pub frames: bool,
}

/// Decides what belongs to the stream, and where it goes.
pub struct Admission {
    settings: Settings,
    /// How streams are numbered.
    template: Box<dyn Numbering>,
    live: Option<Live>,
    /// The window over the ring, from the first stream on.
    reorder: Option<Reorder>,
    /// The candidate that has won and waits for its slots.
    winner: Option<Candidate>,
    candidates: Vec<Candidate>,
    /// Flows with valid frames that were recorded, the first one first.
    recorded: Vec<Flow>,
    /// When the sockets were read to their end last.
    read: Nanos,
    /// Datagrams that came so far.
    arrivals: u64,
    judged: Judged,
    tally: Tally,
    bytes: Bytes,
    /// When the kernel received the first and the last datagram of the stream, since 1970.
    stamps: [Option<Duration>; 2],
}

/// Bytes of data that arrived for the first time.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    before: u64,
    /// Datagrams that had arrived before those of the length of now.
    datagrams: u64,
}

/// Bytes searched for frames, and the start of that spell.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    begun: Nanos,
    bytes: usize,
}

/// What is not the stream's.
#[derive(Clone, Debug, Default)]
struct Tally {
    size: u64,
    source: u64,
    header: u64,
    /// Of a stream whose ring was not free.
    overflow: u64,
    refused: Vec<Refused>,
}

impl Admission {
    /// Before anything has come.
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

    /// A datagram that came from the kernel at `now`. `freed`: positions of the ring below it were freed by the consumer. `place`
    /// copies data to its position.
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

    /// The datagram that came as the `order`th.
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
        self.stranger(arrival, order, now)
    }

    /// All that had come by `now`, which may have passed, was taken from the sockets. A stream may begin that waited for a silence:
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

    /// No more comes. A stream may begin with the few datagrams that came: [`Admission::beginning`].
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

    /// The stream that is to begin.
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

    /// The live stream is over, since another with other slots is to begin: everything is handed on, up to the position returned.
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

    /// Begins the stream, in a ring of `capacity` slots.
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

    /// Hands on what can be handed on at `now`; all positions below the result are.
    pub fn advance(&mut self, now: Nanos) -> u64 {
        let reorder = self.reorder.as_mut();
        reorder.map_or(0, |reorder| reorder.advance(now))
    }

    /// The next event for the consumer and the position before which it happened.
    pub fn next_event(&mut self) -> Option<(u64, Event)> {
        self.reorder.as_mut()?.next_event()
    }

    /// Nothing more comes: what was kept of the stream may have been the last. What no stream came of is refused. Everything is
    /// handed on, up to the position returned.
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

    /// The counters now.
    pub fn counters(&self) -> Counters {
        let reorder = self.reorder.as_ref();
        reorder.map(Reorder::counters).unwrap_or_default()
    }

    /// Bytes of data that arrived for the first time.
    pub fn bytes(&self) -> u64 {
        let data = self.live.as_ref().map_or(0, |live| live.data as u64);
        let unique = self.counters().unique.saturating_sub(self.bytes.datagrams);
        self.bytes.before + unique * data
    }

    /// The account, when all is handed on.
    pub fn report(self) -> Report {
        self.reorder.map_or_else(Report::default, Reorder::finish)
    }

    /// Datagrams that are kept for now.
    pub fn undecided(&self) -> u64 {
        let candidates = self.candidates.iter().chain(&self.winner);
        let counts = candidates.map(|candidate| candidate.kept.len() as u64);
        counts.sum()
    }

    /// Who sends the stream.
    pub fn sender(&self) -> Option<Peer> {
        self.live.as_ref()?.flow.sender()
    }

    /// Bytes of data in each of the stream's datagrams.
    pub fn data(&self) -> Option<usize> {
        self.live.as_ref().map(|live| live.data)
    }

    /// Refused datagrams that have another length than the stream's.
    pub fn foreign_size(&self) -> u64 {
        self.tally.size
    }

    /// Refused datagrams of other senders.
    pub fn foreign_source(&self) -> u64 {
        self.tally.source
    }

    /// Datagrams of the stream's sender and length whose headers give them no place in it.
    pub fn foreign_header(&self) -> u64 {
        self.tally.header
    }

    /// Senders that were refused while there was a stream or none came of it; no more than 64 are listed.
    pub fn refused(&self) -> &[Refused] {
        &self.tally.refused
    }

    /// When the kernel received the first and the last datagram of the stream, since 1970.
    pub fn stamps(&self) -> [Option<Duration>; 2] {
        self.stamps
    }

    /// A datagram that is not the live stream's.
    #[cold]
    fn stranger(&mut self, arrival: &Arrival<'_>, order: u64, now: Nanos) -> Taken {
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
                // Its ring is not free yet, since the consumer is slow. What is left out here is lost, and counted by its numbers.
                self.tally.overflow += 1;
                return Taken::Pending { promising: true };
            }
            winner.keep(arrival, order, number, None, read, now);
            return Taken::Pending { promising: true };
        }
        if let Some(live) = &mut self.live
            && live.flow.may_have(arrival)
        {
            // Perhaps of a thread that begins.
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
                // What the live stream sent may wait yet.
                read.since(live.flow.last)
            }
        });
        if self.winner.is_none() && self.may_take_over(candidate, silence) {
            // One that came before is recorded before, and this one after it.
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

    /// Whether a candidate may take the place of the live stream, which was silent for so long.
    fn may_take_over(&self, candidate: &Candidate, silence: Nanos) -> bool {
        if !candidate.is_ready() {
            return false;
        }
        let Some(live) = &self.live else {
            return true;
        };
        // What came beside the live stream does not follow it.
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

    /// A live stream with frames has a claim to come back.
    fn claim_live(&mut self) {
        let Some(live) = self.live.as_ref().filter(|live| live.frames.is_some()) else {
            return;
        };
        let is_new = self.claim(&live.flow) == self.recorded.len();
        if is_new && self.recorded.len() < MAX_RECORDED {
            self.recorded.push(live.flow.clone());
        }
    }

    /// The place of a flow among those that were recorded.
    fn claim(&self, flow: &Flow) -> usize {
        let is_same = |recorded: &Flow| recorded.has_sender_of(flow);
        let place = self.recorded.iter().position(is_same);
        place.unwrap_or(self.recorded.len())
    }

    /// The best of the candidates that `may` be the stream: with frames, with an earlier claim; the first stream is the one with most
    /// datagrams, and a later one that which began first.
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

    /// Keeps what is kept within bounds: those candidates go first that carry no frames and were not heard for longest. Returns
    /// where the one at `place` is then.
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
                // Alone, it gives up its oldest.
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
