//! Cell: one effect of a path on packets, with the ground truth of what it did.

use std::collections::VecDeque;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::item::Item;
use super::law::{Law, Loss, Shape, Times, Until};
use crate::time::Nanos;

/// Maximum time that a packet is held back.
const MAX_HELD: Nanos = Nanos(100_000_000);

/// Counters of a cell, in packets as the network sees them (segments).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Truth {
    /// Packets that entered.
    pub packets: u64,
    /// Bytes of those packets.
    pub bytes: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Bytes of those packets.
    pub dropped_bytes: u64,
    /// Duplicates made.
    pub duplicated: u64,
    /// Packets held back.
    pub held: u64,
    /// Packets corrupted.
    pub corrupted: u64,
    /// Packets marked (ECN).
    pub marked: u64,
    /// Maximum number of bytes that waited.
    pub backlog_max: u64,
    /// Total delay added to all packets, in microseconds.
    pub delayed_us: u64,
}

impl Truth {
    /// Returns the packets that left: packets = passed + dropped, without duplicates.
    pub fn passed(&self) -> u64 {
        self.packets - self.dropped
    }
}

/// Effect on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// Dropped.
    Dropped,
    /// Duplicated.
    Duplicated,
    /// Held back.
    Held,
    /// Corrupted.
    Corrupted,
    /// Marked.
    Marked,
}

/// Entry of a cell's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Logged {
    /// When the packet arrived, in nanoseconds since the start.
    pub at: Nanos,
    /// Number of the packet among those that entered, from 0.
    pub packet: u64,
    /// Effect.
    pub fate: Fate,
    /// Identity that the packet itself contains.
    pub identity: u64,
}

/// Identity of a packet, for the log.
pub trait Identity {
    /// Returns the identity in a segment: a sequence number if there is one.
    fn identity(&self, segment: u16) -> u64;

    /// Returns whether the packet may be marked for congestion (ECN-capable).
    fn may_be_marked(&self) -> bool {
        true
    }
}

/// One effect of a path.
#[derive(Debug)]
pub struct Cell<P> {
    law: Law,
    changes: VecDeque<(Nanos, Law)>,
    random: ChaCha8Rng,
    /// Selects the bits to change. A separate generator makes the result independent of how packets travel together.
    bits: ChaCha8Rng,
    state: State,
    /// Number of the first of the current segments.
    first: u64,
    held: VecDeque<Held<P>>,
    /// Whether a wake-up for held packets is set.
    is_armed: bool,
    truth: Truth,
    /// Nanoseconds of delay that do not make a whole microsecond yet.
    delayed: u64,
    log: VecDeque<Logged>,
    log_length: usize,
}

#[derive(Debug)]
struct Held<P> {
    item: Item<P>,
    /// Released when this many packets have entered.
    until: u64,
    deadline: Nanos,
}

#[derive(Debug, Default)]
struct State {
    /// When the last packet will have left, and the remainder of a nanosecond in units of 1 / rate.
    free: Nanos,
    remainder: u64,
    /// Earlier rates at which waiting packets leave, and until when.
    rates: VecDeque<(Nanos, u64)>,
    /// Latest departure of a delay that keeps the order.
    latest: Nanos,
    /// Number of packets before the next one that is affected; `None` if it is not drawn yet.
    before: Option<u64>,
    bad: bool,
    /// Index of the next time of a loss.
    next_time: usize,
    /// Current or next episode.
    episode: Option<(Nanos, Nanos)>,
    /// Bits of the current window, the start of that window, and whether the window before exceeded the rate.
    window: (u64, Nanos),
    fast: bool,
    /// Tokens in bits times nanoseconds, and when they were counted.
    tokens: Option<(u128, Nanos)>,
}

/// Packets that leave a cell.
#[derive(Debug)]
pub struct Outcome<P> {
    /// Packets that continue.
    pub passed: Vec<Item<P>>,
    /// Packets that were too long, and the maximum length to report to their senders.
    pub refused: Vec<(Item<P>, u32)>,
    /// Latest time at which held packets leave.
    pub wake: Option<Nanos>,
}

impl<P> Default for Outcome<P> {
    fn default() -> Outcome<P> {
        Outcome {
            passed: Vec::new(),
            refused: Vec::new(),
            wake: None,
        }
    }
}

impl<P: Clone + Identity> Cell<P> {
    /// Makes a cell whose random choices follow from `seed`.
    pub fn new(law: Law, seed: u64) -> Cell<P> {
        let mut bits = ChaCha8Rng::seed_from_u64(seed);
        bits.set_stream(1);
        Cell {
            bits,
            law,
            changes: VecDeque::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            state: State::default(),
            first: 0,
            held: VecDeque::new(),
            is_armed: false,
            truth: Truth::default(),
            delayed: 0,
            log: VecDeque::new(),
            log_length: 0,
        }
    }

    /// Replaces its law at a given time; times must ascend.
    pub fn change_at(&mut self, at: Nanos, law: Law) {
        self.changes.push_back((at, law));
    }

    /// Replaces its law now.
    pub fn change(&mut self, now: Nanos, law: Law) {
        // Waiting packets leave at the old rate, and later packets after them.
        if let (Law::Rate { rate: old, .. }, Law::Rate { .. }) = (&self.law, &law) {
            let State { free, rates, .. } = &mut self.state;
            rates.retain(|(until, _)| *until > now);
            if *free > now {
                rates.push_back((*free, old.get()));
            }
            self.state.remainder = 0;
        }
        if let Law::Loss(Loss::At(times)) = &law {
            self.state.next_time = times.iter().take_while(|time| **time < now).count();
        }
        self.law = law;
        // Discard random numbers drawn by the old law.
        self.state.before = None;
        self.state.tokens = None;
        self.state.episode = None;
    }

    /// Returns the counters.
    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// Logs the effects on packets from now on, keeping the last `entries` entries.
    pub fn log(&mut self, entries: usize) {
        self.log_length = entries;
        self.log.clear();
    }

    /// Returns the number of entries in the log.
    pub fn logged(&self) -> usize {
        self.log.len()
    }

    /// Returns the entries since the last call.
    pub fn take_log(&mut self) -> Vec<Logged> {
        self.log.drain(..).collect()
    }

    /// Passes an item, or what the law leaves of it. Items must be in the order of their times.
    pub fn take(&mut self, item: Item<P>, out: &mut Outcome<P>) {
        let at = item.piece.at;
        while let Some((when, law)) = self.changes.pop_front_if(|(when, _)| *when <= at) {
            self.change(when, law);
        }
        self.first = self.truth.packets;
        self.truth.packets += u64::from(item.piece.count);
        self.truth.bytes += item.bytes();
        let before = out.passed.len();
        self.obey(item, out);
        for passed in &out.passed[before..] {
            self.note_delay(passed.piece.at.since(at), passed.piece.count);
        }
    }

    /// Counts a delay that was added to `count` packets.
    fn note_delay(&mut self, delay: Nanos, count: u16) {
        let all = (delay.0.saturating_mul(u64::from(count))).saturating_add(self.delayed);
        self.truth.delayed_us = self.truth.delayed_us.saturating_add(all / 1000);
        self.delayed = all % 1000;
    }

    fn obey(&mut self, item: Item<P>, out: &mut Outcome<P>) {
        match self.law.clone() {
            Law::Delay {
                delay,
                jitter,
                shape,
                reorders,
            } => self.delay(item, (delay, jitter, shape, reorders), out),
            Law::Rate { .. } | Law::Police { .. } | Law::Loss(Loss::Above { .. }) => {
                self.one_by_one(&item, out);
            }
            Law::Mtu { bytes, tells } => self.measure(item, (bytes, tells), out),
            Law::Loss(loss) => self.lose(item, &loss, out),
            Law::Duplicate { fraction } => {
                // The copy follows directly.
                let mut taken = 0;
                for place in self.hits(&item, fraction) {
                    self.truth.duplicated += 1;
                    self.note(&item, place, Fate::Duplicated);
                    out.passed.extend(item.part(taken..place + 1));
                    out.passed.push(item.only(place));
                    taken = place + 1;
                }
                out.passed.extend(item.part(taken..item.piece.count));
            }
            Law::Reorder { fraction, until } => self.hold(&item, (fraction, until), out),
            Law::Corrupt { fraction } => self.change_each(item, fraction, Fate::Corrupted, out),
            Law::Mark { fraction } => self.change_each(item, fraction, Fate::Marked, out),
        }
    }

    /// Releases packets that are held back until now.
    pub fn wake(&mut self, now: Nanos, out: &mut Outcome<P>) {
        while let Some(held) = self.held.pop_front_if(|held| held.deadline <= now) {
            self.note_delay(held.deadline.since(held.item.piece.at), 1);
            out.passed.push(held.item.at(held.deadline));
        }
        // They are in the order in which they were held back.
        out.wake = self.held.front().map(|held| held.deadline);
        self.is_armed = out.wake.is_some();
    }

    fn note(&mut self, item: &Item<P>, place: u16, fate: Fate) {
        if self.log_length == 0 {
            return;
        }
        if self.log.len() >= self.log_length {
            self.log.pop_front();
        }
        self.log.push_back(Logged {
            at: item.piece.at,
            packet: self.first + u64::from(place),
            fate,
            identity: item.packet.identity(item.piece.first + place),
        });
    }

    fn dropped(&mut self, item: &Item<P>, place: u16) {
        self.truth.dropped += 1;
        self.truth.dropped_bytes += u64::from(item.train.bytes_of(item.piece.first + place));
        self.note(item, place, Fate::Dropped);
    }

    fn delay(
        &mut self,
        item: Item<P>,
        (delay, jitter, shape, reorders): (Nanos, Nanos, Shape, bool),
        out: &mut Outcome<P>,
    ) {
        let mut leave = |state: &mut State, one: Item<P>, delay: Nanos| {
            let mut at = one.piece.at.plus(delay);
            if !reorders {
                at = at.max(state.latest);
                state.latest = at;
            }
            out.passed.push(one.at(at));
        };
        if jitter == Nanos(0) {
            return leave(&mut self.state, item, delay);
        }
        for place in 0..item.piece.count {
            let delay = delay.plus(self.jitter(jitter, shape));
            leave(&mut self.state, item.only(place), delay);
        }
    }

    fn jitter(&mut self, jitter: Nanos, shape: Shape) -> Nanos {
        let chance: f64 = self.random.random();
        let factor = match shape {
            Shape::Uniform => chance,
            // Box-Muller transform.
            Shape::Normal => {
                let other: f64 = self.random.random();
                let radius = (-2.0 * (1.0 - chance).ln()).sqrt();
                (radius * (std::f64::consts::TAU * other).cos()).abs()
            }
            // Lomax: mean scale / (shape - 1).
            Shape::Pareto => 2.0 * ((1.0 - chance).powf(-1.0 / 3.0) - 1.0),
        };
        Nanos((jitter.0 as f64 * factor) as u64)
    }

    /// Applies laws that depend on each packet's time and length.
    fn one_by_one(&mut self, item: &Item<P>, out: &mut Outcome<P>) {
        for place in 0..item.piece.count {
            let bytes = item.train.bytes_of(item.piece.first + place);
            let at = item.piece.at;
            let passed = match self.law.clone() {
                Law::Rate {
                    rate,
                    buffer,
                    overhead,
                    mark,
                } => self.queue(at, bytes, (rate.get(), buffer, overhead)).map(
                    |(departs, waited)| {
                        let mut one = item.only(place).at(departs);
                        let marked = mark.is_some_and(|mark| waited > mark);
                        if marked && item.packet.may_be_marked() {
                            one.piece.marks.congestion = true;
                        }
                        one
                    },
                ),
                Law::Police {
                    rate,
                    burst,
                    overhead,
                } => self
                    .has_tokens(at, bytes.saturating_add(overhead), rate.get(), burst)
                    .then(|| item.only(place)),
                Law::Loss(Loss::Above {
                    rate,
                    window,
                    overhead,
                    fraction,
                }) => {
                    let fast = self.is_fast(at, bytes.saturating_add(overhead), rate.get(), window);
                    let lost = fast && self.falls(fraction);
                    (!lost).then(|| item.only(place))
                }
                _ => Some(item.only(place)),
            };
            match passed {
                Some(one) => {
                    if one.piece.marks.congestion && !item.piece.marks.congestion {
                        self.truth.marked += 1;
                        self.note(item, place, Fate::Marked);
                    }
                    out.passed.push(one);
                }
                None => self.dropped(item, place),
            }
        }
    }

    /// Returns when a packet will have left, and how long it waits before that; `None` if it finds no room.
    fn queue(
        &mut self,
        at: Nanos,
        bytes: u32,
        (rate, buffer, overhead): (u64, u64, u32),
    ) -> Option<(Nanos, Nanos)> {
        let state = &mut self.state;
        if state.free < at {
            (state.free, state.remainder) = (at, 0);
        }
        let waits = state.free.since(at);
        let backlog = self.backlog(at, rate);
        let state = &mut self.state;
        let wire = u64::from(bytes) + u64::from(overhead);
        // The packet in transmission does not count as waiting.
        if backlog > 0 && backlog.saturating_add(wire) > buffer.max(wire) {
            return None;
        }
        self.truth.backlog_max = self.truth.backlog_max.max(backlog.saturating_add(wire));
        let bits = u128::from(wire) * 8_000_000_000 + u128::from(state.remainder);
        let nanos = bits / u128::from(rate);
        state.remainder = (bits % u128::from(rate)) as u64;
        let nanos = Nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        state.free = state.free.plus(nanos);
        Some((state.free, waits))
    }

    /// Returns the bytes that wait.
    fn backlog(&self, at: Nanos, rate: u64) -> u64 {
        let now = (self.state.free, rate);
        let (mut bits, mut from) = (0, at);
        for (until, rate) in self.state.rates.iter().chain([&now]) {
            bits += u128::from(until.since(from).0) * u128::from(*rate);
            from = from.max(*until);
        }
        u64::try_from(bits / 8_000_000_000).unwrap_or(u64::MAX)
    }

    fn has_tokens(&mut self, at: Nanos, bytes: u32, rate: u64, burst: u64) -> bool {
        // In bits times 10^9, to avoid rounding.
        let full = u128::from(burst) * 8_000_000_000;
        let (tokens, counted) = self.state.tokens.unwrap_or((full, at));
        let gained = u128::from(at.since(counted).0) * u128::from(rate);
        let tokens = (tokens + gained).min(full);
        let costs = u128::from(bytes) * 8_000_000_000;
        let enough = tokens >= costs;
        let left = if enough { tokens - costs } else { tokens };
        self.state.tokens = Some((left, at));
        enough
    }

    /// Returns whether the previous window exceeded the rate, or this one already does.
    fn is_fast(&mut self, at: Nanos, bytes: u32, rate: u64, window: Nanos) -> bool {
        let state = &mut self.state;
        let allowed = (u128::from(rate) * u128::from(window.0) / 1_000_000_000) as u64;
        let (bits, begun) = state.window;
        let passed = at.since(begun).0;
        if passed >= window.0 {
            // If the window ended long ago, silence followed it.
            state.fast = bits > allowed && passed < 2 * window.0;
            let whole = passed / window.0.max(1);
            state.window = (0, Nanos(begun.0 + whole * window.0));
        }
        state.window.0 += 8 * u64::from(bytes);
        state.fast || state.window.0 > allowed
    }

    fn measure(&mut self, item: Item<P>, (longest, tells): (u32, bool), out: &mut Outcome<P>) {
        let longest = longest.saturating_add(item.link_header);
        let segments = 0..item.piece.count;
        let too_long = |place: &u16| item.train.bytes_of(item.piece.first + place) > longest;
        let dropped: Vec<u16> = segments.filter(too_long).collect();
        if let (Some(one), true) = (dropped.first(), tells) {
            let told = longest - item.link_header;
            out.refused.push((item.only(*one), told));
        }
        self.drop_all(item, &dropped, out);
    }

    fn lose(&mut self, item: Item<P>, loss: &Loss, out: &mut Outcome<P>) {
        let count = item.piece.count;
        let lost: Vec<u16> = match loss {
            Loss::Every { period, first } => {
                let is_hit = |place: &u16| {
                    let number = self.first + u64::from(*place);
                    number >= *first && (number - first).is_multiple_of((*period).max(1))
                };
                (0..count).filter(is_hit).collect()
            }
            Loss::At(times) => {
                let mut lost = Vec::new();
                while let Some(time) = times.get(self.state.next_time)
                    && *time <= item.piece.at
                    && lost.len() < usize::from(count)
                {
                    lost.push(lost.len() as u16);
                    self.state.next_time += 1;
                }
                lost
            }
            Loss::Random { fraction } => self.hits(&item, *fraction),
            Loss::Bursts {
                begins,
                ends,
                good,
                bad,
            } => (0..count)
                .filter(|_| {
                    let changes = if self.state.bad { *ends } else { *begins };
                    if self.falls(changes) {
                        self.state.bad = !self.state.bad;
                    }
                    let loss = if self.state.bad { *bad } else { *good };
                    self.falls(loss)
                })
                .collect(),
            Loss::Within { times, fraction } if self.is_within(times, item.piece.at) => {
                self.hits(&item, *fraction)
            }
            // Packets above a rate are dropped one by one elsewhere.
            Loss::Within { .. } | Loss::Above { .. } => Vec::new(),
        };
        self.drop_all(item, &lost, out);
    }

    /// Continues without some of the segments (ascending).
    fn drop_all(&mut self, item: Item<P>, dropped: &[u16], out: &mut Outcome<P>) {
        if dropped.is_empty() {
            return out.passed.push(item);
        }
        let mut taken = 0;
        for place in dropped {
            self.dropped(&item, *place);
            out.passed.extend(item.part(taken..*place));
            taken = place + 1;
        }
        out.passed.extend(item.part(taken..item.piece.count));
    }

    fn is_within(&mut self, times: &Times, at: Nanos) -> bool {
        match *times {
            Times::Once { from, to } => (from..to).contains(&at),
            Times::Periodic {
                period,
                length,
                first,
            } => at >= first && at.since(first).0 % period.0.max(1) < length.0,
            Times::Episodes { on, off } => loop {
                self.skip_episodes(at, on, off);
                let (from, to) = self.state.episode.unwrap_or_default();
                if at < to {
                    return at >= from;
                }
                // At least a nanosecond each, so that the loop ends.
                let from = to.plus(Nanos(self.exponential(off).saturating_add(1)));
                let to = from.plus(Nanos(self.exponential(on).saturating_add(1)));
                self.state.episode = Some((from, to));
            },
        }
    }

    /// Skips the episodes of a long silence, which are unknown: restarts them shortly before its end.
    fn skip_episodes(&mut self, at: Nanos, on: Nanos, off: Nanos) {
        let cycle = on.0.saturating_add(off.0).saturating_add(1);
        let last = self.state.episode.map_or(Nanos(0), |(_, to)| to);
        if at.since(last).0 / cycle > 1000 {
            let begin = Nanos(at.0 - 100 * cycle);
            self.state.episode = Some((begin, begin));
        }
    }

    fn exponential(&mut self, mean: Nanos) -> u64 {
        let chance: f64 = self.random.random();
        (-(1.0 - chance).ln() * mean.0 as f64) as u64
    }

    fn hold(&mut self, item: &Item<P>, (fraction, until): (f64, Until), out: &mut Outcome<P>) {
        let hits = self.hits(item, fraction);
        let mut next = hits.iter().copied().peekable();
        for place in 0..item.piece.count {
            // Packets that were held back leave after the packet that they waited for.
            let number = self.first + u64::from(place);
            if next.next_if_eq(&place).is_some() {
                self.truth.held += 1;
                self.note(item, place, Fate::Held);
                let one = item.only(place);
                match until {
                    Until::Time(time) => {
                        let at = one.piece.at.plus(time);
                        out.passed.push(one.at(at));
                    }
                    Until::Passed(distance) => {
                        let deadline = one.piece.at.plus(MAX_HELD);
                        if !self.is_armed {
                            out.wake = Some(deadline);
                            self.is_armed = true;
                        }
                        self.held.push_back(Held {
                            item: one,
                            until: number + u64::from(distance),
                            deadline,
                        });
                    }
                }
            } else {
                out.passed.push(item.only(place));
            }
            while let Some(held) = self.held.pop_front_if(|held| held.until <= number) {
                self.note_delay(item.piece.at.since(held.item.piece.at), 1);
                out.passed.push(held.item.at(item.piece.at));
            }
        }
    }

    fn change_each(&mut self, item: Item<P>, fraction: f64, fate: Fate, out: &mut Outcome<P>) {
        let hits = self.hits(&item, fraction);
        if hits.is_empty() {
            return out.passed.push(item);
        }
        for place in 0..item.piece.count {
            let mut one = item.only(place);
            let may_be = fate == Fate::Corrupted || item.packet.may_be_marked();
            if may_be && hits.contains(&place) {
                if fate == Fate::Corrupted {
                    one.piece.marks.corrupt = Some(self.bits.next_u64());
                    self.truth.corrupted += 1;
                } else {
                    one.piece.marks.congestion = true;
                    self.truth.marked += 1;
                }
                self.note(&item, place, fate);
            }
            out.passed.push(one);
        }
    }

    /// Returns which of an item's segments are affected. The distance to the next one is drawn, so that long trains cost no more.
    fn hits(&mut self, item: &Item<P>, fraction: f64) -> Vec<u16> {
        let mut hits = Vec::new();
        if fraction <= 0.0 {
            return hits;
        }
        let count = u64::from(item.piece.count);
        let mut place = 0;
        loop {
            let before = self.state.before.take();
            let before = before.unwrap_or_else(|| self.distance(fraction));
            if place + before >= count {
                self.state.before = Some(place + before - count);
                return hits;
            }
            place += before;
            hits.push(place as u16);
            place += 1;
        }
    }

    /// Draws the number of unaffected packets before the next affected one (geometric).
    fn distance(&mut self, fraction: f64) -> u64 {
        if fraction >= 1.0 {
            return 0;
        }
        let chance: f64 = self.random.random();
        let distance = (1.0 - chance).ln() / (-fraction).ln_1p();
        distance.min(1e18) as u64
    }

    fn falls(&mut self, fraction: f64) -> bool {
        fraction > 0.0 && self.random.random_bool(fraction.min(1.0))
    }
}
