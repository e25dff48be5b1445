//! One block at every station: where it lies, and what of it may be used.

use std::ops::Range;

use evlbi_wire::validity::Intervals;

use super::setup::{Input, Setup};
use crate::delay::OutsideModel;
use crate::track::Slab;

/// A block.
pub struct Block {
    pub stations: Vec<Placed>,
    /// Some of it may be used and some not, at some station.
    pub is_partial: bool,
}

/// A block at one station.
pub struct Placed {
    /// Number of its first sample.
    pub first: i64,
    /// Delay in the middle of it, all of it, s.
    pub delay: f64,
    /// Its rate, s/s.
    pub rate: f64,
    /// What is left of it behind the whole samples, s.
    pub residual: f64,
    /// Parts of each thread that may be used.
    pub lanes: Vec<Good>,
}

/// What of a block may be used.
#[derive(Clone, Debug, PartialEq)]
pub enum Good {
    All,
    Nothing,
    /// Parts, counted from the beginning of the block.
    Some(Intervals),
}

impl Block {
    /// Looks up where block `number` lies and what of it is there.
    pub fn look(setup: &Setup, slabs: &[Slab], number: i64) -> Result<Block, OutsideModel> {
        let mut stations = Vec::with_capacity(slabs.len());
        let mut is_partial = false;
        for (index, slab) in slabs.iter().enumerate() {
            let (first, length, [delay, rate, residual]) = setup.place(index, number)?;
            let parts = setup.block_parts() / length;
            let lanes: Vec<Good> = slab
                .lanes
                .iter()
                .map(|lane| good(&lane.good, first..first + length, parts))
                .collect();
            is_partial |= lanes.iter().any(|lane| matches!(lane, Good::Some(_)));
            stations.push(Placed {
                first,
                delay,
                rate,
                residual,
                lanes,
            });
        }
        Ok(Block {
            stations,
            is_partial,
        })
    }

    /// What may be used of an input. A thread that is not there has nothing.
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
