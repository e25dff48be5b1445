//! Numbers that the sender shed, as it declares them: they are neither expected nor lost.

use std::collections::VecDeque;

/// Maximum number of runs of a set.
pub(super) const MAX_PERIODS: u64 = 1 << 20;
/// Maximum number of sets that wait to be declared, or to be passed by what has arrived.
pub const MAX_SETS: usize = 4096;

/// Numbers, counted from the first of the flow: of every `stride` numbers from `first` on, the first `length` ones, below `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// First number.
    pub first: u64,
    /// One more than the last number.
    pub end: u64,
    /// Distance between the starts of two runs; 0 if there is only one.
    pub stride: u32,
    /// Length of each run, if there are several.
    pub length: u32,
}

impl Set {
    /// Makes the set of one run.
    pub fn run(first: u64, end: u64) -> Set {
        Set {
            first,
            end,
            stride: 0,
            length: 0,
        }
    }

    /// Returns the first run of the set that ends after `number`, if any.
    pub fn run_after(&self, number: u64) -> Option<(u64, u64)> {
        if number >= self.end || self.first >= self.end {
            return None;
        }
        if self.stride == 0 || self.length >= self.stride {
            return Some((self.first, self.end));
        }
        let (stride, length) = (u64::from(self.stride), u64::from(self.length));
        let periods = number.saturating_sub(self.first) / stride;
        let mut start = self.first + periods * stride;
        if start.saturating_add(length) <= number {
            start = start.checked_add(stride)?;
        }
        (start < self.end && length > 0)
            .then(|| (start, start.saturating_add(length).min(self.end)))
    }

    /// Returns its numbers from `number` on: the rest of a run, and the runs after it.
    fn from(&self, number: u64) -> [Option<Set>; 2] {
        let Some((start, end)) = self.run_after(number) else {
            return [None; 2];
        };
        let later = |first| Set { first, ..*self };
        if start >= number {
            return [None, Some(later(start))];
        }
        let after = self.run_after(end).map(|(first, _)| later(first));
        [Some(Set::run(number, end)), after]
    }

    /// Returns how many of its numbers are below `number`.
    pub fn count_below(&self, number: u64) -> u64 {
        let below = number.min(self.end).saturating_sub(self.first);
        match u64::from(self.stride) {
            0 => below,
            stride => {
                let length = u64::from(self.length.min(self.stride));
                below / stride * length + (below % stride).min(length)
            }
        }
    }
}

/// Sets in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    sets: VecDeque<Set>,
}

impl Declared {
    /// Returns the sets.
    pub fn sets(&self) -> impl Iterator<Item = &Set> {
        self.sets.iter()
    }

    /// Returns the number of sets.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// Adds the run of numbers from `first` on below `end`, at or after all before it: it continues the last run, or the last set if it
    /// is as regular. Returns whether there was room.
    pub fn add_run(&mut self, first: u64, end: u64) -> bool {
        let (Some(last), true) = (self.sets.back_mut(), first < end) else {
            return first >= end || self.push(Set::run(first, end));
        };
        let length = end - first;
        if last.stride == 0 {
            if first == last.end {
                last.end = end;
                return true;
            }
            let run = last.end - last.first;
            let stride = first - last.first;
            if let (Ok(run), Ok(stride)) = (u32::try_from(run), u32::try_from(stride))
                && length <= u64::from(run)
            {
                (last.stride, last.length, last.end) = (stride, run, end);
                return true;
            }
            return self.push(Set::run(first, end));
        }
        // A run that ended early may continue, and another one may follow where it is due.
        let (stride, full) = (u64::from(last.stride), u64::from(last.length));
        let start = last.first + (last.end - 1 - last.first) / stride * stride;
        let continues = first == last.end && end - start <= full;
        let has_room = first - last.first < stride.saturating_mul(MAX_PERIODS);
        let is_next = last.end == start + full && first == start + stride;
        let follows = is_next && length <= full && has_room;
        if continues || follows {
            last.end = end;
            return true;
        }
        // The first run of the set was only the rest of one: a longer one begins another set, which is regular again.
        if first == last.end {
            *last = match start - last.first {
                0 => return self.replace_last(Set::run(start, end)),
                span if span == stride => Set::run(last.first, last.first + full),
                span => Set {
                    end: last.first + span - stride + full,
                    ..*last
                },
            };
            return self.push(Set::run(start, end));
        }
        self.push(Set::run(first, end))
    }

    fn replace_last(&mut self, set: Set) -> bool {
        self.sets.pop_back();
        self.push(set)
    }

    fn push(&mut self, set: Set) -> bool {
        let has_room = self.sets.len() < MAX_SETS;
        if has_room {
            self.sets.push_back(set);
        }
        has_room
    }

    /// Adds a declared set as far as it is not below `known`. Returns whether there was room.
    pub fn add(&mut self, set: Set, known: u64) -> bool {
        set.from(known)
            .into_iter()
            .flatten()
            .all(|part| self.push(part))
    }

    /// Calls `rest` with each run of numbers from `first` on below `end` that is in no set.
    pub fn outside(&self, first: u64, end: u64, mut rest: impl FnMut(u64, u64)) {
        let mut from = first;
        let place = self.sets.partition_point(|set| set.end <= first);
        for set in self.sets.range(place..) {
            if set.first >= end {
                break;
            }
            while let Some((start, stop)) = set.run_after(from) {
                if from >= end || start >= end {
                    break;
                }
                if start > from {
                    rest(from, start);
                }
                from = stop.min(end);
            }
        }
        if from < end {
            rest(from, end);
        }
    }

    /// Forgets the sets that end at or below `number`. Returns how many numbers these had.
    pub fn forget(&mut self, number: u64) -> u64 {
        let mut count = 0;
        while let Some(set) = self.sets.pop_front_if(|set| set.end <= number) {
            count += set.count_below(set.end);
        }
        count
    }

    /// Forgets all numbers below `number`, also those of a set that continues.
    pub fn trim(&mut self, number: u64) {
        self.forget(number);
        let Some(set) = self.sets.pop_front_if(|set| set.first < number) else {
            return;
        };
        for part in set.from(number).into_iter().flatten().rev() {
            self.sets.push_front(part);
        }
    }

    /// Returns how many numbers below this one are in the sets.
    pub fn count_below(&self, number: u64) -> u64 {
        self.sets.iter().map(|set| set.count_below(number)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(declared: &Declared, until: u64) -> BTreeSet<u64> {
        let mut all: BTreeSet<u64> = (0..until).collect();
        declared.outside(0, until, |first, end| {
            for number in first..end {
                assert!(all.remove(&number), "{number} twice");
            }
        });
        all
    }

    #[test]
    fn regular_runs_are_one_set() {
        // The last of 4 threads of frames of 8 datagrams, a few datagrams at a time.
        let mut declared = Declared::default();
        for frame in 0..1000 {
            let first = frame * 32 + 24;
            assert!(declared.add_run(first, first + 3));
            assert!(declared.add_run(first + 3, first + 8));
        }
        // The first run becomes known to be longer only after the first stride.
        assert!(declared.len() <= 2, "{declared:?}");
        assert_eq!(declared.count_below(u64::MAX), 8000);
        assert_eq!(declared.count_below(32), 8);
        assert_eq!(declared.forget(u64::MAX), 8000);
    }

    /// Half of all frames for hours: what the receiver has confirmed takes no room in a beat.
    #[test]
    fn confirmed_numbers_are_forgotten_while_the_set_continues() {
        let mut declared = Declared::default();
        for frame in 0..3_000_000u64 {
            assert!(declared.add_run(frame * 16 + 8, frame * 16 + 16));
            if frame % 1000 == 0 {
                declared.trim(frame * 16 + frame % 16);
                assert!(declared.len() <= 3);
                let first = declared.sets().next().map(|set| set.first);
                assert!(first.is_some_and(|first| first >= frame * 16));
            }
        }
        assert_eq!(declared.count_below(3_000_000 * 16), 8 * 1000);
    }

    /// Wherever the receiver's knowledge ends, the runs after it make one set again.
    #[test]
    fn runs_are_regular_again_after_the_rest_of_one() {
        for rest in 8..16 {
            let mut declared = Declared::default();
            let shed = |declared: &mut Declared, frames: std::ops::Range<u64>| {
                for number in frames.flat_map(|frame| frame * 16 + 8..frame * 16 + 16) {
                    assert!(declared.add_run(number, number + 1));
                }
            };
            shed(&mut declared, 0..100);
            declared.trim(99 * 16 + rest);
            shed(&mut declared, 100..1000);
            assert!(declared.len() <= 3, "{rest}: {}", declared.len());
            assert_eq!(declared.count_below(u64::MAX), 900 * 8 + 16 - rest);
        }
    }

    proptest! {
        /// Numbers in steps of shed and sent ones, declared in pieces and with repetitions: the receiver knows the same ones.
        #[test]
        fn both_ends_know_the_same_numbers(
            steps in proptest::collection::vec((0u64..9, 1u64..9, 1u64..5), 1..60),
            cuts in proptest::collection::vec(0u64..600, 0..6),
        ) {
            let (mut sender, mut receiver) = (Declared::default(), Declared::default());
            let mut truth = BTreeSet::new();
            let (mut next, mut known) = (0, 0);
            let mut cuts = cuts.into_iter().peekable();
            for (sent, shed, times) in steps {
                for _ in 0..times {
                    next += sent;
                    // As a flow sheds: datagram by datagram.
                    for number in next..next + shed {
                        truth.insert(number);
                        prop_assert!(sender.add_run(number, number + 1));
                    }
                    next += shed;
                    if let Some(cut) = cuts.next_if(|cut| *cut < next) {
                        let _ = cut;
                        for set in sender.sets() {
                            prop_assert!(receiver.add(*set, known));
                        }
                        known = next;
                        sender.trim(known / 2);
                    }
                }
            }
            for set in sender.sets() {
                prop_assert!(receiver.add(*set, known));
            }
            prop_assert_eq!(numbers(&receiver, next), truth.clone());
            prop_assert_eq!(receiver.count_below(next), truth.len() as u64);
            for number in [next / 3, next / 2, next] {
                let below = truth.range(..number).count() as u64;
                prop_assert_eq!(receiver.count_below(number), below);
            }
        }

        #[test]
        fn any_set_ends(first: u64, end: u64, stride: u32, length: u32, from: u64, known: u64, number: u64) {
            let set = Set { first, end, stride, length };
            prop_assert!(set.count_below(number) <= end.saturating_sub(first));
            let mut declared = Declared::default();
            declared.add(set, known);
            let mut left = 0u64;
            declared.outside(from, from.saturating_add(1000), |first, end| left += end - first);
            prop_assert!(left <= 1000);
        }
    }
}
