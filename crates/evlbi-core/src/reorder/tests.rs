use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn settings() -> Settings {
    Settings {
        window: 8,
        hold: Nanos(100 * MS),
        capacity: 32,
        max_gap: 1000,
    }
}

/// A window whose consumer frees at once, and what lies in the recording.
struct Recording {
    reorder: Reorder,
    now: u64,
    placed: BTreeMap<u64, u64>,
    kept: Option<u64>,
    handed: u64,
    verdicts: Vec<Verdict>,
    events: Vec<(u64, Event)>,
}

impl Recording {
    fn new(settings: Settings) -> Recording {
        Recording {
            reorder: Reorder::new(settings),
            now: 0,
            placed: BTreeMap::new(),
            kept: None,
            handed: 0,
            verdicts: Vec::new(),
            events: Vec::new(),
        }
    }

    fn receive(&mut self, sequence: u64) -> &mut Recording {
        let verdict = self.reorder.offer(sequence, self.handed);
        self.verdicts.push(verdict);
        match verdict {
            Verdict::Place(position) => {
                assert!(position >= self.handed && position < self.handed + 32);
                assert_eq!(self.placed.insert(position, sequence), None, "placed twice");
            }
            Verdict::Keep => self.kept = Some(sequence),
            Verdict::Replay => {
                let kept = self.kept.take().expect("a kept datagram");
                self.receive(kept).receive(sequence);
            }
            _ => {}
        }
        self.hand_on()
    }

    fn hand_on(&mut self) -> &mut Recording {
        self.handed = self.reorder.advance(Nanos(self.now));
        while let Some(event) = self.reorder.next_event() {
            self.events.push(event);
        }
        self
    }

    fn receive_all(&mut self, sequences: impl IntoIterator<Item = u64>) -> &mut Recording {
        for sequence in sequences {
            self.receive(sequence);
        }
        self
    }

    fn later(&mut self, millis: u64) -> &mut Recording {
        self.now += millis * MS;
        self.hand_on()
    }

    /// Numbers in the order of their positions.
    fn content(&self) -> Vec<u64> {
        self.placed.values().copied().collect()
    }
}

/// Figure 3-5 of the EXPReS report: packets are missing before the next one received, so it moves
/// forward; a missing one that comes later moves back; the next one goes on where the last was.
#[test]
fn ring_move() {
    let mut recording = Recording::new(settings());
    recording.receive_all([0, 1, 4]);
    assert_eq!(recording.placed, [(0, 0), (1, 1), (4, 4)].into());
    recording.receive(2);
    assert_eq!(recording.verdicts.last(), Some(&Verdict::Place(2)));
    recording.receive_all([5, 3, 6]);
    assert_eq!(recording.content(), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(recording.handed, 7);
    let counters = recording.reorder.counters();
    assert_eq!((counters.lost, counters.reordered), (0, 2));
}

#[test]
fn what_is_complete_is_handed_on_at_once() {
    let mut recording = Recording::new(settings());
    recording.receive_all([100, 101]);
    assert_eq!(recording.handed, 2);
    recording.receive(103);
    assert_eq!(recording.handed, 2);
    recording.receive(102);
    assert_eq!(recording.handed, 4);
}

#[test]
fn a_hole_is_waited_for_until_the_window_has_gone_by() {
    let mut recording = Recording::new(settings());
    recording.receive_all([0, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(recording.handed, 1);
    recording.receive(9);
    assert_eq!(recording.handed, 10);
    recording.receive(1);
    assert_eq!(recording.verdicts.last(), Some(&Verdict::Late));
    let counters = recording.reorder.counters();
    assert_eq!((counters.unique, counters.late, counters.lost), (10, 1, 0));
}

#[test]
fn a_hole_is_waited_for_until_the_hold_time_has_gone_by() {
    let mut recording = Recording::new(settings());
    recording.receive_all([0, 2]).later(99);
    recording.receive(4);
    assert_eq!(recording.handed, 1);
    recording.later(1);
    assert_eq!(recording.handed, 3, "the second hole has not waited yet");
    recording.later(99);
    assert_eq!(recording.handed, 5);
    assert_eq!(recording.receive(1).verdicts.last(), Some(&Verdict::Late));
    assert_eq!(
        recording.receive(1).verdicts.last(),
        Some(&Verdict::Duplicate)
    );
}

#[test]
fn many_holes_do_not_wait_one_after_the_other() {
    let mut recording = Recording::new(Settings {
        window: 1 << 20,
        capacity: 1 << 21,
        ..settings()
    });
    for number in 0..1000u64 {
        recording.placed.clear();
        let verdict = recording.reorder.offer(number * 2, 0);
        assert_eq!(verdict, Verdict::Place(number * 2));
        recording.later(1);
    }
    // Everything older than 100 ms, in steps of a sixty-fourth of that.
    assert!(
        (1790..=1800).contains(&recording.handed),
        "{}",
        recording.handed
    );
}

#[test]
fn a_full_ring_refuses_and_counts() {
    let mut reorder = Reorder::new(settings());
    for number in 0..40 {
        let expected = if number < 32 {
            Verdict::Place(number)
        } else {
            Verdict::RingFull
        };
        assert_eq!(reorder.offer(number, 0), expected);
        reorder.advance(Nanos(0));
    }
    // A window ahead of the newest that was placed: kept until another one says so too.
    assert_eq!(reorder.offer(40, 20), Verdict::Keep);
    let counters = reorder.counters();
    assert_eq!(counters.received, counters.unique + counters.ring_full);
    assert_eq!(counters.expected, counters.unique + counters.lost);
}

#[test]
fn one_wild_number_moves_nothing() {
    let mut recording = Recording::new(settings());
    recording
        .receive_all(0..5)
        .receive(1 << 60)
        .receive_all(5..100);
    recording
        .receive(3 << 50)
        .receive(7 << 55)
        .receive_all(100..110);
    assert_eq!(recording.content(), (0..110).collect::<Vec<_>>());
    recording.reorder.flush();
    let counters = recording.reorder.counters();
    assert_eq!((counters.foreign_sequence, counters.lost), (3, 0));
    assert!(recording.events.is_empty());
}

#[test]
fn a_jump_beyond_the_window_is_a_gap_once_a_second_datagram_says_so() {
    let mut recording = Recording::new(settings());
    recording
        .receive_all(0..5)
        .receive(500)
        .receive(501)
        .receive(502);
    assert_eq!(recording.events, [(5, Event::Gap(495))]);
    assert_eq!(recording.placed[&5], 500);
    assert_eq!(recording.handed, 8);
    assert_eq!(recording.receive(7).verdicts.last(), Some(&Verdict::Late));
    let counters = recording.reorder.counters();
    assert_eq!(
        (counters.expected, counters.lost, counters.restarts),
        (503, 494, 0)
    );
}

#[test]
fn a_sender_that_restarts_begins_a_new_sequence() {
    let mut recording = Recording::new(settings());
    // Beyond the longest gap, backward before the first number, and through the wrap of the numbers.
    recording
        .receive_all(5000..5005)
        .receive_all(90_000..90_004)
        .receive_all(10..14);
    recording.receive_all((0..6).map(|n| (u64::MAX - 2).wrapping_add(n)));
    assert_eq!(
        recording.events,
        [
            (5, Event::Restart),
            (9, Event::Restart),
            (13, Event::Restart)
        ]
    );
    assert_eq!(recording.handed, 19);
    let report = recording.reorder.finish();
    assert_eq!((report.counters.lost, report.counters.unique), (0, 19));
    assert_eq!(report.counters.restarts, 3);
    assert_eq!(report.segments[3].first_seq, u64::MAX - 2);
    assert_eq!(report.segments[3].last_seq, 2);
}

#[test]
fn a_restart_at_numbers_just_seen_is_told_from_duplicates() {
    let mut recording = Recording::new(settings());
    recording.receive_all(0..1000).receive_all(0..1000);
    let counters = recording.reorder.counters();
    assert_eq!(counters.restarts, 1);
    assert_eq!(counters.duplicates, u64::from(REPEATS));
    assert_eq!(counters.unique, 2000 - u64::from(REPEATS));
    // A path that sends everything twice is no restart.
    let mut twice = Recording::new(settings());
    twice.receive_all((0..1000).flat_map(|number| [number, number]));
    let counters = twice.reorder.counters();
    assert_eq!((counters.restarts, counters.duplicates), (0, 1000));
}

#[test]
fn told_to_begin_anew_it_does() {
    let mut recording = Recording::new(settings());
    recording.receive_all([3, 4, 6]);
    recording.reorder.begin(4);
    recording.receive_all([5, 4]);
    assert_eq!(recording.events, [(4, Event::Restart)]);
    assert_eq!(recording.content(), [3, 4, 6, 4, 5]);
}

/// Deliveries: mostly onward, with loss, duplicates, reordering, strays and jumps.
fn deliveries() -> impl Strategy<Value = Vec<u64>> {
    let step = prop_oneof![
        20 => Just((1i64, 0i64)),
        4 => (2i64..6).prop_map(|skip| (skip, 0)),
        4 => (-12i64..0).prop_map(|back| (0, back)),
        1 => Just((0, 1 << 40)),
        1 => (9i64..900).prop_map(|jump| (jump, 0)),
    ];
    (any::<u64>(), proptest::collection::vec(step, 1..500)).prop_map(|(first, steps)| {
        let mut number = first;
        steps
            .into_iter()
            .map(|(onward, aside)| {
                number = number.wrapping_add_signed(onward);
                number.wrapping_add_signed(aside)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn sums_hold_whatever_comes(numbers in deliveries(), stall in 0u64..64, pause in 0u64..30) {
        let mut reorder = Reorder::new(settings());
        let (mut freed, mut now, mut kept, mut offered) = (0u64, 0, None, 0u64);
        let mut placed = BTreeSet::new();
        for (count, number) in numbers.iter().enumerate() {
            let mut queue = vec![*number];
            offered += 1;
            while let Some(number) = queue.pop() {
                match reorder.offer(number, freed) {
                    Verdict::Place(position) => {
                        prop_assert!(placed.insert(position), "position {} twice", position);
                        prop_assert!(position >= freed && position < freed + 32);
                    }
                    Verdict::Keep => kept = Some(number),
                    Verdict::Replay => {
                        queue.push(number);
                        queue.push(kept.take().unwrap());
                    }
                    _ => {}
                }
            }
            now += pause * MS;
            let handed = reorder.advance(Nanos(now));
            if count as u64 % 64 >= stall {
                freed = handed;
            }
            let c = reorder.counters();
            prop_assert_eq!(c.expected, c.unique + c.lost);
            prop_assert_eq!(c.received, c.unique + c.duplicates + c.ring_full);
        }
        let report = reorder.finish();
        let c = &report.counters;
        prop_assert_eq!(c.received + c.foreign_sequence, offered);
        prop_assert_eq!(c.expected, c.unique + c.lost);
        prop_assert_eq!(placed.len() as u64, c.unique - c.late);
        let spans: u64 = report.segments.iter().map(|s| s.last_seq.wrapping_sub(s.first_seq) + 1).sum();
        prop_assert_eq!(spans, c.expected);
        let listed: u64 = report.segments.iter().flat_map(|s| &s.intervals)
            .map(|gap| gap.last.wrapping_sub(gap.first) + 1).sum();
        prop_assert_eq!(listed, c.lost);
    }
}
