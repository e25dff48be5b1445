//! Exact accounting of a stream of numbered datagrams: what arrived, twice, late or out of order, and
//! what did not arrive.
//!
//! The sums that hold at every moment after [`Account::close_segment`], by construction:
//!
//! - received = unique + duplicates + ring_full
//! - expected = unique + lost, over the numbers from the first to the last seen
//!
//! A number counts as lost only when it has left a long history ([`HISTORY`] numbers), or at the end: a
//! datagram that is late is taken back from loss.

mod history;
mod reordering;

use std::collections::BTreeMap;

use evlbi_wire::validity::SequenceGap;
use serde::Serialize;

use self::history::History;
use self::reordering::Reordering;

/// Numbers over which a duplicate is told from a late arrival.
pub const HISTORY: u64 = 1 << 22;
/// Intervals of loss that are listed; the rest is counted only.
pub const MOST_INTERVALS: usize = 1_000_000;

/// The counters of a receiver, in datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Numbers from the first to the last seen, over all segments: unique + lost.
    pub expected: u64,
    /// Arrived with the right size from the right source: unique + duplicates + ring_full.
    pub received: u64,
    /// Distinct numbers that arrived, late ones included.
    pub unique: u64,
    /// Numbers that did not arrive or found the ring full: expected - unique.
    pub lost: u64,
    /// Second and further arrivals of a number.
    pub duplicates: u64,
    /// Arrived after one with a higher number (RFC 4737, section 3: Type-P-Reordered), duplicates apart.
    pub reordered: u64,
    /// Of the unique: arrived when their place had been handed on, so not in the recording.
    pub late: u64,
    /// Arrived when the ring was full, and dropped in this host.
    pub ring_full: u64,
    /// Arrived with a number that belongs to no sequence known here.
    pub foreign_sequence: u64,
    /// How often the sender began again.
    pub restarts: u64,
}

/// The numbers of one sequence, from its beginning to the end or to a restart of the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// First number.
    pub first_seq: u64,
    /// Last number.
    pub last_seq: u64,
    /// What of it is lost, as far as [`MOST_INTERVALS`] go.
    pub intervals: Vec<SequenceGap>,
}

/// Everything that was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The counters.
    #[serde(flatten)]
    pub counters: Counters,
    /// Runs of consecutive lost numbers: length to count.
    pub runs: BTreeMap<u64, u64>,
    /// Extents of reordering (RFC 4737, section 4.2), in arrivals: extent to count.
    pub extents: BTreeMap<u64, u64>,
    /// Packets that are n-reordered (RFC 4737, section 5.1): largest n to count.
    pub n_reordered: BTreeMap<u64, u64>,
    /// Sequences, one after the other.
    pub segments: Vec<Segment>,
    /// Intervals of loss beyond those listed.
    pub intervals_not_listed: u64,
}

/// Accounts for the arrivals of one stream.
#[derive(Clone, Debug)]
pub struct Account {
    counters: Counters,
    history: History,
    reordering: Reordering,
    /// The sequence that is arriving.
    current: Option<Current>,
    /// Those before it.
    report: Report,
}

#[derive(Clone, Debug)]
struct Current {
    base: u64,
    /// Intervals that are listed in the segments before.
    listed: usize,
    intervals: Vec<SequenceGap>,
}

impl Default for Account {
    fn default() -> Account {
        Account::new()
    }
}

impl Account {
    /// An account without arrivals.
    pub fn new() -> Account {
        Account {
            counters: Counters::default(),
            history: History::new(HISTORY),
            reordering: Reordering::default(),
            current: None,
            report: Report::default(),
        }
    }

    /// Begins a sequence whose first number is `first`; numbers are given as offsets from it. A sequence
    /// before it is closed.
    pub fn open_segment(&mut self, first: u64) {
        if self.current.is_some() {
            self.close_segment();
            self.counters.restarts += 1;
        }
        let segments = self.report.segments.iter();
        self.current = Some(Current {
            base: first,
            listed: segments.map(|segment| segment.intervals.len()).sum(),
            intervals: Vec::new(),
        });
    }

    /// Whether the number at `offset` has arrived; `None` where that is no longer known.
    pub fn has_arrived(&self, offset: u64) -> Option<bool> {
        self.history.contains(offset)
    }

    /// A number arrived for the first time.
    pub fn unique(&mut self, offset: u64, late: bool) {
        self.counters.received += 1;
        self.counters.unique += 1;
        self.counters.late += u64::from(late);
        self.counters.reordered += u64::from(self.reordering.arrived(offset));
        let Account {
            history,
            report,
            current,
            ..
        } = self;
        history.insert(offset, |first, count| {
            note_loss(report, current, first, count)
        });
    }

    /// A number arrived again.
    pub fn duplicate(&mut self) {
        self.counters.received += 1;
        self.counters.duplicates += 1;
    }

    /// A number arrived, and there was no room for it.
    pub fn ring_full(&mut self, offset: u64) {
        self.counters.received += 1;
        self.counters.ring_full += 1;
        self.counters.reordered += u64::from(self.reordering.arrived(offset));
        // It makes the sequence reach that far.
        let Account {
            history,
            report,
            current,
            ..
        } = self;
        history.reach(offset, |first, count| {
            note_loss(report, current, first, count)
        });
    }

    /// A datagram arrived whose number belongs to no sequence known.
    pub fn foreign(&mut self) {
        self.counters.foreign_sequence += 1;
    }

    /// The sequence ends: what has not arrived is lost.
    pub fn close_segment(&mut self) {
        let Account {
            history,
            report,
            current,
            ..
        } = self;
        let end = history.end();
        history.finish(|first, count| note_loss(report, current, first, count));
        self.reordering.close();
        self.counters.expected += end;
        if let Some(current) = self.current.take()
            && end > 0
        {
            self.report.segments.push(Segment {
                first_seq: current.base,
                last_seq: current.base.wrapping_add(end - 1),
                intervals: current.intervals,
            });
        }
    }

    /// The counters now. What is on its way counts as lost until it comes.
    pub fn counters(&self) -> Counters {
        let expected = self.counters.expected + self.history.end();
        Counters {
            expected,
            lost: expected - self.counters.unique,
            ..self.counters.clone()
        }
    }

    /// First and last number seen so far.
    pub fn ends(&self) -> Option<(u64, u64)> {
        let end = self.history.end();
        let first = self
            .report
            .segments
            .first()
            .map(|segment| segment.first_seq);
        match &self.current {
            Some(current) if end > 0 => Some((
                first.unwrap_or(current.base),
                current.base.wrapping_add(end - 1),
            )),
            _ => Some((first?, self.report.segments.last()?.last_seq)),
        }
    }

    /// The stream has ended: everything that was counted.
    pub fn finish(mut self) -> Report {
        self.close_segment();
        Report {
            counters: self.counters(),
            extents: self.reordering.extents().clone(),
            n_reordered: self.reordering.n_reordered().clone(),
            ..self.report
        }
    }
}

fn note_loss(report: &mut Report, current: &mut Option<Current>, first: u64, count: u64) {
    *report.runs.entry(count).or_default() += 1;
    let Some(current) = current else { return };
    if current.listed + current.intervals.len() < MOST_INTERVALS {
        current.intervals.push(SequenceGap {
            first: current.base.wrapping_add(first),
            last: current.base.wrapping_add(first + (count - 1)),
        });
    } else {
        report.intervals_not_listed += 1;
    }
}

/// Where lost datagrams were lost. The three parts always sum to the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Attribution {
    /// Dropped in this host for certain: by the ring or by the socket.
    pub host_lost: u64,
    /// Not dropped in this host, so lost before it.
    pub network_lost: u64,
    /// What the counters cannot tell.
    pub unattributed: u64,
    /// Most that this host may have dropped; the least is `host_lost`.
    pub host_lost_max: u64,
}

/// Tells loss in this host from loss before it. `socket_drops` is what the socket dropped between the
/// first and the last datagram received; where the kernel joins datagrams it counts a super-packet of up to
/// `per_drop` datagrams once.
pub fn attribute(lost: u64, ring_full: u64, socket_drops: u64, per_drop: u64) -> Attribution {
    let ring = ring_full.min(lost);
    let least = (lost - ring).min(socket_drops);
    let most = (lost - ring).min(socket_drops.saturating_mul(per_drop.max(1)));
    Attribution {
        host_lost: ring + least,
        network_lost: lost - ring - most,
        unattributed: most - least,
        host_lost_max: ring + most,
    }
}

#[cfg(test)]
mod tests;
