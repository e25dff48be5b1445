//! FX correlator: samples of all stations on one time grid become products of spectra.
//!
//! Time at the common reference is divided into blocks, each long enough for one spectrum. These steps follow for each block and
//! station: the start of the block compensates the delay in whole samples; samples are decoded; invalid ones become zero; a
//! rotation, sample by sample, stops the fringe (or a rotation of the whole block, if that loses next to nothing); the block is
//! transformed; a phase slope compensates the rest of the delay. The spectra are multiplied and summed.
//!
//! Steps from samples to sums belong here. Delays are in [`crate::delay`], the validity of blocks in [`crate::track`].
//!
//! ```text
//! slab -> decode -> zero invalid samples -> rotate -> transform -> slope -> multiply with the others -> sum
//! ```
//!
//! Every block and every sum of blocks is independent of all others: they can be divided among threads and machines in any way.

mod block;
mod kernel;
mod products;
mod setup;
mod spectrum;
mod sums;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

pub use self::setup::{Band, CHANNELS, Input, Product, Rotation, Setup, SetupError, StationSetup};
pub use self::sums::{InputSums, ProductSums, Sums};

use self::block::{Block, Good};
use self::kernel::{Place, TILE, Tile};
use self::products::Products;
use self::spectrum::Spectrograph;
use crate::delay::OutsideModel;
use crate::track::Slab;

/// Correlator of blocks. Each thread has its own.
pub struct Correlator {
    setup: Arc<Setup>,
    spectrograph: Spectrograph,
    /// Spectra of the current blocks, for each input.
    spectra: Vec<Spectra>,
    /// The current block, and the one before it.
    block: Block,
    last: Block,
    products: Products,
}

/// Spectra of one input for some blocks. A tile of channels of all blocks is contiguous, block after block, so that the tiles of all
/// inputs fit the fastest cache at the same time.
pub(crate) struct Spectra {
    tiles: Vec<Tile>,
    blocks: usize,
}

impl Spectra {
    fn new(channels: usize, blocks: usize) -> Spectra {
        Spectra {
            tiles: vec![[[0.0; TILE]; 2]; channels.div_ceil(TILE) * blocks],
            blocks,
        }
    }

    /// Returns the tiles of a block.
    fn block(&mut self, block: usize) -> Place<'_> {
        Place {
            tiles: &mut self.tiles[block..],
            stride: self.blocks,
        }
    }

    /// Returns one tile of the first blocks.
    fn tile(&self, tile: usize, count: usize) -> &[Tile] {
        &self.tiles[tile * self.blocks..][..count]
    }
}

impl Correlator {
    /// Makes a correlator for this setup.
    pub fn new(setup: &Arc<Setup>) -> Correlator {
        let spectra = |_| Spectra::new(setup.channels(), setup.batch());
        Correlator {
            setup: Arc::clone(setup),
            spectrograph: Spectrograph::new(setup),
            spectra: setup.inputs().map(spectra).collect(),
            block: Block::default(),
            last: Block::default(),
            products: Products::new(setup),
        }
    }

    /// Returns the memory of a correlator for this setup, in bytes.
    pub fn memory(setup: &Setup) -> usize {
        let channels = setup.channels().div_ceil(TILE) * TILE;
        let spectra = setup.inputs().count() * channels * setup.batch() * 8;
        let products = setup.products().len() * channels * 16;
        // Samples of all channels of a thread, transforms, and running sums of each input.
        let layouts = setup.stations().iter().map(|it| it.layout.components());
        let block = channels * (64 + 8 * layouts.max().unwrap_or(1) + 16 * setup.inputs().count());
        spectra + products + block
    }

    /// Correlates blocks. `slabs` has one slab per station, which covers [`Setup::samples`] of these blocks; samples outside the
    /// slab are missing.
    ///
    /// # Errors
    /// Returns [`OutsideModel`] if a delay model does not cover the time.
    pub fn correlate(&mut self, slabs: &[Slab], blocks: Range<i64>) -> Result<Sums, OutsideModel> {
        let mut sums = Sums::new(&self.setup);
        self.spectrograph.begin();
        let batch = self.setup.batch();
        let done = blocks.clone().step_by(batch).try_for_each(|from| {
            let to = (from + batch as i64).min(blocks.end);
            self.correlate_batch(slabs, from..to, &mut sums)
        });
        // After an error, too: the next blocks begin with nothing.
        self.products.collect(&mut sums);
        done.map(|()| sums)
    }

    fn correlate_batch(
        &mut self,
        slabs: &[Slab],
        blocks: Range<i64>,
        sums: &mut Sums,
    ) -> Result<(), OutsideModel> {
        let setup = Arc::clone(&self.setup);
        let count = (blocks.end - blocks.start) as usize;
        // Blocks since the last ones whose valid parts were added.
        let mut alike = 0;
        for (place, number) in blocks.enumerate() {
            std::mem::swap(&mut self.block, &mut self.last);
            self.block.look(&setup, slabs, number)?;
            let block = &self.block;
            if alike > 0 && !block.is_like(&self.last) {
                sums.add_goods(&setup, &self.last, alike, &mut self.spectrograph);
                alike = 0;
            }
            alike += 1;
            for (input, spectra) in setup.inputs().zip(&mut self.spectra) {
                if *block.good(&setup, input) == Good::Nothing {
                    spectra
                        .block(place)
                        .tiles()
                        .for_each(|tile| *tile = Default::default());
                    continue;
                }
                let slab = &slabs[input.station];
                self.spectrograph
                    .take(&setup, input, slab, block, spectra.block(place));
            }
        }
        sums.add_goods(&setup, &self.block, alike, &mut self.spectrograph);
        sums.blocks += count as u64;
        self.multiply(count, sums);
        Ok(())
    }

    /// Multiplies tile by tile, all pairs of each.
    fn multiply(&mut self, count: usize, sums: &mut Sums) {
        let arch = self.spectrograph.arch;
        for tile in 0..self.setup.channels().div_ceil(TILE) {
            for (spectra, input) in self.spectra.iter().zip(&mut sums.inputs) {
                let power = &mut input.power[tile * TILE..];
                kernel::square(arch, spectra.tile(tile, count), power);
            }
            self.products.add(arch, &self.spectra, tile, count);
        }
    }
}
