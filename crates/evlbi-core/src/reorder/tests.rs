//! Orders of arrival with known slots, and any order compared with a slow model (`truth`).

mod truth;

mod listed;

use std::collections::BTreeMap;

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

/// Any strange number may belong to the stream.
fn offer(reorder: &mut Reorder, sequence: u64, freed: u64) -> Verdict {
    match reorder.offer(sequence, freed) {
        Verdict::Strange => reorder.consider(sequence),
        verdict => verdict,
    }
}

/// A window, and the content of the recording.
struct Recording {
    reorder: Reorder,
    capacity: u64,
    now: u64,
    /// Whether the consumer frees slots at once.
    frees: bool,
    freed: u64,
    placed: BTreeMap<u64, u64>,
    kept: Option<u64>,
    released: u64,
    verdicts: Vec<Verdict>,
    /// First copies in the order in which the window accepted them.
    taken: Vec<u64>,
    events: Vec<(u64, Event)>,
}

impl Recording {
    fn new(settings: Settings) -> Recording {
        Recording {
            reorder: Reorder::new(settings),
            capacity: settings.capacity,
            now: 0,
            frees: true,
            freed: 0,
            placed: BTreeMap::new(),
            kept: None,
            released: 0,
            verdicts: Vec::new(),
            taken: Vec::new(),
            events: Vec::new(),
        }
    }

    fn receive(&mut self, sequence: u64) -> &mut Recording {
        let verdict = offer(&mut self.reorder, sequence, self.freed);
        self.verdicts.push(verdict);
        if matches!(verdict, Verdict::Place(_) | Verdict::Late) {
            self.taken.push(sequence);
        }
        match verdict {
            Verdict::Place(position) => {
                assert!(position >= self.released, "already released");
                assert!(position < self.freed + self.capacity, "not free");
                assert_eq!(self.placed.insert(position, sequence), None, "placed twice");
            }
            Verdict::Keep => self.kept = Some(sequence),
            Verdict::Replay => {
                let kept = self.kept.take().expect("a pending datagram");
                self.receive(kept).receive(sequence);
            }
            _ => {}
        }
        self.hand_on()
    }

    fn hand_on(&mut self) -> &mut Recording {
        self.released = self.reorder.advance(Nanos(self.now));
        if self.frees {
            self.freed = self.released;
        }
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

    /// Ends the stream: a pending datagram is decided, everything is released and the sums hold.
    fn end(&mut self) -> Report {
        if self.reorder.accept_kept() {
            let kept = self.kept.take().expect("a pending datagram");
            self.receive(kept);
        }
        assert_eq!(self.reorder.flush(), self.reorder.head);
        let report = self.reorder.clone().finish();
        assert_sums(&report);
        report
    }

    /// Numbers in the order of their positions.
    fn content(&self) -> Vec<u64> {
        self.placed.values().copied().collect()
    }
}

/// Checks what holds for every report.
fn assert_sums(report: &Report) {
    let c = &report.counters;
    assert_eq!(c.received, c.unique + c.duplicates + c.ring_full, "{c:?}");
    assert_eq!(c.expected, c.unique + c.lost, "{c:?}");
    assert!(c.ring_full <= c.lost && c.late <= c.unique, "{c:?}");
    let listed = report.segments.iter().flat_map(|s| &s.intervals);
    let lost: u64 = listed.map(|gap| gap.last.wrapping_sub(gap.first) + 1).sum();
    assert_eq!(lost, c.lost);
    let spans = report.segments.iter();
    let spans: u64 = spans
        .map(|s| s.last_seq.wrapping_sub(s.first_seq) + 1)
        .sum();
    assert_eq!(spans, c.expected);
    let in_runs: u64 = report
        .runs
        .iter()
        .map(|(length, count)| length * count)
        .sum();
    assert_eq!(in_runs, c.lost);
}

/// Figure 3-5 of the EXPReS report: packets are missing before the next one received, so it moves forward; a missing one that
/// arrives later moves back; the next one continues after the last.
#[test]
fn ring_move() {
    let mut recording = Recording::new(settings());
    recording.receive_all([0, 1, 4]);
    assert_eq!(recording.placed, [(0, 0), (1, 1), (4, 4)].into());
    recording.receive(2);
    assert_eq!(recording.verdicts.last(), Some(&Verdict::Place(2)));
    recording.receive_all([5, 3, 6]);
    assert_eq!(recording.content(), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(recording.released, 7);
    let counters = recording.reorder.counters();
    assert_eq!((counters.lost, counters.reordered), (0, 2));
}

#[test]
fn complete_data_are_released_at_once() {
    let mut recording = Recording::new(settings());
    recording.receive_all([100, 101]);
    assert_eq!(recording.released, 2);
    recording.receive(103);
    assert_eq!(recording.released, 2);
    recording.receive(102);
    assert_eq!(recording.released, 4);
}

#[test]
fn a_gap_stays_open_until_the_window_has_passed() {
    let mut recording = Recording::new(settings());
    recording.receive_all([0, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(recording.released, 1);
    recording.receive(9);
    assert_eq!(recording.released, 10);
    recording.receive(1);
    assert_eq!(recording.verdicts.last(), Some(&Verdict::Late));
    let counters = recording.reorder.counters();
    assert_eq!((counters.unique, counters.late, counters.lost), (10, 1, 0));
}

#[test]
fn a_gap_stays_open_until_the_hold_time_has_passed() {
    let mut recording = Recording::new(settings());
    recording.receive_all([0, 2]).later(99);
    recording.receive(4);
    assert_eq!(recording.released, 1);
    recording.later(1);
    assert_eq!(recording.released, 3, "the second gap has not waited yet");
    recording.later(99);
    assert_eq!(recording.released, 5);
    assert_eq!(recording.receive(1).verdicts.last(), Some(&Verdict::Late));
    assert_eq!(
        recording.receive(1).verdicts.last(),
        Some(&Verdict::Duplicate)
    );
}

#[test]
fn many_gaps_do_not_wait_one_after_the_other() {
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
    // Everything older than 100 ms, in steps of 1/64 of that.
    assert!(
        (1790..=1800).contains(&recording.released),
        "{}",
        recording.released
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
        assert_eq!(offer(&mut reorder, number, 0), expected);
        reorder.advance(Nanos(0));
    }
    // A window ahead of the newest that was placed: kept until another one confirms it.
    assert_eq!(offer(&mut reorder, 40, 20), Verdict::Keep);
    let counters = reorder.counters();
    assert_eq!(counters.received, counters.unique + counters.ring_full);
    assert_eq!(counters.expected, counters.unique + counters.lost);
}

#[test]
fn one_wild_number_moves_nothing() {
    let mut recording = Recording::new(settings());
    assert_eq!(recording.reorder.ends(), None);
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
    assert_eq!(recording.reorder.ends(), Some((0, 109)));
    let counters = recording.reorder.counters();
    assert_eq!((counters.foreign_sequence, counters.lost), (3, 0));
    assert!(recording.events.is_empty());
}

#[test]
fn a_jump_beyond_the_window_is_a_gap_once_a_second_datagram_confirms_it() {
    let mut recording = Recording::new(settings());
    recording
        .receive_all(0..5)
        .receive(500)
        .receive(501)
        .receive(502);
    assert_eq!(recording.events, [(5, Event::Gap(495))]);
    assert_eq!(recording.placed[&5], 500);
    assert_eq!(recording.released, 8);
    assert_eq!(recording.receive(7).verdicts.last(), Some(&Verdict::Late));
    let counters = recording.reorder.counters();
    assert_eq!(
        (counters.expected, counters.lost, counters.restarts),
        (503, 494, 0)
    );
}

#[test]
fn the_longest_gap_is_a_gap_and_a_longer_one_is_a_restart() {
    for (jump, event) in [(1000, Event::Gap(1000)), (1001, Event::Restart(0))] {
        let mut recording = Recording::new(settings());
        recording
            .receive_all(0..5000)
            .receive_all(5000 + jump..5003 + jump);
        assert_eq!(recording.events, [(5000, event)]);
    }
}

/// The consumer gets all events, however late it asks.
#[test]
fn events_with_data_between_stay_apart() {
    let mut reorder = Reorder::new(settings());
    for (number, verdict) in [
        (0, Verdict::Place(0)),
        (500, Verdict::Keep),
        (501, Verdict::Replay),
        (500, Verdict::Place(1)),
        (501, Verdict::Place(2)),
        (900, Verdict::Keep),
        (901, Verdict::Replay),
        (900, Verdict::Place(3)),
        (90_000, Verdict::Keep),
        (90_001, Verdict::Replay),
        (90_000, Verdict::Place(4)),
    ] {
        assert_eq!(offer(&mut reorder, number, 0), verdict);
    }
    assert_eq!(reorder.next_event(), Some((1, Event::Gap(499))));
    assert_eq!(reorder.next_event(), Some((3, Event::Gap(398))));
    assert_eq!(reorder.next_event(), Some((4, Event::Restart(0))));
    assert_eq!(reorder.next_event(), None);
}

#[test]
fn gaps_without_data_between_are_one() {
    let mut reorder = Reorder::new(settings());
    for number in 0..32 {
        assert_eq!(offer(&mut reorder, number, 0), Verdict::Place(number));
    }
    for (number, verdict) in [
        (500, Verdict::Keep),
        (501, Verdict::Replay),
        (500, Verdict::RingFull),
        (501, Verdict::RingFull),
        (1000, Verdict::Keep),
        (1001, Verdict::Replay),
    ] {
        assert_eq!(offer(&mut reorder, number, 0), verdict);
    }
    assert_eq!(reorder.next_event(), Some((32, Event::Gap(968))));
    assert_eq!(reorder.next_event(), None);
}

#[test]
fn a_second_datagram_confirms_less_than_a_window_away() {
    let mut recording = Recording::new(settings());
    recording.receive_all(0..5).receive_all([500, 508]);
    assert_eq!(recording.verdicts.last(), Some(&Verdict::Keep));
    recording.receive(515);
    assert_eq!(recording.events, [(5, Event::Gap(503))]);
    let report = recording.end();
    assert_eq!(report.counters.foreign_sequence, 1);
}

#[test]
fn a_second_datagram_confirms_within_some_others() {
    for (others, verdict) in [(64, Verdict::Replay), (65, Verdict::Keep)] {
        let mut recording = Recording::new(settings());
        recording
            .receive_all(0..5)
            .receive(500)
            .receive_all(5..5 + others);
        assert_eq!(offer(&mut recording.reorder, 501, recording.freed), verdict);
    }
}

#[test]
fn a_sender_that_restarts_starts_a_new_sequence() {
    let mut recording = Recording::new(settings());
    // Beyond the maximum gap, backward before the first number, and through the wrap of the numbers.
    recording
        .receive_all(5000..5005)
        .receive_all(90_000..90_004)
        .receive_all(10..14);
    recording.receive_all((0..6).map(|n| (u64::MAX - 2).wrapping_add(n)));
    assert_eq!(
        recording.events,
        [
            (5, Event::Restart(0)),
            (9, Event::Restart(0)),
            (13, Event::Restart(0))
        ]
    );
    assert_eq!(recording.released, 19);
    let report = recording.reorder.finish();
    assert_eq!((report.counters.lost, report.counters.unique), (0, 19));
    assert_eq!(report.counters.restarts, 3);
    assert_eq!(report.segments[3].first_seq, u64::MAX - 2);
    assert_eq!(report.segments[3].last_seq, 2);
}

#[test]
fn a_restart_at_recent_numbers_differs_from_duplicates() {
    let mut recording = Recording::new(settings());
    recording.receive_all(0..1000).receive_all(0..1000);
    let report = recording.end();
    let c = &report.counters;
    let missed = REPEATS as u64;
    assert_eq!((c.restarts, c.unique, c.duplicates), (1, 2000, 0));
    assert_eq!((c.lost, c.late), (0, missed), "arrivals until then");
    assert_eq!(report.segments[1].first_seq, 0);
    assert_eq!(recording.events, [(1000, Event::Restart(0))]);
    assert_eq!(recording.placed[&1000], missed);
    // A path that duplicates everything is not a restart, one by one or a large block at a time.
    let mut twice = Recording::new(settings());
    twice.receive_all((0..1000).flat_map(|number| [number, number]));
    for block in 0..10 {
        let block = 1000 + block * missed..1000 + (block + 1) * missed;
        twice.receive_all(block.clone()).receive_all(block);
    }
    let c = twice.end().counters;
    assert_eq!((c.restarts, c.duplicates), (0, c.unique));
}

#[test]
fn a_restart_is_detected_through_the_gaps_of_both_sequences() {
    let mut recording = Recording::new(settings());
    recording.receive_all((0..20_000).filter(|number| number % 10 != 3));
    recording.receive_all((0..20_000).filter(|number| number % 10 != 7));
    let report = recording.end();
    let c = &report.counters;
    assert_eq!((c.restarts, c.duplicates), (1, 0));
    // Where the first sequence had gaps, the few that arrived before the restart was detected count there.
    assert_eq!(c.unique, 36_000);
    assert!(c.late < 80, "{}", c.late);
}

#[test]
fn a_restart_at_numbers_that_never_arrived_is_detected_after_a_window() {
    let mut recording = Recording::new(settings());
    recording
        .receive_all(0..50)
        .receive_all(900..950)
        .receive_all(100..400);
    let c = recording.end().counters;
    assert_eq!((c.restarts, c.late), (1, REPEATS as u64));
    assert_eq!(c.unique, 400);
    // A few late ones are not a restart.
    let mut late = Recording::new(settings());
    late.receive_all(0..50).receive_all(900..950);
    late.receive_all(100..150)
        .receive(950)
        .receive_all(150..200);
    let c = late.end().counters;
    assert_eq!((c.restarts, c.late), (0, 100));
}

#[test]
fn a_restart_takes_no_place_that_is_not_free() {
    let mut recording = Recording::new(Settings {
        capacity: 128,
        ..settings()
    });
    recording.frees = false;
    recording.receive_all(0..128).receive_all(0..128);
    let c = recording.end().counters;
    assert_eq!((c.restarts, c.unique, c.ring_full), (1, 192, 64));
    assert_eq!(recording.placed.len(), 128);
}

#[test]
fn datagrams_sent_before_the_first_count_and_are_late() {
    let mut recording = Recording::new(settings());
    recording.receive_all([100, 101, 98, 99, 102, 92, 103]);
    let report = recording.end();
    let c = &report.counters;
    assert_eq!((c.restarts, c.foreign_sequence, c.late), (0, 0, 3));
    assert_eq!((c.unique, c.expected, c.reordered), (7, 12, 3));
    assert_eq!(report.segments[0].first_seq, 92);
    assert_eq!(recording.content(), [100, 101, 102, 103]);
    // Further before than a window it is another sequence.
    let mut other = Recording::new(settings());
    other.receive_all([100, 101, 91, 102]);
    assert_eq!(other.end().counters.foreign_sequence, 1);
}

#[test]
fn copies_of_a_pending_datagram_are_duplicates_if_it_is_accepted() {
    let mut recording = Recording::new(settings());
    recording
        .receive_all(0..5)
        .receive_all([500, 500, 501, 501, 502, 502]);
    let c = recording.end().counters;
    assert_eq!((c.unique, c.duplicates, c.foreign_sequence), (8, 3, 0));
    let mut stray = Recording::new(settings());
    stray
        .receive_all(0..5)
        .receive_all([1 << 40, 1 << 40, 5, 6]);
    let c = stray.end().counters;
    assert_eq!((c.unique, c.duplicates, c.foreign_sequence), (7, 0, 2));
}

#[test]
fn a_gap_before_the_very_last_datagram_is_believed() {
    let mut recording = Recording::new(settings());
    recording.receive_all(0..5).receive(500);
    let report = recording.end();
    let c = &report.counters;
    assert_eq!((c.expected, c.lost, c.foreign_sequence), (501, 495, 0));
    assert_eq!(recording.events, [(5, Event::Gap(495))]);
    assert_eq!(recording.placed[&5], 500);
    // A wild number, or one long gone, is not accepted.
    for wild in [1 << 40, u64::MAX - 100] {
        let mut recording = Recording::new(settings());
        recording.receive_all(0..5).receive(wild);
        let c = recording.end().counters;
        assert_eq!((c.expected, c.foreign_sequence), (5, 1));
    }
}

#[test]
fn a_datagram_that_was_too_early_is_placed_when_the_others_have_caught_up() {
    let mut recording = Recording::new(settings());
    recording
        .receive_all([0, 1, 2, 12])
        .receive_all(3..12)
        .receive_all(13..20);
    let c = recording.end().counters;
    assert_eq!((c.lost, c.foreign_sequence, c.late), (0, 0, 0));
    assert_eq!(recording.content(), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_copy_of_a_datagram_that_the_full_ring_refused_is_not_a_second_loss() {
    let mut recording = Recording::new(settings());
    recording.frees = false;
    recording.receive_all(0..34).receive(33);
    let c = recording.reorder.counters();
    assert_eq!((c.lost, c.ring_full, c.duplicates), (2, 2, 1));
    recording.frees = true;
    recording.hand_on().receive_all([33, 32, 34]);
    let c = recording.end().counters;
    assert_eq!((c.lost, c.ring_full, c.duplicates, c.late), (0, 0, 3, 0));
    assert_eq!(recording.content(), (0..35).collect::<Vec<_>>());
}

#[test]
fn a_ring_that_stays_full_for_long_makes_one_gap() {
    let mut recording = Recording::new(settings());
    recording.receive_all(0..10);
    recording.frees = false;
    recording.receive_all(10..5000);
    let c = recording.reorder.counters();
    assert_eq!((c.unique, c.ring_full, c.lost), (42, 4958, 4958));
    recording.frees = true;
    recording.hand_on().receive_all(5000..5010);
    let c = recording.end().counters;
    assert_eq!((c.unique, c.ring_full, c.lost), (52, 4958, 4958));
    let gaps: u64 = recording
        .events
        .iter()
        .map(|(_, event)| match event {
            Event::Gap(missing) => *missing,
            Event::Restart(_) => panic!("no restart"),
        })
        .sum();
    // Slots that are not in a gap event have their place in the ring.
    let places = recording.placed.last_key_value().unwrap().0 + 1;
    assert_eq!(gaps + places, 5010);
    assert_eq!(recording.placed.last_key_value().unwrap().1, &5009);
}

#[test]
fn events_that_nobody_takes_stay_few() {
    let mut reorder = Reorder::new(settings());
    for round in 0..10_000u64 {
        // Two sequences far apart, in turn; then gaps in each.
        let start = ((round % 2) << 50) + (round * 20) % 4000;
        for number in [start, start + 1, start + 300, start + 301] {
            if offer(&mut reorder, number, 0) == Verdict::Replay {
                reorder.offer(number - 1, 0);
                offer(&mut reorder, number, 0);
            }
        }
    }
    assert!(reorder.counters().restarts > 5000);
    assert!(reorder.events.len() <= 3 * 33, "{}", reorder.events.len());
}

#[test]
fn odd_settings_are_made_to_work() {
    for (window, capacity) in [(0, 32), (1000, 32), (u64::MAX, 32), (1 << 23, 1 << 24)] {
        let mut recording = Recording::new(Settings {
            window,
            capacity,
            ..settings()
        });
        recording.receive_all((0..500).chain(510..600));
        let c = recording.end().counters;
        assert_eq!((c.unique, c.lost), (590, 10), "window {window}");
    }
    // A ring without slots refuses everything.
    let mut recording = Recording::new(Settings {
        capacity: 0,
        ..settings()
    });
    recording.receive_all(0..500);
    let c = recording.end().counters;
    assert_eq!((c.received, c.ring_full), (500, 500));
}

/// Longer than the default history.
#[test]
fn a_very_long_window_is_remembered() {
    let window = 1 << 23;
    let mut reorder = Reorder::new(Settings {
        window,
        capacity: 2 * window,
        ..settings()
    });
    for number in (0..window).step_by(2) {
        assert_eq!(offer(&mut reorder, number, 0), Verdict::Place(number));
    }
    assert_eq!(reorder.advance(Nanos(0)), 1);
    assert_eq!(reorder.offer(1, 0), Verdict::Place(1));
    assert_eq!(reorder.offer(2, 0), Verdict::Duplicate);
    assert_eq!(reorder.advance(Nanos(0)), 3);
}

#[test]
fn numbers_from_all_over_overflow_nothing() {
    let mut recording = Recording::new(Settings {
        max_gap: u64::MAX,
        ..settings()
    });
    let far = [1 << 40, 1 << 61, u64::MAX - 3, 1 << 63, 0, 1 << 62, 7];
    for start in far.into_iter().cycle().take(40) {
        recording.receive_all((0..3).map(|n| n + start));
    }
    assert!(recording.reorder.counters().restarts > 10);
}

#[test]
fn a_new_sequence_starts_on_request() {
    let mut recording = Recording::new(settings());
    recording.receive_all([3, 4, 6]);
    recording.reorder.begin(4, 0);
    recording.receive_all([5, 4]);
    assert_eq!(recording.events, [(4, Event::Restart(0))]);
    assert_eq!(recording.content(), [3, 4, 6, 4, 5]);
}
