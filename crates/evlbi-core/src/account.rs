//! Exact accounting of a stream of numbered datagrams: what arrived, twice, late or out of order, and
//! what did not arrive.
//!
//! The sums that hold at every moment, by construction:
//!
//! - received = unique + duplicates + ring_full
//! - expected = unique + lost, over the numbers from the lowest to the highest seen
//!
//! So when the first and the last datagram of a sender arrive, sent = unique + lost. A number enters the
//! runs and intervals of loss only when it has left a long history ([`HISTORY`] numbers, the waiting time of
//! RFC 7680 and RFC 4737), or at the end: a datagram that is late is taken back from loss.
//!
//! Here belongs what is counted of numbers and times of arrival. What a user is shown of it is in `evlbi-stream/src/counters.rs`.

mod distribution;
mod histogram;
mod history;
mod reordering;

use std::collections::BTreeMap;

use evlbi_wire::validity::SequenceGap;
use serde::{Deserialize, Serialize};

use self::history::History;
use self::reordering::Reordering;

pub use self::distribution::{Distribution, Summary};
pub use self::histogram::Histogram;
pub use self::reordering::FreeRuns;

/// Numbers over which a duplicate is told from a late arrival, at least.
pub const HISTORY: u64 = 1 << 22;
/// Intervals of loss that are listed; the rest is counted only.
pub const MAX_INTERVALS: usize = 1_000_000;
/// Sequences that are listed.
pub const MAX_SEGMENTS: usize = 10_000;

/// A datagram of the stream as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record(
    /// Its number.
    pub u64,
    /// When it left, by the sender's clock in nanoseconds of UTC.
    pub u64,
    /// When it arrived, by the receiver's.
    pub u64,
);

/// The counters of a receiver, in datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Numbers from the lowest to the highest seen, over all segments: unique + lost.
    pub expected: u64,
    /// Arrived with the right size from the right source: unique + duplicates + ring_full.
    pub received: u64,
    /// Distinct numbers that arrived, late ones included.
    pub unique: u64,
    /// Numbers that did not arrive or found the ring full: expected - unique. Before the end, what is on its
    /// way counts as lost until it comes.
    pub lost: u64,
    /// Second and further arrivals of a number.
    pub duplicates: u64,
    /// Arrived after one with a higher number (RFC 4737, section 3: Type-P-Reordered), duplicates apart.
    pub reordered: u64,
    /// Of the unique: arrived when their place had been handed on, so not in the recording.
    pub late: u64,
    /// Numbers of which every arrival found the ring full, so dropped in this host: a part of the lost. When
    /// a copy is placed after all, the arrival that was dropped is a duplicate.
    pub ring_full: u64,
    /// Arrived with a number that belongs to no sequence known here.
    pub foreign_sequence: u64,
    /// How often the sender began again.
    pub restarts: u64,
}

/// The numbers of one sequence, from its beginning to the end or to a restart of the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Lowest number.
    pub first_seq: u64,
    /// Highest number; the smaller one where the numbers wrapped.
    pub last_seq: u64,
    /// What of it is lost, as far as [`MAX_INTERVALS`] go.
    pub intervals: Vec<SequenceGap>,
}

/// Everything that was counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The counters.
    #[serde(flatten)]
    pub counters: Counters,
    /// Runs of consecutive lost numbers: length to count.
    pub runs: BTreeMap<u64, u64>,
    /// Runs of loss of further lengths.
    pub runs_not_listed: u64,
    /// Lengths of all runs of loss.
    pub run_lengths: Option<Summary>,
    /// Extents of reordering (RFC 4737, section 4.2), in arrivals: extent to count.
    pub extents: BTreeMap<u64, u64>,
    /// Reordered packets of further extents.
    pub extents_not_listed: u64,
    /// All extents.
    pub extent_sizes: Option<Summary>,
    /// Packets that are n-reordered (RFC 4737, section 5.3): largest n to count.
    pub n_reordered: BTreeMap<u64, u64>,
    /// Gaps between reordering discontinuities (RFC 4737, section 4.5), in arrivals: gap to count.
    pub reordering_gaps: BTreeMap<u64, u64>,
    /// Gaps of further lengths.
    pub reordering_gaps_not_listed: u64,
    /// Reordering-free runs (RFC 4737, section 4.6).
    pub free_runs: FreeRuns,
    /// Sequences, one after the other; of more than [`MAX_SEGMENTS`] the first and the very last.
    pub segments: Vec<Segment>,
    /// Sequences beyond those listed.
    pub segments_not_listed: u64,
    /// Intervals of loss beyond those listed.
    pub intervals_not_listed: u64,
}

/// Accounts for the arrivals of one stream.
#[derive(Clone, Debug)]
pub struct Account {
    /// What needs no history; expected and lost are those of the segments that are closed.
    counters: Counters,
    history: History,
    reordering: Reordering,
    loss: Loss,
    has_begun: bool,
    segments: Vec<Segment>,
    segments_not_listed: u64,
}

/// Loss that is final.
#[derive(Clone, Debug, Default)]
struct Loss {
    /// Number at offset 0 of the sequence that is arriving, if there is one.
    base: Option<u64>,
    /// Its intervals.
    intervals: Vec<SequenceGap>,
    /// How many intervals of the sequences before are listed.
    listed: usize,
    not_listed: u64,
    runs: Histogram,
    lengths: Distribution,
}

impl Account {
    /// An account without arrivals that remembers `history` numbers, rounded up to a power of two.
    pub fn new(history: u64) -> Account {
        Account {
            counters: Counters::default(),
            history: History::new(history),
            reordering: Reordering::default(),
            loss: Loss::default(),
            has_begun: false,
            segments: Vec::new(),
            segments_not_listed: 0,
        }
    }

    /// Begins a sequence. Its numbers are given as offsets from `base`, a number at or somewhat before the
    /// lowest that may come. A sequence before it is closed.
    pub fn open_segment(&mut self, base: u64) {
        if self.loss.base.is_some() {
            self.close_segment();
        }
        self.counters.restarts += u64::from(self.has_begun);
        self.has_begun = true;
        self.loss.base = Some(base);
    }

    /// Closes the sequence; the next one remembers `history` numbers.
    pub fn remember(&mut self, history: u64) {
        self.close_segment();
        self.history = History::new(history);
    }

    /// Whether the number at `offset` has arrived; `None` where that is no longer known.
    #[inline]
    pub fn has_arrived(&self, offset: u64) -> Option<bool> {
        self.history.contains(offset)
    }

    /// Where the numbers from `offset` on that have arrived end, at most `limit`.
    pub fn arrived_until(&self, offset: u64, limit: u64) -> u64 {
        self.history.arrived_until(offset, limit)
    }

    /// A number arrived for the first time that found room.
    #[inline]
    pub fn unique(&mut self, offset: u64, late: bool) {
        let counters = &mut self.counters;
        counters.received += 1;
        counters.unique += 1;
        counters.late += u64::from(late);
        let lost = |first, count| self.loss.note(first, count);
        if self.history.insert(offset, lost) {
            counters.ring_full -= 1;
            counters.duplicates += 1;
        } else {
            counters.reordered += u64::from(self.reordering.arrived(offset));
        }
    }

    /// The sender says that it has used a number of the sequence, whether that arrives or not: a part of the expected.
    pub fn used(&mut self, offset: u64) {
        let lost = |first, count| self.loss.note(first, count);
        self.history.reach(offset, lost);
    }

    /// Numbers arrived again, so many times.
    #[inline]
    pub fn duplicates(&mut self, count: u64) {
        self.counters.received += count;
        self.counters.duplicates += count;
    }

    /// So many arrivals were no duplicates: they turn out to be of a sequence that is opened now.
    pub fn take_back_duplicates(&mut self, count: u64) {
        self.counters.received -= count;
        self.counters.duplicates -= count;
    }

    /// A number arrived that had not before, and there was no room for it.
    pub fn ring_full(&mut self, offset: u64) {
        let counters = &mut self.counters;
        counters.received += 1;
        let lost = |first, count| self.loss.note(first, count);
        if self.history.refuse(offset, lost) {
            counters.ring_full += 1;
            counters.reordered += u64::from(self.reordering.arrived(offset));
        } else {
            counters.duplicates += 1;
        }
    }

    /// Datagrams arrived whose number belongs to no sequence known.
    pub fn foreign(&mut self, count: u64) {
        self.counters.foreign_sequence += count;
    }

    /// The sequence ends: what has not arrived is lost.
    pub fn close_segment(&mut self) {
        let span = self.history.span();
        let loss = &mut self.loss;
        self.history.finish(|first, count| loss.note(first, count));
        self.reordering.close();
        let Some(((first, end), base)) = span.zip(loss.base.take()) else {
            return;
        };
        self.counters.expected = self.counters.expected.saturating_add(end - first);
        let segment = Segment {
            first_seq: base.wrapping_add(first),
            last_seq: base.wrapping_add(end - 1),
            intervals: std::mem::take(&mut loss.intervals),
        };
        if self.segments.len() == MAX_SEGMENTS
            && let Some(last) = self.segments.pop()
        {
            self.segments_not_listed += 1;
            loss.listed -= last.intervals.len();
            loss.not_listed += last.intervals.len() as u64;
        }
        loss.listed += segment.intervals.len();
        self.segments.push(segment);
    }

    /// The counters now.
    pub fn counters(&self) -> Counters {
        let current = self.history.span().map_or(0, |(first, end)| end - first);
        let expected = self.counters.expected.saturating_add(current);
        Counters {
            expected,
            lost: expected.saturating_sub(self.counters.unique),
            ..self.counters.clone()
        }
    }

    /// First number of the first sequence and last number of the last, so far.
    pub fn ends(&self) -> Option<(u64, u64)> {
        let before = self.segments.first().zip(self.segments.last());
        let before = before.map(|(first, last)| (first.first_seq, last.last_seq));
        let current = self.history.span().zip(self.loss.base);
        let current = current
            .map(|((first, end), base)| (base.wrapping_add(first), base.wrapping_add(end - 1)));
        Some((before.or(current)?.0, current.or(before)?.1))
    }

    /// The stream has ended: everything that was counted.
    pub fn finish(mut self) -> Report {
        self.close_segment();
        let found = &self.reordering.found;
        Report {
            counters: self.counters(),
            runs: self.loss.runs.counts(),
            runs_not_listed: self.loss.runs.not_listed,
            run_lengths: self.loss.lengths.summary(),
            extents: found.extents.counts(),
            extents_not_listed: found.extents.not_listed,
            extent_sizes: found.extent_sizes.summary(),
            n_reordered: found.n_reordered.counts(),
            reordering_gaps: found.gaps.counts(),
            reordering_gaps_not_listed: found.gaps.not_listed,
            free_runs: FreeRuns {
                squares: found.squares as f64,
                ..found.free_runs
            },
            segments: self.segments,
            segments_not_listed: self.segments_not_listed,
            intervals_not_listed: self.loss.not_listed,
        }
    }
}

impl Loss {
    fn note(&mut self, first: u64, count: u64) {
        self.runs.add(count);
        self.lengths.add(i64::try_from(count).unwrap_or(i64::MAX));
        if self.listed + self.intervals.len() >= MAX_INTERVALS {
            self.not_listed += 1;
        } else if let Some(base) = self.base {
            self.intervals.push(SequenceGap {
                first: base.wrapping_add(first),
                last: base.wrapping_add(first + (count - 1)),
            });
        }
    }
}

/// Where lost datagrams were lost. The three parts always sum to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
