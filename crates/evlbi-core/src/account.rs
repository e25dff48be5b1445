//! Exact accounting of a stream of numbered datagrams: which arrived, arrived twice, late or out of order, and which were lost.
//!
//! These sums always hold:
//!
//! - received = unique + duplicates + ring_full
//! - expected = unique + lost, over the numbers from the lowest to the highest seen
//!
//! So when the first and the last datagram of a sender arrive, sent = unique + lost. A number enters the runs and intervals of
//! loss only when it leaves a long history ([`HISTORY`] numbers, the waiting time of RFC 7680 and RFC 4737), or at the end: a
//! late datagram is subtracted from the loss.
//!
//! Counters of sequence numbers and arrival times belong here. `evlbi-stream/src/counters.rs` defines what is shown of them.

mod distribution;
mod histogram;
mod history;
mod reordering;

use std::collections::BTreeMap;
use std::ops::Range;

use evlbi_wire::validity::SequenceGap;
use serde::{Deserialize, Serialize};

use self::history::History;
use self::reordering::Reordering;

pub use self::distribution::{Distribution, Summary};
pub use self::histogram::{Bin, Histogram, table};
pub use self::reordering::FreeRuns;

/// Minimum number of datagrams over which duplicates are distinguished from late arrivals.
pub const HISTORY: u64 = 1 << 22;
/// Maximum number of intervals of loss that are listed; the rest are only counted.
pub const MAX_INTERVALS: usize = 1_000_000;
/// Maximum number of sequences that are listed.
pub const MAX_SEGMENTS: usize = 10_000;

/// Datagram of the stream as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record(
    /// Sequence number.
    pub u64,
    /// Time sent, by the sender's clock, in nanoseconds of UTC.
    pub u64,
    /// Time received, by the receiver's clock, in nanoseconds of UTC.
    pub u64,
);

/// Counters of a receiver, in datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counters {
    /// Numbers from the lowest to the highest seen, over all segments: unique + lost.
    pub expected: u64,
    /// Datagrams of the right size from the right source: unique + duplicates + ring_full.
    pub received: u64,
    /// Distinct numbers that arrived, including late ones.
    pub unique: u64,
    /// Numbers that did not arrive or found the ring full: expected - unique. Until the end, datagrams in flight count as lost.
    pub lost: u64,
    /// Second and later arrivals of a number.
    pub duplicates: u64,
    /// Arrivals after a higher number (RFC 4737, section 3: Type-P-Reordered), without duplicates.
    pub reordered: u64,
    /// Unique datagrams whose slot had been released when they arrived, so they are not in the recording.
    pub late: u64,
    /// Numbers whose every arrival found the ring full, so that this host dropped them; included in `lost`. If a copy is placed
    /// later, the dropped arrival counts as a duplicate.
    pub ring_full: u64,
    /// Arrivals with a number outside every known sequence.
    pub foreign_sequence: u64,
    /// Number of times that the sender restarted.
    pub restarts: u64,
}

/// Numbers of one sequence, from its start to the end or to a restart of the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Segment {
    /// Lowest number.
    pub first_seq: u64,
    /// Highest number; smaller than `first_seq` if the numbers wrapped.
    pub last_seq: u64,
    /// Lost intervals, as far as [`MAX_INTERVALS`] allows.
    pub intervals: Vec<SequenceGap>,
}

/// Complete account of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// Counters.
    #[serde(flatten)]
    pub counters: Counters,
    /// Runs of consecutive lost numbers: length to count.
    pub runs: BTreeMap<u64, u64>,
    /// The same as a table, in results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs_table: Vec<Bin>,
    /// Runs of loss of lengths that `runs` does not list.
    pub runs_not_listed: u64,
    /// Lengths of all runs of loss.
    pub run_lengths: Option<Summary>,
    /// Extents of reordering (RFC 4737, section 4.2), in arrivals: extent to count.
    pub extents: BTreeMap<u64, u64>,
    /// The same as a table, in results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extents_table: Vec<Bin>,
    /// Reordered packets of extents that `extents` does not list.
    pub extents_not_listed: u64,
    /// All extents.
    pub extent_sizes: Option<Summary>,
    /// Packets that are n-reordered (RFC 4737, section 5.3): largest n to count.
    pub n_reordered: BTreeMap<u64, u64>,
    /// The same as a table, in results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub n_reordered_table: Vec<Bin>,
    /// Gaps between reordering discontinuities (RFC 4737, section 4.5), in arrivals: gap to count.
    pub reordering_gaps: BTreeMap<u64, u64>,
    /// The same as a table, in results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reordering_gaps_table: Vec<Bin>,
    /// Gaps of lengths that `reordering_gaps` does not list.
    pub reordering_gaps_not_listed: u64,
    /// Reordering-free runs (RFC 4737, section 4.6).
    pub free_runs: FreeRuns,
    /// Sequences in order; if there are more than [`MAX_SEGMENTS`], the first ones and the last.
    pub segments: Vec<Segment>,
    /// Number of sequences that are not listed.
    pub segments_not_listed: u64,
    /// Number of intervals of loss that are not listed.
    pub intervals_not_listed: u64,
}

impl Report {
    /// Adds the tables that results have.
    #[must_use]
    pub fn with_tables(mut self) -> Report {
        self.runs_table = table(&self.runs);
        self.extents_table = table(&self.extents);
        self.n_reordered_table = table(&self.n_reordered);
        self.reordering_gaps_table = table(&self.reordering_gaps);
        self
    }
}

/// Account of the arrivals of one stream.
#[derive(Clone, Debug)]
pub struct Account {
    /// Counters that need no history; expected and lost are those of the closed segments, with what was shed.
    counters: Counters,
    history: History,
    reordering: Reordering,
    loss: Loss,
    /// Numbers within the sequences that were shed.
    shed: u64,
    has_begun: bool,
    segments: Vec<Segment>,
    segments_not_listed: u64,
}

/// Final loss.
#[derive(Clone, Debug, Default)]
struct Loss {
    /// Number at offset 0 of the current sequence, if there is one.
    base: Option<u64>,
    /// Intervals of the current sequence.
    intervals: Vec<SequenceGap>,
    /// Number of listed intervals of earlier sequences.
    listed: usize,
    not_listed: u64,
    runs: Histogram,
    lengths: Distribution,
}

impl Account {
    /// Makes an account without arrivals that remembers `history` numbers, rounded up to a power of two.
    pub fn new(history: u64) -> Account {
        Account {
            counters: Counters::default(),
            history: History::new(history),
            reordering: Reordering::default(),
            loss: Loss::default(),
            shed: 0,
            has_begun: false,
            segments: Vec::new(),
            segments_not_listed: 0,
        }
    }

    /// Starts a sequence, and closes the one before. Its numbers are given as offsets from `base`, a number at or somewhat before
    /// the lowest that may arrive.
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

    /// Returns whether the number at `offset` has arrived; `None` if that is no longer known.
    #[inline]
    pub fn has_arrived(&self, offset: u64) -> Option<bool> {
        self.history.contains(offset)
    }

    /// Returns the end of the run of arrived numbers that starts at `offset`, at max `limit`.
    pub fn arrived_until(&self, offset: u64, limit: u64) -> u64 {
        self.history.arrived_until(offset, limit)
    }

    /// Returns the end of the run of numbers that have not arrived, from `offset` on, at most `limit`.
    pub fn missing_until(&self, offset: u64, limit: u64) -> u64 {
        self.history.missing_until(offset, limit)
    }

    /// Counts the first arrival of a number that found room.
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

    /// Notes that the sender shed these numbers, after all of them were due: they are neither expected nor lost.
    pub fn shed(&mut self, offsets: Range<u64>) {
        let lost = |first, count| self.loss.note(first, count);
        self.shed += self.history.shed(offsets, lost);
    }

    /// Extends the sequence by a number that the sender has used, whether or not it arrives: it counts as expected.
    pub fn used(&mut self, offset: u64) {
        let lost = |first, count| self.loss.note(first, count);
        self.history.reach(offset, lost);
    }

    /// Counts repeated arrivals of numbers.
    #[inline]
    pub fn duplicates(&mut self, count: u64) {
        self.counters.received += count;
        self.counters.duplicates += count;
    }

    /// Subtracts `count` duplicates, which turned out to belong to a sequence that is opened now.
    pub fn take_back_duplicates(&mut self, count: u64) {
        self.counters.received -= count;
        self.counters.duplicates -= count;
    }

    /// Counts the first arrival of a number that found no room.
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

    /// Counts datagrams whose number belongs to no known sequence.
    pub fn foreign(&mut self, count: u64) {
        self.counters.foreign_sequence += count;
    }

    /// Ends the sequence: numbers that have not arrived are lost.
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

    /// Returns the current counters.
    pub fn counters(&self) -> Counters {
        let current = self.history.span().map_or(0, |(first, end)| end - first);
        let expected = self.counters.expected.saturating_add(current) - self.shed;
        Counters {
            expected,
            lost: expected.saturating_sub(self.counters.unique),
            ..self.counters.clone()
        }
    }

    /// Returns the first number of the first sequence and the last number of the last, so far.
    pub fn ends(&self) -> Option<(u64, u64)> {
        let before = self.segments.first().zip(self.segments.last());
        let before = before.map(|(first, last)| (first.first_seq, last.last_seq));
        let current = self.history.span().zip(self.loss.base);
        let current = current
            .map(|((first, end), base)| (base.wrapping_add(first), base.wrapping_add(end - 1)));
        Some((before.or(current)?.0, current.or(before)?.1))
    }

    /// Ends the stream and returns the complete account.
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
            ..Report::default()
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

/// Loss by location. The three parts always add up to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attribution {
    /// Certainly dropped in this host: by the ring or by the socket.
    pub host_lost: u64,
    /// Certainly lost before this host.
    pub network_lost: u64,
    /// Lost at an unknown place.
    pub unattributed: u64,
    /// Maximum that this host may have dropped; the minimum is `host_lost`.
    pub host_lost_max: u64,
}

/// Separates loss in this host from loss before it. `socket_drops` is what the socket dropped between the first and the last
/// datagram received. If the kernel joins datagrams, it counts a super-packet of up to `per_drop` datagrams once.
pub fn attribute(lost: u64, ring_full: u64, socket_drops: u64, per_drop: u64) -> Attribution {
    let ring = ring_full.min(lost);
    let min = (lost - ring).min(socket_drops);
    let max = (lost - ring).min(socket_drops.saturating_mul(per_drop.max(1)));
    Attribution {
        host_lost: ring + min,
        network_lost: lost - ring - max,
        unattributed: max - min,
        host_lost_max: ring + max,
    }
}

#[cfg(test)]
mod tests;
