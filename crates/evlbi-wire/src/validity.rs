//! Invalid parts of a recording: the gaps document next to a file, and sets of intervals.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::time::{FrameRate, FrameTime};
use crate::vdif::StreamKey;

/// Document next to a recording that lists what is missing in it, where and why.
///
/// The recording contains the missing frames as invalid frames, so that it stays in time. If only a part of a frame is missing,
/// that part contains the fill pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gaps {
    /// Name and version of this format.
    pub schema: Schema,
    /// Name of the recording, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Frames per second of each thread, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_rate: Option<FrameRate>,
    /// Length of a frame in bytes, header included, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_length: Option<usize>,
    /// Datagrams that did not arrive, by sequence number.
    #[serde(default)]
    pub sequence: Vec<SequenceGap>,
    /// Frames that are missing, whole or in part.
    #[serde(default)]
    pub time: Vec<TimeGap>,
}

/// Schema of the gaps format: serialises as `evlbi.gaps/1`, and accepts nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "&'static str")]
pub struct Schema;

impl Schema {
    /// Name and version of the format.
    pub const NAME: &'static str = "evlbi.gaps/1";
}

impl From<Schema> for &'static str {
    fn from(_: Schema) -> &'static str {
        Schema::NAME
    }
}

/// Wrong schema: another format, or another version of this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported schema {0:?} of a gaps document: expected {NAME:?}", NAME = Schema::NAME)]
#[non_exhaustive]
pub struct SchemaError(pub String);

impl TryFrom<String> for Schema {
    type Error = SchemaError;

    fn try_from(name: String) -> Result<Schema, SchemaError> {
        match name == Schema::NAME {
            true => Ok(Schema),
            false => Err(SchemaError(name)),
        }
    }
}

/// Run of consecutive datagrams that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SequenceGap {
    /// Sequence number of the first datagram.
    pub first: u64,
    /// Sequence number of the last datagram.
    pub last: u64,
}

/// Run of consecutive frames of one thread that are missing for the same cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimeGap {
    /// Station and thread.
    #[serde(flatten)]
    pub key: StreamKey,
    /// Time of the first frame.
    pub start: FrameTime,
    /// Number of frames, at least one.
    pub frames: u64,
    /// Offset of the first frame in the file, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<u64>,
    /// Missing bytes of the payload, if the rest of each of these frames is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Range<usize>>,
    /// Cause.
    pub cause: Cause,
}

impl TimeGap {
    /// Returns the indices of these frames as [`FrameTime::index`] counts them, since 1970-01-01.
    pub fn indices(&self, rate: FrameRate) -> Range<i64> {
        let first = self.start.index(rate);
        first..first.saturating_add_unsigned(self.frames)
    }
}

/// Cause of a missing frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Lost: it did not arrive, arrived too late, or found the ring full.
    Lost,
    /// Shed on purpose.
    Shed,
    /// Marked invalid by its source.
    Source,
}

/// Set of integers (frames, samples, bytes), kept as sorted, separate half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Ranges, none of them empty, each starting after the end of the one before.
    ranges: Vec<Range<i64>>,
}

impl Intervals {
    /// Makes an empty set.
    pub fn new() -> Intervals {
        Intervals::default()
    }

    /// Adds every number of `range`. This takes constant time at the end of the set, which is the normal case.
    pub fn insert(&mut self, range: Range<i64>) {
        if range.is_empty() {
            return;
        }
        let joins_from = match self.ranges.last() {
            Some(last) if range.start <= last.end => {
                self.ranges.partition_point(|r| r.end < range.start)
            }
            _ => self.ranges.len(),
        };
        let others = self.ranges[joins_from..].iter();
        let (mut whole, mut count) = (range.clone(), 0);
        for other in others.take_while(|r| r.start <= range.end) {
            whole = whole.start.min(other.start)..whole.end.max(other.end);
            count += 1;
        }
        self.ranges.splice(joins_from..joins_from + count, [whole]);
    }

    /// Returns whether `number` is in the set.
    pub fn contains(&self, number: i64) -> bool {
        let at = self.ranges.partition_point(|range| range.end <= number);
        let there = self.ranges.get(at);
        there.is_some_and(|range| range.start <= number)
    }

    /// Returns whether all of `range` is in the set.
    pub fn covers(&self, range: Range<i64>) -> bool {
        let at = self.ranges.partition_point(|r| r.end <= range.start);
        let there = self.ranges.get(at);
        range.is_empty() || there.is_some_and(|r| r.start <= range.start && range.end <= r.end)
    }

    /// Returns the part of the set that is in `range`.
    pub fn within(&self, range: Range<i64>) -> Intervals {
        let from = self.ranges.partition_point(|r| r.end <= range.start);
        let there = self.ranges[from..].iter();
        let there = there.take_while(|r| r.start < range.end);
        let parts = there.map(|r| r.start.max(range.start)..r.end.min(range.end));
        parts.collect()
    }

    /// Returns the part of `range` that is not in the set.
    pub fn missing_in(&self, range: Range<i64>) -> Intervals {
        let mut missing = Intervals::new();
        let mut from = range.start;
        for there in self.within(range.clone()).ranges {
            missing.insert(from..there.start);
            from = there.end;
        }
        missing.insert(from..range.end);
        missing
    }

    /// Returns the intersection of both sets.
    pub fn intersect(&self, other: &Intervals) -> Intervals {
        let mut both = Intervals::new();
        let (mut ours, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        while let (Some(a), Some(b)) = (ours.peek(), theirs.peek()) {
            both.insert(a.start.max(b.start)..a.end.min(b.end));
            if a.end < b.end {
                ours.next();
            } else {
                theirs.next();
            }
        }
        both
    }

    /// Returns how many numbers are in the set.
    pub fn total(&self) -> u64 {
        self.ranges.iter().map(|r| r.end.abs_diff(r.start)).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the ranges in order; between two of them there is at least one number that is not in the set.
    pub fn iter(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        self.ranges.iter().cloned()
    }
}

impl FromIterator<Range<i64>> for Intervals {
    fn from_iter<I: IntoIterator<Item = Range<i64>>>(ranges: I) -> Intervals {
        let mut set = Intervals::new();
        set.extend(ranges);
        set
    }
}

impl Extend<Range<i64>> for Intervals {
    fn extend<I: IntoIterator<Item = Range<i64>>>(&mut self, ranges: I) {
        for range in ranges {
            self.insert(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::vdif::StationId;

    fn gaps() -> Gaps {
        Gaps {
            schema: Schema,
            file: Some("ef.vdif".into()),
            frame_rate: FrameRate::new(1600),
            frame_length: Some(5032),
            sequence: vec![SequenceGap { first: 7, last: 9 }],
            time: vec![TimeGap {
                key: StreamKey {
                    station: StationId::from_code(*b"Ef"),
                    thread: 3,
                },
                start: FrameTime {
                    second: 1_580_232_600,
                    frame: 1599,
                },
                frames: 2,
                first_byte: Some(10_064),
                bytes: Some(1000..2000),
                cause: Cause::Shed,
            }],
        }
    }

    #[test]
    fn the_document_reads_as_it_is_described() {
        let text = serde_json::to_string(&gaps()).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"schema":"evlbi.gaps/1","file":"ef.vdif","frame_rate":1600,"frame_length":5032,"#,
                r#""sequence":[{"first":7,"last":9}],"time":[{"station":17766,"thread":3,"#,
                r#""start":{"second":1580232600,"frame":1599},"frames":2,"first_byte":10064,"#,
                r#""bytes":{"start":1000,"end":2000},"cause":"shed"}]}"#
            )
        );
        assert_eq!(serde_json::from_str::<Gaps>(&text).unwrap(), gaps());
    }

    #[test]
    fn unknown_fields_are_omitted() {
        let text = serde_json::to_string(&Gaps::default()).unwrap();
        assert_eq!(text, r#"{"schema":"evlbi.gaps/1","sequence":[],"time":[]}"#);
        let smallest: Gaps = serde_json::from_str(r#"{"schema":"evlbi.gaps/1"}"#).unwrap();
        assert_eq!(smallest, Gaps::default());
    }

    #[test]
    fn a_part_of_a_set_and_its_gaps() {
        let set: Intervals = [0..10, 20..30, 40..50].into_iter().collect();
        let of = |set: Intervals| set.iter().collect::<Vec<_>>();
        assert!(set.covers(20..30) && set.covers(22..23) && set.covers(15..15));
        assert!(!set.covers(19..21) && !set.covers(25..45) && !set.covers(10..11));
        assert_eq!(of(set.within(5..45)), [5..10, 20..30, 40..45]);
        assert_eq!(of(set.missing_in(5..45)), [10..20, 30..40]);
        assert_eq!(of(set.within(10..20)), []);
        assert_eq!(of(set.missing_in(10..35)), [10..20, 30..35]);
        assert_eq!(of(set.missing_in(22..28)), []);
        assert_eq!(of(set.missing_in(-5..60)), [-5..0, 10..20, 30..40, 50..60]);
    }

    #[test]
    fn another_schema_is_refused() {
        let error = serde_json::from_str::<Gaps>(r#"{"schema":"evlbi.gaps/2"}"#).unwrap_err();
        assert!(error.to_string().contains("evlbi.gaps/2"), "{error}");
        assert!(error.to_string().contains("evlbi.gaps/1"), "{error}");
    }

    #[test]
    fn a_gap_runs_over_the_second() {
        let gap = &gaps().time[0];
        let rate = FrameRate::new(1600).unwrap();
        let first = 1_580_232_600 * 1600 + 1599;
        assert_eq!(gap.indices(rate), first..first + 2);
        let endless = TimeGap {
            frames: u64::MAX,
            ..gap.clone()
        };
        assert_eq!(endless.indices(rate), first..i64::MAX);
    }

    #[test]
    fn touching_ranges_become_one() {
        let mut set: Intervals = [0..10, 20..30, 40..50].into_iter().collect();
        set.insert(10..20);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0..30, 40..50]);
        set.insert(-5..100);
        assert!(set.iter().eq(std::iter::once(-5..100)));
        set.insert(7..7);
        assert_eq!(set.total(), 105);
    }

    #[test]
    fn the_widest_set_has_a_total() {
        let set: Intervals = std::iter::once(i64::MIN..i64::MAX).collect();
        assert_eq!(set.total(), u64::MAX);
        assert!(set.contains(i64::MIN) && set.contains(0) && !set.contains(i64::MAX));
    }

    /// Ranges that often touch and overlap, and the same numbers as a plain set.
    fn ranges() -> impl Strategy<Value = Vec<Range<i64>>> {
        let range = (-40i64..40, 0i64..12).prop_map(|(start, length)| start..start + length);
        prop::collection::vec(range, 0..20)
    }

    fn numbers(ranges: &[Range<i64>]) -> BTreeSet<i64> {
        ranges.iter().cloned().flatten().collect()
    }

    fn check(set: &Intervals, expected: &BTreeSet<i64>) -> Result<(), TestCaseError> {
        for pair in set.ranges.windows(2) {
            prop_assert!(pair[0].end < pair[1].start);
        }
        prop_assert!(set.iter().all(|range| !range.is_empty()));
        prop_assert_eq!(&set.iter().flatten().collect::<BTreeSet<_>>(), expected);
        prop_assert_eq!(set.total(), expected.len() as u64);
        prop_assert_eq!(set.is_empty(), expected.is_empty());
        for number in -60..60 {
            prop_assert_eq!(set.contains(number), expected.contains(&number));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_set_of_intervals_is_a_set_of_numbers(a in ranges(), b in ranges()) {
            let (ours, theirs) = (numbers(&a), numbers(&b));
            let a: Intervals = a.into_iter().collect();
            let b: Intervals = b.into_iter().collect();
            check(&a, &ours)?;
            check(&a.intersect(&b), &ours.intersection(&theirs).copied().collect())?;
        }
    }
}
