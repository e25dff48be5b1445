//! The receiving end: classifies what has not arrived, and reports it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use evlbi_core::time::Nanos;

use super::declared::Declared;
use super::message::{
    self, Beat, Header, Key, LAST, MAX_RUNS, MORE, Message, Received, Report, Run,
};
use super::sender::Accounts;
use super::state::State;
use super::{HOLD, REPORT_INTERVAL, Rejected};

/// Maximum number of runs that wait to be classified.
const MAX_PENDING: usize = 65_536;
/// Maximum number of beats whose announcements wait for their data.
const MAX_ANNOUNCED: usize = 256;
/// Minimum time between two answers to flows that have not heard this receiver: their beats may be repeated ones. So short that these do
/// not use up the answers of a flow that starts.
const ANSWER_INTERVAL: Nanos = Nanos(1_000_000);
/// Maximum number of replaced flows that are remembered.
const MAX_LEFT: usize = 1024;
/// Time without a beat after which no report is sent.
const SILENT: Nanos = Nanos(15_000_000_000);
/// Distance of numbers beyond which a beat announces nothing that can be true.
const FURTHEST: u64 = 1 << 40;

/// Counters of what has arrived of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Cumulative counters.
    pub counters: Received,
    /// One more than the highest sequence number that has arrived; `None` before any.
    pub heard: Option<u64>,
    /// One more than the highest of these for which there was room, or that were passed to [`Receiver::missing`].
    pub end: Option<u64>,
    /// Every sequence number below has arrived, or was passed to [`Receiver::missing`]; `None` before any.
    pub released: Option<u64>,
    /// Everything that had arrived in this host by then is among these.
    pub emptied: Nanos,
}

/// Receiving end of one flow at a time.
#[derive(Clone, Debug)]
pub struct Receiver {
    key: Key,
    /// Instance of this receiver for the next flow: another one for a flow that is followed again, whose counters begin again.
    instance: u64,
    flow: Option<Heard>,
    /// Flow that may replace it, once its sender has heard this receiver.
    next: Option<Heard>,
    /// Flows that were replaced, the latest ones, with the number of their last beat: their beats may be repeated.
    left: VecDeque<(u64, u64)>,
    answered: Option<Nanos>,
    /// Numbers of messages sent.
    sent: u64,
    rejected: u64,
    /// Messages that this host had dropped, and those rejected, when that was noted last.
    dropped: u64,
    dropped_rejected: u64,
}

/// Flow that is being received. Numbers are counted from the flow's first one.
#[derive(Clone, Debug)]
struct Heard {
    instance: u64,
    beat: Beat,
    /// Where the last beat came from.
    from: SocketAddr,
    arrived: Nanos,
    /// Whether a beat has come since the last report.
    owes: bool,
    /// Whether the flow is complete: nothing changes any more.
    is_frozen: bool,
    /// Whether the sender has heard this receiver: before, its beats may be repeated ones of an earlier flow.
    is_known: bool,
    /// Numbers that later beats announced, and when these arrived.
    announced: VecDeque<(Nanos, u64)>,
    declared: Declared,
    /// Numbers below were offered before.
    skipped: u64,
    /// Runs of shed numbers that were not taken yet.
    shed: VecDeque<(u64, u64)>,
    /// Shed numbers of sets that were forgotten.
    forgotten: u64,
    /// Runs that have not arrived and are not classified yet, ascending.
    pending: VecDeque<(u64, u64)>,
    /// Numbers below have arrived, or are pending or classified.
    released: u64,
    /// Ranges of numbers within which this host dropped datagrams: up to `certain` at least, and up to `possible` at most.
    drops: VecDeque<Drops>,
    report: Report,
    /// Runs since the last report, and whether there were more than fit.
    runs: Vec<Run>,
    has_more: bool,
    last_probe: u64,
    /// State of the sender that was returned last.
    noticed: Option<(State, u32)>,
    /// Messages that this host dropped since the flow is known.
    overflow: u64,
    reported: Option<Nanos>,
    /// Loss after a second without any: reported at once.
    is_urgent: bool,
    last_loss: Option<Nanos>,
}

#[derive(Clone, Copy, Debug)]
struct Drops {
    first: u64,
    end: u64,
    certain: u64,
    possible: u64,
}

impl Receiver {
    /// Makes a receiver; `instance` is a random number, not 0.
    pub fn new(key: Key, instance: u64) -> Receiver {
        Receiver {
            key,
            instance: instance.max(1),
            flow: None,
            next: None,
            left: VecDeque::new(),
            answered: None,
            sent: 0,
            rejected: 0,
            dropped: 0,
            dropped_rejected: 0,
        }
    }

    /// Takes a message that has arrived from this address.
    ///
    /// # Errors
    /// Returns why it was ignored, and counts it.
    pub fn handle(&mut self, bytes: &[u8], from: SocketAddr, now: Nanos) -> Result<(), Rejected> {
        let taken = match message::read(bytes, &self.key) {
            Ok(Message::Beat(beat)) => self.hear(beat, from, now),
            Ok(Message::Probe(header)) => self.count_probe(&header),
            Ok(Message::Report(_)) => Err(Rejected::Foreign),
            Err(why) => Err(why),
        };
        self.rejected += u64::from(taken.is_err());
        taken
    }

    fn hear(&mut self, beat: Beat, from: SocketAddr, now: Nanos) -> Result<(), Rejected> {
        let flow = beat.header.flow;
        if let Some(place) = self.left.iter().position(|(left, _)| *left == flow) {
            let is_new = beat.header.number > self.left[place].1;
            let is_over = self.flow.as_ref().is_none_or(|heard| heard.is_over(now));
            if !(is_new && is_over) {
                return Err(Rejected::Stale);
            }
            self.left.remove(place);
            self.instance = self.instance.wrapping_add(1).max(1);
        }
        let has =
            |heard: &Option<Heard>| heard.as_ref().is_some_and(|it| it.beat.header.flow == flow);
        if has(&self.flow) {
            if let Some(heard) = &mut self.flow {
                heard.hear(beat, from, now)?;
            }
        } else if has(&self.next) {
            if let Some(heard) = &mut self.next {
                heard.hear(beat, from, now)?;
            }
        } else {
            self.next = Some(Heard::new(beat, self.instance, from, now));
        }
        // A flow that was never heard with this instance may be a repeated one: it replaces no other.
        let knows = |heard: &Option<Heard>| heard.as_ref().is_some_and(|it| it.is_known);
        let (is_free, is_known) = (!knows(&self.flow), knows(&self.next));
        if has(&self.next) && (is_free || is_known) {
            let before = std::mem::replace(&mut self.flow, self.next.take());
            if let Some(before) = before.filter(|heard| heard.is_known) {
                if self.left.len() == MAX_LEFT {
                    self.left.pop_front();
                }
                let Header { flow, number, .. } = before.beat.header;
                self.left.push_back((flow, number));
            }
        }
        Ok(())
    }

    fn count_probe(&mut self, header: &Header) -> Result<(), Rejected> {
        let Some(heard) = self.heard_mut() else {
            return Err(Rejected::Stale);
        };
        if heard.beat.header.flow != header.flow || header.number == 0 {
            return Err(Rejected::Stale);
        }
        if header.number <= heard.last_probe {
            // A copy, or one that was overtaken: counted as lost.
            return Err(Rejected::Stale);
        }
        heard.last_probe = header.number;
        heard.report.probe_highest = header.number;
        heard.report.probes += 1;
        Ok(())
    }

    fn heard_mut(&mut self) -> Option<&mut Heard> {
        self.flow.as_mut().filter(|heard| heard.is_known)
    }

    /// Notes how many messages this host has dropped so far. They count as probes that have arrived: the network carried them.
    /// Not while messages of others arrive, which would hide what the network lost.
    pub fn overflowed(&mut self, dropped: u64) {
        let before = (self.dropped, self.dropped_rejected);
        (self.dropped, self.dropped_rejected) = (dropped, self.rejected);
        let is_clean = before.1 == self.rejected;
        if let Some(heard) = self.heard_mut().filter(|_| is_clean) {
            heard.overflow += dropped.saturating_sub(before.0);
        }
    }

    /// Notes that a stream of data begins with sequence number `begun`, where `expected` was the next one.
    pub fn begins(&mut self, expected: u64, begun: u64) {
        if let Some(heard) = self.heard_mut() {
            let (expected, begun) = (heard.offset(expected), heard.offset(begun));
            heard.begins(expected, begun);
        }
    }

    /// Notes that the datagrams from sequence number `first` on below `end` had not arrived when they were due.
    pub fn missing(&mut self, first: u64, end: u64) {
        if let Some(heard) = self.heard_mut() {
            let (first, end) = (heard.offset(first), heard.offset(end));
            heard.miss(first, end);
        }
    }

    /// Notes that this host dropped at least `certain` and at most `possible` of the datagrams from sequence number `first` on below
    /// `end`.
    pub fn dropped(&mut self, first: u64, end: u64, certain: u64, possible: u64) {
        if let Some(heard) = self.heard_mut() {
            let (first, end) = (heard.offset(first), heard.offset(end));
            // A stream with lower numbers than the one before has begun: that of another sender, or of this one.
            if first < end && heard.drops.len() < MAX_PENDING {
                heard.drops.push_back(Drops {
                    first,
                    end,
                    certain,
                    possible,
                });
            }
        }
    }

    /// Returns the first sequence number and one more than the last of a run of numbers that the sender has newly declared as shed.
    pub fn next_shed(&mut self) -> Option<(u64, u64)> {
        let heard = self.heard_mut()?;
        let (first, end) = heard.shed.pop_front()?;
        let start = heard.beat.first;
        Some((start.wrapping_add(first), start.wrapping_add(end)))
    }

    /// Returns a new state of the sender, and the fraction of the data that it sends.
    pub fn next_notice(&mut self) -> Option<(State, f64)> {
        let heard = self.heard_mut()?;
        let (state, kept) = (heard.beat.state, heard.beat.kept);
        let before = heard.noticed.replace((state, kept));
        (before != Some((state, kept))).then_some((state, f64::from(kept) * 1e-9))
    }

    /// Notes what has arrived until `now`.
    pub fn observe(&mut self, arrivals: &Arrivals, now: Nanos) {
        if let Some(heard) = self.heard_mut() {
            heard.observe(arrivals, now);
        }
    }

    /// Returns a report that is due, and where to send it.
    pub fn poll(&mut self, now: Nanos) -> Option<(Vec<u8>, SocketAddr)> {
        let number = self.sent + 1;
        let may_answer = self
            .answered
            .is_none_or(|at| now.since(at) >= ANSWER_INTERVAL);
        let is_due = |heard: &&mut Heard| {
            heard.due().is_some_and(|at| now >= at) && (heard.is_known || may_answer)
        };
        let mut both = self.flow.iter_mut().chain(&mut self.next);
        let heard = both.find(is_due)?;
        if !heard.is_known {
            self.answered = Some(now);
        }
        self.sent = number;
        let report = heard.take_report(number, now);
        Some((report.write(&self.key), heard.from))
    }

    /// Returns when the next report is due; `None` if nobody waits for one.
    pub fn next_at(&self) -> Option<Nanos> {
        let known = |heard: &Heard| heard.is_known;
        let answer = self
            .answered
            .map_or(Nanos(0), |at| at.plus(ANSWER_INTERVAL));
        let due = |heard: &Heard| {
            let at = heard.due()?;
            Some(if known(heard) { at } else { at.max(answer) })
        };
        self.flow.iter().chain(&self.next).filter_map(due).min()
    }

    /// Returns the last beat of the flow; `None` before the first one of a sender that has heard this receiver.
    pub fn beat(&self) -> Option<&Beat> {
        let heard = self.flow.as_ref().filter(|heard| heard.is_known)?;
        Some(&heard.beat)
    }

    /// Returns one more than the highest sequence number that the sender has announced; `None` before it has heard this receiver.
    pub fn announced(&self) -> Option<u64> {
        let beat = self.beat()?;
        Some(beat.first.wrapping_add(beat.next))
    }

    /// Returns the last beat of the flow, even if its sender has not heard this receiver.
    pub fn heard(&self) -> Option<&Beat> {
        Some(&self.flow.as_ref()?.beat)
    }

    /// Returns how many messages were ignored.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Returns the current counts of shed and missed numbers: what the next report will contain.
    pub fn counted(&self) -> Option<&Report> {
        let heard = self.flow.as_ref().filter(|heard| heard.is_known)?;
        Some(&heard.report)
    }

    /// Returns whether the flow has ended and all its numbers are accounted for.
    pub fn is_complete(&self) -> bool {
        self.flow.as_ref().is_some_and(Heard::is_complete)
    }

    /// Returns the accounts of the flow so far, which are those of the sender once [`Receiver::is_complete`]; `None` before the first
    /// beat.
    pub fn accounts(&self) -> Option<Accounts> {
        let heard = self.flow.as_ref().filter(|heard| heard.is_known)?;
        Some(Accounts::of(&heard.beat, &heard.current()))
    }
}

impl Heard {
    fn new(beat: Beat, instance: u64, from: SocketAddr, now: Nanos) -> Heard {
        // Another instance is that of a receiver before this one, or of none yet.
        let is_known = beat.instance == instance;
        let mut heard = Heard {
            instance,
            from,
            owes: true,
            is_frozen: false,
            arrived: now,
            is_known,
            announced: VecDeque::new(),
            declared: Declared::default(),
            skipped: 0,
            shed: VecDeque::new(),
            forgotten: 0,
            pending: VecDeque::new(),
            released: 0,
            drops: VecDeque::new(),
            report: Report::default(),
            runs: Vec::new(),
            has_more: false,
            last_probe: 0,
            noticed: None,
            overflow: 0,
            reported: None,
            is_urgent: false,
            last_loss: None,
            beat: Beat {
                declared: 0,
                next: 0,
                ..beat.clone()
            },
        };
        if is_known {
            heard.skip_to(beat.next);
        }
        heard.take(beat, now);
        heard
    }

    /// Leaves out what was sent before the sender had heard this receiver.
    fn skip_to(&mut self, next: u64) {
        self.beat.next = next;
        self.skipped = next;
        (self.declared, self.forgotten) = (Declared::default(), 0);
        self.shed.clear();
        self.released = self.released.max(next);
        self.report.covered = self.report.covered.max(next);
    }

    fn hear(&mut self, beat: Beat, from: SocketAddr, now: Nanos) -> Result<(), Rejected> {
        let is_known = beat.instance == self.instance;
        let before = &self.beat;
        if beat.header.number <= before.header.number || (self.is_known && !is_known) {
            return Err(Rejected::Stale);
        }
        let is_ahead = beat.first == before.first
            && beat.next >= before.next
            && beat.declared >= before.declared
            && beat.shed >= before.shed
            && beat.not_sent >= before.not_sent
            && beat.next - before.next < FURTHEST;
        if !is_ahead && self.is_known {
            return Err(Rejected::Absurd);
        }
        // The end of the flow is answered at once.
        self.is_urgent |= beat.header.flags & LAST != 0 && before.header.flags & LAST == 0;
        if is_known && !self.is_known {
            self.skip_to(beat.next);
        }
        self.is_known = is_known;
        (self.from, self.owes) = (from, true);
        self.take(beat, now);
        Ok(())
    }

    fn take(&mut self, beat: Beat, now: Nanos) {
        let before = self.beat.declared.max(self.skipped);
        for set in &beat.sets {
            self.declared.add(*set, before);
            let mut from = before;
            while let Some((first, end)) = set.run_after(from)
                && self.shed.len() < MAX_PENDING
            {
                self.shed.push_back((first.max(from), end));
                from = end;
            }
        }
        if beat.next > self.beat.next {
            if self.announced.len() == MAX_ANNOUNCED {
                self.announced.pop_front();
            }
            self.announced.push_back((now, beat.next));
        }
        self.arrived = now;
        self.beat = beat;
        self.classify(now);
    }

    fn offset(&self, sequence: u64) -> u64 {
        sequence.wrapping_sub(self.beat.first)
    }

    fn has_ended(&self) -> bool {
        self.beat.header.flags & LAST != 0
    }

    /// Returns whether it has ended, or nothing is heard of it any more.
    fn is_over(&self, now: Nanos) -> bool {
        self.is_complete() || now.since(self.arrived) >= SILENT
    }

    fn is_complete(&self) -> bool {
        self.has_ended() && self.report.covered >= self.beat.next
    }

    fn begins(&mut self, expected: u64, begun: u64) {
        // Data are not authenticated: what a stream before this one said of numbers that the sender had not offered yet is not true.
        let next = self.beat.next;
        if self.released > next {
            self.released = next;
            self.pending.retain(|(first, _)| *first < next);
            if let Some((_, end)) = self.pending.back_mut() {
                *end = next.min(*end);
            }
        }
        self.drops.retain(|drops| drops.first < next);
        let expected = if expected > next {
            self.released
        } else {
            expected
        };
        self.miss(expected, begun);
    }

    fn miss(&mut self, first: u64, end: u64) {
        let first = first.max(self.released);
        if first >= end || end - first > FURTHEST {
            return;
        }
        if self.pending.len() >= MAX_PENDING
            && let Some((_, last)) = self.pending.back_mut()
        {
            // Too many to keep apart: this never happens unless beats stop.
            *last = end;
        } else {
            self.pending.push_back((first, end));
        }
        self.released = end;
    }

    fn observe(&mut self, arrivals: &Arrivals, now: Nanos) {
        if self.is_frozen {
            return;
        }
        // No further than the sender says: data are not authenticated.
        let known = [arrivals.heard, arrivals.end, arrivals.released].map(|sequence| {
            let number = sequence.map_or(0, |sequence| self.offset(sequence));
            number.min(self.beat.next)
        });
        let [heard, end, released] = known;
        self.report.highest = self.report.highest.max(heard);
        self.report.arrivals = arrivals.counters;
        self.released = self.released.max(released.min(end));
        // Whatever a beat has announced has arrived by now, or is missing.
        while let Some((at, next)) = self.announced.front().copied() {
            let from = end.max(self.released);
            // Gaps before the highest number are still open: they come first. Data that wait in this host have arrived.
            let is_due = arrivals.emptied.since(at) >= HOLD && self.released >= end;
            if next > from && !is_due {
                break;
            }
            self.announced.pop_front();
            self.miss(from, next);
        }
        self.classify(now);
    }

    /// Counts the pending runs about which the sender has declared everything.
    fn classify(&mut self, now: Nanos) {
        let declared = self.beat.declared;
        while let Some((first, end)) = self.pending.pop_front_if(|(first, _)| *first < declared) {
            let until = end.min(declared);
            if until < end {
                self.pending.push_front((until, end));
            }
            let sets = std::mem::take(&mut self.declared);
            sets.outside(first, until, |first, end| self.lose(first, end, now));
            self.declared = sets;
        }
        let pending = self.pending.front().map_or(u64::MAX, |(first, _)| *first);
        let covered = self.released.min(declared).min(pending);
        self.report.covered = self.report.covered.max(covered);
        let covered = self.report.covered;
        self.forgotten += self.declared.forget(covered);
        self.report.shed = self.forgotten + self.declared.count_below(covered);
        while self
            .drops
            .pop_front_if(|drops| drops.end <= covered)
            .is_some()
        {}
    }

    /// Counts a run as missed: in this host as far as it may have dropped there, otherwise in the network.
    fn lose(&mut self, first: u64, end: u64, now: Nanos) {
        let count = end - first;
        self.report.missed += count;
        let mut left = count;
        let reached = self.drops.iter_mut().take_while(|drops| drops.first < end);
        for drops in reached.filter(|drops| first < drops.end) {
            let certain = left.min(drops.certain);
            let possible = left.min(drops.possible);
            drops.certain -= certain;
            drops.possible -= possible;
            self.report.host += certain;
            self.report.unattributed += possible.max(certain) - certain;
            left -= possible.max(certain);
        }
        let is_first = self
            .last_loss
            .is_none_or(|last| now.since(last) >= Nanos::SECOND);
        self.is_urgent |= is_first;
        self.last_loss = Some(now);
        // What the network lost of a run: the count is right, the numbers are those at its start.
        let mut from = first;
        while left > 0 {
            let length = u32::try_from(left).unwrap_or(u32::MAX);
            if self.runs.len() == MAX_RUNS {
                self.has_more = true;
                break;
            }
            self.runs.push(Run {
                first: from,
                length,
            });
            from += u64::from(length);
            left -= u64::from(length);
        }
    }

    /// Returns when the next report is due; `None` if it waits for a beat.
    fn due(&self) -> Option<Nanos> {
        let Some(reported) = self.reported else {
            return Some(self.arrived);
        };
        if !self.is_known || self.is_frozen {
            return self.owes.then_some(self.arrived);
        }
        let interval = REPORT_INTERVAL.max(self.beat.round_trip);
        let at = match self.is_urgent {
            true => reported.plus(self.beat.round_trip.min(interval)),
            false => reported.plus(interval),
        };
        // A sender that is gone needs none.
        (at < self.arrived.plus(SILENT)).then_some(at)
    }

    /// Returns the report as of now, without its runs.
    fn current(&self) -> Report {
        let report = self.report.clone();
        Report {
            probes: (report.probes + self.overflow).min(report.probe_highest),
            ..report
        }
    }

    fn take_report(&mut self, number: u64, now: Nanos) -> Report {
        self.reported = Some(now);
        (self.is_urgent, self.owes) = (false, false);
        self.is_frozen = self.is_complete();
        let last = if self.is_frozen { LAST } else { 0 };
        let more = if std::mem::take(&mut self.has_more) {
            MORE
        } else {
            0
        };
        Report {
            header: Header {
                flags: last | more,
                flow: self.beat.header.flow,
                number,
                departure: now,
            },
            instance: self.instance,
            beat: self.beat.header.number,
            beat_departure: self.beat.header.departure,
            beat_arrival: self.arrived,
            held: now.since(self.arrived),
            runs: std::mem::take(&mut self.runs),
            ..self.current()
        }
    }
}
