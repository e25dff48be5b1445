//! Receiving endpoint of a connection: which segments arrived, and how they are acknowledged.

use std::collections::BTreeMap;

use evlbi_core::time::Nanos;

/// Maximum time that an acknowledgement waits for the next segment (RFC 1122, section 4.2.3.2; as in Linux).
const DELAY: Nanos = Nanos(40_000_000);
/// Number of blocks of an acknowledgement with a timestamp (RFC 2018, section 3).
const BLOCKS: usize = 3;

/// Acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// First segment that has not arrived.
    pub next: u64,
    /// Blocks of segments that arrived after it, the newest first (RFC 2018): first and end, counted from `next`. Unused ones are
    /// 0.
    blocks: [(u32, u32); BLOCKS],
    /// When the segment was sent that this acknowledges (RFC 7323).
    pub echo: Nanos,
    /// Whether the newest one is a duplicate (RFC 2883).
    pub is_repeated: bool,
}

impl Ack {
    /// Returns the ranges that arrived after gaps, the newest first: first segment and end.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        let used = self.blocks.into_iter().take_while(|(_, end)| *end > 0);
        let next = self.next;
        used.map(move |(first, end)| (next + u64::from(first), next + u64::from(end)))
    }
}

/// State of the receiving endpoint.
#[derive(Debug, Default)]
pub struct Receiver {
    /// First segment that has not arrived.
    pub next: u64,
    /// Ranges after gaps: first to end.
    blocks: BTreeMap<u64, u64>,
    /// Segments per acknowledgement if nothing is missing; and the fraction of one by which the last acknowledgement exceeded
    /// that.
    per_ack: f64,
    over: f64,
    /// Number of unacknowledged arrivals; when the first of them was sent, and until when they wait.
    waiting: u32,
    pub echo: Nanos,
    pub until: Option<Nanos>,
}

impl Receiver {
    pub fn new(per_ack: f64) -> Receiver {
        Receiver {
            per_ack: per_ack.max(1.0),
            ..Receiver::default()
        }
    }

    /// Handles a segment that was sent at `left`: returns its acknowledgement, if it is sent at once.
    pub fn take(&mut self, segment: u64, left: Nanos, now: Nanos) -> Option<Ack> {
        let was_missing = !self.blocks.is_empty();
        if self.waiting == 0 {
            self.echo = left;
        }
        let is_old = segment < self.next;
        let is_repeated = if segment == self.next {
            self.next += 1;
            self.next = self.blocks.remove(&self.next).unwrap_or(self.next);
            false
        } else {
            is_old || !self.keep(segment)
        };
        self.waiting += 1;
        // A segment that fills a gap, is after one, or is a duplicate is acknowledged at once (RFC 5681, section 4.2).
        let is_urgent = was_missing || !self.blocks.is_empty() || is_repeated;
        if is_urgent {
            self.echo = left;
        }
        let over = f64::from(self.waiting) + self.over - self.per_ack;
        if is_urgent || over >= 0.0 {
            self.over = if is_urgent { 0.0 } else { over };
            let ack = self.ack(Some(segment));
            return Some(Ack { is_repeated, ..ack });
        }
        self.until.get_or_insert(now.plus(DELAY));
        None
    }

    /// Returns the acknowledgement of the waiting segments.
    pub fn ack(&mut self, newest: Option<u64>) -> Ack {
        self.waiting = 0;
        self.until = None;
        let mut ack = Ack {
            next: self.next,
            echo: self.echo,
            ..Ack::default()
        };
        let newest = newest.and_then(|segment| {
            let (first, end) = self.blocks.range(..=segment).next_back()?;
            (segment < *end).then_some((*first, *end))
        });
        let others = self.blocks.iter().map(|(first, end)| (*first, *end));
        let others = others.rev().filter(|block| Some(*block) != newest);
        let from_next = |segment: u64| (segment - self.next) as u32;
        for (place, (first, end)) in ack.blocks.iter_mut().zip(newest.into_iter().chain(others)) {
            *place = (from_next(first), from_next(end));
        }
        ack
    }

    /// Keeps a segment after a gap; returns whether it is new.
    fn keep(&mut self, segment: u64) -> bool {
        let first = match self.blocks.range(..=segment).next_back() {
            Some((_, end)) if segment < *end => return false,
            Some((first, end)) if segment == *end => *first,
            _ => segment,
        };
        let end = segment + 1;
        let end = self.blocks.remove(&end).unwrap_or(end);
        self.blocks.insert(first, end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(receiver: &mut Receiver, segments: &[u64]) -> Vec<Ack> {
        let all = segments.iter();
        all.filter_map(|segment| receiver.take(*segment, Nanos(*segment), Nanos(1000)))
            .collect()
    }

    #[test]
    fn each_second_segment_is_answered() {
        let mut receiver = Receiver::new(2.0);
        let acks = take(&mut receiver, &[0, 1, 2, 3, 4]);
        let nexts: Vec<(u64, u64)> = acks.iter().map(|ack| (ack.next, ack.echo.0)).collect();
        assert_eq!(nexts, [(2, 0), (4, 2)]);
        assert_eq!(receiver.until, Some(Nanos(1000).plus(DELAY)));
        assert_eq!(receiver.ack(None).next, 5);
        assert_eq!(receiver.until, None);
    }

    #[test]
    fn segments_after_a_gap_are_acknowledged_selectively() {
        let mut receiver = Receiver::new(2.0);
        let acks = take(&mut receiver, &[0, 2, 3, 6, 5, 2, 1, 4]);
        let told = acks.iter();
        let told: Vec<_> = told
            .map(|ack| {
                let mut blocks = ack.blocks();
                (ack.next, blocks.next(), blocks.next())
            })
            .collect();
        let gap = Some((2, 4));
        assert_eq!(
            told,
            [
                (1, Some((2, 3)), None),
                (1, gap, None),
                (1, Some((6, 7)), gap),
                (1, Some((5, 7)), gap),
                (1, gap, Some((5, 7))),
                (4, Some((5, 7)), None),
                (7, None, None),
            ]
        );
    }
}
