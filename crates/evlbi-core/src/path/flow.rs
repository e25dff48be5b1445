//! Effects of cells on one numbered flow, counted as the ground truth for a receiver's accounting.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::cell::Identity;
use super::law::{Law, Loss, Until};
use super::network::{CellId, Network, Output};
use super::train::{Piece, Train};
use crate::account::{Bin, table};
use crate::time::Nanos;

/// Effects of the path, as fractions of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Impairment {
    /// Loss fraction.
    pub loss: f64,
    /// Fraction delivered twice.
    pub duplicate: f64,
    /// Fraction held back until `distance` later packets have passed.
    pub reorder: f64,
    /// Number of packets that overtake one that is held back.
    pub distance: u32,
}

/// Effects of a path on the packets of one flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Truth {
    /// Packets that entered.
    pub offered: u64,
    /// Packets that left once or twice.
    pub delivered: u64,
    /// Packets lost between the first and the last delivered ones.
    pub lost: u64,
    /// Packets lost before the first delivered one.
    pub lost_before: u64,
    /// Packets lost after the last delivered one.
    pub lost_after: u64,
    /// Duplicates that left.
    pub duplicates: u64,
    /// Packets (without duplicates) that left after one with a higher number: RFC 4737's Type-P-Reordered.
    pub reordered: u64,
    /// Runs of consecutive lost packets between the first and the last delivered one: length to count.
    pub runs: BTreeMap<u64, u64>,
    /// The same as a table.
    pub runs_table: Vec<Bin>,
}

/// Path of one flow: cells that drop, hold back and duplicate, and the result as a receiver sees it.
#[derive(Debug)]
pub struct Path {
    network: Network<Numbered>,
    route: usize,
    loss: CellId,
    /// Number of packets that entered. It serves as the clock, as nothing here depends on time.
    now: Nanos,
    /// Number of the last packet that left.
    last: Option<u64>,
    highest: Option<u64>,
    /// Number of packets lost since the last one that was not, in the order of the numbers.
    run: u64,
    has_survived: bool,
    truth: Truth,
}

#[derive(Clone, Debug)]
struct Numbered {
    number: u64,
    packet: Arc<[u8]>,
}

impl Identity for Numbered {
    fn identity(&self, _segment: u16) -> u64 {
        self.number
    }
}

impl Path {
    /// Makes a path whose random choices follow from `seed`.
    pub fn new(impairment: Impairment, seed: u64) -> Path {
        let laws = [
            Law::Loss(Loss::Random {
                fraction: impairment.loss,
            }),
            Law::Reorder {
                fraction: impairment.reorder,
                until: Until::Passed(impairment.distance),
            },
            Law::Duplicate {
                fraction: impairment.duplicate,
            },
        ];
        let mut network = Network::new();
        let line = network.line(laws, seed);
        Path {
            route: network.route(&[&line]),
            loss: line.cells[0],
            network,
            now: Nanos(0),
            last: None,
            highest: None,
            run: 0,
            has_survived: false,
            truth: Truth::default(),
        }
    }

    /// Passes a packet. The sender numbers packets in ascending order, each number once. `emit` is called for each packet that
    /// leaves now.
    pub fn push(&mut self, number: u64, packet: &[u8], emit: impl FnMut(&[u8])) {
        self.truth.offered += 1;
        let lost = self.network.cell(self.loss).truth().dropped;
        let train = Train::single(u32::try_from(packet.len()).unwrap_or(u32::MAX));
        let packet = Numbered {
            number,
            packet: packet.into(),
        };
        let piece = Piece::whole(self.now, &train);
        self.network.offer(self.route, packet, train, piece, 0);
        self.advance(self.now, emit);
        self.now = self.now.plus(Nanos(1));
        if self.network.cell(self.loss).truth().dropped > lost {
            self.run += 1;
        } else {
            self.survived();
        }
    }

    /// Ends the flow: packets that are held back leave.
    pub fn flush(&mut self, emit: impl FnMut(&[u8])) {
        self.advance(Nanos(u64::MAX), emit);
    }

    /// Returns the effects so far. Complete after [`Path::flush`].
    pub fn truth(&self) -> Truth {
        Truth {
            lost_after: self.run,
            runs_table: table(&self.truth.runs),
            ..self.truth.clone()
        }
    }

    /// Attributes the run of lost packets before a packet that was not lost.
    fn survived(&mut self) {
        let run = std::mem::take(&mut self.run);
        if !std::mem::replace(&mut self.has_survived, true) {
            self.truth.lost_before = run;
        } else if run > 0 {
            self.truth.lost += run;
            *self.truth.runs.entry(run).or_default() += 1;
        }
    }

    fn advance(&mut self, until: Nanos, mut emit: impl FnMut(&[u8])) {
        let (truth, last, highest) = (&mut self.truth, &mut self.last, &mut self.highest);
        self.network.advance(until, |output| {
            let Output::Delivered { packet, .. } = output else {
                return;
            };
            emit(&packet.packet);
            // The duplicate follows directly.
            if last.replace(packet.number) == Some(packet.number) {
                truth.duplicates += 1;
                return;
            }
            truth.delivered += 1;
            if highest.is_some_and(|highest| packet.number < highest) {
                truth.reordered += 1;
            }
            *highest = (*highest).max(Some(packet.number));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(impairment: Impairment, seed: u64, count: u64) -> (Vec<u64>, Truth) {
        let mut path = Path::new(impairment, seed);
        let mut out = Vec::new();
        let mut emit = |packet: &[u8]| out.push(u64::from_le_bytes(packet.try_into().unwrap()));
        for number in 0..count {
            path.push(number, &number.to_le_bytes(), &mut emit);
        }
        path.flush(&mut emit);
        (out, path.truth())
    }

    #[test]
    fn a_clean_path_changes_nothing() {
        let clean = Impairment {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            distance: 3,
        };
        let (out, truth) = run(clean, 1, 100);
        assert_eq!(out, (0..100).collect::<Vec<_>>());
        assert_eq!(
            truth,
            Truth {
                offered: 100,
                delivered: 100,
                ..Truth::default()
            }
        );
    }

    #[test]
    fn a_held_packet_is_overtaken_by_the_given_number() {
        let all = Impairment {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.02,
            distance: 5,
        };
        let (out, truth) = run(all, 4, 10_000);
        assert_eq!(out.len(), 10_000);
        assert!(truth.reordered > 100);
        let mut as_far_as_said = 0;
        for (place, number) in out.iter().enumerate() {
            let overtaken = out[..place].iter().filter(|other| *other > number).count();
            assert!(overtaken <= 5, "{number} was overtaken by {overtaken}");
            as_far_as_said += u64::from(overtaken == 5);
        }
        // Fewer only if two are delayed together, or at the end.
        assert!(
            as_far_as_said * 10 > truth.reordered * 8,
            "{as_far_as_said}"
        );
    }

    #[test]
    fn every_impairment_happens_as_often_as_asked() {
        let asked = Impairment {
            loss: 0.1,
            duplicate: 0.05,
            reorder: 0.03,
            distance: 4,
        };
        let count = 200_000;
        let (_, truth) = run(asked, 11, count);
        let lost = truth.lost + truth.lost_before + truth.lost_after;
        assert_eq!(truth.offered, truth.delivered + lost);
        for (happened, of, fraction) in [
            (lost, count, 0.1),
            (truth.duplicates, truth.delivered, 0.05),
            // A delayed packet is late unless the four after it are delayed, too, which does not happen here.
            (truth.reordered, truth.delivered, 0.03),
        ] {
            let sigma = (of as f64 * fraction * (1.0 - fraction)).sqrt();
            let off = happened as f64 - of as f64 * fraction;
            assert!(off.abs() < 4.0 * sigma, "{happened} of {of}, {fraction}");
        }
    }

    #[test]
    fn what_happens_follows_from_the_seed() {
        let all = Impairment {
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
            distance: 3,
        };
        assert_eq!(run(all, 5, 2000), run(all, 5, 2000));
        assert_ne!(run(all, 5, 2000).0, run(all, 6, 2000).0);
    }

    proptest! {
        #[test]
        fn the_ground_truth_matches_the_output(
            loss in 0.0f64..0.6, duplicate in 0.0f64..0.3, reorder in 0.0f64..0.3,
            distance in 1u32..20, seed: u64, count in 1u64..400,
        ) {
            let (out, truth) = run(Impairment { loss, duplicate, reorder, distance }, seed, count);
            let unique: std::collections::BTreeSet<u64> = out.iter().copied().collect();
            prop_assert_eq!(truth.delivered, unique.len() as u64);
            prop_assert_eq!(truth.duplicates, out.len() as u64 - truth.delivered);
            if let (Some(first), Some(last)) = (unique.first(), unique.last()) {
                prop_assert_eq!(truth.lost_before, *first);
                prop_assert_eq!(truth.lost_after, count - 1 - last);
                prop_assert_eq!(truth.lost, last - first + 1 - truth.delivered);
                let in_runs: u64 = truth.runs.iter().map(|(length, count)| length * count).sum();
                prop_assert_eq!(in_runs, truth.lost);
            }
            let mut seen = std::collections::BTreeSet::new();
            let reordered = out.iter().filter(|number| {
                let late = seen.last().is_some_and(|highest| *number < highest);
                seen.insert(**number) && late
            }).count() as u64;
            prop_assert_eq!(truth.reordered, reordered);
        }
    }
}
