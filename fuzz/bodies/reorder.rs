//! Numbers from the network: the sums of the account are correct, and no place is assigned twice.

use std::collections::HashSet;

use evlbi_core::reorder::{Reorder, Settings, Verdict};
use evlbi_core::time::Nanos;

const CAPACITY: u64 = 64;

pub fn run(data: &[u8]) {
    let mut reorder = Reorder::new(Settings {
        window: 16,
        hold: Nanos(1000),
        capacity: CAPACITY,
        max_gap: 1 << 20,
    });
    let (mut now, mut freed, mut offered, mut number) = (0u64, 0, 0u64, 0u64);
    let mut kept = None;
    let mut placed = HashSet::new();
    for step in data.chunks(2) {
        let (kind, amount) = (step[0], u64::from(*step.get(1).unwrap_or(&0)));
        number = match kind % 8 {
            0..=3 => number.wrapping_add(1),
            4 => number.wrapping_add(amount),
            5 => number.wrapping_sub(amount),
            6 => number.wrapping_add(amount << (kind >> 3)),
            _ => amount.wrapping_mul(0x0101_0101_0101_0101),
        };
        now += amount;
        offered += 1;
        let mut queue = vec![number];
        while let Some(number) = queue.pop() {
            let verdict = match reorder.offer(number, freed) {
                Verdict::Strange => reorder.consider(number),
                verdict => verdict,
            };
            match verdict {
                Verdict::Place(position) => {
                    assert!(placed.insert(position), "a place given out twice");
                    assert!((freed..freed + CAPACITY).contains(&position));
                }
                Verdict::Keep => kept = Some(number),
                Verdict::Replay => {
                    queue.push(number);
                    queue.extend(kept.take());
                }
                Verdict::Strange => unreachable!("what is considered is kept, or not"),
                Verdict::Duplicate | Verdict::Late | Verdict::RingFull => {}
            }
        }
        let handed = reorder.advance(Nanos(now));
        if kind & 0x80 == 0 {
            freed = handed;
        }
    }
    let counters = reorder.finish().counters;
    assert_eq!(counters.received + counters.foreign_sequence, offered);
    assert_eq!(counters.expected, counters.unique + counters.lost);
    assert_eq!(
        counters.received,
        counters.unique + counters.duplicates + counters.ring_full
    );
    assert_eq!(placed.len() as u64, counters.unique - counters.late);
}
