//! Memory that a part takes, and the bands that fit into it.

use evlbi_fx::correlator::{Correlator, Input, Setup};

use super::error::ChunkError;
use crate::run::UNIT;
use crate::sums;

/// Memory of the program, and of what is small.
const BASE: u64 = 48 << 20;
/// Memory of the frames of a thread that are held, beyond those of a unit.
const LANE: u64 = 16 << 20;
/// Memory of a block of a recording, and of the frame that it ends in.
const READ: u64 = 18 << 20;

/// Returns the maximum memory of a part of these stations and bands, in bytes, with this many threads. It does not depend on the time.
/// `lanes` are the threads of each station's recording.
pub fn needed(setup: &Setup, lanes: &[usize], threads: usize) -> u64 {
    let threads = threads as u64;
    // Units in the queue, with the threads, and in the making.
    let units = 3 * threads + 1;
    let stations = setup.stations().iter().zip(lanes).map(|(station, lanes)| {
        let lanes = *lanes as u64;
        let unit =
            (UNIT as u64 + 4 * setup.block_parts() as u64) * station.layout.bits() as u64 / 8;
        lanes * (unit * (units + 2) + LANE) + READ
    });
    let dump = sums::dump_length(setup) as u64;
    let correlators = threads * (Correlator::memory(setup) as u64 + dump);
    // Each unit has sums, those of unfinished dumps wait, and one is written.
    BASE + stations.sum::<u64>() + correlators + (2 * units + 4) * dump
}

/// Divides groups of bands into as few ranges as fit into a part's memory; returns their limits, and the memory of the largest.
pub fn divide(
    setup: &Setup,
    groups: &[Vec<Input>],
    lanes: &[usize],
    threads: usize,
    limit: Option<u64>,
) -> Result<(Vec<usize>, u64), ChunkError> {
    let most = groups.len().max(1);
    let mut memory = 0;
    for ranges in 1..=most {
        let cuts: Vec<usize> = (0..=ranges).map(|number| most * number / ranges).collect();
        let of = |cut: &[usize]| {
            let bands = setup.only(&groups[cut[0]..cut[1]].concat());
            needed(&bands, lanes, threads)
        };
        memory = cuts.windows(2).map(of).max().unwrap_or(0);
        if limit.is_none_or(|limit| memory <= limit) {
            return Ok((cuts, memory));
        }
    }
    Err(ChunkError::Memory(memory))
}
