//! One block at every station: its place, and its valid parts.

use std::ops::Range;

use evlbi_wire::validity::Intervals;

use super::setup::{Input, Setup};
use crate::delay::OutsideModel;
use crate::track::Slab;

/// Block of all stations.
#[derive(Default)]
pub struct Block {
    pub stations: Vec<Placed>,
    /// Whether some of it is valid and some not, at some station.
    pub is_partial: bool,
}

/// Block at one station.
#[derive(Default)]
pub struct Placed {
    /// Number of its first sample.
    pub first: i64,
    /// Total delay in the middle of the block, s.
    pub delay: f64,
    /// Delay rate, s/s.
    pub rate: f64,
    /// Rest of the delay after the whole samples, s.
    pub residual: f64,
    /// Valid parts of each thread.
    pub lanes: Vec<Good>,
}

/// Validity of a block.
#[derive(Clone, Debug, PartialEq)]
pub enum Good {
    All,
    Nothing,
    /// Valid parts, counted from the start of the block.
    Some(Intervals),
}

impl Block {
    /// Finds the place and the valid parts of block `number`, in place of another one.
    pub fn look(&mut self, setup: &Setup, slabs: &[Slab], number: i64) -> Result<(), OutsideModel> {
        self.stations.resize_with(slabs.len(), Placed::default);
        self.is_partial = false;
        for (index, (slab, placed)) in slabs.iter().zip(&mut self.stations).enumerate() {
            let (first, length, [delay, rate, residual]) = setup.place(index, number)?;
            let parts = setup.block_parts() / length;
            let lanes = slab.lanes.iter();
            let goods = lanes.map(|lane| good(&lane.good, first..first + length, parts));
            placed.lanes.clear();
            placed.lanes.extend(goods);
            let mut lanes = placed.lanes.iter();
            self.is_partial |= lanes.any(|lane| matches!(lane, Good::Some(_)));
            (placed.first, placed.delay) = (first, delay);
            (placed.rate, placed.residual) = (rate, residual);
        }
        Ok(())
    }

    /// Returns whether the same inputs are valid in all of this and another block, and no input in a part of it.
    pub fn is_like(&self, other: &Block) -> bool {
        let mut pairs = self.stations.iter().zip(&other.stations);
        !self.is_partial && pairs.all(|(a, b)| a.lanes == b.lanes)
    }

    /// Returns the validity of an input. A missing thread has no valid parts.
    pub fn good(&self, setup: &Setup, input: Input) -> &Good {
        let lanes = &self.stations[input.station].lanes;
        lanes.get(setup.band(input).lane).unwrap_or(&Good::Nothing)
    }
}

fn good(set: &Intervals, samples: Range<i64>, parts: i64) -> Good {
    if set.covers(samples.clone()) {
        return Good::All;
    }
    let there = set.within(samples.clone());
    if there.is_empty() {
        return Good::Nothing;
    }
    let from = samples.start;
    let in_parts = |range: Range<i64>| (range.start - from) * parts..(range.end - from) * parts;
    Good::Some(there.iter().map(in_parts).collect())
}
