//! The FX correlator: samples of all stations on one grid of time become products of spectra.
//!
//! Time at the common reference is cut into blocks, each long enough for one spectrum. For each block and
//! station: the whole samples of the delay are taken out by choosing where the block begins, samples are
//! decoded, those that must not be used become zero, the fringe is stopped by a rotation sample by sample
//! (or of the whole block where that loses next to nothing), the transform is taken, and the rest of the
//! delay is taken out as a slope of phase. The spectra are multiplied and summed.
//!
//! ```text
//! slab -> decode -> zero what is bad -> rotate -> transform -> slope -> multiply with the others -> sum
//! ```
//!
//! Every block is independent of all others, and so is every sum of blocks: threads and machines can share
//! them in any way.

mod block;
mod kernel;
mod setup;
mod spectrum;
mod sums;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

pub use self::setup::{Band, Input, Product, Rotation, Setup, SetupError, StationSetup};
pub use self::sums::{InputSums, ProductSums, Sums};

use self::block::{Block, State};
use self::spectrum::Spectrograph;
use crate::delay::OutsideModel;
use crate::track::Slab;

/// Blocks whose spectra are held at the same time: as many as a processor's own cache takes, at most.
const MOST_BLOCKS: usize = 32;
/// Bytes of spectra that are held at the same time.
const CACHE: usize = 768 << 10;

/// Correlates blocks. Each thread has its own.
pub struct Correlator {
    setup: Arc<Setup>,
    spectrograph: Spectrograph,
    /// Spectra of the blocks at hand, of each input.
    spectra: Vec<Spectra>,
    batch: usize,
}

/// Spectra of one input: real and imaginary parts apart, channel by channel, block after block.
struct Spectra {
    re: Vec<f32>,
    im: Vec<f32>,
}

impl Correlator {
    /// A correlator for this set-up.
    pub fn new(setup: &Arc<Setup>) -> Correlator {
        let inputs = setup.inputs().count();
        let bytes = inputs * setup.channels() * 8;
        let batch = (CACHE / bytes).clamp(1, MOST_BLOCKS);
        let spectra = || Spectra {
            re: vec![0.0; batch * setup.channels()],
            im: vec![0.0; batch * setup.channels()],
        };
        Correlator {
            setup: Arc::clone(setup),
            spectrograph: Spectrograph::new(setup),
            spectra: (0..inputs).map(|_| spectra()).collect(),
            batch,
        }
    }

    /// Correlates blocks. `slabs` has one of each station, which covers [`Setup::samples`] of these blocks;
    /// what it does not cover is missing.
    ///
    /// # Errors
    /// [`OutsideModel`] when a delay model does not cover the time.
    pub fn correlate(&mut self, slabs: &[Slab], blocks: Range<i64>) -> Result<Sums, OutsideModel> {
        let mut sums = Sums::new(&self.setup);
        self.spectrograph.begin();
        let mut from = blocks.start;
        while from < blocks.end {
            let to = (from + self.batch as i64).min(blocks.end);
            self.correlate_batch(slabs, from..to, &mut sums)?;
            from = to;
        }
        Ok(sums)
    }

    fn correlate_batch(
        &mut self,
        slabs: &[Slab],
        blocks: Range<i64>,
        sums: &mut Sums,
    ) -> Result<(), OutsideModel> {
        let setup = Arc::clone(&self.setup);
        let channels = setup.channels();
        let count = (blocks.end - blocks.start) as usize;
        for (place, number) in blocks.enumerate() {
            let block = Block::look(&setup, slabs, number)?;
            let rows = place * channels..(place + 1) * channels;
            for (input, spectra) in setup.inputs().zip(&mut self.spectra) {
                let (re, im) = (&mut spectra.re[rows.clone()], &mut spectra.im[rows.clone()]);
                if block.state(&setup, input) == State::Empty {
                    re.fill(0.0);
                    im.fill(0.0);
                    continue;
                }
                self.spectrograph
                    .take(&setup, input, &slabs[input.station], &block, (re, im));
            }
            sums.add_goods(&setup, &block, &self.spectrograph);
        }
        sums.blocks += count as u64;
        self.multiply(count, sums);
        Ok(())
    }

    fn multiply(&self, count: usize, sums: &mut Sums) {
        let of = |index: usize| {
            let Spectra { re, im } = &self.spectra[index];
            (re.as_slice(), im.as_slice())
        };
        for (index, input) in sums.inputs.iter_mut().enumerate() {
            self.spectrograph.square(of(index), count, &mut input.power);
        }
        for (product, sums) in self.setup.products().iter().zip(&mut sums.products) {
            let (a, b) = (self.setup.index(product.a), self.setup.index(product.b));
            self.spectrograph
                .multiply(of(a), of(b), count, &mut sums.values);
        }
    }
}
